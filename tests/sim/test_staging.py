"""Staging memory at the source (`sim.staging`), worked out by hand; stepping and fast-forward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.changes import Change
from sim.errors import ConfigError
from sim.event_loop import simulate
from sim.transfer import StagingSpec, TransferSpec
from tests.conformance import adapter
from tests.sim.test_push import REPLICAS, STAGED
from tests.sim.timeline import Request, Timeline, pools, replica, run_giving_up

BOTH = pytest.mark.parametrize("fast_forward", [True, False])
SHARED = pytest.mark.parametrize("sharing", ["none", "max-min"])
# Room for one prompt of 8 on the prefill side, for one request on the decode side.
SHORT = pools([replica("vllm-v0", 2, max_num_batched_tokens=64)], [replica("orca", 3)])
THREE = [(0, 8, 4), (0, 8, 4), (0, 8, 4)]


def staged(
    requests: Sequence[Request],
    num_bytes: int,
    bytes_per_us: int = 2,
    layout: dict[str, Any] = SHORT,
    cancelled: dict[int, int] | None = None,
    *,
    fast_forward: bool,
    **wire: Any,
) -> Timeline:
    wire["staging"] = (num_bytes, bytes_per_us * 1e6)
    layout = layout | {"transfer": layout["transfer"] | wire}
    return run_giving_up(requests, cancelled or {}, layout, fast_forward=fast_forward)


def moves(got: Timeline) -> list[tuple[int, ...]]:
    return [(t[0], t[3], t[4]) for t in got.transfers]


@BOTH
@SHARED
def test_the_prefill_side_goes_on_while_the_decode_side_is_full(
    sharing: str, fast_forward: bool
) -> None:
    got = staged(THREE, 100, sharing=sharing, fast_forward=fast_forward)
    # 0: the first: 18, copied in 4 us: 22. Sent from there: 30; decodes 42, 54, 66.
    # 22: its blocks are free: the second: 40, copied: 44. It waits in the buffer until 66.
    # 44: the third: 62, copied: 66. The second is sent 66 to 74, decodes 86, 98, 110.
    assert moves(got) == [(0, 22, 30), (1, 66, 74), (2, 110, 118)]
    assert got.tokens == [[18, 42, 54, 66], [40, 86, 98, 110], [62, 130, 142, 154]]
    # Without: the third is prefilled at 70, when the second's KV has gone.


@BOTH
@SHARED
def test_what_does_not_fit_stays_on_the_gpu(sharing: str, fast_forward: bool) -> None:
    got = staged(THREE, 8, sharing=sharing, fast_forward=fast_forward)
    # Room for one. 18: the first is copied until 22, sent until 30, and only then is there room.
    # 22: the second: 40, copied: 44; it keeps the buffer until it has been sent: 66 to 74.
    # 44: the third: 62. It stands in line, and is copied from 74 to 78. 110: sent: 118.
    assert moves(got) == [(0, 22, 30), (1, 66, 74), (2, 110, 118)]
    four = staged([*THREE, (0, 8, 4)], 8, sharing=sharing, fast_forward=fast_forward)
    # 78: the third's blocks are free: the fourth: 96.
    assert [t[0] for t in four.tokens] == [18, 40, 62, 96]
    tiny = staged(THREE, 7, sharing=sharing, fast_forward=fast_forward)
    none = run_giving_up(
        THREE,
        {},
        SHORT | {"transfer": SHORT["transfer"] | {"sharing": sharing}},
        fast_forward=fast_forward,
    )
    assert tiny == none  # nothing fits, ever


@BOTH
def test_who_stands_in_line_is_sent_from_the_gpu(fast_forward: bool) -> None:
    layout = pools([replica("orca", 10)], [replica("orca", 10)])
    got = staged([(0, 8, 2), (0, 8, 2)], 8, 1, layout, fast_forward=fast_forward)
    # Both prefilled: 26. The first is copied until 34, and sent from there until 42. The second
    # has no room in the buffer: it is sent at once: 34.
    assert moves(got) == [(1, 26, 34), (0, 34, 42)]


@BOTH
def test_copies_go_one_after_the_other(fast_forward: bool) -> None:
    layout = pools([replica("orca", 10)], [replica("orca", 10)])
    got = staged([(0, 8, 2), (0, 4, 2)], 100, 1, layout, fast_forward=fast_forward)
    # Both: 22. 8 us, then 4 us: 30 and 34. Each is sent when it is there: 38 and 38.
    assert moves(got) == [(0, 30, 38), (1, 34, 38)]


@BOTH
@SHARED
@pytest.mark.parametrize(
    ("when", "third"),
    [
        (40, 62),  # in the instant in which its prefill ends: the copy is made all the same
        (42, 62),  # while it is copied
        (50, 62),  # from the buffer, of which only its room comes back
    ],
)
def test_who_gives_up_gives_back_what_it_has(
    when: int, third: int, sharing: str, fast_forward: bool
) -> None:
    got = staged(THREE, 8, cancelled={1: when}, sharing=sharing, fast_forward=fast_forward)
    assert got.states == ["finished", "cancelled", "finished"]
    assert got.tokens[2][0] == third
    # The room is free by 62: the third is copied until 66, when there is room to decode.
    assert moves(got) == [(0, 22, 30), (2, 66, 74)]


@BOTH
def test_who_gives_up_in_line_frees_its_blocks(fast_forward: bool) -> None:
    rows = [*THREE, (0, 8, 4)]
    got = staged(rows, 8, cancelled={2: 63}, fast_forward=fast_forward)
    # The third has been prefilled at 62 and waits for room in the buffer, until 63: the fourth: 81.
    assert got.tokens[3][0] == 81


@settings(max_examples=120, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 120), st.integers(1, 14), st.integers(1, 12)),
        min_size=1,
        max_size=9,
    ),
    st.lists(st.one_of(REPLICAS, st.just(STAGED)), min_size=1, max_size=2),
    st.lists(st.one_of(REPLICAS, st.just(STAGED)), min_size=1, max_size=2),
    st.dictionaries(st.integers(0, 8), st.integers(0, 200), max_size=3),
    st.integers(1, 40),
    st.sampled_from([1, 3]),
    st.fixed_dictionaries(
        {
            "sharing": st.sampled_from(["none", "max-min"]),
            "recompute_last_token": st.booleans(),
            "batch_wait_s": st.sampled_from([None, None, 0.0, 9e-6]),
            "blocks_decode": st.booleans(),
        }
    ),
)
def test_stepping_gives_the_same_integers_and_the_buffer_holds(
    rows: list[Request],
    prefill: list[dict[str, Any]],
    decode: list[dict[str, Any]],
    gives_up: dict[int, int],
    num_bytes: int,
    bytes_per_us: int,
    wire: dict[str, Any],
) -> None:
    rows = sorted(rows)
    cancelled = {i: rows[i][0] + t for i, t in gives_up.items() if i < len(rows)}
    layout = pools(prefill, decode)
    layout["transfer"] |= wire | {"staging": (num_bytes, bytes_per_us * 1e6)}
    names = ("arrival_ns", "prompt_tokens", "output_tokens")
    requests = [dict(zip(names, (1000 * t, p, o), strict=True)) for t, p, o in rows]
    for i, when in cancelled.items():
        requests[i]["cancel_at_ns"] = 1000 * when
    spec = {"requests": requests, "disaggregated": layout}
    fast, slow = (adapter.observe(spec, fast_forward=f) for f in (True, False))
    assert fast == slow
    assert {r["status"] for r in fast["requests"]} <= {"finished", "rejected", "cancelled"}
    cluster, _ = adapter.build(spec)
    result = simulate(adapter.arrivals(spec), cluster, check=True)
    for replica_info in result.replicas:
        assert 0 <= replica_info.staging_peak_bytes <= num_bytes
        assert replica_info.role == "prefill" or replica_info.staged_bytes == 0
    sizes = dict(zip(result.transfers["request"], result.transfers["bytes"], strict=True))
    held = [4 * -(-p // 4) for _, p, _ in rows]
    fits = [i for i in sizes if held[i] <= num_bytes]
    staged_bytes = sum(x.staged_bytes for x in result.replicas)
    assert staged_bytes <= sum(size for size in held if size <= num_bytes)
    assert staged_bytes > 0 or not fits


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 120), st.integers(1, 14), st.integers(2, 12)),
        min_size=1,
        max_size=9,
    ),
    st.lists(REPLICAS, min_size=1, max_size=2),
    st.sampled_from([1, 2]),
    st.sampled_from(["none", "max-min"]),
)
def test_with_a_large_buffer_the_decode_side_holds_nothing_back(
    rows: list[Request], prefill: list[dict[str, Any]], bytes_per_us: int, sharing: str
) -> None:
    rows = sorted(rows)
    seen = []
    for decode in ([replica("orca", 7)], [replica("vllm-v1", 100)] * 3):
        layout = pools(prefill, decode)
        got = staged(rows, 10**6, bytes_per_us, layout, sharing=sharing, fast_forward=True)
        assert got.states.count("finished") + got.states.count("rejected") == len(rows)
        seen.append(([t[:1] for t in got.tokens], [got.steps.get(f"prefill{i}") for i in (0, 1)]))
    assert seen[0] == seen[1]


def test_a_staging_buffer_is_refused_where_it_has_no_use() -> None:
    with pytest.raises(ConfigError, match="staging: with start: push"):
        TransferSpec(1e9, push=True, staging=StagingSpec(8, 1e9))


def test_a_cluster_that_changes_is_refused() -> None:
    layout = SHORT | {"transfer": SHORT["transfer"] | {"staging": (8, 1e6)}}
    spec = {
        "requests": [{"arrival_ns": 0, "prompt_tokens": 4, "output_tokens": 2}],
        "disaggregated": layout,
    }
    cluster, _ = adapter.build(spec)
    with pytest.raises(ConfigError, match="staging: a cluster that changes"):
        simulate(adapter.arrivals(spec), cluster, cluster_events=[(5, Change("fail", 0))])
