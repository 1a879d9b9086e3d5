"""Keys that change nothing are refused, or a note says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments.config import load
from experiments.workload import build_workload
from sim.errors import ConfigError

BASE: dict[str, Any] = {
    "workload": {"preset": "azure-conv-2023", "requests": 40, "max_tokens": 1024},
    "model": "llama-3.1-8b",
    "step_time": {"model": "linear", "base_s": 0.005, "prefill_token_s": 3e-5},
    "policy": "sarathi",
}
POOLS = {
    "prefill": {"replicas": 1},
    "decode": {"replicas": 1},
    "transfer": {"bandwidth_bytes_per_s": 5e10},
}


def notes(config: dict[str, Any]) -> list[str]:
    plan = load({**BASE, **config})
    (variant,) = plan.variants
    return [
        note for note in build_workload(variant, plan.folder, None).notes if "preset" not in note
    ]


def trace(folder: Path, column: str, values: tuple[object, object]) -> dict[str, Any]:
    path = folder / "t.csv"
    rows = [f"{at},10,5,{value}\n" for at, value in enumerate(values)]
    path.write_text(f"arrival_s,prompt_tokens,output_tokens,{column}\n{''.join(rows)}")
    return {"workload": {"trace": str(path), "max_tokens": 8}}


def test_targets_of_a_class_that_no_request_has_are_noted(tmp_path: Path) -> None:
    classes = {"slo": {"classes": {"chat": {"ttft_s": 1}, "cod": {"ttft_s": 2}}}}
    workload = trace(tmp_path, "request_class", ("chat", "code"))

    assert notes({**workload, **classes}) == [
        "slo.classes.cod: no request is of this class; the classes are chat, code."
    ]
    assert "there are no classes" in notes(classes)[-1]


def test_classes_and_tenants_that_routing_names_and_no_request_has_are_noted(
    tmp_path: Path,
) -> None:
    early = {"max_ttft_s": 1, "classes": {"caht": 2}}
    tenants = {"acme": {"tokens_per_s": 1, "burst_tokens": 100}}
    limit = {"tokens_per_s": 1, "burst_tokens": 100, "tenants": tenants}
    workload = trace(tmp_path, "request_class", ("chat", "code"))
    keys = {
        "replicas": 2,
        "router": {"name": "class-aware", "classes": {"chat": [0], "coed": [0]}},
        "admission": {"early_rejection": early, "rate_limit": limit},
    }

    assert notes({**workload, **keys}) == [
        "router.classes.coed: no request is of this class; the classes are chat, code.",
        "admission.early_rejection.classes.caht: no request is of this class; the classes are "
        "chat, code.",
        "admission.rate_limit.tenants.acme: no request is of it.",
        "admission.rate_limit: no request has a tenant, so that all share one bucket.",
    ]


def test_an_order_that_finds_nothing_to_sort_by_is_noted(tmp_path: Path) -> None:
    for order in ("priority", "edf"):
        assert notes({"order": order})[-1].startswith(f"order {order}: ")
    assert notes({"order": "vtc"})[-1].startswith("order vtc: all requests are of one tenant")
    assert notes({"order": "vtc", **trace(tmp_path, "tenant", ("a", "b"))}) == []
    assert notes({"order": "edf", "slo": {"ttft_s": 1}}) == notes({})
    assert notes({"order": "priority", **trace(tmp_path, "priority", (1, 2))}) == []


def test_a_predictor_that_no_order_asks_is_noted() -> None:
    compare = [{"label": "a"}, {"label": "b", "order": "sjf"}]

    assert load({**BASE, "predictor": "oracle"}).notes == (
        "config: predictor: is not used: no variant has an order that asks it (sjf and srtf)",
    )
    assert load({**BASE, "predictor": "oracle", "compare": compare}).notes == ()


def test_replicas_below_two_pools_are_for_the_variants_without_them() -> None:
    compare = [{"label": "one"}, {"label": "two", "pools": POOLS}]
    plan = load({**BASE, "replicas": 3, "compare": compare})

    assert plan.variants[0].pools.colocated is not None
    assert plan.variants[0].pools.colocated.replicas == 3
    with pytest.raises(ConfigError, match=r"^--set: replicas: 4: there are two pools"):
        load({**BASE, "compare": compare}, ["replicas=4"])


def test_a_colocated_pool_takes_the_replicas_of_the_top_level() -> None:
    (variant,) = load({**BASE, "replicas": 3, "pools": {"colocated": {"policy": "orca"}}}).variants

    assert variant.pools.colocated is not None
    assert variant.pools.colocated.replicas == 3
