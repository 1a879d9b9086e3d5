"""What tables and figures need of a run: less than its bundle holds, and no `steps.parquet`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from experiments.attribution import without_phases
from sim.errors import ConfigError, nearest
from sim.metrics import Bools, Gaps, ReplicaFacts, Requests
from sim.slo import Windows, request_classes, select


class RunHead(Protocol):
    """One run as the summary in its bundle tells it: enough for a table."""

    @property
    def label(self) -> str:
        """Name of the variant in tables and figures."""

    @property
    def policy(self) -> str:
        """Name of the policy (or layout): chooses the colour."""

    @property
    def summary(self) -> Mapping[str, Any]:
        """What `experiments.summary.summarize` gave."""

    @property
    def workload(self) -> str:
        """Equal where runs had the same requests, measured window and targets."""


class RunBundle(RunHead, Protocol):
    """One run as its bundle tells it, with what figures are drawn from."""

    @property
    def requests(self) -> Requests:
        """Columns of the requests table, `request_class` included where the trace has classes."""

    @property
    def itl(self) -> Mapping[str, Gaps]:
        """Counted gaps of the measured requests per class."""

    @property
    def series(self) -> Requests:
        """Columns `sim.records.SERIES_COLUMNS`; those of older bundles may lack some."""

    @property
    def pools(self) -> Requests:
        """Columns `sim.records.POOL_COLUMNS`; none in older bundles."""

    @property
    def replicas(self) -> Sequence[ReplicaFacts]:
        """In the order of the indices in the columns."""


def unique_labels(bundles: Sequence[RunHead]) -> list[str]:
    """The labels in order, each on one line, with a number behind those that occur again."""
    labels: list[str] = []
    for bundle in bundles:
        plain = label = " ".join(bundle.label.split()) or "(no label)"
        again = 1
        while label in labels:
            again += 1
            label = f"{plain} ({again})"
        labels.append(label)
    return labels


def measured(bundle: RunBundle, request_class: str | None = None) -> Requests:
    """The requests of the measurement window, of one class or of all.

    Without the columns of `sim.attribution`, which would only be copied.
    """
    requests, mask = without_phases(bundle.requests), measured_mask(bundle)
    if request_class is not None:
        mask &= request_classes(requests) == request_class
    return select(requests, mask)


def measured_mask(bundle: RunBundle) -> Bools:
    """Which requests arrived in the measurement window, shape (n,)."""
    window = bundle.summary["window"]
    windows = Windows(window["warm_up_s"], window["drain_s"])
    return windows.mask(bundle.requests["arrival_ns"])


def metrics_of(bundle: RunHead, request_class: str | None = None) -> Mapping[str, Any]:
    """The block of the summary that holds the metrics of one class, or of all requests.

    Raises:
        ConfigError: The run has no such class.
    """
    if request_class is None:
        block: Mapping[str, Any] = bundle.summary["overall"]
        return block
    classes: Mapping[str, Mapping[str, Any]] = bundle.summary["classes"]
    if request_class not in classes:
        hint = nearest(request_class, classes) or "; it has one class only"
        raise ConfigError(f"{bundle.label}: no request class {request_class!r}{hint}")
    return classes[request_class]


def verdict_mark(bundle: RunHead) -> str:
    """The verdict as a mark behind a label; empty for a stable run."""
    name = str(bundle.summary["verdict"]["name"])
    return "" if name == "stable" else name
