"""A run simulated once more, to ask it about single gaps between tokens, and lives of requests.

A bundle keeps the largest gap of each request, split by phase. That of every token would be most of
a bundle, and a run is the same to the nanosecond whenever it is made: so it is made once more from
the bundle's config, with what single gaps are split by (`sim.gap_splits`) and
the life of a request in the order of time (`sim.life_log`), and held against the
bundle: every column of every request, and every token time that the bundle has. Where one differs
(the code has changed since, or a file that the config reads) nothing is told.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from experiments import changes, cluster
from experiments.advice import ADVICE, Setting
from experiments.attribution import Split, as_splits, row_of, seconds, sentence
from experiments.bundle import Bundle
from experiments.config import open_config, resolve_variant, variants_of
from experiments.schema import Experiment
from experiments.workload import Workload, build_workload
from sim.attribution import GROUPS
from sim.errors import ConfigError, PhasewiseError
from sim.event_loop import simulate
from sim.gap_splits import Gaps
from sim.records import Record, SimulationResult
from sim.request import Ints


def simulated_again(
    found: Bundle, folder: Path, files: Path | None = None, *, follow: Collection[int] = ()
) -> SimulationResult:
    """The run of a bundle, made once more.

    Args:
        found: The bundle.
        folder: Where it is.
        files: Where relative paths of its config start; None: in that folder. What is not there is
            looked for in the working folder.
        follow: Requests whose lives are kept (`sim.life_log`).

    Raises:
        ConfigError: It cannot be made, or is not the run of the bundle.
    """
    experiment, built, workload = _built(folder / "config.yaml", files)
    result = simulate(
        workload.source,
        built.cluster,
        seed=experiment.seed,
        record=Record(attribution=True, follow=follow),
        cluster_events=changes.events_of(experiment),
    )
    _check_same(result, found, folder)
    return result


def _built(config: Path, files: Path | None) -> tuple[Experiment, cluster.Built, Workload]:
    """What is simulated again; an error says where the config is, and what may help."""
    opened = replace(open_config(config), source=str(config))
    if files is not None:
        opened = replace(opened, folder=files)
    try:
        (chosen,) = variants_of(opened)
        experiment = resolve_variant(opened, chosen)
        built = cluster.build(experiment, opened.folder)
        return experiment, built, build_workload(experiment, opened.folder, built.max_model_len)
    except PhasewiseError as error:
        said = str(error) if str(config) in str(error) else f"{config}: {error}"
        raise ConfigError(
            f"{said}; to simulate it again, --files FOLDER says where the files and modules of the "
            "config are"
        ) from None


def _check_same(result: SimulationResult, found: Bundle, folder: Path) -> None:
    """Refuse a run that is not that of the bundle."""
    for name, column in result.requests.items():
        if name not in found.requests or name == "reason":  # codes of texts may differ
            continue
        known = found.requests[name]
        differ = np.flatnonzero(known != column) if len(known) == len(column) else np.zeros(1, int)
        if len(differ):
            raise ConfigError(
                f"{folder}: simulated again it is another run ({name} of request "
                f"{int(found.requests['index'][differ[0]])}): the code, or a file that its config "
                "reads, has changed since; run the config again"
            )
    for index in np.unique(found.tokens.get("request", np.zeros(0, np.int64))).tolist():
        times = found.tokens["time_ns"][found.tokens["request"] == index]
        if times.tolist() != result.token_times_ns(index).tolist():
            raise ConfigError(f"{folder}: simulated again it is another run (tokens of {index})")


def gaps_of(result: SimulationResult, request: int) -> list[Split]:
    """All gaps between tokens of a request, in order."""
    splits = result.gap_splits()
    assert splits is not None, "a run that is made again is attributed"
    return as_splits(splits, splits.of(request))


def gap_before(result: SimulationResult, request: int, token: int) -> Split:
    """One gap of a request.

    Raises:
        ConfigError: No gap ends with this token.
    """
    splits = result.gap_splits()
    assert splits is not None, "a run that is made again is attributed"
    gaps = splits.of(request)
    at = np.flatnonzero(gaps.token == token)
    if not len(at):
        last = len(gaps.token) + 1
        has = f"gaps end with its tokens 2 to {last}" if last > 1 else "it has no two tokens"
        raise ConfigError(f"--token {token}: request {request} has no gap before it; {has}")
    return as_splits(splits, _rows(gaps, at))[0]


def _rows(gaps: Gaps, rows: Ints) -> Gaps:
    return Gaps(**{name: column[rows] for name, column in vars(gaps).items()})


def longest(splits: Sequence[Split], count: int) -> list[Split]:
    """The longest gaps, of equal ones the first, the longest first."""
    return sorted(splits, key=lambda split: -split.total_ns)[:count]


def values_of(split: Split, setting: Setting) -> dict[str, Any]:
    """A gap as plain values for JSON."""
    said = {"end_ns": split.end_ns, "sentence": sentence(split, setting)}
    return split.values(setting) | said


def render_gap(split: Split, arrival_ns: int, setting: Setting) -> str:
    """One gap as text: its phases in a table, and a sentence."""
    since = seconds(split.end_ns - arrival_ns)
    lines = [f"request {split.index}: token {split.token} came {since} after the arrival", ""]
    names = [name for group in GROUPS.values() for name in group if name in split.ns]
    width = max((len(f"{name}: {ADVICE[name].words}") for name in names), default=8)
    for name in names:
        share = f"{split.ns[name] / split.total_ns:.1%}" if split.total_ns else ""
        words = f"{name}: {ADVICE[name].words}"
        lines.append(f"  {words:{width}} {seconds(split.ns[name]):>10} {share:>8}")
    lines += [f"  {'together':{width}} {seconds(split.total_ns):>10}", ""]
    return "\n".join([*lines, sentence(split, setting)])


def render_gaps(splits: Sequence[Split], many: int, found: Bundle, setting: Setting) -> str:
    """The longest gaps of a request as text: one a line, and a sentence on the longest."""
    if not splits:
        return f"{found.label}: the request has no two tokens"
    index = splits[0].index
    arrival_ns = int(found.requests["arrival_ns"][row_of(found.requests, index)])
    lines = [
        f"request {index} of {found.label}: the longest of its {many:,} gaps between tokens",
        "",
        f"  {'token':>7} {'came after':>11} {'gap':>9}  of that",
    ]
    for split in splits:
        parts = sorted(split.ns.items(), key=lambda item: -item[1])
        told = ", ".join(f"{name} {seconds(ns)}" for name, ns in parts)
        came = seconds(split.end_ns - arrival_ns)
        lines.append(f"  {split.token:>7,} {came:>11} {seconds(split.total_ns):>9}  {told}")
    return "\n".join([*lines, "", sentence(splits[0], setting)])
