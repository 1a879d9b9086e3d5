"""The engines that hand-worked timelines are checked on."""

from __future__ import annotations

import pytest

from tests.conformance import adapter, cases, reference
from tests.sim.timeline import Engine


@pytest.fixture(params=[False, True], ids=["stepping", "fast-forward"])
def fast_forward(request: pytest.FixtureRequest) -> bool:
    """Both ways to run what the reference does not cover."""
    return bool(request.param)


@pytest.fixture(params=["stepping", "fast-forward", "reference"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """Runs a workload: ours step by step, ours with fast-forward, or the conformance reference."""
    if request.param == "reference":
        module = reference.load_reference(request.getfixturevalue("shared"))
        return lambda spec: cases.observe_reference(spec, module.simulate(**spec))
    fast_forward = request.param == "fast-forward"
    return lambda spec: adapter.observe(spec, fast_forward=fast_forward)
