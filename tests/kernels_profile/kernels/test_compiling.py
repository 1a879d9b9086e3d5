"""Every dense kernel compiles for sm_80, sm_90 and sm_100 at every configuration, without a GPU."""

from __future__ import annotations

import pytest

from tests.kernels_profile.kernels.native import run_native

pytestmark = [pytest.mark.kernels, pytest.mark.usefixtures("kernels")]

COMMAND = ("-W", "ignore", "-m", "kernels_profile.kernels.compiling")
MODULES = (
    "linear", "norm", "rotary", "prefill_attention", "decode_attention", "activation", "sampling",
)  # fmt: skip


@pytest.mark.parametrize("module", MODULES)
def test_every_configuration_compiles_into_what_its_target_has(module: str) -> None:
    done = run_native(*COMMAND, module)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == f"{len(lines) - 2} compiled, 0 with problems"
    for target in ("sm_80", "sm_90", "sm_100"):
        assert any(f" {target} " in line for line in lines)


@pytest.mark.parametrize("module", ["linear", "prefill_attention", "sampling"])
def test_the_targets_own_matrix_instruction_is_used(module: str) -> None:
    done = run_native(*COMMAND, module)
    lines = [line for line in done.stdout.splitlines() if "block_m=128" in line]
    own = {"sm_80": "mma.sync", "sm_90": "wgmma.mma_async", "sm_100": "tcgen05.mma"}
    for target, instruction in own.items():
        of_target = [line for line in lines if f" {target} " in line]
        assert of_target
        assert all(instruction in line for line in of_target)


def test_fp8_is_compiled_for_those_who_have_it() -> None:
    done = run_native(*COMMAND, "linear")
    targets = {t for t in ("sm_80", "sm_90", "sm_100") for line in done.stdout.splitlines()
               if " fp8 " in line and f" {t} " in line}  # fmt: skip
    assert targets == {"sm_90", "sm_100"}


def test_an_unknown_module_is_one_line() -> None:
    done = run_native(*COMMAND, "liner")
    assert done.returncode == 1
    assert done.stderr == "error: no kernel module liner; did you mean linear?\n"
