"""The checks can fail: kernels that are wrong in one place are rejected."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.kernels_profile.kernels.native import run_native

pytestmark = [pytest.mark.kernels]

PACKAGE = "kernels_profile.kernels"
WRONG = {
    "a causal mask that hides a token from itself": (
        "prefill", "attention_loop", "attend", "prefill_attention",
        "keys[None, :] <= positions[:, None]", "keys[None, :] < positions[:, None]",
    ),
    "no causal mask": (
        "prefill", "attention_loop", "attend", "prefill_attention",
        "keys[None, :] <= positions[:, None]", "keys[None, :] <= positions[:, None] + 4096",
    ),
    "a mask that lets one key behind the context in": (
        "decode", "attention_loop", "attend", "decode_attention",
        "inside = keys < context", "inside = keys <= context",
    ),
    "sums that are not rescaled when the largest score grows": (
        "decode", "attention_loop", "attend", "decode_attention",
        "shrink = tl.exp2(largest - larger)", "shrink = tl.exp2(tl.minimum(largest, 0.0) * 0.0)",
    ),
    "parts of a context merged without their weights": (
        "decode", "decode_attention", "merge_parts_kernel", "decode_attention",
        "numbers * share[:, None], axis=0) / tl.where(weight == 0.0, 1.0, weight)",
        "numbers, axis=0) / parts",
    ),
    "a step of k whose mask is one too wide": (
        "linear", "linear", "product", "linear",
        "mask=tl.arange(0, BLOCK_K)[None, :] < left", "mask=tl.arange(0, BLOCK_K)[None, :] <= left",
    ),
    "a part of split k left out": (
        "linear", "linear", "_sum_parts_kernel", "linear",
        "for part in tl.static_range(PARTS)", "for part in tl.static_range(PARTS - 1)",
    ),
    "a mean over the tile instead of the row": (
        "rms_norm", "norm", "_rms_norm_kernel", "norm", "axis=0) / width", "axis=0) / BLOCK",
    ),
    "a rotation by the angle of the neighbour": (
        "rotary", "rotary", "_rotary_kv_write_kernel", "rotary",
        "sin + position * angle_stride + place", "sin + position * angle_stride + (place ^ 1)",
    ),
    "tiles that all count as the first": (
        "lm_head_greedy", "sampling", "_pick_kernel", "sampling",
        "best = tl.maximum(best, value)", "best = tl.maximum(best, value * 0 - 1e30)",
    ),
}  # fmt: skip
"""(checks, module, function, module that calls it, right text, wrong text)"""


def mutant(
    folder: Path, monkeypatch: pytest.MonkeyPatch, module: ModuleType, right: str, wrong: str
) -> ModuleType:
    """The module with one text replaced; Triton reads sources, so it has to be a file."""
    source = inspect.getsource(module)
    assert source.count(right) == 1, f"{right!r} occurs {source.count(right)} times"
    path = folder / f"{module.__name__.rpartition('.')[2]}_mutant.py"
    path.write_text(source.replace(right, wrong), encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, made)  # where dataclasses look their module up
    spec.loader.exec_module(made)
    return made


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("mistake", WRONG)
def test_a_wrong_kernel_is_rejected(
    mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from kernels_profile.kernels.checking import Setting
    from kernels_profile.kernels.dense_checks import dense_checks

    group, module, function, caller, right, wrong = WRONG[mistake]
    original = importlib.import_module(f"{PACKAGE}.{module}")
    made = mutant(tmp_path, monkeypatch, original, right, wrong)
    calling = importlib.import_module(f"{PACKAGE}.{caller}")
    # Fails here if the name is not what the caller uses; the check below would then see no mistake.
    monkeypatch.setattr(calling, function, getattr(made, function))
    checks = [check for check in dense_checks() if check.name.split()[0] == group]
    setting = Setting(torch.float32)
    assert any(check.wrong(setting) for check in checks)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("group", ["prefill", "decode"])
def test_scores_scaled_for_the_wrong_base_are_rejected(
    group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from kernels_profile.kernels.checking import Setting
    from kernels_profile.kernels.dense_checks import dense_checks

    caller = importlib.import_module(f"{PACKAGE}.{group}_attention")
    monkeypatch.setattr(caller, "LOG2_E", 1.0)
    checks = [check for check in dense_checks() if check.name.split()[0] == group]
    assert any(check.wrong(Setting(torch.float32)) for check in checks)


@pytest.mark.usefixtures("interpreted")
def test_fp8_scales_taken_from_the_first_row_are_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from kernels_profile.kernels import linear
    from kernels_profile.kernels.checking import Setting
    from kernels_profile.kernels.dense_checks import fp8_checks

    right = "scale + tl.minimum(index, size - 1)"
    made = mutant(tmp_path, monkeypatch, linear, right, "scale + index * 0")
    monkeypatch.setattr(linear, "_scales", made._scales)
    setting = Setting(torch.float32, upcast=True)
    wrong = {check.name.split()[-1] for check in fp8_checks() if check.wrong(setting)}
    assert wrong == {"per_row=True"}


@pytest.mark.usefixtures("interpreted")
def test_what_a_kernel_leaves_unwritten_is_an_error() -> None:
    import torch

    from kernels_profile.kernels.checking import Setting, norm_ratio

    out = Setting(torch.float32).unwritten(2, 3)
    out[0] = 1.0
    assert norm_ratio(out, torch.ones(2, 3)) == float("inf")


COMPILE = """
import json, dataclasses
from kernels_profile.kernels.compiling import TARGETS, compile_case
from kernels_profile.kernels.linear import LinearConfig, _cases
import torch
def problems(config, capability, matrix=None):
    case = _cases(config, torch.bfloat16, 80)[0]
    case = dataclasses.replace(case, matrix=matrix or case.matrix)
    target = next(t for t in TARGETS if t.capability == capability)
    return compile_case(case, target).problems
print(json.dumps({
    "oversized tile": problems(LinearConfig(8, 4, 128, 256, 128), 80),
    "too few warps": problems(LinearConfig(1, 2, 64, 128, 32), 80),
    "too few rows": problems(LinearConfig(4, 2, 16, 64, 64), 90, "native"),
    "no power of two": problems(LinearConfig(4, 2, 48, 64, 64), 80),
    "a right one": problems(LinearConfig(4, 2, 64, 64, 64), 80),
}))
"""


@pytest.mark.usefixtures("kernels")
def test_tiles_that_a_gpu_cannot_take_are_rejected() -> None:
    done = run_native("-W", "ignore", "-c", COMPILE)
    assert done.returncode == 0, done.stderr
    problems = json.loads(done.stdout)
    assert "bytes of shared memory, over the limit of 166912" in problems["oversized tile"][0]
    assert "bytes of stack memory" in problems["too few warps"][0]
    assert problems["too few rows"] == ["no wgmma.mma_async in the PTX"]
    assert problems["no power of two"][0].startswith("does not compile: ")
    assert problems["a right one"] == []
