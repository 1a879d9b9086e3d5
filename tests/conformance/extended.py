"""The reference with more rules added, by subclassing what it has.

Queue orders and least-tokens (50, 56, 57, 90), for the orders whose victim is the tail of running;
`priority` also chooses the victim (rule 89), so it is compared only where nobody was preempted. The
last token computed again on the decode side (38, 67, 68), for the policies to which that token is a
prefill like others.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

from tests.conformance.workloads import Spec

ORDERS = ("sjf", "srtf", "edf", "priority")
Key = Callable[[Any], Any]


def simulate_extended(reference: ModuleType, spec: Spec, order: str) -> Any:
    """The reference's result with every queue sorted by `order`, and its routers counting tokens.

    Predictions are the truth (``oracle``). `spec` is in the reference's format, with ``priority``
    and ``deadline_ns`` in its requests, and ``least_tokens`` as a third router.
    """
    module = copy_of(reference)
    module.POLICIES = {name: _sorting(x, order) for name, x in reference.POLICIES.items()}
    module.Router = _routing(reference.Router)
    return module.simulate(**spec)


AGAIN = ("orca", "vllm-v1", "sarathi")
"""Decode policies under which the last token, computed again, is nothing special (rule 68)."""


def simulate_last_tokens(reference: ModuleType, spec: Spec) -> Any:
    """The reference's result with ``recompute_last_token``: the decode side emits token 1 as well.

    The decode policies must be of `AGAIN`, and every request must have two tokens at least (those
    of one are handed over too, which the reference cannot be made to do).
    """
    module = copy_of(reference)
    module.POLICIES = {name: _withholding(x) for name, x in reference.POLICIES.items()}
    return module.simulate(**spec)


def _withholding(policy: type) -> type:
    """The policy; requests that reach its decode replica have emitted nothing yet."""

    def schedule(self: Any, now: int) -> Any:
        for r in self.loaded:
            r.computed, r.emitted = r.p - 1, 0
            r.times.clear()
        return policy.schedule(self, now)

    return type(policy.__name__, (policy,), {"schedule": schedule})


def copy_of(reference: ModuleType) -> Any:
    """A module of its own, whose `simulate` looks names up in it."""
    path = reference.__file__
    assert path is not None
    copy = ModuleType(reference.__name__)
    copy.__dict__.update(reference.__dict__)
    original = reference.simulate
    simulate = FunctionType(original.__code__, vars(copy), "simulate", original.__defaults__)
    copy.__dict__["simulate"] = simulate
    return copy


def _sorting(policy: type, order: str) -> type:
    """The policy, its queue sorted before each pass."""

    def schedule(self: Any, now: int) -> Any:
        never_run = [r for r in self.waiting if not r.preemptions]
        preempted = [r for r in self.waiting if r.preemptions]
        if order == "priority":
            self.waiting = sorted(self.waiting, key=lambda r: (r.spec["priority"], r.index))
        else:
            key = _key(self, order)
            self.waiting = preempted + sorted(never_run, key=lambda r: (key(r), r.index))
        return policy.schedule(self, now)

    return type(policy.__name__, (policy,), {"schedule": schedule})


def _key(replica: Any, order: str) -> Key:
    if order == "edf":
        return lambda r: r.arrival + r.spec["deadline_ns"]
    # A prefill replica expects one token of everybody.
    return lambda r: 0 if replica.role == "prefill" else r.o


def _routing(router: type) -> type:
    class TokenRouter(router):  # type: ignore[misc, valid-type]
        def __init__(self, kind: str, replicas: list[Any]) -> None:
            counts_tokens = kind == "least_tokens"
            super().__init__("least_outstanding" if counts_tokens else kind, replicas)
            self.counts_tokens = counts_tokens

        def pick(self, p: int, m: int, o: int) -> Any:
            if not self.counts_tokens:
                return super().pick(p, m, o)
            fits = [x for x in self.replicas if x.never_fits(p, m, o) is None]
            return min(fits, key=_outstanding_tokens)

    return TokenRouter


def _outstanding_tokens(replica: Any) -> int:
    here = [*replica.waiting, *replica.pulls, *replica.loaded, *replica.running]
    if getattr(replica, "at_end", False):  # finished rows are outstanding until the batch is over
        here += [r for r in replica.batch if r not in replica.running]
    return sum(r.known for r in here)
