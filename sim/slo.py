"""What is measured and what is asked for: the measurement window and service level objectives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from sim.errors import ConfigError
from sim.metrics import (
    NS_PER_S,
    Bools,
    Floats,
    Ints,
    Requests,
    e2e_s,
    finished,
    largest_itl_s,
    tpot_s,
    ttft_s,
)


@dataclass(frozen=True)
class Windows:
    """Arrivals at both ends of a run that are simulated but not measured.

    Attributes:
        warm_up_s: Length after the first arrival, seconds.
        drain_s: Length before the last arrival, seconds.
    """

    warm_up_s: float = 0.0
    drain_s: float = 0.0

    def bounds_ns(self, arrival_ns: Ints) -> tuple[int, int]:
        """First and last instant at which an arrival is measured, ns.

        Raises:
            ConfigError: If that leaves no instant.
        """
        if not len(arrival_ns):
            return 0, 0
        first, last = int(arrival_ns.min()), int(arrival_ns.max())
        start = first + round(self.warm_up_s * NS_PER_S)
        end = last - round(self.drain_s * NS_PER_S)
        if start > end:
            raise ConfigError(
                f"warm_up_s {self.warm_up_s:g} and drain_s {self.drain_s:g} leave nothing to "
                f"measure: arrivals span {(last - first) / NS_PER_S:g} s; give less in all"
            )
        return start, end

    def mask(self, arrival_ns: Ints) -> Bools:
        """Which requests are measured, shape (n,). Raises what `bounds_ns` raises."""
        start, end = self.bounds_ns(arrival_ns)
        return np.asarray((arrival_ns >= start) & (arrival_ns <= end))


def select(requests: Requests, mask: Bools) -> dict[str, npt.NDArray[Any]]:
    """The rows of every column for which `mask` holds."""
    return {name: column[mask] for name, column in requests.items()}


NO_CLASS = "(none)"
"""Class, or tenant, of requests without one."""


def request_classes(requests: Requests) -> npt.NDArray[np.str_]:
    """The class of each request, shape (n,), from column `request_class`; else `NO_CLASS`."""
    return _names(requests.get("request_class"), len(requests["arrival_ns"]))


def request_tenants(requests: Requests) -> npt.NDArray[np.str_]:
    """The tenant of each request, shape (n,), from column `tenant`; else `NO_CLASS`."""
    return _names(requests.get("tenant"), len(requests["arrival_ns"]))


def distinct_names(column: npt.NDArray[Any] | None, n: int) -> list[str]:
    """The names in a column of `n` classes or tenants, in alphabetical order."""
    return sorted(set(_names(column, n).tolist()))


def _names(column: npt.NDArray[Any] | None, n: int) -> npt.NDArray[np.str_]:
    if column is None:
        return np.full(n, NO_CLASS)
    return np.array([c if isinstance(c, str) else NO_CLASS for c in column.tolist()], dtype=str)


def class_groups(requests: Requests, mask: Bools) -> tuple[Ints, list[str]]:
    """Number the classes of the measured requests, for counting gaps per class.

    Returns:
        Group of each request, shape (n,), -1 where `mask` is false, and the names of the groups in
        alphabetical order.
    """
    return _groups(request_classes(requests), mask)


def tenant_groups(requests: Requests, mask: Bools) -> tuple[Ints, list[str]]:
    """Number the tenants of the measured requests, as `class_groups` does."""
    return _groups(request_tenants(requests), mask)


def _groups(name_of: npt.NDArray[np.str_], mask: Bools) -> tuple[Ints, list[str]]:
    names, group = np.unique(name_of, return_inverse=True)
    return np.where(mask, group, -1).astype(np.int64), names.tolist()


@dataclass(frozen=True)
class SLO:
    """Targets that a request has to meet, all of them; None is no target.

    Attributes:
        ttft_s: Most seconds to the first token, as the client sees it.
        tpot_s: Most seconds per output token.
        itl_s: Most seconds of *any* gap between two tokens.
        e2e_s: Most seconds to the last token.
        classes: Targets of single request classes; what they leave out is as above.
    """

    ttft_s: float | None = None
    tpot_s: float | None = None
    itl_s: float | None = None
    e2e_s: float | None = None
    classes: Mapping[str, SLO] = field(default_factory=dict)

    def for_class(self, name: str) -> SLO:
        """The targets of one class, without further classes."""
        own = self.classes.get(name, SLO())
        return SLO(
            ttft_s=self.ttft_s if own.ttft_s is None else own.ttft_s,
            tpot_s=self.tpot_s if own.tpot_s is None else own.tpot_s,
            itl_s=self.itl_s if own.itl_s is None else own.itl_s,
            e2e_s=self.e2e_s if own.e2e_s is None else own.e2e_s,
        )

    @property
    def has_targets(self) -> bool:
        """Whether anything is asked for, of whatever class."""
        own = (self.ttft_s, self.tpot_s, self.itl_s, self.e2e_s)
        return any(value is not None for value in own) or any(
            slo.has_targets for slo in self.classes.values()
        )

    def met(self, requests: Requests) -> Bools:
        """Which requests finished and meet every target of their class, shape (n,)."""
        if not self.classes:
            return self._met_by_all(requests)
        group, names = class_groups(requests, np.ones(len(requests["arrival_ns"]), dtype=bool))
        met = np.zeros(len(group), dtype=bool)
        for number, name in enumerate(names):
            rows = group == number
            met[rows] = self.for_class(name)._met_by_all(select(requests, rows))
        return met

    def closeness(self, requests: Requests) -> Floats:
        """How near each request came to a miss, shape (n,): its largest latency over its target.

        At most 1 where it meets every target of its class, infinite where it did not finish, and 0
        where it has none of the latencies that have a target.
        """
        if not self.classes:
            return self._closeness_to_all(requests)
        group, names = class_groups(requests, np.ones(len(requests["arrival_ns"]), dtype=bool))
        close = np.zeros(len(group))
        for number, name in enumerate(names):
            rows = group == number
            close[rows] = self.for_class(name)._closeness_to_all(select(requests, rows))
        return close

    def _closeness_to_all(self, requests: Requests) -> Floats:
        close = np.where(finished(requests), 0.0, np.inf)
        for target_s, metric in self._targets():
            if target_s is not None:
                values = metric(requests)
                missed = np.where(values > 0, np.inf, 0.0)
                close = np.fmax(close, values / target_s if target_s else missed)
        return close

    def _targets(self) -> tuple[tuple[float | None, Callable[[Requests], Floats]], ...]:
        return (
            (self.ttft_s, ttft_s),
            (self.tpot_s, tpot_s),
            (self.itl_s, largest_itl_s),
            (self.e2e_s, e2e_s),
        )

    def _met_by_all(self, requests: Requests) -> Bools:
        met = finished(requests)
        for target_s, metric in self._targets():
            if target_s is not None:
                # Written so that NaN, a quantity that the request does not have, counts as met.
                met &= ~(metric(requests) > target_s)
        return met


def slo_attainment(requests: Requests, slo: SLO) -> float:
    """Share of all these requests that meet every target; NaN without targets or requests."""
    met = slo.met(requests)
    return float(met.mean()) if slo.has_targets and len(met) else float("nan")
