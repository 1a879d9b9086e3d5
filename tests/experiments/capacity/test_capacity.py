"""Searches that simulate: the known answer of M/D/1, replicas, settings, splits."""

from __future__ import annotations

import json
from decimal import Decimal, localcontext
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from experiments.capacity import command
from experiments.cli import app
from sim.errors import ConfigError

SERVICE_S = 0.01


def m_d_1_waits_up_to(rate_per_s: float, wait_s: Decimal) -> Decimal:
    """Probability that a customer of M/D/1 waits at most so long (Erlang 1909, Crommelin 1932).

    (1 - r) sum over k = 0 .. floor(t / s) of (L (k s - t))^k / k! e^(-L (k s - t)), with arrival
    rate L, service time s and r = L s. Its terms have alternating signs and cancel: 60 digits are
    kept, of which a dozen are lost at most for what is asked here.
    """
    with localcontext() as context:
        context.prec = 60
        rate, service = Decimal(repr(rate_per_s)), Decimal(repr(SERVICE_S))
        total, factorial = Decimal(0), Decimal(1)
        for k in range(int(wait_s / service) + 1):
            factorial *= max(k, 1)
            exponent = rate * (k * service - wait_s)
            power = exponent**k if k else Decimal(1)
            total += power / factorial * (-exponent).exp()
        return (1 - rate * service) * total


def m_d_1_p99_s(rate_per_s: float) -> float:
    low, high = Decimal(0), Decimal(1)
    for _ in range(60):
        middle = (low + high) / 2
        if m_d_1_waits_up_to(rate_per_s, middle) < Decimal("0.99"):
            low = middle
        else:
            high = middle
    return float(low)


def test_the_formula() -> None:
    # Nobody waits with probability 1 - r, and up to one service time it is (1 - r) e^(L t).
    assert float(m_d_1_waits_up_to(70.0, Decimal(0))) == pytest.approx(0.3)
    assert float(m_d_1_waits_up_to(70.0, Decimal("0.005"))) == pytest.approx(
        0.3 * 2.718281828**0.35
    )
    # Its integral over all waits is the mean of Pollaczek and Khinchine, r s / (2 (1 - r)).
    step = Decimal("0.0005")
    tail = sum(1 - m_d_1_waits_up_to(70.0, (k + Decimal("0.5")) * step) for k in range(600))
    assert float(tail * step) == pytest.approx(0.7 * SERVICE_S / 0.6, rel=1e-3)


def md1(folder: Path, requests: int) -> dict[str, Any]:
    (folder / "ones.csv").write_text("prompt_tokens,output_tokens\n" + "1,1\n" * requests)
    return {
        "workload": {
            "trace": str(folder / "ones.csv"),
            "arrivals": {"process": "poisson", "rate_per_s": 20},
        },
        "model": "llama-3.1-8b",
        "max_model_len": 100,
        "policy": {"name": "static", "batch_size": 1},
        "step_time": {"model": "linear", "base_s": SERVICE_S},
        "warm_up_s": 1,
    }


@pytest.mark.slow
def test_the_rate_of_m_d_1_is_found_within_two_percent(tmp_path: Path) -> None:
    told: list[str] = []
    options = command.Options(out=tmp_path / "out", repeats=6, tell=told.append)

    found = command.highest(
        md1(tmp_path, 4000), f"queueing_delay_s.p99 <= {m_d_1_p99_s(70.0):.6f}", options=options
    )

    variant = found.values["variants"]["static"]
    assert variant["settled"]
    assert variant["value"] == pytest.approx(70.0, rel=0.02)
    assert variant["value"] < variant["misses_at"] <= 1.02 * variant["value"]
    folders = [run["folder"] for point in variant["points"] for run in point["runs"]]
    assert len(folders) == len(set(folders)) == found.values["cost"]["runs"]
    assert all((Path(folder) / "summary.json").is_file() for folder in folders)
    assert found.values["cost"]["simulated_requests"] == 4000 * len(folders)
    assert found.cost.startswith(f"Search: {len(folders)} runs of {len(variant['points'])} points;")
    assert len(told) >= len(variant["points"])


def test_a_second_search_takes_over_every_run(tmp_path: Path) -> None:
    options = command.Options(out=tmp_path / "out", repeats=1, precision=0.2)
    goal = "queueing_delay_s.mean <= 0.02"

    first = command.highest(md1(tmp_path, 400), goal, options=options)
    again = command.highest(md1(tmp_path, 400), goal, options=options)

    assert again.values["variants"] == first.values["variants"]
    assert again.values["cost"]["reused_runs"] == first.values["cost"]["runs"] > 3
    assert again.values["cost"]["simulated_requests"] == 0


def test_an_overloaded_run_does_not_pass_however_short(tmp_path: Path) -> None:
    # 1,000 requests at any rate are served within 10 s: no latency can miss this goal.
    options = command.Options(out=tmp_path / "out", repeats=3, precision=0.2)

    found = command.highest(md1(tmp_path, 1000), "queueing_delay_s.max <= 30", options=options)

    variant = found.values["variants"]["static"]
    assert 80 <= variant["value"] <= 125
    misses = [point for point in variant["points"] if point["value"] == variant["misses_at"]]
    assert misses[0]["terms"][0]["value"] < 30
    verdicts = [run["verdict"] for run in misses[0]["runs"]]
    assert "overloaded" in verdicts or 2 * verdicts.count("backlogged") > len(verdicts)
    passes = [point for point in variant["points"] if point["meets"]]
    assert not any(run["verdict"] == "overloaded" for point in passes for run in point["runs"])


def test_a_rate_at_which_requests_only_gather_does_not_pass_and_is_not_called_overloaded(
    tmp_path: Path,
) -> None:
    # 240 requests of one second each, and as many seats: at high rates all of them run at once.
    (tmp_path / "t.csv").write_text("prompt_tokens,output_tokens\n" + "10,100\n" * 240)
    config = {**md1(tmp_path, 1), "policy": "vllm-v1", "max_model_len": 1000, "warm_up_s": 0}
    config["workload"]["trace"] = str(tmp_path / "t.csv")
    options = command.Options(out=tmp_path / "out", repeats=1, precision=0.3)

    found = command.highest(config, "ttft_s.max <= 10", options=options)

    variant = found.values["variants"]["vllm-v1"]
    at_edge = [point for point in variant["points"] if point["value"] == variant["misses_at"]]
    assert at_edge[0]["runs"][0]["verdict"] == "too short to tell"
    said = " ".join(found.table.notes)
    assert "240 requests come too fast there to tell whether they are kept up with" in said
    assert "do not keep up" not in said


def test_recorded_arrivals_are_sped_up_and_run_once(tmp_path: Path) -> None:
    config = md1(tmp_path, 1)
    rows = "".join(f"{0.02 * at:.2f},1,1\n" for at in range(500))
    (tmp_path / "times.csv").write_text("arrival_s,prompt_tokens,output_tokens\n" + rows)
    config["workload"] = {"trace": str(tmp_path / "times.csv")}
    config["warm_up_s"] = 0

    found = command.highest(
        config, "queueing_delay_s.max <= 0.001", options=command.Options(out=tmp_path / "out")
    )

    variant = found.values["variants"]["static"]
    # One request every 20 ms, of 10 ms each: twice as many fit, and not one more.
    assert variant["key"] == "workload.arrivals.speedup"
    assert 1.96 <= variant["value"] <= 2.0
    assert any("one recorded trace is one sample" in note for note in found.table.notes)
    assert all(len(point["runs"]) == 1 for point in variant["points"])


def test_settings_for_a_recorded_trace_run_once_each(tmp_path: Path) -> None:
    config = md1(tmp_path, 1)
    rows = "".join(f"{0.012 * at:.3f},1,1\n" for at in range(300))
    (tmp_path / "times.csv").write_text("arrival_s,prompt_tokens,output_tokens\n" + rows)
    config |= {"workload": {"trace": str(tmp_path / "times.csv")}, "warm_up_s": 0}

    found = command.best(
        config,
        "queueing_delay_s.mean",
        options=command.Options(out=tmp_path / "out"),
        key="replicas",
        values=[1, 2],
    )

    variant = found.values["variants"]["static"]
    assert [len(each["runs"]) for each in variant["candidates"]] == [1, 1]
    assert "one recorded trace is one sample" in found.table.notes[0]


def test_a_bound_of_the_config_ends_a_search(tmp_path: Path) -> None:
    config = md1(tmp_path, 300) | {
        "autoscale": {
            "autoscaler": {"name": "queue-length", "target": 1000},
            "min_replicas": 1, "max_replicas": 3, "provisioning_s": 5,
        }
    }  # fmt: skip

    found = command.highest(
        config,
        "queueing_delay_s.mean <= 10",
        key="replicas",
        options=command.Options(out=tmp_path / "out", repeats=1),
    )

    variant = found.values["variants"]["static"]
    assert (variant["value"], variant["misses_at"]) == (3, None)
    said = " ".join(found.table.notes)
    assert "met up to 3, the last one allowed (--highest replicas: 6: the number at the" in said


def test_the_fewest_gpus_begin_where_the_model_fits(tmp_path: Path) -> None:
    config = md1(tmp_path, 300) | {"model": "llama-3.1-70b", "tensor_parallel": 8}

    found = command.highest(
        config,
        "queueing_delay_s.mean <= 10",
        key="tensor_parallel",
        lowest=True,
        options=command.Options(out=tmp_path / "out", repeats=1),
    )

    variant = found.values["variants"]["static"]
    assert (variant["value"], variant["misses_at"]) == (2, None)
    told = " ".join(found.table.notes)
    assert "down to 2, the last one allowed (config: kv: no room for KV blocks" in told


def test_a_closed_loop_has_no_rate(tmp_path: Path) -> None:
    config = md1(tmp_path, 300)
    config["workload"]["arrivals"] = {"process": "closed-loop", "concurrency": 4}

    with pytest.raises(ConfigError, match=r"has no rate to search; try --highest workload\.arr"):
        command.highest(config, "ttft_s.p99 <= 1", options=command.Options(out=tmp_path / "out"))


def test_a_workload_too_short_for_a_verdict_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give the workload at least 200 requests"):
        command.highest(
            md1(tmp_path, 150), "ttft_s.p99 <= 1", options=command.Options(out=tmp_path / "out")
        )


# --- the command


def phasewise(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["capacity", *arguments])


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    made = md1(tmp_path, 600)
    made["workload"]["arrivals"]["rate_per_s"] = 250
    made["router"] = "least-outstanding"
    Path("md1.yaml").write_text(yaml.safe_dump(made))
    return "md1.yaml"


def test_the_fewest_replicas_for_a_load(config: str) -> None:
    goal = ("--goal", "queueing_delay_s.mean <= 0.1")

    result = phasewise(config, "--lowest", "replicas", *goal, "--jobs", "1", "--json")

    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["variants"]["static"]
    # 250 requests a second of 10 ms each keep 2.5 replicas busy.
    assert (found["value"], found["misses_at"]) == (3, 2)
    assert json.loads(Path("results/md1-capacity/capacity.json").read_text())["variants"]


def test_the_table_says_the_goal_and_the_cost(config: str) -> None:
    goal = ("--goal", "queueing_delay_s.mean <= 0.1", "--repeats", "1")

    few = ("--set", "replicas=3", "--set", "workload.arrivals.limit=250", "--jobs", "1")
    result = phasewise(config, "--highest", "policy.batch_size", *goal, *few)

    assert result.exit_code == 0, result.output
    assert "Goal: queueing_delay_s.mean <= 0.1, no run overloaded" in result.stdout
    assert "No point and seed was run twice." in result.stdout
    assert "static: 1: queueing_delay_s.mean" in result.stderr


def test_the_best_of_several_settings(config: str) -> None:
    which = ("--best", "replicas", "--values", "2..8", "--by", "queueing_delay_s.mean")

    result = phasewise(config, *which, "--jobs", "1", "--json")

    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["variants"]["static"]
    assert found["best"] == "replicas=8"
    assert [each["setting"] for each in found["candidates"]] == [
        "replicas=2", "replicas=4", "replicas=8",
    ]  # fmt: skip
    assert not found["candidates"][0]["eligible"]


def test_the_best_split_of_gpus(config: str) -> None:
    pools = "{prefill: {replicas: 1, policy: vllm-v0}, decode: {replicas: 1, policy: vllm-v0}, " \
        "transfer: {bandwidth_bytes_per_s: 50e9}}"  # fmt: skip
    step = "step_time={model: linear, base_s: 0.001, prefill_token_s: 0.02}"
    more = ("--set", f"pools={pools}", "--set", "policy=vllm-v0", "--set", step,
            "--set", "workload.arrivals.rate_per_s=100")  # fmt: skip
    options = ("--by", "ttft_s.p99", "--jobs", "1", "--json", "--repeats", "3")

    result = phasewise(config, "--splits", "4", *options, *more)

    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["variants"]["disaggregated"]
    assert len(found["candidates"]) == 3
    # Prompts take all the time: most GPUs belong to prefill.
    assert found["best"] == "pools.prefill.replicas=3, pools.decode.replicas=1"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--lowest", "replicas", "--splits", "4"), "--lowest and --splits: give one of them"),
        (("--best", "replicas"), "--best KEY and --values LIST: give both, or neither"),
        (("--best", "replicas", "--values", "x"), "--values x: expected such as 128,256,512"),
        (("--by", "ttft_s.p99"), "--by ttft_s.p99: needs --best or --splits"),
        (("--splits", "4"), "--splits: expected pools.prefill and pools.decode"),
        ((), "has no slo; give one, or a --goal such as 'ttft_s.p99 <= 0.5'"),
        (
            ("--lowest", "replica", "--goal", "ttft_s.p99 <= 1"),
            "--lowest replica: a config has no such key; try replicas",
        ),
        (("--highest", "policy.x", "--goal", "ttft_s.p99 <= 1"), "--highest policy.x: "),
        (("--best", "seeds", "--values", "1,2"), "--best seeds: a config has no such key; try "),
        (("--goal", "ttft_s.p99 <= 1", "--out", "md1.yaml/x"), "md1.yaml is a file, not a folder"),
    ],
)
def test_misuse_is_one_line(config: str, arguments: tuple[str, ...], line: str) -> None:
    result = phasewise(config, *arguments)

    assert result.exit_code == 2
    assert line in result.stderr
    assert result.stderr.count("\n") == 1


def test_the_rate_of_sessions_too_few_to_build_up_its_load_is_called_not_sustained(
    tmp_path: Path,
) -> None:
    rows = "".join(f"{s},{t},{s}.0,1,1\n" for t in range(20) for s in range(30))
    (tmp_path / "turns.csv").write_text(
        "session,turn,arrival_s,prompt_tokens,output_tokens\n"
        + "".join(sorted(rows.splitlines(keepends=True)))
    )
    config = md1(tmp_path, 1)
    config["workload"] = {
        "trace": str(tmp_path / "turns.csv"),
        "sessions": {"delay": {"distribution": "constant", "mean_s": 1.0}, "prompts": "whole"},
        "arrivals": {"process": "poisson", "rate_per_s": 1},
    }
    options = command.Options(out=tmp_path / "out", repeats=1, precision=0.5)

    found = command.highest(config, "queueing_delay_s.mean <= 0.05", options=options)

    assert any("is not sustained: all sessions begin within" in note for note in found.table.notes)


def test_an_interrupted_search_says_what_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from experiments import run
    from experiments.run import InterruptedRunError

    made: list[str] = []
    simulate = run.run_job

    def interrupted(job: run.Job, *others: Any) -> None:
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(job.experiment.label)
        simulate(job, *others)

    monkeypatch.setattr(run, "run_job", interrupted)
    options = command.Options(out=tmp_path / "out")
    with pytest.raises(InterruptedRunError, match="2 runs are finished and kept in"):
        command.highest(md1(tmp_path, 400), "queueing_delay_s.mean <= 0.02", options=options)
