"""Where the time of a request went: every nanosecond of it belongs to exactly one phase.

The rules. Time is that of the simulated clock, integer ns; the phases of a request add up to the
time from its arrival to its end (of an unfinished one, to the end of the run), exactly.

*States.* At any instant a request is in one state, and changes it at the instants of the events
below; at one instant it may pass through several, which get nothing.

- It joins a waiting queue: `queue_step` until the first scheduling pass of that replica (one that
  decides; at the same instant, if the replica is idle). From then on it waits for the reason for
  which the last pass let the first in the queue wait, whoever that was: no seat (`queue_seat`),
  token budget (`queue_budget`), memory (`queue_memory`; also a pass that preempted, and while
  anybody is swapped out), the static batch at work (`queue_batch`) or to be filled
  (`queue_forming`), `queue_held`, and `queue_other` where the policy gave none. `queue_held` is:
  there is no room for it on its decode replica yet (push), one stands before it whose KV is to be
  pulled, its replica waits for KV (`blocks_decode`), or memory was refused while its replica keeps
  KV of requests that have left it and whose transfer has not ended (back-pressure of pull).
- `queue_no_replica`: no replica that takes requests can run it, on either side.
- `fetch`: its prefix is copied from another cache; it queues after that.
- Admitted, its prefill not complete: `between`, but for the steps that compute it.
- Its prefill is complete: it is in the decode group of its replica. Iterations of the group are its
  decode steps; all other time there is `stall`.
- Preempted: `preempted`, or `swapped` while its KV is in host memory, until it is admitted again.
- Its prefill is complete and it goes on elsewhere: `transfer_queue` until its KV is sent (waiting
  for room on the decode side, staging and batching of transfers included), `transfer` until it is
  there, `loaded` until it joins running. KV sent while the prefill goes on is no time of its own.
- Stopped for its migration: `migration`, then `loaded`.
- It has all its tokens, and its static batch gives them back at its end: `batch_end`.
- A step under way that never gives it a token, as its replica failed, its client gave up or the run
  was stopped: `lost`, from the begin of that step. Its wait for a replica after a failure is
  `queue_no_replica`; what it then computes again is `reprefill_failure`.

*A decode step* of length T is split, all terms being step times of one model, without noise, at the
nominal pace, and of real (unpadded) pieces:

1. T1 = the request alone at its context: `decode_gpu`, and what its host adds to that
   (`decode_host`: T1 less T1 of the same model without host time; 0 for models without a host);
2. T(all decodes of the step) - T1: `decode_others`;
3. T(all pieces) - T(all decodes): `decode_prefills`;
4. T(with the padding rows of a static batch) - T(all pieces): `padding`. (Sizes to which CUDA
   graphs pad belong to the model.)
5. T(with noise) - that: `noise`; T(at the pace of a straggler or a warm-up) - that: `slow`;
6. what copies over the host link and from disk add: `copy`;
7. in a pipeline, time in which the batch is in no stage's step, as the next is not free: `bubble`.

*A prefill step*, likewise: own tokens alone (`prefill`; if the chunk begins with tokens that the
request had computed and lost, `reprefill_failure` where it lost them last with its replica, or with
KV that was kept for it elsewhere, and `reprefill` where it was preempted, migrated, or its last
token is computed again after a transfer); T(all prefills) - that: `prefill_others`; T(all pieces) -
T(all prefills): `prefill_decodes`; then 4 to 7. Where chunks of one request overlap (chunked
pipeline) a step counts from the end of the one before, and the overlap is taken off `bubble`.

A term may be negative where step times are not monotone: it is kept. Sums of T1 come from one table
of prefix sums over the context, for each kind of replica, so that what a request costs does not
depend on its tokens; a run of iterations costs as much as one.

*TTFT* is split in the same way, at the instant of the first token as the client sees it. What the
whole has beyond that is the split of all gaps between tokens of the request together. Single gaps,
of which the largest of each request is among the results, are split by `sim.gap_splits`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from struct import Struct
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sim.batch import Cause
from sim.step_time import Ints, StepTimeModel, StepWork, quiet, without_host

if TYPE_CHECKING:
    from sim.decode_group import DecodeGroup
    from sim.life_log import FollowedAccount

GROUPS = MappingProxyType(
    {
        "queued": (
            *("queue_step", "queue_seat", "queue_budget", "queue_memory", "queue_batch"),
            *("queue_forming", "queue_held", "queue_no_replica", "queue_other"),
        ),
        "prefill": ("prefill", "prefill_others", "prefill_decodes", "between"),
        "decode": ("decode_gpu", "decode_host", "decode_others", "decode_prefills"),
        "stalled": ("stall", "bubble", "batch_end"),
        "step extra": ("padding", "noise", "slow"),
        "memory": ("preempted", "reprefill", "swapped", "copy", "fetch"),
        "transfer": ("transfer_queue", "transfer", "loaded", "migration"),
        "lost": ("lost", "reprefill_failure"),
        "other": ("other",),
    }
)
"""Phases by what they have in common, in the order in which they are shown."""

PHASES = tuple(name for names in GROUPS.values() for name in names)
QUEUE_STEP, QUEUE_SEAT, QUEUE_BUDGET, QUEUE_MEMORY, QUEUE_BATCH, QUEUE_FORMING = range(6)
QUEUE_HELD, QUEUE_NO_REPLICA, QUEUE_OTHER, PREFILL, PREFILL_OTHERS, PREFILL_DECODES = range(6, 12)
BETWEEN, DECODE_GPU, DECODE_HOST, DECODE_OTHERS, DECODE_PREFILLS, STALL = range(12, 18)
BUBBLE, BATCH_END, PADDING, NOISE, SLOW, PREEMPTED, REPREFILL, SWAPPED = range(18, 26)
COPY, FETCH, TRANSFER_QUEUE, TRANSFER, LOADED, MIGRATION, LOST = range(26, 33)
REPREFILL_FAILURE, OTHER = range(33, 35)

E2E_COLUMNS = tuple(f"e2e_{name}_ns" for name in PHASES)
TTFT_COLUMNS = tuple(f"ttft_{name}_ns" for name in PHASES)
ITL_COLUMNS = (  # of its largest gap: the token that ended it, counted from 1, when, and phases
    "itl_max_token",
    "itl_max_end_ns",
    *(f"itl_max_{name}_ns" for name in PHASES),
)

_IN_LINE, _IN_GROUP, _CLOSED = -1, -2, -3
_CAUSES = len(GROUPS["queued"])
_NOTHING = [0] * len(PHASES)

PHASE_OF: Mapping[int, int] = MappingProxyType(
    {
        Cause.NONE: QUEUE_OTHER,
        Cause.NO_SEAT: QUEUE_SEAT,
        Cause.NO_BLOCKS: QUEUE_MEMORY,
        Cause.NO_BUDGET: QUEUE_BUDGET,
        Cause.BATCH_RUNNING: QUEUE_BATCH,
        Cause.BATCH_FORMING: QUEUE_FORMING,
        Cause.PREEMPTED: QUEUE_MEMORY,
        Cause.SWAPPED_OUT: QUEUE_MEMORY,
    }
)
"""Why requests wait, by why the first of them was not admitted."""


class Line:
    """Why requests wait on one replica, as running totals of time by reason.

    Attributes:
        newcomers: Who joined since the last pass that decided.
        cause: Phase of those who wait, since the last change of it.
        since_ns: When that was.
        ns: Time so far by phase, up to `since_ns`.
        history: Changes of the cause as (ns, phase), once a request that is followed waits here.
    """

    __slots__ = ("cause", "history", "newcomers", "ns", "since_ns")

    def __init__(self, now_ns: int) -> None:
        self.newcomers: list[Account] = []
        self.cause = QUEUE_OTHER
        self.since_ns = now_ns
        self.ns = [0] * _CAUSES
        self.history: list[tuple[int, int]] | None = None

    def change(self, cause: int, now_ns: int) -> None:
        """From now on those who wait do so for another reason."""
        self.ns = self.ns.copy()  # who joined before holds on to what it was then
        self.ns[self.cause] += now_ns - self.since_ns
        self.since_ns, self.cause = now_ns, cause
        if self.history is not None:
            self.history.append((now_ns, cause))

    def see(self, now_ns: int) -> None:
        """A pass has looked at the newcomers, and they wait on."""
        for account in self.newcomers:
            if account.state == QUEUE_STEP:
                account.join_line(self, now_ns)
        self.newcomers.clear()

    def catch_up(self, next_pass: Callable[[int], int], now_ns: int) -> None:
        """Passes that a run of iterations left out, as they decide the same, saw newcomers too.

        Args:
            next_pass: The instant of the first that would have been made at or after an instant.
            now_ns: What happens at this instant comes before a pass at it.
        """
        left = []
        for account in self.newcomers:
            if account.state != QUEUE_STEP:
                continue
            seen_ns = next_pass(account.since_ns)
            if seen_ns < now_ns:
                account.join_line(self, seen_ns)
            else:
                left.append(account)
        self.newcomers = left


class Account:
    """The time of one request, by phase.

    Attributes:
        ns: Time by phase, shape (phases,), up to `since_ns`.
        first: The same when the client got its first token; None before.
        state: The phase that time belongs to since then; below 0 where it is shared out later.
        since_ns: When that began.
        redo: Tokens that it had computed and lost, and the phase of computing them again, by loss:
            the last loss first, of the earlier ones those that reached further. A chunk belongs to
            the first of them that it begins below.
        context: Tokens stored when it joined its decode group.
        ticked_ns: What `DecodeGroup.ticked_ns` was then, as are the others of that name.
        first: What `ns` was when its first token came.
        last: What it was at its last token, of those before it was in its present decode group.
        last_ns: When that was.
        lost_ns: Of steps that were lost since the last tick of the decode group that it left last.
        joints: Of gaps between tokens that are not just time in one decode group: the number of the
            token that ends one, and the time by phase up to it, or to joining the group in which it
            came. Of several for one token the last counts.
    """

    __slots__ = (
        "_before",
        "_cause",
        "_line",
        "_waited_ns",
        "context",
        "extras",
        "first",
        "joints",
        "last",
        "last_ns",
        "lost_ns",
        "ns",
        "prefills_ns",
        "redo",
        "since_ns",
        "state",
        "ticked_ns",
    )

    def __init__(self, now_ns: int) -> None:
        self.ns = _NOTHING.copy()
        self.first: list[int] | None = None
        self.last: list[int] | None = None
        self.last_ns, self.lost_ns = -1, 0
        self.joints: list[tuple[int, list[int]]] = []
        self.state = OTHER
        self.since_ns = now_ns
        self.context = self.ticked_ns = self.prefills_ns = 0
        self.redo: tuple[tuple[int, int], ...] = ()
        self.extras: tuple[int, ...] = ()
        self._line: Line | None = None  # where it waits; the rest is as of joining that
        self._before = _NOTHING
        self._cause = self._waited_ns = 0

    def to(self, state: int, now_ns: int) -> None:
        """It is in another state from now on. (It leaves its decode group through `Ledger`.)"""
        before = self.state
        if before >= 0:
            self.ns[before] += now_ns - self.since_ns
        elif before == _IN_LINE:
            self._leave_line(now_ns)
        elif before == _CLOSED:
            return
        else:
            raise AssertionError("a request in a decode group leaves it first")
        self.state, self.since_ns = state, now_ns

    def join_line(self, line: Line, now_ns: int) -> None:
        """A pass has seen it in the queue: it waits for what the passes say."""
        self.to(_IN_LINE, now_ns)
        self._line, self._before = line, line.ns
        self._cause, self._waited_ns = line.cause, now_ns - line.since_ns

    def _leave_line(self, now_ns: int) -> None:
        line, ns = self._line, self.ns
        assert line is not None
        if line.ns is not self._before:  # the cause has changed since
            passed = zip(ns, line.ns, self._before, strict=False)  # as long as there are causes
            ns[:_CAUSES] = [own + after - before for own, after, before in passed]
        ns[self._cause] -= self._waited_ns
        ns[line.cause] += now_ns - line.since_ns
        self._line = None

    def left(self, group: DecodeGroup, ticks: int, now_ns: int, lost_ns: int) -> None:
        """It has left its decode group, in which its time is accounted for.

        Args:
            group: Which.
            ticks: Of it that were the request's.
            now_ns: The present.
            lost_ns: Of a step under way, which it leaves too.
        """
        self.state, self.since_ns = STALL, now_ns

    def computed(self, begin_ns: int, end_ns: int) -> None:
        """A step that computed a chunk of it is over, in which its time is accounted for.

        Args:
            begin_ns: When it began; a part before `since_ns` belongs to another step of it.
            end_ns: When it ended.
        """
        self.since_ns = end_ns

    def lose(self, tokens: int, state: int, now_ns: int, again: int = REPREFILL) -> None:
        """What it had computed is gone, and it waits.

        Args:
            tokens: That it had computed.
            state: How it waits.
            now_ns: The present.
            again: Phase of computing them again.
        """
        if tokens:
            self.redo = ((tokens, again), *(each for each in self.redo if each[0] > tokens))
        self.to(state, now_ns)

    def token(self, number: int, now_ns: int) -> None:
        """Its client has a token now that came with no tick of a decode group.

        Args:
            number: Of the token, from 0.
            now_ns: The present.
        """
        self.to(self.state, now_ns)
        self.wait_until(number, now_ns)
        self.last, self.last_ns = self.ns.copy(), now_ns
        if self.first is None:
            self.first = self.last

    def decoded(self, last_ns: int) -> None:
        """Its client had a token with each tick of a group that it has left; the last was then."""
        self.last, self.last_ns = self.ns.copy(), last_ns
        if self.since_ns != last_ns:
            self.last[LOST] -= self.lost_ns
            self.last[STALL] -= self.since_ns - last_ns - self.lost_ns

    def wait_until(self, number: int, now_ns: int) -> None:
        """Keep what has passed since its last token, if time has, of the gap before the next."""
        if now_ns != self.last_ns and self.last is not None:
            since = [after - before for before, after in zip(self.last, self.ns, strict=True)]
            self.joints.append((number, since))

    def close(self, now_ns: int) -> None:
        """The request has ended, or the run has."""
        self.to(_CLOSED, now_ns)


class Alone:
    """Time of decode steps of one request alone, summed over its context (one kind of replica).

    Args:
        model: Step times of that kind.
    """

    def __init__(self, model: StepTimeModel) -> None:
        self.quiet = quiet(model)
        gpu = without_host(self.quiet)
        self._models = [self.quiet] if gpu is None else [self.quiet, gpu]
        # Of each model, at c: the sum over contexts 1 to c, ns.
        self._sums = [array("q", [0]) for _ in self._models]

    def steps(self, stored_tokens: Ints) -> tuple[Ints, Ints]:
        """GPU's and host's part of one decode step after so many tokens are stored, (n,) each."""
        last = int(stored_tokens.max(initial=0)) + 1
        if last >= len(self._sums[0]):
            self._extend(last)
        steps = []
        for sums in self._sums:
            table = np.frombuffer(sums, np.int64)  # not for long: while it is there, none grows
            steps.append(table[stored_tokens + 1] - table[stored_tokens])
            del table
        whole, gpu = steps[0], steps[-1]
        return gpu, whole - gpu

    def sums(self, stored_tokens: int, ticks: int) -> tuple[int, int]:
        """GPU's and host's part of so many decode steps after so many tokens are stored, ns."""
        last = stored_tokens + ticks
        if last >= len(self._sums[0]):
            self._extend(last)
        whole = self._sums[0][last] - self._sums[0][stored_tokens]
        if len(self._sums) == 1:
            return whole, 0
        gpu = self._sums[1][last] - self._sums[1][stored_tokens]
        return gpu, whole - gpu

    def _extend(self, last: int) -> None:
        size = len(self._sums[0])
        more = max(last, 2 * size, 1024) - size + 1
        for model, sums in zip(self._models, self._sums, strict=True):
            steps = model.steps_ns(StepWork((), 1, size), more, 0)
            lengths = steps if isinstance(steps, list) else steps.tolist()
            sums.extend(list(accumulate(lengths, initial=sums[-1]))[1:])


class Sparse:
    """Rows of numbers, most of which are 0, kept compactly.

    Args:
        width: Numbers in a row.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._pack = Struct(f"{width}q").pack  # takes a third of the time of `array.extend`
        self._rows = array("q")  # not compressed yet
        self._kept = 0
        self._places: list[Ints] = []  # of what is not 0: row * width + column, and its value
        self._values: list[Ints] = []

    def add(self, *parts: list[int]) -> None:
        """One more row, of parts."""
        self._rows.frombytes(self._pack(*chain.from_iterable(parts)))
        if len(self._rows) == _ROWS * self._width:
            self._compress()

    def _compress(self) -> None:
        flat = np.frombuffer(self._rows, np.int64)
        places = np.flatnonzero(flat)
        self._places.append(places + self._kept * self._width)
        self._values.append(flat[places])
        self._kept += len(flat) // self._width
        self._rows = array("q")

    def entries(self) -> tuple[Ints, Ints]:
        """What is not 0: row * width + column, ascending, and the values."""
        if self._rows:
            self._compress()
        empty = np.zeros(0, np.int64)
        return np.concatenate([empty, *self._places]), np.concatenate([empty, *self._values])

    def columns(self, row_of: Ints) -> list[Ints]:
        """One array for each column.

        Args:
            row_of: Where each row goes, in the order in which they were added, (n,).
        """
        places, values = self.entries()
        rows, codes = np.divmod(places, self._width)
        order = np.argsort(codes.astype(np.uint8), kind="stable")
        ends = np.searchsorted(codes[order], np.arange(self._width + 1))
        found = []
        for code in range(self._width):
            these = order[ends[code] : ends[code + 1]]
            column = np.zeros(len(row_of), np.int64)
            column[row_of[rows[these]]] = values[these]
            found.append(column)
        return found


_ROWS = 1024
"""Rows that are kept as they are before they are compressed together."""


class Bills(NamedTuple):
    """What is kept of the ticks of one decode group: see `sim.decode_group`.

    Attributes:
        alone: Step times of its kind of replica.
        begins: (tick, ns), one after the other.
        parts: (tick, phase, ns).
        padded: (first tick, ns of each).
        lost: (tick, begin, ns).
    """

    alone: Alone
    begins: array[int]
    parts: array[int]
    padded: list[tuple[int, array[int]]]
    lost: list[tuple[int, int, int]]


@dataclass(frozen=True)
class GapLog:
    """What single gaps between tokens can be split by (`sim.gap_splits`).

    Attributes:
        bills: Of each decode group, in the order of the logs of their ticks.
        joints: Request and number of the token of each of `Account.joints`, (k, 2).
        places: Of what is not 0 in these: row * phases + phase, ascending.
        ns: What it is.
    """

    bills: Sequence[Bills]
    joints: Ints
    places: Ints
    ns: Ints

    @staticmethod
    def joined(logs: Sequence[GapLog]) -> GapLog:
        """Those of parts of a run, one after the other."""
        rows = np.cumsum([0, *(len(log.joints) for log in logs)]).tolist()
        places = [log.places + row * len(PHASES) for log, row in zip(logs, rows, strict=False)]
        return GapLog(
            [bills for log in logs for bills in log.bills],
            np.concatenate([log.joints for log in logs]),
            np.concatenate(places),
            np.concatenate([log.ns for log in logs]),
        )


class Attributions:
    """The accounts of requests that have ended, compactly, and what replicas of a kind share.

    Args:
        follow: Requests of which it is kept when they were in which state.

    Attributes:
        followed: Their accounts, by request.
    """

    def __init__(self, follow: Collection[int] = ()) -> None:
        self.followed: dict[int, FollowedAccount] = {}
        self._follow = follow
        self._bills: list[Bills] = []
        self._rows = Sparse(2 * len(PHASES))  # E2E by phase, then TTFT by phase
        self._joints = array("q")  # of `Account.joints`: request, number of the token
        self._waits = Sparse(len(PHASES))
        self._alone: dict[int, Alone] = {}

    def open(self, index: int, now_ns: int) -> Account:
        """The account of a request that arrives."""
        if index not in self._follow:
            return Account(now_ns)
        from sim.life_log import FollowedAccount

        account = self.followed[index] = FollowedAccount(now_ns)
        return account

    def alone(self, model: StepTimeModel) -> Alone:
        """The sums of a kind of replica; models live as long as the cluster."""
        found = self._alone.get(id(model))
        if found is None:
            found = self._alone[id(model)] = Alone(model)
        return found

    def follow(self, group: DecodeGroup, model: StepTimeModel) -> None:
        """One more decode group, in the order of the logs of their ticks."""
        kept = (group.begins, group.parts, group.padded, group.lost)
        self._bills.append(Bills(self.alone(model), *kept))

    def add(self, account: Account, index: int) -> None:
        """A request has ended, or the run has; in the order of the outcomes.

        Args:
            account: Its own.
            index: Of the request.
        """
        self._rows.add(account.ns, account.first or _NOTHING)
        for number, ns in account.joints:
            self._joints.extend((index, number))
            self._waits.add(ns)

    def columns(self, index: Ints) -> dict[str, Ints]:
        """`E2E_COLUMNS` and `TTFT_COLUMNS` in order of the requests' index, ns.

        Args:
            index: Of the requests, in the order in which they were added, (n,).
        """
        row_of = np.empty(len(index), np.int64)
        row_of[np.argsort(index, kind="stable")] = np.arange(len(index))
        return dict(zip((*E2E_COLUMNS, *TTFT_COLUMNS), self._rows.columns(row_of), strict=True))

    def gap_log(self) -> GapLog:
        """What single gaps between tokens can be split by."""
        keys = np.array(self._joints, np.int64).reshape(-1, 2)
        return GapLog(self._bills, keys, *self._waits.entries())
