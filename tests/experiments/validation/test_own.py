"""A server's requests, simulated: nothing differs where the config is the server's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import phasewise
from experiments.cli import app
from experiments.validation.own import ServerComparison, compare_with_server
from sim.errors import ConfigError
from tests.experiments.validation.served import Server, config_of

ROWS = {"ttft_ms": 4, "itl_ms": 4, "tpot_ms": 4, "e2e_s": 4}


@pytest.fixture(scope="module")
def server() -> Server:
    return Server.of(config_of())


def largest_error(compared: ServerComparison) -> float:
    return float(compared.table().error.abs().max())


def test_the_servers_own_config_gives_no_error(server: Server, tmp_path: Path) -> None:
    compared = phasewise.compare_with_server(config_of(), server.vllm(tmp_path))

    names = [metric.partition(" ")[0] for metric in compared.table().metric]
    assert {name: names.count(name) for name in ROWS} == ROWS
    assert names[-2:] == ["output_tokens_per_s", "makespan_s"]
    assert largest_error(compared) < 1e-9
    assert all(one.median_abs < 1e-9 for one in compared.each["simulated"])
    assert compared.verdict == "Nothing in the table differs by 0.1 % or more."


@pytest.mark.parametrize("form", ["aiperf", "csv"])
def test_other_formats_with_arrival_times_do_too(server: Server, tmp_path: Path, form: str) -> None:
    columns = {"ttft_ms": "first_ms"} if form == "csv" else None
    compared = compare_with_server(config_of(), getattr(server, form)(tmp_path), columns=columns)

    assert largest_error(compared) < 1e-6
    assert ("itl_ms p99" in set(compared.table().metric)) == (form == "aiperf")
    assert ("ITL is not compared" in str(compared)) == (form == "csv")


def test_without_times_a_limit_on_concurrency_is_a_closed_loop(tmp_path: Path) -> None:
    closed = Server.of(config_of(), process="closed-loop", concurrency=6)
    path = closed.sglang(tmp_path, request_rate="inf", max_concurrency=6, duration=100.0)
    compared = compare_with_server(config_of(), path)

    latencies = (
        compared.table().set_index("metric").error.drop(["makespan_s", "output_tokens_per_s"])
    )
    assert latencies.abs().max() < 1e-9
    assert "Arrivals: a closed loop of 6 requests, the file's limit" in str(compared)


def test_arrivals_that_have_to_be_drawn_are_said_to_be(server: Server, tmp_path: Path) -> None:
    compared = compare_with_server(config_of(), server.sglang(tmp_path, request_rate=12.0))

    assert compared.replay.drawn
    assert str(compared).count("the file has none; drawn anew at its rate of 12 a second") == 1
    assert "Single requests met other batches then" in str(compared)
    assert "makespan_s" not in set(compared.table().metric)


def test_a_closed_loop_may_be_asked_for(server: Server, tmp_path: Path) -> None:
    compared = compare_with_server(config_of(), server.vllm(tmp_path), concurrency=3)
    requests = compared.requests()
    starts = (1e9 * requests.arrival_simulated_s).round()
    ends = (1e9 * (requests.arrival_simulated_s + requests.e2e_simulated_s)).round()

    assert max((starts <= at).sum() - (ends <= at).sum() for at in starts) == 3


def test_a_slower_host_is_seen_and_said(server: Server, tmp_path: Path) -> None:
    slower = config_of({"step_us": 4800, "request_us": 25})
    compared = compare_with_server(slower, server.vllm(tmp_path))

    errors = compared.table().set_index("metric").error
    # 2.4 ms more in each step of about 12: every token is late by them.
    gap_ms = compared.table().set_index("metric").loc["itl_ms p50"]
    assert gap_ms.simulated - gap_ms.measured == pytest.approx(2.4, rel=0.3)
    assert errors["tpot_ms mean"] > 0.1
    assert errors["makespan_s"] > 0
    [tpot] = [one for one in compared.each["simulated"] if one.metric == "tpot"]
    assert tpot.lower == 0
    assert "differs most" in compared.verdict


def test_failed_requests_are_left_out_and_counted(server: Server, tmp_path: Path) -> None:
    errors = [""] * 80
    errors[3] = "timed out"
    compared = compare_with_server(config_of(), server.vllm(tmp_path, errors=errors))

    assert 4 not in compared.requests().request.tolist()
    assert len(compared.requests()) == 79
    assert "- 1 failed requests are left out." in str(compared)


def test_gaps_between_chunks_are_not_compared_with_those_between_tokens(
    server: Server, tmp_path: Path
) -> None:
    chunks = [[sum(gaps[i : i + 2]) for i in range(0, len(gaps), 2)] for gaps in server.gaps_s()]
    compared = compare_with_server(config_of(), server.vllm(tmp_path, itls=chunks))

    assert not any(metric.startswith("itl") for metric in compared.table().metric)
    assert "gaps are between chunks of several tokens" in str(compared)


def test_the_workload_of_the_config_does_not_matter(server: Server, tmp_path: Path) -> None:
    workload = {"trace": "not-there.csv", "format": "burstgpt", "arrivals": {"speedup": 2}}
    compared = compare_with_server(config_of(workload=workload), server.vllm(tmp_path))

    assert largest_error(compared) < 1e-9
    assert "The measured requests replace the workload of the config." in compared.notes


def test_two_pools_are_compared_as_one(server: Server, tmp_path: Path) -> None:
    pools = {
        "prefill": {"replicas": 1}, "decode": {"replicas": 1},
        "transfer": {"bandwidth_bytes_per_s": 50e9},
    }  # fmt: skip
    compared = compare_with_server(config_of(pools=pools), server.vllm(tmp_path))
    assert len(compared.requests()) == 80


def test_the_overlays_show_what_was_measured_and_simulated(server: Server, tmp_path: Path) -> None:
    compared = compare_with_server(
        config_of({"step_us": 4800, "request_us": 25}), server.vllm(tmp_path)
    )
    files = compared.save(tmp_path / "out")

    assert [path.name for path in files] == [
        "comparison.csv", "requests.csv",
        *(f"{name}_cdf.csv" for name in ("ttft", "tpot", "itl", "e2e")), "figures.html",
    ]  # fmt: skip
    lines = (tmp_path / "out" / "tpot_cdf.csv").read_text().splitlines()
    values = [float(line.split(",")[2]) for line in lines if line.startswith("measured,")]
    assert values == pytest.approx(
        np.unique(compared.measured.tpot_s[compared.measured.tpot_s > 0])
    )
    assert any(line.startswith("simulated,vllm-v1,") for line in lines)
    assert "vllm.json (80 requests" in (tmp_path / "out" / "figures.html").read_text()
    names = [trace.name for trace in compared.figures()["ttft"].data if trace.showlegend is None]
    assert names == ["measured", "simulated"]


def test_the_real_log_of_a_server_is_compared(shared: Path) -> None:
    log = shared / "measured/llmservingsim/serving_rtxpro6000_llama-3.1-8b_requests.csv"
    settings = {
        "model": "llama-3.1-8b", "device": "rtx-pro-6000", "engine": "vllm-0.19",
        "policy.max_num_seqs": 128, "policy.max_num_batched_tokens": 2048,
    }  # fmt: skip
    compared = compare_with_server(settings, log)

    assert len(compared.requests()) == 300
    assert compared.measured.span_s == pytest.approx(65.93, abs=0.01)
    # A sheet and no table: what `make validate` holds to a few percent is within 15 % here.
    errors = compared.table().set_index("metric").error
    assert abs(errors["tpot_ms mean"]) < 0.15
    assert abs(errors["makespan_s"]) < 0.15


# --- what cannot be compared


def refused(*arguments: Any, **options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        compare_with_server(*arguments, **options)
    return str(caught.value)


def test_a_variant_has_to_be_chosen(server: Server, tmp_path: Path) -> None:
    two = config_of(compare=[{"label": "small", "max_num_seqs": 8}, {"label": "large"}])
    path = server.vllm(tmp_path)

    assert refused(two, path) == "config: has 2 variants; say which with --variant: small, large"
    assert "try small" in refused(two, path, variant="smal")
    assert compare_with_server(two, path, variant="small").replay.where == "config: variant small"


def test_what_the_config_lacks_is_said_as_ever(server: Server, tmp_path: Path) -> None:
    lacking = {key: value for key, value in config_of().items() if key != "model"}
    assert refused(lacking, server.vllm(tmp_path)).startswith("config: model: is required")


def test_aggregates_are_refused_with_the_option_that_helps(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps({"date": "x", "model_id": "m", "mean_ttft_ms": 3}))
    assert "--save-detailed" in refused(config_of(), path)


def test_requests_beyond_the_configs_limits_are_refused(server: Server, tmp_path: Path) -> None:
    path = server.vllm(tmp_path)
    text = refused(config_of(max_model_len=64), path)
    assert "max_model_len 64: request 1 of" in text

    tiny = config_of(**{"kv.num_blocks": 40, "max_model_len": "none"})
    assert "requests that the server served are not served in the simulation" in refused(tiny, path)


def test_neither_times_nor_a_rate_are_refused(server: Server, tmp_path: Path) -> None:
    path = server.csv(tmp_path, "x,isl,osl,ttft_ms,e2e_s")
    assert "give --concurrency N" in refused(config_of(), path)
    assert len(compare_with_server(config_of(), path, concurrency=4).requests()) == 80


@pytest.mark.parametrize(
    "setting", ["workload.requests=5", "workload={requests: 5}", "slo.ttft_ms=3", "record.steps=no"]
)
def test_a_setting_that_would_do_nothing_is_refused(
    server: Server, tmp_path: Path, setting: str
) -> None:
    text = refused(config_of(), server.vllm(tmp_path), settings=[setting])
    assert text.startswith(f"--set {setting}: would do nothing in a comparison, as ")
    used = compare_with_server(config_of(), server.vllm(tmp_path), settings=["max_num_seqs=2"])
    assert largest_error(used) > 0.01


def test_requests_of_a_warm_up_are_counted(server: Server, tmp_path: Path) -> None:
    path = server.aiperf(tmp_path)
    first, *rest = path.read_text().splitlines()
    path.write_text("\n".join([first.replace("profiling", "warmup"), *rest]))
    compared = compare_with_server(config_of(), path)

    assert len(compared.requests()) == 79
    assert str(compared).count("- 1 requests of the warm-up are left out.") == 1


# --- the command


def command(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["validate", *map(str, arguments)])


def test_the_command_prints_the_table_and_writes_the_figures(
    server: Server, tmp_path: Path
) -> None:
    config = tmp_path / "mine.yaml"
    config.write_text(json.dumps(config_of()))
    done = command("--config", config, "--measured", server.vllm(tmp_path), "--out", tmp_path / "o")

    assert done.exit_code == 0, done.output
    assert "metric                        measured  simulated   error" in done.stdout
    assert (tmp_path / "o" / "figures.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--config quickstart", "or neither; --measured FILE is missing"),
        ("--measured m", "or neither; --config CONFIG is missing"),
        ("--config quickstart --measured m --rows", "--rows is of the shipped cases"),
        *(
            (option, f"{option.split()[0]} needs --config CONFIG and --measured FILE")
            for option in ("--fit host", "--format csv", "--column a=b", "--run 1", "--variant v",
                           "--concurrency 3", "--set seed=1", "--figures svg")
        ),
        ("--config nowhere.yaml --measured m.json", "nowhere.yaml"),
        ("--config quickstart --measured m --variant vllm-v1", "m: no such file"),
        ("--config quickstart --measured m --fit gpu", "--fit gpu: expected host"),
        ("--config quickstart --measured m --figures gif", "--figures gif"),
    ],
)  # fmt: skip
def test_a_wrong_option_is_one_line(arguments: str, said: str) -> None:
    done = command(*arguments.split())
    assert done.exit_code == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
