"""The plain second implementation of `tests/reference`, and what it and we must have in common.

It was written from the rules alone (20, 40 to 44, 51 to 53, 71 to 77), without a look at ours, and
extends the conformance reference of the shared folder. Choices it made where the rules can be read
in two ways are in ``tests/reference/DECISIONS.md``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.conformance.cases import observe_reference
from tests.conformance.check import compare
from tests.conformance.reference import load_reference
from tests.conformance.workloads import Spec


class Second(NamedTuple):
    """Its two functions.

    Attributes:
        simulate: A workload to its result, as the base reference's.
        random_spec: (seed, kind) to a workload.
    """

    simulate: Callable[[Spec], Any]
    random_spec: Callable[[int, str], Spec]


def load_second(shared: Path) -> Second:
    """The second implementation, on the base reference of the shared folder."""
    sys.modules.setdefault("refsim", load_reference(shared))
    from tests.reference.simulation import simulate
    from tests.reference.workloads import random_spec

    return Second(simulate, random_spec)


def replicas_of(spec: Spec) -> list[Spec]:
    """The replicas of all pools."""
    pools = spec.get("disaggregated")
    alone: list[Spec] = spec.get("replicas", [])
    return alone if pools is None else [*pools["prefill"], *pools["decode"]]


def differs(second: Second, spec: Spec) -> list[str]:
    """What differs, stepping and with fast-forward: times, decisions, free blocks, transfers."""
    return compare(spec, observe_reference(spec, second.simulate(spec)))
