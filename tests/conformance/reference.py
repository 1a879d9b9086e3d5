"""Loads the conformance reference from the shared folder; it is imported, never copied."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def load_reference(shared: Path) -> ModuleType:
    """The module ``conformance/refsim.py`` of the shared folder."""
    name = "phasewise_conformance_reference"
    if name in sys.modules:
        return sys.modules[name]
    path = shared / "conformance" / "refsim.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, path
    assert spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up while it is being executed
    spec.loader.exec_module(module)
    return module
