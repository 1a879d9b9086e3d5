"""The kernels natively on a GPU, in bfloat16 and fp8: `pytest -m gpu` runs them."""

from __future__ import annotations

import os

import pytest

from tests.conftest import go_without

pytestmark = [pytest.mark.gpu, pytest.mark.kernels, pytest.mark.usefixtures("gpu")]


@pytest.fixture(scope="module")
def gpu(kernels: None) -> None:
    """A CUDA device, and Triton not interpreting."""
    import torch

    if not torch.cuda.is_available():
        go_without("gpu", "no CUDA device")
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.fail("TRITON_INTERPRET is set: run these in a process of their own", pytrace=False)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_dense_kernels_agree_with_their_references(dtype: str) -> None:
    import torch

    from kernels_profile.kernels.checking import Setting
    from kernels_profile.kernels.dense_checks import dense_checks

    setting = Setting(getattr(torch, dtype), device="cuda")
    assert [wrong for check in dense_checks() if (wrong := check.wrong(setting))] == []


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_expert_and_latent_kernels_agree_with_their_references(dtype: str) -> None:
    import torch

    from kernels_profile.kernels.checking import Setting
    from kernels_profile.kernels.mla_checks import mla_checks
    from kernels_profile.kernels.moe_checks import moe_checks

    setting = Setting(getattr(torch, dtype), device="cuda")
    checks = [*moe_checks(), *mla_checks()]
    assert [wrong for check in checks if (wrong := check.wrong(setting))] == []


def test_fp8_linear_layers_agree_with_their_reference() -> None:
    import torch

    from kernels_profile.kernels.checking import Setting
    from kernels_profile.kernels.dense_checks import fp8_checks

    if torch.cuda.get_device_capability() < (8, 9):
        go_without("fp8", "this GPU has no fp8 matrix instructions")
    setting = Setting(torch.bfloat16, device="cuda")
    assert [wrong for check in fp8_checks() if (wrong := check.wrong(setting))] == []


def test_a_captured_decode_follows_its_inputs() -> None:
    import torch

    from kernels_profile.kernels import decode_attention, reference
    from kernels_profile.kernels.checking import LIMITS, Setting, norm_ratio, paged

    at = Setting(torch.bfloat16, device="cuda")
    cache = paged(at, (700, 3, 64), 16, [(8, 128), (8, 128)])
    q, given = at.normal(3, 32, 128), (*cache.caches, cache.table, cache.contexts, 128**-0.5)
    out = decode_attention.decode_attention(q, *given)  # compiles before the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        decode_attention.decode_attention(q, *given, out=out)
    q.copy_(at.normal(3, 32, 128, scale=2.0))
    graph.replay()
    wide = [
        v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for v in given
    ]
    assert norm_ratio(out, reference.decode_attention(q.double(), *wide)) < LIMITS[at.dtype]
