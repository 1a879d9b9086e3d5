"""Each value of each format is checked: an error names file, key, index and what would do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from experiments.cli import app
from experiments.validation.measured import Measurement, read_measurement
from sim.errors import ConfigError
from tests.experiments.validation.test_measured import DETAILS, VLLM, aiperf, saved, sglang, without

NAN, INF = float("nan"), float("inf")


def refused(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        read_measurement(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert "\n" not in text
    return text.removeprefix(f"{path}: ")


def with_entry(key: str, index: int, value: Any) -> dict[str, Any]:
    return {**VLLM, key: [*VLLM[key][:index], value, *VLLM[key][index + 1 :]]}


def csv(folder: Path, *lines: str) -> Path:
    path = folder / "mine.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


ODD = (None, "abc", "12", True, [1], {"a": 1}, NAN, INF, -1, 1e30, 10**400)


# --- vLLM and SGLang


@pytest.mark.parametrize("key", ["input_lens", "output_lens", "ttfts", "start_times"])
@pytest.mark.parametrize("value", ODD, ids=repr)
def test_an_odd_value_of_an_array_is_named(tmp_path: Path, key: str, value: Any) -> None:
    if key == "start_times" and value == -1:
        return  # a clock may start anywhere
    text = refused(saved(tmp_path, with_entry(key, 1, value)))
    assert text.startswith(f"{key}[1]: ")
    assert "; expected " in text


@pytest.mark.parametrize("value", [*ODD, 0.5], ids=repr)
def test_an_odd_gap_is_named(tmp_path: Path, value: Any) -> None:
    if not isinstance(value, list):
        assert refused(saved(tmp_path, with_entry("itls", 0, value))).startswith("itls[0]: ")
    text = refused(saved(tmp_path, with_entry("itls", 0, [0.05, "b" if value == 0.5 else value])))
    assert text.startswith("itls[0][1]: ")


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("input_lens", 12.5, "input_lens[0]: 12.5; expected a whole number of tokens"),
        ("ttfts", -1, "ttfts[0]: -1; expected a time of 0 to 2,592,000"),
        ("ttfts", "0.1", "ttfts[0]: '0.1'; expected a time, as a number"),
        ("itls", None, "itls[0]: null; expected a list of times"),
        ("start_times", None, "start_times[0]: null; expected a time, s, as others have"),
        ("errors", 3, "errors[0]: 3; expected a text"),
    ],
)
def test_the_value_and_what_would_do_are_said(
    tmp_path: Path, key: str, value: Any, said: str
) -> None:
    assert refused(saved(tmp_path, with_entry(key, 0, value))).startswith(said)


@pytest.mark.parametrize(
    "key", ["request_rate", "burstiness", "max_concurrency", "duration", "num_prompts", "completed"]
)
@pytest.mark.parametrize("value", ["fast", [1], True, NAN, -2, 10**400], ids=repr)
def test_an_odd_setting_is_named_with_and_without_start_times(
    tmp_path: Path, key: str, value: Any
) -> None:
    for said in (VLLM, without(VLLM, "start_times")):
        text = refused(saved(tmp_path, {**said, key: value}))
        assert text.startswith(f"{key}: ")
        assert "expected" in text


def test_a_model_that_is_no_text_is_named(tmp_path: Path) -> None:
    text = refused(saved(tmp_path, {**VLLM, "model_id": [1]}))
    assert text == "model_id: [1]; expected a text"


def test_a_rate_of_zero_is_refused_and_one_replayed_is_none(tmp_path: Path) -> None:
    assert refused(saved(tmp_path, {**VLLM, "request_rate": 0})).startswith("request_rate: 0; ")
    replayed = read_measurement(saved(tmp_path, sglang(request_rate="trace")))
    assert "request_rate" not in replayed.settings


def test_a_request_that_failed_needs_no_values(tmp_path: Path) -> None:
    said = VLLM
    for key, value in (("input_lens", None), ("output_lens", None), ("ttfts", NAN),
                       ("itls", None), ("start_times", 0.0)):  # fmt: skip
        said = {**said, key: [*said[key][:2], value]}
    measurement = read_measurement(saved(tmp_path, said))

    assert measurement.requests.ok.tolist() == [True, True, False]
    assert measurement.served.arrival_s.tolist() == [0.0, 0.5]
    assert any("1 of 3 requests failed" in note for note in measurement.notes)


def test_start_times_that_are_all_null_are_none(tmp_path: Path) -> None:
    measurement = read_measurement(saved(tmp_path, {**VLLM, "start_times": [None] * 3}))
    assert "The file has no arrival times." in measurement.notes


def test_requests_without_a_first_token_are_counted_and_the_first_is_named(tmp_path: Path) -> None:
    path = saved(tmp_path, with_entry("ttfts", 1, 0.0))
    assert (
        f"1 of 2 requests have no TTFT; the first is {path}: ttfts[1]."
        in read_measurement(path).notes
    )
    all_0 = saved(tmp_path, {**VLLM, "ttfts": [0.0, 0, 0]})
    assert refused(all_0).startswith("has no times: ttfts are all 0")


def test_a_duration_that_the_requests_outlast_is_refused(tmp_path: Path) -> None:
    text = refused(saved(tmp_path, {**VLLM, "duration": 1e-9, "ttfts": [2.0, 0.25, 0]}))
    assert text.startswith("duration is 1e-09 s, but request 0 (from 0) ends 2.12 s after the")
    as_ms = {**without(VLLM, "start_times"), "ttfts": [100.0, 250.0, 0.0]}
    assert "request 1 (from 0) ends 250 s after it was sent" in refused(saved(tmp_path, as_ms))


def test_other_contradictions_of_the_file_are_noted(tmp_path: Path) -> None:
    said = {**VLLM, "duration": 500.0, "num_prompts": 1000, "completed": 3}
    notes = read_measurement(saved(tmp_path, said)).notes

    assert "The file says num_prompts: 1,000, but holds 3 requests." in notes
    assert "The file says completed: 3, but holds 2 that did not fail." in notes
    assert not any("duration" in note for note in notes)  # one failed, after how long is unknown
    served = {**said, **{name: said[name][:2] for name in DETAILS}}
    notes = read_measurement(saved(tmp_path, served)).notes
    assert any("says duration: 500 s, but its requests end 0.75 s" in note for note in notes)
    assert not any(
        "The file says" in note for note in read_measurement(saved(tmp_path, VLLM)).notes
    )


# --- AIPerf


def record_with(name: str, metric: Any) -> dict[str, Any]:
    record = aiperf(10**9)
    record["metrics"][name] = metric
    return record


@pytest.mark.parametrize(
    "name",
    ["input_sequence_length", "output_sequence_length", "time_to_first_token", "request_latency"],
)
@pytest.mark.parametrize("value", ODD, ids=repr)
def test_an_odd_metric_is_named_by_its_record(tmp_path: Path, name: str, value: Any) -> None:
    path = saved(tmp_path, aiperf(0), record_with(name, {"value": value, "unit": "ms"}))
    text = refused(path)
    assert text.startswith(f"record 2: {name}: ")
    assert "; expected " in text
    assert refused(saved(tmp_path, aiperf(0), record_with(name, 3))).startswith(f"record 2: {name}")


@pytest.mark.parametrize("value", [*ODD, 0.5], ids=repr)
def test_odd_chunks_are_named_by_their_record(tmp_path: Path, value: Any) -> None:
    name = "inter_chunk_latency"
    if not isinstance(value, list):
        path = saved(tmp_path, record_with(name, {"value": value, "unit": "ms"}))
        assert refused(path).startswith(f"record 1: {name}: ")
    odd = "b" if value == 0.5 else value
    path = saved(tmp_path, record_with(name, {"value": [1.0, odd], "unit": "ms"}))
    assert refused(path).startswith(f"record 1: {name}[1]: ")


@pytest.mark.parametrize("value", ["abc", 1.5, True, [1], -1, 10**30], ids=repr)
def test_an_odd_start_is_named_by_its_record(tmp_path: Path, value: Any) -> None:
    path = saved(tmp_path, aiperf(0), aiperf(value))
    assert refused(path).startswith("record 2: request_start_ns: ")


def test_a_start_that_is_missing_is_named_by_its_record(tmp_path: Path) -> None:
    none: Any = None
    path = saved(tmp_path, aiperf(0, benchmark_phase="warmup"), aiperf(5), aiperf(none))
    assert refused(path).startswith("record 3: request_start_ns: there is none (1 of 2")


@pytest.mark.parametrize(
    ("key", "value"), [("benchmark_phase", "abc"), ("benchmark_phase", [1]), ("was_cancelled", "n")]
)
def test_odd_metadata_are_named_by_their_record(tmp_path: Path, key: str, value: Any) -> None:
    path = saved(tmp_path, aiperf(0), aiperf(1, **{key: value}))
    assert refused(path).startswith(f"record 2: {key}: ")


@pytest.mark.parametrize("part", ["metadata", "metrics"])
def test_an_odd_record_is_named(tmp_path: Path, part: str) -> None:
    path = saved(tmp_path, aiperf(0), {**aiperf(1), part: [3]})
    assert refused(path).startswith(f"record 2: {part}: [3]; expected an object")


# --- CSV

HEADS = "arrival_s,prompt_tokens,output_tokens,ttft_ms,e2e_ms"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("x,10,5,20,100", "arrival_s: 'x'; expected a number"),
        ("1_0,10,5,20,100", "arrival_s: '1_0'; expected a number"),
        ("nan,10,5,20,100", "arrival_s: nan; expected a time"),
        (",10,5,20,100", "arrival_s: there is none (1 of 2"),
        ("1e30,10,5,20,100", "arrival_s: is 1e+30 s after the first"),
        ("1,12.5,5,20,100", "prompt_tokens: 12.5; expected a whole number"),
        ("1,,5,20,100", "prompt_tokens: ''; expected a number"),
        ("1,10,nan,20,100", "output_tokens: nan; expected a whole number"),
        ("1,10,5,nan,100", "ttft_ms: nan; expected a time of 0"),
        ("1,10,5,-1,100", "ttft_ms: -1.0; expected a time of 0"),
        ("1,10,5,1e30,100", "ttft_ms: 1e+30; expected a time of 0 to 2,592,000,000"),
        ("1,10,5,20,inf", "e2e_ms: inf; expected a time of 0"),
        ("1,10,5,200,100", "ttft_ms: its request ends after 0.1 s but has its first token"),
        ("1,10,5,20", "has 4 cells, the header 5"),
        ("1,10,5,20,100,7", "has 6 cells, the header 5"),
    ],
)  # fmt: skip
def test_an_odd_cell_is_named_by_its_line(tmp_path: Path, line: str, said: str) -> None:
    text = refused(csv(tmp_path, HEADS, "0,10,5,20,100", "", line))
    assert text.startswith(f"line 4: {said}")


@pytest.mark.parametrize(
    ("heads", "said"),
    [
        ("arrival_s,prompt_tokens,output_tokens,e2e_s,e2e_s", "line 1: e2e_s: is there twice"),
        ("arrival_s,prompt_tokens,output_tokens,e2e_s,e2e_ms", "has e2e_s (e2e_s) and e2e_ms"),
        ("arrival_s,prompt_tokens,isl,output_tokens,e2e_ms", "has prompt_tokens and isl; say"),
        ("arrival_s;prompt_tokens", "line 1: cells are separated by ';'; expected commas"),
    ],
)  # fmt: skip
def test_columns_that_contradict_each_other_are_refused(
    tmp_path: Path, heads: str, said: str
) -> None:
    assert refused(csv(tmp_path, heads, "0,1,1,1,1")).startswith(said)


def test_a_column_map_chooses_between_two_units(tmp_path: Path) -> None:
    path = csv(tmp_path, "isl,osl,e2e_s,e2e_ms", "10,1,3,20")
    measurement = read_measurement(path, columns={"e2e_ms": "e2e_ms"})
    assert measurement.requests.e2e_s.tolist() == [0.02]


def test_without_times_both_the_files_columns_and_ours_are_listed(tmp_path: Path) -> None:
    text = refused(csv(tmp_path, "when,isl,osl,first_s,total_s", "0,10,5,1,2"))
    assert text.startswith("has no times: which columns are the times? It has when, isl, osl, ")
    for said in ("--column ttft_s=THEIRS", "_s for seconds or _ms for milliseconds", "tpot", "e2e"):
        assert said in text


@pytest.mark.parametrize(("cell", "ok"), [("yes", True), ("0", False), ("False", False)])
def test_whether_a_request_was_served_is_read(tmp_path: Path, cell: str, ok: bool) -> None:
    path = csv(tmp_path, f"{HEADS},ok", "0,10,5,20,100,1", f"1,10,5,20,100,{cell}")
    assert read_measurement(path).requests.ok.tolist() == [True, ok]
    odd = csv(tmp_path, f"{HEADS},ok", "0,10,5,20,100,done")
    assert refused(odd).startswith("line 2: ok: 'done'; expected true")


def test_empty_cells_are_counted_and_the_first_is_named(tmp_path: Path) -> None:
    path = csv(tmp_path, HEADS, "0,10,5,20,100", "1,10,5,,100", "2,10,5,,100")
    [note] = read_measurement(path).notes
    assert note == f"2 of 3 requests have no TTFT; the first is {path}: line 3: ttft_ms."


def test_a_mean_gap_of_one_token_may_be_nan(tmp_path: Path) -> None:
    path = csv(tmp_path, "isl,osl,ttft_s,tpot_s", "10,1,1,nan", "10,5,1,0.5")
    assert read_measurement(path).requests.e2e_s.tolist() == [1.0, 3.0]


# --- any file


def test_what_is_no_text_or_no_file_is_one_line(tmp_path: Path) -> None:
    assert refused(tmp_path) == "is a folder; expected the file of a benchmark"
    path = tmp_path / "odd"
    for content, said in (
        (b'{"date": "\xff"}', "is no text in UTF-8"),
        (b"a,\xff\n", "is no CSV"),
        (b'{"date": "x"}\n[1]', "entry 2: [1]; expected an object"),
        (b'{"a": ' + b"9" * 5000 + b"}", "entry 1: cannot be read"),
    ):
        path.write_bytes(content)
        assert refused(path).startswith(said)


@pytest.mark.parametrize("arguments", [("validate", "--config", "quickstart", "--measured"),
                                       ("trace", "from-bench", "--out", "t.csv")])  # fmt: skip
def test_both_commands_say_so_and_end_with_2(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    path = saved(tmp_path, with_entry("ttfts", 1, "abc"))
    more = ["--variant", "vllm-v1"] if arguments[0] == "validate" else []
    done = CliRunner().invoke(app, [*arguments, str(path), *more])
    assert done.exit_code == 2
    assert done.stderr.startswith(f"phasewise: {path}: ttfts[1]: 'abc'; expected a time")
    assert len(done.stderr.strip().splitlines()) == 1


def test_measurements_read_the_same_as_before(tmp_path: Path) -> None:
    """Whole numbers written as doubles are lengths."""
    measurement: Measurement = read_measurement(
        saved(tmp_path, {**VLLM, "input_lens": [100.0, 2e2, 0]})
    )
    assert measurement.requests.prompt_tokens.tolist() == [100, 200, 0]
