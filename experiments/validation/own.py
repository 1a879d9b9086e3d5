"""A user's own server against the simulation of what it served: `compare_with_server`.

The measured requests (their lengths and arrival times) replace the config's workload; everything
else is the config's. What clients asked for (``max_tokens``) is taken to be what they got.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments import cluster, config
from experiments.config import Plan
from experiments.names import unknown
from experiments.schema import Experiment
from experiments.validation import own_figures, own_table
from experiments.validation.host_fit import HostFit
from experiments.validation.host_fit import fit_host as fit_to
from experiments.validation.host_keys import host_of
from experiments.validation.measured import Measurement, read_measurement
from experiments.validation.outcome import Comparison
from experiments.validation.own_run import Latencies, Replay, prepare, simulated_latencies
from experiments.variant import beyond_tables
from sim.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from experiments.cdf_figure import Line
    from experiments.figures import Plotted

_NO_WORKLOAD: Mapping[str, Any] = {
    "workload": {
        **dict.fromkeys(("trace", "format", "columns", "arrivals", "max_tokens", "over_long")),
        "preset": "sharegpt-like",
        "requests": 1,
    }
}
"""Laid over a config, so that whatever its workload is, or lacks, does not matter."""


@dataclass(frozen=True)
class ServerComparison:
    """A server's requests, measured and simulated.

    Attributes:
        replay: The requests, and the variant that they were simulated on.
        simulated: Latencies by label: ``simulated``, and ``fitted`` where the host was fitted.
        comparisons: Rows of the table by the same labels.
        fit: What the host's constants became; None where they were not fitted.
        notes: Where numbers come from and what was odd, one sentence each.
    """

    replay: Replay
    simulated: Mapping[str, Latencies]
    comparisons: Mapping[str, Sequence[Comparison]]
    fit: HostFit | None = None
    notes: Sequence[str] = field(default=())

    @property
    def measured(self) -> Latencies:
        """Of the server."""
        return self.replay.measured

    @cached_property
    def each(self) -> Mapping[str, Sequence[own_table.EachRequest]]:
        """How far off single requests are, by label."""
        return {
            label: own_table.each_request(self.measured, each)
            for label, each in self.simulated.items()
        }

    @property
    def verdict(self) -> str:
        """What differs most, in words."""
        label = list(self.simulated)[-1]
        text = own_table.verdict(self.comparisons[label], self.each[label])
        return text if label == "simulated" else f"With the fitted host: {text}"

    def table(self) -> pd.DataFrame:
        """One row a metric and simulation: run, metric, measured, simulated, signed error."""
        import pandas as pd

        rows = [
            (label, row.metric, row.measured, row.simulated, row.error)
            for label, each in self.comparisons.items()
            for row in each
        ]
        return pd.DataFrame(rows, columns=["run", "metric", "measured", "simulated", "error"])

    def requests(self) -> pd.DataFrame:
        """One row a request: its number in the file, lengths, measured and simulated seconds."""
        return own_figures.requests_table(self.replay, self.simulated)

    def figures(self, style: str = "slide") -> dict[str, go.Figure]:
        """CDF overlays of TTFT, TPOT, ITL and E2E, by metric."""
        return own_figures.figures_of(self._lines(), style)

    def save(self, folder: str | Path, formats: Sequence[str] = ("html",)) -> Sequence[Path]:
        """Write the overlays, ``comparison.csv`` and ``requests.csv``; the files.

        Args:
            folder: Made where there is none.
            formats: Of figures: html, svg, pdf, png.
        """
        return self.write(folder, formats).files

    def write(self, folder: str | Path, formats: Sequence[str]) -> Plotted:
        """Write as `save` does, and say what could not be drawn."""
        return own_figures.save(
            Path(folder),
            self._lines(),
            self.requests(),
            self.table(),
            tuple(formats),
            own_figures.about(self.replay),
        )

    def _lines(self) -> dict[str, list[Line]]:
        return own_figures.lines_of(self.measured, self.simulated, _policy(self.replay.experiment))

    def __str__(self) -> str:
        """Tables, sentence and notes as text."""
        first, *more = self.comparisons.values()
        parts = [own_figures.about(self.replay), own_table.table(first, more[0] if more else ())]
        for label, each in self.each.items():
            parts.append(own_table.each_table(each, f"each request, {label}"))
        parts += [self.verdict, *([] if self.fit is None else [str(self.fit)])]
        parts.append("\n".join(f"- {note}" for note in self.notes))
        return "\n\n".join(parts)


def compare_with_server(
    config: str | Path | Mapping[str, Any],
    measured: str | Path | Measurement,
    *,
    format: str | None = None,
    columns: Mapping[str, str] | None = None,
    run: int | None = None,
    variant: str | None = None,
    concurrency: int | None = None,
    settings: Sequence[str] = (),
    fit_host: bool = False,
    told: Callable[[str], None] = lambda text: None,
) -> ServerComparison:
    """Simulate a config on the requests of a real server's benchmark, and compare.

    Args:
        config: A YAML file, the name of a shipped config, or the content as a mapping; its
            workload is replaced.
        measured: A file of ``vllm bench serve --save-result --save-detailed``, of SGLang or AIPerf,
            or a CSV; or what `read_measurement` made of one.
        format: Of the file: vllm, sglang, aiperf or csv; recognised by default.
        columns: Names of a CSV's columns by ours, such as ``{"ttft_ms": "first_token"}``.
        run: Which of several runs in the file, from 1.
        variant: Label of the variant of the config; needed where it has several.
        concurrency: Serve the requests in a closed loop of so many, whatever the file says.
        settings: ``key=value`` texts that override keys of the config.
        fit_host: Fit the host's two constants to the run as well (`host_fit`).
        told: Called with a sentence before each simulation of the fit.

    Raises:
        sim.errors.ConfigError: One line: a config or a file that is wrong, a setting that would do
            nothing, a variant that is none, a file of aggregates, requests that the simulation
            cannot serve, a host to fit where there is none.
    """
    _refuse_unused(settings)
    plan, experiment, where = _chosen(config, variant, settings)
    if not isinstance(measured, Measurement):
        path = Path(measured)
        measured = read_measurement(path, format=format, columns=columns, run=run)
    replay = prepare(experiment, plan.folder, where, measured, concurrency)
    if fit_host:
        host_of(experiment, where)  # refused before anything is simulated
    result = replay.run()
    simulated = {"simulated": simulated_latencies(result)}
    fit = None
    if fit_host:
        fit, simulated["fitted"] = fit_to(replay, simulated["simulated"], told)
    notes = (*plan.notes, *replay.notes, *beyond_tables(result.replicas))
    return _compared(replay, simulated, fit, notes)


_UNUSED: Mapping[str, str] = {
    "workload": "the measured requests replace the workload of the config",
    "slo": "no attainment of targets is compared",
    "record": "no files of a run are written",
}
"""Keys of a config that a comparison does not use, and why."""


def _refuse_unused(settings: Sequence[str]) -> None:
    for setting in settings:
        key = setting.partition("=")[0].partition(".")[0].strip()
        if key in _UNUSED:
            raise ConfigError(
                f"--set {setting}: would do nothing in a comparison, as {_UNUSED[key]}; leave it "
                "out"
            )


def _chosen(
    said: str | Path | Mapping[str, Any], variant: str | None, settings: Sequence[str]
) -> tuple[Plan, Experiment, str]:
    """The plan, the variant, and how messages call it."""
    plan = config.load(said, settings, _NO_WORKLOAD)
    labels = [each.label for each in plan.variants]
    if variant is None and len(labels) > 1:
        raise ConfigError(
            f"{plan.source}: has {len(labels)} variants; say which with --variant: "
            f"{', '.join(labels)}"
        )
    if variant is not None and variant not in labels:
        raise ConfigError(f"--variant: {plan.source} has {unknown('variant', variant, labels)}")
    chosen = plan.variants[labels.index(variant) if variant is not None else 0]
    where = f"{plan.source}: variant {chosen.label}" if len(labels) > 1 else plan.source
    return plan, chosen, where


def _compared(
    replay: Replay,
    simulated: Mapping[str, Latencies],
    fit: HostFit | None,
    notes: Sequence[str],
) -> ServerComparison:
    tokens = int(replay.trace.output_tokens.sum())
    rows = {
        label: own_table.comparisons(replay.measured, each, tokens)
        for label, each in simulated.items()
    }
    replaced = "The measured requests replace the workload of the config."
    return ServerComparison(replay, simulated, rows, fit, (replaced, *notes))


def _policy(experiment: Experiment) -> str:
    pools = cluster.pools_of(experiment)
    if "colocated" not in pools:
        return "disaggregated"
    return str(pools["colocated"].policy["name"])
