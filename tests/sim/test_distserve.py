"""DistServe's schedulers by hand: batches by tokens, acceptance by a share, swap from the tail."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.errors import ConfigError
from sim.transfer import TransferSpec
from tests.sim.timeline import Request, Timeline, pools, replica, run_giving_up


def distserve(
    requests: list[Request],
    prefill: dict[str, Any],
    decode: dict[str, Any],
    *,
    fast_forward: bool,
    share: float | None = 0.05,
    cancelled: dict[int, int] | None = None,
) -> Timeline:
    layout = pools([prefill], [decode])
    layout["transfer"] |= {"blocks_decode": True, "max_waiting_share": share}
    return run_giving_up(requests, cancelled or {}, layout, fast_forward=fast_forward)


both = pytest.mark.parametrize("fast_forward", [True, False])
PREFILL = replica("distserve", 40, max_tokens_per_batch=12)


@both
def test_a_prefill_batch_is_as_long_as_its_tokens_allow(fast_forward: bool) -> None:
    requests = [(0, 8, 1), (0, 5, 1), (0, 4, 1), (0, 13, 1)]
    got = distserve(requests, PREFILL, replica("distserve", 40), fast_forward=fast_forward)
    # 8 + 5 is more than 12. First come, first served: 8: 18; then 5 + 4: 37. 13 never fits.
    assert got.tokens == [[18], [37], [37], []]
    assert got.reasons == [None, None, None, "over_token_budget"]


@both
def test_requests_are_accepted_until_those_who_wait_have_their_share(fast_forward: bool) -> None:
    requests = [(0, 4, 3), (0, 4, 2), (0, 4, 2)]
    decode = replica("distserve", 40)
    got = distserve(requests, PREFILL, decode, fast_forward=fast_forward)
    # P = 12: 22. 5 % of 40 is 2 blocks: after 0 (26) one block waits, after 1 (30) two: enough.
    # 30: both decode, 14: 44. Nobody waits now: 2 is fetched while nothing runs: 48. 48: 0 and 2:
    # 62.
    assert [t[3:] for t in got.transfers] == [(22, 26), (26, 30), (44, 48)]
    assert got.tokens == [[22, 44, 62], [22, 44], [22, 62]]
    # With a larger share all three come first: 34; then 16: 50, and 12: 62.
    many = distserve(requests, PREFILL, decode, fast_forward=fast_forward, share=0.06)
    assert many.tokens == [[22, 50, 62], [22, 50], [22, 50]]


@both
def test_without_a_share_each_joins_before_the_next_is_fetched(fast_forward: bool) -> None:
    requests = [(0, 4, 3), (0, 4, 2), (0, 4, 2)]
    decode = replica("vllm-v1", 40)
    got = distserve(requests, PREFILL, decode, fast_forward=fast_forward, share=None)
    # Rule 92: as long as there is somebody to fetch and room, nothing else happens.
    assert [t[3:] for t in got.transfers] == [(22, 26), (26, 30), (30, 34)]


@both
def test_the_last_of_running_is_swapped_out_and_returns_first(fast_forward: bool) -> None:
    requests = [(0, 3, 4), (0, 4, 3), (0, 4, 2)]
    decode = replica(
        "distserve", 3, host_blocks=9, host_bandwidth=2e6, kv_bytes_per_token=1, max_batch_size=3
    )
    got = distserve(requests, PREFILL, decode, fast_forward=fast_forward, share=0.5)
    # P = 11: 21. Half of 3 blocks is 1.5: 0 (25) and 1 (29) are accepted. 29: 0 needs no block for
    # its fourth token, 1 the third block: both decode, 14: 43.
    # 43: nobody waits; 2 needs a block, none is free. 0 needs its second block: none: 1, the last,
    # is swapped out, 8 tokens: 4. 0 has a block more, one is left: too few for the two of 1. 2 is
    # not accepted in this pass any more. 12 + 4: 59.
    # 59: one block is free: 2 is accepted although 1 is swapped out: 63. 63: 0 decodes, its last:
    # 12: 75; 1 does not fit, 2 stands behind it.
    # 75: 1 returns, 8 tokens, 4, and with its two blocks decodes, its last. Then nobody is swapped
    # out, but 2 needs a second block: 12 + 4: 91. 91: 2: 103.
    assert got.transfers[2][3:] == (59, 63)
    assert got.tokens == [[21, 43, 59, 75], [21, 43, 91], [21, 103]]
    assert got.preemptions == [0, 1, 0]


@both
def test_who_waits_goes_on_where_a_swapped_request_never_fits_beside_it(fast_forward: bool) -> None:
    requests = [(0, 8, 6), (0, 4, 2)]
    decode = replica(
        "distserve", 4, host_blocks=9, host_bandwidth=1e6, kv_bytes_per_token=1, max_batch_size=1
    )
    got = distserve(requests, PREFILL, decode, fast_forward=fast_forward, share=1.0)
    # 0 takes 3 blocks with its ninth token, and 1 the fourth, waiting for the one seat. When 0
    # needs its fourth (13 tokens, token 6) there is none, and nobody else to swap out: it goes
    # itself. It never returns beside 1, so 1 has its turn; then 0 returns.
    assert got.states == ["finished", "finished"]
    assert got.preemptions == [1, 0]
    assert got.tokens[1][-1] < got.tokens[0][-1]


@both
def test_two_who_came_with_full_blocks_do_not_wait_for_each_other(fast_forward: bool) -> None:
    decode = replica("distserve", 3, host_blocks=9, host_bandwidth=4e6, kv_bytes_per_token=1)
    requests = [(0, 4, 2), (0, 8, 2)]
    got = distserve(requests, PREFILL, decode, fast_forward=fast_forward, share=1.0)
    # P = 12: 22. Both come: 26 and 34. Each needs one block more, none is free. Both join, and the
    # last is swapped out, 2 blocks: 2 us. 0 decodes: 12 + 2: 48. Back, 2: 12 + 2: 62.
    assert got.tokens == [[22, 48], [22, 62]]
    assert got.preemptions == [0, 1]


ROWS = st.lists(
    st.tuples(st.integers(0, 120), st.integers(1, 12), st.integers(1, 12)), min_size=1, max_size=10
)


@settings(max_examples=120, deadline=None)
@given(
    ROWS,
    st.sampled_from([0.05, 0.3, 1.0]),
    st.dictionaries(st.integers(0, 9), st.integers(0, 250), max_size=3),
    st.sampled_from([6, 8, 30]),
    st.sampled_from([None, 3, 20]),
    st.integers(1, 4),
    st.booleans(),
)
def test_whatever_comes_fast_forward_is_stepping(
    rows: list[Request],
    share: float,
    gives_up: dict[int, int],
    blocks: int,
    host_blocks: int | None,
    batch: int,
    again: bool,
) -> None:
    rows = sorted(rows)
    cancelled = {i: rows[i][0] + t for i, t in gives_up.items() if i < len(rows)}
    host = {"host_blocks": host_blocks, "host_bandwidth": 1e6, "kv_bytes_per_token": 1}
    decode = replica("distserve", blocks, max_batch_size=batch, **(host if host_blocks else {}))
    layout = pools([PREFILL], [decode, decode])
    layout["transfer"] |= {
        "blocks_decode": True,
        "max_waiting_share": share,
        "recompute_last_token": again,
    }
    fast, slow = (run_giving_up(rows, cancelled, layout, fast_forward=f) for f in (True, False))
    assert fast == slow
    assert set(fast.states) <= {"finished", "rejected", "cancelled"}


def test_a_share_is_for_a_side_that_pulls_and_then_decodes() -> None:
    with pytest.raises(ConfigError, match="max_waiting_share: 0: expected a share"):
        TransferSpec(1e9, blocks_decode=True, max_waiting_share=0)
    for options in ({}, {"blocks_decode": True, "push": True}):
        with pytest.raises(ConfigError, match="set blocks_decode: true and start: pull"):
            TransferSpec(1e9, max_waiting_share=0.05, **options)
