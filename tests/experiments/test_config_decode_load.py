"""Early rejection on the decode pool's load in a config."""

from __future__ import annotations

from typing import Any

import pytest

from experiments import cluster
from experiments.config import load
from experiments.variant import run_variant
from sim.decode_load import DecodeLimit
from sim.errors import ConfigError

BASE: dict[str, Any] = {
    "workload": {
        "preset": "azure-conv-2023",
        "requests": 300,
        "arrivals": {"process": "poisson", "rate_per_s": 60},
        "max_tokens": 1024,
    },
    "model": "llama-3.1-8b",
    "device": "h100-sxm",
    "policy": "vllm-v1",
    "pools": {
        "prefill": {"replicas": 2},
        "decode": {"replicas": 1},
        "transfer": {"bandwidth_bytes_per_s": 50e9},
    },
}


def with_load(**load_limit: Any) -> dict[str, Any]:
    return {**BASE, "admission": {"early_rejection": {"decode_load": load_limit}}}


def test_the_keys_are_taken() -> None:
    said = with_load(max_tbt_s=0.02, max_kv_share=0.5, predicted=True, decode_s=3)
    plan = load(said)
    built = cluster.build(plan.variants[0], plan.folder).cluster
    assert built.admission is not None
    assert built.admission.early_rejection is not None
    limit = built.admission.early_rejection.decode_load
    assert limit == DecodeLimit(20_000_000, 0.5, 3_000_000_000)


def test_requests_are_refused_with_their_reason() -> None:
    plan = load(with_load(max_tbt_s=0.0085, predicted=True, decode_s=2))
    got = run_variant(plan.variants[0], plan.folder)
    refused = got.requests["state"] == 1
    assert 0 < refused.sum() < 300
    assert {got.reasons[code] for code in got.requests["reason"][refused]} == {"decode_load"}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, "decode_load: needs a limit: give max_tbt_s or max_kv_share"),
        (
            {"max_tbt_s": 0.1, "predicted": True},
            "admission.early_rejection.decode_load.predicted: true: needs decode_s",
        ),
        ({"max_tbt_s": 0.1, "decode_s": 2}, "predicted: false: has no use for decode_s"),
        ({"max_kv_share": 1.5}, "max_kv_share: 1.5"),
        ({"max_tbt": 1}, "decode_load has no such option; try max_tbt_s"),
    ],
)
def test_what_cannot_be_is_one_error_that_names_the_key(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(with_load(**keys))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_one_pool_has_no_decode_load() -> None:
    one = {key: value for key, value in with_load(max_tbt_s=1).items() if key != "pools"}
    with pytest.raises(ConfigError, match="decode_load: there is no decode pool; leave it out"):
        load(one)


def test_a_snapshot_has_no_requests_to_count() -> None:
    with pytest.raises(ConfigError, match="decode_load: counts requests as they are"):
        load({**with_load(max_tbt_s=1), "router_snapshot_s": 1})
