"""What has to be true of where the time of requests went, in any run that attributes it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from sim.attribution import E2E_COLUMNS, ITL_COLUMNS, PHASES, TTFT_COLUMNS
from sim.clock import now_ns
from sim.life_log import FollowedAccount
from sim.records import ADMITTED_AGAIN, Lifetime, SimulationResult
from sim.replica_ends import ReplicaEnds

MAY_BE_NEGATIVE = {
    *("prefill_others", "prefill_decodes", "decode_host", "decode_others", "decode_prefills"),
    *("padding", "noise", "slow", "bubble"),
}
"""Differences of two step times; all else is time that passed."""


def assert_adds_up(result: SimulationResult) -> None:
    """The phases of each request are its E2E, and its TTFT, exactly; nothing is left over.

    Those of its largest gap between tokens are that gap.
    """
    table = result.requests
    end_ns = np.where(table["end_ns"] < 0, result.end_ns, table["end_ns"])
    e2e = np.sum([table[name] for name in E2E_COLUMNS], axis=0)
    assert e2e.tolist() == (end_ns - table["arrival_ns"]).tolist()
    ttft = np.sum([table[name] for name in TTFT_COLUMNS], axis=0)
    came = table["first_token_ns"] >= 0
    assert (
        ttft.tolist() == np.where(came, table["first_token_ns"] - table["arrival_ns"], 0).tolist()
    )
    for phase in set(PHASES) - MAY_BE_NEGATIVE:
        assert (table[f"e2e_{phase}_ns"] >= table[f"ttft_{phase}_ns"]).all(), phase
        assert (table[f"ttft_{phase}_ns"] >= 0).all(), phase
        assert (table[f"itl_max_{phase}_ns"] >= 0).all(), phase
    for phase in ("other", "queue_other"):
        assert not table[f"e2e_{phase}_ns"].any(), phase
    largest = np.sum([table[f"itl_max_{phase}_ns"] for phase in PHASES], axis=0)
    assert largest.tolist() == np.maximum(table["largest_itl_ns"], 0).tolist()
    stops = result.preemptions
    left = stops["request"][stops["what"] != ADMITTED_AGAIN]
    for row, index in enumerate(table["index"].tolist()):
        assert (left == index).sum() == table["preemptions"][row]
        gaps = np.diff(result.token_times_ns(index))
        token = int(table["itl_max_token"][row])
        assert token == (int(np.argmax(gaps)) + 2 if len(gaps) else -1)


def assert_lives(result: SimulationResult) -> None:
    """Lives are complete, in order, and their stretches add up to what the accounts say."""
    for index, life in result.lives.items():
        (row,) = np.flatnonzero(result.requests["index"] == index)
        end_ns = int(result.requests["end_ns"][row])
        at = int(result.requests["arrival_ns"][row])
        sums = dict.fromkeys(PHASES, 0)
        for stretch in life:
            assert stretch.begin_ns == at
            assert sum(stretch.ns.values()) == stretch.end_ns - stretch.begin_ns >= 0
            at = stretch.end_ns
            for phase, ns in stretch.ns.items():
                sums[phase] += ns
        assert at == (result.end_ns if end_ns < 0 else end_ns)
        assert sums == {name: int(result.requests[f"e2e_{name}_ns"][row]) for name in PHASES}


def assert_alike(one: SimulationResult, other: SimulationResult) -> None:
    """Two runs attribute the very same ns."""
    for name in (*E2E_COLUMNS, *TTFT_COLUMNS, *ITL_COLUMNS):
        assert one.requests[name].tolist() == other.requests[name].tolist(), name


class TokenByToken:
    """Reads the accounts of all requests at each of their tokens, in a run without fast-forward.

    Attributes:
        ns: Time by phase up to each token, by request.
    """

    def __init__(self) -> None:
        self.ns: dict[int, list[list[int]]] = {}

    def decoded(self, replica: Any, ledger: Any, flight: Any) -> None:
        """An iteration is over: whoever decodes has one more token."""
        group = flight.group
        for request, life in replica.lives.items():
            if flight.ticks and request.group is group and not replica._late:
                account = copy.copy(life.account)
                account.ns = account.ns.copy()
                if isinstance(account, FollowedAccount):
                    account.parts = []  # those of the copy
                ledger.left(account, group, group.clock - request.since, now_ns(replica.env), 0)
                self.ns.setdefault(request.index, []).append(account.ns)

    def delivered(self, life: Lifetime, tokens: int) -> None:
        """Tokens came at this instant, otherwise."""
        assert life.account is not None
        self.ns.setdefault(life.arrival.index, []).extend([life.account.ns.copy()] * tokens)

    def assert_same_gaps(self, result: SimulationResult) -> None:
        """Each single gap of each request is split as these readings say."""
        splits = result.gap_splits()
        assert splits is not None
        for index in result.requests["index"].tolist():
            read = np.diff(np.array(self.ns.get(index, [])).reshape(-1, len(PHASES)), axis=0)
            gaps = splits.of(index)
            assert gaps.ns.tolist() == np.diff(result.token_times_ns(index)).tolist()
            assert splits.split(gaps).tolist() == read.tolist(), index


@contextmanager
def token_by_token() -> Iterator[TokenByToken]:
    """Runs meanwhile are read token by token."""
    found, patch = TokenByToken(), pytest.MonkeyPatch()
    bill, deliver = ReplicaEnds._bill, Lifetime.deliver

    def billed(self: Any, ledger: Any, flight: Any, n: int) -> None:
        bill(self, ledger, flight, n)
        found.decoded(self, ledger, flight)

    def delivered(self: Lifetime, tokens: int, now: int) -> None:
        deliver(self, tokens, now)
        found.delivered(self, tokens)

    patch.setattr(ReplicaEnds, "_bill", billed)
    patch.setattr(Lifetime, "deliver", delivered)
    try:
        yield found
    finally:
        patch.undo()
