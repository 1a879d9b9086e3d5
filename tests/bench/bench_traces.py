"""How fast traces are read and fed: ``python -m tests.bench.bench_traces [ROWS]``.

Wanted: CSV at a million rows in seconds, JSON lines at 50,000 rows a second; 62,000 to 75,000 where
this was written. In processor time, as machines are shared; printed, never asserted.
"""

from __future__ import annotations

import collections
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import traces
from tests.bench.measure import recorded
from traces.build import columns
from traces.workload import TraceSource

MOONCAKE = "mooncake_conversation_head.jsonl.gz"


def rows_per_s(what: str, rows: int, call: Callable[[], object]) -> None:
    """Print how long `call` takes for so many rows."""
    start = time.process_time()
    call()
    seconds = time.process_time() - start
    print(f"{what:44} {rows:>9,} rows {seconds:7.2f} s {rows / seconds:12,.0f} rows/s")


def write_csv(path: Path, rows: int) -> None:
    """Rows as Azure's 2024 traces have them, a millisecond apart in the clock's last digits."""
    with path.open("w", encoding="utf-8") as file:
        file.write("TIMESTAMP,ContextTokens,GeneratedTokens\n")
        for i in range(rows):
            clock = f"{i // 3600 % 24:02d}:{i // 60 % 60:02d}:{i % 60:02d}.{i % 1000:03d}000+00:00"
            file.write(f"2024-05-{10 + i // 86_400:02d} {clock},{i % 4000 + 1},{i % 300 + 1}\n")


def main(rows: int) -> None:
    """Print one line for each way of reading and feeding."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "azure.csv"
        write_csv(path, rows)
        rows_per_s("CSV, Azure 2024", rows, lambda: traces.load(path))
    ones = np.ones(rows, dtype=np.int64)
    source = TraceSource(columns(np.arange(rows), ones, ones, ones, ones))
    rows_per_s("arrivals fed", rows, lambda: collections.deque(source, maxlen=0))
    mooncake = recorded().with_name(MOONCAKE)
    if not mooncake.is_file():
        print(f"{MOONCAKE}: not at hand, left out")
        return
    count = len(traces.load(mooncake))  # imports are not the point
    rows_per_s(f"JSON lines, {MOONCAKE}", count, lambda: traces.load(mooncake))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
