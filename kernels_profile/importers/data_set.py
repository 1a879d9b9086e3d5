"""What an importer hands over: the tables of one device, to be written as a data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

TIME_COLUMNS = ("time_us", "p10_us", "p90_us", "cv", "repeats")
"""What is measured; all other columns of a table are its key."""


@dataclass
class Imported:
    """Measured tables of one device.

    Attributes:
        device: Name of our sheet.
        origin: Which files of which project.
        engine: Whose kernels were timed.
        version: Of that engine.
        tables: Rows by table (``linear``, ``attention_decode``, ...), each with `time_us`.
        notes: What a user should know about them.
        gpu: What the source says about the card.
        variant: Added to the folder's name where a device has several sets.
    """

    device: str
    origin: str
    engine: str
    version: str
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    gpu: dict[str, object] = field(default_factory=dict)
    variant: str = ""

    @property
    def folder(self) -> str:
        """Name of its folder."""
        return f"{self.device}-{self.variant}" if self.variant else self.device

    def add(self, name: str, columns: Mapping[str, object]) -> None:
        """Add rows to a table; scalars are repeated."""
        import pandas as pd

        rows = pd.DataFrame(columns)
        if rows.empty:
            return
        before = self.tables.get(name)
        self.tables[name] = rows if before is None else pd.concat([before, rows])

    def note(self, text: str) -> None:
        """Add a note once."""
        if text not in self.notes:
            self.notes.append(text)

    def finish(self) -> None:
        """Give each key one row (the median where several were measured), sorted."""
        for name, rows in self.tables.items():
            keys = [column for column in rows.columns if column not in TIME_COLUMNS]
            repeated = int(rows.duplicated(keys).sum())
            if repeated:
                shapes = "shape was" if repeated == 1 else "shapes were"
                self.note(f"{name}: {repeated} {shapes} measured again: the median is kept")
            self.tables[name] = one_row_each(rows, keys)


def one_row_each(rows: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """The median over rows of equal key, sorted by key."""
    grouped = rows.groupby(list(keys), sort=True, observed=True, as_index=False)
    return grouped.median(numeric_only=True)
