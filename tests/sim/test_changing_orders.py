"""`vtc` and `mlfq` by hand, and fast-forward under orders that change. A step: 10 + P + 2 D us."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from policies import MultiLevelQueue, VirtualTokenCounters
from sim.cluster import Cluster
from sim.event_loop import simulate
from sim.pool import PoolSpec
from sim.queue import QueueOrder
from sim.records import Record
from tests.conformance import adapter
from tests.conformance.workloads import workload
from tests.sim.timeline import Timeline, replica, run_here

ONE_SEAT = replica("orca", 100, max_batch_size=1)  # blocks of 4 tokens


def run(order: QueueOrder, requests: Sequence[Any], *replicas: Any, **more: Any) -> Timeline:
    return run_here(requests, *replicas, order=order, **more)


# --- vtc: c is the counter of a tenant, p once per admission and 2 per token emitted


def test_vtc_serves_the_tenant_that_has_had_least(fast_forward: bool) -> None:
    got = run(
        VirtualTokenCounters(),
        [(0, 4, 2), (1, 6, 1), (2, 3, 2), (3, 5, 1), (4, 8, 1)],
        ONE_SEAT,
        tenant=["a", "a", "b", "a", "c"],
        fast_forward=fast_forward,
    )

    # 0: request 0, c_a = 4; P = 4: 14. 1: request 1 joins, a left the queue last: nothing changes.
    # 2: b has had nothing, but a waits with 4: c_b = 4. 4: so does c: c_c = 4.
    # 14: c_a = 6; 12 -> 26: c_a = 8, request 0 is done.
    # 26: b and c have 4, b's request joined first: c_b = 7; 13 -> 39: 9; 12 -> 51: 11.
    # 51: c: 4 + 8 = 12; 18 -> 69. 69: a has 8: request 1: 16 -> 85. 85: request 3: 15 -> 100.
    assert got.tokens == [[14, 26], [85], [39, 51], [100], [69]]


def test_vtc_gives_no_credit_for_absence(fast_forward: bool) -> None:
    got = run(
        VirtualTokenCounters(),
        [(0, 4, 1), (20, 10, 1), (21, 2, 1), (22, 2, 1), (23, 2, 1)],
        ONE_SEAT,
        tenant=["a", "b", "a", "b", None],
        fast_forward=fast_forward,
    )

    # 0: c_a = 4; 14: 6. 20: nobody waits, a left last: c_b = 6, and 16 when admitted; 20 -> 40.
    # 21: nobody waits, b left last: c_a = 16. 22: a waits with 16: c_b stays 16. 23: the requests
    #     without a tenant start from 16.
    # 40: c_b = 18. a (16) joined before the third (16): 12 -> 52: c_a = 20. 52: the third: 64.
    # 64: b (18): 76.
    assert got.tokens == [[14], [40], [52], [76], [64]]


def test_vtc_counts_each_admission_of_a_pass_before_the_next(fast_forward: bool) -> None:
    got = run(
        VirtualTokenCounters(),
        [(0, 4, 1), (0, 4, 1), (0, 6, 1), (0, 4, 1), (0, 2, 1)],
        replica("orca", 100, max_batch_size=2),
        tenant=["a", "a", "b", "a", "b"],
        fast_forward=fast_forward,
    )

    # 0: request 0: c_a = 4; b has 0: request 2: c_b = 6. P = 10: 20: c_a = 6, c_b = 8.
    # 20: request 1: c_a = 10; b: request 4: c_b = 10. P = 6: 36: both 12. 36: request 3: 50.
    assert got.tokens == [[20], [36], [20], [50], [36]]


def test_vtc_keeps_preempted_requests_before_all_others(fast_forward: bool) -> None:
    got = run(
        VirtualTokenCounters(),
        [(0, 3, 4), (0, 4, 4), (0, 2, 3), (20, 1, 1)],
        replica("vllm-v0", 6, block_tokens=2),
        tenant=["a", "a", "a", "b"],
        fast_forward=fast_forward,
    )

    # 0: all of a, blocks 2 + 2 + 1, P = 9: 19. c_a = 9 + 6 = 15.
    # 19: 1 takes the last block; 2 needs one and is the tail: preempted. Two decodes: 14 -> 33.
    # 20: b joins, 2 of a waits: c_b = 15. 33: c_a = 19. Request 2 needs 2 blocks, 1 is free; b with
    #     one block would fit and stands behind. 0 takes it; no spare block for 1: preempted: 45.
    # 45: 1 (6 tokens, 3 blocks) fits, 2 does not: P = 6: 16 -> 61. 61: no spare block for 0: 1 is
    #     preempted: 12 -> 73, 0 is done.
    # 73: 1 with 7 tokens, 2 with 3: all 6 blocks: P = 10: 20 -> 93, 1 is done. 93: b alone: 104.
    # 104: 2: 12 -> 116.
    assert got.tokens == [[19, 33, 45, 73], [19, 33, 61, 93], [19, 93, 116], [104]]
    assert got.preemptions == [0, 2, 1, 0]


def test_vtc_shares_what_one_tenant_would_take(fast_forward: bool) -> None:
    # Tenant a asks for 30 prompts at once, then b for 10: b's are served in turn with a's.
    requests = [(0, 10, 1)] * 30 + [(1, 10, 1)] * 10
    tenants = ["a"] * 30 + ["b"] * 10
    got = run(VirtualTokenCounters(), requests, ONE_SEAT, tenant=tenants, fast_forward=fast_forward)

    last_of_b = max(times[-1] for times in got.tokens[30:])
    assert sum(times[-1] < last_of_b for times in got.tokens[:30]) == 11


# --- mlfq: levels with quanta of 20, 40 and more microseconds; 10 + p alone

LEVELS = {"levels": 3, "quantum_s": 20e-6}
V1_SEAT = replica("vllm-v1", 100, max_num_seqs=1)
FIVE = [(0, 25, 4), (5, 4, 3), (6, 40, 1), (40, 2, 1), (41, 8, 2)]


def test_mlfq_skips_levels_demotes_and_preempts(fast_forward: bool) -> None:
    got = run(MultiLevelQueue(**LEVELS, starvation_s=0), FIVE, V1_SEAT, fast_forward=fast_forward)

    # Alone: 35, 14, 50, 12 and 18: requests 0 and 2 start at levels 1 and 2, the others at 0.
    # 0: request 0: 35. 35: request 1 is on a higher level, 0 goes: 1: 14 -> 49.
    # 49: 1 has had 14 of 20 and goes on: 12 -> 61: 26, level 1. 61: 3 and 4 wait on level 0: 1
    #     goes, behind 0 on level 1. 3: 12 -> 73. 73: 4: 18 -> 91, 12 -> 103.
    # 103: 0 with 26 tokens: 36 -> 139; it has had 71, 40 of them on level 1: level 2. 139: 1 waits
    #     on level 1: 0 goes, behind 2. 1 with 6 tokens: 16 -> 155.
    # 155: 2: 50 -> 205. 205: 0 with 27: 37 -> 242; 12 -> 254.
    assert got.tokens == [[35, 139, 242, 254], [49, 61, 155], [205], [73], [91, 103]]
    assert got.preemptions == [2, 1, 0, 0, 0]
    assert (35, 35, {}) in got.steps["replica0"]
    assert got.preempted["replica0"][1] == [0]


def test_mlfq_promotes_who_has_waited_too_long(fast_forward: bool) -> None:
    got = run(
        MultiLevelQueue(**LEVELS, starvation_s=60e-6), FIVE, V1_SEAT, fast_forward=fast_forward
    )

    # As before to 73, but request 2, waiting since 6, is due at 66: at 73 it stands on level 0,
    # behind 4: 91, 103. 103: 0 (since 35, due at 95) is behind it. 2: 50 -> 153.
    # 153: 1 (since 61, due at 121) is behind 0. 0 with 26: 36 -> 189: beyond 20, level 1: 1 first,
    #     on level 0: 16 -> 205. 205: 0 with 27: 37 -> 242; 12 -> 254.
    assert got.tokens == [[35, 189, 242, 254], [49, 61, 205], [153], [73], [91, 103]]
    assert got.preemptions == [2, 1, 0, 0, 0]


def test_mlfq_promotes_nobody_unless_asked(fast_forward: bool) -> None:
    # Two seats and a queue that lasts far longer than the limit of waiting: whoever is promoted
    # preempts, and is preempted again after a quantum of 20 us, less than its prompt takes.
    requests = [(n, 30, 40) for n in range(12)]
    seats = replica("vllm-v1", 400, max_num_seqs=2)
    never = run(MultiLevelQueue(**LEVELS), requests, seats, fast_forward=fast_forward)
    often = run(
        MultiLevelQueue(**LEVELS, starvation_s=200e-6), requests, seats, fast_forward=fast_forward
    )

    assert sum(never.preemptions) <= len(requests) * LEVELS["levels"]
    assert sum(often.preemptions) > 5 * sum(never.preemptions)


def test_mlfq_preempts_for_blocks_only_if_that_is_enough(fast_forward: bool) -> None:
    got = run(
        MultiLevelQueue(**LEVELS, starvation_s=0),
        [(0, 25, 3), (5, 10, 1), (36, 14, 1), (37, 8, 1)],
        replica("vllm-v0", 10),
        fast_forward=fast_forward,
    )

    # 0: request 0 (level 1) takes 7 of 10 blocks: 35. 35: 1 (level 0) needs 3, which are free:
    #     20 -> 55. 55: 3 (level 0) needs 2: 18 -> 73; 2 (level 1) needs 4, 0 is on no lower one.
    # 73: 0 decodes: 12 -> 85: it has had 47: level 2. 85: 2 needs 4, 3 are free: 0 goes.
    #     2: 24 -> 109; 0 needs 7 blocks of 6. 109: 0 with 27: 37 -> 146.
    assert got.tokens == [[35, 85, 146], [55], [109], [73]]
    assert got.preemptions == [1, 0, 0, 0]


def test_mlfq_only_sorts_where_the_policy_never_preempts(fast_forward: bool) -> None:
    got = run(MultiLevelQueue(**LEVELS, starvation_s=0), FIVE, ONE_SEAT, fast_forward=fast_forward)

    # Request 0 to its end: 35, 47, 59, 71. Then level 0 in order: 1: 85, 97, 109; 3: 121; 4: 139,
    # 151; then 2: 201.
    assert got.tokens == [[35, 47, 59, 71], [85, 97, 109], [201], [121], [139, 151]]
    assert got.preemptions == [0] * 5


def test_orders_of_replicas_do_not_know_of_each_other(fast_forward: bool) -> None:
    order = VirtualTokenCounters()
    run(order, [(0, 4, 1), (0, 4, 1)], ONE_SEAT, ONE_SEAT, fast_forward=fast_forward)

    assert order.counters == {}


# --- fast-forward


def ordered(cluster: Cluster, order: QueueOrder) -> Cluster:
    def pool(spec: PoolSpec) -> PoolSpec:
        return replace(spec, replicas=_shared(spec, order))

    decode = None if cluster.decode is None else pool(cluster.decode)
    return replace(cluster, entry=pool(cluster.entry), decode=decode)


def _shared(pool: PoolSpec, order: QueueOrder) -> list[Any]:
    """Replicas alike keep sharing one spec."""
    made = {id(spec): replace(spec, order=order) for spec in pool.replicas}
    return [made[id(spec)] for spec in pool.replicas]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("name", ["vtc", "mlfq", "mlfq-starving"])
def test_fast_forward_equals_stepping(seed: int, name: str) -> None:
    spec = workload(3000 + seed)
    rng = random.Random(seed)
    cluster, _ = adapter.build(spec)
    step_ns = 1
    for pool in (cluster.entry, cluster.decode):
        for each in pool.replicas if pool is not None else ():
            step_ns = max(step_ns, round(1e9 * sum(vars(each.step_time).values())))
    patience = [None, None, 5 * step_ns, 20 * step_ns] if seed % 2 else [None]
    arrivals = [
        a._replace(tenant=rng.choice("abc"), cancel_after_ns=rng.choice(patience))
        for a in adapter.arrivals(spec)
    ]
    orders: dict[str, QueueOrder] = {
        "vtc": VirtualTokenCounters(prompt_weight=1 + seed % 2, output_weight=1 + seed % 3),
        "mlfq": MultiLevelQueue(levels=4, quantum_s=2 * step_ns / 1e9, starvation_s=0),
        "mlfq-starving": MultiLevelQueue(3, step_ns / 1e9, starvation_s=20 * step_ns / 1e9),
    }
    got = []
    for fast in (False, True):
        result = simulate(
            arrivals,
            ordered(cluster, orders[name]),
            fast_forward=fast,
            check=True,
            record=Record(decisions=True),
        )
        times = [result.token_times_ns(i).tolist() for i in range(len(arrivals))]
        decisions = sorted(result.decisions, key=lambda x: (x.start_ns, x.replica, x.end_ns))
        got.append((times, decisions))
    assert got[0] == got[1]
