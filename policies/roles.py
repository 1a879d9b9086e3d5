"""Role switchers: which pool needs a replica of the other (`sim.roles` has the rules around)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction

from policies.scaling import NS_PER_S, exact
from sim.autoscale import PoolView
from sim.errors import ConfigError
from sim.policy import ReplicaView
from sim.roles import RoleSwitcher, Side
from sim.step_time import PROBE_TOKENS


@dataclass
class Pressure(RoleSwitcher):
    """The pool under pressure gets a replica of the other, where that can spare one.

    Pressures are exact fractions of a target, of replicas that are up:

    - of a prefill replica, the TTFT that a request behind all others would have there, over
      `ttft_s`: the tokens left to prefill times the step time of one chunk of them, at most 2048,
      for each token of it;
    - of a decode replica, the larger of the TPOT predicted there, over `tpot_s`, and of the share
      of its KV blocks that is needed. The TPOT is the step time of as many decodes as requests are
      outstanding there, with the tokens known of them as context; needed are the blocks of all of
      them, those included for whose KV it has no room yet.

    A pool is pressed if the least of its pressures is above `high`, or none of its replicas is up.
    A pool of n replicas can spare one if n is at least 2, and the sum of its pressures / (n - 1) is
    below `high`. If one pool is pressed and the other can spare one, the first needs it.

    Source: the SLO-aware policy of JD's xLLM (2025, xllm-service,
    ``scheduler/managers/instance_mgr.cpp``, select_instance_pair_on_slo): there a prefill instance
    becomes a decode instance at the arrival for which no decode instance is predicted to meet the
    TPOT, if the mean predicted prefill time is below (P - 1) / P of the TTFT target or decode
    instances are fewer; a decode instance becomes a prefill instance when it has no request left;
    at least one of each stays. An earlier version looked at intervals with a cool-down, as here.
    The idea is that of Arrow (Wu et al., arXiv 2505.11916): latencies predicted against targets.
    Differences: ours looks at intervals, drains before the switch, counts KV memory, and lets a
    pressed prefill pool ask by itself; what Arrow does beyond its abstract was not read.

    Args:
        ttft_s: Target of the TTFT, seconds.
        tpot_s: Target of the TPOT, seconds.
        high: Pressure above which a pool needs one more.
    """

    ttft_s: float = field(metadata={"minimum": 1e-6})
    tpot_s: float = field(metadata={"minimum": 1e-6})
    high: float = field(default=0.8, metadata={"minimum": 1e-3})

    def check(self) -> None:
        """Raise `ConfigError` for targets that are none."""
        if min(self.ttft_s, self.tpot_s, self.high) <= 0:
            raise ConfigError("pressure: expected ttft_s, tpot_s and high above 0")

    def needs(self, prefill: PoolView, decode: PoolView) -> Side | None:
        """The pool that is pressed, while the other is not."""
        queued = [self.of_prefill(replica) for replica in prefill.replicas]
        held = [self.of_decode(replica) for replica in decode.replicas]
        if self._pressed(queued) and self._can_spare(held):
            return "prefill"
        if self._pressed(held) and self._can_spare(queued):
            return "decode"
        return None

    def of_prefill(self, replica: ReplicaView) -> Fraction:
        """Predicted TTFT by its target."""
        left = replica.prefill_tokens_left
        if not left:
            return Fraction(0)
        chunk = min(left, PROBE_TOKENS)
        time_ns = Fraction(left * replica.prefill_ns(chunk, 0), chunk)
        return time_ns / (exact(self.ttft_s) * NS_PER_S)

    def of_decode(self, replica: ReplicaView) -> Fraction:
        """Predicted TPOT by its target, or the share of KV memory that is needed."""
        step_ns = replica.decode_ns(replica.outstanding, replica.outstanding_tokens)
        tpot = Fraction(step_ns) / (exact(self.tpot_s) * NS_PER_S)
        return max(tpot, Fraction(replica.needed_blocks, replica.total_blocks))

    def _pressed(self, pressures: Iterable[Fraction]) -> bool:
        return all(pressure > exact(self.high) for pressure in pressures)

    def _can_spare(self, pressures: list[Fraction]) -> bool:
        fewer = len(pressures) - 1
        return fewer > 0 and sum(pressures) < exact(self.high) * fewer
