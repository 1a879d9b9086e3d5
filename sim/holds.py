"""For how long a prefill replica keeps KV that nobody fetches (`TransferSpec.hold_timeout_s`).

The rules, which add to those of two pools (28 to 38, 53, 54, 75 and 78 to 82):

- **H1.** KV whose prefill ended at t is held until t + h, with h = `hold_timeout_s` rounded half to
  even to ns, at least 1 ns, unless its transfer has started at an earlier instant (with batches:
  unless it has joined one). At t + h itself it is too late, as transfers start in phase (4).
- **H2.** A hold ends in a phase of its own, after (2b) and before (2c); several of one instant in
  the order in which their prefills ended. So a client that gives up at t + h has given up, and a
  replica that fails at t + h finds the request gone.
- **H3.** The source's blocks are free then (with a cache like those of a request that ends). The
  request is nowhere: it is not handed to a decode replica any more, and leaves the one whose pull
  it waited for, whose count falls.
- **H4.** `on_hold_timeout` says what becomes of it. ``reroute``: in phase (3) of that instant it is
  routed like the requests of a replica that fails (79, 80), before these: from then on it is a
  request of p + emitted prompt tokens, what its client has stands, and it counts as re-routed.
  ``fail``: it ends there as ``failed``, with the reason ``hold_timeout``.
- **H5.** A transfer that has started ends as planned, however long it takes. Where it is called off
  as its target fails (81), the KV is held until t + h again; where that is over by then, or now,
  the hold ends in the place at which the request would be handed over again.

Source: vLLM, ``vllm/distributed/kv_transfer/kv_connector/v1/nixl_connector.py`` and
``vllm/envs.py``: the prefill side releases blocks that no decode side has read when the environment
variable VLLM_NIXL_ABORT_REQUEST_TIMEOUT has passed since the end of the prefill, inclusively (pull
request 20139 of June 2025, default 120 s; 25897 of September 2025, 480 s). Since pull request 41383
(2026) it is a lease (``kv_lease_duration``, default 30 s), which the decode side renews while a
request waits there, so that it ends for those only whose decode side is gone. Differences: there
the clock is stopped by the notice that all was read, not by the start, and the decode side may read
what is gone without noticing it (issue 21570); a load that fails is an error to the client, or is
computed by the decode replica itself (``kv_load_failure_policy``); here a proxy tries again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from sim.clock import Instant, Phase, now_ns
from sim.errors import StuckError
from sim.request import Request

if TYPE_CHECKING:
    from simpy import Environment

    from sim.transfer import Pull

HOLD_TIMEOUT = "hold_timeout"
_PATIENCE = 1000
"""Holds that end, one after the other, and nobody has got a token or decodes."""


class Holds:
    """The KV of one run that is held, and for how long.

    Args:
        env: The clock.
        hold_ns: h of the rules.

    Attributes:
        ended: Holds that are over as nobody fetched what they held.
    """

    def __init__(self, env: Environment, hold_ns: int) -> None:
        self._env, self._hold_ns = env, hold_ns
        self._timers: dict[Request, tuple[int, Instant]] = {}
        self._had: dict[int, int] = {}
        self._in_vain = 0
        self.ended = 0

    @property
    def pending(self) -> bool:
        """Whether any KV is held that nobody fetches yet."""
        return bool(self._timers)

    def is_over(self, prefilled_ns: int) -> bool:
        """Whether what was prefilled then is not held any longer, or only up to now."""
        return prefilled_ns + self._hold_ns <= now_ns(self._env)

    def begin(self, pull: Pull, then: Callable[[], None]) -> None:
        """Its KV is held from now on.

        Args:
            pull: Whose KV; the hold is not over (`is_over`).
            then: What is done when the time is up.
        """
        held, end_ns = pull.held, pull.prefilled_ns + self._hold_ns
        timer = Instant(self._env, end_ns - now_ns(self._env), Phase.HOLD_END + pull.rank)
        self._timers[held] = end_ns, timer

        def time_is_up(_: object) -> None:
            del self._timers[held]
            then()

        timer.callbacks.append(time_is_up)

    def end(self, index: int, delivered: int, *, goes_on: bool) -> None:
        """The hold of a request is over, as nobody fetched its KV.

        Args:
            index: Which request.
            delivered: Tokens that its client has.
            goes_on: Whether anybody decodes or is sent for, or anything is to come from outside.

        Raises:
            StuckError: It is so for many in a row, and none of them has got a token meanwhile.
        """
        self.ended += 1
        had, self._had[index] = self._had.get(index, -1), delivered
        self._in_vain = 0 if goes_on or had != delivered else self._in_vain + 1
        if self._in_vain > _PATIENCE:
            raise StuckError(
                f"transfer.hold_timeout_s: {_PATIENCE:,} times in a row KV was not fetched in time "
                f"while nobody got a token, the last time that of request {index}: no decode "
                "replica takes requests"
            )

    def stop(self, held: Request) -> None:
        """Its KV is fetched, or lost, or nobody wants it any more."""
        entry = self._timers.pop(held, None)
        if entry is not None:
            entry[1].call_off()

    def standing(self) -> Hashable:
        """What is held, and for how long from now (rule 84)."""
        now = now_ns(self._env)
        return tuple((held.index, end_ns - now) for held, (end_ns, _) in self._timers.items())
