"""The mixture-of-experts kernels against float64 references, in Triton's CPU interpreter."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kernels_profile.kernels.test_wrong_kernels import PACKAGE, mutant

if TYPE_CHECKING:
    from kernels_profile.kernels.checking import Check

pytestmark = [pytest.mark.kernels, pytest.mark.usefixtures("interpreted")]

GROUPS = ("route", "grouped_linear", "expert_block", "weighted_sum")
"""First words of the checks' names."""
WRONG = {
    "tokens of padding rows stored": (
        "grouped_linear", "moe", "_grouped_linear_kernel",
        "real = lanes < tl.load(offsets + expert) + tl.load(totals + expert)",
        "real = lanes < tl.load(offsets + expert + 1)",
    ),
    "the weights of the next expert": (
        "grouped_linear", "moe", "_grouped_linear_kernel",
        "expert = tl.load(tiles + tile)", "expert = (tl.load(tiles + tile) + 1) % 6",
    ),
    "a step of k whose mask is one too wide": (
        "grouped_linear", "moe", "_grouped_linear_kernel",
        "inner < k - start", "inner <= k - start",
    ),
    "rows taken by assignment where they are by token": (
        "grouped_linear", "moe", "_grouped_linear_kernel",
        "assignment // fan_out", "assignment // 1 % 1",
    ),
    "weights that leave out the last expert": (
        "expert_block", "moe", "_weighted_sum_kernel", "static_range(TOP_K)",
        "static_range(TOP_K - 1)",
    ),
    "the softmax of all where that of the chosen is asked for": (
        "route", "moe_routing", "_route_kernel", "total = tl.sum(share, 1)", "total = total * 1.0",
    ),
    "the highest of equal experts": (
        "route", "moe_routing", "_route_kernel",
        "tl.argmax(left, 1)", "experts - 1 - tl.argmax(tl.flip(left, 1), 1) % experts",
    ),
    "assignments placed in reverse": (
        "route", "moe_routing", "_place_kernel",
        "other[None, :] < lanes[:, None]", "other[None, :] > lanes[:, None]",
    ),
    "runs that are not padded to tiles": (
        "route", "moe_routing", "_place_kernel", "tl.cdiv(total, TILE) * TILE", "total",
    ),
}  # fmt: skip
"""(checks, module, function, right text, wrong text)"""


def checks_of(group: str) -> list[Check]:
    from kernels_profile.kernels.moe_checks import moe_checks

    return [check for check in moe_checks() if check.name.split()[0] == group]


def test_every_check_belongs_to_a_group() -> None:
    from kernels_profile.kernels.moe_checks import moe_checks

    assert {check.name.split()[0] for check in moe_checks()} == set(GROUPS)


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


def test_tiles_are_those_that_any_routing_can_need() -> None:
    from kernels_profile.kernels.moe_routing import most_tiles

    assert most_tiles(assignments=1, experts=8, block_m=16) == 1
    assert most_tiles(assignments=8, experts=8, block_m=16) == 8  # one each
    assert most_tiles(assignments=17 + 7, experts=8, block_m=16) == 9  # 17 of one, one of the rest
    assert most_tiles(assignments=8 * 16, experts=8, block_m=16) == 15  # 113, 1 five times, 5, 5


def test_no_token_gives_no_output() -> None:
    import torch

    from kernels_profile.kernels import moe

    weights = torch.zeros(4, 32, 16), torch.zeros(4, 16, 16)
    assert moe.expert_block(torch.zeros(0, 16), torch.zeros(4, 16), *weights, 2).shape == (0, 16)
    routing = moe.route(torch.zeros(0, 4), 2)
    assert routing.totals.tolist() == [0] * 4
    assert moe.grouped_linear(torch.zeros(0, 16), weights[0], routing).shape == (0, 32)


def test_what_does_not_fit_is_one_line() -> None:
    import torch

    from kernels_profile.kernels import moe
    from sim.errors import ProfileError

    with pytest.raises(ProfileError, match="top_k is 5, with 4 experts"):
        moe.route(torch.zeros(3, 4), 5)
    routing = moe.route(torch.zeros(3, 4), 2, block_m=16)
    with pytest.raises(ProfileError, match="w has 5 experts"):
        moe.grouped_linear(torch.zeros(3, 8), torch.zeros(5, 8, 8), routing)
    given = (torch.zeros(3, 8), torch.zeros(4, 8, 8), routing)
    with pytest.raises(ProfileError, match="routed for tiles of another size"):
        moe.grouped_linear(*given, config=moe.MANY[0])


def test_candidates_grow_with_the_tokens_of_an_expert() -> None:
    from kernels_profile.kernels import moe

    assert moe.choose(64, 128, 8) == moe.FEW
    assert moe.choose(64, 8, 2) == moe.FEW
    assert moe.choose(512, 128, 8) == moe.SOME
    assert moe.choose(8192, 8, 2) == moe.MANY
