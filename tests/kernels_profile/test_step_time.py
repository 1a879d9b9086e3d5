"""`ProfiledStepTime`: sums measured operators, and says what it does beyond them."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels_profile.analytic import Analytic
from kernels_profile.graphs import GRAPHS, CudaGraphs, graphs_of
from kernels_profile.host import HostOverhead
from kernels_profile.links import Collectives
from kernels_profile.step_time import ProfiledStepTime
from kernels_profile.usage import Cause, Usage
from sim.errors import ConfigError, ProfileError
from sim.model_part import split_layers
from sim.specs import load_device
from sim.step_time import StepTimeModel, StepWork, bound
from tests.kernels_profile import made_up
from tests.kernels_profile.made_up import (
    CONTEXTS,
    MODEL,
    collective_us,
    decode_us,
    elementwise_us,
    layer_sum,
    linear_us,
    mixed_us,
    model_of,
    prefill_us,
    tables,
    without,
)

EAGER = GRAPHS["none"]


def rows_us(tp: int, rows: int) -> float:
    """All that depends on the rows of a step, by hand."""
    heads, kv_heads = 8 // tp, 4 // tp
    layer = layer_sum(tp, lambda n, k: linear_us(n, k, rows))
    layer += 2 * elementwise_us(64, rows) + elementwise_us((heads + 2 * kv_heads) * 16, rows)
    layer += elementwise_us(96 // tp, rows)
    once = 2 * elementwise_us(64, rows)  # embedding and last norm
    if tp == 1:
        return 3 * layer + once
    return 3 * layer + once + 7 * collective_us(tp, 2 * 64 * rows)


def head_us(tp: int, sampled: int) -> float:
    us = 2 * elementwise_us(512 // tp, sampled)
    return us if tp == 1 else us + collective_us(tp, 2 * 512 * sampled)


def ns(us: float) -> int:
    return round(us * 1e3)


class TestComposition:
    @pytest.mark.parametrize("tp", [1, 2])
    def test_a_decode_step_is_the_sum_of_its_operators(self, tmp_path: Path, tp: int) -> None:
        model = model_of(tmp_path, tensor_parallel=tp, cuda_graphs=EAGER)
        us = rows_us(tp, 16) + head_us(tp, 16) + 3 * decode_us(4 // tp, 16, 512, 0) + 10 + 2 * 16
        assert model.step_ns(StepWork((), 16, 16 * 512), 0) == pytest.approx(ns(us), abs=1)

    @pytest.mark.parametrize("tp", [1, 2])
    def test_a_prefill_step_samples_one_token_for_each_chunk(self, tmp_path: Path, tp: int) -> None:
        model = model_of(tmp_path, tensor_parallel=tp, cuda_graphs=EAGER)
        us = rows_us(tp, 64) + head_us(tp, 1) + 3 * prefill_us(8 // tp, 1, 64, 512) + 10 + 2
        assert model.step_ns(StepWork([(64, 512)]), 0) == pytest.approx(ns(us), abs=1)

    def test_chunks_and_decodes_launch_apart_without_a_table_of_both(self, tmp_path: Path) -> None:
        model = model_of(tmp_path, cuda_graphs=EAGER)
        attention = prefill_us(8, 1, 48, 0) + decode_us(4, 16, 64, 0)
        us = rows_us(1, 64) + head_us(1, 17) + 10 + 2 * 17
        work = StepWork([(48, 0)], 16, 16 * 64)
        found = model.step_ns(work, 0)
        # 48 tokens lie between 8 and 64, where the prefill table is a straight line.
        between = prefill_us(8, 1, 8, 0) + (40 / 56) * (
            prefill_us(8, 1, 64, 0) - prefill_us(8, 1, 8, 0)
        )
        attention += between - prefill_us(8, 1, 48, 0)
        assert found == pytest.approx(ns(us + 3 * attention), abs=1)

    def test_they_are_one_launch_where_that_was_measured(self, tmp_path: Path) -> None:
        model = model_of(tmp_path, tables(mixed=True), cuda_graphs=EAGER)
        us = rows_us(1, 64 + 64) + head_us(1, 65) + 3 * mixed_us(8, 64, 64, 64, 512) + 10 + 2 * 65
        us_of_rows = rows_us(1, 64) + (64 / 192) * (rows_us(1, 256) - rows_us(1, 64))
        us += us_of_rows - rows_us(1, 128)
        assert model.step_ns(StepWork([(64, 64)], 64, 64 * 512), 0) == pytest.approx(ns(us), abs=2)

    def test_several_equal_chunks_are_one_launch_of_as_many(self, tmp_path: Path) -> None:
        model = model_of(tmp_path, cuda_graphs=EAGER)
        us = rows_us(1, 256) + head_us(1, 4) + 3 * prefill_us(8, 4, 64, 64) + 10 + 2 * 4
        assert model.step_ns(StepWork([(64, 64)] * 4), 0) == pytest.approx(ns(us), abs=1)

    def test_unlike_chunks_keep_their_tokens_and_pairs(self, tmp_path: Path) -> None:
        """The made-up table is linear in the pairs, so that the equal chunks take as long."""
        model = model_of(tmp_path, cuda_graphs=EAGER)
        alike, unlike = StepWork([(64, 64)] * 4), StepWork([(64, 64), (64, 128), (64, 0), (64, 64)])
        assert alike.prefill_pairs_x2 == unlike.prefill_pairs_x2
        assert model.step_ns(alike, 0) == model.step_ns(unlike, 0)

    def test_a_further_chunk_adds_its_time_where_single_ones_were_measured(
        self, tmp_path: Path
    ) -> None:
        one_only = tables()
        one_only["attention_prefill"] = [
            row for row in one_only["attention_prefill"] if row["batch"] == 1
        ]
        model = model_of(tmp_path, one_only, cuda_graphs=EAGER)
        single, launch = prefill_us(8, 1, 64, 64), prefill_us(8, 1, 1, 0)
        us = rows_us(1, 256) + head_us(1, 4) + 3 * (single + 3 * (single - launch)) + 10 + 2 * 4
        assert model.step_ns(StepWork([(64, 64)] * 4), 0) == pytest.approx(ns(us), abs=1)

    def test_stages_of_a_pipeline_add_up_to_the_whole(self, tmp_path: Path) -> None:
        sets = model_of(tmp_path).data
        whole = ProfiledStepTime(MODEL, made_up.DEVICE, sets, host=made_up.HOST)
        stages = [
            ProfiledStepTime(MODEL, made_up.DEVICE, sets, host=made_up.HOST, part=part)
            for part in split_layers(MODEL, 2)
        ]
        for work in (StepWork((), 5, 800), StepWork([(30, 7)], 3, 100)):
            total = sum(stage.exact_ns(work) for stage in stages)
            assert total == pytest.approx(whole.exact_ns(work))

    def test_logits_of_an_unmeasured_head_come_from_a_linear_layer_of_its_shape(
        self, tmp_path: Path
    ) -> None:
        made = without(tables((1,)), "per_sequence", op="lm_head")
        made["linear"] += [
            {"dtype": "bf16", "n": 512, "k": 64, "tokens": t, "time_us": 100.0 + t}
            for t in made_up.TOKENS
        ]
        with_head = model_of(tmp_path, made)
        assert with_head.composed.sampled[0].operator.at(8) == (108.0, [])


WORKS = st.builds(
    lambda rows, context, spread: StepWork(
        (), rows, rows * context + rows // 2, context_spread=spread
    ),
    st.integers(1, 80),
    st.integers(1, 2500),
    st.sampled_from([0, 1, 17_000, 900_000_000]),
)
OPTIONS: list[dict[str, Any]] = [
    {},
    {"outside": "clamp"},
    {"outside": "roofline-scaled", "cuda_graphs": EAGER, "tensor_parallel": 2},
    {"host": HostOverhead(400.0, 3.0, form="max")},
    {"host": HostOverhead(400.0, form="constant"), "cuda_graphs": graphs_of([3, 50])},
    {"host": HostOverhead(40.0, 3.0, eager_layer_us=300.0), "cuda_graphs": graphs_of([16])},
    {"noise_cv": 0.1},
    {"noise_cv": 0.1, "host": HostOverhead(90.0, 3.0, form="max")},
]


def few_skews() -> dict[str, list[dict[str, Any]]]:
    """Unequal contexts of 4 and 64 decodes of 64 and 512 tokens only, as a profiler has them."""
    made = tables(skews=(0.0, 0.5, 1.0))
    made["attention_decode"] = [
        row
        for row in made["attention_decode"]
        if not row["skew"] or (row["batch"] in (4, 64) and row["context"] in (64, 512))
    ]
    return made


TABLES = {
    "equal contexts": tables(),
    "few skews": few_skews(),
    "skews": tables(skews=(0.0, 0.5, 1.0)),
    "staircase": without(
        without(tables(), "attention_decode", batch=64, context=2048),
        "attention_decode", batch=16, context=2048,
    ),
    "one launch": tables(mixed=True),
    "filled": without(tables(), "attention_decode", kv_dtype="bf16"),
}  # fmt: skip


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> list[StepTimeModel]:
    """All options on all tables, as one replica has them."""
    models = []
    for i, (made, options) in enumerate(itertools.product(TABLES.values(), OPTIONS)):
        folder = tmp_path_factory.mktemp(f"set{i}")
        models.append(bound(model_of(folder, made, missing="roofline", **options), 7, i))
    return models


class TestContract:
    @settings(max_examples=120, deadline=None)
    @given(work=WORKS, n=st.integers(1, 70), first=st.integers(0, 3000), which=st.integers(0))
    def test_a_run_is_its_single_steps_bit_for_bit(
        self, every: list[StepTimeModel], work: StepWork, n: int, first: int, which: int
    ) -> None:
        model = every[which % len(every)]
        run = list(model.steps_ns(work, n, first))
        singles = []
        for i in range(n):
            step = StepWork(
                (), work.decode_rows, work.context_tokens + i * work.attending_rows,
                context_spread=work.context_spread,
            )  # fmt: skip
            singles.append(model.step_ns(step, first + i))
        assert [int(each) for each in run] == singles
        assert all(isinstance(each, int) and each >= 1 for each in singles)

    @settings(max_examples=60, deadline=None)
    @given(work=WORKS, more=st.integers(0, 900), which=st.integers(0))
    def test_longer_contexts_take_no_less(
        self, every: list[StepTimeModel], work: StepWork, more: int, which: int
    ) -> None:
        noisy = [i for i, options in enumerate(OPTIONS) if "noise_cv" in options]
        calm = [m for i, m in enumerate(every) if i % len(OPTIONS) not in noisy]
        model = calm[which % len(calm)]
        longer = StepWork((), work.decode_rows, work.context_tokens + more * work.decode_rows)
        equal = StepWork((), work.decode_rows, work.context_tokens)
        assert model.step_ns(longer, 0) >= model.step_ns(equal, 0)

    def test_a_run_with_prefill_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="no prefill"):
            model_of(tmp_path).steps_ns(StepWork([(3, 0)], 2, 8), 2, 0)


class TestUnequalContexts:
    def test_measured_skews_are_met_exactly(self, tmp_path: Path) -> None:
        model = model_of(tmp_path, TABLES["skews"], cuda_graphs=EAGER)
        mean, rows = 512, 16
        equal = model.exact_ns(StepWork((), rows, rows * mean))
        for skew in (0.5, 1.0):
            spread = round((skew * mean * rows) ** 2)
            found = model.exact_ns(StepWork((), rows, rows * mean, context_spread=spread))
            more = 3 * (decode_us(4, rows, mean, skew) - decode_us(4, rows, mean, 0))
            assert found - equal == pytest.approx(more * 1e3)

    @pytest.mark.parametrize(("mean", "nearest"), [(512, 512), (64, 64), (2048, 512), (8, 64)])
    def test_between_batches_with_skews_their_ratios_to_equal_ones_are_taken(
        self, tmp_path: Path, mean: int, nearest: int
    ) -> None:
        """16 decodes were measured with equal contexts only: no reason to take them as equal."""
        model = model_of(tmp_path, few_skews(), cuda_graphs=EAGER)
        rows, skew = 16, 0.5
        few, many = (
            decode_us(4, batch, nearest, skew) / decode_us(4, batch, nearest, 0)
            for batch in (4, 64)
        )
        ratio = few + (many - few) * (rows - 4) / (64 - 4)
        us = np.interp(mean, CONTEXTS, [decode_us(4, rows, c, 0) for c in CONTEXTS])
        work = StepWork((), rows, rows * mean, context_spread=round((skew * mean * rows) ** 2))
        more = model.exact_ns(work) - model.exact_ns(StepWork((), rows, rows * mean))
        assert more == pytest.approx(3e3 * us * (ratio - 1))

    def test_what_was_not_measured_of_them_is_counted(self, tmp_path: Path) -> None:
        model = model_of(tmp_path, few_skews(), cuda_graphs=EAGER)

        def counted(rows: int, mean: int, skew: float) -> dict[tuple[str, str], Cause]:
            usage = Usage()
            spread = round((skew * mean * rows) ** 2)
            work = StepWork((), rows, rows * mean, context_spread=spread)
            assert bool(model.count(usage, work, 0, [9])) == (usage.outside_steps == 1)
            return usage.causes

        assert not counted(16, 2000, 0.9)
        assert not counted(16, 2000, 0)
        assert not counted(2, 100, 0.9)  # to second order, of equal contexts that were measured
        ((name, axis),) = counted(16, 512, 1.5)
        assert (name.partition(" ")[0], axis) == ("attention_decode", "skew")

    def test_equal_contexts_are_beyond_a_table_of_unequal_ones(self, tmp_path: Path) -> None:
        model = model_of(tmp_path, tables(skews=(0.5, 1.0)), cuda_graphs=EAGER)
        usage = Usage()
        model.count(usage, StepWork((), 16, 16 * 512), 0, [9])
        ((_, axis),) = usage.causes
        assert axis == "skew"

    @settings(max_examples=60, deadline=None)
    @given(work=WORKS)
    def test_they_never_take_less_than_equal_ones(
        self, every: list[StepTimeModel], work: StepWork
    ) -> None:
        equal = StepWork((), work.decode_rows, work.context_tokens)
        assert every[0].step_ns(work, 0) >= every[0].step_ns(equal, 0)

    def test_a_curve_that_bends_upwards_is_taken_at_both_sides_of_its_bend(
        self, tmp_path: Path
    ) -> None:
        made = tables((1,))
        for row in made["attention_decode"]:
            row["time_us"] = 10 + max(0, row["context"] - 512) / 100
        model = model_of(tmp_path, made)
        rows, mean, deviation = 4, 512, 100
        spread = (rows * deviation) ** 2
        found = model.exact_ns(StepWork((), rows, rows * mean, context_spread=spread))
        equal = model.exact_ns(StepWork((), rows, rows * mean))
        assert found - equal == pytest.approx(3 * 1e3 * (deviation / 100) / 2)


class TestSustainedClock:
    def test_it_stretches_what_computes_and_not_what_reads_weights(self, tmp_path: Path) -> None:
        full, less = (
            model_of(tmp_path / str(clock), sustained_clock=clock, cuda_graphs=EAGER)
            for clock in (1.0, 0.8)
        )
        decode, prefill = StepWork((), 16, 16 * 64), StepWork([(1024, 0)])
        assert less.exact_ns(decode) == full.exact_ns(decode)
        # The made-up layers are too narrow to be bound by computing.
        assert less.exact_ns(prefill) == full.exact_ns(prefill)
        share = Analytic(load_device("h200"), "bf16", "bf16").compute_share
        assert share(8192, 8192, 16) == 0
        assert share(8192, 8192, 16_384) == pytest.approx(1, abs=0.1)

    def test_a_16_bit_product_of_an_8_bit_model_is_judged_by_its_own_rate(self) -> None:
        eight = Analytic(load_device("h200"), "fp8", "bf16").compute_share
        sixteen = Analytic(load_device("h200"), "bf16", "bf16").compute_share
        assert eight(8192, 8192, 800, "bf16") == sixteen(8192, 8192, 800)
        assert eight(8192, 8192, 800, "bf16") != eight(8192, 8192, 800)

    def test_a_whole_layer_is_stretched_by_its_share(self, tmp_path: Path) -> None:
        wide = replace(MODEL, hidden=4096, heads=32, kv_heads=8, head_dim=128, intermediate=16384)
        options: dict[str, Any] = {"model": wide, "missing": "roofline", "cuda_graphs": EAGER}
        full, less = (
            model_of(tmp_path / str(clock), sustained_clock=clock, **options)
            for clock in (1.0, 0.8)
        )
        prefill = StepWork([(8192, 0)])
        ratio = less.by_rows(prefill).ns / full.by_rows(prefill).ns
        assert 1.1 < ratio < 1 / 0.8


class TestGraphs:
    def test_a_decode_batch_is_padded_up_to_the_next_captured_size(self, tmp_path: Path) -> None:
        model = model_of(tmp_path, cuda_graphs=GRAPHS["vllm-v0"])
        us = rows_us(1, 8) + head_us(1, 5) + 10 + 2 * 5
        between = decode_us(4, 4, 64, 0) + (decode_us(4, 16, 64, 0) - decode_us(4, 4, 64, 0)) / 12
        found = model.step_ns(StepWork((), 5, 5 * 64), 0)
        assert found == pytest.approx(ns(us + 3 * between), abs=2)

    def test_sizes_are_those_of_the_engines(self) -> None:
        v1, v0 = GRAPHS["vllm"], GRAPHS["vllm-v0"]
        assert [v1.padded(n, prefill=True) for n in (1, 3, 5, 250, 257, 512, 513)] == [
            1, 4, 8, 256, 272, 512, 513,
        ]  # fmt: skip
        assert [v0.padded(n, prefill=False) for n in (3, 255, 257)] == [4, 256, 257]
        assert v0.padded(3, prefill=True) == 3
        assert EAGER.padded(3, prefill=False) == 3

    def test_sizes_that_do_not_ascend_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="expected ascending sizes"):
            CudaGraphs((8, 4))


class TestHost:
    def test_the_longer_of_gpu_and_host(self, tmp_path: Path) -> None:
        model = model_of(tmp_path, host=HostOverhead(5000.0, 10.0, form="max"))
        assert model.step_ns(StepWork((), 4, 40), 0) == 5_040_000
        long = StepWork((), 64, 64 * 2048)
        quick = model_of(tmp_path, host=HostOverhead(1.0, form="max"))
        assert model.step_ns(long, 0) == max(quick.step_ns(long, 0), 5_640_000)

    def test_a_constant(self, tmp_path: Path) -> None:
        few, many = StepWork((), 4, 40), StepWork((), 64, 640)
        slow = model_of(tmp_path, host=HostOverhead(500.0, form="constant"))
        quick = model_of(tmp_path, host=HostOverhead(100.0, form="constant"))
        for work in (few, many):
            assert slow.step_ns(work, 0) - quick.step_ns(work, 0) == pytest.approx(400_000, abs=1)

    def test_a_constant_does_not_grow_with_the_batch(self) -> None:
        with pytest.raises(ConfigError, match="does not grow with the batch"):
            HostOverhead(500.0, 1.0, form="constant")


class TestCollectives:
    def test_latency_and_bandwidth_stand_for_a_table(self, tmp_path: Path) -> None:
        made = {name: rows for name, rows in tables().items() if name != "collective"}
        link = Collectives(latency_us=7.0, bandwidth_bytes_per_s=1e9)
        model = model_of(tmp_path, made, tensor_parallel=2, collectives=link, cuda_graphs=EAGER)
        measured = model_of(tmp_path / "measured", tensor_parallel=2, cuda_graphs=EAGER)
        work = StepWork((), 8, 80)
        # A ring of two sends half of the bytes twice to reduce, and once to gather.
        modelled = 7 * (7 + 128 * 8 / 1e9 * 1e6) + 7 + 1024 * 8 / 2 / 1e9 * 1e6
        by_table = 7 * collective_us(2, 128 * 8) + collective_us(2, 1024 * 8)
        more = model.exact_ns(work) - measured.exact_ns(work)
        assert more == pytest.approx((modelled - by_table) * 1e3)
        assert not model.filled

    def test_a_backend_that_was_not_measured_is_said_with_those_that_were(
        self, tmp_path: Path
    ) -> None:
        with pytest.raises(ProfileError, match=r"all_reduce of 2 GPUs \(ncl, but custom\)"):
            model_of(tmp_path, tensor_parallel=2, collectives=Collectives("ncl"))

    def test_a_backend_may_be_chosen(self, tmp_path: Path) -> None:
        made = tables()
        made["collective"] += [{**row, "backend": "nccl", "time_us": 99} for row in
                               made["collective"]]  # fmt: skip
        custom = model_of(tmp_path, made, tensor_parallel=2)
        nccl = model_of(tmp_path, made, tensor_parallel=2, collectives=Collectives("nccl"))
        assert "custom" in custom.composed.rows[-1].operator.name
        assert nccl.composed.rows[-1].operator.at(256) == (99, [])


class TestMissing:
    def test_all_that_is_missing_is_one_error_with_table_device_and_gpus(
        self, tmp_path: Path
    ) -> None:
        made = without(tables(), "elementwise", op="rms_norm")
        del made["collective"]
        with pytest.raises(ProfileError) as error:
            model_of(tmp_path, made, tensor_parallel=2)
        said = str(error.value)
        for part in (
            "h200 (tensor_parallel 2)", "elementwise rms_norm of width 64",
            "collective all_reduce of 2 GPUs", "collective all_gather of 2 GPUs",
            str(tmp_path), "missing: roofline",
        ):  # fmt: skip
            assert part in said

    def test_it_may_be_filled_and_is_then_counted(self, tmp_path: Path) -> None:
        made = without(tables(), "elementwise", op="rms_norm")
        model = model_of(tmp_path, made, missing="roofline")
        assert "filled from roofline: elementwise rms_norm of width 64" in model.describe().origin
        replica = model.for_replica(0, 0, 0)
        replica.note(StepWork((), 4, 256), 0, 0, [1_000_000])
        assert replica.usage()["filled_ns"] > 0
        assert replica.usage()["outside_steps"] == 0

    def test_a_layer_unlike_the_measured_ones_is_missing_and_not_guessed(
        self, tmp_path: Path
    ) -> None:
        made = without(tables((1,)), "linear", n=192, k=64)
        with pytest.raises(ProfileError, match="linear 192 x 64"):
            model_of(tmp_path, made)

    def test_between_measured_shapes_a_layer_is_interpolated_and_named(
        self, tmp_path: Path
    ) -> None:
        made = without(tables((1,)), "linear", n=192, k=64)
        made["linear"] += [
            {"dtype": "bf16", "n": n, "k": 64, "tokens": t, "time_us": linear_us(n, 64, t)}
            for n, t in itertools.product((160, 224), made_up.TOKENS)
        ]
        model, exact = model_of(tmp_path / "a", made), model_of(tmp_path / "b")
        work = StepWork((), 8, 800)
        assert model.exact_ns(work) == pytest.approx(exact.exact_ns(work))
        assert "192 x 64 (bf16) from the measured 160 x 64, 224 x 64" in model.describe().origin

    def test_a_width_beyond_the_measured_ones_is_not_called_interpolated(
        self, tmp_path: Path
    ) -> None:
        made = tables((1,))
        for row in made["elementwise"]:
            row["width"] += 8 if row["op"] == "silu_mul" else 0
        origin = model_of(tmp_path, made).describe().origin
        said = (
            "of a shape beyond the measured ones: elementwise silu_mul of width 96 from the measu"
        )
        assert said in origin
        assert "interpolated: " not in origin

    def test_strict_says_what_would_fill_a_gap(self, tmp_path: Path) -> None:
        made = without(tables(), "elementwise", op="rms_norm")
        with pytest.raises(ProfileError, match=r"import them, or leave out strict$"):
            model_of(tmp_path / "a", made, strict=True, missing="roofline")
        with pytest.raises(ProfileError, match=r"leave out strict, and give missing: roofline$"):
            model_of(tmp_path / "b", made, strict=True)
        with pytest.raises(ProfileError, match=r"import them, or give missing: roofline$"):
            model_of(tmp_path / "c", made)


class TestFewerHeads:
    def test_heads_that_were_not_measured_are_more_sequences_of_fewer(self, tmp_path: Path) -> None:
        """Half the heads were measured (the shard of two GPUs); the made-up kernel is exact."""
        made = tables()
        for name in ("attention_prefill", "attention_decode"):
            made[name] = [row for row in made[name] if row["heads"] == 4]
        model, exact = model_of(tmp_path / "a", made), model_of(tmp_path / "b")
        for rows, context in ((8, 512), (32, 64), (5, 300)):
            decodes = StepWork((), rows, rows * context)
            assert model.exact_ns(decodes) == pytest.approx(exact.exact_ns(decodes))
        said = "from 1/2 of the heads, 2 x the sequences"
        assert said in model.describe().origin
        assert not model.filled

    def test_another_number_of_heads_a_group_is_missing(self, tmp_path: Path) -> None:
        made = tables()
        made["attention_decode"] = [
            row | {"kv_heads": 1} for row in made["attention_decode"] if row["heads"] == 8
        ]
        with pytest.raises(ProfileError, match="attention_decode 8 heads, 4 KV heads of 16"):
            model_of(tmp_path, made)


class TestOutside:
    LONG = StepWork((), 16, 16 * 5000)

    def test_scaled_by_the_roofline(self, tmp_path: Path) -> None:
        model = model_of(tmp_path, cuda_graphs=EAGER)
        edge, far = (model.composed.analytic.decode(4, 16, 16, c) for c in (2048, 5000))
        less = model.exact_ns(StepWork((), 16, 16 * 2048))
        more = model.exact_ns(self.LONG)
        assert more - less == pytest.approx(3e3 * decode_us(4, 16, 2048, 0) * (far / edge - 1))

    def test_clamped(self, tmp_path: Path) -> None:
        model = model_of(tmp_path, outside="clamp")
        assert model.step_ns(self.LONG, 0) == model.step_ns(StepWork((), 16, 16 * 2048), 0)

    @pytest.mark.parametrize("options", [{"outside": "error"}, {"strict": True}])
    def test_refused(self, tmp_path: Path, options: dict[str, Any]) -> None:
        model = model_of(tmp_path, **options)
        said = "attention_decode 8 heads.*context 5,0.. is outside of the measured grid, which ends"
        with pytest.raises(ProfileError, match=said):
            model.step_ns(self.LONG, 0)
        with pytest.raises(ProfileError, match=said):
            model.steps_ns(StepWork((), 16, 16 * 2040), 3000, 0)
        replica = model.for_replica(0, 0, 0)
        ends = list(replica.steps_ns(StepWork((), 16, 16 * 2040), 3000, 0))
        replica.note(StepWork((), 16, 16 * 2040), 0, 0, np.cumsum(ends[:9]).tolist())
        with pytest.raises(ProfileError, match="outside of the measured grid"):
            replica.note(StepWork((), 16, 16 * 2040), 0, 0, np.cumsum(ends[:10]).tolist())

    def test_each_use_is_counted_in_the_steps_that_took_place(self, tmp_path: Path) -> None:
        replica = model_of(tmp_path).for_replica(0, 0, 0)
        replica.note(StepWork((), 16, 16 * 2040), 0, 100, list(range(1100, 21_100, 1000)))
        usage = replica.usage()
        assert (usage["steps"], usage["ns"]) == (20, 20_000)
        assert (usage["outside_steps"], usage["outside_ns"]) == (11, 11_000)
        (cause,) = usage["causes"]
        assert (cause["axis"], cause["steps"], cause["edge"]) == ("context", 11, 2048)
        assert cause["value"] == 2059

    def test_a_chunk_behind_an_unmeasured_history_is_derived_and_counted(
        self, tmp_path: Path
    ) -> None:
        model = model_of(tmp_path, tables(histories=(0,)), cuda_graphs=EAGER)
        replica = model.for_replica(0, 0, 0)
        replica.note(StepWork([(64, 100)]), 0, 0, [1000])
        (cause,) = replica.usage()["causes"]
        assert (cause["axis"], cause["value"]) == ("history", 100)
        # As many pairs as a whole prompt of 128 tokens has: not more than its time by far.
        chunk = model.exact_ns(StepWork([(64, 97)]))
        whole = model.exact_ns(StepWork([(64, 0)]))
        assert whole < chunk < whole + 3e3 * prefill_us(8, 1, 256, 0)


class TestWhatIsSaid:
    def test_a_lower_clock_is_said(self, tmp_path: Path) -> None:
        said = "matrix products at 0.5 of the clock of the tables (sustained_clock)"
        assert said in model_of(tmp_path, sustained_clock=0.5).describe().origin
        assert "sustained_clock" not in model_of(tmp_path).describe().origin

    @pytest.mark.parametrize(
        ("graphs", "eager_layer_us", "said"),
        [
            ("none", 0.0, "all steps run without a graph, whose launch cost this host does not"),
            ("vllm-v0", 0.0, "steps with prefills run without a graph, whose launch cost"),
            ("vllm", 0.0, ""),
            ("none", 400.0, ""),
        ],
    )
    def test_launches_that_cost_nothing_are_said(
        self, tmp_path: Path, graphs: str, eager_layer_us: float, said: str
    ) -> None:
        host = HostOverhead(10.0, eager_layer_us=eager_layer_us)
        origin = model_of(tmp_path, host=host, cuda_graphs=GRAPHS[graphs]).describe().origin
        assert (said in origin) if said else ("launch cost" not in origin)


class TestNoise:
    def test_it_is_off_and_says_so_where_the_tables_have_no_repeats(self, tmp_path: Path) -> None:
        model = model_of(tmp_path)
        assert model.noise_cv == 0
        assert "noise: off, the tables have no repeats" in model.describe().origin

    def test_it_is_that_of_the_tables_where_they_have_some(self, tmp_path: Path) -> None:
        model = model_of(tmp_path, tables(cv=0.03))
        assert model.noise_cv == 0.03
        assert "3.00% (median over the tables' repeats)" in model.describe().origin

    def test_factors_have_mean_one_and_the_variation_that_was_asked_for(
        self, tmp_path: Path
    ) -> None:
        model = model_of(tmp_path, noise_cv=0.2)
        work = StepWork((), 4, 256)
        noisy = model.for_replica(1, 0, 0)
        steps = np.array([noisy.step_ns(work, i) for i in range(20_000)])
        plain = model.step_ns(work, 0)
        assert steps.mean() / plain == pytest.approx(1, abs=0.01)
        assert steps.std() / plain == pytest.approx(0.2, abs=0.01)

    def test_it_is_keyed_by_seed_replication_replica_and_iteration(self, tmp_path: Path) -> None:
        model = model_of(tmp_path, noise_cv=0.2)
        work = StepWork((), 4, 256)

        def lengths(*key: int) -> list[int]:
            replica = model.for_replica(*key)
            return [replica.step_ns(work, i) for i in (3, 2000, 5, 3)]

        first = lengths(1, 0, 0)
        assert first == lengths(1, 0, 0)
        assert first[0] == first[3] != first[2]
        assert all(lengths(*key) != first for key in ((2, 0, 0), (1, 1, 0), (1, 0, 1)))


class TestStatedError:
    def test_the_sum_of_operators_is_held_against_whole_steps_where_there_are_some(
        self, tmp_path: Path
    ) -> None:
        step = {"model": "small", "tp": 1, "kind": "decode", "prefill_tokens": 0, "history": 0}
        steps = [
            {**step, "decodes": n, "context": 64, "time_us": 100.0, "operators_us": us}
            for n, us in ((1, 90.0), (2, 95.0), (4, 110.0))
        ]
        error = model_of(tmp_path, tables() | {"step": steps}).describe().error
        assert "sum of operators over 3 whole steps: 0.950 of their time" in error
        other = model_of(tmp_path, tables() | {"step": steps}, tensor_parallel=2).describe().error
        assert "was not held against whole steps" in other

    def test_points_are_held_against_their_neighbours(self, tmp_path: Path) -> None:
        assert "linear 0.0%" in model_of(tmp_path).describe().error
