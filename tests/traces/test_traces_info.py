"""`trace info` and `trace synth -o`: figures as text, and files to read back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import traces
from sim.errors import TraceError
from traces.build import columns
from traces.info import describe, rank_correlation, render, spark_line
from traces.presets import synthesize
from traces.write import write


def test_render_shows_counts_rate_quantiles_spark_line_and_notes(shared: Path) -> None:
    text = render(describe(shared / "traces" / "burstgpt_1_first400.csv"))

    lines = text.splitlines()
    assert lines[0].endswith("burstgpt_1_first400.csv (burstgpt)")
    assert lines[1] == "requests    400, 17 empty"
    assert "0.01071 requests/s, CV of gaps 4.56" in lines[3]
    assert "█" in lines[4]
    assert any(line.startswith("prompt") and "2,126" in line for line in lines)
    assert lines[-1].startswith("note: 17 rows have 0 output tokens")


def test_percentiles_are_values_that_occurred() -> None:
    info = describe(
        columns(np.arange(4), np.array([1, 2, 3, 10]), *(np.ones(4, dtype=np.int64),) * 2)
    )

    assert (info.prompt.p50, info.prompt.p90, info.prompt.largest) == (2, 10, 10)
    assert info.rank_correlation is None


def test_lengths_without_arrivals_have_no_rate(shared: Path) -> None:
    info = describe(shared / "traces" / "lengths_arxiv_summarization_head.csv")

    assert info.rate_per_s is None
    assert "none: to be generated" in render(info)


def test_a_burst_and_a_single_request_can_be_described() -> None:
    for n in (1, 3):
        ones = np.ones(n, dtype=np.int64)
        assert "all at one time" in render(describe(columns(ones * 5, ones, ones, ones)))


def test_spark_line_runs_from_blank_to_full() -> None:
    assert spark_line([0, 1, 4, 8]) == " ▁▄█"
    assert spark_line([0, 0]) == "  "
    assert spark_line([]) == ""


def test_rank_correlation_gives_ties_their_mean_rank() -> None:
    # Ranks 1.5 1.5 3 4 and 1 2.5 2.5 4, mean 2.5: covariance 3.75, both squares add up to 4.5.
    found = rank_correlation(np.array([1, 1, 2, 3]), np.array([4, 5, 5, 9]))

    assert found == pytest.approx(3.75 / 4.5)


def test_synthetic_traces_are_written_and_read_back(tmp_path: Path) -> None:
    trace = synthesize("azure-conv-2023", 200, 5.0, 1)

    again = traces.load(write(trace, tmp_path / "t.csv"))

    assert again.arrival_ns.tolist() == trace.arrival_ns.tolist()
    assert again.output_tokens.tolist() == trace.output_tokens.tolist()


def test_the_same_trace_gives_the_same_bytes(tmp_path: Path) -> None:
    trace = synthesize("reasoning", 20)

    one, other = (write(trace, tmp_path / name) for name in ("a.jsonl.gz", "b.jsonl.gz"))

    assert one.read_bytes() == other.read_bytes()


def test_files_are_not_overwritten_and_endings_are_checked(tmp_path: Path) -> None:
    trace = synthesize("reasoning", 2)
    path = write(trace, tmp_path / "t.csv")

    with pytest.raises(TraceError, match="is there already"):
        write(trace, path)
    assert write(trace, path, overwrite=True) == path
    with pytest.raises(TraceError, match=r"'\.parquet'; expected \.csv"):
        write(trace, tmp_path / "t.parquet")


def test_length_only_traces_are_written_without_arrivals(shared: Path, tmp_path: Path) -> None:
    trace = traces.load(shared / "traces" / "lengths_arxiv_summarization_head.csv")

    again = traces.load(write(trace, tmp_path / "t.csv"))

    assert (again.arrival_ns == -1).all()
    assert again.prompt_tokens.tolist() == trace.prompt_tokens.tolist()
