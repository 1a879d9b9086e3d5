"""Rows of a trace file as typed columns, read all at once where plain and one by one where not.

`CsvRows` and `JsonRows` differ in how a file is cut into fields; what a field may hold is the same.
"""

from __future__ import annotations

import csv
import io
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sim.errors import TraceError, nearest
from sim.request import Ints
from traces import arrow, plain, values
from traces.source import Source, show

if TYPE_CHECKING:
    import pyarrow as pa

Parse = Callable[[object], int]


class Rows(ABC):
    """Columns of a file by the names that stand there.

    Attributes:
        source: The file, for messages and notes.
        names: Columns present, in file order.
        lines: (n,) int64, line of the file on which each row starts.
    """

    def __init__(self, source: Source, names: Sequence[str], lines: Ints) -> None:
        self.source = source
        self.names = list(names)
        self.lines = lines

    def __len__(self) -> int:
        return len(self.lines)

    @abstractmethod
    def raw(self, name: str, positions: Iterable[int]) -> list[Any]:
        """What stands in `name` at `positions`, as it is."""

    @abstractmethod
    def strings(self, name: str) -> pa.Array:
        """(n,) the column as text; null where a value is not text."""

    def counts(self, name: str, blank: int | None = None) -> Ints:
        """(n,) int64, numbers of tokens.

        Args:
            name: Column.
            blank: What an empty field means; None refuses it.

        Raises:
            TraceError: Not a whole number from 0 up, with file, line, column and value.
        """
        numbers, odd = plain.counts(self.strings(name))
        return self._careful(name, numbers, odd, values.count, blank)

    def integers(self, name: str, blank: int | None = None) -> Ints:
        """(n,) int64, whole numbers of either sign."""
        numbers, odd = plain.counts(self.strings(name))
        return self._careful(name, numbers, odd, values.integer, blank, quiet=True)

    def spans_ns(self, name: str, unit: str, blank: int | None = None) -> Ints:
        """(n,) int64 ns, times or lengths of time given as numbers of `unit`s."""
        numbers, odd = plain.decimals(self.strings(name), values.UNITS[unit])
        return self._careful(name, numbers, odd, lambda raw: values.span_ns(raw, unit), blank)

    def stamps_ns(self, name: str) -> Ints:
        """(n,) int64 ns since 1970, from timestamps; without a zone they are UTC."""
        text = self.strings(name)
        numbers, odd, zoned = plain.stamps_ns(text)
        if 0 < zoned < len(self):
            self.source.notes.append(
                f"{zoned:,} of {len(self):,} values of {name} have a time zone;"
                " the others were taken as UTC."
            )
        return self._careful(name, numbers, odd, values.stamp_ns, None, quiet=True)

    def texts(self, name: str) -> npt.NDArray[np.object_]:
        """(n,) object, text; None where the field is empty."""
        column = self.raw(name, range(len(self)))
        kept = [None if _is_blank(value) else str(value) for value in column]
        result = np.empty(len(kept), dtype=object)
        result[:] = kept
        return result

    def is_stamp(self, name: str) -> bool:
        """Whether the first value of `name` looks like a timestamp, not a number."""
        first = self.raw(name, [0])[0] if len(self) else ""
        return isinstance(first, str) and first.strip()[4:5] == "-"

    def id_lists(self, name: str) -> list[Ints]:
        """(n,) lists of block ids, each a 1-d int64 array; text is split at blanks.

        Raises:
            TraceError: Not a list of whole numbers, with file, line and value.
        """
        lists = [_split_ids(value) for value in self.raw(name, range(len(self)))]
        for i, ids in enumerate(lists):
            if not isinstance(ids, list) or not set(map(type, ids)) <= {int}:
                self.source.refuse(int(self.lines[i]), name, ids, "a list of whole numbers")
        try:
            flat = np.array(list(chain.from_iterable(lists)), dtype=np.int64)
        except OverflowError:
            for i, ids in enumerate(lists):
                for each in ids:
                    if not -(2**63) <= each < 2**63:
                        self.source.refuse(int(self.lines[i]), name, each, "an id of 64 bits")
            raise
        ends = list(accumulate(map(len, lists), initial=0))
        return [flat[start:end] for start, end in pairwise(ends)]

    def name_lists(self, name: str) -> list[tuple[str, ...]]:
        """(n,) names in each field: a list, or a text that is split at blanks; empty for none.

        Raises:
            TraceError: Neither, with file, line and value.
        """
        lists: list[tuple[str, ...]] = []
        for i, raw in enumerate(self.raw(name, range(len(self)))):
            value = raw.split() if isinstance(raw, str) else [] if raw is None else raw
            value = value if isinstance(value, list) else [value]
            if any(isinstance(each, bool) or not isinstance(each, str | int) for each in value):
                self.source.refuse(int(self.lines[i]), name, raw, "a list of names")
            lists.append(tuple(map(str, value)))
        return lists

    def find(self, *aliases: str) -> str | None:
        """The column that has one of these names, however written (case, blanks, underscores)."""
        wanted = [fold(alias) for alias in aliases]
        known = {fold(name): name for name in reversed(self.names)}
        return next((known[alias] for alias in wanted if alias in known), None)

    def need(self, field: str, *aliases: str) -> str:
        """`find`, or refuse the file with the columns that it has.

        Raises:
            TraceError: No such column.
        """
        found = self.find(*aliases)
        if found is None:
            hint = nearest(aliases[0], self.names)
            names = ", ".join(self.names) or "none"
            raise TraceError(
                f"{self.source.name}: no column for {field} (expected {' or '.join(aliases)});"
                f" found {names}{hint if hint.startswith('; did') else ''}"
            )
        return found

    def _careful(
        self,
        name: str,
        numbers: Ints,
        odd: npt.NDArray[np.intp],
        parse: Parse,
        blank: int | None,
        quiet: bool = False,
    ) -> Ints:
        """Read the `odd` positions one by one, and note how many were not plainly written."""
        first, strange = "", 0
        for i, raw in zip(odd.tolist(), self.raw(name, odd.tolist()), strict=True):
            if blank is not None and _is_blank(raw):
                numbers[i] = blank
                continue
            try:
                numbers[i] = parse(raw)
            except values.BadValueError as error:
                self.source.refuse(int(self.lines[i]), name, raw, str(error))
            if isinstance(raw, str):
                first = first or f"{show(raw)} in line {self.lines[i]:,}"
                strange += 1
        if strange and not quiet:
            self.source.notes.append(
                f"{strange:,} values of {name} were not plainly written (first: {first});"
                " they were read as the numbers that they spell."
            )
        return numbers


class CsvRows(Rows):
    """Rows of a file with one delimiter and a header line.

    Args:
        source: The file.
        names: Column names, if the file has no header line.

    Raises:
        TraceError: Two columns of one name, a row with fewer or more fields than the header, an
            unclosed quote, or no rows.
    """

    def __init__(self, source: Source, names: Sequence[str] | None = None) -> None:
        first = first_line(source)
        self._delimiter = sniff_delimiter(first)
        header = next(csv.reader([first], delimiter=self._delimiter), [])
        found = [name.strip() for name in header] if names is None else list(names)
        _refuse_twins(source, found)
        self._skip = 1 if names is None else 0
        columns = self._read_fast(source, len(found))
        if columns is None:
            columns, lines = self._read_slow(source, len(found))
        else:
            lines = np.arange(1, len(columns[0]) + 1, dtype=np.int64) + self._skip
        if not len(lines):
            raise TraceError(f"{source.name}: a header and no rows; expected at least one row")
        super().__init__(source, [name for name in found if name], lines)
        self._columns = dict(zip(found, columns, strict=True))

    def raw(self, name: str, positions: Iterable[int]) -> list[Any]:
        """What stands in `name` at `positions`, as it is."""
        column = self._columns[name]
        if isinstance(positions, range):
            return column.to_pylist()
        return [column[position].as_py() for position in positions]

    def strings(self, name: str) -> pa.Array:
        """(n,) the column as text."""
        return self._columns[name]

    def _read_fast(self, source: Source, width: int) -> list[pa.Array] | None:
        """All columns at once, or None if some row is not plain: then `_read_slow` says which."""
        import pyarrow as pa
        from pyarrow import csv as arrow_csv

        names = [str(i) for i in range(width)]
        try:
            table = arrow_csv.read_csv(
                pa.BufferReader(source.data),
                # A thread that lets go of Python's bytes while Python ends aborts the process
                # (apache/arrow issue 34314).
                read_options=arrow_csv.ReadOptions(
                    column_names=names, skip_rows=self._skip, use_threads=False
                ),
                parse_options=arrow_csv.ParseOptions(delimiter=self._delimiter),
                convert_options=arrow_csv.ConvertOptions(
                    column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False
                ),
            )
        except pa.ArrowInvalid:
            return None
        line_ends = source.data.count(b"\n") + (not source.ends_in_newline)
        if table.num_rows != line_ends - self._skip or b'"' in source.data:
            return None
        return [_one_chunk(column) for column in table.columns]

    def _read_slow(self, source: Source, width: int) -> tuple[list[pa.Array], Ints]:
        """All columns row by row, blank lines left out with a note."""
        reader = csv.reader(
            io.StringIO(source.data.decode(), newline=""), delimiter=self._delimiter, strict=True
        )
        kept: list[list[str]] = []
        lines: list[int] = []
        blank, skip, line = 0, self._skip, 1
        for row in _rows_of(reader, source):
            start, line = line, reader.line_num + 1
            if not any(map(str.strip, row)) and len(row) <= 1:
                blank += 1
            elif skip:
                skip = 0
            elif len(row) != width:
                _refuse_width(source, start, row, width, last=line > source.data.count(b"\n"))
            else:
                kept.append(row)
                lines.append(start)
        if blank:
            source.notes.append(f"{blank:,} blank lines were left out.")
        columns = list(zip(*kept, strict=True)) or [()] * width
        return [arrow.from_strings(column) for column in columns], np.array(lines, np.int64)


class JsonRows(Rows):
    """Rows of a file with one JSON object a line; numbers with a point are kept exact.

    Raises:
        TraceError: A line that is no JSON object, or a key that is missing in some rows.
    """

    def __init__(self, source: Source) -> None:
        objects, lines = read_json_lines(source)
        names = list(dict.fromkeys(chain.from_iterable(objects)))
        super().__init__(source, names, np.array(lines, dtype=np.int64))
        self.objects = objects

    def raw(self, name: str, positions: Iterable[int]) -> list[Any]:
        """What stands in `name` at `positions`; None where the key is missing."""
        objects = self.objects
        return [objects[i].get(name) for i in positions]

    def strings(self, name: str) -> pa.Array:
        """(n,) the column as text; null where it is neither text nor number."""
        column = [row.get(name) for row in self.objects]
        if not set(map(type, column)) <= {str, type(None)}:
            column = [
                value if isinstance(value, str) else str(value) if _is_number(value) else None
                for value in column
            ]
        return arrow.from_strings(column)

    def counts(self, name: str, blank: int | None = None) -> Ints:
        """(n,) int64, numbers of tokens."""
        column: list[Any] = [row.get(name) for row in self.objects]
        if set(map(type, column)) == {int} and 0 <= min(column) <= max(column) <= values.MAX_COUNT:
            return np.array(column, dtype=np.int64)
        return super().counts(name, blank)


def read_json_lines(source: Source) -> tuple[list[dict[str, Any]], list[int]]:
    """The objects of a JSON-lines file and the line of each; blank lines are left out.

    Raises:
        TraceError: A line that is not one JSON object, with file and line.
    """
    decode = json.JSONDecoder(parse_float=Decimal, object_pairs_hook=_unique).decode
    objects: list[dict[str, Any]] = []
    lines: list[int] = []
    for line, text in enumerate(source.data.decode().split("\n"), start=1):
        if not text or text.isspace():
            continue
        try:
            value = decode(text)
        except (ValueError, RecursionError) as error:
            cut = line > source.data.count(b"\n")
            raise TraceError(
                f"{source.name}:{line}: not JSON ({error});"
                f" expected one object a line{'; the file seems to be cut short' if cut else ''}"
            ) from None
        if not isinstance(value, dict):
            source.refuse(line, "row", value, "a JSON object")
        objects.append(value)
        lines.append(line)
    blank = source.data.count(b"\n") + (not source.ends_in_newline) - len(lines)
    if blank:
        source.notes.append(f"{blank:,} blank lines were left out.")
    return objects, lines


def read_json_documents(source: Source) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line and object of each JSON document: one a line, or a single one over many lines.

    Raises:
        TraceError: Neither; with file and line.
    """
    if _object(first_line(source)) is None and (whole := _object(source.data)) is not None:
        yield 1, whole
        return
    objects, lines = read_json_lines(source)
    yield from zip(lines, objects, strict=True)


def first_document(source: Source) -> dict[str, Any]:
    """The first JSON object of a file, on one line or over many; empty if there is none."""
    return _object(first_line(source)) or _object(source.data) or {}


def fold(name: str) -> str:
    """A column name without case, blanks, underscores and hyphens."""
    return "".join(c for c in name.casefold() if c.isalnum())


def first_line(source: Source) -> str:
    """The first line that is not blank, without its end."""
    for line in io.BytesIO(source.data):
        if line.strip():
            return line.decode().rstrip("\r\n")
    return ""


def sniff_delimiter(line: str) -> str:
    """Comma, semicolon or tab: the one most frequent in `line`."""
    return max(",;\t", key=line.count)


def _rows_of(reader: Any, source: Source) -> Iterable[list[str]]:
    try:
        yield from reader
    except csv.Error as error:
        raise TraceError(
            f"{source.name}:{reader.line_num}: {error}; expected quotes to be closed"
        ) from None


def _refuse_twins(source: Source, names: Sequence[str]) -> None:
    twins = sorted({name for name in names if name and names.count(name) > 1})
    if twins:
        raise TraceError(f"{source.name}:1: two columns named {twins[0]}; expected different names")


def _refuse_width(source: Source, line: int, row: list[str], width: int, last: bool) -> None:
    cut = len(row) < width and last and not source.ends_in_newline
    raise TraceError(
        f"{source.name}:{line}: {len(row)} fields ({show(','.join(row))});"
        f" expected {width} as in the header"
        f"{'; the file seems to be cut short in its last line' if cut else ''}"
    )


def _is_blank(value: object) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _object(text: str | bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(text, parse_float=Decimal, object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys differ; of two values for one key neither is right."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("one key twice in one object")
    return fields


def _split_ids(value: Any) -> Any:
    """The ids that a text such as ``0 17 18`` lists; anything else as it is."""
    if not isinstance(value, str):
        return value
    parts = value.split()
    return list(map(int, parts)) if all(map(str.isdecimal, parts)) else value


def _is_number(value: object) -> bool:
    return isinstance(value, int | Decimal) and not isinstance(value, bool)


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    import pyarrow as pa

    chunks = column.combine_chunks()
    return pa.concat_arrays(chunks.chunks) if isinstance(chunks, pa.ChunkedArray) else chunks
