"""Prefix reuse of a trace as figures and lines of text: what ``phasewise trace prefix`` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sim.errors import TraceError
from traces.eviction import EVICTIONS, hits_under
from traces.reuse import PrefixReuse

SHARES = ("1%", "5%", "10%", "25%", "50%", "100%")
"""Capacities that are shown unless others are asked for."""


def capacity_of(text: str, unique_blocks: int) -> int:
    """Blocks that a capacity such as ``4096`` or ``5%`` (of the different blocks) stands for.

    Raises:
        TraceError: It is neither.
    """
    number = text.strip().removesuffix("%").rstrip()
    share = text.strip().endswith("%")
    try:
        value = float(number) if share else int(number.replace("_", ""))
    except ValueError:
        value = -1
    if not 0 <= value <= (100 if share else 10**12):
        raise TraceError(
            f"--capacity {text}: expected blocks, such as 4096, or a share of the different blocks,"
            " such as 5%"
        )
    return int(value * unique_blocks / 100) if share else int(value)


def figures(
    reuse: PrefixReuse, capacities: Sequence[str] = SHARES, eviction: str = "lru"
) -> dict[str, Any]:
    """What is found by an unlimited cache, and by caches of these capacities.

    Args:
        reuse: Of the trace.
        capacities: See `capacity_of`.
        eviction: One of `EVICTIONS`.

    Raises:
        TraceError: A capacity or an order that is none.
    """
    if eviction not in EVICTIONS:
        raise TraceError(f"--eviction {eviction}: expected one of {', '.join(EVICTIONS)}")
    curve = []
    for text in capacities:
        blocks = capacity_of(text, reuse.unique_blocks)
        hits = reuse.hits(blocks) if eviction == "lru" else hits_under(reuse, eviction, blocks)
        found = _found(reuse, int(hits.sum()), int((hits > 0).sum()))
        curve.append({"capacity": text, "capacity_blocks": blocks, **found})
    unlimited = reuse.hits()
    return {
        "requests": reuse.requests,
        "block_tokens": reuse.block_tokens,
        "prompt_tokens": reuse.prompt_tokens,
        "full_blocks": reuse.full_blocks,
        "unique_blocks": reuse.unique_blocks,
        "unlimited": _found(reuse, int(unlimited.sum()), int((unlimited > 0).sum())),
        "eviction": eviction,
        "curve": curve,
    }


def _found(reuse: PrefixReuse, blocks: int, requests: int) -> dict[str, Any]:
    tokens = blocks * reuse.block_tokens
    return {
        "hit_requests": requests,
        "hit_blocks": blocks,
        "hit_tokens": tokens,
        "hit_share_of_blocks": blocks / reuse.full_blocks if reuse.full_blocks else 0.0,
        "hit_share_of_tokens": tokens / reuse.prompt_tokens if reuse.prompt_tokens else 0.0,
    }


def render(source: str, shown: dict[str, Any]) -> str:
    """`figures` as lines of text."""
    size, unlimited = shown["block_tokens"], shown["unlimited"]
    lines = [
        f"{source}: prefix reuse, requests one after the other",
        f"blocks      {size} tokens each; {shown['full_blocks']:,} full ones in prompts,"
        f" {shown['unique_blocks']:,} different",
        f"unlimited   finds {unlimited['hit_blocks']:,} blocks"
        f" ({unlimited['hit_share_of_blocks']:.1%} of blocks), {unlimited['hit_tokens']:,} of"
        f" {shown['prompt_tokens']:,} prompt tokens ({unlimited['hit_share_of_tokens']:.1%}),"
        f" for {unlimited['hit_requests']:,} of {shown['requests']:,} requests",
        f"{shown['eviction']:<12}{'blocks':>12}{'tokens':>16}{'found':>12}{'of tokens':>12}"
        f"{'requests':>12}",
    ]
    for row in shown["curve"]:
        blocks = row["capacity_blocks"]
        lines.append(
            f"{row['capacity']:<12}{blocks:>12,}{blocks * size:>16,}{row['hit_blocks']:>12,}"
            f"{row['hit_share_of_tokens']:>12.1%}{row['hit_requests']:>12,}"
        )
    return "\n".join(lines)
