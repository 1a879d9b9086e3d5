"""Requests that decode replicas prefill by themselves, by hand and at random."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.changes import Change
from sim.cluster import LiveCluster
from sim.errors import ConfigError
from sim.event_loop import simulate
from sim.records import UNFINISHED, Record
from tests.cancellations import assert_nothing_left, observed
from tests.conformance import adapter
from tests.sim.timeline import Request, Timeline, pools, replica, run_giving_up

V1 = replica("vllm-v1", 10)


def local(
    requests: list[Request],
    layout: dict[str, Any],
    *,
    fast_forward: bool = True,
    cancelled: dict[int, int] | None = None,
    contents: Any = (),
    **options: Any,
) -> Timeline:
    layout = layout | {"local_prefill": options}
    return run_giving_up(
        requests, cancelled or {}, layout, fast_forward=fast_forward, contents=contents
    )


both = pytest.mark.parametrize("fast_forward", [True, False])


@both
def test_short_prompts_stay_on_the_decode_replica(fast_forward: bool) -> None:
    requests = [(0, 8, 3), (0, 3, 2), (5, 3, 2)]
    got = local(requests, pools([V1], [V1]), fast_forward=fast_forward, max_uncached_tokens=3)
    # Request 0 has 8 tokens: to the prefill replica: 18. 1 stays: P = 3: 13.
    # 13: 1 decodes, 2 prefills: 10 + 2 + 3 = 15: 28. 18: 0 is handed over.
    # 28: 2 decodes: 40; with that pass 0 is pulled, two blocks, 8: 36. 40: 0 joins: 52, 64.
    assert got.tokens == [[18, 52, 64], [13, 28], [28, 40]]
    assert got.transfers == [(0, "prefill0", "decode0", 28, 36)]
    assert got.placed == ["prefill0", "decode0", "decode0"]
    assert [step[:2] for step in got.steps["prefill0"]] == [(0, 18)]


@both
def test_who_was_handed_over_before_is_served_before(fast_forward: bool) -> None:
    layout = pools([V1], [replica("vllm-v1", 3)])
    requests = [(0, 4, 6), (0, 9, 2), (20, 4, 2)]
    got = local(requests, layout, fast_forward=fast_forward, max_uncached_tokens=4)
    # Request 0 stays: 14, then a token every 12 us; 5 tokens, two blocks from 14 on.
    # Request 1 is handed over at 19 and needs 3 blocks. Request 2 comes at 20 and needs one, which
    # is free at 26, but stands behind it. At 74 request 0 has ended: 1 is pulled, 12 us: 86, and
    # joins: 98. Then request 2: 14 + 98 = 112, 124.
    assert got.tokens == [[14, 26, 38, 50, 62, 74], [19, 98], [112, 124]]
    assert got.transfers == [(1, "prefill0", "decode0", 74, 86)]


@both
def test_who_waited_behind_a_transfer_may_start_at_once(fast_forward: bool) -> None:
    layout = pools([V1], [replica("vllm-v1", 5)])
    requests = [(0, 4, 6), (0, 13, 2), (25, 4, 1)]
    got = local(requests, layout, fast_forward=fast_forward, max_uncached_tokens=4)
    # As above, but request 1, handed over at 23, needs 4 of 5 blocks. At 74 they are reserved, and
    # nothing runs: in a second pass at 74 request 2 gets the last block: 88. Request 1 is loaded at
    # 90: 102.
    assert got.tokens == [[14, 26, 38, 50, 62, 74], [23, 102], [88]]


@both
def test_a_long_prefill_queue_keeps_requests_on_the_decode_side(fast_forward: bool) -> None:
    layout = pools([replica("orca", 10, max_batch_size=1)], [replica("orca", 10)])
    requests = [(0, 8, 2), (0, 8, 2), (1, 8, 2)]
    got = local(requests, layout, fast_forward=fast_forward, max_queue=1)
    # Request 1 finds 0 waiting and stays; at 1 request 0 runs, so that 2 goes to the prefill pool.
    assert got.placed == ["prefill0", "decode0", "prefill0"]
    # decode0: 1: 18; 0 is handed over at 18, with the pass at 18 pulled: 26; 1: 12: 30. 30: 0: 42.
    # prefill0: 0: 18, 2: 36. At 42 it is pulled: 50, 62.
    assert got.tokens == [[18, 42], [18, 30], [36, 62]]


@both
def test_what_is_cached_on_the_decode_replica_need_not_be_computed(fast_forward: bool) -> None:
    cached = replica("vllm-v1", 20, prefix_cache=True)
    requests = [(0, 12, 1), (100, 16, 2), (100, 17, 2)]
    same, other = [(0, 17)], [(50, 17)]
    got = local(
        requests,
        pools([cached], [cached]),
        fast_forward=fast_forward,
        max_uncached_tokens=12,
        contents=[same, same, other],
    )
    # Request 0 stays and ends: 22. Of request 1 three blocks are found: 4 of 16 tokens: it stays:
    # 114. Request 2 shares nothing.
    assert got.placed == ["decode0", "decode0", "prefill0"]
    assert got.tokens[:2] == [[22], [114, 126]]


@both
def test_a_decode_replica_chosen_on_arrival_counts_then(fast_forward: bool) -> None:
    layout = pools([V1], [V1, V1], decode_router="least_outstanding")
    requests = [(0, 4, 9), (1, 4, 2), (40, 4, 2)]
    late = run_giving_up(requests, {}, layout, fast_forward=fast_forward)
    first = layout | {"transfer": layout["transfer"] | {"decode_first": True}}
    early = run_giving_up(requests, {}, first, fast_forward=fast_forward)
    # Request 2 arrives when 1 is on decode1 until 44 (prefilled 14 to 28, loaded 32); its prefill
    # ends at 54, when decode1 is empty: there it goes if chosen then. At 40 both have one: the
    # lower index.
    assert [t[2] for t in late.transfers] == ["decode0", "decode1", "decode1"]
    assert [t[2] for t in early.transfers] == ["decode0", "decode1", "decode0"]


@both
def test_a_local_request_that_is_given_up_leaves_nothing(fast_forward: bool) -> None:
    requests = [(0, 4, 6), (0, 9, 2), (20, 4, 2)]
    for when in range(0, 130, 7):
        for who in range(3):
            got = local(
                requests,
                pools([V1], [replica("vllm-v1", 3)]),
                fast_forward=fast_forward,
                cancelled={who: when},
                max_uncached_tokens=4,
            )
            assert set(got.states) <= {"finished", "cancelled"}


def test_a_policy_that_never_prefills_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="local_prefill: policy static forms"):
        local([(0, 4, 2)], pools([V1], [replica("static", 10)]))


# --- at random

PREFILL = st.sampled_from(
    [
        replica("vllm-v1", 9, max_num_batched_tokens=3),
        replica("vllm-v1", 9, prefix_cache=True),
        replica("vllm-v0", 9, max_num_batched_tokens=64),
        replica("orca", 9, max_batch_size=1),
        replica("static", 9, batch_size=2),
        replica("distserve", 9, max_batch_size=2, max_tokens_per_batch=20),
    ]
)
DECODE = st.sampled_from(
    [
        replica("vllm-v1", 7, max_num_batched_tokens=3),
        replica("vllm-v1", 7, max_num_batched_tokens=16, max_num_seqs=2),
        replica("vllm-v1", 7, prefix_cache=True),
        replica("vllm-v1", 9, order="priority"),
        replica("sarathi", 7, budget_tokens=4),
        replica("vllm-v0", 7, max_num_batched_tokens=64),
        replica(
            "vllm-v0",
            7,
            max_num_batched_tokens=64,
            preemption="swap",
            host_blocks=5,
            host_bandwidth=1e6,
            kv_bytes_per_token=1,
        ),
        replica("orca", 9),
        replica("distserve", 7),
        replica("distserve", 6, max_batch_size=2, host_blocks=9, host_bandwidth=1e6),
        replica("vllm-v1", 9, stages=[{"base_s": 1e-5}, {"base_s": 2e-5, "decode_s": 1e-6}]),
    ]
)
ROWS = st.lists(
    st.tuples(st.integers(0, 120), st.integers(1, 14), st.integers(1, 12)), min_size=1, max_size=10
)
OPTIONS = st.fixed_dictionaries(
    {
        "recompute_last_token": st.booleans(),
        "blocks_decode": st.booleans(),
        "start": st.sampled_from(["pull", "push"]),
    }
)
LOCAL = st.fixed_dictionaries(
    {
        "max_uncached_tokens": st.integers(0, 8),
        "max_queue": st.one_of(st.none(), st.integers(1, 3)),
    }
)


@settings(max_examples=150, deadline=None)
@given(
    ROWS,
    st.lists(PREFILL, min_size=1, max_size=2),
    st.lists(DECODE, min_size=1, max_size=2),
    st.dictionaries(st.integers(0, 9), st.integers(0, 200), max_size=3),
    OPTIONS,
    st.one_of(st.none(), LOCAL),
    st.booleans(),
)
def test_whatever_comes_fast_forward_is_stepping(
    rows: list[Request],
    prefill: list[dict[str, Any]],
    decode: list[dict[str, Any]],
    gives_up: dict[int, int],
    options: dict[str, Any],
    stays: dict[str, Any] | None,
    shared: bool,
) -> None:
    rows = sorted(rows)
    cancelled = {i: rows[i][0] + t for i, t in gives_up.items() if i < len(rows)}
    layout = pools(prefill, decode)
    layout["transfer"] |= options | {"decode_first": stays is None}
    contents = [[(0, 30)]] * len(rows) if shared else ()
    if stays is not None:
        layout["local_prefill"] = stays
    fast, slow = (
        run_giving_up(rows, cancelled, layout, fast_forward=f, contents=contents)
        for f in (True, False)
    )
    assert fast == slow
    assert set(fast.states) <= {"finished", "rejected", "cancelled"}
    sent = {transfer[0] for transfer in fast.transfers}
    for index, placed in enumerate(fast.placed):
        if placed is not None and placed.startswith("decode"):
            assert index not in sent
            if fast.states[index] == "finished":
                assert len(fast.tokens[index]) == rows[index][2]


SMALL = [
    {"arrival_ns": at, "prompt_tokens": p, "output_tokens": o}
    for at, p, o in [(0, 9, 4), (0, 4, 7), (12_000, 10, 2), (13_000, 4, 6), (30_000, 9, 3)]
]


@pytest.mark.parametrize(
    ("place", "stays"),
    [
        (("fail", 0, True), {"max_uncached_tokens": 4}),
        (("fail", 0, False), {"max_queue": 1}),
        (("fail", 0, True), None),
        (("drain", 1, True), None),
    ],
)
def test_a_change_at_any_instant_loses_nobody(
    place: tuple[Any, int, bool], stays: dict[str, int] | None
) -> None:
    layout = pools([V1, V1], [replica("vllm-v1", 6)] * 2)
    if stays is None:
        layout["transfer"]["decode_first"] = True
    else:
        layout["local_prefill"] = stays
    spec = {"requests": SMALL, "disaggregated": layout}
    cluster, _ = adapter.build(spec)
    what, index, decode = place
    for when in range(0, 130_000, 2_000):
        changes = [(when, Change(what, index, decode=decode))]
        if what == "fail":
            changes.append((when + 40_000, Change("restore", index, decode=decode)))
        seen: list[dict[str, Any]] = []
        for fast_forward in (True, False):
            live: list[LiveCluster] = []
            result = simulate(
                adapter.arrivals(spec),
                cluster,
                fast_forward=fast_forward,
                check=True,
                record=Record(decisions=True, events=True, steps=True),
                cluster_events=[(0, live.append), *changes],
            )
            assert UNFINISHED not in result.requests["state"]
            assert_nothing_left(live[0])
            seen.append(observed(result))
            emitted = result.requests["emitted_tokens"].tolist()
            assert emitted == [r["output_tokens"] for r in SMALL]
        assert seen[0] == seen[1]


def test_without_a_prefill_replica_the_decode_side_prefills_all() -> None:
    layout = pools([V1], [V1]) | {"local_prefill": {}}
    spec = {"requests": [SMALL[0]], "disaggregated": layout}
    cluster, _ = adapter.build(spec)
    result = simulate(adapter.arrivals(spec), cluster, cluster_events=[(0, Change("fail", 0))])
    assert result.token_times_ns(0).tolist() == [19_000, 31_000, 43_000, 55_000]
    with pytest.raises(ConfigError, match="there is no decode pool"):
        replace(cluster, decode=None, transfer=None)
