"""Make a failing workload small: drop and simplify parts of a JSON-like value that still fails."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

Path = tuple[str | int, ...]
Fails = Callable[[Any], bool]


def shrink(value: Any, fails: Fails, most_tries: int = 3000) -> Any:
    """A smaller value that still fails, found greedily.

    List entries are dropped (halves first), dict entries are dropped, numbers are made smaller or
    rounder, until nothing more helps. The value passed in is not changed.

    Args:
        value: Dicts, lists and scalars, as JSON has them; `fails(value)` must be true.
        fails: Whether a candidate still shows the failure. It must be false for candidates that are
            no valid input: shrinking knows nothing of what the value means.
        most_tries: Calls of `fails` after which the smallest found so far is returned.
    """
    search = _Search(copy.deepcopy(value), fails, most_tries)
    while search.tries_left > 0:
        before = search.successes
        for step in (_drop_entries, _drop_keys, _simplify_scalars):
            step(search)
        if search.successes == before:
            break
    return search.best


class _Search:
    def __init__(self, value: Any, fails: Fails, most_tries: int) -> None:
        self.best = value
        self.fails = fails
        self.tries_left = most_tries
        self.successes = 0

    def accept(self, candidate: Any) -> bool:
        """Keep the candidate if it still fails."""
        if self.tries_left <= 0:
            return False
        self.tries_left -= 1
        if not self.fails(candidate):
            return False
        self.best = candidate
        self.successes += 1
        return True

    def accept_at(self, path: Path, value: Any) -> bool:
        candidate = copy.deepcopy(self.best)
        _container(candidate, path)[path[-1]] = value
        return self.accept(candidate)

    def accept_without(self, path: Path) -> bool:
        candidate = copy.deepcopy(self.best)
        del _container(candidate, path)[path[-1]]
        return self.accept(candidate)


def _drop_entries(search: _Search) -> None:
    """Halves of each list, then quarters, down to single entries."""
    for path in list(_paths(search.best, list)):
        size = len(_at(search.best, path)) // 2
        while size >= 1:
            start = 0
            while start < len(_at(search.best, path)):
                entries = _at(search.best, path)
                if not search.accept_at(path, entries[:start] + entries[start + size :]):
                    start += size
            size //= 2


def _drop_keys(search: _Search) -> None:
    for path in list(_paths(search.best, object)):
        container = _find(search.best, path[:-1])
        if isinstance(container, dict) and path[-1] in container:
            search.accept_without(path)


def _simplify_scalars(search: _Search) -> None:
    for path in list(_paths(search.best, int | float)):
        improved = True
        while improved:
            value = _at(search.best, path)
            improved = any(search.accept_at(path, simpler) for simpler in _simpler(value))


def _simpler(value: bool | int | float) -> Iterator[bool | int | float]:
    """Candidates, boldest first; each is smaller in (digits, size), so that shrinking ends."""
    if isinstance(value, bool):
        return
    candidates: list[int | float]
    if isinstance(value, int):
        candidates = [0, 1, value // 2, value - 1, *(_rounded(value, d) for d in (1, 2, 3))]
    else:
        candidates = [0.0, 1.0, *(float(f"{value:.{d}e}") for d in (0, 1, 2)), value / 2]
    for candidate in candidates:
        if _complexity(candidate) < _complexity(value):
            yield candidate


def _rounded(value: int, digits: int) -> int:
    unit = int(10 ** max(0, len(str(abs(value))) - digits))
    return value // unit * unit


def _complexity(value: int | float) -> tuple[int, float]:
    digits = f"{value:.17g}".split("e")[0].replace(".", "").strip("-0")
    return len(digits), abs(value)


def _paths(value: Any, kind: Any, path: Path = ()) -> Iterator[Path]:
    if path and isinstance(value, kind):
        yield path
    if isinstance(value, dict):
        for key in value:
            yield from _paths(value[key], kind, (*path, key))
    elif isinstance(value, list):
        for i, entry in enumerate(value):
            yield from _paths(entry, kind, (*path, i))


def _at(value: Any, path: Path) -> Any:
    for key in path:
        value = value[key]
    return value


def _find(value: Any, path: Path) -> Any:
    """What stands at the path, or None if an earlier step removed it."""
    for key in path:
        try:
            value = value[key]
        except (KeyError, IndexError):
            return None
    return value


def _container(value: Any, path: Path) -> Any:
    return _at(value, path[:-1])
