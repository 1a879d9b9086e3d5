"""Step times from kernels: measured tables of them, and the analytic roofline.

`STEP_TIMES` names the models that a config can choose. Start reading in `step_time.py` for tables
(`table.py` has their columns), and in `roofline.py` for the closed forms, whose numbers are in
`efficiency/`; `fit.py` is what made them.
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


def _profile(**options: Any) -> StepTimeModel:
    from kernels_profile.step_time import ProfiledStepTime

    return ProfiledStepTime(**options)


def _distserve_fit(**options: Any) -> StepTimeModel:
    from kernels_profile.distserve import DistServeStepTime

    return DistServeStepTime(**options)


STEP_TIMES: Mapping[str, Callable[..., StepTimeModel]] = MappingProxyType(
    {
        "linear": LinearStepTime,
        "roofline": _roofline,
        "profile": _profile,
        "distserve-fit": _distserve_fit,
    }
)
"""What builds a step-time model, by its name in a config; options by keyword."""
