"""Turns of sessions: the delay before each, its whole prompt, and which tokens it has seen before.

A turn's prompt begins with the tokens of the turn before, prompt then output, cut to the length of
the prompt, and goes on with new ones (rule 40).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal, get_args

import numpy as np

from sim.content import LONGEST, Content
from sim.errors import TraceError, nearest
from sim.request import Trace
from traces.chance import generator
from traces.durations import draw_ns, said
from traces.sessions import Sessions, sessions_of
from traces.values import MAX_COUNT
from traces.workload import resolve

Prompts = Literal["whole", "incremental"]
PROMPTS: tuple[str, ...] = get_args(Prompts)


def draw_delays(
    trace: Trace, distribution: str, mean_s: float, cv: float | None = None, *, seed: int = 0
) -> Trace:
    """The trace with a drawn `delay_ns` for each request, in trace order.

    Args:
        trace: It is not changed.
        distribution: ``constant``, ``exponential``, ``gamma`` or ``lognormal``.
        mean_s: Mean, seconds; above 0 unless ``constant``.
        cv: Coefficient of variation, above 0, of ``gamma`` and ``lognormal``.
        seed: Of the experiment; draws come from its generator ``delays``.

    Raises:
        ValueError: An argument out of bounds, or no such distribution.
        TraceError: A drawn delay is beyond belief.
    """
    rng = generator(seed, "delays")
    what = {"key": "delay", "what": "sessions: a delay"}
    delay_ns = draw_ns(len(trace), distribution, mean_s, cv, rng, **what)
    note = f"Sessions: delays before turns are drawn, {said(distribution, mean_s, cv)}."
    return replace(trace, delay_ns=delay_ns, notes=[*trace.notes, note])


def whole_prompts(trace: Trace, sessions: Sessions, prompts: str | None = None) -> Trace:
    """The trace with the whole prompt of each turn in `prompt_tokens`.

    Args:
        trace: Its outputs cut to what was asked for (`traces.workload.resolve`).
        sessions: Of the trace.
        prompts: ``whole`` if the rows hold whole prompts, ``incremental`` if only what is new since
            the turn before; None to tell from the rows: they are whole if block ids stand for them
            (or the format says so), or if each is long enough for the turn before and its output.

    Raises:
        TraceError: It cannot be told, block ids stand for whole prompts said to be incremental, or
            a prompt adds up to more than any context window.
    """
    if (why := why_whole(trace)) is not None:
        if prompts == "incremental":
            raise TraceError(
                f"{trace.source}: sessions: prompts: incremental, but they are whole: {why};"
                " leave prompts out"
            )
        return trace
    if prompts is None:
        _tell_apart(trace, sessions)
        note = "Sessions: each prompt can hold the turn before; rows were taken as whole prompts."
        return replace(trace, notes=[*trace.notes, note])
    return trace if prompts == "whole" else _added_up(trace, sessions)


def why_whole(trace: Trace) -> str | None:
    """Why the prompts of its rows can only be whole ones; None if they may be new tokens only."""
    if trace.prompts_are_whole:
        return "what was said before has been added on reading"
    return None if trace.block_ids is None else "block ids stand for them from the start"


def _tell_apart(trace: Trace, sessions: Sessions) -> None:
    before, later = sessions.before, sessions.later
    held = trace.prompt_tokens[before] + trace.output_tokens[before]
    short = trace.prompt_tokens[later] < held
    if short.any():
        at = int(later[np.argmax(short)])
        raise TraceError(
            f"{trace.source}:{trace.row[at]}: sessions: {int(short.sum()):,} of {len(later):,}"
            " later turns have prompts shorter than the turn before and its output, so they may"
            " be new tokens only; set workload.sessions.prompts to whole or incremental"
        )


def _added_up(trace: Trace, sessions: Sessions) -> Trace:
    """Prompts of new tokens, with all that was said before in front of them."""
    prompt, output = trace.prompt_tokens.tolist(), trace.output_tokens.tolist()
    before, later = sessions.before, sessions.later
    for earlier, row in zip(before.tolist(), later.tolist(), strict=True):
        prompt[row] += prompt[earlier] + output[earlier]
        if prompt[row] > MAX_COUNT:
            raise TraceError(
                f"{trace.source}:{trace.row[row]}: sessions: prompts add up to {prompt[row]:,}"
                f" tokens; expected at most {MAX_COUNT:,}: are they whole prompts?"
            )
    note = (
        f"Sessions: prompts are incremental; to {len(later):,} of {len(trace):,} the turns before"
        " were added, prompts and outputs."
    )
    whole = np.array(prompt, dtype=np.int64)
    return replace(trace, prompt_tokens=whole, notes=[*trace.notes, note])


def with_content(
    trace: Trace, sessions: Sessions, system_tokens: int = 0, order: str = "stable-first"
) -> Trace:
    """The trace with what each turn shares with the turns before it (rule 40).

    A turn's tokens are those of the turn before, prompt then output, cut to its prompt, and new
    ones. They go on after the prompt with what it may generate, which the next turn finds; as far
    as `max_tokens` allows, so that they do not tell the true output length. Sessions share the
    first `system_tokens` of their prompts and nothing else.

    Turns that only add to the ones before are one run of tokens, however long they are; one that
    cuts them starts another run.

    Args:
        trace: Prompts whole, `max_tokens` settled; it has nothing to say of tokens itself.
        sessions: Of the trace.
        system_tokens: Tokens that all prompts begin with.
        order: ``stable-first``, or ``variable-first``: what is new in a turn stands in front of
            what was said before, and then the next turn finds nothing of it.
    """
    prompt, output = trace.prompt_tokens.tolist(), trace.output_tokens.tolist()
    reach = (trace.prompt_tokens + trace.max_tokens).tolist()
    content: list[Content | None] = [None] * len(trace)
    first = set(sessions.first.tolist())
    system = Content([(0, system_tokens)])
    kept, text, held = system, 0 if system_tokens else -1, 0
    for row in sessions.order.tolist():
        if row in first:
            held = min(system_tokens, prompt[row])
            kept, text = system.cut(held), text + 1
        elif prompt[row] < held:
            held = prompt[row]
            kept, text = Content(_continued(kept, text, held)), text + 1
        told = Content(_continued(kept, text, reach[row]))
        content[row] = in_order(told, held, prompt[row], order)
        held = prompt[row] + output[row]
    return replace(trace, content=content)


def in_order(content: Content, held: int, prompt: int, order: str) -> Content:
    """The same tokens with the part that is new in front, under ``variable-first``.

    Args:
        content: Of the request, what was there before first.
        held: Tokens of the prompt that were there before, or are shared with others.
        prompt: Its length; what lies beyond stays behind it.
        order: ``stable-first`` or ``variable-first``.
    """
    if order != "variable-first":
        return content
    return Content(
        [
            *content.runs(held, prompt),
            *content.runs(0, held),
            *content.runs(prompt, content.tokens),
        ]
    )


def identified(trace: Trace, prompts: str | None = None) -> Trace:
    """The trace with what is known of its prompts: its own ids, or what its sessions say.

    Args:
        trace: As loaded. Without ids and without sessions it is given back as it is.
        prompts: Of its sessions, as for `whole_prompts`.

    Raises:
        TraceError: As `whole_prompts`, or no such kind of prompts.
    """
    if prompts is not None and prompts not in PROMPTS:
        raise TraceError(f"prompts: {prompts!r}{nearest(prompts, PROMPTS)}")
    told = trace.block_ids is not None or trace.content is not None
    if told or trace.session is None:
        return trace
    settled, _ = resolve(trace)
    sessions = sessions_of(settled)
    return with_content(whole_prompts(settled, sessions, prompts), sessions)


def _continued(kept: Content, text: int, tokens: int) -> Iterator[tuple[int, int]]:
    """The first `tokens` of what was kept, then of a text that nothing else is part of."""
    yield from kept.runs(0, tokens)
    yield text * LONGEST + kept.tokens, tokens - kept.tokens
