"""The longest request that a pool accepts: the model's context length unless a config says more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments import strict_yaml
from experiments.bundle import dump_config
from experiments.cluster import pools_of
from experiments.config import load
from experiments.variant import run_variant
from sim.errors import ConfigError

BASE: dict[str, Any] = {
    "workload": {"preset": "azure-conv-2023", "requests": 40, "max_tokens": 1024},
    "model": "llama-3.1-8b",
    "step_time": {"model": "linear", "base_s": 0.005, "prefill_token_s": 3e-5},
    "policy": "sarathi",
}
POOLS = {
    "prefill": {"replicas": 1, "max_model_len": 4096},
    "decode": {"replicas": 1, "policy": "orca"},
    "transfer": {"bandwidth_bytes_per_s": 5e10},
}


def limits(config: dict[str, Any] | Path, *settings: str) -> list[int | None]:
    (variant,) = load(config, settings).variants
    return [pool.max_model_len for pool in pools_of(variant).values()]


def test_it_is_the_context_length_of_the_model_and_a_note_says_so() -> None:
    (variant,) = load(BASE).variants

    assert limits(BASE) == [131072]
    assert variant.notes == [
        "max_model_len is the context length of llama-3.1-8b, 131,072 tokens, since none is set."
    ]
    assert limits({**BASE, "pools": POOLS}) == [4096, 131072]


@pytest.mark.parametrize("unlimited", ["none", "None", None])
def test_it_can_be_set_or_turned_off(unlimited: str | None) -> None:
    assert limits({**BASE, "max_model_len": unlimited}) == [None]
    assert limits({**BASE, "max_model_len": 512}, "max_model_len=null") == [None]
    assert limits({**BASE, "max_model_len": unlimited}, "max_model_len=1e3") == [1000]
    assert limits({**BASE, "pools": {**POOLS, "prefill": {"replicas": 1}}, "max_model_len": 9}) == [
        9,
        9,
    ]
    pools = {**POOLS, "prefill": {"replicas": 1, "max_model_len": unlimited}}
    assert limits({**BASE, "pools": pools, "max_model_len": 9}) == [None, 9]
    with pytest.raises(ConfigError, match=r"^config: max_model_len: many: expected a whole number"):
        limits({**BASE, "max_model_len": "many"})


@pytest.mark.parametrize("setting", ["max_model_len=none", "seed=1"])
def test_a_resolved_config_keeps_it(tmp_path: Path, setting: str) -> None:
    (variant,) = load(BASE, [setting]).variants
    path = tmp_path / "again.yaml"
    path.write_text(dump_config(variant.model_dump(mode="json", exclude_none=True)))

    assert strict_yaml.read(path)["pools"]["colocated"]["max_model_len"] in ("none", 131072)
    assert load(path).variants == (variant,)


@pytest.mark.parametrize("engine", ["vllm-0.4", "vllm-0.7"])
def test_the_budget_of_vllm_v0_follows_so_that_it_rejects_nothing(engine: str) -> None:
    config = {**BASE, "engine": engine, "policy": {}}
    plan = load(config)

    assert run_variant(plan.variants[0], plan.folder).summary["requests"]["rejected"] == 0


def test_a_model_that_is_unknown_is_still_one_line() -> None:
    with pytest.raises(ConfigError, match=r"^config: model: "):
        load({**BASE, "model": "llama-9"})
