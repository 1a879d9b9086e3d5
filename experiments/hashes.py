"""Fingerprints: which config, trace and code a bundle's numbers come from."""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

_PACKAGES = ("sim", "policies", "traces", "kernels_profile", "experiments")
_SUFFIXES = frozenset({".py", ".yaml", ".csv", ".json", ".gz"})
_CHUNK = 1 << 20


def of_file(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def of_code() -> str:
    """SHA-256 over the names and bytes of our own code and data, shipped configs left out."""
    root = Path(__file__).resolve().parent.parent
    return _of_files(root, tuple(_ours(root)))


@functools.lru_cache(maxsize=1)
def _of_files(root: Path, files: tuple[_Seen, ...]) -> str:
    """Files are read anew where one of them has changed: a search asks before every run."""
    digest = hashlib.sha256()
    for each in files:
        digest.update(each.path.encode() + b"\0")
        digest.update((root / each.path).read_bytes())
    return digest.hexdigest()


class _Seen(NamedTuple):
    """A file as it was found; the path from the root, with slashes."""

    path: str
    size: int
    changed_ns: int


def _ours(root: Path) -> Iterator[_Seen]:
    experiments = root / "experiments"
    shipped = {experiments / "configs", experiments / "papers"}
    for package in _PACKAGES:
        for where, below, names in os.walk(root / package):
            below[:] = sorted(set(below) - {"__pycache__"})
            folder = Path(where)
            suffixes = _SUFFIXES if folder not in shipped else _SUFFIXES - {".yaml"}
            start = folder.relative_to(root).as_posix()
            for name in sorted(names):
                if os.path.splitext(name)[1] in suffixes:
                    stat = os.stat(os.path.join(where, name))
                    yield _Seen(f"{start}/{name}", stat.st_size, stat.st_mtime_ns)


def of_values(values: Mapping[str, Any]) -> str:
    """SHA-256 of plain values, whatever the order of their keys."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
