"""A report of a million requests: memory and size are held, the time is printed."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from experiments import bundle
from experiments.html_report.command import MOST_BYTES
from tests.experiments.html_report.conftest import run_of

COPIES, TOGETHER = 500, 25
SMALL = {
    "name": "million",
    "workload": {"preset": "azure-conv-2023", "requests": 2000, "arrivals": {"rate_per_s": 28}},
    "model": "llama-3.1-8b",
    "device": "h100-sxm",
    "replicas": 2,
    "policy": "vllm-v1",
    "label": "one",
}


def shifted(table: pa.Table, copy: int, span_ns: int, rows: int) -> pa.Table:
    """The table as of a later stretch of the run: times and indices are moved on."""
    for at, name in enumerate(table.column_names):
        moment = name in ("arrival_ns", "start_ns") or (
            name.endswith("_ns") and not name.startswith(("e2e_", "ttft_", "largest_", "busy_"))
        )
        by = copy * span_ns if moment else copy * rows if name in ("index", "row") else 0
        if by:
            column = pc.add(table.column(name), by).cast(table.schema.field(name).type)
            table = table.set_column(at, table.schema.field(name), column)
    return table


def repeat(path: Path, span_ns: int, rows: int) -> None:
    """Make a table of a bundle many times as long, row group by row group."""
    table = pq.read_table(path)
    partial = path.with_suffix(".longer")
    with pq.ParquetWriter(partial, table.schema, compression="zstd") as writer:
        for first in range(0, COPIES, TOGETHER):
            copies = range(first, first + TOGETHER)
            parts = [shifted(table, copy, span_ns, rows) for copy in copies]
            writer.write_table(pa.concat_tables(parts))
    partial.replace(path)


@pytest.mark.slow
def test_a_million_requests_are_reported_in_2_gb(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder,) = run_of(SMALL, tmp_path / "out")
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    span_ns = summary["facts"]["end_ns"]
    for name in (bundle.REQUESTS, bundle.STEPS):
        repeat(folder / name, span_ns, SMALL["workload"]["requests"])
    summary["facts"]["end_ns"] = COPIES * span_ns
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    assert pq.read_metadata(folder / bundle.REQUESTS).num_rows == 1_000_000
    began = time.perf_counter()
    page = tmp_path / "page.html"
    command = [sys.executable, "-m", "experiments", "report", str(folder), "--out", str(page)]
    subprocess.run(command, check=True, capture_output=True)
    seconds = time.perf_counter() - began
    # The largest of all children so far, which is at least that of the report.
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    steps = pq.read_metadata(folder / bundle.STEPS).num_rows
    size = page.stat().st_size
    with capsys.disabled():
        sys.stdout.write(
            f"1,000,000 requests, {steps:,} rows of steps: {seconds:.0f} s, "
            f"{peak / 1e9:.2f} GB, page of {size / 1e6:.1f} MB\n"
        )
    assert peak < 2e9
    assert size < MOST_BYTES
    shutil.rmtree(folder)
