"""What arrives (`Arrival`; `Trace`, many of them as columns) and `Request`, one on a replica."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from sim.content import Content

if TYPE_CHECKING:
    from sim.decode_group import DecodeGroup

Ints = npt.NDArray[np.int64]

NEVER = -1
"""An instant that never came, in integer columns that hold nanoseconds."""


class Arrival(NamedTuple):
    """One request as the workload knows it, the true output length included.

    Attributes:
        arrival_ns: When it arrives, nanoseconds from the start of the simulation.
        prompt_tokens: Tokens of the prompt (0 is rejected as ``empty``).
        output_tokens: Tokens it will produce: the truth, seen by the step executor only.
        max_tokens: Most output tokens the client asked for, at least `output_tokens`.
        index: Position in trace order; the request's identity in one run.
        session: Conversation that it belongs to, or None.
        turn: Position in its session, or None for trace order.
        request_class: Name under which metrics are grouped, or None.
        tenant: Who pays, or None.
        priority: Lower is served first.
        deadline_ns: Wanted first token, nanoseconds *from arrival*, or None.
        content: What its tokens are, or None where they are all its own. It may go on after the
            prompt, with what it may generate, and then reaches as far as `max_tokens`.
        delay_ns: Delay after the end of the request that causes this one (closed loops).
        cancel_after_ns: The client gives up this long after arrival, or None.
    """

    arrival_ns: int
    prompt_tokens: int
    output_tokens: int
    max_tokens: int
    index: int = 0  # type: ignore[assignment]  # shadows tuple.index, which nobody needs
    session: str | None = None
    turn: int | None = None
    request_class: str | None = None
    tenant: str | None = None
    priority: int = 0
    deadline_ns: int | None = None
    content: Content | None = None
    delay_ns: int = 0
    cancel_after_ns: int | None = None


@dataclass
class Trace:
    """Requests as columns, in order of arrival (ties in file order).

    All arrays have shape (n,). Optional columns are None where the source has none. Zero prompts
    and zero outputs are kept: they are rejected as ``empty`` when they arrive, and so counted.

    Attributes:
        arrival_ns: int64, nanoseconds.
        prompt_tokens: int64.
        output_tokens: int64, the truth.
        max_tokens: int64, 0 where the trace does not say.
        row: int64, line of the source file (1-based, header included) or position when synthetic.
        session: object array of str or None.
        turn: int64.
        request_class: object array of str or None.
        tenant: object array of str or None.
        priority: int64, lower first.
        deadline_ns: int64 from arrival, -1 for none.
        block_ids: one int64 array per request: identity of the prompt's blocks as a file gives it.
        block_ids_tokens: tokens per block id.
        content: what the tokens of each request are; None: what `block_ids` say.
        delay_ns: int64, delay after the end of the causing request (closed loop, sessions).
        cancel_after_ns: int64 from arrival, -1 for never.
        request_id: object array of str or None, names for `after`.
        after: names of the requests that have to end before each, beside the turn before it.
        prompts_are_whole: the prompt of each turn is known to hold all that was said before.
        source: what it was read from, for messages and summaries.
        notes: what was odd in the source and what was done about it, one sentence each.
    """

    arrival_ns: Ints
    prompt_tokens: Ints
    output_tokens: Ints
    max_tokens: Ints
    row: Ints
    session: npt.NDArray[np.object_] | None = None
    turn: Ints | None = None
    request_class: npt.NDArray[np.object_] | None = None
    tenant: npt.NDArray[np.object_] | None = None
    priority: Ints | None = None
    deadline_ns: Ints | None = None
    block_ids: Sequence[Ints] | None = None
    block_ids_tokens: int | None = None
    content: Sequence[Content | None] | None = None
    delay_ns: Ints | None = None
    cancel_after_ns: Ints | None = None
    request_id: npt.NDArray[np.object_] | None = None
    after: Sequence[tuple[str, ...]] | None = None
    prompts_are_whole: bool = False
    source: str = ""
    notes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.arrival_ns)

    def take(self, index: npt.NDArray[np.intp] | npt.NDArray[np.bool_]) -> Trace:
        """Rows chosen by an index or mask array, every column alike."""
        positions = np.flatnonzero(index) if index.dtype == bool else index
        chosen: dict[str, object] = {}
        for column in fields(self):
            value = getattr(self, column.name)
            if isinstance(value, np.ndarray):
                chosen[column.name] = value[positions]
            elif column.name in ("block_ids", "content", "after") and value is not None:
                chosen[column.name] = [value[i] for i in positions.tolist()]
            elif column.name == "notes":
                chosen[column.name] = list(value)
            else:
                chosen[column.name] = value
        return Trace(**chosen)  # type: ignore[arg-type]

    def arrivals(self) -> Iterator[Arrival]:
        """The rows as `Arrival`s, in order; `max_tokens` must have been resolved (>= 1)."""
        n = len(self)
        plain = self._plain()
        if plain:
            rows = zip(
                self.arrival_ns.tolist(),
                self.prompt_tokens.tolist(),
                self.output_tokens.tolist(),
                self.max_tokens.tolist(),
                range(n),
                strict=True,
            )
            yield from map(Arrival._make, (row + _ABSENT for row in rows))
            return
        for i in range(n):
            yield self._arrival(i)

    def _plain(self) -> bool:
        optional = (self.session, self.turn, self.request_class, self.tenant, self.priority)
        rare = (self.deadline_ns, self.block_ids, self.content, self.delay_ns, self.cancel_after_ns)
        return all(column is None for column in optional + rare)

    def content_of(self, i: int) -> Content | None:
        """What is known of the tokens of row `i`."""
        if self.content is not None:
            return self.content[i]
        if self.block_ids is None or self.block_ids_tokens is None:
            return None
        prompt = int(self.prompt_tokens[i])
        return Content.of_blocks(self.block_ids[i], self.block_ids_tokens, prompt)

    def _arrival(self, i: int) -> Arrival:
        def text(column: npt.NDArray[np.object_] | None) -> str | None:
            return None if column is None or column[i] is None else str(column[i])

        def number(column: Ints | None) -> int | None:
            return None if column is None or column[i] < 0 else int(column[i])

        return Arrival(
            int(self.arrival_ns[i]),
            int(self.prompt_tokens[i]),
            int(self.output_tokens[i]),
            int(self.max_tokens[i]),
            i,
            text(self.session),
            number(self.turn),
            text(self.request_class),
            text(self.tenant),
            0 if self.priority is None else int(self.priority[i]),
            number(self.deadline_ns),
            self.content_of(i),
            number(self.delay_ns) or 0,
            number(self.cancel_after_ns),
        )


_ABSENT = tuple(Arrival._field_defaults.values())[1:]


class Identity(NamedTuple):
    """What a trace says of a request beside its lengths; all absent by default.

    See `Arrival` for the fields.
    """

    session: str | None = None
    turn: int | None = None
    request_class: str | None = None
    tenant: str | None = None
    content: Content | None = None


ANONYMOUS = Identity()


class Request:
    """A request on one replica, as its policy sees it: there is no true output length here.

    While it decodes in lockstep with others (`sim.decode_group`), its counters follow the group's
    clock, so that an iteration costs nothing per request.

    Attributes:
        index: Position in trace order.
        prompt_tokens: p.
        max_tokens: m, as this replica sees it (1 on a prefill replica).
        order: Rank in order of arrival in the cluster.
        joined_ns: When it joined this replica's queue.
        priority: Lower is served first.
        deadline_ns: Absolute instant of the wanted first token, or None.
        predicted_tokens: A predictor's guess of the output length; None without a predictor.
        oracle_tokens: The true output length, only for a policy that asks to be clairvoyant
            (`Policy.clairvoyant`); None otherwise.
        identity: Session, class, tenant and what its tokens are.
        expected_cached_tokens: What its router expects it to find cached; set by routers that know.
        target_tokens: Tokens to prefill, fixed at (re-)admission; 0 while waiting.
        held_blocks: Blocks of KV memory given to it explicitly; see `BlockPool.held`.
        seat: Rank in order of joining `running`; -1 while not running.
        preemptions: How often it was preempted on this replica.
        emitted_before: Output tokens that are part of the prompt, as the replica that emitted them
            failed (rule 80). Predictions count them.
    """

    __slots__ = (
        "computed_then",
        "deadline_ns",
        "emitted_before",
        "emitted_then",
        "expected_cached_tokens",
        "group",
        "grows",
        "held_blocks",
        "identity",
        "index",
        "joined_ns",
        "max_tokens",
        "oracle_tokens",
        "order",
        "predicted_tokens",
        "preemptions",
        "priority",
        "prompt_tokens",
        "seat",
        "since",
        "target_tokens",
    )

    def __init__(
        self,
        index: int,
        prompt_tokens: int,
        max_tokens: int,
        order: int = 0,
        joined_ns: int = 0,
        *,
        priority: int = 0,
        deadline_ns: int | None = None,
        predicted_tokens: int | None = None,
        oracle_tokens: int | None = None,
        identity: Identity = ANONYMOUS,
    ) -> None:
        self.index = index
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens
        self.order = order
        self.joined_ns = joined_ns
        self.priority = priority
        self.deadline_ns = deadline_ns
        self.predicted_tokens = predicted_tokens
        self.oracle_tokens = oracle_tokens
        self.identity = identity
        self.expected_cached_tokens = 0
        self.target_tokens = 0
        self.held_blocks = 0
        self.seat = -1
        self.preemptions = self.emitted_before = 0
        # Progress at the moment it joined `group` (or now, outside a group).
        self.emitted_then = 0
        self.computed_then = 0
        self.group: DecodeGroup | None = None
        self.since = 0
        self.grows = 0

    @property
    def emitted_tokens(self) -> int:
        """Output tokens emitted so far."""
        group = self.group
        return self.emitted_then if group is None else self.emitted_then + group.clock - self.since

    @property
    def computed_tokens(self) -> int:
        """Tokens whose KV is stored."""
        group = self.group
        return (
            self.computed_then if group is None else self.computed_then + group.clock - self.since
        )

    @property
    def known_tokens(self) -> int:
        """Prompt and emitted tokens: what a (re-)prefill has to compute."""
        known = self.prompt_tokens + self.emitted_then
        return known if self.group is None else known + self.group.clock - self.since

    @property
    def remaining_tokens(self) -> int:
        """Known tokens not yet computed: the rest of a prefill, or 1 for a decode."""
        return self.prompt_tokens + self.emitted_then - self.computed_then

    @property
    def prefilling(self) -> bool:
        """Admitted, its prefill not yet complete. A one-token piece of it is a prefill too."""
        return self.computed_then < self.target_tokens

    @property
    def decoding(self) -> bool:
        """Running with its prefill complete: each iteration may give one token."""
        return self.seat >= 0 and self.computed_then >= self.target_tokens

    def __repr__(self) -> str:
        return (
            f"Request({self.index}: prompt {self.prompt_tokens}, max {self.max_tokens}, "
            f"computed {self.computed_tokens}, emitted {self.emitted_tokens})"
        )
