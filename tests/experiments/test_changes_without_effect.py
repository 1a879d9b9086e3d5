"""Keys about changes that change nothing are said to; what happens too late is not told."""

from __future__ import annotations

from typing import Any

import pytest

from experiments.bundle import Bundle
from experiments.config import load
from experiments.variant import run_variant
from sim.errors import ConfigError

SHORT: dict[str, Any] = {
    "workload": {
        "preset": "azure-conv-2023",
        "requests": 40,
        "max_tokens": 1024,
        "arrivals": {"process": "constant", "rate_per_s": 10},
    },
    "model": "llama-3.1-8b",
    "policy": "vllm-v1",
    "step_time": {"model": "linear", "base_s": 0.002},
    "replicas": 2,
    "record": {"steps": False},
}
ONE = {"autoscaler": {"name": "schedule", "at_s": [0], "replicas": [9]}, "provisioning_s": 1}


def run(**keys: Any) -> Bundle:
    plan = load({**SHORT, **keys})
    return run_variant(plan.variants[0], plan.folder)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"on_failure": "fail"}, "on_failure fail has no effect: no replica fails."),
        ({"node_replicas": [["replica-0"]]}, "node_replicas has no effect: no node fails"),
        (
            {"stragglers": {"mtbs_s": 5, "duration_s": 1, "factor": 1}},
            "stragglers has no effect: factor is 1.",
        ),
        (
            {"events": [{"at_s": 1, "what": "normal"}]},
            "events[0]: normal has no effect: replica 0 is not slow at 1 s.",
        ),
        (
            {"events": [{"at_s": 1, "what": "slow", "factor": 1}]},
            "events[0]: slow has no effect: its factor is 1.",
        ),
        (
            {
                "events": [{"at_s": 1, "what": "fail"}, {"at_s": 2, "what": "restore"}],
                "restart": {"warm_up": {"factor": 2}},
            },
            "restart.warm_up.factor 2 has no effect: iterations is 0.",
        ),
        (
            {
                "events": [{"at_s": 1, "what": "fail"}, {"at_s": 2, "what": "restore"}],
                "restart": {"warm_up": {"iterations": 9}},
            },
            "restart.warm_up.iterations 9 has no effect: factor is 1.",
        ),
        ({"restart": {"load_s": 1}}, "restart has no effect"),
        (
            {"autoscale": {**ONE, "max_replicas": 4}},
            "autoscale: replicas 9 of the schedule are cut to max_replicas 4.",
        ),
        (
            {"events": [{"at_s": 900, "what": "fail"}]},
            "events: 1 of 1 come after the last request has ended at",
        ),
    ],
)
def test_it_is_said(keys: dict[str, Any], said: str) -> None:
    assert any(note.startswith(said) for note in run(**keys).notes), run(**keys).notes


def test_an_event_after_the_end_is_not_told_as_one_that_happened() -> None:
    late = run(events=[{"at_s": 900, "what": "fail"}])
    assert "changes" not in late.summary
    both = run(events=[{"at_s": 1, "what": "drain"}, {"at_s": 900, "what": "fail", "replica": 1}])
    assert both.summary["changes"]["counts"]["failed"] == 0
    assert both.summary["changes"]["counts"]["draining"] == 1


def test_what_ends_a_slow_spell_is_not_called_without_effect() -> None:
    events = [{"at_s": 1, "what": "slow", "factor": 2}, {"at_s": 2, "what": "normal"}]
    assert not any("has no effect" in note for note in run(events=events).notes)


def test_availability_is_the_share_of_time_up_and_loading_is_not() -> None:
    # Of two replicas one is down from 1 s, and loads from 2 s to 3 s.
    events = [{"at_s": 1, "what": "fail"}, {"at_s": 2, "what": "restore"}]
    made = run(events=events, restart={"load_s": 1})
    end_s = made.requests["end_ns"].max() / 1e9
    assert made.summary["changes"]["availability"] == pytest.approx(1 - 2 / (2 * end_s))
    assert any("Replicas were up for" in note for note in made.notes)


def test_replicas_over_the_limit_of_an_autoscaler_are_told() -> None:
    # The failed one is replaced, and is still there.
    autoscale = {
        "autoscaler": {"name": "schedule", "at_s": [0], "replicas": [2]},
        "provisioning_s": 0.1,
        "max_replicas": 2,
        "interval_s": 0.5,
    }
    made = run(autoscale=autoscale, events=[{"at_s": 1, "what": "fail"}])
    assert any("pool replica had up to 3 replicas at once, all paid for" in x for x in made.notes)


def test_a_quantile_of_nothing_is_refused() -> None:
    scaler = {"name": "slo-headroom", "ttft_s": 1, "quantile": 0}
    with pytest.raises(ConfigError, match="quantile: 0: expected"):
        load({**SHORT, "autoscale": {"autoscaler": scaler, "provisioning_s": 1}})
