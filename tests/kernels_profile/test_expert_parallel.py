import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels_profile.parallel import ParallelLayout
from kernels_profile.roofline import RooflineStepTime
from sim.errors import ConfigError
from sim.specs import load_device, load_model
from sim.step_time import StepWork
from tests.kernels_profile.step_properties import assert_a_run_is_its_steps

MODELS = ("mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v3")


def roofline(model: str, gpus: int = 8, **options) -> RooflineStepTime:
    return RooflineStepTime(load_model(model), load_device("h200"), tensor_parallel=gpus, **options)


def works():
    yield from (StepWork((), rows, rows * 900) for rows in (1, 3, 17, 128, 900))
    yield StepWork([(5, 0)])
    yield StepWork([(512, 300), (64, 0)], 40, 40_000)
    yield StepWork([(8192, 0)])


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("gpus", [1, 8])
def test_one_gpu_of_experts_and_even_is_tensor_parallelism(model, gpus):
    plain, spread = (
        roofline(model, gpus),
        roofline(model, gpus, expert_parallel=1, data_parallel_attention=1, imbalance=0.0),
    )
    for work in works():
        assert spread.step_ns(work, 0) == plain.step_ns(work, 0)
    assert str(spread.layout) == ""


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("groups", [1, 8])
def test_an_imbalance_of_nought_is_even(model, groups):
    even, nought = (
        roofline(model, expert_parallel=8, data_parallel_attention=groups, imbalance=zipf)
        for zipf in (0.0, 1e-9)
    )
    for work in works():
        assert nought.step_ns(work, 0) == pytest.approx(even.step_ns(work, 0), rel=1e-6)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("expert", [2, 4, 8])
def test_more_imbalance_is_never_faster_where_every_expert_is_touched(model, expert):
    """Where few are touched, a less even router may be quicker: it reads fewer experts."""
    uneven = [
        roofline(model, expert_parallel=expert, imbalance=zipf) for zipf in (0, 0.1, 0.3, 0.6, 1)
    ]
    for tokens in (16_384, 65_536):
        times = [each.step_ns(StepWork([(tokens, 0)]), 0) for each in uneven]
        touched = uneven[-1]._load.touched_on_busiest(tokens)
        assert touched > 0.999 * uneven[-1].model.experts / expert
        assert times == sorted(times)
        assert times[-1] > times[0]


def test_a_less_even_router_reads_fewer_experts_where_few_are_touched():
    even, uneven = (roofline("qwen3-30b-a3b", 1, imbalance=zipf) for zipf in (0.0, 1.0))
    work = StepWork((), 16, 16_000)
    assert uneven.step_ns(work, 0) < even.step_ns(work, 0)


def test_the_busiest_gpu_sets_the_pace_of_a_prefill():
    """All linear work of experts is on the busiest GPU: its share of pairs, over an even share."""
    even, uneven = (
        roofline("mixtral-8x7b", expert_parallel=8, imbalance=zipf) for zipf in (0.0, 1.0)
    )
    rows = 65_536
    base = even._mlp_us(rows, rows)
    router = even._gemm_us(rows, 4096, 8)
    pairs = [each._load.pairs_on_busiest(rows) for each in (even, uneven)]
    assert (uneven._mlp_us(rows, rows) - router) / (base - router) == pytest.approx(
        pairs[1] / pairs[0], rel=0.02
    )


@pytest.mark.parametrize("model", MODELS)
def test_groups_that_attend_apart_are_quicker_for_many_decodes_than_for_few(model):
    """All-to-alls and repeated weights cost a small batch more than a large one."""
    together = roofline(model, expert_parallel=8)
    apart = roofline(model, expert_parallel=8, data_parallel_attention=8)
    few, many = (
        apart.step_ns(work, 0) / together.step_ns(work, 0)
        for work in (StepWork((), 8, 8 * 2000), StepWork((), 2048, 2048 * 2000))
    )
    assert few > many


def test_tokens_are_sent_to_their_experts_and_back(monkeypatch):
    """Even experts, 8 rows on each of 8 GPUs: what the busiest GPU gets sets the pace."""
    apart = roofline("deepseek-v3", expert_parallel=8, data_parallel_attention=8)
    work = StepWork((), 64, 64_000)
    curve, link = apart._fitted["all_to_all"].curve, apart.device.peer_bytes_per_s
    got = apart._load.pairs_on_busiest(64) / 8  # rows: each sends 8 pairs in all
    message = 2 * 7168 * got * apart._load.gpus_of_a_token()
    once = curve.us(7 / 8 * message / link * 1e6)
    whole = apart.step_ns(work, 0)
    monkeypatch.setattr(RooflineStepTime, "_exchange_us", lambda self, rows, all_rows: 0.0)
    without = roofline("deepseek-v3", expert_parallel=8, data_parallel_attention=8)
    assert whole - without.step_ns(work, 0) == pytest.approx(58 * 2 * once * 1e3, abs=2)


def test_latents_are_read_once_by_groups_that_attend_apart():
    together = roofline("deepseek-v3", precision="fp8", expert_parallel=8)
    apart = roofline("deepseek-v3", precision="fp8", expert_parallel=8, data_parallel_attention=8)

    def slope(model):
        ns = [model.step_ns(StepWork((), 512, 512 * mean), 0) for mean in (8000, 16_000)]
        return ns[1] - ns[0]

    flops = 61 * 2 * (576 + 512) * 128 * 512 * 8000 / 8 / load_device("h200").bf16_flops * 1e9
    assert slope(apart) < 0.6 * slope(together)
    assert slope(apart) > flops


def test_a_whole_prompt_is_on_one_group():
    apart = roofline("qwen3-30b-a3b", expert_parallel=8, data_parallel_attention=8)
    one, eight = (apart.step_ns(StepWork(chunks), 0) for chunks in ([(8192, 0)], [(1024, 0)] * 8))
    assert one > 1.8 * eight


@given(
    model=st.sampled_from(
        [
            roofline("qwen3-30b-a3b", expert_parallel=8, data_parallel_attention=8, imbalance=0.4),
            roofline("mixtral-8x7b", 4, expert_parallel=2, imbalance=0.8),
            roofline("mixtral-8x7b", 4, expert_parallel=4, data_parallel_attention=2),
        ]
    ),
    rows=st.integers(1, 2000),
    padding=st.integers(0, 9),
    mean_context=st.integers(1, 20_000),
    n=st.integers(1, 80),
)
@settings(max_examples=80, deadline=None)
def test_a_run_equals_single_steps_bit_for_bit(model, rows, padding, mean_context, n):
    assert_a_run_is_its_steps(model, rows, padding, mean_context, n)


def test_steps_without_rows_take_the_hosts_time():
    apart = roofline("mixtral-8x7b", expert_parallel=8, data_parallel_attention=2)
    assert apart.step_ns(StepWork((), 0, 0), 0) == round(apart.host.step_us * 1e3)


def test_the_layout_is_said():
    told = roofline(
        "qwen3-30b-a3b", expert_parallel=8, data_parallel_attention=4, imbalance=0.5
    ).describe()
    for said in (
        "experts spread over 8 GPUs",
        "Zipf's law with exponent 0.5",
        "4 groups of GPUs attend apart, taken as equally loaded",
        "two all-to-alls",
    ):
        assert said in told.origin
    assert "all to all" in told.error


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (ParallelLayout(8, 3), "expert_parallel: 3 does not divide"),
        (ParallelLayout(8, 4, 2), "set expert_parallel to the 8 GPUs"),
        (ParallelLayout(8, 8, 3), "data_parallel_attention: 3 does not divide the 8 GPUs"),
        (ParallelLayout(16, 16), "both the 16 GPUs of tensor_parallel and the 8 experts"),
    ],
)
def test_layouts_that_do_not_come_out_even_are_refused(layout, message):
    with pytest.raises(ConfigError, match=message):
        layout.check(load_model("mixtral-8x7b"))


def test_an_imbalance_out_of_range_is_refused():
    with pytest.raises(ConfigError, match="imbalance: 5 is no exponent from 0"):
        roofline("mixtral-8x7b", expert_parallel=2, imbalance=5.0)


def test_all_to_all_is_fitted_to_what_each_gpu_sends(shared):
    """The table counts what a GPU holds; on two GPUs half of it leaves."""
    import pandas as pd

    from kernels_profile.curves import CurveBook

    table = pd.read_csv(shared / "measured" / "aiconfigurator" / "collectives.csv")
    rows = table[(table.op == "alltoall") & (table.system == "h200_sxm") & (table.n_gpus == 8)]
    rows = rows[rows.bytes >= 2048]
    link = load_device("h200").peer_bytes_per_s
    curve = CurveBook().find("all_to_all", "h200", "nvlink-8").curve
    ratio = curve.us(7 / 8 * rows.bytes.to_numpy(float) / link * 1e6) / rows.time_us.to_numpy()
    assert np.median(np.abs(ratio - 1)) < 0.15


@pytest.mark.parametrize("model", MODELS)
def test_more_rows_never_take_less_time(model):
    for groups, zipf in itertools.product((1, 8), (0.0, 0.8)):
        each = roofline(model, expert_parallel=8, data_parallel_attention=groups, imbalance=zipf)
        times = [each.step_ns(StepWork((), rows, 100 * rows), 0) for rows in range(1, 300, 7)]
        assert times == sorted(times)
