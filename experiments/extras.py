"""Optional dependencies: imported where they are used, named in one line where they lack."""

from __future__ import annotations

import importlib
from types import ModuleType

from sim.errors import PhasewiseError


class MissingExtraError(PhasewiseError):
    """A feature was asked for whose optional dependency is not installed."""


class UndrawnError(PhasewiseError):
    """Nothing but images was asked for, and not one could be written."""


def require(module: str, extra: str, purpose: str = "this") -> ModuleType:
    """Import and return an optional dependency.

    Args:
        module: What to import, such as ``kaleido``.
        extra: The extra of our distribution that installs it, such as ``figures``.
        purpose: What needs it, as the beginning of a sentence: ``writing SVG files``.

    Raises:
        MissingExtraError: It is not installed; the message says what to install.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise  # it is installed, and lacks something itself
        raise MissingExtraError(
            f"{purpose} needs {module}, which is not installed; "
            f'install it with: pip install "phasewise[{extra}]"'
        ) from None
