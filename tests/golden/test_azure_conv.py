"""The policies on Azure's conversation trace, as figures that change only with a reason.

`PHASEWISE_UPDATE_GOLDEN=1` writes the table anew; say in the change why it moved.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import phasewise

TABLE = Path(__file__).with_name("azure_conv.csv")
"""Computed from azure_2023_conv_head.csv: Azure LLM inference trace 2023, conversations before
18:50 (Patel et al., Splitwise, ISCA 2024; CC-BY 4.0)."""

COLUMNS = (
    "arrived",
    "finished",
    "rejected",
    "unfinished",
    *(f"{name}.{part}" for name in ("ttft_s", "tpot_s", "e2e_s") for part in ("p50", "p99")),
    "preemptions",
    "recomputed_tokens",
)


@pytest.mark.slow
def test_every_policy_gives_the_same_table_on_the_real_trace(shared: Path) -> None:
    trace = str(shared / "traces" / "azure_2023_conv_head.csv")
    results = phasewise.run("policies_azure", **{"workload.trace": trace, "record.steps": False})
    frame = phasewise.metrics(results)[list(COLUMNS)]
    table = frame.to_csv(float_format="%.9g")

    if os.environ.get("PHASEWISE_UPDATE_GOLDEN"):
        TABLE.write_text(table)

    assert (frame.finished + frame.rejected + frame.unfinished == 11_997).all()
    assert table == TABLE.read_text()


@pytest.mark.slow
def test_every_row_of_the_code_trace_has_an_end_and_every_rejection_a_reason(shared: Path) -> None:
    trace = str(shared / "traces" / "azure_2023_code.csv")
    results = phasewise.run(
        "policies_azure",
        **{"workload.trace": trace, "workload.max_tokens": 2048, "record.steps": False},
    )

    for one in results:
        counts = one.summary["requests"]
        assert counts["arrived"] == 8_819
        assert counts["finished"] + counts["rejected"] + counts["unfinished"] == 8_819
        assert sum(one.summary["reasons"].values()) == counts["rejected"]
