"""One number of a run by its name, such as ``classes.chat.ttft_s.p99``, and how sure it is."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from experiments.names import unknown
from experiments.report import RunBundle, metrics_of
from experiments.statistics import intervals
from experiments.statistics.intervals import Interval, Refusal
from sim.errors import ConfigError
from sim.metric_definitions import METRICS, Metric
from sim.metrics import NS_PER_S, PER_REQUEST, Bools, Floats, Gaps, Requests, merge_gaps
from sim.records import STATES
from sim.slo import SLO, Windows, request_classes, select

_PERCENTILE = re.compile(r"p(\d{1,2}(?:\.\d+)?)$")
_BY_NAME: Mapping[str, Metric] = MappingProxyType({m.name_in_files: m for m in METRICS.values()})
_LOST = tuple(STATES.index(state) for state in ("rejected", "failed", "unfinished"))


@dataclass(frozen=True)
class Quantity:
    """One number of a run, such as ``classes.chat.ttft_s.p99``.

    Attributes:
        text: As written.
        metric: Which.
        statistic: ``mean``, ``min``, ``max``, ``p99`` and the like; empty for a single number.
        request_class: Of these requests only; empty for all.
    """

    text: str
    metric: Metric
    statistic: str
    request_class: str = ""

    @property
    def of_time(self) -> bool:
        """Whether it is a time, of which less is faster."""
        return self.metric.unit in ("s", "s/token")

    @property
    def of_whole_runs(self) -> bool:
        """Whether each run has one number of it: over several, it is the mean of these."""
        return self.metric.key != "slo_attainment" and self.metric.key not in PER_REQUEST

    def sample(self, bundle: RunBundle, *, lost_are_late: bool = True) -> Sample:
        """What a run says of it.

        Args:
            bundle: Of the run.
            lost_are_late: Requests that were never served count as infinitely late; else they are
                left out, as in tables.

        Raises:
            ConfigError: The run does not have this class or metric.
        """
        values = self.per_request(bundle, lost_are_late=lost_are_late)
        if values is not None:
            arrival_ns = self._measured(bundle)["arrival_ns"]
            order = np.argsort(arrival_ns, kind="stable")
            values = values[order]
            if self.metric.key == "slo_attainment":
                return Sample(values, math.nan, self._closeness(bundle)[order])
            return Sample(values[~np.isnan(values)], math.nan)
        if self.metric.key != "itl":
            return Sample(None, self._single(bundle))
        late = lost_are_late and self.statistic in ("mean", "max")
        if late and _lost(self._measured(bundle)).any():
            return Sample(None, math.inf)
        return Sample(None, self._of_gaps(_gaps(bundle, self.request_class)))

    def per_request(self, bundle: RunBundle, *, lost_are_late: bool) -> Floats | None:
        """Its value of each measured request in the order of the table, NaN where it has none.

        None if it is no quantity of single requests. Arguments and errors as of `sample`.
        """
        requests, key = self._measured(bundle), self.metric.key
        if key == "slo_attainment":
            return _met(bundle, requests, self.request_class)
        if key not in PER_REQUEST:
            return None
        values = PER_REQUEST[key](requests)
        return np.where(_lost(requests), np.inf, values) if lost_are_late else values

    def value(self, samples: Sequence[Sample]) -> float:
        """The number over several runs: of all their values, or the mean of their numbers."""
        if any(sample.values is None for sample in samples):
            return float(np.mean([sample.number for sample in samples]))
        return self.of_values(np.concatenate([s.values for s in samples if s.values is not None]))

    def of_values(self, values: Floats) -> float:
        """The statistic of the values of requests; NaN of none."""
        if not len(values):
            return math.nan
        if (p := self.percentile) is not None:
            return float(np.quantile(values, p, method="inverted_cdf"))
        reduce = {"min": np.min, "max": np.max}.get(self.statistic, np.mean)
        return float(reduce(values))

    def interval(self, samples: Sequence[Sample]) -> Interval | Refusal:
        """Its confidence interval over several runs with other seeds."""
        groups = [sample.values for sample in samples if sample.values is not None]
        if len(groups) < len(samples):
            return intervals.over_runs([sample.number for sample in samples])
        if self.metric.key == "slo_attainment":
            close = [sample.closeness for sample in samples if sample.closeness is not None]
            return intervals.share(groups, closeness=close if len(close) == len(groups) else None)
        estimate = self.of_values(np.concatenate(groups)) if groups else math.nan
        if not math.isfinite(estimate):
            return Refusal(estimate, "requests that were never served are infinitely late")
        if (p := self.percentile) is not None:
            return intervals.quantile(groups, p)
        if self.statistic == "mean":
            return intervals.mean(groups)
        return Refusal(estimate, f"a {self.statistic} has no interval")

    def of_runs(self, samples: Sequence[Sample]) -> list[float]:
        """The number of each run alone."""
        return [
            sample.number if sample.values is None else self.of_values(sample.values)
            for sample in samples
        ]

    @property
    def percentile(self) -> float | None:
        """Between 0 and 1; None if it is none."""
        found = _PERCENTILE.match(self.statistic)
        return float(found[1]) / 100 if found else None

    def _measured(self, bundle: RunBundle) -> Requests:
        windows = bundle.summary["window"]
        mask = Windows(windows["warm_up_s"], windows["drain_s"]).mask(bundle.requests["arrival_ns"])
        measured = select(bundle.requests, mask)
        if not self.request_class:
            return measured
        classes = request_classes(measured)
        if self.request_class not in classes:
            known = sorted(set(classes.tolist()))
            raise ConfigError(f"goal: {self.text}: {unknown('class', self.request_class, known)}")
        return select(measured, classes == self.request_class)

    def _closeness(self, bundle: RunBundle) -> Floats:
        return _slo_of(bundle, self.request_class).closeness(self._measured(bundle))

    def _single(self, bundle: RunBundle) -> float:
        block = metrics_of(bundle, self.request_class or None)
        value: Any = block.get(self.metric.name_in_files)
        if isinstance(value, Mapping):
            value = value.get(self.statistic)
        if value is None:
            raise ConfigError(
                f"goal: {self.text}: {bundle.label} has no such number; {self.metric.definition}"
            )
        return float(value)

    def _of_gaps(self, gaps: Gaps) -> float:
        gap_ns, count = gaps
        if not len(gap_ns):
            return math.nan
        if (p := self.percentile) is not None:
            ns = np.quantile(gap_ns, p, weights=count, method="inverted_cdf")
            return float(ns / NS_PER_S)
        if self.statistic == "mean":
            return float(np.average(gap_ns, weights=count) / NS_PER_S)
        return float((gap_ns[0] if self.statistic == "min" else gap_ns[-1]) / NS_PER_S)


@dataclass(frozen=True)
class Sample:
    """What one run says of a quantity.

    Attributes:
        values: One per request in order of arrival; None where there is only a number.
        number: The quantity itself where there are no values.
        closeness: Of SLO attainment, how near each request came to a miss (`SLO.closeness`), in the
            same order.
    """

    values: Floats | None
    number: float
    closeness: Floats | None = None


def read_quantity(text: str, option: str) -> Quantity:
    """Read what is to be best, such as ``ttft_s.p99``.

    Args:
        text: ``[classes.NAME.]METRIC[.STATISTIC]``.
        option: Where it was given, for messages.

    Raises:
        ConfigError: It is no metric, or not with this statistic.
    """
    rest, request_class = text.strip(), ""
    known = "|".join(sorted(map(re.escape, _BY_NAME), key=len, reverse=True))
    if found := re.match(rf"classes\.(.+)\.((?:{known})(?:\..+)?)$", rest):
        request_class, rest = found[1], found[2]
    name, _, statistic = rest.partition(".")
    if name not in _BY_NAME:
        raise ConfigError(f"{option}: {text}: {unknown('metric', name, _BY_NAME)}")
    metric = _BY_NAME[name]
    _check_statistic(metric, statistic, f"{option}: {text}")
    if request_class and not metric.of_requests:
        raise ConfigError(f"{option}: {text}: {name} is of the whole run; leave the class out")
    return Quantity(text.strip(), metric, statistic, request_class)


def _check_statistic(metric: Metric, statistic: str, where: str) -> None:
    if not metric.spread:
        if statistic:
            raise ConfigError(f"{where}: {metric.name_in_files} is one number; leave .{statistic}")
        return
    if not statistic:
        raise ConfigError(f"{where}: of what? add .mean, .max or a percentile such as .p99")
    found = _PERCENTILE.match(statistic)
    listed = metric.key in PER_REQUEST or metric.key == "itl"
    if found and listed and 0 < float(found[1]) < 100:
        return
    choices = ("mean", "min", "max", "p50", "p90", "p95", "p99")
    if statistic not in choices:
        raise ConfigError(f"{where}: {unknown('statistic', statistic, choices)}")


def _lost(requests: Requests) -> Bools:
    return np.asarray(np.isin(requests["state"], _LOST))


def _met(bundle: RunBundle, requests: Requests, request_class: str) -> Floats:
    slo = _slo_of(bundle, request_class)
    if not slo.has_targets:
        raise ConfigError("goal: slo_attainment: the config has no slo; give one, or another goal")
    return slo.met(requests).astype(np.float64)


def _slo_of(bundle: RunBundle, request_class: str) -> SLO:
    slo = _slo(bundle.summary["slo"])
    return slo.for_class(request_class) if request_class else slo


def _slo(targets: Mapping[str, Any]) -> SLO:
    classes = {name: _slo(each) for name, each in targets.get("classes", {}).items()}
    own = {name: value for name, value in targets.items() if name != "classes"}
    return SLO(**own, classes=classes)


def _gaps(bundle: RunBundle, request_class: str) -> Gaps:
    if request_class:
        return bundle.itl.get(request_class, merge_gaps([]))
    return merge_gaps(bundle.itl.values())
