"""Transfers that go as one, and messages that are posted one by one (`sim.batches`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.changes import Change
from sim.errors import ConfigError
from sim.event_loop import simulate
from sim.transfer import TransferSpec
from tests.conformance import adapter
from tests.sim.test_push import REPLICAS
from tests.sim.timeline import Request, Timeline, pools, replica, run_giving_up

BOTH = pytest.mark.parametrize("fast_forward", [True, False])
SHARED = pytest.mark.parametrize("sharing", ["none", "max-min"])
PLAIN = pools([replica("orca", 10)], [replica("vllm-v1", 20)], latency=5)


def sent(
    requests: Sequence[Request],
    layout: dict[str, Any] = PLAIN,
    cancelled: dict[int, int] | None = None,
    *,
    fast_forward: bool,
    **wire: Any,
) -> Timeline:
    layout = layout | {"transfer": layout["transfer"] | wire}
    return run_giving_up(requests, cancelled or {}, layout, fast_forward=fast_forward)


def moves(got: Timeline) -> list[tuple[int, ...]]:
    return [(t[0], t[3], t[4]) for t in got.transfers]


@BOTH
@SHARED
@pytest.mark.parametrize("start", ["pull", "push"])
def test_transfers_of_one_instant_pay_one_latency(
    start: str, sharing: str, fast_forward: bool
) -> None:
    rows = [(0, 4, 2), (0, 4, 2)]
    got = sent(rows, start=start, sharing=sharing, batch_wait_s=0.0, fast_forward=fast_forward)
    # Both prefilled: 18. 5 us of latency, 8 us of KV: 31.
    assert moves(got) == [(0, 18, 31), (1, 18, 31)]
    # Each by itself, 4 us of KV: 27; on shared links, half the rate each: 31 as well.
    apart = sent(rows, start=start, sharing=sharing, fast_forward=fast_forward)
    assert moves(apart) == [(i, 18, 27 if sharing == "none" else 31) for i in (0, 1)]


APART = pools([replica("orca", 10, max_batch_size=1)], [replica("vllm-v1", 20)], latency=5)


@BOTH
@SHARED
def test_a_batch_waits_for_company_until_it_is_large_enough(
    sharing: str, fast_forward: bool
) -> None:
    rows = [(0, 4, 3), (0, 4, 3), (0, 4, 3)]
    wire: dict[str, Any] = {"sharing": sharing, "start": "push", "batch_wait_s": 20e-6}
    got = sent(rows, APART, fast_forward=fast_forward, **wire)
    # Prefilled at 14, 28 and 42. The first waits until 34, with the second: 34 + 5 + 8 = 47. The
    # third waits alone, until 62: 71.
    assert moves(got) == [(0, 34, 47), (1, 34, 47), (2, 62, 71)]
    full = sent(rows, APART, fast_forward=fast_forward, **wire, batch_bytes=8)
    assert moves(full) == [(0, 28, 41), (1, 28, 41), (2, 62, 71)]
    never = sent(rows, APART, fast_forward=fast_forward, **wire, batch_bytes=4)
    assert moves(never) == [(0, 14, 23), (1, 28, 37), (2, 42, 51)]


@BOTH
@SHARED
def test_who_gives_up_in_a_batch_goes_with_it(sharing: str, fast_forward: bool) -> None:
    got = sent(
        [(0, 4, 3), (0, 4, 3)],
        APART,
        {0: 20},
        sharing=sharing,
        start="push",
        batch_wait_s=20e-6,
        fast_forward=fast_forward,
    )
    assert got.states == ["cancelled", "finished"]
    assert moves(got) == [(0, 34, 47), (1, 34, 47)]


@BOTH
@SHARED
def test_messages_bound_the_rate(sharing: str, fast_forward: bool) -> None:
    # 8 bytes, a message of 2 bytes every 3 us: 12 us, where the link alone takes 8.
    got = sent(
        [(0, 8, 2)], sharing=sharing, message_bytes=2, per_message_s=3e-6, fast_forward=fast_forward
    )
    assert moves(got) == [(0, 18, 18 + 5 + 12)]
    # Two transfers at once, each bound to 2/3 of the link: shared, each has half of it.
    two = pools([replica("orca", 10)] * 2, [replica("vllm-v1", 20)], latency=5)
    both = sent(
        [(0, 8, 2), (0, 8, 2)],
        two,
        sharing=sharing,
        message_bytes=2,
        per_message_s=3e-6,
        fast_forward=fast_forward,
    )
    end = 18 + 5 + (12 if sharing == "none" else 16)
    assert moves(both) == [(0, 18, end), (1, 18, end)]
    # A message every us: the link is what bounds them.
    fast = sent(
        [(0, 8, 2)], sharing=sharing, message_bytes=2, per_message_s=1e-6, fast_forward=fast_forward
    )
    assert moves(fast) == [(0, 18, 31)]


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 120), st.integers(1, 14), st.integers(1, 12)),
        min_size=1,
        max_size=9,
    ),
    st.lists(REPLICAS, min_size=1, max_size=2),
    st.lists(REPLICAS, min_size=1, max_size=2),
    st.dictionaries(st.integers(0, 8), st.integers(0, 200), max_size=3),
    st.fixed_dictionaries(
        {
            "start": st.sampled_from(["pull", "push"]),
            "sharing": st.sampled_from(["none", "max-min"]),
            "batch_wait_s": st.sampled_from([0.0, 7e-6, 30e-6]),
            "batch_bytes": st.sampled_from([None, 8, 24]),
            "latency_s": st.sampled_from([0.0, 4e-6]),
        }
    ),
)
def test_batches_are_of_one_pair_and_end_together(
    rows: list[Request],
    prefill: list[dict[str, Any]],
    decode: list[dict[str, Any]],
    gives_up: dict[int, int],
    wire: dict[str, Any],
) -> None:
    rows = sorted(rows)
    cancelled = {i: rows[i][0] + t for i, t in gives_up.items() if i < len(rows)}
    layout = pools(prefill, decode)
    fast, slow = (sent(rows, layout, cancelled, fast_forward=f, **wire) for f in (True, False))
    assert fast == slow
    assert set(fast.states) <= {"finished", "rejected", "cancelled"}
    batches: dict[Any, list[Any]] = {}
    for t in fast.transfers:
        batches.setdefault((*t[1:3], t[3]), []).append(t)
    full = wire["batch_bytes"] or 10**9
    for members in batches.values():
        size = sum(4 * -(-rows[t[0]][1] // 4) for t in members)  # what is cached there is less
        if len({t[4] for t in members}) > 1:  # one that was full, and one after it
            assert size > full
        elif wire["sharing"] == "none" and wire["batch_bytes"] is None:  # one latency, all bytes
            assert members[0][4] == members[0][3] + wire["latency_s"] * 1e6 + size
        for t in members:
            prefilled = max(end for _, end, done in fast.steps[t[1]] if t[0] in done)
            assert wire["start"] == "pull" or t[3] <= prefilled + wire["batch_wait_s"] * 1e6


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 120), st.integers(1, 14), st.integers(2, 12)),
        min_size=1,
        max_size=9,
    ),
    st.integers(0, 200_000),
    st.booleans(),
    st.fixed_dictionaries(
        {
            "start": st.sampled_from(["pull", "push"]),
            "sharing": st.sampled_from(["none", "max-min"]),
            "batch_wait_s": st.sampled_from([0.0, 30e-6]),
        }
    ),
)
def test_a_failure_takes_a_batch_with_it(
    rows: list[Request], when_ns: int, of_decode: bool, wire: dict[str, Any]
) -> None:
    layout = pools([replica("orca", 20)] * 2, [replica("vllm-v1", 20)] * 2)
    layout["transfer"] |= wire
    names = ("arrival_ns", "prompt_tokens", "output_tokens")
    requests = [dict(zip(names, (1000 * t, p, o), strict=True)) for t, p, o in sorted(rows)]
    spec = {"requests": requests, "disaggregated": layout}
    cluster, places = adapter.build(spec)
    fails = [(when_ns, Change("fail", 0, of_decode))]
    fast, slow = (
        adapter.observe_result(
            spec,
            simulate(
                adapter.arrivals(spec), cluster, cluster_events=fails, fast_forward=f, check=True
            ),
            places,
        )
        for f in (True, False)
    )
    assert fast == slow
    assert {r["status"] for r in fast["requests"]} == {"finished"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch_bytes": 4}, "batch_bytes: 4: needs batch_wait_s"),
        ({"message_bytes": 4}, "message_bytes and per_message_s say together"),
        (
            {"batch_wait_s": 0.0, "push": True, "overlap": "chunked"},
            "batch_wait_s: 0: what is sent while its prefill goes on joins no batch",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        TransferSpec(1e9, **options)
