"""What `meta.yaml` says of a profile: device, versions, command, date and our commit."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kernels_profile.profiler.device import Found
from kernels_profile.table import META, Meta, read_meta, write_meta

KERNELS = "phasewise-kernels"
REPOSITORY = Path(__file__).resolve().parent.parent.parent


def write_origin(folder: Path, found: Found, notes: Sequence[str], run: Mapping[str, Any]) -> None:
    """Write `meta.yaml`; runs that measured into the folder before stay listed.

    Args:
        folder: The data set.
        found: What was measured on.
        notes: What a reader should know of the tables.
        run: Of this run: command, date, commit, versions, points, seconds.
    """
    runs = [earlier for earlier in _runs(folder) if earlier.get("date") != run["date"]]
    interpreted = found.kind == "cpu"
    more: dict[str, Any] = {
        "engine": KERNELS,
        "version": run["version"],
        "licence": "Apache-2.0",
        "gpu": dict(found.gpu),
        "versions": dict(run["versions"]),
        "command": run["command"],
        "date": run["date"],
        "commit": run["commit"],
        "notes": list(notes),
        "runs": [*runs, dict(run)],
    }
    what = "Triton's interpreter on a CPU" if interpreted else str(found.gpu.get("name"))
    write_meta(folder, Meta(found.spec.name, f"our Triton kernels on {what}", "own", more))


def this_run(command: str) -> dict[str, Any]:
    """What is known of a run when it starts."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
        "commit": commit(),
        "version": version(),
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Of torch, triton, CUDA and Python, as far as they are here."""
    found = {"python": platform.python_version()}
    for name in ("torch", "triton", "numpy"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    torch = sys.modules.get("torch")  # a plan does not load it for this
    if torch is not None:
        found["cuda"] = str(getattr(torch.version, "cuda", None))
    return found


def commit() -> str:
    """Commit of our checkout, with ``+changes`` if files differ; else the package's version.

    For a copy without its history, ``PHASEWISE_COMMIT`` names the commit.
    """
    if named := os.environ.get("PHASEWISE_COMMIT"):
        return named
    if (REPOSITORY / ".git").exists() and (git := shutil.which("git")):
        head = _said([git, "-C", str(REPOSITORY), "rev-parse", "HEAD"])
        changed = _said([git, "-C", str(REPOSITORY), "status", "--porcelain", "-uno"])
        if head:
            return head + ("+changes" if changed else "")
    return f"no checkout: version {version()}"


def version() -> str:
    """Version of our package; that of a checkout which is not installed is read from its file."""
    try:
        return importlib.metadata.version("phasewise")
    except importlib.metadata.PackageNotFoundError:
        pass
    path = REPOSITORY / "experiments" / "version.py"
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    found = re.search(r'__version__ = "([^"]+)"', text)
    return found.group(1) if found else "not known"


def _said(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def _runs(folder: Path) -> list[dict[str, Any]]:
    if not (folder / META).is_file():
        return []
    runs = read_meta(folder).more.get("runs", [])
    return [run for run in runs if isinstance(run, dict)] if isinstance(runs, list) else []
