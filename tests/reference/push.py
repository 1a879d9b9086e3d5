"""Push: the target is chosen at arrival and reserves at the prefill's admission (39, 66, 69 to 83).

Keys of `transfer`: start: "pull" | "push", overlap: "none" | "layerwise", layers.

While a request is prefilled `push_target` is its decode replica; `reserved_blocks` and
`reserved_table` are what it holds there. From its prefill's end on it is at the target.
"""

from __future__ import annotations


class Push:
    """Mixed into the simulation."""

    def target_has_room(self, r) -> bool:
        """Asked at the admission of a prefill (70)."""
        target = r.push_target
        if target is None or r.reserved_blocks:  # m = 1, none up (83); kept after a preemption
            return True
        if target.waiting:
            self.note("push refused: somebody waits on the target")
            return False
        if target.free - target.pull_need(r) < target.watermark:
            self.note("push refused: no room on the target")
            return False
        return True

    def admitted(self, r) -> None:
        """Reserves on the target; a layer-wise transfer starts with this step (66, 70)."""
        target = r.push_target
        if target is None:
            return
        if r.reserved_blocks:
            self.note("reservation kept")
        else:
            own = r.blocks, r.table
            r.blocks, r.table = 0, []
            _, cached = target.reserve(r)
            r.reserved_blocks, r.reserved_table, r.reserved_cached = r.blocks, r.table, cached
            r.blocks, r.table = own
            self.note("reserved on the target" + (" in a step" if target.pieces else ""))
        if self.layers:
            self.start_transfer(r, r.at, target, r.reserved_blocks, r.reserved_cached, self.layers)

    def preempted(self, r) -> None:
        """Its layer-wise transfer is called off; the blocks on the target stay reserved (66)."""
        flight = self.flight_of(r)
        if flight is not None:
            self.note("layer-wise called off by a preemption")
            self.call_off(flight)

    def flight_of(self, r):
        return next((f for f in self.in_flight if f.request is r), None)

    def moves_to_target(self, r) -> None:
        """Its prefill has ended: what it reserved is its own now."""
        target = r.push_target
        r.at, r.m_seen, r.goal = target, r.m, r.o
        r.decode_replica = target.name
        r.blocks, r.table = r.reserved_blocks, r.reserved_table
        r.push_target = None

    def send(self, r) -> None:
        """Push without overlap: the transfer starts when the prefill has ended, in (2d)."""
        target = r.push_target
        self.moves_to_target(r)
        self.start_transfer(r, r.source, target, r.blocks, r.reserved_cached, 0)
        r.forget_reservation()

    def last_part(self, r) -> None:
        """Layer-wise: in (1), so a cancellation of this instant finds it in transfer (76)."""
        flight = self.flight_of(r)
        assert flight.target is r.push_target
        flight.prefill_ended(self.now)
        flight.record.released_ns = self.now
        self.moves_to_target(r)
        r.forget_reservation()

    def left(self, r) -> None:
        """It has left its prefill replica for good: finished (70) or cancelled (76)."""
        if r.push_target is not None:
            self.note(f"reservation given back: {r.status}")
            self.drop_push(r)

    def drop_push(self, r) -> None:
        """Gives back what it reserved; a layer-wise transfer is called off (70, 76, 81)."""
        target = r.push_target
        if target is None:
            return
        flight = self.flight_of(r)
        if flight is not None:
            self.note("layer-wise called off")
            self.call_off(flight)
        own = r.blocks, r.table
        r.blocks, r.table = r.reserved_blocks, r.reserved_table
        target.release(r)
        r.blocks, r.table = own
        r.forget_reservation()
        if r.status != "cancelled":  # else it has ended for routers already (75)
            target.outstanding -= 1
        r.push_target = None
