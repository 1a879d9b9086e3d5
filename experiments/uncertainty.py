"""What replications say: how sure each number is, and which variants differ.

Numbers are those of tables: requests that were never served are left out of latencies. A variant
whose seeds make no difference (recorded arrivals, nothing drawn) has one run, of which `BATCHES`
parts stand for replications where its numbers allow that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.bundle import Bundle
from experiments.quantity import Quantity, Sample, read_quantity
from experiments.statistics.intervals import BATCHES, Interval, Refusal, batches, mean
from experiments.statistics.pairs import Difference, paired_difference
from experiments.statistics.warm_up import WarmUp, mser
from sim.errors import ConfigError
from sim.metrics import NS_PER_S, e2e_s
from sim.records import FINISHED
from sim.slo import Windows

COMPARED = (
    "ttft_s.mean",
    "ttft_s.p50",
    "ttft_s.p99",
    "tpot_s.p50",
    "tpot_s.p99",
    "itl_s.p99",
    "e2e_s.p50",
    "e2e_s.p99",
    "throughput_out_per_gpu_tokens_per_s",
    "slo_attainment",
)
"""What the table of variants compares."""

BY_TARGETS = ("goodput", "slo_attainment")
"""Metrics that count requests by the targets of the config."""
_STATISTICS = ("mean", "p50", "p90", "p95", "p99")
WORTH_SAYING = 0.02
"""Share by which a start from empty has to move the mean E2E for a note on the warm-up."""


@dataclass(frozen=True)
class Repeated:
    """One variant with all its runs.

    Attributes:
        label: Of the variant.
        runs: In the order of their replications.
        drawn: There are several runs, and they differ; else only the first one counts.
        seeds: Of all runs that there were, before those equal to the first were left out.
    """

    label: str
    runs: tuple[Bundle, ...]
    drawn: bool
    seeds: tuple[int, ...]

    @property
    def given(self) -> int:
        """Runs that there were."""
        return len(self.seeds)

    @staticmethod
    def of(label: str, runs: Sequence[Bundle]) -> Repeated:
        """Several runs of a variant, or the one that they all are."""
        drawn = any(differ(runs[0], each) for each in runs[1:])
        seeds = tuple(run.config["seed"] for run in runs)
        return Repeated(label, tuple(runs if drawn else runs[:1]), drawn, seeds)

    def of_seeds(self) -> tuple[Bundle, ...]:
        """A run for each of `seeds`: where nothing is drawn, the one run is that of all of them."""
        return self.runs if self.drawn else self.runs * len(self.seeds)

    def samples(self, quantity: Quantity) -> list[Sample]:
        """What the runs say of a quantity; of one run, what its batches say if they can.

        Raises:
            ConfigError: The runs do not have it.
        """
        samples = [quantity.sample(run, lost_are_late=False) for run in self.runs]
        if len(samples) > 1 or samples[0].values is None:
            return samples
        parts = batches(samples[0].values, BATCHES)
        return [Sample(part, math.nan) for part in parts] or samples

    def interval(self, quantity: Quantity) -> Interval | Refusal:
        """A number of the variant with its confidence interval; a refusal if it has none."""
        if _lacks(self, quantity):
            return Refusal(math.nan, f"{self.label} has no such number")
        found = quantity.interval(self.samples(quantity))
        if self.drawn or not isinstance(found, Refusal):
            return found
        return Refusal(found.estimate, found.reason, None, _times_batches(found))

    def warm_up(self) -> tuple[WarmUp, float]:
        """What MSER says of E2E in order of arrival, mean over the runs, and how long that is, s.

        Means over runs of the n-th request each, as Welch's procedure takes them, are less noisy
        than one run (Law, Simulation Modeling and Analysis, 5th ed., section 9.5.1).
        """
        measured = [_finished_e2e(run) for run in self.runs]
        shortest = min(len(latency) for _, latency in measured)
        if not shortest:
            return mser(np.empty(0)), 0.0
        averaged = np.mean([latency[:shortest] for _, latency in measured], axis=0)
        found = mser(averaged)
        since = np.mean([arrival[min(found.skip, shortest - 1)] for arrival, _ in measured])
        return found, float(since)


def _times_batches(refusal: Refusal) -> int | None:
    """Requests of a whole run, where those of a batch are too few."""
    return None if refusal.needs_requests is None else refusal.needs_requests * BATCHES


def differ(one: Bundle, other: Bundle) -> bool:
    """Whether two runs are not the same run: requests came or ended at other times."""
    first, second = one.requests, other.requests
    same_length = len(first["arrival_ns"]) == len(second["arrival_ns"])
    return not same_length or any(
        (first[name] != second[name]).any() for name in ("arrival_ns", "end_ns")
    )


def _finished_e2e(run: Bundle) -> tuple[Any, Any]:
    """Arrival since the start of the window, s, and E2E of its finished requests, by arrival."""
    window = Windows(run.summary["window"]["warm_up_s"], run.summary["window"]["drain_s"])
    arrival_ns, latency = run.requests["arrival_ns"], e2e_s(run.requests)
    kept = window.mask(arrival_ns) & ~np.isnan(latency)
    order = np.argsort(arrival_ns[kept], kind="stable")
    since = (arrival_ns[kept][order] - window.bounds_ns(arrival_ns)[0]) / NS_PER_S
    return since, latency[kept][order]


def difference(one: Repeated, other: Repeated, quantity: Quantity) -> Difference | Refusal:
    """Another variant against one: over runs with the same seeds, or over the same requests.

    Runs are paired by their seeds where either variant draws anything; where the other one draws
    nothing, its one run is that of every seed. Where neither does, or there is one run of each, and
    both served the same requests at the same times, the mean has an interval of the differences
    request by request, in `BATCHES` parts of the run, and a percentile one of its differences part
    by part.
    """
    for each in (one, other):
        if _lacks(each, quantity):
            return Refusal(math.nan, f"{each.label} has no such number")
    if quantity.metric.key in BY_TARGETS and _targets(one) != _targets(other):
        return Refusal(math.nan, "their slo differs, so that it counts other targets")
    if one.drawn or other.drawn:
        return _over_seeds(one, other, quantity)
    if (why := _other_requests(one.runs[0], other.runs[0])) is not None:
        return Refusal(math.nan, why)
    for each in (one, other):
        if quantity.percentile is not None and isinstance(own := each.interval(quantity), Refusal):
            return own
    return _over_requests(one.runs[0], other.runs[0], quantity)


def _targets(variant: Repeated) -> Any:
    return variant.runs[0].summary["slo"]


def _over_seeds(one: Repeated, other: Repeated, quantity: Quantity) -> Difference | Refusal:
    if one.seeds != other.seeds:
        counts = f"{one.given} and {other.given} runs"
        why = f"there are {counts}" if one.given != other.given else "their runs have other seeds"
        return Refusal(math.nan, f"{why}; give both the same seed and replications")
    first, second = (
        quantity.of_runs([quantity.sample(run, lost_are_late=False) for run in each.of_seeds()])
        for each in (one, other)
    )
    return paired_difference(first, second)


def _other_requests(one: Bundle, other: Bundle) -> str | None:
    """Why two runs cannot be compared request by request; None if they can.

    What counts is which requests came, how long they were and when: not where they ran, nor what
    failed there.
    """
    first, second = one.requests, other.requests
    if len(first["index"]) != len(second["index"]):
        counts = f"{len(first['index']):,} and {len(second['index']):,}"
        return f"they served other requests ({counts} of them)"
    if any((first[x] != second[x]).any() for x in ("index", "prompt_tokens", "output_tokens")):
        return "they served other requests"
    if (first["arrival_ns"] != second["arrival_ns"]).any():
        return "they served the same requests at other times"
    return None


def _over_requests(one: Bundle, other: Bundle, quantity: Quantity) -> Difference | Refusal:
    values = [quantity.per_request(run, lost_are_late=False) for run in (one, other)]
    first, second = values
    if first is None or second is None or len(first) != len(second):
        return Refusal(math.nan, "is a number of a whole run; give both some replications")
    both = ~(np.isnan(first) | np.isnan(second))
    pairs = [batches(each[both], BATCHES) for each in (first, second)]
    if not pairs[0]:
        return Refusal(math.nan, _too_few(int(both.sum())))
    if quantity.percentile is not None:
        return paired_difference(
            [quantity.of_values(part) for part in pairs[0]],
            [quantity.of_values(part) for part in pairs[1]],
        )
    found = mean([b - a for a, b in zip(*pairs, strict=True)])
    if isinstance(found, Refusal):
        return Refusal(found.estimate, found.reason, None, _times_batches(found))
    return Difference(float(first[both].mean()), float(second[both].mean()), found)


def _too_few(served: int) -> str:
    if not served:
        return "no request was served in both"
    return f"only {served:,} requests were served in both, too few for {BATCHES} parts"


def compared(variants: Sequence[Repeated]) -> list[Quantity]:
    """Those of `COMPARED` that any variant has."""
    quantities = [read_quantity(text, "replications") for text in COMPARED]
    return [each for each in quantities if any(_has(variant, each) for variant in variants)]


def _lacks(variant: Repeated, quantity: Quantity) -> bool:
    """Whether its runs do not have the quantity at all, such as attainment without targets."""
    try:
        variant.samples(quantity)
    except ConfigError:
        return True
    return False


def _has(variant: Repeated, quantity: Quantity) -> bool:
    try:
        samples = variant.samples(quantity)
    except ConfigError:
        return False
    return any(
        not math.isnan(sample.number) if sample.values is None else len(sample.values)
        for sample in samples
    )


def every_quantity(variant: Repeated) -> Iterator[Quantity]:
    """All that its summary has a number of."""
    for name, value in variant.runs[0].summary["overall"].items():
        statistics = _STATISTICS if isinstance(value, Mapping) else ("",)
        for statistic in statistics:
            quantity = read_quantity(f"{name}.{statistic}".rstrip("."), "replications")
            if value is not None and _has(variant, quantity):
                yield quantity


def warnings(variants: Sequence[Repeated]) -> list[str]:
    """What a reader has to know of the runs: nothing drawn, a start that shows, runs too short."""
    notes = []
    for each in variants:
        if not any((run.requests["state"] == FINISHED).any() for run in each.runs):
            notes.append(f"{each.label}: no request was served, so that no latency is known.")
            continue
        if not each.drawn:
            why = (
                "one run" if each.given == 1 else "other seeds give the same run: nothing is drawn"
            )
            notes.append(f"{each.label}: {why}; intervals are over {BATCHES} parts of it.")
        notes += _of_warm_up(each)
    return notes


def _of_warm_up(variant: Repeated) -> list[str]:
    found, since_s = variant.warm_up()
    if not found.found:
        return [
            f"{variant.label}: E2E does not settle before half of the run (MSER): it is too short "
            "for its load, or overloaded."
        ]
    if abs(found.shift) < WORTH_SAYING:
        return []
    return [
        f"{variant.label}: the start from empty moves the mean E2E by {found.shift:+.1%} (MSER); "
        f"warm_up_s: {variant.runs[0].summary['window']['warm_up_s'] + since_s:.3g} leaves it out."
    ]
