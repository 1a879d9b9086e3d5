"""What the MLA kernels are held against their references on; see `dense_checks.py`.

Caches hold NaN wherever a kernel must not look: after the last token of a page, and in pages of
nobody. Latents of 32 and rotary keys of 16 stand for 512 and 64.
"""

from __future__ import annotations

from functools import partial

import torch

from kernels_profile.kernels import mla, mla_cache, mla_prefill
from kernels_profile.kernels import reference_mla as reference
from kernels_profile.kernels.checking import Check, Pairs, Setting, paged

LATENT, ROPE, NOPE, VALUE = 32, 16, 32, 16
SCALE = (NOPE + ROPE) ** -0.5
CONTEXTS = {"one": (1,), "unequal": (1, 33, 0, 133), "page edges": (16, 17, 15, 128)}
CHUNKS = {
    "one token": ((1,), (1,)),
    "empty history": ((70,), (70,)),
    "unequal": ((5, 1, 0, 19), (5, 38, 33, 83)),
    "history ends in a page": ((67, 3), (150, 65)),
}
"""(tokens of each chunk, contexts with them)"""


def decode_pairs(
    contexts: str, heads: int, splits: int, config: mla.DecodeConfig, at: Setting
) -> Pairs:
    """Heads that do not fill a tile, over a poisoned cache."""
    cache = paged(at, CONTEXTS[contexts], 16, [(LATENT + ROPE,)])
    rows = len(CONTEXTS[contexts])
    q_latent, q_rope = at.normal(rows, heads, LATENT), at.normal(rows, heads, ROPE)
    given = (cache.caches[0], cache.table, cache.contexts, SCALE)
    out = at.unwritten(rows, heads, LATENT)
    ours = mla.mla_decode(q_latent, q_rope, *given, splits, out, config, at.upcast)
    wide = (cache.caches[0].double(), *given[1:])
    return [(ours, reference.mla_decode(q_latent.double(), q_rope.double(), *wide))]


def prefill_pairs(chunks: str, heads: int, config: mla_prefill.PrefillConfig, at: Setting) -> Pairs:
    """Gather, up-projection and attention."""
    lengths, contexts = CHUNKS[chunks]
    cache = paged(at, contexts, 16, [(LATENT + ROPE,)])
    starts = torch.tensor([0, *lengths]).cumsum(0).int().to(at.device)
    q = at.normal(sum(lengths), heads, NOPE + ROPE)
    up_w = at.normal(heads * (NOPE + VALUE), LATENT, scale=LATENT**-0.5)
    out = at.unwritten(sum(lengths), heads, VALUE)
    given = (cache.table, starts, cache.contexts)
    ours = mla.mla_prefill(
        q, cache.caches[0], *given, up_w, SCALE, NOPE, max(lengths), sum(contexts), out, config,
        at.upcast,
    )  # fmt: skip
    rows = cache.caches[0].double()
    expected = reference.mla_prefill(q.double(), rows, *given, up_w.double(), SCALE, NOPE)
    return [(ours, expected)]


def write_pairs(heads: int, config: mla_cache.WriteConfig, at: Setting) -> Pairs:
    """Positions out of order, one padding token, and slots that nobody may touch."""
    q = at.normal(5, heads, NOPE + ROPE)
    angles = torch.rand((40, ROPE // 2), generator=torch.Generator().manual_seed(1)) * 6.28
    cos, sin = angles.cos().to(at.device), angles.sin().to(at.device)
    places, slots = torch.tensor([[7, 0, 39, 8, 3], [11, 0, 5, -1, 6]], device=at.device)
    compressed, weight = at.normal(5, LATENT + ROPE, scale=3.0), at.normal(LATENT)
    whole = at.normal(4, 4, LATENT + ROPE)
    before, cache = whole[0].clone(), whole[1:]  # slot -1 is in the page before
    tensors = (compressed.double(), weight.double())
    rest = (cos.double(), sin.double(), places, slots, cache.double())
    expected = reference.latent_write(*tensors, 1e-6, q[:, :, NOPE:].double(), *rest)
    mla.latent_write(
        compressed, weight, 1e-6, q[:, :, NOPE:], cos, sin, places, slots, cache, config
    )
    return [(q[:, :, NOPE:], expected[0]), (cache, expected[1]), (whole[0], before)]


def mla_checks() -> list[Check]:
    """All of them; every configuration of a matrix kernel is run."""
    each = [
        (config, *case) for config in mla.CONFIGS for case in (("unequal", 5, 3), ("one", 70, 1))
    ]
    tiles = (mla.SMALL[0], mla.WIDE[0])
    once = [
        (config, *case) for config in tiles for case in (("page edges", 16, 2), ("unequal", 70, 1))
    ]
    decodes = [
        Check(
            f"mla_decode {c} heads={h} splits={s} {config}", partial(decode_pairs, c, h, s, config)
        )
        for config, c, h, s in (*each, *once)
    ]
    prefills = [
        Check(f"mla_prefill {chunks} {config}", partial(prefill_pairs, chunks, 3, config))
        for config in mla_prefill.CONFIGS
        for chunks in CHUNKS
    ]
    writes = [
        Check(f"latent_write heads={h} {config}", partial(write_pairs, h, config))
        for h, config in zip((3, 40), mla_cache.CONFIGS, strict=True)
    ]
    return [*decodes, *prefills, *writes]
