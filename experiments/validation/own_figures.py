"""What a comparison with a server leaves on disk: CDF overlays, the table, and each request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.cdf import Curve, curve_of_gaps, curve_of_values
from experiments.cdf_figure import Line, figure
from experiments.figures import Plotted, write
from experiments.looks import SCREEN, STYLES, Look, looks
from experiments.validation.own_run import Latencies, Replay
from experiments.validation.own_table import both, number

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

OVERLAID = ("ttft", "tpot", "itl", "e2e")
"""Metrics of which there is a figure."""

_MEASURED = Look("#000000", "solid", "circle")
"""No policy is black and solid, so that the server stands apart from whatever was simulated."""


def lines_of(
    measured: Latencies, simulated: Mapping[str, Latencies], policy: str
) -> dict[str, list[Line]]:
    """The curves of each figure: the server's, then those of the simulations.

    Args:
        measured: Of the server.
        simulated: By label.
        policy: Of the simulations; gives their colour.
    """
    colors = [look.color for look in looks([policy] * len(simulated))]
    shown = [Look(color, dash, symbol) for color, dash, symbol in zip(
        colors, ("dash", "dot"), ("square", "diamond"), strict=False)]  # fmt: skip
    first = next(iter(simulated.values()))
    drawn = {}
    for name in OVERLAID:
        curve = _curve(measured, first, name, of_measured=True)
        if curve is None:
            continue
        drawn[name] = [
            Line("measured", "", "server", _MEASURED, curve),
            *(
                Line(label, "", policy, look, _curve(measured, each, name))
                for (label, each), look in zip(simulated.items(), shown, strict=True)
            ),
        ]
    return drawn


def _curve(
    measured: Latencies, simulated: Latencies, name: str, *, of_measured: bool = False
) -> Curve | None:
    """Of the requests that have the metric in both."""
    if name == "itl":
        if measured.gaps is None or simulated.gaps is None:
            return None
        return curve_of_gaps(measured.gaps if of_measured else simulated.gaps)
    real, ours = both(measured, simulated, name)
    return curve_of_values(real if of_measured else ours)


def figures_of(drawn: Mapping[str, list[Line]], style: str = "slide") -> dict[str, go.Figure]:
    """The overlays as plotly figures, by metric."""
    return {name: figure(name, lines, STYLES[style]) for name, lines in drawn.items()}


def save(
    out: Path,
    drawn: dict[str, list[Line]],
    requests: pd.DataFrame,
    table: pd.DataFrame,
    formats: Sequence[str],
    about: str,
) -> Plotted:
    """Write ``requests.csv``, ``comparison.csv`` and the figures with their points.

    Args:
        out: Folder, made where there is none.
        drawn: Of `lines_of`.
        requests: Of `requests_table`.
        table: Of all comparisons.
        formats: Of figures: html, svg, pdf, png; none for none.
        about: A sentence above the figures.
    """
    out.mkdir(parents=True, exist_ok=True)
    requests.to_csv(out / "requests.csv", index=False, lineterminator="\n")
    table.to_csv(out / "comparison.csv", index=False, lineterminator="\n")
    written = (out / "comparison.csv", out / "requests.csv")
    if not formats:
        return Plotted(written, ())
    plotted = write(drawn, out, SCREEN if formats == ("html",) else STYLES["paper"], "log",
                    formats, about=about)  # fmt: skip
    return Plotted((*written, *plotted.files), plotted.notes, plotted.undrawn)


def requests_table(replay: Replay, simulated: Mapping[str, Latencies]) -> pd.DataFrame:
    """One row a request, in order of arrival: measured and simulated latencies, seconds.

    Args:
        replay: What was simulated.
        simulated: By label.
    """
    import pandas as pd

    columns: dict[str, object] = {
        "request": replay.trace.row,
        "prompt_tokens": replay.trace.prompt_tokens,
        "output_tokens": replay.trace.output_tokens,
    }
    for name in ("arrival", "ttft", "tpot", "e2e"):
        columns[f"{name}_measured_s"] = getattr(replay.measured, f"{name}_s")
        for label, each in simulated.items():
            columns[f"{name}_{label}_s"] = getattr(each, f"{name}_s")
    return pd.DataFrame(columns)


def about(replay: Replay) -> str:
    """What the figures show, in a sentence."""
    span = replay.measured.span_s
    took = f" over {number(span)} s" if span == span else ""
    return f"{replay.trace.source} ({len(replay.trace):,} requests{took}) against {replay.where}."
