"""Benchmark files become one form; what is partial, cut or contradictory is said in one line."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from experiments.validation.measured import Measurement, read_measurement
from sim.errors import ConfigError

VLLM: dict[str, Any] = {
    "date": "20260901-101500", "endpoint_type": "vllm", "backend": "vllm",
    "model_id": "meta-llama/Llama-3.1-8B-Instruct", "num_prompts": 3, "request_rate": 4.0,
    "burstiness": 1.0, "max_concurrency": None, "duration": 2.5, "completed": 2,
    "input_lens": [100, 200, 0], "output_lens": [3, 1, 0], "ttfts": [0.1, 0.25, 0.0],
    "itls": [[0.05, 0.07], [], []], "generated_texts": ["x", "y", ""],
    "errors": ["", "", "timed out"], "start_times": [1000.5, 1001.0, 1001.5],
    "mean_ttft_ms": 175.0,
}  # fmt: skip
"""One run as vLLM writes it: two served, one failed."""

DETAILS = ("input_lens", "output_lens", "ttfts", "itls", "generated_texts", "errors", "start_times")


def without(said: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in said.items() if key not in names}


def sglang(**more: Any) -> dict[str, Any]:
    """The same as SGLang writes it."""
    same = without(VLLM, "date", "model_id", "start_times", "endpoint_type")
    return {**same, "backend": "sglang", "sharegpt_output_len": None, **more}


def aiperf(start_ns: int, ttft_ms: float = 20.0, **metadata: Any) -> dict[str, Any]:
    """A record of AIPerf's profile_export.jsonl."""
    return {
        "metadata": {
            "session_num": 0, "request_start_ns": start_ns, "benchmark_phase": "profiling",
            "was_cancelled": False, **metadata,
        },
        "metrics": {
            "input_sequence_length": {"value": 550, "unit": "tokens"},
            "output_sequence_length": {"value": 5, "unit": "tokens"},
            "time_to_first_token": {"value": ttft_ms, "unit": "ms"},
            "request_latency": {"value": 100.0, "unit": "ms"},
            "inter_chunk_latency": {"value": [20.0, 20.0, 20.0, 20.0], "unit": "ms"},
        },
        "error": None,
    }  # fmt: skip


def saved(folder: Path, *documents: dict[str, Any], name: str = "result.json") -> Path:
    path = folder / name
    path.write_text("\n".join(json.dumps(document) for document in documents))
    return path


def table(measurement: Measurement, name: str) -> list[float]:
    values: list[float] = measurement.requests[name].tolist()
    return values


def test_vllms_detailed_result_is_read_request_by_request(tmp_path: Path) -> None:
    measurement = read_measurement(saved(tmp_path, VLLM))

    assert measurement.format == "vllm"
    assert measurement.requests.ok.tolist() == [True, True, False]
    assert table(measurement, "arrival_s") == [0.0, 0.5, 1.0]
    assert table(measurement, "prompt_tokens") == [100, 200, 0]
    served = measurement.served
    assert served.ttft_s.tolist() == [0.1, 0.25]
    assert served.e2e_s.tolist() == pytest.approx([0.22, 0.25])
    assert served.tpot_s.tolist() == pytest.approx([0.06, math.nan], nan_ok=True)
    assert served.itl_s.tolist() == [[0.05, 0.07], []]
    assert measurement.settings["request_rate"] == 4.0
    assert measurement.settings["model"] == "meta-llama/Llama-3.1-8B-Instruct"
    assert any("1 of 3 requests failed" in note for note in measurement.notes)


def test_older_results_without_start_times_have_no_arrivals(tmp_path: Path) -> None:
    measurement = read_measurement(saved(tmp_path, without(VLLM, "start_times")))

    assert measurement.requests.arrival_s.isna().all()
    assert "The file has no arrival times." in measurement.notes


@pytest.mark.parametrize(
    ("said", "flag"),
    [(VLLM, "--save-result --save-detailed"), (sglang(), "--output-details")],
)
def test_a_result_with_aggregates_only_names_the_flag_that_was_missing(
    tmp_path: Path, said: dict[str, Any], flag: str
) -> None:
    with pytest.raises(ConfigError, match=f"holds aggregates only.*{flag}"):
        read_measurement(saved(tmp_path, without(said, *DETAILS)))


def test_sglangs_lines_are_read_and_several_runs_must_be_told_apart(tmp_path: Path) -> None:
    path = saved(tmp_path, sglang(), sglang(ttfts=[0.2, 0.3, 0.0]), name="out.jsonl")
    with pytest.raises(ConfigError, match="holds 2 runs; say which with --run 1 to 2"):
        read_measurement(path)
    measurement = read_measurement(path, run=2)
    assert measurement.format == "sglang"
    assert measurement.served.ttft_s.tolist() == [0.2, 0.3]
    with pytest.raises(ConfigError, match=r"--run 3: .* holds 2 run"):
        read_measurement(path, run=3)


def test_a_request_that_was_not_streamed_has_no_first_token(tmp_path: Path) -> None:
    said = {**VLLM, "ttfts": [0.0, 0.25, 0.0]}
    assert math.isnan(read_measurement(saved(tmp_path, said)).requests.ttft_s[0])


def test_chunks_of_several_tokens_are_noted(tmp_path: Path) -> None:
    said = {**VLLM, "output_lens": [30, 1, 0]}
    measurement = read_measurement(saved(tmp_path, said))
    assert any("2 chunks after the first for 29 tokens" in note for note in measurement.notes)
    assert measurement.served.tpot_s.tolist()[0] == pytest.approx(0.12 / 29)


def test_aiperfs_records_are_in_seconds_without_warmup(tmp_path: Path) -> None:
    start = 1_763_066_701_865_462_123
    path = saved(
        tmp_path,
        aiperf(start - 10**9, benchmark_phase="warmup"),
        aiperf(start + 250_000_001),
        aiperf(start),
        aiperf(start + 10**9, was_cancelled=True),
        name="profile_export.jsonl",
    )
    measurement = read_measurement(path)

    assert measurement.format == "aiperf"
    assert table(measurement, "arrival_s") == [0.250000001, 0.0, 1.0]
    assert measurement.requests.ok.tolist() == [True, True, False]
    row = measurement.requests.iloc[0]
    assert (row.prompt_tokens, row.output_tokens) == (550, 5)
    assert (row.ttft_s, row.e2e_s, row.tpot_s) == pytest.approx((0.02, 0.1, 0.02))
    assert row.itl_s == pytest.approx([0.02] * 4)
    assert "1 requests of the warm-up are left out." in measurement.notes


def test_aiperfs_failed_requests_have_no_metrics(tmp_path: Path) -> None:
    failed = {**aiperf(500_000_000), "metrics": None, "error": {"code": 499, "type": "X"}}
    path = saved(tmp_path, aiperf(0), failed, name="profile_export.jsonl")
    assert read_measurement(path).requests.ok.tolist() == [True, False]


@pytest.mark.parametrize(
    "text",
    ["Metric,avg,min,max\nTime to First Token (ms),1,2,3\n", '{"input_config": {}, "x": 1}'],
)
def test_aiperfs_summaries_are_refused_with_the_file_to_give(tmp_path: Path, text: str) -> None:
    path = tmp_path / "profile_export_aiperf.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"holds no requests; give profile_export\.jsonl"):
        read_measurement(path)


def test_an_aiperf_unit_that_is_unknown_is_named(tmp_path: Path) -> None:
    record = aiperf(0)
    record["metrics"]["request_latency"]["unit"] = "msec"
    with pytest.raises(
        ConfigError, match="record 1: request_latency: unit msec is not known; did you mean"
    ):
        read_measurement(saved(tmp_path, record))


def test_a_csv_is_read_by_our_names_and_by_a_column_map(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("arrival_s,input_tokens,n,first,e2e_s\n3,10,5,20,0.1\n3.5,20,1,30,0.03\n")
    measurement = read_measurement(path, columns={"output_tokens": "n", "ttft_ms": "first"})

    assert measurement.format == "csv"
    assert table(measurement, "arrival_s") == [0.0, 0.5]
    assert table(measurement, "prompt_tokens") == [10, 20]
    assert table(measurement, "ttft_s") == pytest.approx([0.02, 0.03])
    assert table(measurement, "tpot_s") == pytest.approx([0.02, math.nan], nan_ok=True)


def test_first_token_and_gap_give_the_end(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("prompt_tokens,output_tokens,ttft_ms,tpot_ms\n10,5,20,10\n10,1,20,\n")
    assert table(read_measurement(path), "e2e_s") == pytest.approx([0.06, 0.02])


@pytest.mark.parametrize(
    ("text", "columns", "said"),
    [
        ("a,b\n1,2\n", {}, "which column is prompt_tokens.*It has a, b; say --column"),
        ("prompt_tokens,output_tokens\n1,2\n", {}, "has no times"),
        ("prompt_tokens,output_tokens,ttft_s\n1,2,soon\n", {}, "line 2: ttft_s: 'soon'"),
        ("prompt_tokens,output_tokens,ttft_s\n1,0,1\n", {}, "line 2: output_tokens: 0"),
        ("prompt_tokens,output_tokens,ttft_s,e2e_s\n1,2,3,1\n", {}, "ends after 1 s but.*3 s"),
        ("prompt_tokens,output_tokens,ttft_s\n1,2,-3\n", {}, "line 2: ttft_s: -3"),
        ("prompt_tokens,n\n1,2\n", {"output_token": "n"}, "none of ours; did you mean output"),
        ("prompt_tokens,nn\n1,2\n", {"output_tokens": "n"}, "has no column n; did you mean nn"),
        ("prompt_tokens,output_tokens,ttft_s\n", {}, "has no requests"),
        ("prompt_tokens,output_tokens,ttft_s,ok\n1,2,3,False\n", {}, "all 1 requests failed"),
    ],
)  # fmt: skip
def test_a_wrong_csv_is_one_clear_error(
    tmp_path: Path, text: str, columns: dict[str, str], said: str
) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_measurement(path, columns=columns)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ('{"date": "x", "ttfts": [0.1,', "line 1: is not complete JSON"),
        ('{"some": "thing"}', "is of no known benchmark"),
        ("[1, 2]", "is of no known benchmark"),
        (json.dumps({**VLLM, "ttfts": [0.1]}), "ttfts has 1 entries, input_lens 3"),
        (json.dumps({**VLLM, "itls": 3}), "itls: 3; expected a list"),
    ],
)
def test_a_cut_or_foreign_file_is_one_clear_error(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "result.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_measurement(path)


def test_options_that_do_not_fit_the_file_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, VLLM)
    with pytest.raises(ConfigError, match="--column renames the columns of a CSV"):
        read_measurement(path, columns={"ttft_s": "x"})
    with pytest.raises(ConfigError, match="--format: vlm is none; did you mean vllm"):
        read_measurement(path, format="vlm")
    with pytest.raises(ConfigError, match="no such file"):
        read_measurement(tmp_path / "none.json")
    with pytest.raises(ConfigError, match="--run chooses among"):
        read_measurement(saved(tmp_path, aiperf(0), name="a.jsonl"), run=1)


def test_the_real_servers_log_is_read_with_a_column_map(shared: Path) -> None:
    path = shared / "measured/llmservingsim/serving_rtxpro6000_llama-3.1-8b_requests.csv"
    measurement = read_measurement(path)

    assert len(measurement.served) == 300
    assert measurement.requests.arrival_s.is_monotonic_increasing
    again = measurement.served.ttft_s + measurement.served.tpot_s * (
        measurement.served.output_tokens - 1
    )
    assert (again / measurement.served.e2e_s - 1).abs().max() < 1e-3
