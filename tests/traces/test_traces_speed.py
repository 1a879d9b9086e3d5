"""How fast traces are read, in processor time: machines are shared, so bounds are loose too."""

from __future__ import annotations

import collections
import time
from pathlib import Path

import numpy as np
import pytest

import traces
from traces.build import columns
from traces.workload import TraceSource

pytestmark = pytest.mark.slow

ROWS = 1_000_000


def test_csv_loads_a_million_rows_in_seconds(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    rows = (
        f"2024-05-{10 + i // 86_400:02d} {i // 3600 % 24:02d}:{i // 60 % 60:02d}:{i % 60:02d}."
        f"{i % 1000:03d}000+00:00,{i % 4000 + 1},{i % 300 + 1}\n"
        for i in range(ROWS)
    )
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(rows))

    start = time.process_time()
    trace = traces.load(path)

    assert len(trace) == ROWS
    assert time.process_time() - start < 10


def test_json_lines_load_at_fifty_thousand_rows_a_second(shared: Path) -> None:
    path = shared / "traces" / "mooncake_conversation_head.jsonl.gz"
    traces.load(path)  # imports are not the point

    start = time.process_time()
    trace = traces.load(path)

    rate = len(trace) / (time.process_time() - start)
    assert rate > 30_000, f"{rate:,.0f} rows a second; 62,000 to 75,000 where this was written"


def test_a_million_arrivals_are_fed_in_about_a_second() -> None:
    ones = np.ones(ROWS, dtype=np.int64)
    source = TraceSource(columns(np.arange(ROWS), ones, ones, ones, ones))

    start = time.process_time()
    collections.deque(source, maxlen=0)

    assert time.process_time() - start < 3
