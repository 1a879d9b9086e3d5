"""Changing clusters: failure, restoring, draining, adding (rules 54, 61, 78 to 84).

Keys of the spec:

events      list of {"at_ns", "pool": "both" | "prefill" | "decode", "index", "what"}, what being
            "fail" | "restore" | "drain" | "role" | "add" | "slow" | "normal". An added replica has
            the configuration `replica` of the event, or else that of the replica `index` of the
            pool (0 if left out). A drain
            with `to`: "prefill" | "decode" changes role when it is empty; "role" is such a drain.
            "slow", with `factor` (int, Fraction, decimal text, or a float for its shortest decimal
            text) and, if wanted, `until` (an instant later than `at_ns`), or else up to an event
            "normal": every iteration that starts from (2c) on takes max(1, step ns x factor) ns,
            rounded half to even.
on_failure  "reroute" | "fail"

`Changes` is mixed into the simulation. A replica's `state` is "up", "draining", "failed" or "gone".
A restored replica is a new object in the place of the old one: it has nothing.
"""

from __future__ import annotations

from fractions import Fraction

from .loading import refsim


class Router(refsim.Router):
    """Routes among replicas that are up and not draining (rule 78)."""

    def pick(self, p, m, o):
        """None if none of these can run it."""
        n = len(self.replicas)  # all there have been: round robin counts over all (82)
        fits = [
            i
            for i in range(n)
            if self.replicas[i].state == "up" and self.replicas[i].never_fits(p, m, o) is None
        ]
        if not fits:
            return None
        if self.kind == "round_robin":
            i = next(j % n for j in range(self.turn, self.turn + n) if j % n in fits)  # rule 25
            self.turn = i + 1
        else:
            i = min(fits, key=lambda j: (self.replicas[j].outstanding, j))  # rule 26
        return self.replicas[i]


def factor(value) -> Fraction:
    """Exact; of a float its shortest decimal text."""
    return Fraction(str(value) if isinstance(value, float) else value)


class Changes:
    """Events, what they do to requests, and the end of a run that goes nowhere."""

    def open_changes(self, spec: dict) -> None:
        events = []
        for event in spec.get("events", []):
            events.append(event)
            if event["what"] == "slow" and event.get("until") is not None:
                assert event["until"] > event["at_ns"]
                end = {k: event[k] for k in ("pool", "index")}
                events.append({**end, "at_ns": event["until"], "what": "normal", "of": event})
        self.events = sorted(events, key=lambda e: e["at_ns"])  # stable
        self.changing = bool(self.events)
        self.on_failure = spec.get("on_failure", "reroute")
        assert self.on_failure in ("reroute", "fail")
        self.at_router: list = []  # no replica is up that can run it (78)
        self.at_decode_router: list = []  # the same, its prefill has ended
        self.again: list = []  # its decode replica failed at this instant (81)
        self.to_route: list = []  # its replica failed at this instant (79)
        self.prefills = 0  # ended so far
        self.seen: set = set()  # states of earlier instants (84)

    # --- phase (2c)

    def cluster_events(self) -> None:
        while self.events and self.events[0]["at_ns"] == self.now:  # in order of the list (54)
            event = self.events.pop(0)
            pool = self.decode if event["pool"] == "decode" else self.entry
            what = event["what"]
            if what == "add":
                like = event.get("replica") or pool[event.get("index") or 0].cfg
                self.join(pool, like)
                self.note("added")
                continue
            x = pool[event["index"]]
            if what == "fail":
                self.fail(x)
            elif what in ("slow", "normal"):
                self.pace(x, event)
            elif what in ("drain", "role"):
                if x.state == "up":
                    x.state = "draining"
                    x.becomes = event.get("to")
                    assert x.becomes is None or (self.decode and x.becomes != x.role)
                    assert what == "drain" or x.becomes is not None
                    self.note("drained idle" if self.nothing_left(x) else "drained")
                else:
                    self.note("event without effect")
            else:
                assert what == "restore", what
                if x.state == "failed":  # empty, empty cache (54), the same index (82)
                    pool[event["index"]] = self.fresh(x.name, x.cfg, x.role)
                    self.past.append(x)
                    self.note("restored")
                else:
                    self.note("event without effect")
        for x in self.everyone():
            if x.state == "draining" and self.nothing_left(x):  # gone in (2c) (82)
                x.state = "gone"
                self.note("gone")
                if x.becomes is not None:  # a new replica with the next index (82)
                    self.join(self.decode if x.becomes == "decode" else self.entry, x.cfg)
                    self.note("role changed")

    def pace(self, x, event: dict) -> None:
        """One slow-down at a time: a new one takes the place of the old one."""
        if x.state not in ("up", "draining"):
            self.note("event without effect")
        elif event["what"] == "slow":
            self.note("slow again" if x.slow else "slow in a step" if x.next_ends() else "slow")
            x.slow = event
            x.factor = factor(event["factor"])
            assert x.factor > 0
        elif event.get("of") is None or x.slow is event["of"]:
            self.note("normal in a step" if x.next_ends() else "normal")
            x.slow, x.factor = None, Fraction(1)
        else:
            self.note("end of a slow-down that was over")

    def join(self, pool: list, cfg: dict) -> None:
        """Empty, and takes part from (2d) on (82)."""
        role = "decode" if pool is self.decode else ("prefill" if self.decode else "both")
        prefix = "replica" if role == "both" else role
        pool.append(self.fresh(f"{prefix}{len(pool)}", cfg, role))

    def nothing_left(self, x) -> bool:
        """Waiting, pulls and held blocks included (82)."""
        return not any(r.at is x or r.source is x or r.push_target is x for r in self.reqs)

    # --- failure

    def fail(self, x) -> None:
        if x.state in ("failed", "gone"):
            self.note("event without effect")
            return
        self.note(f"failed {x.state} " + ("in a step" if x.next_ends() else "idle"))
        x.state = "gone" if x.state == "draining" else "failed"  # rule 82
        for entry in x.lose_steps(self.now):  # lost whole (54); its entry ends here (81)
            entry.lost_step = True
            self.note("step lost")
        self.lose_target(x)
        lost = self.lose_requests(x)
        for r in self.reqs:
            if r.at is x:  # it has ended: a cancelled one, a finished row
                self.drop_push(r)
                r.at = None
                r.forget_kv()
        self.to_route += lost  # several replicas in order of the events (79)
        x.stop()

    def lose_target(self, x) -> None:
        """Transfers to it are called off; the source keeps its blocks (54, 81)."""
        for flight in [f for f in self.in_flight if f.target is x]:  # in order of start (81)
            r = flight.request
            self.call_off(flight)
            if r.at is not x:  # layer-wise, and its prefill goes on (83)
                continue
            r.at = None
            r.forget_kv()
            if r.ended is not None:  # cancelled in transfer
                flight.source.release_source(r)
                self.note("cancelled, then its target failed")
            else:
                self.again.append(r)
                self.note("target failed in transfer")
        for r in x.pulls:  # then those not yet pulled, in order (81)
            r.at = None
            self.again.append(r)
            self.note("target failed before the pull")
        for r in self.reqs:
            if r.push_target is x:  # pushed, its prefill goes on (83)
                r.push_target = None
                r.forget_reservation()
                self.note("target of a push failed")

    def lose_requests(self, x) -> list:
        """All whose KV or place is gone, in the order of rule 79."""
        running, waiting = x.in_order()
        held = sorted((r for r in self.reqs if r.source is x), key=lambda r: r.prefill_order)
        everything = running + x.loaded + held + waiting
        for r in everything:  # what they have elsewhere is freed in this order
            if r in held:
                self.take_back(r)
            self.drop_push(r)
        lost = [r for r in everything if r.ended is None]
        for kind, group in (
            ("running", running),
            ("loaded", x.loaded),
            ("held", held),
            ("waiting", waiting),
        ):
            if any(r.ended is None for r in group):
                self.note(f"lost {kind}")
        for r in lost:
            x.forget(r)  # `static` with batch_end: nothing was emitted (77)
            r.forget_kv()
            r.at = None
        return lost

    def take_back(self, r) -> None:
        """Its prefill has ended on a replica that failed: it leaves where it was handed to."""
        flight = next((f for f in self.in_flight if f.request is r), None)
        if flight is not None:
            self.call_off(flight)
            self.note("source failed in transfer")
            flight.target.release(r)  # the target's blocks are freed in (2c) (81)
        if r.at is not None:
            if flight is None:
                r.at.pulls.remove(r)
                self.note("source failed before the pull")
            if r.ended is None:
                r.at.outstanding -= 1
        for queue in (self.at_decode_router, self.again):
            if r in queue:
                queue.remove(r)
                self.note("source failed, waiting for a decode replica")
        r.at = None
        r.source, r.source_blocks, r.source_table = None, 0, []

    def call_off(self, flight) -> None:
        self.in_flight.remove(flight)
        flight.record.end_ns = self.now
        flight.record.called_off = True

    # --- phase (3): routing

    def reroute(self, r) -> None:
        """From now on a request of its own size, in every rule (80)."""
        if self.on_failure == "fail":
            r.reason = "replica_failed"
            self.end(r, "failed")
            return
        r.p += r.emitted
        r.m -= r.emitted
        r.o -= r.emitted
        if r.emitted:
            self.note("re-routed with tokens")
        if r.rerouted:
            self.note("re-routed again")
        r.emitted = 0
        why = self.why_never(r)
        if why is not None:
            r.reason = why
            self.end(r, "failed")
            return
        r.rerouted += 1
        self.route(r)

    def why_never(self, r) -> str | None:
        """Judged over all replicas the pool has had so far, up or not (78)."""
        if not self.decode:
            return self.entry_router.why_not(r.p, r.m, r.o)
        why = self.entry_router.why_not(r.p, 1, 1)  # rules 29, 36
        if why is None and (r.m > 1 or self.recompute):  # handed over in any case (67)
            why = self.decode_router.why_not(r.p, r.m, r.o)
        return why

    # --- rule 84

    def goes_nowhere(self) -> bool:
        """Nothing is left to come from outside, and the state of an earlier instant returns."""
        if not self.changing or self.events or self.arrivals:
            return False
        if any(self.may_be_cancelled(r) for r in self.reqs):
            return False
        state = self.state()
        if state in self.seen:
            self.note("state returned")
            return True
        self.seen.add(state)
        return False

    def state(self) -> tuple:
        """All that decides what happens next; instants relative to now."""
        numbers: dict = {}  # blocks of caches, in order of first appearance

        def of(table: list) -> tuple:
            return tuple((numbers.setdefault(b, len(numbers)), b.content) for b in table)

        def ids(group) -> tuple:
            return tuple(r.index for r in group)

        parts: list = []
        for x in self.everyone():
            if x.state in ("failed", "gone"):
                parts.append(x.state)
                continue
            running, waiting = x.in_order()
            parts.append(
                (
                    x.state,
                    x.free,
                    ids(x.running),
                    ids(running),
                    ids(waiting),
                    ids(x.pulls),
                    ids(x.loaded),
                    x.flight_state(self.now),
                    x.factor,
                    getattr(x, "owed_ns", 0),
                    getattr(x, "disk_owed_ns", 0),
                    tuple(getattr(x, "host", ())),
                    tuple(getattr(x, "disk", ())),
                )
            )
            if hasattr(x, "tree"):
                parts.append(len(self.result.log))  # never returns
            if hasattr(x, "cache"):
                parts.append(of(x.cache.queue))
            if hasattr(x, "timeout"):
                fires = [r.joined + x.timeout - self.now for r in x.waiting + x.loaded]
                parts.append(tuple(max(0, t) for t in fires))
        for r in self.reqs:
            if r.ended is None or r.at is not None:
                where = (r.at and r.at.name, r.source and r.source.name)
                target = r.push_target and r.push_target.name
                parts.append((r.index, r.status, where, target, r.emitted, r.computed, r.target))
                parts.append((r.blocks, r.source_blocks, r.host_blocks, r.reserved_blocks))
                parts.append((of(r.table), of(r.source_table), of(r.reserved_table)))
        for x in self.everyone():
            if hasattr(x, "cache"):
                copies = x.cache.copies.items()
                parts.append(tuple(sorted((c, of(b)) for c, b in copies if len(b) > 1)))
        parts += [ids(self.at_router), ids(self.at_decode_router)]
        parts.append(tuple(f.state(self.now) for f in self.in_flight))
        parts.append(tuple(router.turn for router in self.routers()))
        return tuple(parts)
