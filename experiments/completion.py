"""What the shell completes after Tab: names that are shipped, and files.

Each function gets what was typed of a word and returns what it may become; everything is imported
when Tab is pressed.
"""

from __future__ import annotations

from pathlib import Path


def configs(incomplete: str) -> list[str]:
    """Shipped configs, YAML files and folders."""
    return [*_named("configs", incomplete), *_paths(incomplete, (".yaml", ".yml"))]


def plugins(incomplete: str) -> list[str]:
    """Shipped policies and routers."""
    return [*_named("policies", incomplete), *_named("routers", incomplete)]


def presets(incomplete: str) -> list[str]:
    """Presets of traces."""
    return _named("presets", incomplete)


def models(incomplete: str) -> list[str]:
    """Models with a data sheet, and ``config.json`` files."""
    return [*_named("models", incomplete), *_paths(incomplete, (".json",))]


def devices(incomplete: str) -> list[str]:
    """Devices with a data sheet."""
    return _named("devices", incomplete)


def kinds(incomplete: str) -> list[str]:
    """Kinds of names that can be listed."""
    from experiments.listing import KINDS

    return [kind for kind in KINDS if kind.startswith(incomplete)]


def _named(kind: str, incomplete: str) -> list[str]:
    from experiments.listing import entries

    return [each.name for each in entries(kind) if each.name.startswith(incomplete)]


def _paths(incomplete: str, endings: tuple[str, ...]) -> list[str]:
    folder, _, begun = incomplete.rpartition("/")
    root = Path(folder or ("/" if incomplete.startswith("/") else "."))
    if not root.is_dir():
        return []
    prefix = incomplete[: len(incomplete) - len(begun)]
    found = []
    for path in sorted(root.iterdir()):
        if path.name.startswith(begun) and (begun.startswith(".") or path.name[0] != "."):
            if path.is_dir():
                found.append(f"{prefix}{path.name}/")
            elif path.name.endswith(endings):
                found.append(prefix + path.name)
    return found
