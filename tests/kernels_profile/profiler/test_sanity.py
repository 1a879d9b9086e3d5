"""The first seconds on a card: which checks run, and what a failed one spoils."""

from __future__ import annotations

import pytest

from kernels_profile.profiler.sanity import Checked, Sanity, check_kernels, in_turns
from kernels_profile.table import OPERATORS


def test_each_kernel_gets_its_first_check_before_any_gets_its_second() -> None:
    names = ["linear 1", "linear 2", "linear 3", "decode 1", "rotary 1", "rotary 2"]
    assert in_turns(names) == [
        "linear 1", "decode 1", "rotary 1", "linear 2", "rotary 2", "linear 3",
    ]  # fmt: skip


def sanity(*checked: Checked) -> Sanity:
    return Sanity(checked, 10, 3.0)


def test_a_wrong_kernel_spoils_the_tables_that_rest_on_it() -> None:
    good = Checked("rotary 7", 1e-3, 1e-2)
    off, broken = Checked("prefill x", 0.5, 1e-2), Checked("linear_fp8 x", problem="E: no")
    nan = Checked("decode x", float("nan"), 1e-2)
    assert sanity(good).spoiled() == set()
    assert sanity(good, off).spoiled() == {"attention_prefill", "attention_mixed"}
    assert sanity(broken, good).spoiled() == {"linear"}
    assert sanity(nan).spoiled() == {"attention_decode"}
    assert sanity(good, off).spoiled() <= set(OPERATORS)
    assert "2 of 10 checks of 2 kernels in 3 s, 1 failed" in str(sanity(good, off))


@pytest.mark.kernels
@pytest.mark.usefixtures("interpreted")
def test_checks_run_in_processes() -> None:
    result = check_kernels("cpu", False, 300.0, 1, ["silu_mul"])
    assert len(result.checked) == result.wanted > 0
    assert result.bad == []
    assert {check.name.split()[0] for check in result.checked} == {"silu_mul"}


@pytest.mark.kernels
@pytest.mark.usefixtures("interpreted")
def test_every_kernel_with_checks_is_known_to_spoil_something() -> None:
    from kernels_profile.profiler.sanity import NEEDED_BY, check_names, kernel

    mixtures = {"route", "grouped_linear", "expert_block", "weighted_sum"}
    assert {kernel(name) for name in check_names(True)} <= set(NEEDED_BY) | mixtures


@pytest.mark.kernels
@pytest.mark.usefixtures("interpreted")
def test_what_there_is_no_time_for_is_not_checked() -> None:
    result = check_kernels("cpu", False, 0.0, 1, ["silu_mul"])
    assert result.checked == ()
    assert result.wanted > 0


@pytest.mark.kernels
@pytest.mark.usefixtures("kernels")
def test_a_process_that_lost_its_device_says_nothing_of_further_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    from kernels_profile.profiler import sanity

    def lost() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "synchronize", lost)
    assert sanity._check(("linear", "cuda")) is None
