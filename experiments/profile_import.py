"""``phasewise profile import``: another project's profile as tables of ours, and what came of it.

A data set need not be complete: tables that it lacks can come from another, or from the roofline.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sim.errors import ConfigError

if TYPE_CHECKING:
    from kernels_profile.importers.data_set import Imported

NEEDED = ("linear", "attention_prefill", "attention_decode", "elementwise", "per_sequence")
"""Tables from which a step of a dense model on one GPU is put together."""


def run(
    source: str,
    path: Path,
    out: Path,
    names: Sequence[str],
    skip: Sequence[str],
    device: str | None,
    engine: str | None,
    revision: str | None,
) -> None:
    """Import, and print what each data set holds and lacks.

    Raises:
        ConfigError: a name without ``=``; see `kernels_profile.importers.import_profile`.
    """
    from kernels_profile.importers import import_profile

    written = import_profile(
        source,
        path,
        out,
        names=_pairs(names),
        skip=skip,
        device=device,
        engine=engine,
        revision=revision,
    )
    for folder, data in written:
        typer.echo("\n".join(_lines(folder, data)))
    typer.echo(f"\nuse them by  step_time: {{model: profile, data: {out}}}")


def _pairs(names: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for text in names:
        name, equals, sheet = text.partition("=")
        if not (name and equals and sheet):
            raise ConfigError(f"--name {text}: expected the source's name = a sheet of ours")
        pairs[name] = sheet
    return pairs


def _lines(folder: Path, data: Imported) -> list[str]:
    lines = [f"{folder}: {data.device}, {data.engine} {data.version}"]
    lines += [f"  {_table(name, rows)}" for name, rows in sorted(data.tables.items())]
    lines += [f"  note: {note}" for note in data.notes]
    lacking = [name for name in NEEDED if name not in data.tables]
    if lacking:
        lines.append(
            f"  lacks {', '.join(lacking)}: add a data set that has them, or `missing: roofline`"
        )
    return lines


def _table(name: str, rows: object) -> str:
    """Such as ``linear: 608 points, tokens 1 to 2048``."""
    import pandas as pd

    assert isinstance(rows, pd.DataFrame)
    ranges = (
        f"{column} {rows[column].min()} to {rows[column].max()}"
        for column in ("tokens", "history", "batch", "decodes", "context", "sequences", "gpus")
        if column in rows
    )
    points = "point" if len(rows) == 1 else "points"
    return f"{name}: {len(rows):,} {points}{''.join(f', {text}' for text in ranges)}"
