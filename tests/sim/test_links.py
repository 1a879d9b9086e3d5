"""Shared links: a fluid computed another way, the mark of max-min fairness, whole clusters."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import ceil
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies import POLICIES, ROUTERS
from sim.clock import Clock, Instant, Phase
from sim.cluster import Cluster
from sim.errors import ConfigError
from sim.event_loop import simulate
from sim.links import Flow, Link, SharedLinks, fair_rates
from sim.pool import PoolSpec
from sim.records import Record, SimulationResult
from sim.replica_spec import ReplicaSpec
from sim.request import Arrival
from sim.step_time import LinearStepTime
from sim.transfer import TransferSpec
from tests.conformance import adapter
from tests.sim.timeline import Timeline, _timeline, pools, replica


class Sent(NamedTuple):
    """A transfer: when it is sent, its bytes, its links, and its latency."""

    start_ns: int
    num_bytes: int
    path: tuple[int, ...]
    latency_ns: int


def ends_of(bandwidths: Sequence[float], sent: Sequence[Sent]) -> tuple[list[int], list[int]]:
    """When each transfer ends, and the order in which ends are applied, by `SharedLinks`."""
    env = Clock(initial_time=0)
    links = SharedLinks(env)
    wires = [Link(bandwidth) for bandwidth in bandwidths]
    ends, order = [-1] * len(sent), []

    def start(i: int) -> None:
        def on_end() -> None:
            ends[i] = int(env.now)
            order.append(i)

        x = sent[i]
        links.send([wires[k] for k in x.path], x.num_bytes, x.latency_ns, on_end)

    for i in sorted(range(len(sent)), key=lambda i: sent[i].start_ns):
        Instant(env, sent[i].start_ns, Phase.SCHEDULE).callbacks.append(lambda _, i=i: start(i))
    env.run()
    return ends, order


def rates_by_hand(bandwidths: Sequence[Fraction], paths: dict[int, tuple[int, ...]]) -> dict:
    """Max-min rates: all rise by the smallest headroom per riser, until none can rise."""
    rates = dict.fromkeys(paths, Fraction(0))
    rising = set(paths)
    while rising:
        steps = []
        for link, bandwidth in enumerate(bandwidths):
            on = [i for i in paths if link in paths[i]]
            up = [i for i in on if i in rising]
            if up:
                steps.append((bandwidth - sum(rates[i] for i in on)) / len(up))
        for i in rising:
            rates[i] += min(steps)
        for link, bandwidth in enumerate(bandwidths):
            on = [i for i in paths if link in paths[i]]
            if sum(rates[i] for i in on) == bandwidth:
                rising -= set(on)
    return rates


def fluid(bandwidths: Sequence[float], sent: Sequence[Sent]) -> list[int]:
    """The same from the definition: between two moments everybody flows at the fair rate."""
    exact = [Fraction(b) / 10**9 for b in bandwidths]
    left = {i: Fraction(x.num_bytes) for i, x in enumerate(sent)}
    begin = {i: x.start_ns + x.latency_ns for i, x in enumerate(sent)}
    ends: dict[int, Fraction] = {i: Fraction(begin[i]) for i in left if not left[i]}
    now = Fraction(0)
    while len(ends) < len(sent):
        on = {i: sent[i].path for i in left if i not in ends and begin[i] <= now}
        rates = rates_by_hand(exact, on)
        moments = [now + left[i] / rates[i] for i in on]
        moments += [Fraction(b) for i, b in begin.items() if b > now and i not in ends]
        then = min(moments)
        for i in on:
            left[i] -= rates[i] * (then - now)
            if not left[i]:
                ends[i] = then
        now = then
    return [max(ceil(ends[i]), x.start_ns + 1) for i, x in enumerate(sent)]


BANDWIDTHS = st.sampled_from([1e9, 1.5e9, 3e9, 7e9, 0.1e9, 12.3456789e9, 1e9 / 3])


@st.composite
def flow_sets(draw: st.DrawFn) -> tuple[list[float], list[Sent]]:
    bandwidths = draw(st.lists(BANDWIDTHS, min_size=1, max_size=5))
    path = st.lists(st.integers(0, len(bandwidths) - 1), min_size=1, max_size=3, unique=True).map(
        tuple
    )
    one = st.builds(
        Sent, st.integers(0, 60), st.integers(0, 90), path, st.sampled_from([0, 0, 0, 3, 10])
    )
    return bandwidths, draw(st.lists(one, min_size=1, max_size=12))


@settings(max_examples=150, deadline=None)
@given(flow_sets())
def test_every_end_is_that_of_the_fluid(case: tuple[list[float], list[Sent]]) -> None:
    bandwidths, sent = case
    ends, order = ends_of(bandwidths, sent)
    assert ends == fluid(bandwidths, sent)
    started = sorted(range(len(sent)), key=lambda i: (sent[i].start_ns, i))
    assert order == sorted(started, key=lambda i: ends[i]), "ends of one instant in order of start"


@settings(max_examples=150, deadline=None)
@given(flow_sets())
def test_rates_have_the_mark_of_max_min_fairness(case: tuple[list[float], list[Sent]]) -> None:
    """Each flow has a full link on which nobody is faster: true of these rates and no others."""
    bandwidths, sent = case
    shared = SharedLinks(Clock(initial_time=0))
    links = [Link(b) for b in bandwidths]
    paths = [{links[k]: 1 for k in x.path} for x in sent]
    flows = [Flow(shared, path, (i, 0), 0, print) for i, path in enumerate(paths)]
    for flow in flows:
        for link in flow.path:
            link.flows[flow] = 1
    rates = dict(fair_rates(links))
    assert set(rates) == set(flows)
    full = {link for link in links if sum(rates[f] for f in link.flows) == link.bytes_per_ns}
    assert all(sum(rates[f] for f in link.flows) <= link.bytes_per_ns for link in links)
    for flow in flows:  # so it is work conserving as well: no flow could rise
        assert any(
            link in full and rates[flow] == max(rates[f] for f in link.flows) for link in flow.path
        )


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 60)), min_size=1, max_size=15))
def test_one_link_is_never_idle_while_there_is_something_to_send(rows: list) -> None:
    sent = [Sent(start, size, (0,), 0) for start, size in rows]
    ends, _ = ends_of([2e9], sent)
    free = Fraction(0)  # when a link that serves one after the other is done: the same last moment
    for start, size in sorted(rows):
        free = max(free, Fraction(start)) + Fraction(size, 2)
    assert max(ends) == ceil(free)


def test_rates_change_between_whole_nanoseconds() -> None:
    # 1 byte/ns. Bytes 1, 1, 10, from 0: a third each. At 3 the first two are over; 9 left: 12.
    # With 2, 3, 10 at 0: 2 each have flowed at 6; then a half each: 1 more at 8; the last has
    # 10 - 3 = 7 left: 15. With 1, 2 at 0 and 1 at 1: see the moments 2.5 and 3.5 in between.
    assert ends_of([1e9], [Sent(0, b, (0,), 0) for b in (1, 1, 10)])[0] == [3, 3, 12]
    assert ends_of([1e9], [Sent(0, b, (0,), 0) for b in (2, 3, 10)])[0] == [6, 8, 15]
    # 0 to 1: half a byte each. From 1 on a third each: the first is over at 2.5, the second and
    # third have 1 and 0.5 left; a half each: the third at 3.5; the second has 0.5 left: 4.
    sent = [Sent(0, 1, (0,), 0), Sent(0, 2, (0,), 0), Sent(1, 1, (0,), 0)]
    assert ends_of([1e9], sent)[0] == [3, 4, 4]


def test_what_a_slow_link_leaves_the_others_take() -> None:
    # Links of 3 and 1 byte/ns. The first crosses both, the second the wide one only: 1 and 2.
    # The second has sent 8 at 4; the first goes on at 1 byte/ns: 12.
    assert ends_of([3e9, 1e9], [Sent(0, 12, (0, 1), 0), Sent(0, 8, (0,), 0)])[0] == [12, 4]


def test_latency_takes_no_bandwidth_and_nothing_takes_at_least_a_nanosecond() -> None:
    # The first has the link alone until the second's latency is over, at 5: 5 left of 10. A half
    # each: the second has sent 2 at 9; 3 are left: 12.
    assert ends_of([1e9], [Sent(0, 10, (0,), 0), Sent(0, 2, (0,), 5)])[0] == [12, 9]
    assert ends_of([1e9], [Sent(3, 0, (0,), 0), Sent(3, 0, (0,), 7)])[0] == [4, 10]


def test_a_transfer_called_off_leaves_its_bandwidth_to_others() -> None:
    env = Clock(initial_time=0)
    links, link, ended = SharedLinks(env), Link(1e9), []
    first = links.send([link], 10, 0, lambda: ended.append((0, env.now)))
    links.send([link], 10, 0, lambda: ended.append((1, env.now)))
    Instant(env, 4, Phase.CANCEL).callbacks.append(lambda _: first.call_off())
    env.run()
    assert ended == [(1, 12)]  # 2 sent at 4, 8 left alone


def test_what_is_withheld_waits_and_takes_no_bandwidth() -> None:
    env = Clock(initial_time=0)
    links, link, ended = SharedLinks(env), Link(1e9), []
    layered = links.send([link], 12, 1, lambda: ended.append((0, env.now)), withheld_bytes=3)
    links.send([link], 20, 0, lambda: ended.append((1, env.now)))
    Instant(env, 25, Phase.STEP_END).callbacks.append(lambda _: layered.release())
    env.run()
    # 1 to 19: a half each, 9 of the first are sent; the second has sent 1 + 9, has 10 left, is
    # alone: 29, but at 25 the rest is released and flows from 26 on: a half each: 3 left at 26
    # on both sides: both at 32.
    assert ended == [(0, 32), (1, 32)]


# --- bandwidths that change


class Change(NamedTuple):
    """A bandwidth from an instant on."""

    at_ns: int
    link: int
    bytes_per_s: float


def ends_with_changes(
    bandwidths: Sequence[float], sent: Sequence[Sent], changes: Sequence[Change]
) -> list[int]:
    """When each transfer ends, by `SharedLinks`; -1 for one that never does."""
    env = Clock(initial_time=0)
    links = SharedLinks(env)
    wires = [Link(bandwidth) for bandwidth in bandwidths]
    ends = [-1] * len(sent)

    def start(i: int) -> None:
        x = sent[i]
        path = [wires[k] for k in x.path]
        links.send(path, x.num_bytes, x.latency_ns, lambda: ends.__setitem__(i, int(env.now)))

    for change in changes:
        Instant(env, change.at_ns, Phase.TRANSFER_END).callbacks.append(
            lambda _, c=change: links.change_bandwidth(wires[c.link], c.bytes_per_s)
        )
    for i in sorted(range(len(sent)), key=lambda i: sent[i].start_ns):
        Instant(env, sent[i].start_ns, Phase.SCHEDULE).callbacks.append(lambda _, i=i: start(i))
    env.run()
    return ends


def fluid_with_changes(
    bandwidths: Sequence[float], sent: Sequence[Sent], changes: Sequence[Change]
) -> list[int]:
    """As `fluid`, and at the moment of a change everybody's rate is set anew."""
    exact = [Fraction(b) / 10**9 for b in bandwidths]
    left = {i: Fraction(x.num_bytes) for i, x in enumerate(sent)}
    begin = {i: x.start_ns + x.latency_ns for i, x in enumerate(sent)}
    ends: dict[int, Fraction] = {i: Fraction(begin[i]) for i in left if not left[i]}
    to_come = sorted(changes, key=lambda c: c.at_ns)
    now = Fraction(0)
    while len(ends) < len(sent):
        while to_come and to_come[0].at_ns <= now:
            change = to_come.pop(0)
            exact[change.link] = Fraction(change.bytes_per_s) / 10**9
        on = {i: sent[i].path for i in left if i not in ends and begin[i] <= now}
        rates = rates_by_hand(exact, on)
        moments = [now + left[i] / rates[i] for i in on if rates[i]]
        moments += [Fraction(b) for i, b in begin.items() if b > now and i not in ends]
        moments += [Fraction(change.at_ns) for change in to_come[:1]]
        if not moments:
            break
        then = min(moments)
        for i in on:
            left[i] -= rates[i] * (then - now)
            if not left[i]:
                ends[i] = then
        now = then
    return [max(ceil(ends[i]), x.start_ns + 1) if i in ends else -1 for i, x in enumerate(sent)]


@st.composite
def changing(draw: st.DrawFn) -> tuple[list[float], list[Sent], list[Change]]:
    bandwidths, sent = draw(flow_sets())
    link = st.integers(0, len(bandwidths) - 1)
    change = st.builds(
        Change, st.integers(0, 150), link, st.one_of(BANDWIDTHS, st.sampled_from([0.0, 5e8]))
    )
    return bandwidths, sent, draw(st.lists(change, max_size=6))


@settings(max_examples=200, deadline=None)
@given(changing())
def test_every_end_is_that_of_the_fluid_while_bandwidths_change(
    case: tuple[list[float], list[Sent], list[Change]],
) -> None:
    assert ends_with_changes(*case) == fluid_with_changes(*case)


def test_a_link_slows_down_goes_down_and_comes_back() -> None:
    # 1 byte/ns; 4 sent at 4; a quarter: 5 sent at 8; down until 20; 2 bytes/ns: 5 more at 22.5.
    sent = [Sent(0, 10, (0,), 0), Sent(30, 4, (0,), 0)]
    changes = [Change(4, 0, 0.25e9), Change(8, 0, 0.0), Change(20, 0, 2e9)]
    assert ends_with_changes([1e9], sent, changes) == [23, 32]
    assert ends_with_changes([1e9], sent, changes[:2]) == [-1, -1], "nothing passes a link down"
    # A last byte that arrives at the very moment of the change has arrived.
    assert ends_with_changes([1e9], [Sent(0, 4, (0,), 0)], changes[:1]) == [4]


def test_what_is_withheld_still_waits_after_a_change() -> None:
    env = Clock(initial_time=0)
    links, link, ended = SharedLinks(env), Link(1e9), []
    flow = links.send([link], 8, 0, lambda: ended.append(env.now), withheld_bytes=4)
    Instant(env, 2, Phase.CANCEL).callbacks.append(lambda _: links.change_bandwidth(link, 5e8))
    Instant(env, 10, Phase.STEP_END).callbacks.append(lambda _: flow.release())
    env.run()
    assert ended == [18]  # 2 sent at 2, 4 at 6; 4 more from 10 on, at half a byte per ns


# --- clusters

LAYOUT = pools([replica("orca", 40)], [replica("orca", 40)])


def shared_timeline(
    rows: Sequence[tuple[int, int, int]], layout: dict, *, fast_forward: bool
) -> Timeline:
    layout = layout | {"transfer": layout["transfer"] | {"sharing": "max-min"}}
    names = ("arrival_ns", "prompt_tokens", "output_tokens")
    requests = [dict(zip(names, (1000 * a, p, o), strict=True)) for a, p, o in rows]
    spec = {"requests": requests, "disaggregated": layout}
    return _timeline(adapter.observe(spec, fast_forward=fast_forward))


@pytest.mark.parametrize("fast_forward", [True, False])
def test_two_transfers_of_one_prefill_share_its_nic(fast_forward: bool) -> None:
    got = shared_timeline([(0, 4, 2), (0, 8, 2)], LAYOUT, fast_forward=fast_forward)
    # Prefill P = 12: 22. Both flow at half a token per us: 4 tokens at 30, 8 at 34.
    # Decode: 30: 12 -> 42; the second joins at 42: 54.
    assert [t[3:] for t in got.transfers] == [(22, 30), (22, 34)]
    assert got.tokens == [[22, 42], [22, 54]]


@pytest.mark.parametrize("fast_forward", [True, False])
def test_two_prefills_share_the_nic_of_their_decode_replica(fast_forward: bool) -> None:
    slow = replica("orca", 40, nic_bytes_per_s=500e3)
    layout = pools([replica("orca", 40), slow], [replica("orca", 40)], latency=2)
    got = shared_timeline([(0, 8, 2), (0, 8, 2)], layout, fast_forward=fast_forward)
    # Both end their prefill at 18; the latency is over at 20. The target's NIC gives a half each,
    # which is all that the second's source has: both at 36. Alone it would be 28 and 36.
    assert [t[3:] for t in got.transfers] == [(18, 36), (18, 36)]
    late = shared_timeline([(0, 8, 2), (4, 8, 2)], layout, fast_forward=fast_forward)
    # The second ends its prefill at 22, flows from 24 on. The first has sent 4 by then; a half: 32.
    assert [t[3:] for t in late.transfers] == [(18, 32), (22, 40)]


STEP = LinearStepTime(base_s=1e-6, prefill_token_s=1e-7, decode_s=2e-7)


def busy(*, shares: bool, fast_forward: bool, policy: str, cache: bool = False) -> SimulationResult:
    options = {"prefix_cache": True} if cache else {}
    spec = ReplicaSpec(
        POLICIES[policy](**options), 60, STEP, kv_bytes_per_token=100, nic_bytes_per_s=None
    )
    router = ROUTERS["least-outstanding"]
    cluster = Cluster(
        PoolSpec("prefill", [spec] * 3, router()),
        PoolSpec("decode", [spec] * 2, router()),
        TransferSpec(1e9, 1e-6, shares_links=shares),
    )
    arrivals = [
        Arrival(
            700 * i,
            5 + 37 * i % 90,
            1 + i % 9,
            12,
            i,
            cancel_after_ns=4000 if i % 5 == 0 else None,
        )
        for i in range(60)
    ]
    record = Record(decisions=True)
    return simulate(arrivals, cluster, fast_forward=fast_forward, check=True, record=record)


@pytest.mark.parametrize("policy", ["vllm-v0", "vllm-v1", "sarathi", "orca"])
def test_fast_forward_gives_the_same_integers(policy: str) -> None:
    runs = [busy(shares=True, fast_forward=fast, policy=policy) for fast in (True, False)]
    for table in ("requests", "transfers"):
        first, second = (getattr(run, table) for run in runs)
        assert {k: v.tolist() for k, v in first.items()} == {
            k: v.tolist() for k, v in second.items()
        }
    logs = [sorted(run.decisions, key=lambda x: (x.replica, x.start_ns)) for run in runs]
    assert logs[0] == logs[1]


def test_transfers_of_a_run_are_those_of_the_fluid() -> None:
    run = busy(shares=True, fast_forward=True, policy="vllm-v1", cache=True)
    t = {name: column.tolist() for name, column in run.transfers.items()}
    rows = sorted(
        zip(t["start_ns"], t["bytes"], t["source"], t["target"], t["end_ns"], strict=True)
    )
    sent = [Sent(start, size, (source, target), 1000) for start, size, source, target, _ in rows]
    assert [row[-1] for row in rows] == fluid([1e9] * 5, sent)
    alone = busy(shares=False, fast_forward=True, policy="vllm-v1", cache=True)
    assert sum(end - start for start, *_, end in rows) > sum(
        (alone.transfers["end_ns"] - alone.transfers["start_ns"]).tolist()
    ), "the workload has no contention, so the test shows nothing"


def test_a_nic_without_shared_links_is_refused() -> None:
    spec = ReplicaSpec(POLICIES["orca"](), 60, STEP, nic_bytes_per_s=1e9)
    pool = PoolSpec("decode", [spec], ROUTERS["round-robin"]())
    with pytest.raises(ConfigError, match="nic_bytes_per_s 1e"):
        Cluster(pool, pool, TransferSpec(1e9))
