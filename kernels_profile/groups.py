"""What the busiest of several groups of GPUs computes that attend different requests."""

from __future__ import annotations

from dataclasses import dataclass

from sim.step_time import StepWork


@dataclass(frozen=True)
class GroupWork:
    """Sums over the requests of one group, bounds from below on the busiest one.

    Requests are spread as evenly as can be: a group has an equal share of everything, but a chunk
    of a prompt and a decode are not divided. (Longest first, no group exceeds such a bound by more
    than a third: Graham, SIAM Journal on Applied Mathematics 17, 1969.)

    Attributes:
        rows: Prefill tokens and decodes.
        sampled: Sequences that go through the LM head.
        requests: Chunks and decodes.
        prefill_tokens: Tokens of chunks.
        prefill_pairs_x2: Twice the pairs of causal attention of chunks.
        history: Tokens before the chunks.
        longest: Longest context of a chunk.
        decode_rows: Decodes, finished ones that are kept included.
        attending: Decodes that attend.
        context_tokens: Sum of their contexts.
    """

    rows: int
    sampled: int
    requests: int
    prefill_tokens: float
    prefill_pairs_x2: float
    history: float
    longest: int
    decode_rows: int
    attending: int
    context_tokens: float


def busiest_group(work: StepWork, groups: int) -> GroupWork:
    """The work of the busiest of `groups`; with one group that of all."""
    most_tokens = most_pairs = most_before = longest = history = 0
    for tokens, before in work.chunks:
        history += before
        most_tokens = max(most_tokens, tokens)
        most_before = max(most_before, before)
        most_pairs = max(most_pairs, tokens * (2 * before + tokens + 1))
        longest = max(longest, tokens + before)
    attending = share(work.attending_rows, groups)
    rows = share(work.prefill_tokens + work.decode_rows, groups)
    return GroupWork(
        rows=max(rows, most_tokens),
        sampled=share(work.sampled_rows, groups),
        requests=share(work.decode_rows + len(work.chunks), groups),
        prefill_tokens=max(most_tokens, work.prefill_tokens / groups),
        prefill_pairs_x2=max(most_pairs, work.prefill_pairs_x2 / groups),
        history=max(most_before, history / groups),
        longest=longest,
        decode_rows=share(work.decode_rows, groups),
        attending=attending,
        context_tokens=work.context_tokens * attending / max(1, work.attending_rows),
    )


def share(count: int, groups: int) -> int:
    """The most of `count` indivisible things that one of `groups` has at least."""
    return -(-count // groups)
