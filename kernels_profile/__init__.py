"""Step times from kernels: the analytic roofline and its fitted efficiencies.

`STEP_TIMES` names the models that a config can choose. Start reading in `roofline.py`; the numbers
are in `efficiency/`, and `fit.py` is what made them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from sim.step_time import LinearStepTime, StepTimeModel


def _roofline(**options: Any) -> StepTimeModel:
    # Imported here: a run with closed-form step times reads no table.
    from kernels_profile.roofline import RooflineStepTime

    return RooflineStepTime(**options)


def _distserve_fit(**options: Any) -> StepTimeModel:
    from kernels_profile.distserve import DistServeStepTime

    return DistServeStepTime(**options)


STEP_TIMES: Mapping[str, Callable[..., StepTimeModel]] = MappingProxyType(
    {"linear": LinearStepTime, "roofline": _roofline, "distserve-fit": _distserve_fit}
)
"""What builds a step-time model, by its name in a config; options by keyword."""
