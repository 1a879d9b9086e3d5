"""A run that makes no progress is stopped and says who is stuck; a slow one is not."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from policies import Orca, TokenBudget
from sim.batch import ScheduledBatch
from sim.errors import StuckError
from sim.policy import Policy, ReplicaState
from tests.conformance import adapter
from tests.sim.timeline import pools, replica, run_pools


@dataclass
class Refusing(Policy):
    """Never schedules anything."""

    def schedule(self, state: ReplicaState) -> ScheduledBatch:
        return ScheduledBatch()


@dataclass
class Undoing(TokenBudget):
    """Preempts every request one token before its prompt is complete."""

    def schedule(self, state: ReplicaState) -> ScheduledBatch:
        for request in list(state.running):
            if request.remaining_tokens == 1:
                state.preempt(request)
        return super().schedule(state)


def _run(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(adapter.POLICIES, "own", lambda: policy)
    requests = [{"arrival_ns": 0, "prompt_tokens": 5, "output_tokens": 2}]
    spec = {"requests": requests, "replicas": [{"policy": "own", "total_blocks": 9}]}
    adapter.observe(spec, fast_forward=False)


def test_a_request_left_waiting_for_ever_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StuckError, match=r"request 0 \(prompt 5, max 2\).*Refusing"):
        _run(Refusing(), monkeypatch)


def test_a_replica_that_only_recomputes_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StuckError, match=r"Undoing on replica 0.*without a token.*Request\(0"):
        _run(Undoing(max_num_batched_tokens=4), monkeypatch)


def test_recomputing_while_a_slow_transfer_holds_the_blocks_is_no_standstill(
    fast_forward: bool,
) -> None:
    prefill = replica("vllm-v1", 6, block_tokens=1, max_num_batched_tokens=2)
    layout = pools([prefill], [replica("orca", 10)], latency=100_000)
    got = run_pools(
        lambda spec: adapter.observe(spec, fast_forward=fast_forward),
        [(0, 2, 2), (0, 5, 2)],
        layout,
    )

    # 0: request 0: 12; its 2 blocks are held for 100 ms. Request 1 needs 5 of 6 blocks, so it takes
    # 4, finds no fifth, preempts itself and begins again, thousands of times, until the transfer of
    # request 0 has ended.
    assert got.preemptions[1] > 2000
    assert got.tokens[0][0] == 12
    assert got.tokens[1][0] > got.transfers[0][4] > 100_000


def test_a_healthy_policy_is_not_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    _run(Orca(), monkeypatch)
