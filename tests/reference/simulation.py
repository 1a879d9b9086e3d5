"""The main loop: every instant at which anything happens, phase by phase (rule 61).

    result = simulate({"requests": [...], "replicas": [...], "router": "round_robin"})
    result = simulate({"requests": [...], "disaggregated": {...}})

The spec has the arguments of the base reference's `simulate` as keys, and

concurrency      N: closed loop, at most N sessions at a time (rules 52, 71)
on_failed_turn   "skip" | "continue" (rule 52)

Requests may carry the keys that request.py names. The result is that of the base reference, with
the states "cancelled" and "skipped" added to an outcome's, and `lost`: for each replica with a
cache, blocks (`sglang`: tokens) that lost their content in all.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise

from .cached import CachedVllmV1
from .loading import refsim
from .policies import Orca, Sarathi, Static, VllmV0, VllmV1
from .request import Chains, Request
from .sglang import Sglang
from .swapped import SwappingVllmV0
from .tiered import TieredVllmV1


@dataclass
class Transfer(refsim.Transfer):
    """A transfer, and what it did not have to move."""

    cached_tokens: int = 0  # found cached on the decode side, not transferred


@dataclass
class Result(refsim.Result):
    """The base reference's result and what the parts here add."""

    lost: dict = field(default_factory=dict)
    tier_bytes: dict = field(default_factory=dict)  # of each tiered replica: link, read, written
    corners: Counter = field(default_factory=Counter)  # how often each corner case occurred


def policy_class(cfg: dict):
    name = cfg["policy"]
    if name == "vllm-v1" and cfg.get("prefix_cache", False):
        return TieredVllmV1 if cfg.get("host_cache_blocks") else CachedVllmV1
    if name == "vllm-v0" and cfg.get("preemption", "recompute") == "swap":
        return SwappingVllmV0
    return {
        "static": Static,
        "orca": Orca,
        "sarathi": Sarathi,
        "vllm-v0": VllmV0,
        "vllm-v1": VllmV1,
        "sglang": Sglang,
    }[name]


class Simulation:
    """One run."""

    def __init__(self, spec: dict):
        self.reqs = [Request(i, x) for i, x in enumerate(spec["requests"])]
        self.result = Result({})
        self.chains = Chains()
        self.now = -1
        pair = spec.get("disaggregated")
        router = spec.get("router", "round_robin")
        self.decode: list = []
        if pair is None:
            self.entry = self.build(spec["replicas"], "both", "replica")
            self.entry_router = refsim.Router(router, self.entry)
        else:
            self.entry = self.build(pair["prefill"], "prefill", "prefill")
            self.decode = self.build(pair["decode"], "decode", "decode")
            self.entry_router = refsim.Router(pair.get("router", router), self.entry)
            self.decode_router = refsim.Router(pair.get("decode_router", router), self.decode)
            self.wire = pair["transfer"]
        self.everyone = self.entry + self.decode
        self.in_flight: list[tuple] = []  # (end, request, target, source), in order of start
        self.arrivals: list[tuple] = []  # (instant, order of the cause, request), any order
        self.ends = 0  # ends so far: the order of causes
        self.queue: list[Request] = []  # first turns of sessions that wait for a place
        self.go_on = spec.get("on_failed_turn", "skip") == "continue"
        self.open_arrivals(spec)

    def build(self, cfgs: list[dict], role: str, prefix: str) -> list:
        replicas = []
        for i, cfg in enumerate(cfgs):
            replica = policy_class(cfg)(f"{prefix}{i}", cfg, role)
            replica.sim = self
            replicas.append(replica)
        return replicas

    # --- arrivals and ends

    def note(self, corner: str) -> None:
        self.result.corners[corner] += 1

    def open_arrivals(self, spec: dict) -> None:
        """The trace's own arrivals come before caused ones of the same instant (rule 52)."""
        sessions: dict = {}  # in order of first appearance
        for r in self.reqs:
            name = r.spec.get("session")
            key = ("alone", r.index) if name is None else ("session", name)
            sessions.setdefault(key, []).append(r)
        firsts = []
        for turns in sessions.values():
            if all(r.spec.get("turn") is not None for r in turns):  # else trace order (72)
                turns.sort(key=lambda r: r.spec["turn"])
            for before, after in pairwise(turns):
                before.following, after.previous = after, before
            firsts.append(turns[0])
        places = spec.get("concurrency")
        if places is None:
            firsts.sort(key=lambda r: (r.arrival, r.index))
            self.arrivals = [(r.arrival, -1, r) for r in firsts]
        else:  # recorded arrival times are not used (71)
            # Arrivals of one instant stand in trace order (part 1).
            first = sorted(firsts[:places], key=lambda r: r.index)
            self.arrivals = [(0, -1, r) for r in first]
            self.queue = firsts[places:]

    def end(self, r: Request, state: str) -> None:
        """The request has ended, now, as the client sees it. Once for each request."""
        if r.ended is not None:
            return
        r.status = state
        r.ended = self.now
        self.ends += 1
        after = r.following
        if after is not None and state == "rejected" and not self.go_on:
            self.note("turns skipped")
            while after is not None:  # they never arrive (72)
                after.status, after.ended = "skipped", self.now
                after = after.following
        if after is None and self.queue:  # the session's place is free (71)
            after = self.queue.pop(0)
            self.note("place taken")
        if after is not None:
            delay = after.spec.get("delay_ns") or 0  # that of the one that arrives (72)
            self.arrivals.append((self.now + delay, self.ends, after))
            self.note(f"caused by one {state}" + (", at once" if delay == 0 else ""))

    # --- the phases

    def run(self) -> Result:
        while True:
            instants = [x.step_end for x in self.everyone if x.step_end is not None]
            instants += [x.timer for x in self.everyone if x.timer is not None]
            instants += [end for end, *_ in self.in_flight]
            instants += [instant for instant, *_ in self.arrivals]
            instants += [r.cancel_time() for r in self.reqs if self.may_be_cancelled(r)]
            if not instants:
                break
            assert min(instants) > self.now
            self.now = min(instants)
            moving = self.steps_end()  # (1)
            self.transfers_end()  # (2)
            self.cancellations()  # (2b)
            self.hand_over(moving)  # (2d)
            self.arrive()  # (3)
            for x in self.everyone:  # (4)
                if x.step_end is None:
                    self.schedule(x)
            for x in self.everyone:
                x.check(self.reqs)
                routed = [r for r in self.reqs if r.at is x and r.ended is None]
                assert x.outstanding == len(routed), "rule 26"
        return self.outcome()

    def steps_end(self) -> list[Request]:
        moving = []
        for x in self.everyone:
            if x.step_end == self.now:
                moving += x.apply(self.now)
        return moving

    def transfers_end(self) -> None:
        for item in [t for t in self.in_flight if t[0] == self.now]:
            self.in_flight.remove(item)
            _, r, target, source = item
            source.release_source(r)
            target.load(r)

    def may_be_cancelled(self, r: Request) -> bool:
        """It has arrived, has not ended, and its cancellation is still to come (rule 74)."""
        return r.arrived is not None and r.ended is None and r.cancel_time() is not None

    def cancellations(self) -> None:
        for r in self.reqs:
            if self.may_be_cancelled(r) and r.cancel_time() == self.now:
                self.end(r, "cancelled")
                if r.at is not None:
                    r.at.cancel(r)
                else:  # its prefill ended in (1) (rule 75)
                    self.note("cancelled at the end of its prefill")
                    r.source.release_source(r)

    def hand_over(self, moving: list[Request]) -> None:
        for r in moving:
            if r.status == "cancelled":
                continue
            where = self.decode_router.pick(r.p, r.m, r.o)
            self.place(r, where, r.m, r.o)
            r.decode_replica = where.name
            where.pulls.append(r)

    def arrive(self) -> None:
        """Those of this instant, until none is left (rule 61)."""
        while True:
            due = [item for item in self.arrivals if item[0] == self.now]
            if not due:
                break
            item = min(due, key=lambda item: item[1])  # ties: in the order of the list
            self.arrivals.remove(item)
            if len(due) > 1 and item[1] >= 0:
                self.note(
                    "several caused at one instant"
                    if due[0][1] >= 0
                    else "caused beside the trace's own"
                )
            self.one_arrives(item[2])

    def one_arrives(self, r: Request) -> None:
        r.arrived = self.now
        cancel = r.cancel_time()
        if cancel is not None and cancel <= self.now:  # before rejection and routing (74)
            self.note("cancelled at its arrival")
            self.end(r, "cancelled")
            return
        p, m, o = r.p, r.m, r.o
        if self.decode:
            why = self.entry_router.why_not(p, 1, 1)  # rules 29, 36
            if why is None and m > 1:
                why = self.decode_router.why_not(p, m, o)
            m, o = 1, 1
        else:
            why = self.entry_router.why_not(p, m, o)
        if why is not None:
            r.reason = why
            self.end(r, "rejected")
            return
        where = self.entry_router.pick(p, m, o)
        self.place(r, where, m, o)
        r.first_replica = where.name
        r.joined = self.now
        where.waiting.append(r)

    def place(self, r: Request, where, m_seen: int, goal: int) -> None:
        r.at, r.m_seen, r.goal = where, m_seen, goal
        where.outstanding += 1

    def schedule(self, x) -> None:
        """A pass that only preempted is repeated at once (rule 2); then pulls (rule 32)."""
        while True:
            x.preempted_now = []
            x.begin_pass()
            pieces = x.schedule(self.now)
            if pieces or not x.preempted_now:
                break
            x.end_pass()
            self.log(x, self.now, pieces)
        self.start_pulls(x)
        x.end_pass()
        if pieces:
            x.pieces = pieces
            x.step_end = self.now + x.step_ns(pieces) + x.extra_ns()
            self.log(x, x.step_end, pieces)

    def log(self, x, end: int, pieces: list) -> None:
        tokens = {y.req.id: y.tokens for y in pieces}
        self.result.log.append(
            refsim.Decision(
                x.name, self.now, end, tokens, list(x.preempted_now), x.free_now(), x.facts()
            )
        )

    def start_pulls(self, x) -> None:
        if not x.may_pull():
            return
        while x.pulls:
            r = x.pulls[0]
            if x.free - x.pull_need(r) < x.watermark:
                return
            x.pulls.pop(0)
            blocks, cached = x.reserve(r)
            size = r.source.block_tokens  # whole blocks of the source (rules 35, 44)
            moved = r.source_blocks - cached // size
            seconds = (
                self.wire.get("latency_s", 0.0)
                + moved
                * size
                * self.wire["kv_bytes_per_token"]
                / self.wire["bandwidth_bytes_per_s"]
            )
            end = self.now + max(1, refsim.to_ns(seconds))
            self.result.transfers.append(
                Transfer(
                    r.id, r.source.name, x.name, self.now, end, r.source_blocks, blocks, cached
                )
            )
            self.in_flight.append((end, r, x, r.source))

    # --- the result

    def outcome(self) -> Result:
        for r in self.reqs:
            assert r.ended is not None, f"request {r.id} is stuck"
            assert r.status != "finished" or len(r.times) == r.o
            assert r.id not in self.result.requests, "two requests with one id"
            self.result.requests[r.id] = refsim.Outcome(
                r.status, r.reason, r.times, r.preemptions, r.first_replica, r.decode_replica
            )
        for x in self.everyone:
            if hasattr(x, "cache"):
                self.result.lost[x.name] = x.cache.lost
            elif hasattr(x, "tree"):
                self.result.lost[x.name] = x.lost
            if isinstance(x, TieredVllmV1):
                block = x.block_tokens * x.cfg["kv_bytes_per_token"]
                self.result.tier_bytes[x.name] = [x.moved_in_all * block, *x.disk_in_all]
        return self.result


def simulate(spec: dict) -> Result:
    return Simulation(spec).run()
