"""The main loop: every instant at which anything happens, phase by phase (rule 61).

    result = simulate({"requests": [...], "replicas": [...], "router": "round_robin"})
    result = simulate({"requests": [...], "disaggregated": {...}})

The spec has the arguments of the base reference's `simulate` as keys, and

concurrency      N: closed loop, at most N sessions at a time (rules 52, 71)
on_failed_turn   "skip" | "continue" (rule 52)

events, on_failure   changes of the cluster: changes.py

replicas may be pipelines (pipeline.py); `disaggregated` may have `recompute_last_token` (38, 67).

Requests may carry the keys that request.py names. The result is that of the base reference, with
the states "cancelled", "skipped", "failed" and "unfinished" added to an outcome's, and how often
it was re-routed (79) and handed over again (81), and `lost`: for each replica with a
cache, blocks (`sglang`: tokens) that lost their content in all.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise

from .cached import CachedVllmV1
from .changes import Changes, Router
from .links import Flight, Flow, Links
from .loading import refsim
from .pipeline import Piped, piped_class
from .policies import Orca, Sarathi, Static, VllmV0, VllmV1
from .push import Push
from .request import Chains, Request
from .sglang import Sglang
from .swapped import SwappingVllmV0
from .tiered import TieredVllmV1


@dataclass
class Transfer(refsim.Transfer):
    """A transfer, and what it did not have to move."""

    cached_tokens: int = 0  # found cached on the decode side, not transferred
    called_off: bool = False  # it ended before its time (54, 66, 70, 76)
    bytes: int = 0
    layers: int = 0  # 0 if not layer-wise
    released_ns: int | None = None  # layer-wise: when its prefill ended


@dataclass
class Decision(refsim.Decision):
    """A log entry; `lost_step`: the replica failed in it, end_ns is the failure (81)."""

    lost_step: bool = False
    stages: list = field(default_factory=list)  # of a pipeline (pipeline.py)


@dataclass
class Outcome(refsim.Outcome):
    """How a request ended. `replica` and `decode_replica` are the last ones."""

    rerouted: int = 0
    handed_again: int = 0
    visited: list = field(default_factory=list)  # replicas it was routed or handed to, in order
    ended_ns: int | None = None
    # Ends of its prefills on prefill replicas: the other convention of TTFT with 38, the first one.
    prefill_ends_ns: list = field(default_factory=list)


@dataclass
class Result(refsim.Result):
    """The base reference's result and what the parts here add."""

    lost: dict = field(default_factory=dict)
    tier_bytes: dict = field(default_factory=dict)  # of each tiered replica: link, read, written
    configs: dict = field(default_factory=dict)  # of each replica there has been
    corners: Counter = field(default_factory=Counter)  # how often each corner case occurred
    end_ns: int = 0  # the last instant


def policy_class(cfg: dict):
    name = cfg["policy"]
    if cfg.get("stages"):
        return piped_class(cfg)
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


class Simulation(Changes, Push):
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
            self.entry_router = Router(router, self.entry)
        else:
            self.entry = self.build(pair["prefill"], "prefill", "prefill")
            self.decode = self.build(pair["decode"], "decode", "decode")
            self.entry_router = Router(pair.get("router", router), self.entry)
            self.decode_router = Router(pair.get("decode_router", router), self.decode)
            self.wire = pair["transfer"]
        wire = pair["transfer"] if pair else {}
        self.sharing = {"none": False, "max-min": True}[wire.get("sharing", "none")]
        self.push = {"pull": False, "push": True}[wire.get("start", "pull")]
        layerwise = {"none": False, "layerwise": True}[wire.get("overlap", "none")]
        assert self.push or not layerwise, "layerwise with pull is a configuration error (66)"
        self.layers = wire["layers"] if layerwise else 0
        self.recompute = pair is not None and pair.get("recompute_last_token", False)  # 38, 67
        self.blocks_decode = wire.get("blocks_decode", False)
        assert not (self.blocks_decode and self.push), "not covered"
        self.links = Links(self.note)
        self.in_flight: list[Flight] = []  # in order of start
        self.past: list = []  # failed ones that were replaced
        self.open_changes(spec)
        self.arrivals: list[tuple] = []  # (instant, order of the cause, request), any order
        self.ends = 0  # ends so far: the order of causes
        self.queue: list[Request] = []  # first turns of sessions that wait for a place
        self.go_on = spec.get("on_failed_turn", "skip") == "continue"
        self.open_arrivals(spec)

    def build(self, cfgs: list[dict], role: str, prefix: str) -> list:
        return [self.fresh(f"{prefix}{i}", cfg, role) for i, cfg in enumerate(cfgs)]

    def fresh(self, name: str, cfg: dict, role: str):
        replica = policy_class(cfg)(name, cfg, role)
        replica.sim = self
        return replica

    def everyone(self) -> list:
        """All replicas there have been, the prefill pool before the decode pool (rule 1)."""
        return self.entry + self.decode

    def alive(self) -> list:
        return [x for x in self.everyone() if x.state in ("up", "draining")]

    def routers(self) -> list:
        return [self.entry_router] + ([self.decode_router] if self.decode else [])

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
        if after is not None and state in ("rejected", "failed") and not self.go_on:
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
            instants = self.instants()
            if not instants:
                break
            assert min(instants) > self.now
            self.now = min(instants)
            if self.sharing:
                self.links.advance(self.in_flight, self.now)
            moving = self.steps_end()  # (1)
            self.transfers_end()  # (2)
            self.cancellations()  # (2b)
            self.cluster_events()  # (2c)
            self.hand_over(moving)  # (2d)
            self.arrive()  # (3)
            for x in self.passes():  # (4)
                if x.may_start():
                    self.schedule(x)
            for x in self.alive():
                x.check(self.reqs)
                routed = [
                    r for r in self.reqs if r.ended is None and (r.at is x or r.push_target is x)
                ]
                assert x.outstanding == len(routed), "rule 26"
            if self.goes_nowhere():  # rule 84
                break
        return self.outcome()

    def instants(self) -> list[int]:
        """Rule 62."""
        instants = [t for x in self.alive() for t in x.next_ends()]
        instants += [x.timer for x in self.alive() if x.timer is not None]
        if self.sharing:
            ends = [self.links.next_instant(self.in_flight)]
        else:
            ends = [f.next_instant() for f in self.in_flight]
        instants += [t for t in ends if t is not None]
        instants += [instant for instant, *_ in self.arrivals]
        instants += [r.cancel_time() for r in self.reqs if self.may_be_cancelled(r)]
        instants += [event["at_ns"] for event in self.events]
        return instants

    def passes(self) -> list:
        """The replicas in the order of their passes (rule 1)."""
        if self.push:  # the decode pool first (69)
            return [x for x in self.decode + self.entry if x.state in ("up", "draining")]
        return self.alive()

    def steps_end(self) -> list[Request]:
        moving = []
        for x in self.alive():
            moving += x.phase_one(self.now)
        for r in moving:
            self.prefills += 1
            r.prefill_order = self.prefills
            if self.layers and r.push_target is not None:
                self.last_part(r)
        return [r for r in moving if r.at is None]

    def transfers_end(self) -> None:
        for flight in [f for f in self.in_flight if f.over(self.now)]:
            self.in_flight.remove(flight)
            flight.source.release_source(flight.request)
            flight.target.load(flight.request)

    def may_be_cancelled(self, r: Request) -> bool:
        """It has arrived, has not ended, and its cancellation is still to come (rule 74)."""
        return r.arrived is not None and r.ended is None and r.cancel_time() is not None

    def cancellations(self) -> None:
        for r in self.reqs:
            if self.may_be_cancelled(r) and r.cancel_time() == self.now:
                self.end(r, "cancelled")
                if r.at is not None:
                    r.at.cancel(r)
                elif r in self.at_router:
                    self.note("cancelled at the router")
                    self.at_router.remove(r)
                elif r in self.at_decode_router:  # the source's blocks are freed (75)
                    self.note("cancelled while waiting for a decode replica")
                    self.at_decode_router.remove(r)
                    r.source.release_source(r)
                else:  # its prefill ended in (1) (rule 75)
                    self.note("cancelled at the end of its prefill")
                    r.source.release_source(r)
                    if r.push_target is not None:  # not sent (76)
                        r.push_target.outstanding -= 1
                        self.left(r)

    def hand_over(self, moving: list[Request]) -> None:
        """Waiting for a decode replica; its decode replica failed; prefill ended in (1) (61)."""
        waiting, self.at_decode_router = self.at_decode_router, []
        again, self.again = self.again, []
        for r in waiting + again + moving:
            if r.source is None:  # cancelled in (2b), or its source failed in (2c)
                continue
            if r in again:
                r.handed_again += 1
            self.hand(r)

    def hand(self, r: Request) -> None:
        if r.push_target is not None:
            self.send(r)
            return
        if self.push:
            self.note("pushed, handed over as under pull")
        where = self.decode_router.pick(r.p, r.m, r.o)
        if where is None:
            self.at_decode_router.append(r)  # rule 78
            self.note("waits for a decode replica")
            return
        self.place(r, where, r.m, r.o)
        r.decode_replica = where.name
        where.pulls.append(r)

    def arrive(self) -> None:
        """Waiting for a replica; re-routed; then those of this instant (rule 61)."""
        waiting, self.at_router = self.at_router, []
        for r in waiting:
            self.route(r)
        rerouted, self.to_route = self.to_route, []
        for r in rerouted:
            self.reroute(r)
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
        why = self.why_never(r)
        if why is not None:
            r.reason = why
            self.end(r, "rejected")
            return
        self.route(r)

    def route(self, r: Request) -> None:
        m, o = (1, 1) if self.decode else (r.m, r.o)  # rule 29
        where = self.entry_router.pick(r.p, m, o)
        if where is None:  # it waits at the router, without blocking others (78)
            self.at_router.append(r)
            self.note("waits at the router")
            return
        self.place(r, where, m, o)
        r.first_replica = where.name
        r.joined = self.now
        where.waiting.append(r)
        if self.push and (r.m > 1 or self.recompute):  # right after the prefill replica (69)
            target = self.decode_router.pick(r.p, r.m, r.o)
            if target is None:
                self.note("no target up at arrival")
            else:
                r.push_target = target
                target.outstanding += 1
                r.visited.append(target.name)

    def place(self, r: Request, where, m_seen: int, goal: int) -> None:
        r.at, r.m_seen, r.goal = where, m_seen, goal
        where.outstanding += 1
        r.visited.append(where.name)

    def schedule(self, x) -> None:
        """A pass that only preempted is repeated at once (rule 2); then pulls (rule 32)."""
        if self.blocks_decode and x.role == "decode":  # rule 92
            x.timer = None
            if any(f.target is x for f in self.in_flight):
                self.note("no pass beside a transfer")
                return
            x.begin_pass()
            x.join_loaded()
            if self.start_pulls(x, 1):
                self.note("a pull instead of a pass")
                return
        while True:
            x.preempted_now = []
            x.begin_pass()
            pieces = x.schedule(self.now)
            if pieces or not x.preempted_now:
                break
            x.end_pass()
            self.log(x, self.now, pieces)
        if not (self.blocks_decode and x.role == "decode"):
            self.start_pulls(x)
        x.end_pass()
        if pieces:
            self.log(x, x.begin(self.now, pieces), pieces)
            x.logged(pieces)

    def log(self, x, end: int | None, pieces: list) -> None:
        tokens = {y.req.id: y.tokens for y in pieces}
        x.entry = Decision(
            x.name, self.now, end, tokens, list(x.preempted_now), x.free_now(), x.facts()
        )
        self.result.log.append(x.entry)

    def start_pulls(self, x, most: int | None = None) -> int:
        """How many were started."""
        if not x.may_pull():
            return 0
        started = 0
        while x.pulls and started != most:
            r = x.pulls[0]
            if x.free - x.pull_need(r) < x.watermark:
                break
            x.pulls.pop(0)
            blocks, cached = x.reserve(r)
            self.start_transfer(r, r.source, x, blocks, cached, 0)
            started += 1
        return started

    def start_transfer(self, r, source, target, blocks: int, cached: int, layers: int) -> None:
        size = source.block_tokens  # whole blocks of the source (rules 35, 44)
        held = source.blocks_for(r.p)
        assert r.source is None or held == r.source_blocks
        record = Transfer(r.id, source.name, target.name, self.now, None, held, blocks, cached)
        self.result.transfers.append(record)
        moved = (held - cached // size) * size * self.wire["kv_bytes_per_token"]
        record.bytes, record.layers = moved, layers
        kind = Flow if self.sharing else Flight
        flight = kind(r, source, target, record, moved, self.wire, layers)
        flight.begin()
        self.in_flight.append(flight)

    # --- the result

    def outcome(self) -> Result:
        self.result.end_ns = self.now
        for r in self.reqs:
            if r.ended is None and self.changing:  # rules 78, 84
                r.status = "unfinished" if r.arrived is not None else "skipped"
            else:
                assert r.ended is not None, f"request {r.id} is stuck"
            assert r.status != "finished" or len(r.times) == r.spec["output_tokens"]
            assert r.id not in self.result.requests, "two requests with one id"
            self.result.requests[r.id] = Outcome(
                r.status,
                r.reason,
                r.times,
                r.preemptions,
                r.first_replica,
                r.decode_replica,
                r.rerouted,
                r.handed_again,
                r.visited,
                r.ended,
                r.prefill_ends,
            )
        for x in self.past + self.everyone():
            self.result.configs[x.name] = x.cfg
            if isinstance(x, Piped):
                x.run_out()
            if hasattr(x, "cache"):
                self.result.lost[x.name] = self.result.lost.get(x.name, 0) + x.cache.lost
            elif hasattr(x, "tree"):
                self.result.lost[x.name] = self.result.lost.get(x.name, 0) + x.lost
            if isinstance(x, TieredVllmV1):
                block = x.block_tokens * x.cfg["kv_bytes_per_token"]
                self.result.tier_bytes[x.name] = [x.moved_in_all * block, *x.disk_in_all]
        return self.result


def simulate(spec: dict) -> Result:
    return Simulation(spec).run()
