"""Routers under `router_snapshot_s` by hand (rule 27). A step: 10 + P + 2 D microseconds."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from policies import ROUTERS, KVAware, LeastOutstanding, RandomChoice
from sim.cluster import Cluster, LiveCluster
from sim.content import Content
from sim.errors import ConfigError
from sim.event_loop import simulate
from sim.policy import ReplicaView, Router
from sim.pool import PoolSpec
from sim.request import Arrival, Request
from sim.snapshot import Snapshots
from tests.conformance import adapter
from tests.conformance.workloads import workload
from tests.sim.timeline import pools, replica, run_here

LARGE = replica("vllm-v1", 100)  # blocks of 4 tokens
SEEN = (
    *("as_of_ns", "outstanding", "outstanding_tokens", "waiting", "waiting_tokens"),
    *("prefill_tokens_left", "used_blocks", "needed_blocks"),
)


@dataclass
class Notes(Router):
    """Sends each request where it is told, and notes what it sees of replica 0."""

    places: Sequence[int] = ()
    seen: list[tuple[int, ...]] = field(default_factory=list)

    def __deepcopy__(self, memo: Any) -> Notes:
        return self  # so that the test can read it

    def pick(self, request: Request, replicas: Sequence[ReplicaView]) -> ReplicaView:
        view = replicas[0]
        row = [getattr(view, name) for name in SEEN]
        self.seen.append((row[0] // 1000, *row[1:]))
        return replicas[self.places[request.index]]


def watch(
    requests: Sequence[Any], places: Sequence[int], snapshot: int, *, fast_forward: bool
) -> list[tuple[int, ...]]:
    router = Notes(places)
    run_here(requests, LARGE, LARGE, router=router, snapshot=snapshot, fast_forward=fast_forward)
    return router.seen


REQUESTS = [(0, 8, 4), (5, 6, 1), (20, 4, 1), (31, 3, 1), (40, 9, 1), (60, 1, 1), (99, 1, 1)]
PLACES = [0, 0, 0, 1, 0, 1, 0]
# Replica 0: request 0 alone, P = 8: 18. 18: its decode and request 1's 6: 18 -> 36. 36: a decode
# and request 2's 4: 16 -> 52. 52: a decode and request 4's 9: 21 -> 73, all are done.


def test_without_an_interval_the_state_is_exact(fast_forward: bool) -> None:
    seen = watch(REQUESTS, PLACES, 0, fast_forward=fast_forward)

    # outstanding, tokens, waiting, their tokens, to prefill, blocks used, and needed
    assert seen == [
        (0, 0, 0, 0, 0, 0, 0, 0),
        (5, 1, 8, 0, 0, 8, 2, 2),
        (20, 2, 9 + 6, 0, 0, 6, 3 + 2, 5),
        (31, 3, 9 + 6 + 4, 1, 4, 6 + 4, 5, 5 + 1),
        (40, 2, 10 + 4, 0, 0, 4, 3 + 1, 4),
        (60, 2, 11 + 9, 0, 0, 9, 3 + 3, 6),
        (99, 0, 0, 0, 0, 0, 0, 0),
    ]


def test_at_a_boundary_the_next_iteration_has_not_taken_its_blocks(fast_forward: bool) -> None:
    seen = watch([(0, 4, 12), (62, 1, 1)], [0, 1], 0, fast_forward=fast_forward)

    # P = 4: 14; then 12 a token. The iteration that ends at 62 stores the 8th token; the next takes
    # a third block for the 9th, in phase (4) of this instant.
    assert seen[1] == (62, 1, 4 + 5, 0, 0, 0, 2, 2)


def test_a_snapshot_shows_the_last_multiple_and_what_was_placed_since(fast_forward: bool) -> None:
    seen = watch(REQUESTS, PLACES, 20, fast_forward=fast_forward)

    assert seen == [
        (0, 0, 0, 0, 0, 0, 0, 0),
        # Nothing was there at 0; request 0 has been placed since: it waits, for all it is known.
        (0, 1, 8, 1, 8, 8, 0, 2),
        # 20 is a multiple: the state then, in which request 1 is being prefilled.
        (20, 2, 15, 0, 0, 6, 5, 5),
        # The same, and request 2 placed at 20, after the snapshot.
        (20, 3, 15 + 4, 1, 4, 6 + 4, 5, 5 + 1),
        # 40: request 1 has ended, request 2 is being prefilled; request 0 has emitted 2.
        (40, 2, 14, 0, 0, 4, 4, 4),
        # 60: requests 0 and 4.
        (60, 2, 20, 0, 0, 9, 6, 6),
        # 80: all are gone.
        (80, 0, 0, 0, 0, 0, 0, 0),
    ]


def test_what_ended_since_is_not_outstanding_but_its_memory_counts(fast_forward: bool) -> None:
    seen = watch(REQUESTS, PLACES, 50, fast_forward=fast_forward)

    assert seen == [
        (0, 0, 0, 0, 0, 0, 0, 0),
        (0, 1, 8, 1, 8, 8, 0, 2),
        (0, 2, 14, 2, 14, 14, 0, 4),
        (0, 3, 18, 3, 18, 18, 0, 5),
        # Request 1 was placed after the snapshot at 0 and has ended at 36: it is gone altogether.
        (0, 2, 12, 2, 12, 12, 0, 3),
        # 50: request 0 has emitted 2 and holds 3 blocks, request 2 1, request 4 waits and needs 3.
        (50, 2, 10 + 4 + 9, 1, 9, 4 + 9, 4, 4 + 3),
        # 99: all have ended by 73, and are not outstanding; their memory counts until 100.
        (50, 0, 23, 1, 9, 13, 4, 7),
    ]


@pytest.mark.parametrize("snapshot", [0, 1])
def test_a_decode_replica_counts_those_whose_kv_it_has_not_sent_for(
    snapshot: int, fast_forward: bool
) -> None:
    router = Notes([0] * 3)
    decode = replica("vllm-v1", 4)  # of 4 tokens: room for one of these prompts at a time
    cluster, _ = adapter.build(
        {"requests": [], "disaggregated": pools([LARGE], [decode], latency=50)}
    )
    assert cluster.decode is not None
    watched = replace(cluster.decode, router=router, snapshot_ns=1000 * snapshot)
    spec = {
        "requests": [
            {"arrival_ns": 0, "prompt_tokens": 9, "output_tokens": 3},
            {"arrival_ns": 0, "prompt_tokens": 10, "output_tokens": 3},
            {"arrival_ns": 30_000, "prompt_tokens": 1, "output_tokens": 3},
        ]
    }
    simulate(adapter.arrivals(spec), replace(cluster, decode=watched), fast_forward=fast_forward)

    # P = 19: at 29 both are handed over. Request 0, of 9 + 1 tokens, needs 3 blocks; it is sent
    # for, and request 1 (11 tokens: 3) has to wait for its memory. P = 1: request 2 at 41.
    assert [row[-2:] for row in router.seen] == [(0, 0), (0, 3), (3, 3 + 3)]


def decides_by_stale_tokens(*, fast_forward: bool) -> list[str | None]:
    requests = [(0, 9, 1), (1, 4, 1), (28, 4, 1)]
    return run_here(
        requests, LARGE, LARGE, router="least_tokens", snapshot=18, fast_forward=fast_forward
    ).placed


def test_a_stale_state_decides_otherwise(fast_forward: bool) -> None:
    # Replica 0: request 0 to 19; replica 1: request 1 to 15. At 28 both are empty, and the lowest
    # index would win; the snapshot of 18 still shows request 0's 9 tokens on replica 0.
    assert decides_by_stale_tokens(fast_forward=fast_forward) == [
        "replica0",
        "replica1",
        "replica1",
    ]


def test_a_router_that_ignores_its_interval_is_found_out(
    fast_forward: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def present(self: Snapshots) -> None:
        self._take(0)  # looks whenever something comes, not at multiples

    monkeypatch.setattr(Snapshots, "wake", present)

    assert decides_by_stale_tokens(fast_forward=fast_forward)[-1] == "replica0"


OPTIONS: dict[str, dict[str, Any]] = {
    "class-aware": {"classes": {"a": [0]}, "others": [0], "overflow": {"a": 2}},
    "prefix-aware": {"balance_abs_threshold": 2, "max_tree_tokens": 300},
    "kv-aware": {"temperature": 0.2},
    "session-affinity": {"fallback": RandomChoice()},
}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("router", ROUTERS)
def test_fast_forward_shows_a_router_the_same_state(seed: int, router: str) -> None:
    spec = workload(1000 + seed)
    arrivals = told(adapter.arrivals(spec), seed)
    cached = router in ("kv-aware", "mooncake") and "disaggregated" not in spec
    if cached:
        spec["replicas"] = [cached_replica(each, seed) for each in spec["replicas"]]
    made = ROUTERS[router](**OPTIONS.get(router, {}))
    snapshot_ns = 0 if made.sees_contents else (seed % 4) * 777_777
    got = []
    for fast in (False, True):
        cluster = routed(adapter.build(spec)[0], made, snapshot_ns)
        result = simulate(arrivals, cluster, fast_forward=fast, check=True)
        times = [result.token_times_ns(i).tolist() for i in range(len(arrivals))]
        places = [result.requests[name].tolist() for name in ("replica", "decode_replica")]
        got.append((times, places))
    assert got[0] == got[1]


def told(arrivals: list[Arrival], seed: int) -> list[Arrival]:
    """The same requests in a few sessions, classes and tenants, with beginnings in common."""
    rng = random.Random(seed)
    return [
        a._replace(
            session=rng.choice([None, "s", "t", "u"]),
            request_class=rng.choice([None, "a", "b"]),
            tenant=rng.choice([None, "x", "y"]),
            content=Content([(rng.choice([0, 1000]), rng.randint(0, 40)), (5000 + a.index, 9)]),
        )
        for a in arrivals
    ]


def cached_replica(spec: dict[str, Any], seed: int) -> dict[str, Any]:
    """With vLLM's cache of blocks, or SGLang's tree."""
    kept = {key: spec[key] for key in ("total_blocks", "block_tokens", "step_time") if key in spec}
    return {"policy": ("vllm-v1", "sglang")[seed % 2], "prefix_cache": True, **kept}


def routed(cluster: Cluster, router: Router, snapshot_ns: int) -> Cluster:
    def pool(spec: PoolSpec) -> PoolSpec:
        return replace(spec, router=router, snapshot_ns=snapshot_ns)

    decode = cluster.decode
    if decode is not None and not router.places_prefills:
        decode = pool(decode)
    return replace(cluster, entry=pool(cluster.entry), decode=decode)


def test_a_run_ends_although_snapshots_were_taken(fast_forward: bool) -> None:
    got = run_here([(0, 4, 1), (10_000, 4, 1)], LARGE, snapshot=3, fast_forward=fast_forward)

    assert got.tokens == [[14], [10_014]]


def test_none_are_taken_while_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    take = Snapshots._take

    def counted(self: Snapshots, as_of_ns: int) -> None:
        taken.append(as_of_ns // 1000)
        take(self, as_of_ns)

    monkeypatch.setattr(Snapshots, "_take", counted)
    run_here([(0, 4, 1), (10_000, 4, 1)], LARGE, snapshot=10, fast_forward=True)

    # A step from 0 to 14; the next request finds the state of 10,000. At 10,014 all is over: a look
    # at 10,020 would only lengthen the run.
    assert taken == [0, 10, 20, 10_000, 10_010]


@pytest.mark.parametrize("snapshot", [0, 3, 100_000])
def test_the_last_snapshot_does_not_lengthen_the_run(snapshot: int) -> None:
    cluster, _ = adapter.build({"requests": [], "replicas": [LARGE]})
    spec = {"requests": [{"arrival_ns": 0, "prompt_tokens": 4, "output_tokens": 1}]}
    result = simulate(adapter.arrivals(spec), routed(cluster, LeastOutstanding(), 1000 * snapshot))

    assert result.end_ns == 14_000


@pytest.mark.parametrize("snapshot", [0, 1, 40])
def test_least_kv_spreads_what_comes_at_once(snapshot: int, fast_forward: bool) -> None:
    got = run_here(
        [(0, 20, 1), *[(0, 3, 1)] * 6],
        LARGE,
        LARGE,
        router="least_kv",
        snapshot=snapshot,
        fast_forward=fast_forward,
    )

    # Nobody holds a block yet. Request 0 will need 5; each of the next 1, so that five of them go
    # to replica 1; the last finds 5 and 5, and 1 request outstanding against 5.
    assert got.placed == ["replica0", *["replica1"] * 5, "replica0"]


def test_a_router_that_looks_into_caches_is_refused() -> None:
    cluster, _ = adapter.build({"requests": [], "replicas": [LARGE]})

    with pytest.raises(ConfigError, match="router_snapshot_s: router kv-aware looks into caches"):
        replace(cluster.entry, router=KVAware(), snapshot_ns=1)


def test_a_snapshot_has_no_contents() -> None:
    @dataclass
    class Curious(LeastOutstanding):
        def pick(self, request: Request, replicas: Sequence[ReplicaView]) -> ReplicaView:
            replicas[0].cached_tokens(request)
            return super().pick(request, replicas)

    with pytest.raises(ConfigError, match="a snapshot has no contents of caches"):
        run_here([(0, 4, 1)], LARGE, router=Curious(), snapshot=5, fast_forward=True)


def test_something_from_outside_is_preceded_by_a_snapshot() -> None:
    """A cluster event, too: what stood there before it is what a snapshot before it shows."""
    seen: list[int] = []

    def look(live: LiveCluster) -> None:
        assert live.entry.snapshots is not None
        seen.append(live.entry.snapshots.views[0].as_of_ns)

    cluster, _ = adapter.build({"requests": [], "replicas": [LARGE]})
    spec = {"requests": [{"arrival_ns": 0, "prompt_tokens": 4, "output_tokens": 1}]}
    simulate(
        adapter.arrivals(spec),
        routed(cluster, LeastOutstanding(), 5000),
        cluster_events=[(52_000, look), (60_000, look)],
    )
    assert seen == [50_000, 60_000]
