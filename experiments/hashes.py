"""Fingerprints: which config, trace and code a bundle's numbers come from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_PACKAGES = ("sim", "policies", "traces", "kernels_profile", "experiments")
_SUFFIXES = (".py", ".yaml", ".csv", ".json", ".gz")
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
    digest = hashlib.sha256()
    root = Path(__file__).resolve().parent.parent
    for path in _ours(root):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0")
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _ours(root: Path) -> Iterator[Path]:
    for package in _PACKAGES:
        for path in sorted((root / package).rglob("*")):
            folders = (root / "experiments" / "configs", root / "experiments" / "papers")
            shipped = path.parent in folders and path.suffix == ".yaml"
            if path.suffix in _SUFFIXES and not shipped and "__pycache__" not in path.parts:
                yield path


def of_values(values: Mapping[str, Any]) -> str:
    """SHA-256 of plain values, whatever the order of their keys."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
