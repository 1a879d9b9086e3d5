"""Mixture-of-experts and MLA kernels compile for three GPU generations, without a GPU."""

from __future__ import annotations

import json

import pytest

from tests.kernels_profile.kernels.native import run_native

pytestmark = [pytest.mark.kernels, pytest.mark.usefixtures("kernels")]

COMMAND = ("-W", "ignore", "-m", "kernels_profile.kernels.compiling")
MODULES = ("moe_routing", "moe", "mla", "mla_prefill", "mla_cache")
OWN = {"sm_80": "mma.sync", "sm_90": "wgmma.mma_async", "sm_100": "tcgen05.mma"}


@pytest.mark.parametrize("module", MODULES)
def test_every_configuration_compiles_into_what_its_target_has(module: str) -> None:
    done = run_native(*COMMAND, module)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == f"{len(lines) - 2} compiled, 0 with problems"
    for target, instruction in OWN.items():
        of_target = [line for line in lines if f" {target} " in line]
        assert of_target
        native = [line for line in of_target if "grouped_linear" in line or "block_h=64" in line]
        assert all(instruction in line for line in native)


COMPILE = """
import json
from kernels_profile.kernels import mla, moe
from kernels_profile.kernels.compiling import TARGETS, CompileCase, compile_case
from kernels_profile.kernels.launch import meta
def decode(config, capability, matrix="native"):
    launch = mla._launches(config, "DeepSeek-V3", 8)[0]
    target = next(t for t in TARGETS if t.capability == capability)
    return compile_case(CompileCase(launch, "", matrix), target).problems
def grouped(config, capability):
    case = moe._case("", 8, 2, 1, 4096, 4096, config)
    target = next(t for t in TARGETS if t.capability == capability)
    return compile_case(case, target).problems
print(json.dumps({
    "whole latent in registers": decode(mla.DecodeConfig(8, 2, 64, 32, 1), 90),
    "oversized decode": decode(mla.DecodeConfig(8, 2, 64, 128, 2), 80),
    "tensor memory": decode(mla.DecodeConfig(8, 2, 128, 32, 1), 100, "any"),
    "too few rows": grouped(moe.GroupedConfig(4, 4, 16, 128, 64, 8, 0), 90),
    "transposed": grouped(moe.GroupedConfig(4, 4, 16, 128, 64, 8, 1), 90),
    "oversized tile": grouped(moe.GroupedConfig(8, 4, 128, 256, 128, 8, 0), 80),
}))
"""


def test_tiles_that_a_gpu_cannot_take_are_rejected() -> None:
    done = run_native("-W", "ignore", "-c", COMPILE)
    assert done.returncode == 0, done.stderr
    problems = json.loads(done.stdout)
    assert "bytes of stack memory" in problems["whole latent in registers"][0]
    assert "over the limit of 166912" in problems["oversized decode"][0]
    assert problems["tensor memory"] == ["576 columns of tensor memory, over the limit of 512"]
    assert problems["too few rows"] == ["no wgmma.mma_async in the PTX"]
    assert problems["transposed"] == []
    assert "over the limit of 166912" in problems["oversized tile"][0]
