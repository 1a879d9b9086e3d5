"""Admission control by hand (`sim.admission`). A step: 10 + P + 2 D microseconds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from policies import RoundRobin
from sim.admission import Admission, Bucket, EarlyRejection, RateLimit
from sim.errors import ConfigError
from sim.event_loop import simulate
from sim.records import FINISHED, REJECTED
from sim.request import Arrival
from tests.conformance import adapter
from tests.sim.timeline import replica, run_here

ONE_SEAT = replica("orca", 100, max_batch_size=1)
LARGE = replica("vllm-v1", 100)
SECOND = 1_000_000  # microseconds


def test_a_full_queue_refuses_and_a_place_in_it_admits_again(fast_forward: bool) -> None:
    got = run_here(
        [(0, 4, 1), (1, 4, 1), (2, 4, 1), (3, 4, 1), (14, 4, 1), (15, 4, 1)],
        ONE_SEAT,
        admission=Admission(max_waiting=2),
        fast_forward=fast_forward,
    )

    # Request 0 runs to 14; 1 and 2 wait, 3 finds two of them. At 14 the step is over, but nobody
    # has been admitted yet: 4 finds two. At 15 only 2 waits.
    assert got.reasons == [None, None, None, "queue_full", "queue_full", None]
    assert got.tokens == [[14], [28], [42], [], [], [56]]


def test_replicas_with_full_queues_are_not_offered_to_the_router(fast_forward: bool) -> None:
    got = run_here(
        [(0, 30, 1), (1, 4, 1), (2, 4, 1), (3, 4, 1), (4, 4, 1), (5, 4, 1)],
        ONE_SEAT,
        ONE_SEAT,
        router=RoundRobin(),
        admission=Admission(max_waiting_per_replica=1),
        fast_forward=fast_forward,
    )

    # 0 and 1 run, 2 and 3 wait, one on each replica: 4 and 5 are refused and take no turn.
    assert got.placed == ["replica0", "replica1", "replica0", "replica1", None, None]
    assert got.reasons[4:] == ["queue_full", "queue_full"]
    assert got.tokens == [[40], [15], [54], [29], [], []]


def test_a_snapshot_shows_the_queue_too(fast_forward: bool) -> None:
    got = run_here(
        [(0, 4, 1), (1, 4, 1), (2, 4, 1), (15, 4, 1), (21, 4, 1)],
        ONE_SEAT,
        admission=Admission(max_waiting=3),
        snapshot=20,
        fast_forward=fast_forward,
    )

    # At 15 request 1 has been admitted, but the snapshot of 0 shows an empty queue and three placed
    # since, of which request 0 has ended: two wait. At 21 the snapshot of 20 has 2 and 3.
    assert got.reasons == [None] * 5
    refused = run_here(
        [(0, 4, 1), (1, 4, 1), (2, 4, 1), (13, 4, 1), (15, 4, 1)],
        ONE_SEAT,
        admission=Admission(max_waiting=3),
        snapshot=20,
        fast_forward=fast_forward,
    )
    # At 13 the three placed since count as waiting, though request 0 runs.
    assert refused.reasons == [None, None, None, "queue_full", None]


def rate(tokens_per_s: int, burst: int, **more: Any) -> Admission:
    return Admission(rate_limit=RateLimit(Bucket(tokens_per_s, burst), **more))


def test_a_bucket_fills_to_the_nanosecond() -> None:
    # 3 tokens a second: of the 10 of the start 9 are used (p + m = 9), 1 is left. For 9 more 8 are
    # needed: 8 / 3 s = 2.666666666666... s: at 2,666,666,666 ns one unit of 1e-9 tokens is short.
    cluster, _ = adapter.build({"requests": [], "replicas": [LARGE]})
    limited = replace(cluster, admission=rate(3, 10))
    for when_ns, state in ((2_666_666_666, REJECTED), (2_666_666_667, FINISHED)):
        arrivals = [Arrival(0, 8, 1, 1, 0), Arrival(when_ns, 8, 1, 1, 1)]
        result = simulate(arrivals, limited)
        assert result.requests["state"].tolist() == [FINISHED, state]


def test_each_tenant_has_a_bucket_and_those_refused_pay_nothing(fast_forward: bool) -> None:
    requests = [(0, 6, 1), (1, 6, 1), (2, 3, 1), (3, 6, 1), (SECOND, 6, 1), (SECOND, 6, 1)]
    got = run_here(
        requests,
        LARGE,
        admission=rate(7, 11, tenants={"small": Bucket(1, 3)}),
        fast_forward=fast_forward,
        tenant=["a", "a", "a", "small", "a", None],
    )

    # Tenant a: 11 - 7 = 4: request 1 is refused, request 2 (4 tokens) passes at 4 and some.
    # small holds 3. After a second a has a little over 7.
    assert got.reasons == [None, "rate_limited", None, "rate_limited", None, None]


@pytest.mark.parametrize(
    ("charge", "passing"), [("prompt_and_max", 1), ("prompt", 2), ("request", 10)]
)
def test_what_a_request_costs(charge: Any, passing: int, fast_forward: bool) -> None:
    got = run_here(
        [(0, 5, 1, 3)] * 12,
        LARGE,
        admission=rate(1, 10, charge=charge),
        fast_forward=fast_forward,
    )

    assert got.reasons.count(None) == passing


def test_a_request_refused_for_the_queue_keeps_its_tokens(fast_forward: bool) -> None:
    admission = replace(rate(1, 10), max_waiting=1)
    got = run_here(
        [(0, 1, 1), (1, 1, 1), (2, 3, 1), (20, 3, 1)],
        ONE_SEAT,
        admission=admission,
        fast_forward=fast_forward,
        tenant=["x", "y", "a", "a"],
    )

    # 11: request 0 is done, 1 runs. Tenant a has 10 still at 20; twice 4 had not been too many.
    assert got.reasons == [None, None, "queue_full", None]


def early(limit: int | None, **more: Any) -> Admission:
    limit_ns = None if limit is None else 1000 * limit
    return Admission(early_rejection=EarlyRejection(limit_ns, **more))


def test_a_predicted_ttft_over_the_limit_is_refused(fast_forward: bool) -> None:
    got = run_here(
        [(0, 10, 2), (1, 8, 1), (2, 3, 1), (3, 2, 1), (22, 18, 1), (33, 20, 1), (34, 1, 1)],
        LARGE,
        admission=early(20, prefill_tokens_per_s=SECOND),
        fast_forward=fast_forward,
    )

    # A token takes a microsecond. 0: 10. 1: 10 are in the step under way (not over yet) and 8: 18.
    # 2: 18 + 3 are too many, 3: 18 + 2 = 20 are not. 20: a decode, P = 8 + 2: 22 -> 42.
    # 22: 10 in the step and 18: too many. 33: the same 10, and 20. 34: 11.
    assert got.reasons == [
        None,
        None,
        "predicted_ttft",
        None,
        "predicted_ttft",
        "predicted_ttft",
        None,
    ]
    assert got.tokens == [[20, 42], [42], [], [42], [], [], [53]]


def test_without_a_rate_the_step_time_of_2048_tokens_is_the_pace(fast_forward: bool) -> None:
    # 10 + 2048 microseconds for 2048 tokens: 409.6 tokens would take 411.6 microseconds; 400 take
    # 401,953.125 ns.
    limits = {"exact": 401_954, "short": 401_953}
    got = run_here(
        [(0, 400, 1), (0, 400, 1)],
        *[replica("vllm-v1", 1000)] * 2,
        admission=Admission(early_rejection=EarlyRejection(None, limits)),
        fast_forward=fast_forward,
        request_class=["exact", "short"],
    )

    assert got.reasons == [None, "predicted_ttft"]


def test_replicas_that_would_be_late_are_not_offered(fast_forward: bool) -> None:
    got = run_here(
        [(0, 15, 1), (1, 4, 1), (2, 4, 1), (3, 4, 1), (4, 4, 1)],
        LARGE,
        LARGE,
        router=RoundRobin(),
        admission=early(10, classes={"patient": 100_000}, prefill_tokens_per_s=SECOND),
        fast_forward=fast_forward,
        request_class=["patient", None, None, None, None],
    )

    # Replica 0 has 15 to prefill, over the 10 alone; replica 1 takes 4 and 4.
    assert got.placed == ["replica0", "replica1", "replica1", None, None]


def test_what_is_cached_need_not_be_prefilled(fast_forward: bool) -> None:
    from sim.content import Content

    content = Content([(100, 40)])
    arrivals = [(0, 8, 1), (100, 20, 1), (200, 20, 1)]
    reasons = [
        run_here(
            arrivals,
            replica("vllm-v1", 100, prefix_cache=True),
            admission=early(13, prefill_tokens_per_s=SECOND, counts_cached=counts),
            fast_forward=fast_forward,
            content=[content, None, content],
        ).reasons
        for counts in (False, True)
    ]

    assert reasons[0] == [None, "predicted_ttft", "predicted_ttft"]
    assert reasons[1] == [None, "predicted_ttft", None]  # 20 - 8 = 12


def test_a_refused_request_leaves_no_trace(fast_forward: bool) -> None:
    admission = rate(1, 100, tenants={"poor": Bucket(1, 1)})
    requests = [(0, 5, 3), (3, 7, 2), (4, 9, 2), (4, 2, 6)]
    tenants = ["a", "poor", "b", "c"]
    got = run_here(
        requests,
        *[LARGE] * 2,
        router="random",
        admission=admission,
        fast_forward=fast_forward,
        tenant=tenants,
    )
    without = run_here(
        [r for r, name in zip(requests, tenants, strict=True) if name != "poor"],
        *[LARGE] * 2,
        router="random",
        fast_forward=fast_forward,
    )

    assert got.reasons[1] == "rate_limited"
    assert [times for i, times in enumerate(got.tokens) if i != 1] == without.tokens


class OneAfterTheOther:
    """A closed loop: the end of a request causes the next one, at that instant."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.failed: list[int] = []

    def __iter__(self) -> Iterator[Arrival]:
        return iter([Arrival(0, 8, 2, 2, 0)])

    def on_end(self, index: int, now_ns: int) -> Iterable[Arrival]:
        if index + 1 < self.count:
            yield Arrival(now_ns, 8, 2, 2, index + 1)

    def on_failed(self, index: int, now_ns: int) -> Iterable[Arrival]:
        self.failed.append(index)
        return self.on_end(index, now_ns)


def test_closed_loops_see_the_end_of_a_refused_request() -> None:
    cluster, _ = adapter.build({"requests": [], "replicas": [LARGE]})
    source = OneAfterTheOther(4)
    result = simulate(source, replace(cluster, admission=rate(1, 25)))

    assert source.failed == [2, 3]
    assert result.requests["state"].tolist() == [FINISHED, FINISHED, REJECTED, REJECTED]
    assert [result.reasons[i] for i in result.requests["reason"]] == [
        *("", "", "rate_limited", "rate_limited")
    ]


def test_what_cannot_be_judged_is_refused() -> None:
    cluster, _ = adapter.build({"requests": [], "replicas": [LARGE]})
    entry = replace(cluster.entry, snapshot_ns=5)

    with pytest.raises(ConfigError, match="counts_cached: true looks into caches"):
        replace(cluster, entry=entry, admission=early(1, counts_cached=True))
