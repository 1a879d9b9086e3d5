"""Calls per second of the step-time models: ``python -m tests.bench.bench_step_time [SECONDS]``.

The simulator asks about six times per request, so 12,000 requests a second leave 14 us for a call
and all else that belongs to it. Runs are also given as steps a second: 10^6 is what we want of
a model from tables.
"""

import itertools
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

from kernels_profile.roofline import RooflineStepTime
from sim.specs import load_device, load_model
from sim.step_time import LinearStepTime, StepTimeModel, StepWork, bound
from tests.kernels_profile.made_up import model_of, tables

DECODES = StepWork((), 64, 64_000)
CHUNKS = [StepWork([(300, before), (148, 300)], 64, 64_000) for before in (0, 16)]
UNEQUAL = StepWork((), 64, 64_000, context_spread=(64 * 500) ** 2)
RUNS = (1, 4, 11, 31, 32, 100, 1000)


def microseconds(call: Callable[[], object], seconds: float) -> float:
    """Time of one call, best of five."""
    count, best = 100, float("inf")
    for _ in range(5):
        start = perf_counter()
        for _ in range(count):
            call()
        elapsed = perf_counter() - start
        best = min(best, elapsed / count)
        count = max(100, int(seconds / 5 / max(elapsed / count, 1e-9)))
    return best * 1e6


def models(folder: Path) -> dict[str, StepTimeModel]:
    """One of each kind; those from tables as a replica has them."""
    skewed = tables(skews=(0.0, 0.5, 1.0), mixed=True)
    return {
        "linear": LinearStepTime(0.005, 1e-5, 1e-9, 1e-6, 1e-9, 1e-12),
        "roofline": RooflineStepTime(load_model("llama-3.1-8b"), load_device("h100-sxm")),
        "profile": bound(model_of(folder / "plain"), 0, 0),
        "profile, skews": bound(model_of(folder / "skewed", skewed), 0, 0),
        "profile, noise": bound(model_of(folder / "noisy", noise_cv=0.02), 0, 0),
    }


def main(seconds: float) -> None:
    """Print one line for each call of each model."""
    with tempfile.TemporaryDirectory() as folder:
        for name, model in models(Path(folder)).items():
            report(name, model, seconds)


def report(name: str, model: StepTimeModel, seconds: float) -> None:
    """Print the calls of one model."""
    chunks = itertools.cycle(CHUNKS)  # two, so that no model remembers the one
    calls = {
        "step_ns, 64 decodes": lambda model=model: model.step_ns(DECODES, 0),
        "step_ns, 2 chunks and 64 decodes": lambda model=model: model.step_ns(next(chunks), 0),
    } | {
        f"steps_ns, {n} steps": lambda model=model, n=n: model.steps_ns(DECODES, n, 0) for n in RUNS
    }
    calls["steps_ns, 1000 unequal"] = lambda: model.steps_ns(UNEQUAL, 1000, 0)
    for what, call in calls.items():
        us = microseconds(call, seconds)
        steps = int(what.split()[1]) if what.startswith("steps_ns") else 1
        print(
            f"{name:15} {what:34} {us:8.2f} us {1e6 / us:12,.0f} calls/s "
            f"{steps * 1e6 / us:12,.0f} steps/s"
        )


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 0.5)
