"""Calls per second of the step-time models: ``python tests/bench/bench_step_time.py [SECONDS]``.

The simulator asks about six times per request, so 12,000 requests a second leave 14 us for a call
and all else that belongs to it.
"""

import sys
from collections.abc import Callable
from time import perf_counter

from kernels_profile.roofline import RooflineStepTime
from sim.specs import load_device, load_model
from sim.step_time import LinearStepTime, StepTimeModel, StepWork

DECODES = StepWork((), 64, 64_000)
CHUNKS = StepWork([(300, 0), (148, 300)], 64, 64_000)
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


def main(seconds: float) -> None:
    """Print one line for each call of each model."""
    models: dict[str, StepTimeModel] = {
        "linear": LinearStepTime(0.005, 1e-5, 1e-9, 1e-6, 1e-9, 1e-12),
        "roofline": RooflineStepTime(load_model("llama-3.1-8b"), load_device("h100-sxm")),
    }
    for name, model in models.items():
        calls = {
            "step_ns, 64 decodes": lambda model=model: model.step_ns(DECODES, 0),
            "step_ns, 2 chunks and 64 decodes": lambda model=model: model.step_ns(CHUNKS, 0),
        } | {
            f"steps_ns, {n} steps": lambda model=model, n=n: model.steps_ns(DECODES, n, 0)
            for n in RUNS
        }
        for what, call in calls.items():
            us = microseconds(call, seconds)
            print(f"{name:9} {what:34} {us:8.2f} us {1e6 / us:12,.0f} calls/s")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 0.5)
