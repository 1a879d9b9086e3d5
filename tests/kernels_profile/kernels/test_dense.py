"""The dense kernels against float64 references, in Triton's CPU interpreter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kernels_profile.kernels.checking import Check

pytestmark = [pytest.mark.kernels, pytest.mark.usefixtures("interpreted")]

GROUPS = (
    "linear", "rms_norm", "qk_norm", "rotary", "prefill", "decode", "silu_mul", "lm_head_greedy",
    "greedy",
)  # fmt: skip
"""First words of the checks' names."""


def checks_of(group: str) -> list[Check]:
    from kernels_profile.kernels.dense_checks import dense_checks

    return [check for check in dense_checks() if check.name.split()[0] == group]


def test_every_check_belongs_to_a_group() -> None:
    from kernels_profile.kernels.dense_checks import dense_checks

    assert {check.name.split()[0] for check in dense_checks()} == set(GROUPS)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize(("dtype", "upcast"), [("float32", False), ("float16", False)])
def test_a_kernel_agrees_with_its_reference(group: str, dtype: str, upcast: bool) -> None:
    import torch

    from kernels_profile.kernels.checking import Setting

    setting = Setting(getattr(torch, dtype), upcast=upcast)
    assert [wrong for check in checks_of(group) if (wrong := check.wrong(setting))] == []


@pytest.mark.parametrize("group", GROUPS)
def test_a_kernel_reads_bfloat16_and_computes_in_float32(group: str) -> None:
    import torch

    from kernels_profile.kernels.checking import Setting

    setting = Setting(torch.bfloat16, upcast=True)
    assert [wrong for check in checks_of(group) if (wrong := check.wrong(setting))] == []


def test_fp8_operands_times_scales_agree_with_the_reference() -> None:
    import torch

    from kernels_profile.kernels.checking import Setting
    from kernels_profile.kernels.dense_checks import fp8_checks

    setting = Setting(torch.float32, upcast=True)
    assert [wrong for check in fp8_checks() if (wrong := check.wrong(setting))] == []


def test_limits_are_those_promised() -> None:
    import torch

    from kernels_profile.kernels.checking import LIMITS

    assert LIMITS[torch.float32] <= 1e-5
    assert LIMITS[torch.float16] <= 5e-3
