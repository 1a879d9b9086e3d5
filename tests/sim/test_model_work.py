"""MBU of mixtures of experts: experts that no row of an iteration was sent to are not read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from experiments.config import load
from experiments.variant import run_variant
from sim.model_work import Hardware, ModelWork, model_work, moved_bytes
from sim.specs import load_device, load_model
from sim.step_cost import StepCost

CONFIG: dict[str, Any] = {
    "workload": {
        "preset": "azure-conv-2023",
        "requests": 30,
        "max_tokens": 1024,
        "arrivals": {"process": "closed-loop", "concurrency": 16},
    },
    "model": "qwen3-30b-a3b",
    "device": "h100-sxm",
    "policy": "vllm-v1",
    "max_model_len": 16384,
}
NO_REQUESTS = {name: np.zeros(0, np.int64) for name in ("prompt_tokens", "emitted_tokens")}


class Replica:
    joined_ns, left_ns = 0, -1
    name, pool, gpus, total_blocks, block_tokens, busy_ns = "r0", "main", 1, 10, 16, 0

    def __init__(self, *by_rows: tuple[int, int], iterations: int | None = None) -> None:
        self.iterations_by_rows = by_rows
        counted = sum(count for _, count in by_rows)
        self.iterations = counted if iterations is None else iterations


def work_of(name: str, **options: Any) -> ModelWork:
    return model_work(load_model(name), [Hardware(load_device("h100-sxm"), **options)])


@pytest.mark.parametrize("name", ["qwen3-30b-a3b", "mixtral-8x7b", "deepseek-v2-lite"])
@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_weights_of_an_iteration_are_those_that_its_rows_touch(name: str, precision: str) -> None:
    model = load_model(name)
    work, cost = work_of(name, precision=precision), StepCost(model, precision)
    routers_and_norms = 2 * model.small_parameters

    for rows in (1, 16, 2048):
        moved = moved_bytes(NO_REQUESTS, work, [Replica((rows, 3))])
        assert moved == pytest.approx(3 * (cost.weights_read(rows, 1) + routers_and_norms))


def test_few_rows_are_not_averaged_with_many() -> None:
    work = work_of("qwen3-30b-a3b")
    together = moved_bytes(NO_REQUESTS, work, [Replica((16, 9), (2000, 1))])
    apart = [moved_bytes(NO_REQUESTS, work, [Replica(each)]) for each in ((16, 9), (2000, 1))]

    assert together == pytest.approx(sum(apart))
    assert together < 0.8 * moved_bytes(NO_REQUESTS, work, [Replica((214, 10))])


def test_popular_experts_leave_more_unread() -> None:
    even, uneven = (work_of("qwen3-30b-a3b", zipf=zipf) for zipf in (0.0, 1.0))
    replicas = [Replica((16, 1))]

    assert moved_bytes(NO_REQUESTS, uneven, replicas) < moved_bytes(NO_REQUESTS, even, replicas)


def test_iterations_of_unknown_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="rows of 0 of 3 iterations are known"):
        moved_bytes(NO_REQUESTS, work_of("qwen3-30b-a3b"), [Replica(iterations=3)])


def test_a_dense_model_reads_all_of_its_weights_whatever_the_rows() -> None:
    work = work_of("llama-3.1-8b")

    assert work.routed == ()
    assert moved_bytes(NO_REQUESTS, work, [Replica(iterations=3)]) == 3 * work.weight_bytes[0]


@pytest.mark.parametrize(
    "layout",
    [
        {},
        {"pipeline_parallel": 2},
        {"tensor_parallel": 2},
        {"tensor_parallel": 2, "expert_parallel": 2, "expert_imbalance": {"zipf": 1.0}},
        {"pipeline_parallel": 2, "model": "mixtral-8x7b", "tensor_parallel": 2},
        {"pipeline_parallel": 2, "model": "llama-3.1-8b"},
    ],
)
def test_no_layout_moves_more_than_its_memory_can(layout: dict[str, Any]) -> None:
    plan = load({**CONFIG, **layout, "record": {"steps": True}})
    made = run_variant(plan.variants[0], plan.folder)
    (replica,) = made.replicas
    steps = made.steps
    assert steps is not None
    once = np.asarray(steps["stage"] == 1)
    rows = (steps["prefill_tokens"] + steps["decodes"])[once].tolist()
    counted: dict[int, int] = {}
    for each, iterations in zip(rows, steps["iterations"][once].tolist(), strict=True):
        counted[each] = counted.get(each, 0) + iterations

    assert dict(replica.iterations_by_rows) == counted
    assert sum(counted.values()) == replica.iterations
    assert 0.2 < made.summary["overall"]["mbu"] < 1
