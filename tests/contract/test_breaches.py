"""Each contract check catches the kind of policy or router it is for, and shrinks the case."""

from __future__ import annotations

import random
import re
import sys
import types
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from experiments.check_policy import Report, check_policy
from experiments.contract import CHECKS
from policies import Orca, RoundRobin, TokenBudget
from sim.batch import ScheduledBatch
from sim.errors import ConfigError
from sim.kvcache import BlockPool
from sim.policy import Policy, ReplicaState, ReplicaView
from sim.request import Request


@dataclass
class Sleepy(TokenBudget):
    """Admits nobody while three or more wait."""

    def schedule(self, state: ReplicaState) -> ScheduledBatch:
        return ScheduledBatch() if len(state.waiting) > 2 else super().schedule(state)


@dataclass
class LetsAllIn(TokenBudget):
    """Rejects nothing, so that what can never run waits for ever."""

    def refuse(self, request: Request, kv: BlockPool, max_model_len: int | None) -> str | None:
        return None


@dataclass
class Leaky(TokenBudget):
    """Loses a block in each pass."""

    def schedule(self, state: ReplicaState) -> ScheduledBatch:
        batch = super().schedule(state)
        state.kv.free_blocks -= 1
        return batch


@dataclass
class Moody(TokenBudget):
    """Decides by chance without a seed."""

    def schedule(self, state: ReplicaState) -> ScheduledBatch:
        self.max_num_batched_tokens = random.choice((3, 500))
        return super().schedule(state)


@dataclass
class Promising(TokenBudget):
    """Changes its mind with every pass, but says that its decision holds."""

    _passes: int = field(default=0, init=False)

    def schedule(self, state: ReplicaState) -> ScheduledBatch:
        self._passes += 1
        self.max_num_batched_tokens = 1 + self._passes % 5
        return super().schedule(state)


@dataclass
class Hasty(Orca):
    """Takes blocks for the head of the queue and gives them back only in the next pass."""

    def schedule(self, state: ReplicaState) -> ScheduledBatch:
        head = state.waiting.head if state.waiting else None
        if head is not None and state.kv.held(head):
            state.kv.release(head)
        batch = super().schedule(state)
        if state.waiting:
            state.kv.allocate(state.waiting.head, 1)
        return batch


@dataclass
class Loyal(Orca):
    """Keeps the place of the first in the queue although its client may have left."""

    _first: Request | None = field(default=None, init=False)

    def schedule(self, state: ReplicaState) -> ScheduledBatch:
        if self._first is None or self._first.target_tokens:  # it was admitted
            self._first = state.waiting.head if state.waiting else None
        if state.waiting and state.waiting.head is not self._first and not state.running:
            return ScheduledBatch()
        return super().schedule(state)


@dataclass
class Spy(TokenBudget):
    """Looks behind the scenes for who ends soon, and does not admit beside them."""

    def schedule(self, state: ReplicaState) -> ScheduledBatch:
        replica: Any = state._on_preempt.__self__  # type: ignore[union-attr]
        soon = any(replica.lives[r].goal - r.emitted_tokens < 2 for r in state.running)
        self.max_num_seqs = len(state.running) if soon else 256
        batch = super().schedule(state)
        batch.repeat = 1
        return batch


@dataclass
class Broken(TokenBudget):
    """Raises."""

    def schedule(self, state: ReplicaState) -> ScheduledBatch:
        return [][0]


@dataclass
class Stray(RoundRobin):
    """Chooses a replica that it was not offered."""

    _seen: list[ReplicaView] = field(default_factory=list, init=False)

    def pick(self, request: Request, replicas: Sequence[ReplicaView]) -> ReplicaView:
        self._seen = self._seen or list(replicas)
        return self._seen[0]


@dataclass
class Dice(RoundRobin):
    """Draws without a seed."""

    def pick(self, request: Request, replicas: Sequence[ReplicaView]) -> ReplicaView:
        return random.choice(replicas)


@pytest.mark.parametrize(
    ("subject", "check", "message"),
    [
        (Sleepy, "every request ends", "can never run"),
        (LetsAllIn, "every request ends", "not every request ends"),
        (Leaky, "every request ends", "an invariant broke"),
        (Moody, "same seed, same bytes", "they differ"),
        (Promising, "fast-forward equals stepping", "they differ"),
        (Hasty, "a refusal changes nothing", "holds blocks"),
        (Loyal, "every request ends", "can never run"),
        (Spy, "output lengths stay hidden", "still to come"),
        (Broken, "every request ends", r"IndexError: list index out of range \(.*return \[\]\[0\]"),
        (Stray, "every request ends", r"pick\(\) returns .* not offered"),
        (Dice, "same seed, same bytes", "they differ"),
    ],
)
def test_a_breach_is_found_and_shrunk(
    subject: type, check: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = _checked(subject, monkeypatch)

    assert report.failure is not None
    assert report.failure.check == check
    assert re.search(message, report.failure.message), report.failure.message
    assert len(report.failure.workload["requests"]) <= 6
    assert '"requests": [' in str(report)


def _checked(subject: type, monkeypatch: pytest.MonkeyPatch) -> Report:
    module = types.ModuleType("users_own")
    setattr(module, subject.__name__, subject)
    monkeypatch.setitem(sys.modules, "users_own", module)
    return check_policy(f"users_own:{subject.__name__}", workloads=60, folder=Path(__file__).parent)


def test_a_report_says_what_held() -> None:
    report = check_policy("sarathi", workloads=3, options={"budget_tokens": 16})

    assert report.failure is None
    assert str(report) == f"sarathi: all {len(CHECKS)} checks hold on 3 random workloads"


def test_workloads_that_a_policy_refuses_are_counted() -> None:
    report = check_policy("vllm-v0", workloads=12, options={"max_num_batched_tokens": 60})

    assert report.workloads + report.refused == 12
    assert report.refused > 0
    assert f"({report.refused} more refused by its own check())" in str(report)


def test_names_and_options_that_do_not_exist_are_one_line() -> None:
    with pytest.raises(ConfigError, match=r"sarathy.*sarathi"):
        check_policy("sarathy")
    with pytest.raises(ConfigError, match=r"budget_token.*budget_tokens"):
        check_policy("sarathi", options={"budget_token": 3})
    with pytest.raises(ConfigError, match="neither"):
        check_policy("tests.contract.test_breaches:NotAPolicy", folder=Path())


@dataclass
class NotAPolicy:
    """A dataclass, and nothing else."""


def test_a_check_of_a_policy_class_leaves_the_class_alone() -> None:
    before = TokenBudget.schedule
    check_policy("vllm-v1", workloads=2)

    assert TokenBudget.schedule is before
    assert issubclass(TokenBudget, Policy)
