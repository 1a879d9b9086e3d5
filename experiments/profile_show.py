"""``phasewise profile show``: what data sets hold, what they suffice for, and how good they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import typer

from kernels_profile.contents import Contents, contents, findings, serves
from kernels_profile.table import META, DataSet, find_data_sets, folders_of, read_meta
from sim.errors import ConfigError
from sim.specs import DeviceSpec, load_device, load_model, model_names

FIRST = ("engine", "version", "repository", "revision", "licence", "date", "commit", "command")
"""Keys of `meta.yaml` that are said in this order; others follow."""


def run(path: Path, models: Sequence[str]) -> None:
    """Print all data sets of a folder, device by device.

    Args:
        path: A data set, or a folder of some.
        models: Whose missing operators are named; none for all that ship, by what suffices.

    Raises:
        ProfileError: no data set there, or a table that is wrong.
        ConfigError: an unknown model, or a device without a data sheet.
    """
    wanted = [load_model(name) for name in models]
    devices = {device.name: device for device in map(_device, folders_of(path))}
    for i, (name, device) in enumerate(devices.items()):
        sets = find_data_sets([path], name)
        if i:
            typer.echo()
        for data in sets:
            typer.echo("\n".join(_of_set(data)))
        if wanted:
            for model in wanted:
                typer.echo("\n".join(_lacking(model.name, serves(model, device, sets))))
        else:
            typer.echo("\n".join(_enough(device, sets)))


def _device(folder: Path) -> DeviceSpec:
    try:
        return load_device(read_meta(folder).device)
    except ConfigError as error:
        raise ConfigError(f"{folder / META}: {error}") from None


def _of_set(data: DataSet) -> Iterator[str]:
    meta = data.meta
    yield f"{data.folder}: {meta.device}, {meta.measured}: {meta.origin}"
    more = {key: meta.more[key] for key in FIRST if key in meta.more}
    more |= {key: value for key, value in meta.more.items() if key not in (*FIRST, "notes")}
    for key, value in more.items():
        yield f"  {key}: {_plain(value)}"
    for note in meta.more.get("notes", ()):
        yield f"  note: {note}"
    found = contents(data)
    for table in found:
        if table.ranges:
            yield f"  {_table(table)}"
    for sentence in findings(data):
        yield f"  {sentence}"
    if not any(table.repeats for table in found):
        yield "  no repeats: noise is off with these tables"


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {each}" for key, each in value.items())
    return str(value)


def _table(table: Contents) -> str:
    words = (f"{name} {'/'.join(found)}" for name, found in table.words.items())
    ranges = (
        f"{axis} {low:g}" if count == 1 else f"{axis} {low:g} to {high:g} ({count})"
        for axis, (low, high, count) in table.ranges.items()
    )
    shapes = f"{table.shapes:,} shape{'s' * (table.shapes > 1)}"
    error = "" if table.error is None else f"interpolation {table.error:.1%}"
    points = f"{table.points:,} point{'s' * (table.points > 1)}"
    said = (points, shapes, *words, *ranges, *filter(None, (error,)))
    return f"{table.operator}: {', '.join(said)}"


def _enough(device: DeviceSpec, sets: Sequence[DataSet]) -> Iterator[str]:
    """Models that can be simulated from these tables alone."""
    others = 0
    for name in model_names():
        found = serves(load_model(name), device, sets)
        enough = {
            precision: [str(gpus) for gpus, lacking in of.items() if not lacking]
            for precision, of in found.items()
        }
        said = [f"{p} tp {', '.join(gpus)}" for p, gpus in enough.items() if gpus]
        if said:
            yield f"suffices for {name}: {'; '.join(said)}"
        others += not said
    if others:
        yield (
            f"{others} shipped model{'s' * (others > 1)} lack operators (--model NAME says which); "
            "with missing: roofline they are filled"
        )


def _lacking(name: str, found: dict[str, dict[int, list[str]]]) -> Iterator[str]:
    if not found:
        yield f"{name}: there is no table of linear layers or of experts"
    for precision, of in found.items():
        for gpus, lacking in of.items():
            said = f"lacks {'; '.join(lacking)}" if lacking else "all there"
            yield f"{name}, {precision}, tp {gpus}: {said}"
