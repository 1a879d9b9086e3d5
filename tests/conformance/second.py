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

from sim.event_loop import simulate
from sim.records import Record
from tests.conformance import adapter
from tests.conformance.cases import Observed, by_start, differences, observe_reference
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


CHUNK = 50
"""Workloads of one test."""


def covered(spec: Spec) -> bool:
    """Whether `differs` says all there is to say, and we can run it.

    `sglang` has a comparison of its own, and events are compared elsewhere.
    """
    return not spec.get("events") and all(x["policy"] != "sglang" for x in replicas_of(spec))


def without_idle_nics(spec: Spec) -> Spec:
    """We refuse a NIC's bandwidth where transfers share none; the reference ignores it."""
    pools = spec.get("disaggregated")
    if pools is None or pools["transfer"].get("sharing", "none") != "none":
        return spec
    plain = {
        side: [{k: v for k, v in x.items() if k != "nic_bytes_per_s"} for x in pools[side]]
        for side in ("prefill", "decode")
    }
    return {**spec, "disaggregated": {**pools, **plain}}


def assert_alike(second: Second, kind: str, first: int) -> None:
    """A chunk of workloads, from seed `first` on, on which both must agree."""
    for seed in range(first, first + CHUNK):
        spec = without_idle_nics(second.random_spec(seed, kind))
        if covered(spec):
            assert differs(second, spec) == [], f"{kind} {seed}"


def replicas_of(spec: Spec) -> list[Spec]:
    """The replicas of all pools."""
    pools = spec.get("disaggregated")
    alone: list[Spec] = spec.get("replicas", [])
    return alone if pools is None else [*pools["prefill"], *pools["decode"]]


def differs(second: Second, spec: Spec) -> list[str]:
    """What differs from it, stepping and with fast-forward.

    Times, decisions, free blocks and transfers; with a cache also the tokens found at admissions
    and the blocks that lost their content.
    """
    expected = second.simulate(spec)
    want = observe_reference(spec, expected) | {"transfers": _moved(spec, expected)}
    facts: Facts = {}
    for x in expected.log:
        found = {i: tokens for i, tokens in x.facts.get("cached", {}).items() if tokens}
        facts.setdefault(x.replica, []).append([found, x.facts.get("lost", 0)])
    lines = []
    for name, fast_forward in (("stepping", False), ("fast-forward", True)):
        try:
            got, ours = _observed(spec, fast_forward=fast_forward)
        except Exception as error:  # whatever it is, it is a difference
            lines.append(f"{name}: {type(error).__name__}: {error}")
            continue
        lines += [f"{name}: {x}" for x in [*differences(want, got), *_unlike(facts, ours.facts)]]
        lines += [
            f"{name}: {x}: {n} bytes over the link, read and written, got {ours.tier_bytes[x]}"
            for x, n in expected.tier_bytes.items()
            if ours.tier_bytes[x] != n
        ]
    return lines


Facts = dict[str, list[Any]]
"""Of each decision of each replica, the tokens found and the blocks that lost their content."""


class _Ours(NamedTuple):
    """What our run says beyond what the base reference says."""

    facts: Facts
    tier_bytes: dict[str, list[int]]


def _observed(spec: Spec, *, fast_forward: bool) -> tuple[Observed, _Ours]:
    cluster, names = adapter.build(spec)
    record = Record(decisions=True, steps=True)
    source = adapter.feed(spec)
    result = simulate(source, cluster, fast_forward=fast_forward, check=True, record=record)
    facts: Facts = {}
    for x in result.decisions:
        found = {i: tokens for i, tokens in x.cached.items() if tokens}
        facts.setdefault(names[x.replica], []).append([found, x.lost_blocks])
    moved = {
        names[i]: [x.host_bytes, x.disk_read_bytes, x.disk_written_bytes]
        for i, x in enumerate(result.replicas)
    }
    return adapter.observe_result(spec, result, names), _Ours(facts, moved)


def _unlike(facts: Facts, ours: Facts) -> list[str]:
    """The first decision whose facts differ."""
    return [
        f"{replica}: step {at}: facts {a}, got {b}"
        for replica, rows in facts.items()
        for at, (a, b) in enumerate(zip(rows, ours.get(replica, []), strict=False))
        if a != b
    ][:1]


def _moved(spec: Spec, result: Any) -> list[list[Any]]:
    """Transfers that ended, with the blocks moved: not those that the target has found."""
    rows = []
    for t in result.transfers:
        if t.called_off:
            continue
        prefill = spec["disaggregated"]["prefill"][int(t.source.removeprefix("prefill"))]
        moved = t.source_blocks - t.cached_tokens // prefill.get("block_tokens", 16)
        rows.append([t.request, t.source, t.target, t.start_ns, t.end_ns, moved])
    return by_start(rows)
