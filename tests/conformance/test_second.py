"""Random workloads with swapping, clients that give up and sessions, compared token by token.

`make test` runs the first few of each kind; the slow ones make 2,000 (of transfers 600).
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from sim.host import HostLink
from sim.replica import Replica
from sim.request import Arrival, Request
from tests.conformance.second import CHUNK, Second, assert_alike, covered, differs, load_second
from traces.sessions import SessionSource

FEW = {"swap": 150, "cancel": 250, "sessions": 200, "links": 50, "push": 50}
MANY = {"links": 600, "push": 600}

QUICK = [(kind, first) for kind, few in FEW.items() for first in range(0, few, CHUNK)]
SLOW = [
    (kind, first) for kind, few in FEW.items() for first in range(few, MANY.get(kind, 2000), CHUNK)
]


@pytest.fixture(scope="module")
def second(shared: Path) -> Second:
    return load_second(shared)


@pytest.mark.parametrize(("kind", "first"), QUICK)
def test_times_and_decisions_equal_the_second_implementation(
    second: Second, kind: str, first: int
) -> None:
    assert_alike(second, kind, first)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "first"), SLOW)
def test_times_and_decisions_equal_the_second_implementation_on_more(
    second: Second, kind: str, first: int
) -> None:
    assert_alike(second, kind, first)


def _no_longer(link: HostLink, step_ns: int) -> int:
    """Copies take no time."""
    return step_ns


def _at_once(replica: Replica, request: Request) -> None:
    """A request in a step leaves as if none were under way."""
    replica.relieved()
    replica.notify()
    replica.sync()
    replica.drop(request)


def _without_thinking(source: SessionSource, row: int, now_ns: int) -> Arrival:
    """The next turn arrives at once, whatever its delay."""
    return source._arrival(row, now_ns)


@pytest.mark.parametrize(
    ("kind", "cls", "name", "broken"),
    [
        ("swap", HostLink, "lengthened", _no_longer),
        ("cancel", Replica, "give_up", _at_once),
        ("sessions", SessionSource, "_caused", _without_thinking),
    ],
)
def test_a_broken_engine_does_not_pass(
    second: Second,
    kind: str,
    cls: type,
    name: str,
    broken: object,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cls, name, broken)
    specs = [spec for seed in range(40) if covered(spec := second.random_spec(seed, kind))]

    assert sum(bool(differs(second, spec)) for spec in specs) > 3


SWAP_CORNERS = (
    "swapped out",
    "swapped in",
    "swapped in across a boundary",
    "swap-in refused",
    "recomputed: host full",
    "recomputed: could not return",
    "no prefill while something is swapped out",
    "preempted itself",
)
CANCEL_CORNERS = (
    "cancelled while waiting",
    "cancelled after a preemption",
    "cancelled in a step",
    "all of a step cancelled",
    "cancelled beside a step",
    "cancelled between steps",
    "cancelled before its pull",
    "cancelled in transfer",
    "cancelled when loaded",
    "cancelled at the end of its prefill",
    "cancelled at its arrival",
    "cancelled while swapped out",
    "cancelled row",
    "cancelled row between steps",
    "batch over by cancellation",
)
SESSION_CORNERS = (
    "caused by one cancelled",
    "caused by one finished",
    "caused by one finished, at once",
    "caused by one rejected",
    "hit of free blocks",
    "place taken",
    "several caused at one instant",
    "turns skipped",
)


@pytest.mark.parametrize(
    ("kind", "corners"),
    [("swap", SWAP_CORNERS), ("cancel", CANCEL_CORNERS), ("sessions", SESSION_CORNERS)],
)
def test_the_workloads_reach_the_corners(
    second: Second, kind: str, corners: tuple[str, ...]
) -> None:
    met: Counter[str] = Counter()
    for seed in range(FEW[kind]):
        spec = second.random_spec(seed, kind)
        if covered(spec):
            met.update(set(second.simulate(spec).corners))
    assert [corner for corner in corners if not met[corner]] == []


def test_the_second_implementation_gives_what_was_worked_out_by_hand(second: Second) -> None:
    from tests.reference import selfcheck

    for name in selfcheck.EXAMPLES:
        selfcheck.check_example(name)
    selfcheck.check_counts()
    selfcheck.check_tree()
