"""What has to be true of where the time of requests went, in any run that attributes it."""

from __future__ import annotations

import numpy as np

from sim.attribution import E2E_COLUMNS, PHASES, TTFT_COLUMNS
from sim.records import SimulationResult

MAY_BE_NEGATIVE = {
    *("prefill_others", "prefill_decodes", "decode_host", "decode_others", "decode_prefills"),
    *("padding", "noise", "slow", "bubble"),
}
"""Differences of two step times; all else is time that passed."""


def assert_adds_up(result: SimulationResult) -> None:
    """The phases of each request are its E2E, and its TTFT, exactly; nothing is left over."""
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
    for phase in ("other", "queue_other"):
        assert not table[f"e2e_{phase}_ns"].any(), phase


def assert_alike(one: SimulationResult, other: SimulationResult) -> None:
    """Two runs attribute the very same ns."""
    for name in (*E2E_COLUMNS, *TTFT_COLUMNS):
        assert one.requests[name].tolist() == other.requests[name].tolist(), name
