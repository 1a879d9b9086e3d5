"""Files of other projects, read with one clear error where something is missing or wrong."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from kernels_profile.table import MOST_SIZE, MOST_US
from sim.errors import ConfigError, nearest

if TYPE_CHECKING:
    import pandas as pd

LFS_MARK = b"version https://git-lfs.github.com/spec/"
"""First bytes of what Git leaves in place of a large file that was not downloaded."""


@dataclass(frozen=True)
class Provenance:
    """Where a profile comes from, as far as its files say.

    Attributes:
        revision: Commit of the source repository, ``unknown`` where nothing says.
        licence: Of the data.
    """

    revision: str
    licence: str


def read_table(path: Path, required: Sequence[str]) -> pd.DataFrame:
    """Rows of a table: CSV, the same in a .txt, or Parquet.

    Args:
        path: The file.
        required: Columns that must be there.

    Returns:
        All columns, (rows, columns); at least one row.

    Raises:
        ConfigError: no such file, a Git LFS pointer, another format, a missing column, no rows.
    """
    import pandas as pd

    if not path.is_file():
        raise ConfigError(f"{path}: no such file")
    refuse_pointer(path)
    try:
        parquet = path.suffix == ".parquet"
        table = read_parquet(path) if parquet else pd.read_csv(path, low_memory=False)
    except (ValueError, OSError) as error:  # what pandas and pyarrow raise on another format
        first = str(error).splitlines()[0]
        raise ConfigError(f"{path}: is no {_format(path)} table: {first}") from None
    missing = [name for name in required if name not in table.columns]
    if missing:
        if len(table.columns) == 1 and ";" in str(table.columns[0]):
            raise ConfigError(f"{path}: line 1: columns are separated by ';'; use commas")
        hint = nearest(missing[0], [str(name) for name in table.columns])
        raise ConfigError(f"{path}: has no column {', '.join(missing)}{hint}")
    if table.empty:
        raise ConfigError(f"{path}: has no rows")
    return table


def read_parquet(path: Path) -> pd.DataFrame:
    """A Parquet file, opened by Arrow itself.

    `pandas.read_parquet` opens it in Python, and a thread of Arrow's that lets go of something of
    Python's while Python ends aborts the process (apache/arrow issue 34314).
    """
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        return cast("pd.DataFrame", file.read().to_pandas())


def _format(path: Path) -> str:
    return "Parquet" if path.suffix == ".parquet" else "CSV"


def refuse_pointer(path: Path) -> None:
    """Refuse a file that is only Git LFS's pointer to the real one.

    Raises:
        ConfigError: it is one; says how many bytes were not downloaded, and how to get them.
    """
    with path.open("rb") as file:
        start = file.read(512)
    if not start.startswith(LFS_MARK):
        return
    size = re.search(rb"size (\d+)", start)
    what = f" to {int(size[1]):,} bytes that were not downloaded" if size else ""
    raise ConfigError(
        f"{path}: is a Git LFS pointer{what}, not the table; run `git lfs pull --include "
        f"{path.name}` in that checkout"
    )


def whole(table: pd.DataFrame, columns: Iterable[str], path: Path, least: int = 0) -> None:
    """Check, and make integers, columns that count something.

    Raises:
        ConfigError: a value that is no whole number of at least `least`, with its row.
    """
    import pandas as pd

    for name in columns:
        values = pd.to_numeric(table[name], errors="coerce")
        wrong = ~((values >= least) & (values <= MOST_SIZE) & (values % 1 == 0))
        if wrong.any():
            _refuse(table, name, path, wrong, f"a whole number from {least} to {MOST_SIZE:g}")
        table[name] = values.astype("int64")


def positive(table: pd.DataFrame, column: str, path: Path) -> None:
    """Check that a column holds times above 0, in whichever unit.

    Raises:
        ConfigError: a value that is none, with its row.
    """
    import pandas as pd

    values = pd.to_numeric(table[column], errors="coerce")
    wrong = ~((values > 0) & (values <= MOST_US))
    if wrong.any():
        _refuse(table, column, path, wrong, f"a time above 0 (and of {MOST_US:g} at most)")
    if values.dtype == "float32":  # as its digits say, not with those that a longer float adds
        values = values.map(lambda value: float(f"{value:.7g}"))
    table[column] = values.astype("float64")


def at_least_0(
    table: pd.DataFrame, columns: Iterable[str], path: Path, *, blank: bool = False
) -> None:
    """Check, and make floats, columns that hold times or spreads of 0 or more.

    Args:
        table: Rows.
        columns: Of them; those that the table lacks are passed over.
        path: For messages.
        blank: A cell may be empty.

    Raises:
        ConfigError: a value that is none, with its row.
    """
    import pandas as pd

    for name in columns:
        if name not in table:
            continue
        values = pd.to_numeric(table[name], errors="coerce")
        wrong = ~((values >= 0) & (values <= MOST_US))
        if blank:
            wrong &= table[name].notna()
        if wrong.any():
            _refuse(table, name, path, wrong, f"a number from 0 to {MOST_US:g}")
        table[name] = values.astype("float64")


def flags(table: pd.DataFrame, column: str, path: Path) -> None:
    """Check, and make booleans, a column that says True or False.

    Raises:
        ConfigError: a value that is neither, with its row.
    """
    said = table[column].astype(str).str.lower()
    wrong = ~said.isin(("true", "false", "1", "0"))
    if wrong.any():
        _refuse(table, column, path, wrong, "True or False")
    table[column] = said.isin(("true", "1"))


def _refuse(table: pd.DataFrame, column: str, path: Path, wrong: pd.Series, wanted: str) -> None:
    row = int(wrong.to_numpy().argmax())
    line = f"row {row + 1}" if path.suffix == ".parquet" else f"line {int(table.index[row]) + 2}"
    raise ConfigError(f"{path}: {line}: {column} is {table[column].iloc[row]!s}, not {wanted}")


def provenance(path: Path, revision: str | None, licence: str) -> Provenance:
    """Revision and licence: as given, else as a README beside the data or the checkout says.

    Args:
        path: File or folder that is imported.
        revision: The user's own word, None for none.
        licence: The project's, where no README states one.
    """
    folder = path if path.is_dir() else path.parent
    text = ""
    readme = folder / "README.md"
    if readme.is_file():
        text = " ".join(readme.read_text(encoding="utf-8", errors="replace").split())
    stated = re.search(r"Licence: ([A-Za-z0-9.+-]*[A-Za-z0-9](?: \([^)]*\))?)", text)
    found = re.search(r"\brev(?:ision)? ([0-9a-f]{7,40})\b", text)
    commit = revision or (found[1] if found else None) or checkout_revision(folder)
    return Provenance(commit or "unknown", stated[1] if stated else licence)


def checkout_revision(folder: Path) -> str | None:
    """Commit of the Git checkout that holds a folder, None where it is in none."""
    for parent in (folder.absolute(), *folder.absolute().parents):
        head = parent / ".git" / "HEAD"
        if not head.is_file():
            continue
        text = head.read_text(encoding="utf-8").strip()
        if not text.startswith("ref: "):
            return text
        loose = parent / ".git" / text.removeprefix("ref: ")
        return loose.read_text(encoding="utf-8").strip() if loose.is_file() else None
    return None
