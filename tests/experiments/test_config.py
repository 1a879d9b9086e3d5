"""What a config means: defaults, shorthand, engines, overrides, variants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from experiments import engines, layers
from experiments.bundle import dump_config
from experiments.config import Renamed, load, slug
from experiments.schema import Experiment, Pool
from sim.errors import ConfigError

LINEAR = {"model": "linear", "base_s": 0.01}
TRANSFER = {"bandwidth_bytes_per_s": 1e9}


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    (tmp_path / "t.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,10,5\n1,20,8\n")
    monkeypatch.chdir(tmp_path)
    return {
        "workload": {"trace": "t.csv", "max_tokens": 64},
        "model": "llama-3.1-8b",
        "step_time": LINEAR,
        "policy": "sarathi",
    }


def only(config: dict[str, Any], *settings: str) -> Experiment:
    (variant,) = load(config, settings).variants
    return variant


def pool(config: dict[str, Any], *settings: str) -> Pool:
    alone = only(config, *settings).pools.colocated
    assert alone is not None
    return alone


def test_a_resolved_experiment_is_a_config_that_resolves_to_itself(
    base: dict[str, Any], tmp_path: Path
) -> None:
    first = only({**base, "engine": "vllm-0.19", "slo": {"ttft_s": 1}, "order": "priority"})
    path = tmp_path / "again.yaml"
    path.write_text(dump_config(first.model_dump(mode="json", exclude_none=True)))

    assert only(path) == first  # type: ignore[arg-type]


def test_names_are_the_same_with_underscores(base: dict[str, Any]) -> None:
    changed = {**base, "policy": "vllm_v1", "router": "least_outstanding"}

    assert pool(changed).policy == {"name": "vllm-v1"}
    assert only(changed).router == {"name": "least-outstanding"}


def test_whole_numbers_may_be_written_with_an_exponent(base: dict[str, Any]) -> None:
    text = yaml.safe_dump({**base, "kv": None}).replace("kv: null", "kv: {num_blocks: 1e4}")
    Path("c.yaml").write_text(text)

    assert pool("c.yaml").kv.num_blocks == 10_000  # type: ignore[arg-type]


def test_top_level_keys_are_defaults_of_both_pools_but_for_replicas(base: dict[str, Any]) -> None:
    pools = {
        "prefill": {"replicas": 1, "policy": "vllm-v0"},
        "decode": {"replicas": 3},
        "transfer": TRANSFER,
    }
    variant = {"label": "two", "tensor_parallel": 2, "pools": pools}
    resolved = only({**base, "replicas": 7, "compare": [variant]}).pools

    assert resolved.prefill is not None
    assert resolved.decode is not None
    assert (resolved.prefill.replicas, resolved.decode.replicas) == (1, 3)
    assert (resolved.prefill.tensor_parallel, resolved.decode.tensor_parallel) == (2, 2)
    assert resolved.prefill.policy["name"] == "vllm-v0"
    assert resolved.decode.policy["name"] == "sarathi"


# --- overrides


def test_an_override_of_one_option_keeps_the_policy(base: dict[str, Any]) -> None:
    config = {**base, "policy": {"name": "sarathi", "max_num_seqs": 9}}

    assert pool(config, "policy.budget_tokens=128").policy == {
        "name": "sarathi",
        "max_num_seqs": 9,
        "budget_tokens": 128,
    }


def test_another_policy_drops_the_options_of_the_first(base: dict[str, Any]) -> None:
    config = {**base, "policy": {"name": "sarathi", "budget_tokens": 128}}

    assert pool(config, "policy=orca").policy == {"name": "orca"}


def test_a_trace_replaces_a_preset(base: dict[str, Any]) -> None:
    workload = {"preset": "azure-conv-2023", "requests": 100, "max_tokens": 64}
    changed = only({**base, "workload": workload}, "workload.trace=t.csv").workload

    assert (changed.trace, changed.preset, changed.requests) == ("t.csv", None, None)
    assert changed.max_tokens == 64


def test_arrivals_of_a_preset_go_with_it_unless_they_name_a_process(base: dict[str, Any]) -> None:
    preset = {"preset": "azure-conv-2023", "requests": 100}
    own = {**preset, "arrivals": {"rate_per_s": 9}}
    drawn = {**preset, "arrivals": {"process": "poisson", "rate_per_s": 9}}

    recorded = only({**base, "workload": own}, "workload.trace=t.csv").workload.arrivals
    again = only({**base, "workload": drawn}, "workload.trace=t.csv").workload.arrivals

    assert (recorded.process, recorded.rate_per_s) == (None, None)
    assert (again.process, again.rate_per_s) == ("poisson", 9)


def test_another_process_drops_the_options_of_the_first(base: dict[str, Any]) -> None:
    base["workload"]["arrivals"] = {"process": "gamma", "cv": 2, "rate_per_s": 4}

    changed = only(base, "workload.arrivals={process: closed-loop, concurrency: 3}")

    assert (changed.workload.arrivals.cv, changed.workload.arrivals.concurrency) == (None, 3)


def test_null_is_the_default(base: dict[str, Any]) -> None:
    assert pool({**base, "tensor_parallel": 4}, "tensor_parallel=null").tensor_parallel == 1


def test_settings_have_the_last_word_over_variants(base: dict[str, Any]) -> None:
    plan = load({**base, "compare": [{"label": "a", "seed": 3}, {"label": "b"}]}, ["seed=9"])

    assert [variant.seed for variant in plan.variants] == [9, 9]


def test_python_overrides_are_dotted_or_nested(base: dict[str, Any]) -> None:
    dotted = load(base, overrides={"policy.budget_tokens": 64})
    nested = load(base, overrides={"policy": {"budget_tokens": 64}})

    assert dotted.variants == nested.variants


# --- variants


def test_every_entry_of_compare_meets_every_point_of_the_grid(base: dict[str, Any]) -> None:
    plan = load(
        {
            **base,
            "compare": [{"label": "one", "replicas": 1}, {"label": "two", "replicas": 2}],
            "grid": {"policy.budget_tokens": [128, 256], "policy.max_num_seqs": [8]},
        }
    )

    assert [variant.label for variant in plan.variants] == [
        "one, budget_tokens=128, max_num_seqs=8",
        "one, budget_tokens=256, max_num_seqs=8",
        "two, budget_tokens=128, max_num_seqs=8",
        "two, budget_tokens=256, max_num_seqs=8",
    ]
    assert plan.variants[3].pools.colocated is not None
    assert plan.variants[3].pools.colocated.replicas == 2
    assert plan.variants[3].pools.colocated.policy["budget_tokens"] == 256


def test_a_variant_may_leave_the_pools_for_a_single_one(base: dict[str, Any]) -> None:
    pools = {"prefill": {"replicas": 1}, "decode": {"replicas": 1}, "transfer": TRANSFER}
    plan = load({**base, "pools": pools, "compare": [{"label": "together", "pools": None}]})

    assert plan.variants[0].pools.prefill is None
    assert plan.variants[0].pools.colocated is not None


def test_a_single_variant_is_called_after_its_policy(base: dict[str, Any]) -> None:
    assert only(base).label == "sarathi"


def test_folder_names_of_labels_are_plain() -> None:
    assert slug("vLLM (prefill-first), budget=512") == "vllm-prefill-first-budget=512"
    assert slug("../../etc") == "etc"
    assert slug("…") == "variant"


# --- engines


def test_every_engine_resolves_with_the_policy_it_ships(base: dict[str, Any]) -> None:
    del base["policy"]
    for name, entry in engines.presets().items():
        resolved = pool({**base, "engine": name})

        assert resolved.policy["name"] == entry["pool"]["policy"]["name"]
        assert not any(isinstance(value, dict) for value in resolved.policy.values())


@pytest.mark.parametrize(
    ("engine", "device", "budget", "seqs"),
    [
        ("vllm-0.8", "h100-sxm", 8192, 1024),
        ("vllm-0.8", "b200", 2048, 256),
        ("vllm-0.9", "b200", 8192, 1024),
        ("vllm-0.9", "a100-sxm-80gb", 2048, 256),
        ("vllm-0.19", "l4", 2048, 256),
        ("vllm_0.19", "mi300x", 8192, 1024),
    ],
)
def test_vllm_v1_takes_larger_batches_on_larger_gpus(
    base: dict[str, Any], engine: str, device: str, budget: int, seqs: int
) -> None:
    del base["policy"]
    policy = pool({**base, "engine": engine, "device": device}).policy

    assert (policy["max_num_batched_tokens"], policy["max_num_seqs"]) == (budget, seqs)


def test_each_setting_of_an_engine_can_be_overridden(base: dict[str, Any]) -> None:
    del base["policy"]
    config = {**base, "engine": "vllm-0.19", "max_num_seqs": 32, "gpu_memory_utilization": 0.8}
    resolved = pool(config, "policy.reserve_full_prompt=false")

    assert resolved.policy["name"] == "vllm-v1"
    assert resolved.policy["max_num_seqs"] == 32
    assert resolved.policy["reserve_full_prompt"] is False
    assert resolved.kv.gpu_memory_utilization == 0.8


def test_an_engine_in_a_variant_replaces_the_policy_below(base: dict[str, Any]) -> None:
    plan = load({**base, "compare": [{"label": "v", "engine": "vllm-0.7"}, {"label": "s"}]})
    policies = [variant.pools.colocated.policy["name"] for variant in plan.variants]  # type: ignore[union-attr]

    assert policies == ["vllm-v0", "sarathi"]


def test_what_an_engine_does_and_we_do_not_is_noted(base: dict[str, Any]) -> None:
    del base["policy"]

    (note,) = only({**base, "engine": "vllm-0.19", "max_model_len": 4096}).notes

    assert note.startswith("engine vllm-0.19: Async scheduling")


@pytest.mark.parametrize("flag", sorted(engines.FLAGS))
def test_engine_flags_mean_our_own_keys(flag: str) -> None:
    path = engines.FLAGS[flag]
    expected: Any = 7
    for part in reversed(path):
        expected = {part: expected}

    assert layers.write_out({flag: 7}, "") == expected


# --- deprecated keys


def test_a_deprecated_key_works_and_says_what_to_write(base: dict[str, Any]) -> None:
    renamed = [Renamed("slo.first_token_s", "slo.ttft_s", "0.3")]

    plan = load({**base, "slo": {"first_token_s": 2.0}}, deprecated=renamed)

    assert plan.variants[0].slo.ttft_s == 2.0
    assert plan.notes == (
        "config: slo.first_token_s: is deprecated and not read from 0.3 on; write slo.ttft_s",
    )


def test_a_deprecated_key_works_in_variants_and_settings(base: dict[str, Any]) -> None:
    renamed = [Renamed("slo.first_token_s", "slo.ttft_s", "0.3")]
    compare = [{"label": "a", "slo.first_token_s": 1.0}, {"label": "b"}]

    plan = load({**base, "compare": compare}, deprecated=renamed)
    set_ = load(base, ["slo.first_token_s=4"], deprecated=renamed)

    assert [variant.slo.ttft_s for variant in plan.variants] == [1.0, None]
    assert plan.notes[0].startswith("config: compare[0]: slo.first_token_s: is deprecated")
    assert set_.variants[0].slo.ttft_s == 4
    assert set_.notes[0].startswith("--set: slo.first_token_s: is deprecated")


def test_the_new_name_wins_over_the_deprecated_one(base: dict[str, Any]) -> None:
    renamed = [Renamed("slo.first_token_s", "slo.ttft_s", "0.3")]

    plan = load({**base, "slo": {"first_token_s": 2.0, "ttft_s": 3.0}}, deprecated=renamed)

    assert plan.variants[0].slo.ttft_s == 3.0


def test_a_users_own_policy_is_found_beside_the_config(
    base: dict[str, Any], tmp_path: Path
) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "my_policy_module.py").write_text(
        "from dataclasses import dataclass\nfrom sim.policy import Policy\n"
        "@dataclass\nclass Mine(Policy):\n    most: int = 4\n"
    )
    (folder / "c.yaml").write_text(
        yaml.safe_dump({**base, "policy": {"name": "my_policy_module:Mine", "most": 3}})
    )

    assert pool(folder / "c.yaml").policy == {"name": "my_policy_module:Mine", "most": 3}  # type: ignore[arg-type]


def test_a_config_that_holds_no_mapping_is_refused() -> None:
    with pytest.raises(ConfigError):
        load({"workload": "azure"})
