"""Finds the plain reference of the base rules, `refsim`, which the modules here extend.

Looked for in this order: a module of that name already imported, the file named by the environment
variable REFSIM, `refsim.py` beside this file, and `shared/conformance/refsim.py` in a folder above.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType


def find() -> Path | None:
    """The file of the base reference, or None."""
    here = Path(__file__).resolve().parent
    places = [Path(os.environ["REFSIM"])] if "REFSIM" in os.environ else []
    places.append(here / "refsim.py")
    places += [above / "shared" / "conformance" / "refsim.py" for above in here.parents]
    return next((place for place in places if place.is_file()), None)


def load() -> ModuleType:
    """The base reference as a module."""
    if "refsim" in sys.modules:
        return sys.modules["refsim"]
    path = find()
    if path is None:
        raise ImportError("refsim.py not found; set REFSIM to its path")
    spec = importlib.util.spec_from_file_location("refsim", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["refsim"] = module
    spec.loader.exec_module(module)
    return module


refsim = load()
