"""Every entry of `POLICIES`, `ROUTERS` and `ORDERS` keeps the contract on workloads of hypothesis.

A new policy is picked up from the dict. The checks themselves are `experiments.contract.CHECKS`,
which `phasewise check-policy` runs on a user's own policy.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, note, settings
from hypothesis import strategies as st

from experiments.contract import CHECKS, BreachError, Subject, Trial, Workload, run
from policies import ORDERS, POLICIES, ROUTERS, Oracle
from sim.errors import ConfigError
from sim.policy import Policy, ReplicaState
from sim.request import Request
from tests.strategies import workloads

OPTIONS: dict[str, list[dict[str, Any]]] = {
    "static": [
        {"batch_size": 3, "batch_timeout_s": 0.01, "pad_prompts": "attention"},
        {"pad_prompts": False, "keep_finished_slots": False, "return_at": "batch_end"},
    ],
    "orca": [{"max_batch_size": 2, "reserve": "oracle"}, {"reserve": "pow2"}],
    "vllm-v0": [
        {"max_num_seqs": 3, "max_num_batched_tokens": 200},
        {"preemption": "swap", "host_blocks": 12},
    ],
    "vllm-v1": [
        {"max_num_seqs": 3, "max_num_batched_tokens": 7, "long_prefill_token_threshold": 4},
        {"reserve_full_prompt": True, "watermark": 0.1},
        {"prefix_cache": True, "uncached_first": True, "max_num_seqs": 4},
    ],
    "sarathi": [{"max_num_seqs": 3, "budget_tokens": 5}],
    "distserve": [{"max_batch_size": 3, "max_tokens_per_batch": 60, "host_blocks": 12}],
    "sglang": [
        {"chunked_prefill_size": 8, "max_prefill_tokens": 16, "max_running_requests": 3},
        {"chunked_prefill_size": None, "page_size": 4, "eviction": "lfu", "order": "fcfs"},
        {"prefix_cache": False},
    ],
}
"""Options other than the defaults that are checked as well."""

ROUTER_OPTIONS: dict[str, dict[str, Any]] = {
    "class-aware": {"classes": {"chat": [0]}, "others": [0], "overflow": {"chat": 1}},
    "prefix-aware": {"balance_abs_threshold": 1, "max_tree_tokens": 50},
    "kv-aware": {"temperature": 0.5},
}
"""Options that routers need, or that let small workloads reach their corners."""

SUBJECTS = {
    f"{name}-{i}": Subject(name, policy, ROUTERS["round-robin"], options)
    for name, policy in POLICIES.items()
    for i, options in enumerate([{}, *OPTIONS.get(name, [])])
} | {
    name: Subject(name, POLICIES["vllm-v1"], router, ROUTER_OPTIONS.get(name, {}), is_router=True)
    for name, router in ROUTERS.items()
}

SORTED = {
    f"{order}-{name}": Subject(name, policy, ROUTERS["round-robin"], {}, False, made(), Oracle())
    for order, made in ORDERS.items()
    for name, policy in POLICIES.items()
    if order != "fcfs" and not policy.alone
}

quick = settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))


def _check(names: Iterable[str], subject: Subject, workload: Workload) -> None:
    trial = Trial(subject, workload)
    for name in names:
        note(name)
        try:
            CHECKS[name](trial)
        except ConfigError:
            assume(False)  # the policy's own check() refuses this replica


@pytest.mark.parametrize("subject", SUBJECTS.values(), ids=SUBJECTS)
@quick
@given(workload=workloads())
def test_every_check_holds(subject: Subject, workload: Workload) -> None:
    _check(CHECKS, subject, workload)


@pytest.mark.parametrize("subject", SORTED.values(), ids=SORTED)
@quick
@given(workload=workloads())
def test_it_ends_and_fast_forwards_in_every_queue_order(
    subject: Subject, workload: Workload
) -> None:
    _check(["every request ends", "fast-forward equals stepping"], subject, workload)


TRUTH = 1777
"""An output length that no counter has before anything ran."""


@pytest.mark.parametrize("name", POLICIES)
@given(two_pools=st.booleans())
@settings(max_examples=4, deadline=None)
def test_nothing_a_policy_sees_holds_the_true_output_length(name: str, two_pools: bool) -> None:
    base = POLICIES[name]
    assume(not (two_pools and base.alone))
    seen: list[Request] = []

    def schedule(self: Policy, state: ReplicaState) -> Any:
        seen.extend(state.waiting)
        assert TRUTH not in _numbers(state, set())
        raise BreachError("the first pass has been looked at")

    spying = type("Spying" + base.__name__, (base,), {"schedule": schedule})
    pool = [{"num_blocks": 10**6, "block_tokens": 16}]
    request = {"arrival_ns": 0, "prompt_tokens": 3, "output_tokens": TRUTH, "max_tokens": 1900}
    workload = {"requests": [request], "replicas": pool}
    if two_pools:
        workload["decode_replicas"] = pool
    with pytest.raises(BreachError, match="first pass has been looked at"):
        run(Subject(name, spying, ROUTERS["round-robin"]), workload)
    assert seen
    assert not any("output" in attribute for attribute in dir(seen[0]))


def _numbers(value: object, met: set[int]) -> set[int]:
    """All integers reachable through public attributes and containers."""
    if isinstance(value, int):
        return {value}
    if id(value) in met or isinstance(value, str | float | type(None) | type) or callable(value):
        return set()
    met.add(id(value))
    found: set[int] = set()
    for part in _parts(value):
        found |= _numbers(part, met)
    return found


def _parts(value: object) -> list[object]:
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    names = [name for name in dir(value) if not name.startswith("_")]
    parts = [getattr(value, name, None) for name in names]
    if hasattr(value, "__iter__"):
        parts += list(value)
    return parts
