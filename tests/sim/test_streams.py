"""KV sent while its prefill goes on, layer by layer or chunk by chunk (`sim.streams`, rule 66)."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import ceil
from typing import Any, NamedTuple

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sim.errors import ConfigError
from sim.transfer import TransferSpec
from tests.conformance import adapter
from tests.sim.test_links import rates_by_hand
from tests.sim.test_push import REPLICAS, STAGED
from tests.sim.timeline import Request, Timeline, pools, replica, run_giving_up

BOTH = pytest.mark.parametrize("fast_forward", [True, False])
SHARED = pytest.mark.parametrize("sharing", ["none", "max-min"])


def streamed(
    requests: Sequence[Request],
    layout: dict[str, Any],
    overlap: str,
    *,
    fast_forward: bool,
    cancelled: dict[int, int] | None = None,
    **options: Any,
) -> Timeline:
    transfer = layout["transfer"] | {"start": "push", "overlap": overlap, "layers": 2} | options
    layout = layout | {"transfer": transfer}
    return run_giving_up(requests, cancelled or {}, layout, fast_forward=fast_forward)


def moves(got: Timeline) -> list[tuple[int, ...]]:
    """Request, start and end of each transfer that ended."""
    return [(t[0], t[3], t[4]) for t in got.transfers]


PLAIN = pools([replica("orca", 10)], [replica("vllm-v1", 10)])
SMALL = pools([replica("orca", 10)], [replica("vllm-v1", 3)])


@BOTH
@SHARED
def test_all_layers_but_the_last_flow_beside_the_prefill(fast_forward: bool, sharing: str) -> None:
    got = streamed(
        [(0, 8, 2)], PLAIN, "layerwise", fast_forward=fast_forward, sharing=sharing, layers=4
    )
    # 0: 8 tokens: 18. Six of the 8 us of KV are gone by then; the last layer: 20. Decode: 32.
    assert got.tokens == [[18, 32]]
    assert moves(got) == [(0, 0, 20)]


@BOTH
@SHARED
def test_a_slow_link_is_never_idle(fast_forward: bool, sharing: str) -> None:
    got = streamed(
        [(0, 8, 2)],
        PLAIN,
        "layerwise",
        fast_forward=fast_forward,
        sharing=sharing,
        kv_bytes_per_token=3,
        latency_s=2e-6,
    )
    # 24 us of KV in two layers from 2 on: 26; the prefill ends at 18, its last layer would at 32.
    assert moves(got) == [(0, 0, 32)]
    slower = streamed(
        [(0, 8, 2)],
        PLAIN,
        "layerwise",
        fast_forward=fast_forward,
        sharing=sharing,
        kv_bytes_per_token=5,
        latency_s=2e-6,
    )
    # 40 us: 42 if it never stops. The first layer is gone at 22, when the second may begin (20).
    assert moves(slower) == [(0, 0, 42)]


@BOTH
def test_short_prompts_are_sent_as_a_whole(fast_forward: bool) -> None:
    got = streamed(
        [(0, 4, 2), (30, 5, 2)],
        PLAIN,
        "layerwise",
        fast_forward=fast_forward,
        layerwise_above_tokens=4,
    )
    # 4 tokens: 14, then 4 us. 5 tokens, two blocks: 30 to 45; the last layer: 49.
    assert moves(got) == [(0, 14, 18), (1, 30, 49)]


TIGHT = pools(
    [replica("vllm-v1", 3, max_num_batched_tokens=8, long_prefill_token_threshold=4)],
    [replica("vllm-v1", 10)],
)


@BOTH
@pytest.mark.parametrize(
    ("overlap", "sharing", "ends"),
    [
        # 0: four tokens of each: 18. 18: the third block goes to the first (14 us: 32), the second
        # preempts itself. Layer by layer: the first ends at 32 + 4. 32: the second starts anew:
        # 46, 60, and its last layer: 64.
        ("layerwise", "none", [(0, 0, 36), (1, 32, 64)]),
        # Shared: from 32 on the first's last layer and the second's first have a half each: 40.
        ("layerwise", "max-min", [(0, 0, 40), (1, 32, 64)]),
        # Chunk by chunk: the first from 18 to 22, and from 32 to 36. The second has released a
        # block at 18, in vain; again at 46, and the other at 60: 64.
        ("chunked", "none", [(0, 18, 36), (1, 46, 64)]),
        ("chunked", "max-min", [(0, 18, 36), (1, 46, 64)]),
    ],
)
def test_a_preemption_calls_it_off_and_it_starts_anew(
    overlap: str, sharing: str, ends: list[tuple[int, ...]], fast_forward: bool
) -> None:
    got = streamed(
        [(0, 8, 2), (0, 8, 2)], TIGHT, overlap, fast_forward=fast_forward, sharing=sharing
    )
    assert got.preemptions == [0, 1]
    assert got.tokens == [[32, ends[0][2] + 12], [60, 76]]
    assert moves(got) == ends


@BOTH
@SHARED
@pytest.mark.parametrize("when", [7, 17])
def test_who_gives_up_in_its_prefill_is_called_off(
    when: int, sharing: str, fast_forward: bool
) -> None:
    got = streamed(
        [(0, 8, 2), (0, 5, 2)],
        SMALL,
        "layerwise",
        fast_forward=fast_forward,
        sharing=sharing,
        cancelled={0: when},
    )
    # The first has two of three blocks there until its step ends at 18. Then the second starts,
    # which needs two: 33, and its last layer: 37.
    assert got.states == ["cancelled", "finished"]
    assert moves(got) == [(1, 18, 37)]


@BOTH
@SHARED
def test_who_gives_up_as_its_prefill_ends_is_sent(sharing: str, fast_forward: bool) -> None:
    got = streamed(
        [(0, 8, 2), (0, 5, 2)],
        SMALL,
        "layerwise",
        fast_forward=fast_forward,
        sharing=sharing,
        cancelled={0: 18},
    )
    # Its blocks there come back when the transfer ends, at 22.
    assert got.tokens == [[18], [37, 53]]
    assert moves(got) == [(0, 0, 22), (1, 22, 41)]


@BOTH
@SHARED
def test_who_ends_at_the_first_token_is_not_sent(sharing: str, fast_forward: bool) -> None:
    got = streamed(
        [(0, 8, 1, 3), (0, 5, 2)], SMALL, "layerwise", fast_forward=fast_forward, sharing=sharing
    )
    assert got.tokens == [[18], [33, 49]]
    assert moves(got) == [(1, 18, 37)]


@BOTH
def test_ends_of_one_instant_are_in_order_of_start(fast_forward: bool) -> None:
    layout = pools(
        [replica("orca", 10, step={"prefill": 3}), replica("orca", 10)],
        [replica("orca", 20, max_batch_size=1)],
    )
    got = streamed(
        [(0, 16, 2), (26, 16, 2)],
        layout,
        "layerwise",
        fast_forward=fast_forward,
        kv_bytes_per_token=4,
    )
    # The first: prefill 0 to 58, its last layer 58 + 32. The second: 26 to 52, all of it 26 + 64.
    # Both end at 90. One seat: the first to start is the first to decode.
    assert moves(got) == [(0, 0, 90), (1, 26, 90)]
    assert got.tokens == [[58, 102], [52, 114]]


CHUNKS = pools([replica("sarathi", 10, budget_tokens=4)], [replica("vllm-v1", 10)])


@BOTH
@SHARED
@pytest.mark.parametrize(
    ("kv_bytes", "latency", "end"),
    [
        # 10 tokens in chunks of 4, 4 and 2: 14, 28 and 40. Three blocks, one with each chunk.
        (1, 0, 44),  # 4 us for each, the link waits for the chunks
        (3, 0, 52),  # 12 us each: 14 to 26, 28 to 40, 40 to 52
        (3, 5, 57),  # 19 to 31, 33 to 45, 45 to 57
        (4, 0, 62),  # 16 us each from 14 on without a pause
        (4, 5, 67),
    ],
)
def test_each_chunk_is_sent_when_its_step_ends(
    kv_bytes: int, latency: int, end: int, sharing: str, fast_forward: bool
) -> None:
    got = streamed(
        [(0, 10, 2)],
        CHUNKS,
        "chunked",
        fast_forward=fast_forward,
        sharing=sharing,
        kv_bytes_per_token=kv_bytes,
        latency_s=latency / 1e6,
    )
    assert moves(got) == [(0, 14, end)]
    assert got.tokens == [[40, end + 12]]


@BOTH
@SHARED
def test_a_partial_block_waits_for_its_chunk(sharing: str, fast_forward: bool) -> None:
    layout = pools([replica("sarathi", 10, budget_tokens=3)], [replica("vllm-v1", 10)])
    got = streamed([(0, 8, 2)], layout, "chunked", fast_forward=fast_forward, sharing=sharing)
    # Chunks of 3, 3 and 2: 13, 26, 38. No block at 13, one at 26, one at 38.
    assert moves(got) == [(0, 26, 42)]
    alone = streamed([(0, 3, 2)], layout, "chunked", fast_forward=fast_forward, sharing=sharing)
    assert moves(alone) == [(0, 13, 17)]  # one chunk: as without overlap


class Attempt(NamedTuple):
    """What a prefill released, ns and bytes, when it was preempted, and whether it was complete."""

    request: int
    source: str
    target: str
    parts: list[tuple[int, int]]
    off_ns: int | None


def attempts_of(
    log: dict[str, Any], spec: dict[str, Any], targets: dict[int, str]
) -> list[Attempt]:
    """Read from the decisions alone, for replicas without a cache, in order of start."""
    wire, found = spec["disaggregated"]["transfer"], []
    for name, steps in log.items():
        if not name.startswith("prefill"):
            continue
        block = spec["disaggregated"]["prefill"][0]["block_tokens"]
        done: dict[int, tuple[int, list[tuple[int, int]]]] = {}
        for start, end, tokens, preempted, _ in steps:
            for i in preempted:
                if i in done and done[i][1]:
                    found.append(Attempt(i, name, targets.get(i, ""), done[i][1], start))
                done.pop(i, None)
            for i, new in tokens.items():
                computed, parts = done.get(i, (0, []))
                whole = spec["requests"][i]["prompt_tokens"]
                computed += new
                blocks = ceil(whole / block) if computed == whole else computed // block
                size = blocks * block * wire["kv_bytes_per_token"] - sum(b for _, b in parts)
                done[i] = computed, [*parts, *([(end, size)] if size else [])]
                if computed == whole:
                    found.append(Attempt(i, name, targets.get(i, ""), done[i][1], None))
    return found


def fluid(attempts: list[Attempt], bytes_per_ns: Fraction, latency_ns: int) -> list[int | None]:
    """Ends of transfers whose parts come one by one: rates hold between two moments (rule 64)."""
    opens = [[(t + latency_ns, size) for t, size in a.parts] for a in attempts]
    sent = [Fraction(0)] * len(attempts)
    ends: list[int | None] = [None] * len(attempts)
    moments = sorted(
        {t for parts in opens for t, _ in parts} | {a.off_ns for a in attempts} - {None}
    )
    now = Fraction(moments[0])
    links = sorted({(a.source, "out") for a in attempts} | {(a.target, "in") for a in attempts})
    while True:
        free = [sum(size for t, size in parts if t <= now) for parts in opens]
        on = {
            k: (links.index((a.source, "out")), links.index((a.target, "in")))
            for k, a in enumerate(attempts)
            if sent[k] < free[k] and (a.off_ns is None or now < a.off_ns)
        }
        rates = rates_by_hand([bytes_per_ns] * len(links), on)
        later = [Fraction(t) for t in moments if t > now]
        later += [now + (free[k] - sent[k]) / rates[k] for k in on]
        if not later:
            return ends
        then = min(later)
        for k in on:
            sent[k] += rates[k] * (then - now)
            if attempts[k].off_ns is None and sent[k] == sum(size for _, size in attempts[k].parts):
                ends[k] = ceil(then)
        now = then


SIDES = st.sampled_from(
    [
        replica("sarathi", 12, budget_tokens=3),
        replica("sarathi", 12, budget_tokens=7),
        replica("vllm-v1", 6, max_num_batched_tokens=9, long_prefill_token_threshold=4),
        replica("vllm-v1", 8, max_num_batched_tokens=5),
    ]
)


@settings(max_examples=120, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 60), st.integers(1, 20), st.integers(2, 5)), min_size=1, max_size=8
    ),
    SIDES,
    st.integers(1, 2),
    st.integers(1, 2),
    st.sampled_from([1, 3, 7]),
    st.sampled_from([0, 2e-6]),
)
def test_chunks_flow_as_a_fluid_computed_from_the_steps(
    rows: list[Request],
    side: dict[str, Any],
    sources: int,
    targets: int,
    kv_bytes: int,
    latency_s: float,
) -> None:
    layout = pools([side] * sources, [replica("vllm-v1", 12)] * targets)
    layout["transfer"] |= {
        "start": "push",
        "overlap": "chunked",
        "sharing": "max-min",
        "kv_bytes_per_token": kv_bytes,
        "latency_s": latency_s,
    }
    names = ("arrival_ns", "prompt_tokens", "output_tokens")
    spec = {
        "requests": [dict(zip(names, (1000 * t, p, o), strict=True)) for t, p, o in sorted(rows)],
        "disaggregated": layout,
    }
    fast, slow = (adapter.observe(spec, fast_forward=f) for f in (True, False))
    assert fast == slow
    to = {i: r["decode_replica"] for i, r in enumerate(fast["requests"])}
    assume(all(r["status"] == "finished" for r in fast["requests"]))
    attempts = attempts_of(fast["log"], spec, to)
    ends = fluid(attempts, Fraction(1, 1000), round(latency_s * 1e9))
    want = sorted((a.request, e) for a, e in zip(attempts, ends, strict=True) if e is not None)
    assert sorted((t[0], t[4]) for t in fast["transfers"]) == want
    # Alone on its link each ends where its own sum says, to the rounding of the terms.
    layout["transfer"]["sharing"] = "none"
    alone = adapter.observe(spec, fast_forward=True)
    apart = {
        a.request: _alone(a, Fraction(1, 1000), latency_s)
        for a in attempts_of(alone["log"], spec, to)
        if a.off_ns is None
    }
    assert all(abs(t[4] - apart[t[0]]) <= 1 for t in alone["transfers"])
    assert len(alone["transfers"]) == len(apart)


def _alone(attempt: Attempt, bytes_per_ns: Fraction, latency_s: float) -> Fraction:
    """Part after part, each when it is there and the one before is through."""
    end = Fraction(0)
    for t, size in attempt.parts:
        end = max(end, t + Fraction(round(latency_s * 1e9))) + size / bytes_per_ns
    return end


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 120), st.integers(1, 14), st.integers(1, 12)),
        min_size=1,
        max_size=9,
    ),
    st.lists(st.one_of(REPLICAS, st.just(STAGED)), min_size=1, max_size=2),
    st.lists(st.one_of(REPLICAS, st.just(STAGED)), min_size=1, max_size=2),
    st.dictionaries(st.integers(0, 8), st.integers(0, 200), max_size=3),
    st.fixed_dictionaries(
        {
            "overlap": st.sampled_from(["layerwise", "chunked"]),
            "sharing": st.sampled_from(["none", "max-min"]),
            "recompute_last_token": st.booleans(),
            "kv_bytes_per_token": st.sampled_from([1, 4]),
        }
    ),
)
def test_stepping_gives_the_same_integers(
    rows: list[Request],
    prefill: list[dict[str, Any]],
    decode: list[dict[str, Any]],
    gives_up: dict[int, int],
    options: dict[str, Any],
) -> None:
    rows = sorted(rows)
    cancelled = {i: rows[i][0] + t for i, t in gives_up.items() if i < len(rows)}
    layout = pools(prefill, decode)
    layout["transfer"] |= {"start": "push", "layers": 3} | options
    spec = {
        "requests": [
            {"arrival_ns": 1000 * t, "prompt_tokens": p, "output_tokens": o, "content": [(0, p)]}
            | ({"cancel_at_ns": 1000 * cancelled[i]} if i in cancelled else {})
            for i, (t, p, o) in enumerate(rows)
        ],
        "disaggregated": layout,
    }
    fast, slow = (adapter.observe(spec, fast_forward=f) for f in (True, False))
    assert fast == slow
    states = [r["status"] for r in fast["requests"]]
    assert set(states) <= {"finished", "rejected", "cancelled"}
    assert all(s != "cancelled" for i, s in enumerate(states) if i not in cancelled)
    ends = {t[0]: t[4] for t in fast["transfers"]}
    for i, r in enumerate(fast["requests"]):
        times = r["token_times_ns"]
        if len(times) > 1:  # token 2, or with the last token computed again token 1, needs all KV
            assert times[0 if options["recompute_last_token"] else 1] > ends[i]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"overlap": "layerwise", "layers": 2}, "overlap: layerwise: needs start: push"),
        ({"overlap": "chunked"}, "overlap: chunked: needs start: push"),
        (
            {"overlap": "chunked", "push": True, "blocks_decode": True},
            "overlap: chunked: with blocks_decode: true",
        ),
        ({"overlap": "layerwise", "push": True}, "layers: 0: layerwise needs at least 1"),
    ],
)
def test_what_does_not_go_together_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        TransferSpec(1e9, **options)
