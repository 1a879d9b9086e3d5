"""Python's cycle collector, paused where many small objects are made and no cycles of them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_cycle_collection() -> Iterator[None]:
    """Pause the collector: all memory comes back by reference counts.

    It would only walk the living over and over: a fifth of the time of a run, and as much of
    reading a table of 100,000 rows, each of which is a list.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
