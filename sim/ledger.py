"""The ledger of one replica: it splits the time of its steps among the requests that are there.

See `sim.attribution` for the rules. A run of iterations is billed at once: its decode group has
running totals, which a request reads when it joins and when it leaves.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from operator import sub
from types import MappingProxyType
from typing import TYPE_CHECKING

from sim.attribution import (
    BETWEEN,
    BUBBLE,
    COPY,
    DECODE_GPU,
    DECODE_HOST,
    DECODE_OTHERS,
    DECODE_PREFILLS,
    LOST,
    NOISE,
    PADDING,
    PHASE_OF,
    PREEMPTED,
    PREFILL,
    PREFILL_DECODES,
    PREFILL_OTHERS,
    QUEUE_HELD,
    QUEUE_MEMORY,
    QUEUE_STEP,
    SLOW,
    STALL,
    SWAPPED,
    Account,
    Alone,
    Line,
)
from sim.step_time import Ints, StepTimeModel, StepWork

if TYPE_CHECKING:
    from sim.decode_group import DecodeGroup
    from sim.flight import Flight
    from sim.records import Lifetime
    from sim.request import Request

_EXTRAS = (PADDING, NOISE, SLOW, COPY, BUBBLE)
"""Phases of the running totals of a decode group (`DecodeGroup.extras`), which ends with `LOST`."""
_PLACE = MappingProxyType({phase: i for i, phase in enumerate(_EXTRAS)})
_IN_GROUP = -2


class Ledger:
    """Accounts of the requests on one replica.

    Args:
        lives: Who is there.
        own: Step times of this replica.
        alone: Of its kind.
        varying: Whether its own times differ from those of its kind.
        now_ns: The present.

    Attributes:
        line: Why those wait who do.
        cause: What the last pass said.
        held: Whether that was for the sake of the other pool.
    """

    def __init__(
        self,
        lives: Mapping[Request, Lifetime],
        own: StepTimeModel,
        alone: Alone,
        *,
        varying: bool,
        now_ns: int,
    ) -> None:
        self._lives, self._own, self._alone, self._varying = lives, own, alone, varying
        self.line = Line(now_ns)
        self.cause, self.held = 0, False
        self._decoding, self._prefilling = StepWork(), StepWork()  # used again and again

    # --- who waits

    def queued(self, account: Account, now_ns: int) -> None:
        """It joins the queue."""
        account.to(QUEUE_STEP, now_ns)
        self.line.newcomers.append(account)

    def passed(self, cause: int, now_ns: int, *, held: bool) -> None:
        """A pass has decided; may be left out if all is as at the last one and nobody is new.

        Args:
            cause: Why the first in the queue was not admitted, or will not be if one comes
                (`sim.batch.Cause`).
            now_ns: The present.
            held: Memory that it would need is needed or kept for the other pool.
        """
        line, phase = self.line, PHASE_OF[cause]
        self.cause, self.held = cause, held
        if held and phase == QUEUE_MEMORY:
            phase = QUEUE_HELD
        if phase != line.cause:
            line.change(phase, now_ns)
        if line.newcomers:
            line.see(now_ns)

    def waits_for_kv(self, now_ns: int) -> None:
        """A pass decided nothing, as KV is on its way (rule 92)."""
        self.held = True
        self.line.change(QUEUE_HELD, now_ns)
        self.line.see(now_ns)

    def admitted(self, account: Account, now_ns: int) -> None:
        """It runs from now on; in a decode group it was told so before."""
        if account.state != _IN_GROUP:
            account.to(BETWEEN, now_ns)

    def preempted(self, account: Account, lost_tokens: int, now_ns: int, *, swapped: bool) -> None:
        """It gives up its seat; it has left its decode group."""
        account.lose(lost_tokens, SWAPPED if swapped else PREEMPTED, now_ns)

    # --- who decodes

    def joined(
        self, account: Account, group: DecodeGroup, stored_tokens: int, now_ns: int, number: int
    ) -> None:
        """It is in a decode group from now on.

        Args:
            account: Its own.
            group: Which.
            stored_tokens: Of it.
            now_ns: The present.
            number: Of the next token that its client gets, from 0.
        """
        account.to(_IN_GROUP, now_ns)
        if now_ns != account.last_ns:
            account.wait_until(number, now_ns)
        account.context, account.ticked_ns = stored_tokens, group.ticked_ns
        account.prefills_ns, account.extras = group.prefills_ns, group.extras

    def left(
        self, account: Account, group: DecodeGroup, ticks: int, now_ns: int, lost_ns: int
    ) -> None:
        """It has left its decode group, which is billed for all ticks that are over.

        Args:
            account: Its own.
            group: Which.
            ticks: That it took part in.
            now_ns: The present.
            lost_ns: Of a step under way, which it leaves too.
        """
        if account.state != _IN_GROUP:
            return
        ns, ticked = account.ns, group.ticked_ns - account.ticked_ns
        account.lost_ns = lost_ns
        others = group.prefills_ns - account.prefills_ns
        ns[DECODE_PREFILLS] += others
        if group.extras is not account.extras:
            *changes, lost = (b - a for a, b in zip(account.extras, group.extras, strict=True))
            for phase, change in zip(_EXTRAS, changes, strict=True):
                ns[phase] += change
            others, lost_ns = others + sum(changes), lost_ns + lost
        if ticks:
            gpu, host = self._alone.sums(account.context, ticks)
            ns[DECODE_GPU] += gpu
            ns[DECODE_HOST] += host
            ns[DECODE_OTHERS] += ticked - others - gpu - host
        ns[LOST] += lost_ns
        ns[STALL] += now_ns - account.since_ns - ticked - lost_ns
        account.left(group, ticks, now_ns, account.lost_ns)
        for tick, _, lost in reversed(group.lost):
            if tick < group.clock:
                break
            account.lost_ns += lost

    # --- steps

    def bill(self, flight: Flight, upto: int) -> None:
        """Iterations of a flight are over: those up to `upto` that were not billed before."""
        first = flight.billed
        if upto <= first:
            return
        flight.billed = upto
        ends = flight.ends_ns
        begin, end = ends[first - 1] if first else flight.start_ns, ends[upto - 1]
        plain = flight.model is self._own and not self._varying
        usual, group = plain and flight.batch.padding is None, flight.group
        if flight.ticks:
            if begin != group.billed_ns:
                group.begins.extend((group.clock - upto + first, begin))
            group.billed_ns = end
        if usual and not (flight.chunks or flight.copied_ns or flight.idle_ns):
            group.ticked_ns += end - begin
        elif usual and upto == 1:
            self._bill_one(flight, begin, end)
        elif plain and not flight.chunks and not (flight.copied_ns or flight.idle_ns):
            self._bill_padded(flight, first, upto - first, end - begin)
        else:
            self._bill_parts(flight, first, upto - first, begin, end)

    def _bill_one(self, flight: Flight, begin: int, end: int) -> None:
        """As `_bill_parts`: one iteration at the usual time, with chunks, copies or bubbles."""
        group, pieces = flight.group, flight.pieces
        copied, bubble = flight.copied_ns, flight.idle_ns
        real = end - begin - copied - bubble
        each: list[tuple[int, Sequence[int]]] = []
        if copied:
            each.append((COPY, (copied,)))
        if bubble:
            each.append((BUBBLE, (bubble,)))
        if flight.ticks:
            group.ticked_ns += end - begin
            if pieces:
                work, rows = self._decoding, flight.decodes
                work.decode_rows = work.attending_rows = work.sampled_rows = rows
                work.context_tokens, work.context_spread = flight.context_tokens, flight.spread
                prefills = real - self._alone.quiet.step_ns(work, 0)
                group.prefills_ns += prefills
                if prefills:
                    group.parts.extend((group.clock - 1, DECODE_PREFILLS, prefills))
            if each:
                self._note_each(group, each, 1)
        if pieces:
            own = self._prefills_ns(flight) if flight.ticks else real
            self._bill_chunks(flight, 0, 1, begin, end, real, own, each)

    def _prefills_ns(self, flight: Flight) -> int:
        """The step of the chunks of the first iteration, which has no padding, without decodes."""
        work, whole = self._prefilling, flight.work
        work.chunks, work.sampled_rows = flight.pieces, len(flight.pieces)
        work.prefill_tokens, work.prefill_tokens_sq = whole.prefill_tokens, whole.prefill_tokens_sq
        work.prefill_pairs_x2 = whole.prefill_pairs_x2
        return self._alone.quiet.step_ns(work, 0)

    def _bill_padded(self, flight: Flight, first: int, n: int, ticked: int) -> None:
        """As `_bill_parts`: decodes at the usual time, with rows of padding."""
        group = flight.group
        real = self._each(flight, first, n, (), decodes=True)
        group.ticked_ns += ticked
        extras = list(group.extras)
        extras[_PLACE[PADDING]] += ticked - sum(real)
        group.extras = tuple(extras)
        group.padded.append((group.clock - n, array("q", real)))

    def _bill_parts(self, flight: Flight, first: int, n: int, begin: int, end: int) -> None:
        """As `bill`, where a step is more than the decodes at the usual time."""
        bubble, copied = flight.idle_ns, flight.copied_ns
        ends = flight.ends_ns[first : first + n]
        lengths = [end - begin - bubble - copied]  # of several iterations each is its step
        if n > 1:
            lengths = list(map(sub, ends, (begin, *ends[:-1])))
        usual: Sequence[int] = lengths
        slow: Sequence[int] | None = None
        if self._varying or flight.model is not self._own:
            usual, slow = self._usual(flight, first, n, lengths)
        real, pieces = usual, flight.pieces
        if flight.batch.padding is not None:
            real = self._each(flight, first, n, pieces, decodes=True)
        each: list[tuple[int, Sequence[int]]] = []  # phases of the running totals, by iteration
        if real is not usual:
            each.append((PADDING, list(map(sub, usual, real))))
        if usual is not lengths:
            noise = list(map(sub, lengths, usual))
            if slow is not None:
                noise = list(map(sub, noise, slow))
                each.append((SLOW, slow))
            each.append((NOISE, noise))
        if copied:
            each.append((COPY, (copied,)))
        if bubble:
            each.append((BUBBLE, (bubble,)))
        if flight.ticks:
            self._bill_ticks(flight, first, end - begin, real, each)
        if pieces:
            own = sum(real)
            if flight.ticks:
                own = sum(self._each(flight, first, n, pieces, decodes=False))
            self._bill_chunks(flight, first, n, begin, end, sum(real), own, each)

    def _bill_ticks(
        self,
        flight: Flight,
        first: int,
        ticked: int,
        real: Sequence[int],
        each: list[tuple[int, Sequence[int]]],
    ) -> None:
        """What ticks of a decode group were made of, beside the decodes: in all and one by one."""
        group, n = flight.group, len(real)
        group.ticked_ns += ticked
        if flight.pieces:
            decodes = self._each(flight, first, n, (), decodes=True)
            prefills = list(map(sub, real, decodes))
            group.prefills_ns += sum(prefills)
            for tick, length in enumerate(prefills, start=group.clock - n):
                if length:
                    group.parts.extend((tick, DECODE_PREFILLS, length))
        if each:
            self._note_each(group, each, n)

    def _note_each(self, group: DecodeGroup, each: list[tuple[int, Sequence[int]]], n: int) -> None:
        """What else `n` ticks that are over were made of, in all and one by one."""
        extras = list(group.extras)
        for phase, lengths in each:
            extras[_PLACE[phase]] += sum(lengths)
            for tick, length in enumerate(lengths, start=group.clock - n):
                if length:
                    group.parts.extend((tick, phase, length))
        group.extras = tuple(extras)

    def _usual(
        self, flight: Flight, first: int, n: int, lengths: Sequence[int]
    ) -> tuple[Sequence[int], list[int] | None]:
        """Iterations without noise at the nominal pace, and what the pace added to each."""
        work, padding, slow = flight.work, flight.batch.padding, None
        if flight.model is not self._own:
            own = (
                self._own.step_ns(each, flight.number + i)
                for i, each in enumerate(flight.works(first, n), start=first)
            )
            slow = list(map(sub, lengths, own))
        if padding is None:
            return self._each(flight, first, n, flight.pieces, decodes=True), slow
        quiet = self._alone.quiet
        if work.chunks:
            return [quiet.step_ns(work, 0)], slow  # padded prefills are not repeated
        (begins,) = flight.works(first, 1)
        return _listed(quiet.steps_ns(begins, n, 0)), slow

    def _bill_chunks(
        self,
        flight: Flight,
        first: int,
        n: int,
        begin: int,
        end: int,
        real: int,
        prefills: int,
        each: list[tuple[int, Sequence[int]]],
    ) -> None:
        """Iterations of a flight, of so much time in all and for its chunks without decodes."""
        pieces = flight.pieces
        for (request, _), piece in zip(flight.chunks, pieces, strict=True):
            life = self._lives.get(request)
            account = None if life is None else life.account
            if account is None or account.state != BETWEEN:  # it has ended meanwhile
                continue
            ns = account.ns
            overlap = max(0, account.since_ns - begin)
            ns[BETWEEN] += begin + overlap - account.since_ns
            own = prefills
            if len(pieces) > 1:
                own = sum(self._each(flight, first, n, (piece,), decodes=False))
                ns[PREFILL_OTHERS] += prefills - own
            done = 0
            for redo, phase in account.redo:
                upto = self._anew(flight, first, n, piece, redo, own)
                ns[phase] += upto - done
                done = upto
            ns[PREFILL] += own - done
            ns[PREFILL_DECODES] += real - prefills
            for phase, lengths in each:
                ns[phase] += sum(lengths)
            ns[BUBBLE] -= overlap
            account.computed(begin, end)

    def _anew(
        self, flight: Flight, first: int, n: int, piece: tuple[int, int], redo: int, own: int
    ) -> int:
        """Of the time that chunks of one prompt take alone, that of tokens it had computed."""
        tokens, before = piece
        left = redo - before - first * tokens
        again = 0 if left <= 0 else min(n, -(-left // tokens))  # iterations that begin below `redo`
        if again in (0, n):
            return own if again else 0
        return sum(self._each(flight, first, again, (piece,), decodes=False))

    def _each(
        self,
        flight: Flight,
        first: int,
        n: int,
        pieces: Sequence[tuple[int, int]],
        *,
        decodes: bool,
    ) -> list[int]:
        """Step times of real pieces of `n` iterations, from number `first` of the flight on."""
        rows = flight.decodes if decodes else 0
        context = flight.context_tokens + first * rows if rows else 0
        spread = flight.spread if rows else 0
        quiet = self._alone.quiet
        if first + n == 1 and (rows or pieces):
            return [quiet.step_ns(StepWork(pieces, rows, context, context_spread=spread), 0)]
        if not pieces:
            if not (rows and n):
                return [0] * n
            work = StepWork((), rows, context, context_spread=spread)
            return _listed(quiet.steps_ns(work, n, 0))
        each = []
        for i in range(first, first + n):
            chunks = [(tokens, before + i * tokens) for tokens, before in pieces]
            work = StepWork(chunks, rows, context, context_spread=spread)
            each.append(quiet.step_ns(work, 0))
            context += rows
        return each

    # --- what is lost

    def lose(self, flight: Flight, began_ns: int, now_ns: int) -> None:
        """The iteration under way is lost to all of its requests; those before it are billed."""
        if flight.ticks:
            *others, lost = flight.group.extras
            flight.group.extras = (*others, lost + now_ns - began_ns)
            flight.group.lost.append((flight.group.clock, began_ns, now_ns - began_ns))
        for request, _ in flight.chunks:
            life = self._lives.get(request)
            if life is not None and life.account is not None:
                self.abandon(life.account, began_ns, now_ns)

    def abandon(self, account: Account, began_ns: int, now_ns: int) -> None:
        """The iteration under way, which computes a chunk of it, is lost to one request."""
        if account.state == BETWEEN:
            account.to(LOST, max(began_ns, account.since_ns))
            account.to(BETWEEN, now_ns)


def _listed(steps: list[int] | Ints) -> list[int]:
    return steps if isinstance(steps, list) else steps.tolist()
