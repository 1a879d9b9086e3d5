"""Prints what the random workloads of a run covered."""

from __future__ import annotations

import pytest

from tests.conformance.coverage import Coverage


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Add up the counts of all chunks."""
    total = Coverage()
    for report in terminalreporter.stats.get("passed", []):
        for name, value in report.user_properties:
            if name == "coverage":
                total.merge(Coverage.from_json(value))
    if total.workloads:
        terminalreporter.write_line(total.report())
