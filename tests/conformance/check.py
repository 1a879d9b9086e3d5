"""Compare one workload with the reference; shrink and keep it where the two differ."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from experiments.shrink import shrink
from tests.conformance import adapter
from tests.conformance.cases import CASES, Observed, differences, observe_reference, write_case
from tests.conformance.workloads import Spec

MOST_SHRINK_TRIES = 2000


@dataclass(frozen=True)
class Mismatch:
    """A workload on which we and the reference differ, made small.

    Attributes:
        spec: The shrunk workload.
        lines: What differs on it.
        path: The case file it was kept in, with the reference's times.
    """

    spec: Spec
    lines: list[str]
    path: Path

    def __str__(self) -> str:
        where = f"kept with the reference's times as {self.path.name}"
        return "\n".join([*self.lines, f"shrunk workload, {where}:", self.path.read_text()])


def compare(spec: Spec, expected: Observed) -> list[str]:
    """What differs from the expected, stepping every iteration and with fast-forward."""
    lines = []
    for name, fast_forward in (("stepping", False), ("fast-forward", True)):
        try:
            got = adapter.observe(spec, fast_forward=fast_forward)
        except Exception as error:  # whatever it is, it is a difference: shrink it too
            lines.append(f"{name}: {type(error).__name__}: {error}")
            continue
        lines += [f"{name}: {line}" for line in differences(expected, got)]
    return lines


def compare_with(reference: ModuleType, spec: Spec) -> list[str]:
    """What differs from the reference's result."""
    return compare(spec, observe_reference(spec, reference.simulate(**spec)))


def shrink_mismatch(reference: ModuleType, spec: Spec, seed: int, folder: Path = CASES) -> Mismatch:
    """The smallest workload found on which the two still differ, kept as a case file."""

    def fails(candidate: Any) -> bool:
        try:
            expected = observe_reference(candidate, reference.simulate(**candidate))
        except Exception:  # not a workload any more: the reference says what is one
            return False
        return bool(compare(candidate, expected))

    small = shrink(spec, fails, MOST_SHRINK_TRIES)
    expected = observe_reference(small, reference.simulate(**small))
    path = folder / f"seed-{seed}.json"
    write_case(path, f"shrunk from workload {seed}; name the rule here", small, expected)
    return Mismatch(small, compare(small, expected), path)
