"""Every dense kernel compiles for sm_80, sm_90 and sm_100 at every configuration, without a GPU."""

from __future__ import annotations

import pytest

from tests.kernels_profile.kernels.native import run_native

pytestmark = [pytest.mark.kernels, pytest.mark.usefixtures("interpreted")]

COMMAND = ("-W", "ignore", "-m", "kernels_profile.kernels.compiling")
MODULES = (
    "linear", "norm", "rotary", "prefill_attention", "decode_attention", "activation", "sampling",
)  # fmt: skip


OWN = {"sm_80": "mma.sync", "sm_90": "wgmma.mma_async", "sm_100": "tcgen05.mma"}
"""Each target's own matrix instruction, which tiles of 128 rows have to use."""


@pytest.mark.parametrize("module", MODULES)
def test_every_configuration_compiles_into_what_its_target_has(module: str) -> None:
    done = run_native(*COMMAND, module)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == f"{len(lines) - 2} compiled, 0 with problems"
    for target, instruction in OWN.items():
        of_target = [line for line in lines if f" {target} " in line]
        assert of_target
        assert all(instruction in line for line in of_target if " block_m=128 " in line)
        if module == "linear":
            assert any(" fp8 " in line for line in of_target) == (target != "sm_80")


def test_the_large_tiles_are_in_the_table() -> None:
    from kernels_profile.kernels import linear, prefill_attention, sampling

    for module in (linear, prefill_attention, sampling):
        assert any(config.block_m == 128 for config in module.CONFIGS)


def test_an_unknown_module_is_one_line() -> None:
    done = run_native(*COMMAND, "liner")
    assert done.returncode == 1
    assert done.stderr == "error: no kernel module liner; did you mean linear?\n"
