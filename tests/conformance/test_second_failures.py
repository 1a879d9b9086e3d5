"""Random workloads on clusters that change, compared with the second implementation.

Replicas fail, come back, are drained and added, under pull and push, whole or layer by layer;
replicas are pipelines; stragglers come and go, alone and beside failures; prefills go on in vain.

Compared are states, token times, how often requests were re-routed and preempted, the decisions,
lost steps among them, and the instant at which the run ends, be it by rule 84. (The reference logs
a step when it begins, so that those in flight at that instant are in its log alone.)
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from sim.changes import Change
from sim.cluster import Cluster, LiveCluster
from sim.errors import ConfigError
from sim.event_loop import simulate
from sim.records import STATES, Record, SimulationResult
from sim.replica import Replica
from sim.slow_down import Normal, Slow, for_a_while
from tests.conformance import adapter
from tests.conformance.second import CHUNK, Second, load_second, without_idle_nics
from tests.conformance.stuck import stuck_spec
from tests.conformance.workloads import Spec

KINDS = ("failures", "pushed", "roles", "pipeline", "slow", "slow-mixed", "stuck")
FEW, MANY = 50, 550
MET = (("slow-mixed", 235), ("failures", 378))
"""Kind and seed of those on which we once differed.

A replica that was idle as it was drained to change its role, and failed at that very instant; a
prefill replica that swaps, once it is a decode replica, KV of another size than it would send.
"""


@pytest.fixture(scope="module")
def second(shared: Path) -> Second:
    return load_second(shared)


def _comparable(spec: Spec) -> bool:
    """Our closed loops count patience from the arrival."""
    loops = "concurrency" in spec or any("session" in r for r in spec["requests"])
    absolute = any("cancel_at_ns" in r for r in spec["requests"])
    return not (loops and absolute)


class _IfPossible:
    """A change, unless the replica is not in a state for it: the reference ignores such events."""

    def __init__(self, change: Callable[[LiveCluster], None]) -> None:
        self._change = change

    def __call__(self, live: LiveCluster) -> None:
        try:
            self._change(live)
        except ConfigError as error:
            if "what can happen" not in str(error):
                raise


def _changes(spec: Spec) -> list[tuple[int, _IfPossible]]:
    changes = []
    for event in spec.get("events", ()):
        at_ns, what = event["at_ns"], event["what"]
        where = event.get("index") or 0, event["pool"] == "decode"
        if what == "slow":
            slow = Slow(Fraction(event["factor"]), *where)
            changes += for_a_while(at_ns, event.get("until"), slow)
        elif what == "normal":
            changes.append((at_ns, Normal(None, *where)))
        else:
            turns = what in ("drain", "role") and event.get("to") is not None
            changes.append((at_ns, Change("role" if turns else what, *where, keeps_spec=turns)))
    return [(at_ns, _IfPossible(x)) for at_ns, x in sorted(changes, key=lambda x: x[0])]


def as_changes(spec: Spec) -> tuple[Callable[[], Any], Cluster, list[Any]] | None:
    """A source, a cluster and what happens to it, for `simulate`; None if we cannot run it."""
    if not _comparable(spec):
        return None
    plain = {k: v for k, v in spec.items() if k not in ("events", "on_failure")}
    plain["requests"] = _numbered(spec["requests"])
    cluster, _ = adapter.build(plain)
    on_failure = spec.get("on_failure", "reroute")
    return lambda: adapter.feed(plain), replace(cluster, on_failure=on_failure), _changes(spec)


def _ours(spec: Spec, *, fast_forward: bool) -> tuple[SimulationResult, list[str]]:
    plain = {k: v for k, v in spec.items() if k not in ("events", "on_failure")}
    plain["requests"] = _numbered(spec["requests"])
    cluster, names = adapter.build(plain)
    result = simulate(
        adapter.feed(plain),
        replace(cluster, on_failure=spec.get("on_failure", "reroute")),
        cluster_events=_changes(spec),
        fast_forward=fast_forward,
        check=True,
        record=Record(decisions=True),
    )
    return result, names


def _numbered(requests: Sequence[Spec]) -> list[Spec]:
    """Turns without a number follow each other in the order of the list."""
    turns: Counter[str] = Counter()
    numbered = []
    for request in requests:
        name = request.get("session")
        if name is not None and "turn" not in request:
            request = {**request, "turn": turns[name]}
            turns[name] += 1
        numbered.append(request)
    return numbered


def _differences(second: Second, spec: Spec, *, fast_forward: bool) -> list[str]:
    want = second.simulate(spec)
    got, _ = _ours(spec, fast_forward=fast_forward)
    table = {name: column.tolist() for name, column in got.requests.items()}
    at = {index: i for i, index in enumerate(table["index"])}
    lines = []
    for index, outcome in want.requests.items():
        if outcome.status == "skipped":
            lines += [f"request {index} arrived"] if index in at else []
            continue
        i, times = at[index], got.token_times_ns(index).tolist()
        theirs = [outcome.status, list(outcome.token_times_ns), outcome.rerouted]
        theirs.append(outcome.preemptions)
        ours = [STATES[table["state"][i]], times, table["rerouted"][i], table["preemptions"][i]]
        if theirs != ours:
            lines.append(f"request {index}: expected {theirs}, got {ours}")
    if "unfinished" in {outcome.status for outcome in want.requests.values()}:
        lines += [] if want.end_ns == got.end_ns else [f"end: {want.end_ns} is not {got.end_ns}"]
    return lines + _decisions_differ(want, got)


def _decisions_differ(want: Any, got: SimulationResult) -> list[str]:
    over = [d for d in want.log if d.end_ns is not None and d.end_ns <= got.end_ns]
    theirs = Counter(_entry(d, d.lost_step) for d in over)
    ours = Counter(_entry(d, d.lost) for d in got.decisions)
    return [f"decisions: {theirs - ours} is not {ours - theirs}"] if theirs != ours else []


def _entry(decision: Any, lost: bool) -> tuple[Any, ...]:
    tokens = tuple(sorted(decision.tokens.items()))
    gone = tuple(decision.preempted)
    return decision.start_ns, decision.end_ns, tokens, gone, decision.free_after, lost


def _spec(second: Second, kind: str, seed: int) -> Spec:
    made = {"pushed": _pushed, "stuck": stuck_spec}.get(kind)
    spec = made(second, seed) if made else second.random_spec(seed, kind)
    return without_idle_nics(_one_kv_size(spec) if _changes_roles(spec) else spec)


def _changes_roles(spec: Spec) -> bool:
    return any(event.get("to") is not None for event in spec.get("events", ()))


def _one_kv_size(spec: Spec) -> Spec:
    """KV has one size on a replica of ours, swapped out or sent; there, one on the wire for all.

    It matters where one replica does both, one role after the other.
    """
    pools = spec["disaggregated"]
    size = {"kv_bytes_per_token": pools["transfer"]["kv_bytes_per_token"]}
    sides = {
        side: [config | size if "host_blocks" in config else config for config in pools[side]]
        for side in ("prefill", "decode")
    }
    return {**spec, "disaggregated": {**pools, **sides}}


def _pushed(second: Second, seed: int) -> Spec:
    """A workload of pushes, with changes at instants that matter in it."""
    from tests.reference.workload_changes import events, stuck

    rng, spec = random.Random(f"pushed {seed}"), dict(second.random_spec(seed, "push"))
    if rng.random() < 0.3:
        spec["on_failure"] = "fail"
    if rng.random() < 0.15:
        stuck(rng, spec, spec["disaggregated"]["prefill"][0].get("block_tokens", 16))
    found = [*spec.get("events", ()), *events(rng, spec)]
    found = [{k: v for k, v in event.items() if k != "to"} for event in found]
    spec["events"] = sorted(found, key=lambda event: event["at_ns"])
    return spec


def _compare(second: Second, kind: str, first: int) -> None:
    for seed in range(first, first + CHUNK):
        spec = _spec(second, kind, seed)
        if _comparable(spec):
            _assert_equal(second, spec, f"{kind} {seed}")


def _assert_equal(second: Second, spec: Spec, name: str) -> None:
    for fast_forward in (False, True):
        lines = _differences(second, spec, fast_forward=fast_forward)
        assert lines == [], f"{name}, fast_forward {fast_forward}"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", range(0, FEW, CHUNK))
def test_what_becomes_of_requests_equals_the_second_implementation(
    second: Second, kind: str, first: int
) -> None:
    _compare(second, kind, first)


@pytest.mark.parametrize(("kind", "seed"), MET)
def test_what_once_differed_equals_the_second_implementation(
    second: Second, kind: str, seed: int
) -> None:
    spec = _spec(second, kind, seed)
    assert _comparable(spec)
    _assert_equal(second, spec, f"{kind} {seed}")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", range(FEW, MANY, CHUNK))
def test_what_becomes_of_requests_equals_the_second_implementation_on_more(
    second: Second, kind: str, first: int
) -> None:
    _compare(second, kind, first)


def test_some_of_these_workloads_end_where_a_state_returns(second: Second) -> None:
    results = [second.simulate(_spec(second, "stuck", seed)) for seed in range(FEW)]
    assert sum(result.corners["state returned"] > 0 for result in results) >= 5


def test_a_failure_that_loses_nothing_does_not_pass(
    second: Second, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Replica, "_lose_step", lambda replica: None)
    specs = [second.random_spec(seed, "failures") for seed in range(40)]

    assert any(_fails(second, spec) for spec in specs if _comparable(spec))


def _fails(second: Second, spec: Spec) -> bool:
    try:
        return bool(_differences(second, spec, fast_forward=False))
    except AssertionError:  # the invariants notice it first
        return True
