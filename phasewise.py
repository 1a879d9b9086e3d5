"""phasewise: replay a request trace through LLM-serving schedulers and compare their latencies."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

PACKAGES = ("sim", "policies", "traces", "kernels_profile", "experiments")
"""Our folders beside this file. Their names are common, so another package may stand before one."""


def main() -> None:
    """Run the command ``phasewise``."""
    try:
        check_shadowing()
    except ImportError as error:
        sys.exit(f"phasewise: {error}")
    from experiments.cli import main as run_command

    run_command()


def check_shadowing() -> None:
    """Make sure that each of `PACKAGES` would be imported from beside this file.

    Raises:
        ImportError: Another package of the same name comes first; one line that names both.
    """
    home = Path(__file__).resolve().parent
    for name in PACKAGES:
        found = _location(name)
        if found is None:
            raise ImportError(f"package {name} is missing: there is no {home / name}", name=name)
        if found != home / name:
            raise ImportError(
                f"package {name} is shadowed: Python finds {found} before {home / name}; "
                "run from another folder, or take that one off PYTHONPATH",
                name=name,
            )


def _location(name: str) -> Path | None:
    """Folder or file from which `import name` would take (or has taken) its module."""
    spec = importlib.util.find_spec(name)
    if spec is None:
        return None
    folders = list(spec.submodule_search_locations or ())
    place = folders[0] if folders else spec.origin
    return Path(place).resolve() if place else None
