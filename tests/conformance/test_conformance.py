"""Random small workloads, compared with the reference token time by token time.

`make test` runs 1,000 of them, `make slow` the next 1,000, `make conformance N=20000` as many as it
says. What differs is shrunk, printed and kept in `cases/`, where `test_cases.py` runs it without
the reference.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.conformance.cases import observe_reference
from tests.conformance.check import compare, shrink_mismatch
from tests.conformance.coverage import Coverage, features
from tests.conformance.reference import load_reference
from tests.conformance.workloads import workload

WORKLOADS = int(os.environ.get("PHASEWISE_CONFORMANCE_N", "1000"))
CHUNK = 100
"""Workloads of one test, so that a run spreads over processes."""

CHUNKS = range(0, WORKLOADS, CHUNK)
MORE = range(WORKLOADS, 2000 if "PHASEWISE_CONFORMANCE_N" not in os.environ else WORKLOADS, CHUNK)
"""Chunks of the slow tests; none where `make conformance` says how many."""

FEWEST_TO_JUDGE = 1000
"""Workloads below which shares say nothing about the generator."""


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of this run share."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "conformance"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.mark.parametrize("first", CHUNKS)
def test_token_times_and_decisions_equal_the_reference(
    first: int, shared: Path, run_folder: Path, record_property: pytest.RecordProperty
) -> None:
    covered = _compared(shared, first, min(first + CHUNK, WORKLOADS))
    record_property("coverage", covered.as_json())
    _judge_with_the_last_chunk(run_folder, first, covered)


@pytest.mark.slow
@pytest.mark.parametrize("first", MORE)
def test_token_times_and_decisions_of_more_equal_the_reference(first: int, shared: Path) -> None:
    _compared(shared, first, first + CHUNK)


def _compared(shared: Path, first: int, end: int) -> Coverage:
    reference = load_reference(shared)
    covered = Coverage()
    for seed in range(first, end):
        spec = workload(seed)
        result = reference.simulate(**spec)
        covered.add(features(spec, result))
        if compare(spec, observe_reference(spec, result)):
            pytest.fail(f"workload {seed}: {shrink_mismatch(reference, spec, seed)}", pytrace=False)
    return covered


def _judge_with_the_last_chunk(folder: Path, first: int, covered: Coverage) -> None:
    """The chunk that ends last sees the counts of all, and fails if something was rare."""
    (folder / f"{first}.json").write_text(json.dumps(covered.as_json()))
    parts = list(folder.glob("*.json"))
    if len(parts) < len(CHUNKS) or WORKLOADS < FEWEST_TO_JUDGE:
        return
    total = Coverage()
    for part in parts:
        total.merge(Coverage.from_json(json.loads(part.read_text())))
    assert not total.rare(), f"under 5 % of the workloads had {total.rare()}:\n{total.report()}"
