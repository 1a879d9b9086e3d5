"""The host's time beside the GPU's: launches of steps without a CUDA graph."""

from __future__ import annotations

import pytest

from kernels_profile.graphs import GRAPHS
from kernels_profile.host import HOSTS, HostOverhead
from kernels_profile.roofline import RooflineStepTime
from sim.errors import ConfigError
from sim.specs import load_device, load_model
from sim.step_time import StepWork

MODEL, DEVICE = load_model("llama-2-7b"), load_device("h100-sxm")
DECODE, PREFILL = StepWork((), 1, 100), StepWork([(16, 0)])


def steps(host: HostOverhead) -> tuple[int, int]:
    model = RooflineStepTime(MODEL, DEVICE, host=host)
    return model.step_ns(DECODE, 0), model.step_ns(PREFILL, 0)


def test_a_step_with_prefills_is_no_shorter_than_its_launches_and_what_the_host_adds() -> None:
    decode, prefill = steps(HostOverhead(1000.0, eager_layer_us=500.0))
    assert prefill == round((32 * 500 + 1000) * 1e3)
    assert decode == steps(HostOverhead(1000.0))[0]


def test_an_engine_without_graphs_launches_decodes_one_by_one_too() -> None:
    decode, prefill = steps(HostOverhead(0.0, 10.0, form="max", eager_layer_us=500.0))
    assert decode == prefill == round((32 * 500 + 10) * 1e3)


def test_launches_hide_behind_longer_kernels() -> None:
    work = StepWork([(4096, 0)])
    bare, eager = (
        RooflineStepTime(MODEL, DEVICE, host=HostOverhead(1000.0, eager_layer_us=us))
        for us in (0.0, 100.0)
    )
    assert eager.step_ns(work, 0) == bare.step_ns(work, 0)


@pytest.mark.parametrize(
    ("name", "rows", "prefill", "eager"),
    [
        ("none", 1, False, True),
        ("vllm", 512, True, False),
        ("vllm", 513, False, True),
        ("vllm-v0", 256, False, False),
        ("vllm-v0", 16, True, True),
    ],
)
def test_which_steps_replay_no_graph(name: str, rows: int, prefill: bool, eager: bool) -> None:
    assert GRAPHS[name].eager(rows, prefill=prefill) is eager


def test_no_term_is_below_0() -> None:
    with pytest.raises(ConfigError, match="expected none below 0"):
        HostOverhead(1.0, eager_layer_us=-1.0)


def test_every_preset_says_where_it_comes_from() -> None:
    assert all(host.source for host in HOSTS.values())
