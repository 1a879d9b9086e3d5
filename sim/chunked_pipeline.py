"""A pipeline in which several chunks of one prompt are under way at once (Mooncake's CPP).

The rules, which add to those of a pipeline (55, 85 to 87):

- A request with a chunk in a batch under way that is not the last of its prefill is *afoot*, not
  out of sight: it keeps its place in running, and passes may schedule its next chunk, in which
  `before` counts all tokens of it that are computed or in a batch under way. So chunk n + 1 may
  enter the first stage in the pass in which chunk n leaves that. (By rule 55 it waits until chunk n
  has left the last stage.) A stage computes the batches in order, so what a chunk attends to is
  there.
- The last chunk takes it out of sight as by rule 55, until that batch leaves the last stage, which
  emits the token. Decodes are as they were: a token waits for the one before it.
- Who is afoot is no victim (rule 55), and when it is served itself and its blocks are not free it
  is held back (rule 87), as for everybody while a batch is under way; it keeps its seat.
- A chunk's blocks are taken when it is scheduled; with a prefix cache its full blocks can be found
  from then on (rule 44): who finds them comes later through each stage.
- *Cancelled* (53, 75) while it is afoot: no more chunks are scheduled; it leaves, with its blocks,
  when the last of its batches leaves the last stage. *Failure* (54): the tokens of batches under
  way were not computed.
- Tokens left to prefill, as routers see them, include those in batches under way.
- Only for policies that cut prompts (`Policy.cuts_prompts`); KV is not pushed chunk by chunk. A
  batch that computes a piece of a prompt is never run ahead: passes lie between its stages.

Source: chunked pipeline parallelism of Qin et al., Mooncake (arXiv 2407.00079, section 5.1; FAST
2025, 3.3): a group of nodes prefills chunks of one prompt at the same time, each node its own
layers. vLLM V1 counts tokens as computed when they are scheduled too
(``vllm/v1/core/sched/scheduler.py``).
With k chunks that take t in each of S stages, a prompt alone takes (k + S - 1) t, not k S t.
"""

from __future__ import annotations

from typing import Any

from simpy import Environment

from sim.errors import ConfigError, called
from sim.flight import Flight
from sim.pipeline import PipelineReplica, Ride
from sim.records import Recorder
from sim.replica_spec import ReplicaSpec, Surroundings
from sim.request import Request


class ChunkedPipelineReplica(PipelineReplica):
    """A pipeline that need not wait for a chunk before it starts the next one of the prompt."""

    def __init__(
        self,
        env: Environment,
        spec: ReplicaSpec,
        surroundings: Surroundings,
        recorder: Recorder,
        **options: Any,
    ) -> None:
        if not spec.policy.cuts_prompts:
            raise ConfigError(
                f"chunked_pipeline: policy {called(spec.policy)} computes prompts whole; "
                "try vllm-v1 or sarathi"
            )
        super().__init__(env, spec, surroundings, recorder, **options)

    # --- what routers see

    @property
    def prefill_tokens_left(self) -> int:
        """Tokens still to be prefilled here, those in batches under way included."""
        return super().prefill_tokens_left + sum(x.prefill_tokens for x in self.in_flight)

    def prefill_ns(self, tokens: int, cached: int) -> int:
        """As of one stage, but the stages work at once: once S chunks are there, S times as fast.

        (k + S - 1) / (k S) of the time that k chunks take one after the other, rounded up.
        """
        alone = super().prefill_ns(tokens, cached)
        chunk = self.policy.most_chunk_tokens
        chunks, stages = -(-tokens // chunk), len(self._models)
        return -(-alone * (chunks + stages - 1) // max(1, chunks * stages))

    # --- launch

    def _iterations_alone(self, flight: Flight) -> int:
        """See `PipelineReplica`; never more than one with a piece of a prompt."""
        return 1 if flight.chunks else super()._iterations_alone(flight)

    def _leavers(self, flight: Flight) -> list[Request]:
        """Those whose last chunk it is. What is scheduled counts as computed from now on."""
        afoot = self.state.afoot
        leavers, stay = [], []
        for request, tokens in flight.chunks:
            request.computed_then += tokens
            if request.computed_then == request.target_tokens:
                leavers.append(request)
                afoot.pop(request, None)
            else:
                stay.append(request)
                afoot[request] = afoot.get(request, 0) + 1
        flight.goes_on = tuple(stay)
        return leavers

    def _apply_chunks(self, flight: Flight) -> None:
        """They have counted since they were scheduled."""

    # --- end

    def _end(self, ride: Ride) -> None:
        self._landed(ride.flight)
        super()._end(ride)

    def _landed(self, flight: Flight) -> None:
        """Its requests have a batch less under way."""
        afoot = self.state.afoot
        for request in flight.goes_on:
            if request in afoot:
                afoot[request] -= 1
                if not afoot[request]:
                    del afoot[request]

    def _lose(self, ride: Ride) -> None:
        self._take_back(ride.flight)
        super()._lose(ride)

    def _lose_ride(self, ride: Ride, now: int) -> None:
        self._take_back(ride.flight)
        super()._lose_ride(ride, now)

    def _take_back(self, flight: Flight) -> None:
        """Nothing of it was computed."""
        for request, tokens in flight.chunks:
            request.computed_then -= tokens
        self._landed(flight)
        flight.goes_on = ()

    # --- who gives up

    def give_up(self, request: Request) -> None:
        """See `Replica.give_up`. Who is afoot is out of sight from now on, with its last batch."""
        if request in self.state.afoot:
            del self.state.afoot[request]
            last = next(x for x in reversed(self.in_flight) if x.carries(request))
            ride = next(x for x in self._stages if x is not None and x.flight is last)
            last.goes_on = tuple(other for other in last.goes_on if other is not request)
            self.state.send_after(request, ride.riders)
        super().give_up(request)

    # --- checks

    def _check_chunks(self, flight: Flight) -> None:
        for (request, tokens), (_, before) in zip(flight.chunks, flight.work.chunks, strict=True):
            last = before + tokens
            assert before < last <= request.computed_then <= request.target_tokens
            room = self.kv.held(request) * self.kv.block_tokens
            assert last <= room, f"{request}: {room} tokens of memory for a chunk of {tokens}"
