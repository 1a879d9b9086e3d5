"""Whole steps: what is timed is the step that is said, beside the sum of its operators."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels_profile.engine import steps
from kernels_profile.engine.model import layer_block_bytes, refuse_unsupported, weight_bytes
from kernels_profile.engine.steps import POINTS, StepPoint
from kernels_profile.table import append_rows, read_table
from sim.errors import ProfileError
from sim.specs import kv_bytes_per_token, load_model


def test_points_say_their_kind_and_work() -> None:
    mixed = StepPoint(512, 4096, 32, 1024)
    assert [p.kind for p in (mixed, StepPoint(8), StepPoint(decodes=2, context=9))] == [
        "mixed", "prefill", "decode",
    ]  # fmt: skip
    assert (mixed.work.prefill_tokens, mixed.work.decode_rows) == (512, 32)
    assert (mixed.work.context_tokens, mixed.work.sampled_rows) == (32 * 1024, 33)
    assert mixed.stored_tokens == 512 + 4096 + 32 * 1024
    assert StepPoint(decodes=2, context=17).stored_tokens == 2 * 32
    assert len(set(POINTS)) == len(POINTS)


def test_points_that_memory_or_the_model_cannot_hold_are_left_out() -> None:
    model = load_model("llama-3.1-8b")
    point = StepPoint(decodes=4, context=1024)
    assert steps.fits(point, model, 256)
    assert not steps.fits(point, model, 255)
    short = load_model("llama-2-7b")
    assert not steps.fits(StepPoint(4097), short, 10**6)


def test_sizes_are_those_of_the_sheets() -> None:
    model = load_model("llama-3.1-8b")
    assert weight_bytes(model, 1) == pytest.approx(2 * model.parameters, rel=1e-3)
    assert layer_block_bytes(model, 1, 16) * model.layers == 16 * kv_bytes_per_token(model, "bf16")
    assert weight_bytes(model, 2) == weight_bytes(model, 1) // 2


@pytest.mark.parametrize(
    ("model", "what"), [("opt-13b", "learned positions"), ("qwen2.5-7b", "attention biases"),
                        ("deepseek-v2-lite", "latent attention")]
)  # fmt: skip
def test_architectures_that_do_not_run_are_refused(model: str, what: str) -> None:
    with pytest.raises(ProfileError, match=what):
        refuse_unsupported(load_model(model))


@pytest.mark.kernels
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(
    "point", [StepPoint(20, 5), StepPoint(decodes=2, context=18), StepPoint(5, 0, 2, 17)],
    ids=lambda point: point.kind,
)  # fmt: skip
def test_a_row_holds_the_step_and_its_operators(point: StepPoint, tmp_path: Path) -> None:
    import torch

    from kernels_profile.engine.model import RankModel
    from kernels_profile.profiler.request import TINY_MODEL
    from kernels_profile.profiler.timing import CpuTimer

    rank = RankModel(
        TINY_MODEL, num_blocks=8, max_positions=64, device="cpu", dtype=torch.float32
    )  # fmt: skip
    made = steps.make_step(rank, point)
    assert made.tokens.shape[0] == point.prefill_tokens + point.decodes
    tables = made.chunk_tables if point.prefill_tokens else made.decode_tables
    contexts = made.chunk_contexts if point.prefill_tokens else made.decode_contexts
    held = [
        block
        for row, context in zip(tables.tolist(), contexts.tolist(), strict=True)
        for block in row[: -(-context // steps.BLOCK_TOKENS)]
    ]
    assert len(held) == len(set(held)) == point.stored_tokens // steps.BLOCK_TOKENS
    row = steps.row(rank, 1, point, CpuTimer(1), lambda work: float(work.sampled_rows))
    append_rows(tmp_path, "step", [row])
    table = read_table(tmp_path / "step.csv", "step")
    assert table["kind"].tolist() == [point.kind]
    assert table["operators_us"].tolist() == [point.decodes + (point.prefill_tokens > 0)]
    assert table["time_us"][0] > 0


@pytest.mark.kernels
@pytest.mark.usefixtures("kernels")
def test_without_a_gpu_nothing_is_called_a_step(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="no GPU"):
        steps.measure(tmp_path, load_model("llama-3.1-8b"), 1, 1.0)
    with pytest.raises(ProfileError, match="timed on a GPU only"):
        steps.measure(tmp_path, load_model("llama-3.1-8b"), 1, 1.0, device="cpu")
    assert not list(tmp_path.iterdir())


@pytest.mark.kernels
@pytest.mark.usefixtures("kernels")
def test_the_engine_launches_what_a_profile_found_quickest(tmp_path: Path) -> None:
    import torch

    from kernels_profile.engine.configs import Tuned
    from kernels_profile.kernels.linear import choose
    from kernels_profile.profiler.measure import Choices
    from kernels_profile.profiler.points import Point

    key = {"dtype": "bf16", "n": 96, "k": 64, "tokens": 40}
    configs = choose(40, 96, 64)
    times = {str(config): 10.0 - i for i, config in enumerate(configs)}
    Choices(tmp_path / "launch_configs.csv").add(Point("linear", key, 1), configs, times)
    weights = torch.empty(96, 64)
    assert Tuned(tmp_path).linear(40, weights) == configs[-1] != configs[0]
    assert Tuned(tmp_path).linear(40, weights.T) is None  # another shape was not timed
    assert Tuned(None).linear(40, weights) is None
