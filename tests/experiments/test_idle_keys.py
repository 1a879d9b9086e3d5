"""Keys that find nothing to choose, to draw or to hold against are said to have no effect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments import cluster
from experiments.config import load
from experiments.idle_keys import without_effect

BASE: dict[str, Any] = {
    "workload": {"preset": "sharegpt-like", "requests": 10},
    "model": "llama-3.1-8b",
    "max_model_len": 4096,
    "policy": "vllm-v1",
    "step_time": {"model": "linear", "base_s": 0.01},
}
ADD = {"at_s": 1, "what": "add"}
SCALED = {"autoscaler": {"name": "queue-length", "target": 4}, "provisioning_s": 1}
DRAWN = {"mtbf_s": 9, "mttr_s": 1}
MIXED = {"max_prompt_tokens": 512}
SLOW = {"mtbs_s": 9, "duration_s": 1, "factor": 2}


def pools(prefill: int, decode: int, **more: Any) -> dict[str, Any]:
    sides = {"prefill": {"replicas": prefill}, "decode": {"replicas": decode}}
    return {"pools": {**sides, "transfer": {"bandwidth_bytes_per_s": 1e9}, **more}}


def said(**keys: Any) -> list[str]:
    (experiment,) = load({**BASE, **keys}).variants
    return without_effect(experiment, cluster.build(experiment, Path()).cluster)


ALONE = "router least-tokens has no effect: there is one replica."
IDLE_DECODE = "decode_router least-kv has no effect: there is one decode replica."


@pytest.mark.parametrize(
    ("keys", "notes"),
    [
        ({"router": "least-tokens"}, [ALONE]),
        ({"router": "least_tokens"}, [ALONE]),
        ({"router": "round-robin"}, []),
        ({"router": "least-tokens", "replicas": 2}, []),
        ({"router": "least-tokens", "events": [ADD]}, []),
        ({"router": "least-tokens", "autoscale": {**SCALED, "max_replicas": 2}}, []),
        ({"router": "least-tokens", "autoscale": {**SCALED, "max_replicas": 1}}, [ALONE]),
        (
            {"router": "least-tokens", **pools(1, 1)},
            ["router least-tokens has no effect: there is one replica in each pool."],
        ),
        ({"router": "least-tokens", **pools(2, 1)}, []),
        ({"router": "least-tokens", **pools(1, 2)}, []),
        (
            {"router": "least-tokens", "decode_router": "least-kv", **pools(1, 2)},
            ["router least-tokens has no effect: there is one prefill replica."],
        ),
        ({"decode_router": "least-kv", **pools(2, 1)}, [IDLE_DECODE]),
        ({"decode_router": "least-kv", **pools(1, 2)}, []),
        ({"decode_router": "least-kv", **pools(2, 1, mixed_pool=MIXED)}, []),
        (
            {"failures": {**DRAWN, "until_s": 0}},
            ["failures has no effect: until_s is 0, and none begins at the very start."],
        ),
        (
            {"stragglers": {**SLOW, "until_s": 0}},
            ["stragglers has no effect: until_s is 0, and none begins at the very start."],
        ),
        ({"failures": {**DRAWN, "until_s": 1}, "stragglers": SLOW}, []),
    ],
)
def test_what_has_nothing_to_choose_or_to_draw_is_said(
    keys: dict[str, Any], notes: list[str]
) -> None:
    assert said(**keys) == notes


@pytest.mark.parametrize("over_long", ["clip", "error", "reject"])
def test_over_long_needs_a_limit(over_long: str) -> None:
    workload = {**BASE["workload"], "over_long": over_long}
    note = (
        f"workload.over_long {over_long} has no effect: there is no max_model_len that a request "
        "could be over."
    )
    assert said(workload=workload) == []
    told = said(workload=workload, max_model_len="none")
    assert told == ([note] if over_long != "reject" else [])
