"""`phasewise check-policy`: contract checks on a user's policy or router, a failure made small."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments import options as plugins
from experiments.contract import CHECKS, BreachError, Subject, Trial, Workload, random_workload
from experiments.shrink import shrink
from sim.errors import ConfigError, PhasewiseError
from sim.policy import Policy, Router


@dataclass(frozen=True)
class Failure:
    """The first check that failed.

    Attributes:
        check: Its name.
        message: What was found on the shrunk workload.
        workload: The smallest workload found on which the check fails.
    """

    check: str
    message: str
    workload: Workload


@dataclass(frozen=True)
class Report:
    """What checking gave.

    Attributes:
        name: What was checked.
        workloads: Workloads on which every check held.
        refused: Workloads that the policy's own `check` refused as a configuration.
        failure: The first failure, or None.
    """

    name: str
    workloads: int
    refused: int
    failure: Failure | None

    def __str__(self) -> str:
        ran = f"{self.workloads} random workloads"
        if self.refused:
            ran += f" ({self.refused} more refused by its own check())"
        if self.failure is None:
            return f"{self.name}: all {len(CHECKS)} checks hold on {ran}"
        return (
            f"{self.name}: after {ran}: {self.failure.check}: no\n{self.failure.message}\n"
            f"smallest workload found:\n{_text(self.failure.workload)}"
        )


def check_policy(
    name: str,
    *,
    workloads: int = 200,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
    folder: Path = Path(),
    progress: Callable[[int], None] | None = None,
) -> Report:
    """Run every contract check on random workloads; stop at the first that fails, and shrink it.

    Args:
        name: A shipped policy or router, or the user's own as ``module:Class``.
        workloads: How many random workloads.
        seed: The first one's number.
        options: Options of the policy or router; defaults where absent.
        folder: Where the module is looked for first.
        progress: Called with the number of workloads done.

    Raises:
        ConfigError: There is no such policy or router, or it refuses its options.
    """
    subject = load_subject(name, options or {}, folder)
    passed = refused = 0
    for number in range(seed, seed + workloads):
        workload = random_workload(number)
        try:
            failure = _first_failure(subject, workload)
        except PhasewiseError:
            refused += 1
            continue
        if failure is not None:
            return Report(name, passed, refused, _shrunk(subject, failure))
        passed += 1
        if progress is not None:
            progress(number - seed + 1)
    if not passed:
        raise ConfigError(
            f"{name} refuses every workload; its check() asks too much of the options"
        )
    return Report(name, passed, refused, None)


def load_subject(name: str, options: Mapping[str, Any], folder: Path = Path()) -> Subject:
    """The policy or router of a name, with the other part ordinary."""
    from policies import POLICIES, ROUTERS

    found = plugins.find("policy or router", name, {**POLICIES, **ROUTERS}, "check-policy", folder)
    plugins.build(found, options, name, "check-policy")  # refuses bad options in one line
    if issubclass(found, Policy):
        return Subject(name, found, ROUTERS["round-robin"], options)
    if issubclass(found, Router):
        return Subject(name, POLICIES["vllm-v1"], found, options, is_router=True)
    raise ConfigError(
        f"check-policy: {name} is neither a sim.policy.Policy nor a sim.policy.Router"
    )


def _first_failure(subject: Subject, workload: Workload) -> Failure | None:
    trial = Trial(subject, workload)
    for check, function in CHECKS.items():
        try:
            function(trial)
        except BreachError as error:
            if error.workload is not None:  # the run itself broke down, in whatever check
                return Failure(next(iter(CHECKS)), str(error), error.workload)
            return Failure(check, str(error), workload)
    return None


def _shrunk(subject: Subject, failure: Failure) -> Failure:
    function = CHECKS[failure.check]

    def message(workload: Workload) -> str | None:
        try:
            function(Trial(subject, workload))
        except BreachError as error:
            return str(error)
        except Exception:  # no workload any more: shrinking knows nothing of what values mean
            return None
        return None

    small = shrink(failure.workload, lambda workload: message(workload) is not None, 1500)
    return Failure(failure.check, message(small) or failure.message, small)


def _text(workload: Workload) -> str:
    """JSON with one request or replica a line."""
    lines = []
    for key, value in workload.items():
        if isinstance(value, list):
            entries = ",\n".join(f"    {json.dumps(entry)}" for entry in value)
            lines.append(f"  {json.dumps(key)}: [\n{entries}\n  ]")
        else:
            lines.append(f"  {json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}"
