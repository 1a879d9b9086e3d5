"""Runs cases: imports their tables, simulates, compares, and says which bars are met."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from experiments.validation import case as cases
from experiments.validation import data
from experiments.validation.case import Case
from experiments.validation.outcome import Outcome
from sim.errors import ConfigError, nearest

KINDS = ("replay", "sweep", "offline", "steps", "transfer")
"""Modules that run cases, each with `run`."""

PROFILES = "profiles"
"""Folder of imported data sets, below that of the results."""


def run_cases(
    names: Iterable[str], out: Path, told: Callable[[Outcome], None] = lambda outcome: None
) -> list[Outcome]:
    """Run some cases, in the order of their numbers.

    Args:
        names: Of cases; none for all.
        out: Folder of the results; imported tables are kept there.
        told: Called with each outcome.

    Raises:
        ConfigError: No such case, no measured data, a case that says what cannot be run.
    """
    chosen = [cases.load(name) for name in list(names) or cases.names()]
    measured = data.measured_folder()
    outcomes = []
    for each in chosen:
        outcome = run_case(each, measured, out / PROFILES)
        outcomes.append(outcome)
        told(outcome)
    return outcomes


def run_case(case: Case, measured: Path, cache: Path) -> Outcome:
    """Run one case.

    Args:
        case: The case.
        measured: Folder of measured data.
        cache: Folder of imported data sets.
    """
    if case.kind not in KINDS:
        raise ConfigError(f"{case.name}: kind: {case.kind}{nearest(case.kind, KINDS)}")
    folders = data.profiles(case.profiles, measured, cache)
    outcome = Outcome(case)
    import_module(f"experiments.validation.{case.kind}").run(
        outcome, with_tables(case.config, folders), measured
    )
    outcome.judge()
    return outcome


def with_tables(config: Mapping[str, Any], folders: Iterable[Path]) -> dict[str, Any]:
    """The config with the folders of imported tables where its step times are from tables."""
    step_time = config.get("step_time")
    if not isinstance(step_time, Mapping) or step_time.get("model") != "profile":
        return dict(config)
    given = {**step_time, "data": [str(folder) for folder in folders]}
    return {**config, "step_time": given}
