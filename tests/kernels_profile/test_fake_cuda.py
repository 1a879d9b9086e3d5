"""What only a GPU executes, on a device that is none: graphs, the engine, whole steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from sim.specs import ModelSpec
from tests.kernels_profile.fake_cuda import Device, fake_cuda

if TYPE_CHECKING:
    from kernels_profile.engine.model import RankModel

pytestmark = [pytest.mark.kernels, pytest.mark.usefixtures("interpreted")]

TINY = ModelSpec(
    name="tiny", layers=2, hidden=48, heads=4, kv_heads=2, head_dim=16, intermediate=72,
    vocab=101, max_positions=256, qk_norm=True,
)  # fmt: skip


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    with fake_cuda(monkeypatch) as made:
        yield made


def rank(model: ModelSpec = TINY, block_tokens: int = 4) -> RankModel:
    import torch

    from kernels_profile.engine.model import RankModel

    return RankModel(
        model, num_blocks=12, block_tokens=block_tokens, max_positions=64, seed=3, device="cuda",
        dtype=torch.float32,
    )  # fmt: skip


def test_a_graph_replays_on_what_is_in_its_memory_now(device: Device) -> None:
    import torch

    x = torch.ones(3, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        doubled = (x * 2)[1:]
    x.fill_(5)
    assert doubled.tolist() == [2, 2]
    graph.replay()
    assert doubled.tolist() == [10, 10]


def test_what_a_gpu_refuses_in_a_capture_is_refused(device: Device) -> None:
    import torch

    x = torch.ones(3, device="cuda")
    for illegal in (x.sum().item, x.tolist, x.cpu, lambda: torch.ones(1).to("cuda"),
                    torch.cuda.synchronize):  # fmt: skip
        with (
            pytest.raises(RuntimeError, match="when stream is capturing"),
            torch.cuda.graph(torch.cuda.CUDAGraph()),
        ):
            illegal()
        assert device.capturing is None


@pytest.mark.parametrize("model", [TINY, replace(TINY, experts=4, experts_per_token=2)])
def test_a_captured_step_gives_the_tokens_of_an_eager_one(device: Device, model: ModelSpec) -> None:
    from kernels_profile.engine.runner import DecodeGraph, make_rows

    made = rank(model)
    graph = DecodeGraph(made, 4, 6)
    for decodes in (
        [([7], 5, [0, 1]), ([9], 2, [2])],
        [([1], 8, [3, 4, 5]), ([2], 0, [6]), ([3], 1, [7]), ([4], 3, [8])],
        [([5], 9, [3, 4, 5])],
    ):
        eager = made.forward(make_rows(made, [], [], decodes)).tolist()
        tokens, gpu_ns = graph.run(decodes)
        assert tokens == eager
        assert gpu_ns > 0
    assert device.replays == 3


def test_a_runner_is_warmed_up_with_steps_of_every_kind(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernels_profile.engine import runner

    monkeypatch.setattr(runner, "CHUNKS", (1, 5, 900))
    monkeypatch.setattr(runner, "SEQUENCES", (1, 3))
    made = rank(replace(TINY, layers=1))
    sizes = [
        (rows.longest_chunk, len(rows.tokens), len(rows.sampled))
        for rows in runner.warm_rows(made, 9, 4)
    ]
    chunks, mixed = [(1, 1, 1), (5, 5, 1), (9, 9, 1)], [(1, 2, 2), (1, 4, 4), (1, 5, 5)]
    alone = [(0, 1, 1), (0, 3, 3), (0, 4, 4)]
    assert sizes == chunks + [step for pair in zip(mixed, alone, strict=True) for step in pair]
    assert runner.Runner(made, 12, graph_sizes=(1, 2), max_blocks=4).warm_up(9, 4) > 0


def test_the_timer_captures_and_replays_whole_steps(device: Device) -> None:
    from kernels_profile.engine import steps
    from kernels_profile.profiler.effort import Effort
    from kernels_profile.profiler.timing import CudaTimer

    made = rank(replace(TINY, layers=1), steps.BLOCK_TOKENS)
    effort = Effort(graph_us=0, max_launches=1, min_repeats=2, max_repeats=2)
    for point in (steps.StepPoint(5), steps.StepPoint(decodes=2, context=9)):
        row = steps.row(made, 1, point, CudaTimer(effort), lambda work: 10.0)
        assert row["repeats"] == 2
        assert row["time_us"] > 0  # type: ignore[operator]
    assert device.replays == 2 * 5  # untimed and one to size, untimed and two timed
