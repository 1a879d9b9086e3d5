"""What has to hold at a load, such as ``ttft_s.p99 <= 0.5 and classes.chat.tpot_s.mean < 0.03``.

A goal is one or several terms joined by ``and``: ``[classes.NAME.]METRIC[.STATISTIC]``, a relation,
and a number. Metrics are those of ``phasewise metrics``; a statistic is ``mean``, ``min``, ``max``
or a percentile, ``p99`` or ``p99.9``, of which any one can be asked for.

Values of a goal differ from those of a table in one point: a request that was rejected, failed or
never finished counts as infinitely late in every latency that is asked for, whereas a table leaves
it out. Otherwise refusing requests would help to meet a goal. Requests that their clients gave up
count with what they have; what a request cannot have (TPOT of one token) is left out.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from experiments.bundle import Bundle
from experiments.names import unknown
from experiments.report import metrics_of
from experiments.statistics import intervals
from experiments.statistics.intervals import Interval, Refusal
from sim.errors import ConfigError
from sim.metric_definitions import METRICS, Metric
from sim.metrics import NS_PER_S, PER_REQUEST, Floats, Gaps, Requests, merge_gaps
from sim.records import STATES
from sim.slo import SLO, Windows, request_classes, select

_TERM = re.compile(r"\s*(?P<what>.+?)\s*(?P<relation><=|>=|<|>)\s*(?P<target>[^\s<>=]+)\s*")
_PERCENTILE = re.compile(r"p(\d{1,2}(?:\.\d+)?)$")
_BY_NAME: Mapping[str, Metric] = MappingProxyType({m.name_in_files: m for m in METRICS.values()})
_RELATIONS = MappingProxyType(
    {"<=": operator.le, "<": operator.lt, ">=": operator.ge, ">": operator.gt}
)
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

    def sample(self, bundle: Bundle) -> Sample:
        """What a run says of it.

        Raises:
            ConfigError: The run does not have this class or metric.
        """
        requests = self._measured(bundle)
        key = self.metric.key
        if key == "slo_attainment":
            return Sample(_met(bundle, requests, self.request_class), math.nan)
        if not self.statistic:
            return Sample(None, self._single(bundle))
        if key == "itl":
            return Sample(None, self._of_gaps(_gaps(bundle, self.request_class), requests))
        if key in PER_REQUEST:
            values = PER_REQUEST[key](requests)
            values = np.where(np.isin(requests["state"], _LOST), np.inf, values)
            return Sample(values[~np.isnan(values)], math.nan)
        return Sample(None, self._single(bundle))

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
            return intervals.share(groups)
        estimate = self.of_values(np.concatenate(groups)) if groups else math.nan
        if not math.isfinite(estimate):
            return Refusal(estimate, "requests that were never served are infinitely late")
        if (p := self.percentile) is not None:
            return intervals.quantile(groups, p)
        if self.statistic == "mean":
            return intervals.mean(groups)
        return Refusal(estimate, f"a {self.statistic} has no interval")

    @property
    def percentile(self) -> float | None:
        """Between 0 and 1; None if it is none."""
        found = _PERCENTILE.match(self.statistic)
        return float(found[1]) / 100 if found else None

    def _measured(self, bundle: Bundle) -> Requests:
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

    def _single(self, bundle: Bundle) -> float:
        block = metrics_of(bundle, self.request_class or None)
        value: Any = block.get(self.metric.name_in_files)
        if isinstance(value, Mapping):
            value = value.get(self.statistic)
        if value is None:
            raise ConfigError(
                f"goal: {self.text}: {bundle.label} has no such number; {self.metric.definition}"
            )
        return float(value)

    def _of_gaps(self, gaps: Gaps, requests: Requests) -> float:
        gap_ns, count = gaps
        if np.isin(requests["state"], _LOST).any() and self.statistic in ("mean", "max"):
            return math.inf
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
        values: One per request, infinite for those never served; None where there is only a number.
        number: The quantity itself where there are no values.
    """

    values: Floats | None
    number: float


@dataclass(frozen=True)
class Term:
    """One comparison of a goal.

    Attributes:
        quantity: What is compared.
        relation: ``<=``, ``<``, ``>=`` or ``>``.
        target: With what.
    """

    quantity: Quantity
    relation: str
    target: float

    def __str__(self) -> str:
        return f"{self.quantity.text} {self.relation} {self.target:g}"

    def holds(self, value: float) -> bool:
        """Whether a value meets it; NaN, no value at all, does not."""
        return bool(_RELATIONS[self.relation](value, self.target))


@dataclass(frozen=True)
class Goal:
    """What has to hold, all of it."""

    terms: tuple[Term, ...]

    def __str__(self) -> str:
        return " and ".join(map(str, self.terms))


def read_goal(text: str) -> Goal:
    """Read a goal.

    Raises:
        ConfigError: One line: what cannot be read, or is no metric or statistic.
    """
    return Goal(tuple(_term(part, text) for part in re.split(r"\band\b", text)))


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


def _term(part: str, text: str) -> Term:
    found = _TERM.fullmatch(part)
    if found is None:
        raise ConfigError(
            f"goal: {text.strip()}: cannot read {part.strip()!r}; expected such as "
            "ttft_s.p99 <= 0.5, several joined by and"
        )
    try:
        target = float(found["target"])
    except ValueError:
        target = math.nan
    if not math.isfinite(target):
        raise ConfigError(f"goal: {part.strip()}: {found['target']} is no number")
    return Term(read_quantity(found["what"], "goal"), found["relation"], target)


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


def _met(bundle: Bundle, requests: Requests, request_class: str) -> Floats:
    slo = _slo(bundle.summary["slo"])
    slo = slo.for_class(request_class) if request_class else slo
    if not slo.has_targets:
        raise ConfigError("goal: slo_attainment: the config has no slo; give one, or another goal")
    return slo.met(requests).astype(np.float64)


def _slo(targets: Mapping[str, Any]) -> SLO:
    classes = {name: _slo(each) for name, each in targets.get("classes", {}).items()}
    own = {name: value for name, value in targets.items() if name != "classes"}
    return SLO(**own, classes=classes)


def _gaps(bundle: Bundle, request_class: str) -> Gaps:
    if request_class:
        return bundle.itl.get(request_class, merge_gaps([]))
    return merge_gaps(bundle.itl.values())
