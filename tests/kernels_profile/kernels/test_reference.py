"""The references themselves, against torch's own functions and results worked out by hand."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.kernels, pytest.mark.usefixtures("interpreted")]


def test_attention_is_torchs() -> None:
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    from kernels_profile.kernels import reference

    q, k, v = (torch.randn(7, heads, 16, dtype=torch.float64) for heads in (6, 2, 2))
    given = (tensor.transpose(0, 1)[None] for tensor in (q, k, v))
    expected = scaled_dot_product_attention(*given, is_causal=True, scale=0.3, enable_gqa=True)
    ours = reference.attention(q, k, v, 0.3, first=0)
    assert torch.allclose(ours, expected[0].transpose(0, 1), atol=1e-12)


def test_a_chunk_over_history_is_the_end_of_the_whole() -> None:
    import torch

    from kernels_profile.kernels import reference

    q, k, v = (torch.randn(9, 2, 8, dtype=torch.float64) for _ in range(3))
    whole = reference.attention(q, k, v, 1.0, first=0)
    assert torch.allclose(reference.attention(q[5:], k, v, 1.0, first=5), whole[5:], atol=1e-12)


def test_prefill_and_decode_read_pages_in_the_tables_order() -> None:
    import torch

    from kernels_profile.kernels import reference
    from kernels_profile.kernels.checking import Setting, paged

    cache = paged(Setting(torch.float64), (5, 1, 9), 4, [(2, 8), (2, 8)])
    q = torch.randn(3, 4, 8, dtype=torch.float64)
    decoded = reference.decode_attention(q, *cache.caches, cache.table, cache.contexts, 0.5)
    starts = torch.arange(4)
    given = (*cache.caches, cache.table, starts, cache.contexts, 0.5)
    assert torch.equal(decoded, reference.prefill_attention(q, *given))
    k, v = (c.flatten(0, 1)[cache.slots(2, 0, 9)] for c in cache.caches)
    assert torch.allclose(decoded[2], reference.attention(q[2:], k, v, 0.5, first=8)[0])


def test_norm_and_activation_are_torchs() -> None:
    import torch
    from torch.nn.functional import rms_norm, silu

    from kernels_profile.kernels import reference

    x, y, w = (torch.randn(*shape, dtype=torch.float64) for shape in ((3, 8), (3, 8), (8,)))
    normed, total = reference.rms_norm_residual(x, y, w, 1e-5)
    assert torch.equal(total, x + y)
    assert torch.allclose(normed, rms_norm(x + y, (8,), w, 1e-5))
    assert torch.allclose(reference.silu_mul(x), silu(x[:, :4]) * x[:, 4:])


def test_rotation_turns_pairs_half_a_head_apart() -> None:
    import torch

    from kernels_profile.kernels import reference

    x = torch.tensor([[[1.0, 0.0, 0.0, 2.0]]], dtype=torch.float64)
    cos, sin = torch.tensor([[0.0, 1.0]]).double(), torch.tensor([[1.0, 0.0]]).double()
    # Pair (x0, x2) = (1, 0) by 90 degrees: (0, 1); pair (x1, x3) by 0 degrees: as it was.
    assert reference.rotate(x, cos, sin).flatten().tolist() == [0.0, 0.0, 1.0, 2.0]


def test_the_lowest_of_equal_logits_wins() -> None:
    import torch

    from kernels_profile.kernels import reference

    assert reference.greedy(torch.tensor([[1.0, 3.0, 3.0], [0.0, -1.0, 0.0]])).tolist() == [1, 0]


def test_a_poisoned_cache_has_numbers_only_where_a_sequence_is() -> None:
    import torch

    from kernels_profile.kernels.checking import Setting, paged

    cache = paged(Setting(torch.float32), (5, 0, 8), 4, [(1, 2)])
    numbers = torch.isfinite(cache.caches[0]).all(dim=(2, 3))
    assert int(numbers.sum()) == 13
    assert int(torch.isnan(cache.caches[0]).all(dim=(2, 3)).sum()) == numbers.numel() - 13
    assert not numbers[int(cache.table[1, 0])].any()  # an empty sequence's table leads to NaN
