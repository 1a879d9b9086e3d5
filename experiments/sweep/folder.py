"""The folder of a sweep: what is there, what a command may do with it, and doing that.

`stance` decides, changes nothing, and is what a dry run asks too, so that it refuses what the real
one refuses. Only after it has decided is anything dropped or written.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from experiments import bundle
from experiments.sweep.columns import KEY
from experiments.sweep.dataset import (
    ABOUT,
    DATA,
    VERSION,
    DataSet,
    SweepError,
    identity,
    number_anew,
    read_about,
    read_table,
    recover,
)
from experiments.sweep.definition import Setting
from experiments.sweep.unit import FINISHED, LOST, Identity

FIGURES = "figures"
"""Folder of the figures that a sweep draws by itself."""
_DRAWN = ("heat_", "pareto_", "rate_", "slo_scale")
"""How the names of its figures begin (`experiments.sweep.plots`)."""
_LOCK = ".lock"
_WORDS = {"config": "its config", "trace": "its traces", "code": "phasewise itself"}
_SEARCHED = "its config, --over, --objective or --seed"
_SAME = {
    "variants": "its variants",
    "slo_scales": "the scales of its targets",
    "quantities": "the numbers it takes down",
}
"""Parts of what is asked for that an extended sweep keeps, as they are columns of every row."""

Stance = Literal["new", "same", "larger", "fresh"]
"""What a command does with a folder: begin there, go on with the sweep that is there, go on with it
as a larger one, or drop it and begin anew."""


def stance(
    folder: Path, about: Mapping[str, Any], *, fresh: bool = False, extend: bool = False
) -> Stance:
    """What a sweep would do with a folder; nothing is changed.

    Args:
        folder: Of the sweep.
        about: What is asked for; ``prints`` says what the results depend on.
        fresh: Drop what is there.
        extend: Go on as well with a sweep of fewer points, which keeps its rows.

    Raises:
        SweepError: It cannot use the folder; one line.
    """
    check_options(fresh=fresh, extend=extend)
    check_usable(folder)
    if not (folder / ABOUT).is_file():
        return "new"
    if fresh:
        return "fresh"
    said = changed(folder, about["prints"])
    if not said:
        return "same"
    why_not = _why_not_larger(read_about(folder), about)
    if extend and why_not:
        raise SweepError(
            f"{folder}: cannot be extended: {why_not}; give another --out, or --fresh to drop it"
        )
    if not extend:
        ways = "--out, or" if why_not else "--out, --extend to add points, or"
        raise SweepError(f"{folder}: {said}; give another {ways} --fresh to drop it")
    return "larger"


def check_options(*, fresh: bool, extend: bool) -> None:
    """Refuse to drop and to keep rows at once.

    Raises:
        SweepError: One line.
    """
    if fresh and extend:
        raise SweepError("--fresh --extend: one drops the rows, the other keeps them; give one")


def check_usable(folder: Path) -> None:
    """Refuse a place where no sweep can be, or where something else is.

    Raises:
        SweepError: One line.
    """
    there = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    if not there.is_dir():
        what = "a file, not a folder" if there.is_file() else "no folder"
        raise SweepError(f"{there}: is {what}; give another --out")
    if not os.access(there, os.W_OK | os.X_OK):
        raise SweepError(f"{folder}: cannot be written: no permission in {there}")
    if there != folder:
        return
    if (folder / ABOUT).is_file():
        read_about(folder)
    elif any(path.name not in (_LOCK, DATA) for path in folder.iterdir()) or any(
        folder.glob(f"{DATA}/*")
    ):
        raise SweepError(f"{folder}: holds something else than a sweep; give another --out")


def changed(folder: Path, prints: Mapping[str, Any]) -> str:
    """Why a folder holds another sweep than the one with these hashes; empty if it does not.

    Raises:
        SweepError: There is no sweep, or one of a newer version.
    """
    about = read_about(folder)
    there, searched = about["prints"], "objectives" in about
    words = {**_WORDS, "config": _SEARCHED} if searched else _WORDS
    differ = [word for kind, word in words.items() if there.get(kind) != prints[kind]]
    what = "search" if searched else "sweep"
    return f"holds another {what}: {' and '.join(differ)} changed" if differ else ""


def _why_not_larger(there: Mapping[str, Any], about: Mapping[str, Any]) -> str:
    """Why the rows of a sweep would not be those of the one asked for; empty if they would."""
    traces, wanted = there.get("traces"), about.get("traces")
    if traces is None or wanted is None:
        return "it does not say what its points read"
    other = [word for name, word in _SAME.items() if there.get(name) != about[name]]
    other += [_WORDS["code"]] if there["prints"].get("code") != about["prints"]["code"] else []
    other += [_WORDS["trace"]] if any(wanted.get(k, v) != v for k, v in traces.items()) else []
    if other:
        return f"{' and '.join(other)} changed"
    gone = [key for key in traces if key not in wanted]
    if gone:
        return (
            f"{len(gone)} of its {len(traces)} points are not among those asked for now, "
            f"such as {said_of(there['points'][gone[0]])}"
        )
    return ""


def said_of(setting: Setting) -> str:
    """A point in words: ``seed=1, policy.budget_tokens=256``."""
    return ", ".join(f"{key}={value}" for key, value in setting.items())


def open_dataset(
    folder: Path,
    about: Mapping[str, Any],
    columns: Mapping[str, str],
    *,
    fresh: bool,
    retry: bool,
    extend: bool = False,
) -> DataSet:
    """Begin a sweep in a folder, or go on with the one there if it is the same.

    Args:
        folder: Of the sweep; made where there is none.
        about: As of `stance`.
        columns: As of `DataSet`.
        fresh: As of `stance`; the figures of the sweep are dropped with its rows.
        retry: Forget failed rows, so that they are made again.
        extend: As of `stance`.

    Raises:
        SweepError: Another sweep is there, or something else; one line.
    """
    found = stance(folder, about, fresh=fresh, extend=extend)
    if found == "fresh":
        _drop(folder)
    if found != "same":
        bundle.write_values(folder / ABOUT, {"version": VERSION, **about})
    recover(folder)
    number_anew(folder, about.get("points", {}), columns)
    return DataSet(folder, columns, kept_of(folder, retry=retry))


def kept_of(folder: Path, *, retry: bool) -> dict[Identity, str]:
    """Statuses of the rows that a sweep goes on with: lost runs, and with `retry` failed ones, are
    made again."""
    return {
        identity(row): row["status"]
        for row in read_table(folder, [*KEY, "status"]).to_pylist()
        if row["status"] == FINISHED or not (retry or row["status"] == LOST)
    }


def _drop(folder: Path) -> None:
    """Drop the rows of a sweep and the figures drawn of them, and no file of somebody else.

    `ABOUT` stays until that of the new sweep takes its place, so that the folder is that of a sweep
    whenever this ends.
    """
    for name in (DATA, f".{DATA}.new", f".{DATA}.old"):
        shutil.rmtree(folder / name, ignore_errors=True)
    figures = folder / FIGURES
    if not figures.is_dir():
        return
    for path in figures.iterdir():
        if path.is_file() and (path.name == "figures.html" or path.name.startswith(_DRAWN)):
            path.unlink()
    if not any(figures.iterdir()):
        figures.rmdir()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other sweeps off a folder.

    Raises:
        SweepError: One writes there already, or no sweep can be there.
    """
    check_usable(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK).open("w") as file:
        _lock(file.fileno(), folder)
        yield


def check_unlocked(folder: Path) -> None:
    """Refuse a folder where another sweep writes.

    Raises:
        SweepError: One does.
    """
    if (folder / _LOCK).is_file():
        with (folder / _LOCK).open() as file:
            _lock(file.fileno(), folder)


def _lock(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SweepError(f"{folder}: another phasewise sweep is writing there") from None
