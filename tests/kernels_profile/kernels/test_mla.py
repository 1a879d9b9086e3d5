"""The MLA kernels against float64 references, in Triton's CPU interpreter."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kernels_profile.kernels.test_wrong_kernels import PACKAGE, mutant

if TYPE_CHECKING:
    from kernels_profile.kernels.checking import Check

pytestmark = [pytest.mark.kernels, pytest.mark.usefixtures("interpreted")]

GROUPS = ("mla_decode", "mla_prefill", "latent_write")
"""First words of the checks' names."""
WRONG = {
    "a mask that lets in one key behind the end": (
        "mla_decode", "mla", "_mla_decode_kernel", "(key < end)", "(key <= end)",
    ),
    "the rotary part left out of the scores": (
        "mla_decode", "mla", "_mla_decode_kernel",
        "own_rope, tl.trans(rope), scores", "own_rope * 0.0, tl.trans(rope), scores",
    ),
    "a part of the context computed as the first": (
        "mla_decode", "mla", "_mla_decode_kernel", "begin = part * part_tokens",
        "begin = part * 0 * part_tokens",
    ),
    "the other half of the latent added up": (
        "mla_decode", "mla", "_mla_decode_kernel",
        "at = out + target[:, None] * LATENT + wide", "at = out + target[:, None] * LATENT + rest",
    ),
    "a causal mask that hides a token from itself": (
        "mla_prefill", "mla_prefill", "_attend",
        "key[None, :] <= position[:, None]", "key[None, :] < position[:, None]",
    ),
    "no causal mask": (
        "mla_prefill", "mla_prefill", "_attend",
        "key[None, :] <= position[:, None]", "key[None, :] <= position[:, None] + 4096",
    ),
    "keys of the wrong sequence": (
        "mla_prefill", "mla_prefill", "_gather_latent_kernel",
        "block_table + sequence * table_stride", "block_table + sequence * 0",
    ),
    "sums that are not rescaled when the largest score grows": (
        "mla_prefill", "mla_prefill", "_attend",
        "shrink = tl.exp2(largest - larger)", "shrink = tl.exp2(tl.minimum(largest, 0.0) * 0.0)",
    ),
    "halves rotated instead of pairs": (
        "latent_write", "mla_cache", "_latent_write_kernel",
        "odd = tl.load(source + LATENT + 2 * pair + 1)",
        "odd = tl.load(source + LATENT + ROPE // 2 + pair)",
    ),
    "padding tokens written": (
        "latent_write", "mla_cache", "_latent_write_kernel",
        "mask=slot + wide * 0 >= 0", "mask=slot + wide * 0 >= -1",
    ),
}  # fmt: skip
"""(checks, module, function, right text, wrong text)"""


def checks_of(group: str) -> list[Check]:
    from kernels_profile.kernels.mla_checks import mla_checks

    return [check for check in mla_checks() if check.name.split()[0] == group]


def test_every_check_belongs_to_a_group() -> None:
    from kernels_profile.kernels.mla_checks import mla_checks

    assert {check.name.split()[0] for check in mla_checks()} == set(GROUPS)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_kernel_agrees_with_its_reference(group: str, dtype: str) -> None:
    import torch

    from kernels_profile.kernels.checking import Setting

    setting = Setting(getattr(torch, dtype), upcast=dtype == "bfloat16")
    assert [wrong for check in checks_of(group) if (wrong := check.wrong(setting))] == []


@pytest.mark.parametrize("mistake", WRONG)
def test_a_wrong_kernel_is_rejected(
    mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from kernels_profile.kernels.checking import Setting

    group, name, function, right, wrong = WRONG[mistake]
    module = importlib.import_module(f"{PACKAGE}.{name}")
    made = mutant(tmp_path, monkeypatch, module, right, wrong)
    monkeypatch.setattr(module, function, getattr(made, function))
    assert any(check.wrong(Setting(torch.float32)) for check in checks_of(group))


@pytest.mark.parametrize("group", ["mla_decode", "mla_prefill"])
def test_scores_scaled_for_the_wrong_base_are_rejected(
    group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from kernels_profile.kernels.checking import Setting

    module = importlib.import_module(f"{PACKAGE}.{group.replace('mla_decode', 'mla')}")
    monkeypatch.setattr(module, "LOG2_E", 1.0)
    assert any(check.wrong(Setting(torch.float32)) for check in checks_of(group))


def test_absorbed_decode_is_prefill_of_one_token() -> None:
    import torch

    from kernels_profile.kernels import mla, mla_checks
    from kernels_profile.kernels.checking import Setting, norm_ratio, paged

    at, heads = Setting(torch.float32), 3
    nope, rope, value, latent = 32, 16, 16, 32
    cache = paged(at, (37, 5), 16, [(latent + rope,)])
    q, up_w = at.normal(2, heads, nope + rope), at.normal(heads * (nope + value), latent, scale=0.2)
    key_up, value_up = up_w.view(heads, nope + value, latent).split((nope, value), dim=1)
    given, scale = (cache.caches[0], cache.table), mla_checks.SCALE
    absorbed = torch.einsum("bhn,hnl->bhl", q[..., :nope], key_up).contiguous()
    sums = mla.mla_decode(absorbed, q[..., nope:].contiguous(), *given, cache.contexts, scale, 2)
    decoded = torch.einsum("bhl,hvl->bhv", sums, value_up)
    starts = torch.tensor([0, 1, 2], dtype=torch.int32)
    prefilled = mla.mla_prefill(q, *given, starts, cache.contexts, up_w, scale, nope)
    assert norm_ratio(decoded, prefilled.double()) < 1e-5


def test_what_does_not_fit_is_one_line() -> None:
    import torch

    from kernels_profile.kernels import mla
    from sim.errors import ProfileError

    table, contexts = torch.zeros(2, 1, dtype=torch.int32), torch.ones(2, dtype=torch.int32)
    q, rope = torch.zeros(2, 4, 32), torch.zeros(2, 4, 16)
    with pytest.raises(ProfileError, match=r"cache \(1, 16, 40\), not 32\+16"):
        mla.mla_decode(q, rope, torch.zeros(1, 16, 40), table, contexts, 1.0)
    wide = torch.zeros(2, 4, 48)
    with pytest.raises(ProfileError, match="latent 48 and rope 16 are no powers of two"):
        mla.mla_decode(wide, rope, torch.zeros(1, 16, 64), table, contexts, 1.0)


def test_candidates_are_those_that_a_gpu_can_take() -> None:
    from kernels_profile.kernels import mla

    assert mla.choose(16, 90) == mla.SMALL
    assert mla.choose(128, 89) == mla.SMALL  # 99 KiB of shared memory
    assert mla.choose(128, 90)[0] in mla.WIDE
    assert mla.choose(128, 100)[0] == mla.TENSOR_MEMORY
    assert all(config.block_h <= 32 for config in mla.choose(128, 80))
