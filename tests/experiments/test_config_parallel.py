"""Mixtures of experts: expert parallelism, and groups of GPUs that attend apart."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import phasewise
from experiments import cluster
from experiments.config import load
from experiments.json_schema import json_schema
from kernels_profile.table import Meta, write_meta, write_table
from policies import POLICIES
from sim.errors import ConfigError

BASE: dict[str, Any] = {
    "workload": {
        "preset": "sharegpt-like",
        "requests": 60,
        "max_tokens": 2048,
        "arrivals": {"process": "poisson", "rate_per_s": 30},
    },
    "model": "deepseek-v3",
    "device": "h200",
    "precision": "fp8",
    "tensor_parallel": 8,
    "max_model_len": 8192,
    "policy": "sarathi",
}
APART: dict[str, Any] = {"expert_parallel": 8, "data_parallel_attention": 8}


def built(config: dict[str, Any]) -> cluster.Built:
    plan = load({**BASE, **config})
    (variant,) = plan.variants
    return cluster.build(variant, plan.folder)


def test_a_latent_model_is_served_by_its_sheet() -> None:
    notes = " ".join(built({}).notes)
    assert "at 70272 bytes a token" in notes
    assert "latent attention was not measured" in notes


def test_a_latent_is_sent_once_between_pools() -> None:
    for tp in (1, 8):
        spec = built({"tensor_parallel": tp, "kv.num_blocks": 1000}).cluster.entry.replicas[0]
        assert spec.kv_bytes_per_token == 70_272


def test_groups_that_attend_apart_keep_more_and_say_what_is_left_out() -> None:
    together, apart = built({"expert_parallel": 8}), built(APART)
    blocks = [each.cluster.entry.replicas[0].num_blocks for each in (together, apart)]
    assert blocks[1] > 5 * blocks[0]
    assert together.gpus == apart.gpus == 8
    assert "as if requests were always spread evenly" in apart.notes[-1]
    assert not any("spread evenly" in note for note in together.notes)
    small = built({**APART, "kv.num_blocks": 800}).notes[-1]
    assert "one group keeps 1,600 tokens, fewer than max_model_len 8,192" in small


@pytest.mark.parametrize("imbalance", ["even", {"zipf": 0}, {}])
def test_even_is_an_exponent_of_nought(imbalance: object) -> None:
    (variant,) = load({**BASE, "expert_imbalance": imbalance}).variants
    pool = variant.pools.colocated
    assert pool is not None
    assert pool.expert_imbalance.zipf == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"expert_parallel": 3}, "config: expert_parallel: 3 does not divide both the 8 GPUs"),
        ({**APART, "data_parallel_attention": 3}, "config: data_parallel_attention: 3 does not"),
        ({"data_parallel_attention": 2}, "set expert_parallel to the 8 GPUs of tensor_parallel"),
        ({"tensor_parallel": 3}, "config: tensor_parallel: 3 does not divide the 128 heads"),
        ({"expert_imbalance": "evne"}, "expert_imbalance: evne: expected even, or a mapping"),
        ({"expert_imbalance": {"zipf": 3}}, "expert_imbalance.zipf: 3: expected at most 2"),
        (
            {"expert_imbalance": {"zipf": 1}, "step_time": {"model": "linear", "base_s": 0.1}},
            "expert_imbalance: zipf 1: step times of linear know no experts",
        ),
        (
            {"model": "llama-3.1-8b", "expert_imbalance": {"zipf": 1}},
            "expert_imbalance: zipf 1: llama-3.1-8b has no experts",
        ),
        (
            {"model": "llama-3.1-8b", "expert_parallel": 2},
            "expert_parallel: 2: llama-3.1-8b has no experts; more replicas do that",
        ),
    ],
)
def test_what_does_not_come_out_even_is_one_line(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as raised:
        built(change)
    assert "\n" not in str(raised.value)


def test_editors_know_the_keys() -> None:
    schema = json_schema()
    imbalance = schema["properties"]["expert_imbalance"]
    reference = imbalance.get("$ref") or imbalance["allOf"][0]["$ref"]
    uneven, even = schema["$defs"][reference.rpartition("/")[2]]["anyOf"]
    assert even == {"const": "even"}
    assert (uneven["properties"]["zipf"]["minimum"], uneven["properties"]["zipf"]["maximum"]) == (
        0, 2,
    )  # fmt: skip
    assert {"expert_parallel", "data_parallel_attention"} < set(schema["properties"])


@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "longest-prefix"])
@pytest.mark.parametrize(
    "layout",
    [
        {"model": "mixtral-8x7b", "tensor_parallel": 2, "expert_parallel": 2,
         "expert_imbalance": {"zipf": 0.7}},
        {**APART, "expert_imbalance": {"zipf": 0.3}},
    ],
    ids=["mixtral", "deepseek"],
)  # fmt: skip
def test_fast_forward_equals_stepping(policy: str, layout: dict[str, Any]) -> None:
    config = {**BASE, **layout, "policy": policy, "kv.num_blocks": 4000, "check": True}
    fast, stepped = (phasewise.run(config, fast_forward=on, label="x") for on in (True, False))
    pd.testing.assert_frame_equal(fast.requests("x"), stepped.requests("x"))


@pytest.mark.parametrize("layout", [{"expert_parallel": 8}, APART], ids=["experts", "groups"])
def test_tables_take_the_same_keys(tmp_path: Path, layout: dict[str, Any]) -> None:
    write_meta(tmp_path, Meta("h200", "a formula"))
    rows = [
        {"op": "all_to_all", "backend": "nccl", "gpus": 8, "bytes": b, "time_us": 20 + b / 1e5}
        for b in (1e3, 1e9)
    ]
    write_table(tmp_path, "collective", rows)
    step_time = {"model": "profile", "data": str(tmp_path), "missing": "roofline"}
    config = {**BASE, **layout, "step_time": step_time, "expert_imbalance": {"zipf": 0.2}}
    notes = " ".join(built(config).notes)
    assert "experts spread over 8 GPUs" in notes
    assert "Zipf's law with exponent 0.2" in notes
    fast, stepped = (phasewise.run(config, fast_forward=on, label="x") for on in (True, False))
    pd.testing.assert_frame_equal(fast.requests("x"), stepped.requests("x"))


def test_one_gpu_of_experts_is_tensor_parallelism() -> None:
    plain, said = (
        phasewise.run({**BASE, "model": "mixtral-8x7b", **keys}, label="x").requests("x")
        for keys in ({}, {"expert_parallel": 1, "expert_imbalance": "even"})
    )
    pd.testing.assert_frame_equal(plain, said)
