"""What a search changes: the rate of the workload, or any key of the config."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.capacity.search import Scale
from experiments.config import Plan
from experiments.schema import Arrivals, Experiment, Part, Source, Workload
from sim.errors import ConfigError

LoadPlan = Callable[[Mapping[str, Any]], Plan]
"""Reads the config again with overrides that have the last word."""


@dataclass(frozen=True)
class Varied:
    """What is changed in one variant.

    Attributes:
        name: Of the key, also in the folder of a point.
        unit: Of its values, for people; may be empty.
        start: Where a search begins.
        scale: Of its values.
        at: The experiment with a value.
    """

    name: str
    unit: str
    start: float
    scale: Scale
    at: Callable[[float], Experiment]

    def said(self, value: float) -> str:
        """A value with its unit."""
        text = f"{value:,.0f}" if self.scale.whole else f"{value:.4g}"
        return f"{text} {self.unit}".strip()


LOWEST_RATE, HIGHEST_RATE = 1e-6, 1e6
"""Bounds of a rate or factor in a config (`experiments.schema.Ratio`)."""

MOST_WHOLE = 10**6


def rate_of(experiment: Experiment, precision: float, start: float | None, where: str) -> Varied:
    """The rate at which requests (sessions, where they are in closed loop) arrive.

    What is changed, by what the workload has: ``arrivals.rate_per_s`` where arrivals are drawn at a
    rate, or of a mix with shares; ``arrivals.speedup`` of recorded times; and of a mix whose parts
    have rates of their own, all these at once by one factor.

    Args:
        experiment: Of the variant.
        precision: Relative width of the final bracket.
        start: Where to begin; None for the rate of the config, or 1.
        where: File and variant, for messages.

    Raises:
        ConfigError: A closed loop has no rate.
    """
    workload = experiment.workload
    key, own = _rate_key(workload, f"{where}: workload")
    units = {"rate_per_s": "a second", "speedup": "x recorded", "factor": "x as given"}
    scale = Scale(precision, LOWEST_RATE, HIGHEST_RATE)

    def at(value: float) -> Experiment:
        return experiment.model_copy(update={"workload": _with_rate(workload, key, value)})

    return Varied(f"workload.arrivals.{key}", units[key], start or own or 1.0, scale, at)


def key_of(
    name: str,
    load: LoadPlan,
    position: int,
    *,
    start: float | None,
    hard_is_high: bool,
) -> Varied:
    """Any whole-numbered key, such as ``replicas``, ``tensor_parallel`` or a concurrency.

    Args:
        name: Dotted, as after ``--set``.
        load: Reads the config with overrides.
        position: Of the variant.
        start: Where to begin; None for 1.
        hard_is_high: Larger values make the goal harder to meet.
    """

    def at(value: float) -> Experiment:
        return with_keys(load, position, {name: int(value)})

    scale = Scale(0, 1, MOST_WHOLE, hard_is_high)
    return Varied(name, "", float(start or 1), scale, at)


def with_keys(load: LoadPlan, position: int, keys: Mapping[str, Any]) -> Experiment:
    """A variant with other values of some keys, under its own label."""
    label = load({}).variants[position].label
    return load(keys).variants[position].model_copy(update={"label": label})


def _rate_key(workload: Workload, where: str) -> tuple[str, float | None]:
    """Which key sets the rate, and its value in the config."""
    parts: Sequence[Source] = [workload] if workload.mix is None else workload.mix
    for at, part in enumerate(parts):
        if part.arrivals.process == "closed-loop" or part.arrivals.concurrency is not None:
            place = where if workload.mix is None else f"{where}.mix[{at}]"
            raise ConfigError(
                f"{place}.arrivals: closed-loop: has no rate to search; "
                f"try --highest {place.rpartition(': ')[2]}.arrivals.concurrency"
            )
    if workload.mix is not None:
        if workload.arrivals.rate_per_s is not None:
            return "rate_per_s", workload.arrivals.rate_per_s
        for at, part in enumerate(workload.mix):
            _check_has_rate(part, f"{where}.mix[{at}]")
        return "factor", 1.0
    arrivals = workload.arrivals
    if workload.preset is None and arrivals.process in (None, "recorded"):
        return "speedup", arrivals.speedup
    if arrivals.process == "burst" and arrivals.burst_requests is None:
        raise ConfigError(
            f"{where}.arrivals: burst: all requests come at once, at no rate; give burst_requests"
        )
    return "rate_per_s", arrivals.rate_per_s


def _check_has_rate(part: Part, where: str) -> None:
    recorded = part.preset is None and part.arrivals.process in (None, "recorded")
    if part.arrivals.rate_per_s is None and not recorded:
        raise ConfigError(f"{where}.arrivals.rate_per_s: is required where a mix is sped up")


def _with_rate(workload: Workload, key: str, value: float) -> Workload:
    if key != "factor":
        arrivals = workload.arrivals.model_copy(update={key: value})
        return workload.model_copy(update={"arrivals": arrivals})
    assert workload.mix is not None
    mix = [
        part.model_copy(update={"arrivals": _times(part.arrivals, value)}) for part in workload.mix
    ]
    return workload.model_copy(update={"mix": mix})


def _times(arrivals: Arrivals, factor: float) -> Arrivals:
    key = "speedup" if arrivals.rate_per_s is None else "rate_per_s"
    return arrivals.model_copy(update={key: getattr(arrivals, key) * factor})
