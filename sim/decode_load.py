"""Early rejection on the load of the decode pool: as it is, or as it will be (Mooncake).

The rules, as the fourth test of `sim.admission` (reason ``decode_load``), with two pools only:

- The load is judged at an instant T. As it is: T is now, in phase (3), before the request is
  routed; counted are this request and those outstanding in the decode pool (rule 88).
- *Predicted:* T is when its own prefill will have ended: now and the least TTFT predicted for it
  (test 3) on the replicas that are left. Each request is taken to decode for `decode_ns` from the
  end of its prefill. Counted at T are this request; of those outstanding in the decode pool who
  will not have ended, i.e. prefill end + `decode_ns` > T; and of those in the prefill pool whose
  prefill will have ended, e <= T, and who will not have ended themselves, max(e, now) + `decode_ns`
  > T. Here e is the end that was predicted so for them when they arrived, on which their later
  delays have no influence.
- Of n requests, each counts with the tokens known of it now, p + emitted, and this one and those in
  the prefill pool with one more, the token that the prefill emits; C is the sum. R decode replicas
  are up; if none is, nothing is judged.
- ``max_tbt_ns``: refused if the step time of ceil(n / R) decodes, at most as many as have seats,
  with ceil(C x decodes / n) tokens of context, is more. Where replicas differ: the mean over those
  that are up, rounded down.
- ``max_kv_share``: refused if C is more than this share of all their KV tokens (doubles).

True output lengths play no part. A judgement costs time in proportion to the requests in the
cluster.

Source: Qin et al., Mooncake (arXiv 2407.00079), section 7: early rejection by the decode load
at arrival (7.2), the swings that it causes since a request loads the decode pool only after
its prefill (7.3), and prediction at the level of the system with one decode time t_d for all (7.4).
There the load is the ratio of the mean time between tokens to its target.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sim.errors import ConfigError
from sim.records import Lifetime
from sim.replica_spec import UP
from sim.request import NEVER, Request
from sim.step_time import StepWork

if TYPE_CHECKING:
    from sim.replica import Replica


@dataclass(frozen=True)
class DecodeLimit:
    """Most load of the decode pool that a request may add to.

    Attributes:
        max_tbt_ns: Longest step of the mean decode batch; None: no limit.
        max_kv_share: Largest share of KV memory; None: no limit.
        decode_ns: Time that each request is taken to decode, where the load is predicted; None: the
            load as it is.
    """

    max_tbt_ns: int | None = None
    max_kv_share: float | None = None
    decode_ns: int | None = None

    def __post_init__(self) -> None:
        if self.max_tbt_ns is None and self.max_kv_share is None:
            raise ConfigError("decode_load: needs a limit: give max_tbt_s or max_kv_share")


class DecodeLoad:
    """The load of a decode pool, as a new request would find it.

    Args:
        limit: What is too much.
        replicas: Those of the decode pool; more may be added to it.
        lives: The requests in the cluster, by index.
    """

    def __init__(
        self, limit: DecodeLimit, replicas: Sequence[Replica], lives: dict[int, Lifetime]
    ) -> None:
        self.limit = limit
        self._replicas, self._lives = replicas, lives

    def refuses(self, request: Request, due_ns: int, now_ns: int) -> bool:
        """Whether there would be too much.

        Args:
            request: As the prefill pool sees it.
            due_ns: When its prefill will have ended, as predicted.
            now_ns: The instant.
        """
        up = [replica for replica in self._replicas if replica.condition == UP]
        if not up:
            return False
        for replica in self._replicas:
            replica.sync()
        counted = list(self._counted(due_ns, now_ns))
        n, context = len(counted) + 1, sum(counted) + request.known_tokens + 1
        limit = self.limit
        if limit.max_kv_share is not None:
            room = sum(replica.total_blocks * replica.block_tokens for replica in up)
            if context > limit.max_kv_share * room:
                return True
        return limit.max_tbt_ns is not None and _tbt_ns(n, context, up) > limit.max_tbt_ns

    def _counted(self, due_ns: int, now_ns: int) -> Iterable[int]:
        """Tokens of each request that will load the pool beside the new one."""
        lasts_ns = self.limit.decode_ns
        for life in self._lives.values():
            request, where = life.request, life.where
            if request is None or where is None:
                continue
            if where.role == "decode":
                began = now_ns if life.prefill_end_ns == NEVER else life.prefill_end_ns
                if lasts_ns is None or began + lasts_ns > due_ns:
                    yield request.known_tokens
            elif lasts_ns is not None:
                begins = life.prefill_due_ns
                if begins <= due_ns < max(begins, now_ns) + lasts_ns:
                    yield request.known_tokens + 1


def _tbt_ns(n: int, context: int, up: Sequence[Replica]) -> int:
    """Step time of a decode replica that has its share of all requests."""
    total = 0
    known: dict[int, int] = {}
    for replica in up:
        spec = replica.spec
        if id(spec) not in known:
            rows = min(-(-n // len(up)), replica.policy.seats)
            work = StepWork([], rows, -(-context * rows // n))
            known[id(spec)] = spec.step_time.step_ns(work, 0)
        total += known[id(spec)]
    return total // len(up)
