"""Cases kept as text with their expected times: they run without the reference."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance import adapter
from tests.conformance.cases import (
    CASES,
    case_text,
    differences,
    observe_reference,
    read_case,
)
from tests.conformance.reference import load_reference

PATHS = sorted(CASES.glob("*.json"))


@pytest.mark.parametrize("fast_forward", [False, True], ids=["stepping", "fast-forward"])
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_kept_case_has_its_expected_times(path: Path, fast_forward: bool) -> None:
    why, spec, expected = read_case(path)

    got = adapter.observe(spec, fast_forward=fast_forward)

    assert differences(expected, got) == [], why


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_the_reference_agrees_with_a_kept_case(path: Path, shared: Path) -> None:
    _, spec, expected = read_case(path)

    result = load_reference(shared).simulate(**spec)

    assert differences(expected, observe_reference(spec, result)) == []


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_case_file_is_written_as_it_is_read(path: Path) -> None:
    assert case_text(*read_case(path)) == path.read_text()
