"""How far a profile is, and about how long it still takes: rich's bar on a terminal, else lines."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

LINE_EVERY_S = 5.0
"""Between two lines where there is no terminal."""


class Progress(Protocol):
    """Told of each point."""

    def begin(self, points: int, left_s: float) -> None:
        """So many points follow, in about so many seconds."""
        ...

    def point(self, done: int, what: str, left_s: float) -> None:
        """So many are done, the last one of table `what`."""
        ...

    def end(self) -> None:
        """No more follow."""
        ...


class Lines:
    """A line of text now and then.

    Args:
        say: Where it goes.
        every_s: Least time between two lines.
        clock: Seconds.
    """

    def __init__(
        self,
        say: Callable[[str], object],
        every_s: float = LINE_EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._say = say
        self._every_s = every_s
        self._clock = clock
        self._last = float("-inf")
        self._points = 0

    def begin(self, points: int, left_s: float) -> None:
        """Says how much there is to do."""
        self._points = points
        self._say(f"measuring {points} points, about {span(left_s)}")

    def point(self, done: int, what: str, left_s: float) -> None:
        """Says how far it is, if the last line is old enough or all is done."""
        now = self._clock()
        if now - self._last >= self._every_s or done == self._points:
            self._last = now
            self._say(f"{done}/{self._points} points, {what}, about {span(left_s)} left")

    def end(self) -> None:
        """Nothing to close."""


class Bar:
    """rich's progress bar on stderr."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as RichProgress

        self._bar = RichProgress(
            TextColumn("{task.description:18}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
            console=Console(stderr=True),
        )
        self._task: Any = None

    def begin(self, points: int, left_s: float) -> None:
        """Draws the bar."""
        self._bar.start()
        self._task = self._bar.add_task("", total=points, left=f"about {span(left_s)}")

    def point(self, done: int, what: str, left_s: float) -> None:
        """Moves it."""
        left = f"about {span(left_s)} left"
        self._bar.update(self._task, completed=done, description=what, left=left)

    def end(self) -> None:
        """Leaves it as it is."""
        self._bar.stop()


def to_stderr(text: str) -> None:
    """One line on stderr, at once."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def default_progress() -> Progress:
    """A bar where stderr is a terminal and rich is installed; else lines."""
    if sys.stderr.isatty() and importlib.util.find_spec("rich") is not None:
        return Bar()
    return Lines(to_stderr)


def span(seconds: float) -> str:
    """As in ``45 s`` or ``3 min 20 s``."""
    whole = max(0, round(seconds))
    return f"{whole} s" if whole < 100 else f"{whole // 60} min {whole % 60} s"
