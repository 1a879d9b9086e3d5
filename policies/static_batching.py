"""Static batching: a batch is formed, runs to its longest output, and only then the next begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal

from sim.batch import UNTIL_CHANGE, Cause, Padding, ScheduledBatch
from sim.kvcache import BlockPool
from sim.policy import Onward, Policy, ReplicaState
from sim.request import Request


@dataclass
class StaticBatching(Policy):
    """Request-level batching as in FasterTransformer: nobody joins before all are done.

    Source: FasterTransformer v5 and the ports ``sarathi/core/scheduler/
    faster_transformer_scheduler.py`` (sarathi-serve) and Vidur's. The ports neither pad nor keep
    finished rows; set `pad_prompts` and `keep_finished_slots` to false for what they model. They
    default to batches of 128, and that of sarathi-serve frees the memory of rows one by one, where
    ours comes back when the batch is over.

    Args:
        batch_size: Most requests of a batch.
        batch_timeout_s: Wait until the batch is full or its oldest request has waited so long,
            seconds; 0 takes what waits.
        pad_prompts: Pad each row to the longest prompt: in all layers (true), in attention only
            (``attention``, FasterTransformer's default build), or not at all (false).
        keep_finished_slots: A finished row still goes through the linear layers.
        return_at: Clients get tokens as they are made (``token``) or all at once (``batch_end``).
    """

    batch_size: int = 8
    batch_timeout_s: float = 0.0
    pad_prompts: bool | Literal["attention"] = True
    keep_finished_slots: bool = True
    return_at: Literal["token", "batch_end"] = "token"

    joins_loaded = False
    prefills_who_waits = False
    _rows: list[Request] = field(default_factory=list, init=False, repr=False)

    @property
    def seats(self) -> int:
        """Most requests of a batch."""
        return self.batch_size

    @property
    def deliver_at_batch_end(self) -> bool:
        """Whether clients wait for the whole batch."""
        return self.return_at == "batch_end"

    def refuse(self, request: Request, kv: BlockPool, max_model_len: int | None) -> str | None:
        """Too long for the model, or a slot larger than the pool."""
        if max_model_len is not None and request.prompt_tokens + request.max_tokens > max_model_len:
            return "over_model_len"
        slot = kv.blocks_for(request.prompt_tokens + request.max_tokens)
        return "over_pool" if slot > kv.total_blocks else None

    def transfer_tokens(self, request: Request, max_model_len: int | None) -> int:
        """On a decode replica the request's own slot is reserved before the transfer (rule 31)."""
        return request.prompt_tokens + request.max_tokens

    def schedule(self, state: ReplicaState) -> ScheduledBatch:
        """Go on with the batch at work, or form the next one."""
        batch = ScheduledBatch(repeat=UNTIL_CHANGE)
        if not self._rows:
            self._form(state, batch)
        elif state.waiting:
            batch.cause = Cause.BATCH_RUNNING
        if self._rows:
            batch.deaf, batch.deaf_cause = True, Cause.BATCH_RUNNING
            for request in state.prefilling:
                batch.tokens[request] = request.remaining_tokens
            if not batch.tokens:
                state.decode_all(batch)
            batch.padding = self._padding(state, batch)
        return batch

    def leaving(self, done: Sequence[Request], state: ReplicaState) -> Sequence[Request]:
        """Nobody's memory is freed before the last row is done; then that of all (rule 15)."""
        if state.running:
            return ()
        rows, self._rows = self._rows, []
        return rows

    def _form(self, state: ReplicaState, batch: ScheduledBatch) -> None:
        queue = list(
            islice(state.loaded if state.role == "decode" else state.waiting, self.batch_size)
        )
        if not queue:
            return
        timeout_ns = round(self.batch_timeout_s * 1e9)
        if timeout_ns > 0 and len(queue) < self.batch_size:
            fires = min(request.joined_ns for request in queue) + timeout_ns
            if state.now_ns < fires:
                state.wake_at_ns, batch.cause = fires, Cause.BATCH_FORMING
                return
        rows, slot_tokens = self._fitting(queue, state.kv)
        if state.onward is not None:
            going = self._going_on(rows, state.onward)
            state.refused_onward = len(going) < len(rows)
            rows, slot_tokens = self._fitting(going, state.kv)
        if not rows:
            batch.cause = Cause.NO_BLOCKS
        for request in rows:
            state.kv.allocate(request, slot_tokens)
            if state.role == "decode":
                state.start_loaded(request)
            else:
                state.admit(request)
        self._rows = rows

    @staticmethod
    def _going_on(rows: Sequence[Request], onward: Onward) -> list[Request]:
        """The longest prefix for which there is room on the decode replicas, which is taken."""
        going = []
        for request in rows:
            if not onward.has_room(request):
                break
            onward.reserve(request)
            going.append(request)
        return going

    def _fitting(self, queue: Sequence[Request], kv: BlockPool) -> tuple[list[Request], int]:
        """The longest prefix whose slots fit, and the tokens of a slot (rule 12)."""
        rows, slot_tokens = 0, 0
        prompt = output = held = 0
        for count, request in enumerate(queue, start=1):
            prompt = max(prompt, request.prompt_tokens)
            output = max(output, request.max_tokens)
            held += kv.held(request)
            if count * kv.blocks_for(prompt + output) - held > kv.free_blocks:
                break
            rows, slot_tokens = count, prompt + output
        return list(queue[:rows]), slot_tokens

    def _padding(self, state: ReplicaState, batch: ScheduledBatch) -> Padding:
        rows = self._rows
        longest = max(request.prompt_tokens for request in rows)
        if batch.tokens:
            return self._prefill_padding(batch, longest, again=state.role == "decode")
        idle = len(rows) - len(state.running) if self.keep_finished_slots else 0
        extra = 0
        if self.pad_prompts:
            extra = sum(longest - request.prompt_tokens for request in state.running)
        return Padding(idle_rows=idle, context_tokens=extra)

    def _prefill_padding(self, batch: ScheduledBatch, longest: int, *, again: bool) -> Padding:
        """Each row as long as the longest; a last token computed again stands behind it all."""
        if not self.pad_prompts:
            return Padding()
        rows = len(batch.tokens)
        if again:  # rule 68
            return Padding(chunks=((1, longest - 1),) * rows)
        linear = rows * longest if self.pad_prompts is True else batch.num_tokens
        return Padding(chunks=((longest, 0),) * rows, prefill_tokens=linear)
