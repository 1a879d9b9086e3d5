"""The host's constants are found again from another start, and what cannot be fitted is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from experiments.validation.host_search import MOST_SIMULATIONS
from experiments.validation.own import ServerComparison, compare_with_server
from sim.errors import ConfigError
from tests.experiments.validation.served import HOST, Server, config_of


def fitted(server: Server, folder: Path, start: Any, **more: Any) -> ServerComparison:
    return compare_with_server(config_of(start, **more), server.vllm(folder), fit_host=True)


@pytest.mark.parametrize(
    "start",
    [
        {"form": "per-sequence", "step_us": 100, "request_us": 1},
        {"form": "per-sequence", "step_us": 9000, "request_us": 200},
        "vllm-v1",
    ],
)
def test_the_servers_host_is_found_again(tmp_path: Path, start: Any) -> None:
    compared = fitted(Server.of(config_of()), tmp_path, start)
    fit = compared.fit

    assert fit is not None
    assert fit.after.step_us == pytest.approx(HOST["step_us"], rel=0.03)
    assert fit.after.request_us == pytest.approx(HOST["request_us"], rel=0.05)
    assert fit.simulations <= MOST_SIMULATIONS
    assert fit.held_out.after < 0.01 < fit.held_out.before
    errors = compared.table().set_index(["run", "metric"]).error
    assert abs(errors["fitted", "ttft_ms mean"]) < 0.05 < abs(errors["simulated", "ttft_ms mean"])


@pytest.mark.parametrize(
    ("form", "true", "start"),
    [
        ("constant", {"step_us": 5000}, {"step_us": 500}),
        ("max", {"step_us": 20000, "request_us": 100}, {"step_us": 500, "request_us": 1}),
        ("max", {"step_us": 20000, "request_us": 100}, {"step_us": 50000, "request_us": 100}),
    ],
)
def test_other_forms_are_fitted_too(
    tmp_path: Path, form: str, true: dict[str, float], start: dict[str, float]
) -> None:
    server = Server.of(config_of({"form": form, **true}))
    fit = fitted(server, tmp_path, {"form": form, **start}).fit

    assert fit is not None
    assert fit.after.form == form
    assert fit.after.step_us == pytest.approx(true["step_us"], rel=0.05)
    assert fit.held_out.after < 0.02


def test_the_second_half_has_no_say(tmp_path: Path) -> None:
    server, start = Server.of(config_of()), {"step_us": 500, "request_us": 5}
    gaps = server.gaps_s()
    slower = [*gaps[:40], *([2 * gap for gap in each] for each in gaps[40:])]
    one = fitted(server, tmp_path, start).fit
    path = server.vllm(tmp_path, itls=slower)
    other = compare_with_server(config_of(start), path, fit_host=True).fit

    assert one is not None
    assert other is not None
    assert one.after == other.after
    assert one.held_out.after < 0.01
    assert other.held_out.after > 0.4


def test_the_printed_line_is_a_config_that_gives_the_fitted_run(tmp_path: Path) -> None:
    server = Server.of(config_of())
    compared = fitted(server, tmp_path, {"step_us": 100, "request_us": 1})
    assert compared.fit is not None
    step_time = yaml.safe_load(compared.fit.line)
    again = compare_with_server(config_of(step_time=step_time), server.vllm(tmp_path))

    assert f"To keep it: step_time: {compared.fit.line}" in str(compared)
    assert again.simulated["simulated"].tpot_s == pytest.approx(
        compared.simulated["fitted"].tpot_s, nan_ok=True
    )


def test_a_gpu_that_is_too_slow_is_not_blamed_on_the_host(tmp_path: Path) -> None:
    compared = fitted(Server.of(config_of()), tmp_path, "vllm-v1", device="a100-sxm-40gb")
    assert "the GPU's time differs, not the host's" in str(compared.fit)


def test_constants_that_the_run_cannot_tell_apart_are_said_to_be_so(tmp_path: Path) -> None:
    # One request at a time: step_us + request_us is all that can be seen.
    server = Server.of(config_of(), requests=24, process="closed-loop", concurrency=1)
    fit = fitted(server, tmp_path, {"step_us": 100, "request_us": 1}).fit

    assert fit is not None
    assert fit.after.step_us + fit.after.request_us == pytest.approx(2425, rel=0.02)
    assert "and not the two apart" in str(fit)


def refused(server: Server, folder: Path, **more: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        fitted(server, folder, HOST, **more)
    return str(caught.value)


def test_step_times_without_a_host_are_refused(tmp_path: Path) -> None:
    server = Server.of(config_of(), requests=20)
    linear = {"model": "linear", "base_s": 0.01}
    fit_of_paper = {"model": "distserve-fit"}

    assert "step_time linear has no host" in refused(server, tmp_path, step_time=linear)
    text = refused(
        server, tmp_path, step_time=fit_of_paper, model="opt-13b", device="a100-sxm-80gb",
        precision="fp16", engine=None, policy="vllm-v0",
    )  # fmt: skip
    assert "step_time distserve-fit has no host; only roofline and profile do" in text


def test_hosts_that_differ_between_pools_are_refused(tmp_path: Path) -> None:
    other = {"model": "roofline", "host": {"step_us": 1, "request_us": 1}}
    pools = {
        "prefill": {"replicas": 1}, "decode": {"replicas": 1, "step_time": other},
        "transfer": {"bandwidth_bytes_per_s": 50e9},
    }  # fmt: skip
    text = refused(Server.of(config_of(), requests=20), tmp_path, pools=pools)
    assert "prefill and decode have different hosts" in text


def test_too_few_requests_are_refused(tmp_path: Path) -> None:
    assert "expected at least 8" in refused(Server.of(config_of(), requests=10), tmp_path)
