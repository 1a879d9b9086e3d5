"""Keys that find nothing to choose, to draw or to hold against are said to have no effect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments.cluster import build
from experiments.config import load

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


ROUTER = "config: router: has no effect: no variant has more than one replica to choose from"
DECODE_ROUTER = "config: decode_router: has no effect: no variant has more than one decode replica"
TOKENS = {"router": "least-tokens"}
KV = {"decode_router": "least-kv"}


@pytest.mark.parametrize(
    ("keys", "notes"),
    [
        (TOKENS, (ROUTER,)),
        ({"router": "least_tokens"}, (ROUTER,)),
        ({"router": "round-robin"}, ()),
        ({**TOKENS, "replicas": 2}, ()),
        ({**TOKENS, "compare": [{"label": "one"}, {"label": "two", "replicas": 2}]}, ()),
        ({**TOKENS, "compare": [{"label": "a"}, {"label": "b", "policy": "orca"}]}, (ROUTER,)),
        ({**TOKENS, "events": [ADD]}, ()),
        ({**TOKENS, "autoscale": {**SCALED, "max_replicas": 2}}, ()),
        ({**TOKENS, "autoscale": {**SCALED, "max_replicas": 1}}, (ROUTER,)),
        ({**TOKENS, **pools(1, 1)}, (ROUTER,)),
        ({**TOKENS, **pools(2, 1)}, ()),
        ({**TOKENS, **pools(1, 2)}, ()),
        ({**TOKENS, **KV, **pools(1, 2)}, (ROUTER,)),
        ({**KV, **pools(2, 1)}, (DECODE_ROUTER,)),
        ({**KV, **pools(1, 2)}, ()),
        ({**KV, **pools(2, 1, mixed_pool=MIXED)}, ()),
    ],
)
def test_a_router_without_a_choice_is_said(keys: dict[str, Any], notes: tuple[str, ...]) -> None:
    assert load({**BASE, **keys}).notes == notes


def said(**keys: Any) -> list[str]:
    (experiment,) = load({**BASE, **keys}).variants
    return [x for x in build(experiment, Path()).notes if "has no effect" in x]


@pytest.mark.parametrize(
    ("keys", "notes"),
    [
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
def test_what_is_never_drawn_is_said(keys: dict[str, Any], notes: list[str]) -> None:
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
