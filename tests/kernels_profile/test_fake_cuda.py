"""What only a GPU executes, on a device that is none: graphs, the engine, a session."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kernels_profile.profiler.grids import Grid, Grids
from kernels_profile.table import DataSet
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


CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 1,
    "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48,
    "vocab_size": 50, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "hidden_act": "silu",
}  # fmt: skip


def coarse(grids: Grids) -> Grids:
    """The first tier alone."""
    made = {
        name: Grid({column: (axis[0], (), ()) for column, axis in grid.axes.items()})
        for name, grid in vars(grids).items()
        if isinstance(grid, Grid)
    }
    return replace(grids, **made)


def test_a_profile_whole_steps_and_a_replay_as_on_a_gpu(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parts of a session, one after the other, with little to measure in each."""
    from experiments import replay, replay_run
    from kernels_profile.engine import runner, steps
    from kernels_profile.profiler import precompile, request, session
    from kernels_profile.profiler.grids import TINY as GRIDS

    path, out = tmp_path / "config.json", tmp_path / "out"
    path.write_text(json.dumps(CONFIG))
    compiled = precompile.Compiled(0, 0, 0.0)
    monkeypatch.setattr(precompile, "compile_ahead", lambda *given, **named: compiled)
    monkeypatch.setattr(request, "FULL", coarse(GRIDS))
    quickly = request.Effort(graph_us=0, max_launches=2, target_us=1, min_repeats=2, max_repeats=2)
    monkeypatch.setattr(request, "effort_on", lambda found: quickly)
    monkeypatch.setattr("kernels_profile.profiler.run.effort_on", lambda found: quickly)
    monkeypatch.setattr("kernels_profile.profiler.measure.candidates", lambda point: ())
    points = (steps.StepPoint(5), steps.StepPoint(decodes=2, context=9))
    monkeypatch.setattr(steps, "POINTS", points)
    monkeypatch.setattr(replay_run, "GRAPH_SIZES", (1, 2))
    few = [([0], 0, [0])]  # seats for 128 sequences would take the interpreter minutes
    monkeypatch.setattr(
        runner, "warm_rows", lambda model, *_: [runner.make_rows(model, few, [True], [])]
    )

    given = ["--out", str(out), "--models", str(path)]
    assert session.main([*given, "--part", "profile"]) == 0
    data = DataSet(out)
    assert data.meta.device == "h200"
    assert {"linear", "attention_decode", "overhead", "ceilings"} <= {p.stem for p in data.files()}
    what = data.table("overhead")
    assert what is not None
    assert set(what["what"].tolist()) == {"kernel_launch", "graph_replay"}

    assert session.main([*given, "--part", "steps"]) == 0
    table = DataSet(out).table("step")
    assert table is not None
    assert np.all(table["operators_us"] > 0)
    assert session.main([*given, "--part", "steps"]) == 0  # all were there

    told = ["--out", str(out / "replay"), "--tables", str(out), "--model", str(path)]
    told += ["--num-blocks", "32", "--max-model-len", "40", "--rate", "3", "--requests", "2"]
    assert replay.main([*told, "--duration-s", "40", "--preset", "sharegpt-like"]) == 0
    written = {p.name for p in (out / "replay").iterdir()}
    assert written == {"requests.csv", "steps.csv", "comparison.csv", "about.txt"}
    assert device.replays > 0
