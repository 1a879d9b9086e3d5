"""Single steps: the time of a prefill or a decode of each row, without a simulation around it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from experiments.validation import rows
from experiments.validation.outcome import Outcome, Overlay
from experiments.validation.serve import Server
from sim.errors import ConfigError
from sim.step_time import StepTimeModel, StepWork


def run(outcome: Outcome, config: Mapping[str, Any], measured: Path) -> None:
    """Compare step times of each row, or of each point of a grid between two models.

    Args:
        outcome: Of the case; comparisons are added to it.
        config: Of the runs, data sets filled in.
        measured: The folder of measured data.
    """
    said = outcome.case.data
    servers: dict[str, Server] = {}
    for part in said["parts"]:
        pairs = []
        for row in _rows(part, measured):
            simulated = _step_ms(_model(outcome, config, part, row, servers), part, row)
            if "against" in part:
                other = _model(outcome, config, part, row, servers, part["against"])
                real = _step_ms(other, part, row)
            else:
                real = float(rows.value(part["measured"], row))
            pairs.append((real, simulated))
            outcome.add(part["metric"], real, simulated, row=rows.label(row, part["label"]),
                        group=part.get("group", ""))  # fmt: skip
        reals, simulateds = np.array(pairs).T
        title = f"{outcome.case.title}: {part['metric']} {part.get('group', '')}".strip()
        labels = tuple(part.get("labels", ("measured", "simulated")))
        assert len(labels) == 2
        outcome.overlays.append(Overlay(title, "ms", reals, simulateds, labels=labels))


def _rows(part: Mapping[str, Any], measured: Path) -> Iterator[rows.Row]:
    """Rows of a table, or the points of a grid."""
    if "table" in part:
        table = rows.chosen(part, measured)
        if "once" in part:
            table = table.drop_duplicates(part["once"])
        yield from table.to_dict("records")
        return
    points: list[dict[str, Any]] = [{}]
    for name, values in part["grid"].items():
        points = [{**point, name: value} for point in points for value in values]
    yield from points


def _model(
    outcome: Outcome,
    config: Mapping[str, Any],
    part: Mapping[str, Any],
    row: rows.Row,
    servers: dict[str, Server],
    instead: Mapping[str, Any] = MappingProxyType({}),
) -> StepTimeModel:
    settings, _ = rows.settings(part, row)
    full = rows.laid_over(rows.laid_over(config, settings), instead)
    key = repr(full)
    if key not in servers:
        servers[key] = Server(full)
        for note in servers[key].notes:
            outcome.note(note)
    return servers[key].step_time


def _step_ms(model: StepTimeModel, part: Mapping[str, Any], row: rows.Row) -> float:
    """Time of the step that a row describes, ms; the mean over `steps` decodes, if it says so."""
    work = part["step"]
    batch = int(rows.value(work.get("batch", 1), row))
    if work["kind"] == "prefill":
        tokens = int(rows.value(work["tokens"], row))
        return model.step_ns(StepWork([(tokens, 0)] * batch), 0) / 1e6
    if work["kind"] != "decode":
        raise ConfigError(f"step.kind: {work['kind']}: expected prefill or decode")
    context, n = int(rows.value(work["context"], row)), int(rows.value(work.get("steps", 1), row))
    lengths = model.steps_ns(StepWork((), batch, batch * context), n, 0)
    return float(np.mean(lengths)) / 1e6
