"""What the dense kernels are held against their references on: small, odd, and each with a trap.

Sizes are no multiples of any tile; there are empty histories, single tokens, unequal contexts, a
last page that is not full, padding rows, and NaN wherever a kernel must not look.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, TypeVar

import torch

from kernels_profile.kernels import (
    activation,
    decode_attention,
    linear,
    norm,
    prefill_attention,
    reference,
    rotary,
    sampling,
)
from kernels_profile.kernels.checking import Check, Paged, Pairs, Setting, paged

T = TypeVar("T")
LINEAR_SHAPES = ((1, 3, 5), (17, 70, 129), (67, 130, 200))
"""(m, n, k)"""
CHUNKS = {
    "one token": ((1,), (1,)),
    "empty history": ((70,), (70,)),
    "unequal": ((5, 1, 0, 19), (5, 38, 33, 83)),
    "history ends in a page": ((67, 3), (150, 65)),
}
"""(tokens of each chunk, contexts with them)"""
CONTEXTS = {"one": (1,), "unequal": (1, 64, 0, 133, 300), "page edges": (16, 17, 128)}
HEADS = ((4, 4, 16), (6, 2, 24), (8, 1, 64))
"""(heads, kv_heads, head_dim)"""


def linear_pairs(m: int, n: int, k: int, config: linear.LinearConfig, at: Setting) -> Pairs:
    """Rows of x and w lie apart in memory, with NaN between them."""
    x, w = _apart(at.normal(m, k)), _apart(at.normal(n, k))
    ours = linear.linear(x, w, at.unwritten(m, n), config, at.upcast)
    return [(ours, reference.linear(x.double(), w.double()))]


def fp8_pairs(m: int, n: int, k: int, per_row: bool, at: Setting) -> Pairs:
    """e4m3 operands, the output in the setting's type."""
    x, w = (at.normal(rows, k).to(torch.float8_e4m3fn) for rows in (m, n))
    scale, other = (at.normal(rows if per_row else 1).float().abs() + 0.5 for rows in (m, n))
    config = linear.choose(m, n, k, fp8=True)[-1]
    ours = linear.linear_fp8(x, w, scale, other, at.unwritten(m, n), config, at.upcast)
    return [(ours, reference.linear_fp8(x, w, scale.double(), other.double()))]


def rms_norm_pairs(tokens: int, width: int, residual: bool, at: Setting) -> Pairs:
    """With and without a residual."""
    x, weight = at.normal(tokens, width), at.normal(width)
    added = at.normal(tokens, width, scale=3.0) if residual else None
    out = (at.unwritten(tokens, width), at.unwritten(tokens, width))
    ours = norm.rms_norm_residual(x, added, weight, 1e-5, out)
    wide = None if added is None else added.double()
    return _zip(ours, reference.rms_norm_residual(x.double(), wide, weight.double(), 1e-5))


def qk_norm_pairs(heads: int, kv_heads: int, head_dim: int, at: Setting) -> Pairs:
    """q and k are parts of one fused tensor, as a model has them."""
    q, k, _ = _qkv(5, heads, kv_heads, head_dim, at)
    given = {"q_weight": at.normal(head_dim), "k_weight": at.normal(head_dim, scale=2.0)}
    expected = reference.qk_norm(q.double(), k.double(), **_wide(given), eps=1e-6)
    norm.qk_norm(q, k, **given, eps=1e-6)
    return _zip((q, k), expected)


def rotary_pairs(heads: int, kv_heads: int, head_dim: int, at: Setting) -> Pairs:
    """Positions out of order, one padding token, and slots that nobody may touch."""
    q, k, v = _qkv(5, heads, kv_heads, head_dim, at)
    angles = torch.rand((40, head_dim // 2), generator=torch.Generator().manual_seed(1)) * 6.28
    cos, sin = angles.cos().to(at.device), angles.sin().to(at.device)
    places = torch.tensor([[7, 0, 39, 8, 3], [11, 0, 5, -1, 6]], device=at.device)
    caches = at.normal(2, 4, 3, kv_heads, head_dim)
    given: dict[str, Any] = {
        "q": q, "k": k, "v": v, "cos": cos, "sin": sin, "positions": places[0], "slots": places[1],
        "k_cache": caches[0], "v_cache": caches[1],
    }  # fmt: skip
    expected = reference.rotary_kv_write(**_wide(given))
    rotary.rotary_kv_write(**given)
    return _zip((q, *caches), expected)


def prefill_pairs(
    heads: int,
    kv_heads: int,
    head_dim: int,
    chunks: str,
    config: prefill_attention.PrefillConfig,
    at: Setting,
) -> Pairs:
    """Chunks of `CHUNKS` over a poisoned paged cache."""
    lengths, contexts = CHUNKS[chunks]
    cache = paged(at, contexts, 16, [(kv_heads, head_dim)] * 2)
    starts = torch.tensor([0, *lengths]).cumsum(0).int().to(at.device)
    q, _, _ = _qkv(sum(lengths), heads, kv_heads, head_dim, at)
    out = at.unwritten(*q.shape)
    given = {**_cache(cache), "q": q, "chunk_starts": starts, "scale": head_dim**-0.5}
    ours = prefill_attention.prefill_attention(
        **given, max_chunk=max(lengths), out=out, config=config, upcast=at.upcast
    )
    return [(ours, reference.prefill_attention(**_wide(given)))]


def decode_pairs(
    heads: int,
    kv_heads: int,
    head_dim: int,
    contexts: str,
    splits: int,
    config: decode_attention.DecodeConfig,
    at: Setting,
) -> Pairs:
    """Contexts of `CONTEXTS` over a poisoned paged cache."""
    lengths = CONTEXTS[contexts]
    cache = paged(at, lengths, 16, [(kv_heads, head_dim)] * 2)
    q, _, _ = _qkv(len(lengths), heads, kv_heads, head_dim, at)
    given = {**_cache(cache), "q": q, "scale": head_dim**-0.5}
    ours = decode_attention.decode_attention(
        **given, splits=splits, out=at.unwritten(*q.shape), config=config, upcast=at.upcast
    )
    return [(ours, reference.decode_attention(**_wide(given)))]


def silu_mul_pairs(tokens: int, inner: int, at: Setting) -> Pairs:
    """Gate and up in one tensor."""
    gate_up = at.normal(tokens, 2 * inner, scale=2.0)
    ours = activation.silu_mul(gate_up, at.unwritten(tokens, inner))
    return [(ours, reference.silu_mul(gate_up.double()))]


def lm_head_pairs(n: int, vocab: int, width: int, config: Any, at: Setting) -> Pairs:
    """The reference's largest logit against its logit of the id that we chose.

    Two logits may differ by less than float32 sums do, so ids are not compared.
    """
    hidden, weight = at.normal(n, width), at.normal(vocab, width)
    logits = hidden.double() @ weight.double().T
    ids = sampling.lm_head_greedy(hidden, weight, config=config, upcast=at.upcast)
    return [(_chosen(logits, ids), logits.max(dim=1).values)]


def greedy_pairs(n: int, vocab: int, at: Setting) -> Pairs:
    """Ids over more than one tile, with equal logits in different ones."""
    logits = at.normal(n, vocab)
    logits[0, vocab // 3] = logits[0, vocab - 2] = 50.0
    return [(sampling.greedy(logits), reference.greedy(logits.double()))]


def dense_checks() -> list[Check]:
    """All of them; every configuration of a matrix kernel is run."""
    return [*_linear_checks(), *_elementwise_checks(), *_attention_checks(), *_sampling_checks()]


def _linear_checks() -> list[Check]:
    return [
        Check(f"linear {m}x{n}x{k} {config}", partial(linear_pairs, m, n, k, config))
        for m, n, k in LINEAR_SHAPES
        for config in linear.choose(m, n, k)
    ]


def fp8_checks() -> list[Check]:
    """fp8 linear layers, apart as not every GPU has them."""
    return [
        Check(f"linear_fp8 {m}x{n}x{k} per_row={rows}", partial(fp8_pairs, m, n, k, rows))
        for m, n, k in ((1, 16, 32), (17, 70, 144), (67, 130, 208))
        for rows in (False, True)
    ]


def _elementwise_checks() -> list[Check]:
    norms = [
        Check(f"rms_norm {t}x{w} residual={r}", partial(rms_norm_pairs, t, w, r))
        for t, w in ((1, 5), (3, 1000), (2, 5121))
        for r in (True, False)
    ]
    heads = [
        check
        for shape in HEADS
        for check in (
            Check(f"qk_norm heads={shape}", partial(qk_norm_pairs, *shape)),
            Check(f"rotary heads={shape}", partial(rotary_pairs, *shape)),
        )
    ]
    shapes = ((1, 7), (65, 1030))
    silu = [Check(f"silu_mul {t}x{w}", partial(silu_mul_pairs, t, w)) for t, w in shapes]
    return [*norms, *heads, *silu]


def _attention_checks() -> list[Check]:
    prefill = [
        Check(f"prefill {chunks} heads={h} {c}", partial(prefill_pairs, *h, chunks, c))
        for number, chunks in enumerate(CHUNKS)
        for h, c in zip(_turned(HEADS, number), prefill_attention.CONFIGS, strict=True)
    ]
    decode = [
        Check(f"decode {ctx} heads={h} splits={s} {c}", partial(decode_pairs, *h, ctx, s, c))
        for number, ctx in enumerate(CONTEXTS)
        for h, s, c in zip(
            _turned(HEADS, number),
            _turned((1, 3, 8), number),
            decode_attention.CONFIGS,
            strict=True,
        )
    ]
    return [*prefill, *decode]


def _sampling_checks() -> list[Check]:
    heads = [
        Check(f"lm_head_greedy {n}x{v}x{w} {c}", partial(lm_head_pairs, n, v, w, c))
        for n, v, w in ((1, 5, 3), (17, 200, 70), (67, 150, 129))
        for c in sampling.choose(n)
    ]
    return [*heads, *(Check(f"greedy {n}x{v}", partial(greedy_pairs, n, v)) for n, v in SCANS)]


SCANS = ((1, 7), (3, 9001))
"""(rows, vocabulary) for greedy sampling alone."""


def _apart(x: torch.Tensor) -> torch.Tensor:
    """The same numbers with three NaN after each row."""
    wide = torch.full((x.shape[0], x.shape[1] + 3), float("nan"), dtype=x.dtype, device=x.device)
    wide[:, : x.shape[1]] = x
    return wide[:, : x.shape[1]]


def _turned(values: Sequence[T], places: int) -> list[T]:
    """The same values, the first `places` of them moved to the end: each meets each in turn."""
    places %= len(values)
    return [*values[places:], *values[:places]]


def _qkv(
    tokens: int, heads: int, kv_heads: int, head_dim: int, at: Setting
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k and v as parts of one tensor, `(tokens, heads or kv_heads, head_dim)` each."""
    fused = at.normal(tokens, heads + 2 * kv_heads, head_dim)
    return fused[:, :heads], fused[:, heads : heads + kv_heads], fused[:, heads + kv_heads :]


def _cache(cache: Paged) -> dict[str, Any]:
    """The arguments of attention that a cache gives."""
    (k, v), table = cache.caches, cache.table
    return {"k_cache": k, "v_cache": v, "block_table": table, "contexts": cache.contexts}


def _wide(given: dict[str, Any]) -> dict[str, Any]:
    """Floating-point tensors as float64, all else as it is."""
    return {key: value.double() if _floating(value) else value for key, value in given.items()}


def _floating(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _zip(ours: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> Pairs:
    return list(zip(ours, expected, strict=True))


def _chosen(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return logits.gather(1, ids[:, None])[:, 0]
