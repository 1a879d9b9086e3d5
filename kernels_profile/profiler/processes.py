"""Parts of a session as processes of their own, ended in time with all that they started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]

TICK_S = 30.0
"""How often whoever waits for a part is told that it still runs."""

DEVICE_LOST = 3
"""Exit code of a part whose device stopped working: a new process may find it well again."""

DONE = "done"
ABSENT = "not there: this checkout has no module for it"
LOST = "the device stopped working"


@dataclass(frozen=True)
class Part:
    """One part of a session.

    Attributes:
        name: As in the log.
        limit_s: Its time.
        module: Run by ``python -m`` in a process of its own.
        arguments: Its command line, without its time.
        option: The option that tells it its time.
        grace_s: What it may take beyond that: loading torch and weights, a last point, writing.
        needs_gpu: The interpreter is too slow for it.
    """

    name: str
    limit_s: float
    module: str
    arguments: tuple[str, ...] = ()
    option: str = "--budget-s"
    grace_s: float = 20.0
    needs_gpu: bool = False

    @property
    def command(self) -> list[str]:
        """What is run."""
        told = (self.option, f"{self.limit_s:g}")
        return [sys.executable, "-m", self.module, *self.arguments, *told]

    def within(self, left_s: float) -> Part:
        """The same part, its time and grace no longer than what is left."""
        return replace(self, limit_s=round(min(self.limit_s, left_s - self.grace_s), 1))

    def run(self, tick: Callable[[], object] = lambda: None) -> str:
        """Run it and the processes that it starts until its time is over; says how it ended.

        Args:
            tick: Called every `TICK_S` while it runs.
        """
        if not is_there(self.module):
            return ABSENT
        process = subprocess.Popen(self.command, start_new_session=True, env=environment())
        try:
            code = _wait(process, time.monotonic() + self.limit_s + self.grace_s, tick)
        finally:  # on an interrupt, too
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if code is None:
            return f"ended after {self.limit_s + self.grace_s:.0f} s; what it wrote stays"
        return {0: DONE, DEVICE_LOST: LOST}.get(code, f"failed with exit code {code}")


def _wait(process: subprocess.Popen[bytes], until: float, tick: Callable[[], object]) -> int | None:
    """The exit code, or None if the process still runs at that time."""
    while (left_s := until - time.monotonic()) > 0:
        try:
            return process.wait(min(left_s, TICK_S))
        except subprocess.TimeoutExpired:
            tick()
    return None


def environment() -> dict[str, str]:
    """That of this process, with our packages found from any folder and no output held back."""
    known = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([str(REPOSITORY), *([known] if known else [])])
    return {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}


def is_there(module: str) -> bool:
    """Whether a module can be found beside this package, without importing what holds it."""
    path = REPOSITORY.joinpath(*module.split("."))
    return path.with_suffix(".py").is_file()
