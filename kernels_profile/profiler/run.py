"""`profile`: measure what was asked for and is not yet there, into a folder of tables."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Sequence

from kernels_profile.profiler.device import INTERPRETER, Found, driver_says, find, need
from kernels_profile.profiler.effort import Effort
from kernels_profile.profiler.loop import (
    Measures,
    Outcome,
    failures,
    measure_all,
    write_left_out,
)
from kernels_profile.profiler.origin import this_run, write_origin
from kernels_profile.profiler.points import Point
from kernels_profile.profiler.progress import Progress, default_progress, span, to_stderr
from kernels_profile.profiler.request import COMPILE_SHARE, Request, effort_on, lay_out
from kernels_profile.profiler.store import Store, missing
from sim.errors import ProfileError


def profile(
    request: Request,
    say: Callable[[str], object] = to_stderr,
    progress: Progress | None = None,
) -> Outcome:
    """Measure what was asked for and is not yet in the folder.

    Raises:
        ProfileError: no GPU, another GPU than named, a folder with other tables, a device that
            stopped working.
        ConfigError: as of `lay_out`.
    """
    begun = time.monotonic()
    if request.device == "cpu":
        use_interpreter()
    found = find(request.device)
    effort = effort_on(found)
    plan = lay_out(request, found, effort)
    store = Store(request.out, found.spec.name)
    for note in store.notes:
        say(note)
    points = missing(plan.points, store)
    outcome = Outcome(known=len(plan.points) - len(points), left_out=plan.left_out)
    if not points:
        say("nothing is left to measure")
        return outcome
    run = this_run(request.command)
    times = INTERPRETED if found.kind == "cpu" else DEVICE_TIMES
    notes = [times, LIBRARY_KERNELS, *plan.notes, *store.notes]
    write_origin(request.out, found, notes, run)
    measurer = _measurer(request, found, effort, points, say)
    try:
        measure_all(
            points, measurer, store, effort, outcome, request.budget_s, begun,
            progress or default_progress(),
        )  # fmt: skip
    finally:
        outcome.seconds = time.monotonic() - begun
        run |= {"points": outcome.measured, "seconds": round(outcome.seconds, 1)}
        run |= {"clocks_at_end": driver_says()["clocks"]} if found.kind == "cuda" else {}
        write_origin(request.out, found, [*notes, *failures(outcome)], run)
        write_left_out(request.out, outcome)
    return outcome


DEVICE_TIMES = (
    "times are of one launch inside a CUDA graph over inputs that together exceed the L2 cache; "
    "cv and quantiles are over graphs of some launches each"
)
INTERPRETED = "not a profile: wall times of Triton's interpreter, which say nothing of any device"
LIBRARY_KERNELS = (
    "embedding, add and ceilings are torch's own kernels; all else is ours; the sampler is greedy"
)


def _measurer(
    request: Request,
    found: Found,
    effort: Effort,
    points: Sequence[Point],
    say: Callable[[str], object],
) -> Measures:
    from kernels_profile.profiler.measure import Choices, Measurer

    if found.kind == "cuda":
        from kernels_profile.profiler.precompile import compile_ahead

        limit_s = math.inf if request.budget_s is None else COMPILE_SHARE * request.budget_s
        say("compiling ...")
        done = compile_ahead(points, found.kind, request.processes, min(limit_s, 3600))
        say(f"compiled {done.variants} of {done.wanted} variants in {span(done.seconds)}")
        for problem in done.problems[:5]:
            say(f"did not compile: {problem}")
    return Measurer(found.kind, effort, Choices(request.out / "launch_configs.csv"))


def use_interpreter() -> None:
    """Have kernels interpreted in this process.

    Raises:
        ProfileError: torch or triton is not installed, or kernels were loaded to be compiled.
    """
    need("torch")
    need("triton")
    if os.environ.get("TRITON_INTERPRET") == "1":
        return
    if "triton" in sys.modules:
        raise ProfileError(
            f"device: {INTERPRETER.name} needs TRITON_INTERPRET=1 before triton is loaded"
        )
    os.environ["TRITON_INTERPRET"] = "1"
