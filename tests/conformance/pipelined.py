"""The reference with pipelines: a slow, plain loop over stages, written from rules 55 and 85 to 87.

Policies, routers and requests are the reference's own. They are shown the requests that are in no
batch under way, and fewer seats; a request that preempts itself while another batch is under way is
held back instead. The loop visits every instant and steps through every stage of every batch.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from tests.conformance.workloads import Spec

HELD = "held back"
"""Stands among the preempted of a pass, so that it admits nobody; taken out after it."""


class Batch:
    """One batch on its way: its pieces, sums of work, and where it is."""

    def __init__(self, pieces: list[Any], sums: tuple[int, ...], entry: Any) -> None:
        self.pieces = pieces
        self.sums = sums
        self.entry = entry
        self.stage = 0
        self.ready = 0


def simulate_pipelines(reference: ModuleType, spec: Spec) -> Any:
    """The reference's kind of result, for replicas that have ``stages`` and a ``link``."""
    return _Run(reference, spec).run()


class _Run:
    def __init__(self, reference: ModuleType, spec: Spec) -> None:
        self.reference = reference
        self.requests = [reference.Req(i, x) for i, x in enumerate(spec["requests"])]
        self.arrivals = sorted(self.requests, key=lambda r: r.arrival)
        layout = spec.get("disaggregated")
        default = spec.get("router", "round_robin")
        entry = ("both", "replica", spec.get("replicas"), default)
        if layout:
            entry = ("prefill", "prefill", layout["prefill"], layout.get("router", default))
        self.entry, self.entry_router = self._pool(*entry)
        self.decode: list[Any] = []
        if layout:
            router = layout.get("decode_router", default)
            self.decode, self.decode_router = self._pool(
                "decode", "decode", layout["decode"], router
            )
            self.wire = layout["transfer"]
        self.transfers: list[tuple[int, Any, Any]] = []
        self.result = reference.Result({})

    def _pool(self, role: str, name: str, configs: Any, router: str) -> tuple[list[Any], Any]:
        made = []
        for i, config in enumerate(configs):
            policy = _pipelined(self.reference.POLICIES[config["policy"]])
            made.append(policy(f"{name}{i}", config, role))
        return made, self.reference.Router(router, made)

    def run(self) -> Any:
        now = -1
        while (instants := self._instants(now)) and (now := min(instants)) >= 0:
            moving = [r for x in self._replicas() for r in x.end_stages(now, self._stage_ns)]
            self._end_transfers(now)
            for r in moving:
                self._hand_over(r)
            while self.arrivals and self.arrivals[0].arrival == now:
                self._arrive(self.arrivals.pop(0), now)
            for x in self._replicas():
                if all(batch.stage for batch in x.batches):
                    self._schedule(x, now)
        for r in self.requests:
            assert r.status == "rejected" or len(r.times) == r.o, f"request {r.id} is stuck"
            outcome = (r.status, r.reason, r.times, r.preemptions, r.first_replica)
            self.result.requests[r.id] = self.reference.Outcome(*outcome, r.decode_replica)
        self.result.log.sort(key=lambda x: (x.start_ns, x.end_ns))
        return self.result

    def _replicas(self) -> list[Any]:
        return self.entry + self.decode

    def _instants(self, now: int) -> list[int]:
        ready = [b.ready for x in self._replicas() for b in x.batches if b.ready > now]
        timers = [x.timer for x in self._replicas() if x.timer is not None]
        ends = [end for end, _, _ in self.transfers]
        return ready + timers + ends + [r.arrival for r in self.arrivals[:1]]

    def _stage_ns(self, x: Any, batch: Batch) -> int:
        """Rule 85: the stage's own time, and that of the activations' way there."""
        p, q2, s, d, c = batch.sums
        own: int = self.reference.linear_step_ns(x.cfg["stages"][batch.stage], p, q2, s, d, c)
        if batch.stage == 0:
            return own
        link = x.cfg["link"]
        seconds = (p + d) * link["bytes_per_token"] / link["bandwidth_bytes_per_s"]
        return own + round((link.get("latency_s", 0.0) + seconds) * 1e9)

    def _schedule(self, x: Any, now: int) -> None:
        while True:
            pieces = x.visible_pass(now)
            if pieces or not x.preempted_now:
                break
            self._log(x, now, [])
        if not x.waiting:
            self._pull(x, now)
        if pieces:
            batch = Batch(pieces, x.sums(pieces), self._log(x, now, pieces))
            batch.ready = now + self._stage_ns(x, batch)
            x.batches.append(batch)

    def _log(self, x: Any, now: int, pieces: list[Any]) -> Any:
        tokens = {piece.req.id: piece.tokens for piece in pieces}
        entry = self.reference.Decision(x.name, now, now, tokens, list(x.preempted_now), x.free)
        self.result.log.append(entry)
        return entry

    # --- two pools

    def _arrive(self, r: Any, now: int) -> None:
        m, o = (1, 1) if self.decode else (r.m, r.o)
        why = self.entry_router.why_not(r.p, m, o)
        if why is None and self.decode and r.m > 1:
            why = self.decode_router.why_not(r.p, r.m, r.o)
        if why is not None:
            r.status, r.reason = "rejected", why
            return
        x = self.entry_router.pick(r.p, m, o)
        r.at, r.m_seen, r.goal, r.joined, r.first_replica = x, m, o, now, x.name
        x.outstanding += 1
        x.waiting.append(r)

    def _hand_over(self, r: Any) -> None:
        x = self.decode_router.pick(r.p, r.m, r.o)
        r.at, r.m_seen, r.goal, r.decode_replica = x, r.m, r.o, x.name
        x.outstanding += 1
        x.pulls.append(r)

    def _pull(self, x: Any, now: int) -> None:
        if isinstance(x, self.reference.VllmV1) and len(x.running) >= x.max_seqs:
            return
        while x.pulls and x.free - x.pull_blocks(x.pulls[0]) >= x.watermark:
            r = x.pulls.pop(0)
            r.blocks = x.pull_blocks(r)
            x.free -= r.blocks
            size = r.source_blocks * r.source.block_tokens * self.wire["kv_bytes_per_token"]
            seconds = self.wire.get("latency_s", 0.0) + size / self.wire["bandwidth_bytes_per_s"]
            end = now + max(1, round(seconds * 1e9))
            names = (r.id, r.source.name, x.name)
            sizes = (r.source_blocks, r.blocks)
            self.result.transfers.append(self.reference.Transfer(*names, now, end, *sizes))
            self.transfers.append((end, r, x))

    def _end_transfers(self, now: int) -> None:
        for transfer in [t for t in self.transfers if t[0] == now]:
            self.transfers.remove(transfer)
            _, r, x = transfer
            r.source.free += r.source_blocks
            r.source, r.source_blocks = None, 0
            r.computed = r.target = r.p
            r.joined = now
            x.loaded.append(r)


def _pipelined(policy: type) -> type:
    """The policy on a replica of several stages."""

    class Pipelined(policy):  # type: ignore[misc, valid-type]
        def __init__(self, name: str, config: Spec, role: str) -> None:
            super().__init__(name, config, role)
            self.batches: list[Batch] = []
            self.grown: list[Any] = []
            self.joined: list[Any] = []  # all that joined running, in that order

        def end_stages(self, now: int, stage_ns: Any) -> list[Any]:
            """Phase (1), last stage first; the requests that move to the decode pool."""
            moving = []
            for batch in list(self.batches):  # the oldest is in the latest stage
                if batch.ready > now:
                    continue
                if batch.stage == len(self.cfg["stages"]) - 1:
                    self.batches.remove(batch)
                    self.pieces = batch.pieces
                    batch.entry.end_ns = now
                    moving += self.apply(now)
                elif all(other.stage != batch.stage + 1 for other in self.batches):
                    batch.stage += 1
                    batch.ready = now + stage_ns(self, batch)
            return moving

        def visible_pass(self, now: int) -> list[Any]:
            """One pass over the requests that are in no batch under way."""
            away = [piece.req for batch in self.batches for piece in batch.pieces]
            seats = self.max_seqs
            self.held: list[Any] = []
            self.grown = []
            self.preempted_now = []
            self.running = [r for r in self.running if r not in away]
            self.max_seqs = seats - len(away)
            pieces: list[Any] = self.schedule(now)
            self.max_seqs = seats
            self.preempted_now = [x for x in self.preempted_now if x != HELD]
            self.note_joined()
            self.running = sorted([*self.running, *self.held, *away], key=self.joined.index)
            return pieces

        def note_joined(self) -> None:
            self.joined += [r for r in self.running if r not in self.joined]

        def join_loaded(self) -> None:
            super().join_loaded()
            self.note_joined()

        def grow(self, r: Any, tokens: int) -> None:
            super().grow(r, tokens)
            self.grown.append(r)

        def preempt(self, r: Any) -> None:
            """Held back if it is the request being served, the first without its blocks."""
            decodes_only = policy.__name__ == "Sarathi"
            unserved = [x for x in self.running if x not in self.grown]
            served = next(x for x in unserved if not (decodes_only and x.prefilling))
            if r is served and self.batches:
                self.running.remove(r)
                self.held.append(r)
                self.preempted_now.append(HELD)
            else:
                self.joined.remove(r)
                super().preempt(r)

    return Pipelined
