"""Step times from tables of mixtures and of latent attention, on tables made by a formula."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from kernels_profile.analytic import Analytic
from kernels_profile.graphs import CudaGraphs
from kernels_profile.grouped import GroupedStepTime, busiest_step
from kernels_profile.host import HostOverhead
from kernels_profile.roofline import RooflineStepTime
from kernels_profile.step_time import ProfiledStepTime
from kernels_profile.table import DataSet, Meta, write_meta, write_table
from kernels_profile.usage import Usage
from sim.errors import ConfigError, ProfileError
from sim.experts import ExpertLoad
from sim.model_part import split_layers
from sim.specs import load_device, load_model
from sim.step_time import StepWork

HOST = HostOverhead(1.0)
EAGER = CudaGraphs(())
LITE, H100 = load_model("deepseek-v2-lite"), load_device("h100-sxm")
TOKENS = (1, 8, 64, 512, 4096, 16_384)


def tables(folder: Path, **rows: list[dict[str, Any]]) -> DataSet:
    write_meta(folder, Meta("h100-sxm", "a formula"))
    for operator, points in rows.items():
        write_table(folder, operator, points)
    return DataSet(folder)


def latent_tables(slope_ns: float = 10.0) -> dict[str, list[dict[str, Any]]]:
    """Decode attention of 5 us + `slope_ns` a token of context, chunks by tokens and history."""
    shape = {"kv_dtype": "bf16", "heads": 16, "kv_lora_rank": 512, "rope_dim": 64}
    decode = [
        {**shape, "batch": b, "context": c, "skew": 0, "time_us": 5 + slope_ns * b * c / 1e3}
        for b, c in itertools.product((1, 64), (1, 20_000))
    ]
    prefill = [
        {**shape, "nope_dim": 128, "v_dim": 128, "batch": 1, "tokens": t, "history": h,
         "time_us": 10 + 0.1 * t + 0.01 * h}
        for t, h in itertools.product((1, 20_000), (0, 20_000))
    ]  # fmt: skip
    return {"mla_decode": decode, "mla_prefill": prefill}


def experts_table(experts: int) -> list[dict[str, Any]]:
    """20 us + 3 us for each expert touched + 0.01 us a token."""
    return [
        {"dtype": "bf16", "experts": experts, "top_k": 8, "hidden": 2048, "intermediate": 768,
         "tokens": t, "touched": share * min(experts, 8 * t),
         "time_us": 20 + 3 * share * min(experts, 8 * t) + 0.01 * t}
        for t in (1, 4, 16, 64, 1024, 16_384) for share in (0.0625, 0.25, 1)
    ]  # fmt: skip


def profiled(data: DataSet, model=LITE, **options: Any) -> ProfiledStepTime:
    given: dict[str, Any] = {"missing": "roofline", "cuda_graphs": EAGER, "host": HOST, **options}
    return ProfiledStepTime(model, H100, [data], **given)


@pytest.fixture
def latent(tmp_path: Path) -> ProfiledStepTime:
    return profiled(tables(tmp_path, **latent_tables()))


def decodes(rows: int, mean_context: int) -> StepWork:
    return StepWork((), rows, rows * mean_context)


def test_decodes_attend_to_latents_by_the_table(latent: ProfiledStepTime) -> None:
    one, two = (latent.exact_ns(decodes(64, context)) for context in (1000, 3000))
    assert two - one == pytest.approx(27 * 10 * 64 * 2000)


def test_chunks_add_the_projection_of_their_context(latent: ProfiledStepTime) -> None:
    analytic = Analytic(H100, "bf16", "bf16")
    n, k = 16 * (128 + 128), 512
    one, two = (latent.exact_ns(StepWork([(100, history)])) for history in (1000, 9000))
    projected = [analytic.linear(n, k, 100 + history, "bf16") for history in (1000, 9000)]
    assert two - one == pytest.approx(27e3 * (0.01 * 8000 + projected[1] - projected[0]))


def test_decodes_add_the_projections_that_are_absorbed(latent: ProfiledStepTime) -> None:
    analytic = Analytic(H100, "bf16", "bf16")
    both = StepWork([(1, 0)], 32, 32_000, sampled_rows=1)
    chunk_only = StepWork([(33, 0)])
    absorbed = analytic.linear(16 * 256, 512, 32)
    attention = 5 + 10 * 32 * 1000 / 1e3
    one, many = (analytic.linear(16 * 256, 512, tokens) for tokens in (1, 33))
    more = absorbed + attention - 0.1 * 32 + one - many
    assert latent.exact_ns(both) - latent.exact_ns(chunk_only) == pytest.approx(
        27e3 * more, rel=1e-9
    )


def test_a_run_equals_single_steps_bit_for_bit(latent: ProfiledStepTime) -> None:
    for n in (3, 40):
        run = latent.steps_ns(decodes(17, 999), n, 0)
        assert list(run) == [
            latent.step_ns(StepWork((), 17, 17 * 999 + 17 * k), k) for k in range(n)
        ]


def test_what_is_filled_is_near_the_roofline(tmp_path: Path) -> None:
    """All but latent attention itself is filled here, which the table has at no time."""
    nothing = {name: [{**row, "time_us": 1e-3} for row in rows]
               for name, rows in latent_tables().items()}  # fmt: skip
    filled = profiled(tables(tmp_path, **nothing))
    whole = RooflineStepTime(LITE, H100, host=HOST)
    for work in (decodes(64, 1), decodes(512, 1)):
        less = whole._decode_t0_ns + whole._row_ns * work.attending_rows
        ratio = filled.step_ns(work, 0) / (whole.step_ns(work, 0) - less)
        assert ratio == pytest.approx(1, abs=0.12)


def test_latent_attention_without_a_table_is_named(tmp_path: Path) -> None:
    data = tables(tmp_path, mla_decode=latent_tables()["mla_decode"])
    with pytest.raises(ProfileError, match=r"mla_prefill 16 heads, latents of 512 \+ 64 \(bf16\)"):
        profiled(data, missing="error")
    filled = profiled(data).filled
    assert any(name.startswith("mla_prefill") for name in filled)
    assert not any(name.startswith("mla_decode") for name in filled)


def test_stages_of_a_mixture_add_up_to_the_whole(tmp_path: Path) -> None:
    data = tables(tmp_path, **latent_tables())
    free = HostOverhead(1e-9)
    parts = split_layers(LITE, 3)
    stages = [profiled(data, part=part, host=free) for part in parts]
    whole = profiled(data, host=free)
    for work in (decodes(40, 500), StepWork([(300, 200)], 3, 900)):
        assert sum(stage.exact_ns(work) for stage in stages) == pytest.approx(whole.exact_ns(work))


def test_shared_experts_and_dense_layers_are_linear_layers(latent: ProfiledStepTime) -> None:
    names = [operator.name for operator in latent.composed.operators()]
    assert "linear 21888 x 2048 (bf16)" in names  # gate and up of the dense layer
    assert "linear 5632 x 2048 (bf16)" in names  # and of two shared experts together
    times = {p.operator.name: p.times for p in latent.composed.rows}
    assert times["linear 21888 x 2048 (bf16)"] == 1
    assert times["linear 5632 x 2048 (bf16)"] == 26


QWEN = load_model("qwen3-30b-a3b")


def experts_us(model: ProfiledStepTime, rows: int) -> float:
    (piece,) = (p for p in model.composed.rows if p.operator.name.startswith("moe"))
    return piece.operator.at(*piece.point(rows))[0]


@pytest.mark.parametrize("held", [False, True])
def test_the_busiest_gpu_is_looked_up_in_a_table_of_its_experts_or_of_all(
    tmp_path: Path, held: bool
) -> None:
    data = tables(tmp_path, moe=experts_table(32 if held else 128))
    spread = profiled(data, QWEN, tensor_parallel=4, expert_parallel=4, imbalance=0.5)
    assert ("moe 32 experts, 8 a token, 2048 x 768 (bf16)" in spread.filled) is False
    load = ExpertLoad(QWEN, 4, 0.5)
    for rows in (16, 256):
        tokens = load.pairs_on_busiest(rows) / 8
        expected = 20 + 3 * load.touched_on_busiest(rows) + 0.01 * tokens
        assert experts_us(spread, rows) == pytest.approx(expected, rel=0.02)


def test_one_gpu_of_experts_and_even_is_as_without(tmp_path: Path) -> None:
    data = tables(tmp_path, moe=experts_table(128))
    plain = profiled(data, QWEN)
    said = profiled(data, QWEN, expert_parallel=1, imbalance=0.0)
    for work in (decodes(7, 100), StepWork([(500, 0)])):
        assert plain.step_ns(work, 0) == said.step_ns(work, 0)


def test_an_uneven_router_touches_fewer_experts(tmp_path: Path) -> None:
    data = tables(tmp_path, moe=experts_table(128))
    even, uneven = (profiled(data, QWEN, imbalance=zipf) for zipf in (0.0, 1.0))
    assert experts_us(uneven, 16) < experts_us(even, 16)


def test_experts_that_do_not_come_out_even_are_refused(tmp_path: Path) -> None:
    data = tables(tmp_path, moe=experts_table(128))
    with pytest.raises(ConfigError, match="expert_parallel: 3 does not divide"):
        profiled(data, QWEN, tensor_parallel=4, expert_parallel=3)


# --- groups of GPUs that attend apart


def exchange_table(gpus: int = 4) -> list[dict[str, Any]]:
    """30 us + 1 us for each 10 kB that a GPU holds."""
    return [
        {"op": "all_to_all", "backend": "nccl", "gpus": gpus, "bytes": b, "time_us": 30 + b / 1e4}
        for b in (1e3, 1e6, 1e9)
    ]


def apart(data: DataSet, groups: int = 4, **options: Any) -> ProfiledStepTime:
    given: dict[str, Any] = {"missing": "roofline", "cuda_graphs": EAGER, "host": HOST, **options}
    return GroupedStepTime(
        QWEN, H100, [data], tensor_parallel=4, expert_parallel=4,
        data_parallel_attention=groups, **given,
    )  # fmt: skip


@pytest.fixture
def grouped(tmp_path: Path) -> ProfiledStepTime:
    return apart(tables(tmp_path, moe=experts_table(128), collective=exchange_table()))


def test_the_busiest_group_has_the_longest_chunk_and_an_equal_share_of_decodes() -> None:
    work = StepWork([(50, 0), (300, 40), (60, 7), (70, 1)], 9, 9000, context_spread=81 * 400)
    part = busiest_step(work, 2)
    assert list(part.chunks) == [(300, 40)]
    assert (part.prefill_tokens, part.decode_rows, part.attending_rows) == (300, 5, 5)
    assert (part.context_tokens, part.context_spread, part.all_rows) == (5000, 25 * 400, 489)
    assert part.sampled_rows == 7
    even = busiest_step(StepWork([(50, 0), (40, 0), (30, 0), (20, 0)]), 2)
    assert sum(tokens for tokens, _ in even.chunks) == 70


def test_groups_add_experts_of_all_rows_and_two_exchanges(
    grouped: ProfiledStepTime, tmp_path: Path
) -> None:
    alone = profiled(tables(tmp_path, moe=experts_table(128)), QWEN)
    work, part = decodes(64, 500), decodes(16, 500)
    load = ExpertLoad(QWEN, 4)
    tokens = load.pairs_on_busiest(64) / 8
    experts = 20 + 3 * load.touched_on_busiest(64) + 0.01 * tokens
    message = 2 * 2048 * tokens * 4 / 4 * load.gpus_of_a_token()
    exchanged = 2 * (30 + message / 1e4)
    without = alone.exact_ns(part) - 48e3 * experts_us(alone, 16)
    assert grouped.exact_ns(work) == pytest.approx(
        without + 48e3 * (experts + exchanged), rel=0.002
    )


def test_a_run_of_groups_equals_single_steps_bit_for_bit(grouped: ProfiledStepTime) -> None:
    for rows, n in ((17, 3), (18, 40), (1, 20)):
        run = grouped.steps_ns(decodes(rows, 999), n, 0)
        assert list(run) == [
            grouped.step_ns(StepWork((), rows, rows * (999 + k)), k) for k in range(n)
        ]


def test_a_whole_prompt_is_on_one_group(grouped: ProfiledStepTime) -> None:
    one, four = (grouped.exact_ns(StepWork(chunks)) for chunks in ([(4096, 0)], [(1024, 0)] * 4))
    assert one > 1.5 * four


def test_an_exchange_without_a_table_is_named(tmp_path: Path) -> None:
    data = tables(tmp_path, moe=experts_table(128))
    assert "collective all_to_all of 4 GPUs" in apart(data).filled
    with pytest.raises(ProfileError, match="collective all_to_all of 4 GPUs"):
        apart(data, missing="error")


def test_what_is_filled_is_the_whole_step_but_the_host_where_there_is_one_small_table(
    tmp_path: Path,
) -> None:
    """An exchange that is filled counts as long as it takes."""
    collective = exchange_table(2)  # of no use to four GPUs
    model = apart(tables(tmp_path, collective=collective))
    usage, work = Usage(), decodes(64, 500)
    ns = model.exact_ns(work)
    model.count(usage, work, 0, [round(ns)])
    assert usage.filled_ns == pytest.approx(ns - HOST.step_us * 1e3, rel=1e-6)


def test_steps_outside_of_the_grid_are_counted_for_experts_of_all_rows(
    grouped: ProfiledStepTime,
) -> None:
    usage = Usage()
    inside, beyond = StepWork([(1000, 0)] * 4), StepWork([(8000, 0)] * 12)
    grouped.count(usage, inside, 0, [10])
    grouped.count(usage, beyond, 10, [20])
    assert (usage.steps, usage.outside_steps) == (2, 1)
    assert [name for name, _ in usage.causes] == ["moe 32 experts, 8 a token, 2048 x 768 (bf16)"]
    strict = apart(grouped.data[0], outside="error")
    with pytest.raises(ProfileError, match="is outside of the measured grid"):
        strict.step_ns(beyond, 0)


def test_tables_and_roofline_agree_on_groups_where_all_is_filled(tmp_path: Path) -> None:
    """All operators but one are filled, so that both sum the same curves."""
    data = tables(tmp_path, collective=exchange_table(8))
    filled = apart(data)
    whole = RooflineStepTime(
        QWEN, H100, tensor_parallel=4, host=HOST, expert_parallel=4, data_parallel_attention=4
    )
    for work in (decodes(256, 2000), StepWork([(2000, 0)] * 4)):
        assert filled.step_ns(work, 0) == pytest.approx(whole.step_ns(work, 0), rel=0.06)
