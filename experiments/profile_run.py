"""``phasewise profile run``: what was typed, as a request to the profiler, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from kernels_profile.profiler.device import find
from kernels_profile.profiler.plan import budget_text, plan_text
from kernels_profile.profiler.request import COMPILE_SHARE, Request, effort_on, lay_out
from sim.errors import ConfigError, ProfileError


def run(
    *,
    models: Sequence[str],
    out: Path,
    device: str,
    tensor_parallel: Sequence[str] | None,
    dtypes: Sequence[str] | None,
    tables: Sequence[str] | None,
    budget_s: float | None,
    processes: int,
    plan_only: bool,
) -> None:
    """Profile, or say what would be measured.

    Raises:
        ConfigError: an unknown model, type or table, a parallelism that does not divide.
        ProfileError: no GPU, another one than was named, tables of another device in the folder.
    """
    request = Request(
        models=listed(models) or (),
        out=out,
        device=device,
        tensor_parallel=[_whole(text) for text in listed(tensor_parallel) or ("1",)],
        dtypes=listed(dtypes),
        tables=listed(tables),
        budget_s=budget_s,
        processes=processes,
    )
    if plan_only:
        found = find(device, plan_only=True)
        effort = effort_on(found)
        plan = lay_out(request, found, effort)
        share = 0.0 if found.kind == "cpu" else COMPILE_SHARE
        budget = [] if budget_s is None else budget_text(plan, effort, budget_s, share)
        typer.echo(plan_text(plan, found.spec.name, effort, budget))
        return
    from kernels_profile.profiler.run import profile

    outcome = profile(request)
    typer.echo(f"{outcome}: {out}")
    if outcome.failed:
        point, why = outcome.failed[0]
        raise ProfileError(
            f"{len(outcome.failed)} points failed (all are in {out / 'left_out.csv'}), the first "
            f"one {point}: {why}"
        )


def listed(given: Sequence[str] | None) -> list[str] | None:
    """Values of an option that may be repeated, and may have commas; None if there is none."""
    if given is None:
        return None
    return [part.strip() for text in given for part in text.split(",") if part.strip()]


def _whole(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise ConfigError(f"tensor_parallel: {text} is not a number of GPUs: 1 or more")
    return value
