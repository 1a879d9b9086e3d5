"""All figures of a sweep, drawn from its data set alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments.drawing import Drawing
from experiments.figures import FORMATS, Plotted, write_drawn
from experiments.names import unknown
from experiments.quantity import read_quantity
from experiments.sweep.curves import attainment_drawings, latency_drawings
from experiments.sweep.frame import Frame, read_frame
from experiments.sweep.heat_map import heat_map
from experiments.sweep.pareto import pareto
from sim.errors import ConfigError

_PARETO = (
    ("ttft_s.p99", "throughput_out_per_gpu_tokens_per_s"),
    ("ttft_s.p99", "tpot_s.p99"),
    ("cost_usd", "slo_attainment"),
)
"""Pairs that are drawn where nobody asks for others, and the sweep has them."""


def plot_sweep(
    folder: Path,
    *,
    out: Path | None = None,
    over: Sequence[str] = (),
    values: Sequence[str] = (),
    pairs: Sequence[tuple[str, str]] = (),
    at: Sequence[str] = (),
    style: str = "paper",
    width_mm: float | None = None,
    formats: Sequence[str] = FORMATS,
) -> Plotted:
    """Draw curves over the rate and SLO scale, heat maps and Pareto plots.

    Args:
        folder: Of the sweep.
        out: Folder of the figures; None for ``figures`` in that of the sweep.
        over: Two keys of the heat maps; none for the first two that take several values.
        values: Numbers of the heat maps; none for attainment and P99 of TTFT and TPOT.
        pairs: Numbers of the Pareto plots; none for those of `_PARETO` that the sweep has.
        at: ``key=value`` texts: only the points with these values.
        style: Of the images, a key of `experiments.looks.STYLES`.
        width_mm: Width of the images; None for that of the style.
        formats: Of `experiments.figures.FORMATS`.

    Raises:
        SweepError: There is no sweep.
        ConfigError: An option is not one of its choices; one line.
    """
    frame = read_frame(folder, at)
    drawings = drawings_of(frame, over, values, pairs)
    about = [f"{len(frame.places)} points and variants of the sweep {frame.name}."]
    if frame.failed:
        about.append(f"{frame.failed} runs failed, and are in no figure.")
    target = out or folder / "figures"
    return write_drawn(
        target,
        f"Sweep {frame.name}",
        about,
        drawings,
        style=style,
        width_mm=width_mm,
        formats=formats,
    )


def drawings_of(
    frame: Frame,
    over: Sequence[str] = (),
    values: Sequence[str] = (),
    pairs: Sequence[tuple[str, str]] = (),
) -> list[Drawing]:
    """The figures that a sweep allows; see `plot_sweep`.

    Raises:
        ConfigError: A name is none of this sweep's, or asks for a figure that it does not allow.
    """
    keys = _two_keys(frame, over)
    for value in values:
        _known(frame, value, "--value", value)
    for pair in pairs:
        for value in pair:
            _known(frame, value, "--pareto", ",".join(pair))
    if values and keys is None:
        varied = " and ".join(frame.keys) or "none"
        raise ConfigError(
            f"--value {values[0]}: is of heat maps, which take two keys with several values; "
            f"here there is {varied}; try --pareto"
        )
    drawings = []
    if frame.rate_key is not None:
        drawings += latency_drawings(frame)
    drawings += attainment_drawings(frame)
    if keys is not None:
        usual = ("slo_attainment", "ttft_s.p99", "tpot_s.p99")
        shown = values or list(filter(frame.has, usual))
        drawings += [heat_map(frame, *keys, value) for value in shown]
    usual_pairs = [pair for pair in _PARETO if all(map(frame.has, pair))]
    drawings += [pareto(frame, *pair) for pair in pairs or usual_pairs]
    return drawings


def _two_keys(frame: Frame, over: Sequence[str]) -> tuple[str, str] | None:
    if over:
        for key in over:
            if key not in frame.keys:
                raise ConfigError(f"--over {key}: {unknown('swept key', key, frame.keys)}")
        if len(set(over)) != 2:
            raise ConfigError(f"--over {','.join(over)}: expected two keys")
        return over[0], over[1]
    rate = frame.rate_key
    first = [rate] if rate is not None else []
    keys = [*first, *(key for key in frame.keys if key != rate)]
    return (keys[0], keys[1]) if len(keys) > 1 else None


def _known(frame: Frame, column: str, option: str, given: str) -> None:
    """Refuse what is no number of the runs of a sweep."""
    read_quantity(column, option)
    if not frame.has(column):
        known = {name for place in frame.places for name in place.values}
        raise ConfigError(f"{option} {given}: {unknown('number of this sweep', column, known)}")
