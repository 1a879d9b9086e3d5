"""What lies in a trace file: its bytes as UTF-8 text, or one line that says why it holds none."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from sim.errors import TraceError

_COMPRESSED = {
    b"PK\x03\x04": "a zip archive",
    b"BZh": "bzip2 data",
    b"\xfd7zXZ\x00": "xz data",
    b"\x28\xb5\x2f\xfd": "zstandard data",
    b"PAR1": "a Parquet file",
    b"\x89HDF": "an HDF5 file",
}
_UTF16 = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}
_LFS = b"version https://git-lfs.github.com/spec/"
_MAX_SHOWN = 60


@dataclass
class Source:
    """The text of one file.

    Attributes:
        name: The path as the user wrote it, for messages.
        data: UTF-8 text without a byte-order mark; lines end in LF or CRLF.
        notes: What was odd so far, one sentence each; readers add to it.
        path: Where it lies, for formats that consist of two files.
    """

    name: str
    data: bytes
    notes: list[str] = field(default_factory=list)
    path: Path | None = None

    @property
    def ends_in_newline(self) -> bool:
        """Whether the last line is closed; if not, it may have been cut."""
        return self.data.endswith(b"\n")

    def refuse(self, line: int | None, field: str, value: object, expected: str) -> NoReturn:
        """Raise the one-line `TraceError` for a value that cannot be read.

        Args:
            line: Line of the file, 1-based, or None where there are no lines.
            field: Column or key.
            value: What stands there.
            expected: What would do.
        """
        where = self.name if line is None else f"{self.name}:{line}"
        raise TraceError(f"{where}: {field}: {show(value)}; expected {expected}")


def show(value: object) -> str:
    """`value` as it stands in a message: quoted if text, shortened if long."""
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."


def read_source(path: str | Path) -> Source:
    """Read a file, decompress it if its content is gzip, and decode it to UTF-8.

    Raises:
        TraceError: No such file, empty, truncated or corrupt gzip, another kind of archive, a Git
            LFS
            pointer, a page of HTML, binary data, or text that is not UTF-8.
    """
    path = Path(path)
    try:
        raw = path.read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
        raise TraceError(f"{path}: {reason.lower()}; expected a trace file") from None
    source = Source(str(path), raw, path=path)
    if raw.startswith(b"\x1f\x8b"):
        source.data = _gunzip(source)
    refuse_other_content(source.name, source.data)
    _decode(source)
    if not source.data.strip():
        raise TraceError(f"{source.name}: the file is empty; expected rows")
    return source


def _gunzip(source: Source) -> bytes:
    """The content of all gzip members; zeros after the last one are padding."""
    rest, parts = source.data, []
    while rest.startswith(b"\x1f\x8b"):
        inflate = zlib.decompressobj(wbits=31)
        try:
            parts.append(inflate.decompress(rest))
        except zlib.error as error:
            raise TraceError(
                f"{source.name}: corrupt gzip ({error}); expected a whole file: fetch it again"
            ) from None
        if not inflate.eof:
            size = sum(map(len, parts))
            raise TraceError(
                f"{source.name}: the gzip data ends early, after {size:,} bytes of content;"
                " expected a whole file: fetch it again"
            )
        rest = inflate.unused_data
    if rest.strip(b"\0"):
        raise TraceError(
            f"{source.name}: {len(rest):,} bytes follow the gzip data; expected a whole gzip file"
        )
    return b"".join(parts)


def refuse_other_content(name: str, data: bytes) -> None:
    """Refuse what is known not to be a text of rows: archives, Git LFS pointers, pages of HTML.

    Args:
        name: File or address, for the message.
        data: Its content, or the first few hundred bytes of it.

    Raises:
        TraceError: One line that says what it is and what to do.
    """
    for magic, kind in _COMPRESSED.items():
        if data.startswith(magic):
            raise TraceError(f"{name}: this is {kind}; expected CSV or JSON lines, plain or gzip")
    head = data[:512].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if head.startswith(_LFS):
        raise TraceError(
            f"{name}: a Git LFS pointer, not the data; expected the file itself:"
            " run `git lfs pull` or download it"
        )
    if head.startswith((b"<!doctype", b"<html", b"<?xml", b"<head", b"<body")):
        raise TraceError(
            f"{name}: a page of HTML saved as data; expected the file itself:"
            " download its raw address"
        )


def _decode(source: Source) -> None:
    """Bring `source.data` to UTF-8 without a mark, with LF or CRLF line ends."""
    data = source.data
    encoding = _UTF16.get(data[:2])
    if encoding is not None:
        try:
            data = data[2:].decode(encoding).encode()
        except UnicodeDecodeError:
            raise TraceError(f"{source.name}: broken UTF-16; expected UTF-8 text") from None
        source.notes.append("The file was UTF-16; it was read as such.")
    elif data.startswith(b"\xef\xbb\xbf"):
        data = data[3:]
        source.notes.append("A byte-order mark at the start was left out.")
    if b"\0" in data:
        line = data.count(b"\n", 0, data.index(b"\0")) + 1
        raise TraceError(f"{source.name}:{line}: binary data (a zero byte); expected text")
    if not data.isascii():
        try:
            data.decode()
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise TraceError(
                f"{source.name}:{line}: byte 0x{data[error.start]:02x} is not UTF-8;"
                " expected UTF-8 text"
            ) from None
    if b"\r" in data and b"\n" not in data:
        data = data.replace(b"\r", b"\n")
        source.notes.append("Lines ended in carriage returns alone.")
    source.data = data
