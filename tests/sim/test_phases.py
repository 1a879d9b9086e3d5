"""The arithmetic of prefill and decode: ridge, intensity, crossings, floors, rows of tokens."""

from __future__ import annotations

import math

import pytest

from kernels_profile.host import HostOverhead
from kernels_profile.roofline import RooflineStepTime
from sim.errors import ConfigError
from sim.phases import MOST_ROWS, PhaseArithmetic, token_rows
from sim.specs import device_names, load_device, load_model, model_names
from sim.step_time import StepWork

H100 = load_device("h100-sxm")


def arithmetic(model: str = "llama-3.1-8b", **options: object) -> PhaseArithmetic:
    return PhaseArithmetic(load_model(model), H100, **options)  # type: ignore[arg-type]


def test_the_ridge_of_an_h100_is_295_flops_per_byte() -> None:
    assert round(arithmetic().ridge) == 295  # 989.4e12 / 3.35e12


@pytest.mark.parametrize("batch", [1, 8, 64])
def test_intensity_is_the_rows_over_the_bytes_of_half_a_weight(batch: int) -> None:
    """Two FLOPs and two bytes a weight: N x B in a prefill, B in a decode, but for attention."""
    sums = arithmetic()
    assert sums.decode(batch, 1).intensity == pytest.approx(batch, rel=0.01)
    few = sums.prefill(8, batch)
    assert few.intensity == pytest.approx(8 * batch, rel=0.1)  # one row a prompt has an LM head
    assert few.intensity < 8 * batch


def test_one_decode_by_hand() -> None:
    """Llama-3.1-8B: 6.98e9 weights in layers, an LM head of 128,256 x 4,096, 131,072 B a token."""
    model = load_model("llama-3.1-8b")
    cost = arithmetic().decode(1, 1000)
    attention = 4 * 32 * 32 * 128 * 1000
    assert cost.attention_flops == attention
    assert cost.flops == 2 * (model.active_linear_weights + 128256 * 4096) + attention
    assert cost.kv_bytes == 131072 * 1001  # read 1000, write one
    assert cost.num_bytes == 2 * (model.linear_weights + 128256 * 4096) + cost.kv_bytes
    assert cost.floor_s == cost.num_bytes / 3.35e12
    assert not cost.compute_bound


def test_crossings_are_the_first_sizes_that_are_compute_bound() -> None:
    sums = arithmetic()
    prompt, batch = sums.prompt_at_ridge(), sums.batch_at_ridge(1)
    assert prompt is not None
    assert batch is not None
    assert sums.prefill(prompt).compute_bound
    assert not sums.prefill(prompt - 1).compute_bound
    assert sums.decode(batch, 1).compute_bound
    assert not sums.decode(batch - 1, 1).compute_bound
    assert sums.batch_at_ridge(4096) is None
    assert not sums.decode(MOST_ROWS, 4096).compute_bound


@pytest.mark.parametrize("model", model_names())
def test_intensity_grows_with_the_size_so_that_there_is_one_crossing(model: str) -> None:
    spec = load_model(model)
    sums = PhaseArithmetic(spec, H100)
    sizes = [1 << k for k in range(15)]
    prefills = [sums.prefill(n).intensity for n in sizes]
    assert prefills == sorted(prefills)
    for context in (1, 1000):
        decodes = [sums.decode(n, context).intensity for n in sizes]
        if not spec.experts:
            assert decodes == sorted(decodes)


@pytest.mark.parametrize("device", device_names())
@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v2-lite"])
def test_no_step_of_the_roofline_model_beats_its_floor(model: str, device: str) -> None:
    spec, sheet = load_model(model), load_device(device)
    sums = PhaseArithmetic(spec, sheet)
    roofline = RooflineStepTime(spec, sheet, host=HostOverhead(1e-3))
    for new, before in ((1, 0), (17, 0), (500, 0), (4000, 0), (300, 3000), (16, 9000)):
        floor = sums.prefill(new + before, cached_tokens=before).floor_s
        assert roofline.step_ns(StepWork([(new, before)]), 0) >= floor * 1e9
    for batch, context in ((1, 1), (1, 5000), (64, 700), (300, 100)):
        floor = sums.decode(batch, context).floor_s
        assert roofline.step_ns(StepWork((), batch, batch * context), 0) >= floor * 1e9


def test_floors_of_a_request() -> None:
    sums = arithmetic()
    assert sums.ttft_floor_s(2048) == sums.prefill(2048).floor_s
    assert sums.ttft_floor_s(2048, 2032) < sums.ttft_floor_s(2048)
    steps = [sums.decode(1, context).floor_s for context in range(101, 110)]
    assert sums.tpot_floor_s(100, 10) == pytest.approx(sum(steps) / len(steps), rel=1e-12)
    assert math.isnan(sums.tpot_floor_s(100, 1))


def test_more_gpus_share_flops_and_bytes() -> None:
    one, two = arithmetic().decode(8, 512), arithmetic(tp=2).decode(8, 512)
    assert two.flops == one.flops / 2
    assert two.num_bytes == one.num_bytes / 2


def test_rows_with_and_without_a_cache() -> None:
    assert token_rows(6, 4, cache=False) == [6, 7, 8, 9]
    assert sum(token_rows(6, 4, cache=False)) == 30
    assert token_rows(6, 4, cache=True) == [6, 1, 1, 1]
    assert sum(token_rows(6, 4, cache=True)) == 9


@pytest.mark.parametrize(
    "ask",
    [
        lambda: arithmetic().prefill(0),
        lambda: arithmetic().prefill(10, cached_tokens=10),
        lambda: arithmetic().prefill(10, 0),
        lambda: arithmetic().decode(0, 5),
        lambda: arithmetic().decode(1, 0),
        lambda: token_rows(0, 4, cache=True),
        lambda: arithmetic(tp=3),
        lambda: arithmetic(precision="fp7"),
    ],
)
def test_what_makes_no_sense_is_refused(ask: object) -> None:
    with pytest.raises(ConfigError):
        ask()  # type: ignore[operator]
