"""Everything that a card is borrowed for, in one command and in the order of its worth.

    python -m kernels_profile.profiler.session --out DIR [--budget-s 300]

checks the kernels on the card (20 s), profiles within the budget, measures whole steps of the
real model's shape, and replays a trace for at most 120 s. Each part runs in a process of its own,
ended when its time is over: a part that fails takes no other with it, and what was written stays
valid. Needs torch, triton, numpy and PyYAML, and for the replay simpy; no network.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernels_profile.profiler.device import find
from kernels_profile.profiler.progress import to_stderr
from kernels_profile.profiler.request import Request
from sim.errors import PhasewiseError
from sim.specs import load_model

GRACE_S = 45.0
"""What a part may take beyond its time: loading torch, a last point, writing."""

STEPS = "kernels_profile.engine.steps"
REPLAYS = ("kernels_profile.engine.replay", "experiments.replay")
"""Modules of the parts that are not the profiler's; a part whose module is absent is said to be."""

LOG = "session.json"


@dataclass(frozen=True)
class Part:
    """One part of a session.

    Attributes:
        name: As in the log.
        limit_s: Its time.
        run: What it does in its process; returns an exit code.
    """

    name: str
    limit_s: float
    run: Callable[[argparse.Namespace], int]


def parts(asked: argparse.Namespace) -> list[Part]:
    """The parts in their order."""
    return [
        Part("sanity", asked.sanity_s, sanity),
        Part("profile", asked.budget_s, profile),
        Part("steps", asked.steps_s, steps),
        Part("replay", asked.replay_s, replay),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all parts, or with ``--part`` one of them in this process; 1 if any failed."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    asked = _parser().parse_args(given)
    try:
        if asked.part:
            return next(part for part in parts(asked) if part.name == asked.part).run(asked)
        _check(asked)
        return run_all(asked, given)
    except PhasewiseError as error:
        to_stderr(f"phasewise: {' '.join(str(error).split())}")
        return 2


def run_all(asked: argparse.Namespace, given: Sequence[str]) -> int:
    """Each part in a process of its own; the log is written after each."""
    log: list[dict[str, object]] = []
    for part in parts(asked):
        to_stderr(f"--- {part.name}: at most {part.limit_s:.0f} s")
        begun = time.monotonic()
        result = _in_process(part, given)
        log.append(
            {"part": part.name, "result": result, "seconds": round(time.monotonic() - begun, 1)}
        )
        asked.out.mkdir(parents=True, exist_ok=True)
        (asked.out / LOG).write_text(json.dumps(log, indent=1) + "\n", encoding="utf-8")
        to_stderr(f"--- {part.name}: {result}")
    return 0 if all(entry["result"] in ("done", ABSENT, NO_GPU) for entry in log) else 1


ABSENT, ABSENT_CODE = "not there: this checkout has no module for it", 64
NO_GPU, NO_GPU_CODE = "not done: it needs a GPU", 65


def _in_process(part: Part, given: Sequence[str]) -> str:
    command = [sys.executable, "-m", "kernels_profile.profiler.session", *given]
    command += ["--part", part.name]
    try:
        done = subprocess.run(command, check=False, timeout=part.limit_s + GRACE_S)
    except subprocess.TimeoutExpired:
        return f"ended after {part.limit_s + GRACE_S:.0f} s; what it wrote stays"
    if done.returncode in (ABSENT_CODE, NO_GPU_CODE):
        return ABSENT if done.returncode == ABSENT_CODE else NO_GPU
    return "done" if done.returncode == 0 else f"failed with exit code {done.returncode}"


def sanity(asked: argparse.Namespace) -> int:
    """Check the kernels; writes `sanity.csv`."""
    import csv

    from kernels_profile.profiler.run import use_interpreter
    from kernels_profile.profiler.sanity import check_kernels

    if asked.device == "cpu":
        use_interpreter()
    found = find(asked.device)
    fp8 = found.spec.fp8_flops is not None
    result = check_kernels(found.kind, fp8, asked.sanity_s, asked.processes, asked.kernels)
    asked.out.mkdir(parents=True, exist_ok=True)
    with (asked.out / "sanity.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("check", "good", "error", "limit", "problem"))
        for c in result.checked:
            writer.writerow((c.name, c.good, f"{c.error:.3g}", c.limit, c.problem))
    to_stderr(str(result))
    for check in result.bad[:10]:
        said = check.problem or f"error {check.error:.3g} over {check.limit:g}"
        to_stderr(f"wrong: {check.name}: {said}")
    (asked.out / SPOILED).write_text("\n".join(sorted(result.spoiled())), encoding="utf-8")
    return 1 if result.bad or not result.checked else 0


SPOILED = "spoiled_tables.txt"
"""Tables that rest on a kernel that is wrong on this card, one a line: not measured."""


def profile(asked: argparse.Namespace) -> int:
    """Profile all tables whose kernels are right."""
    from kernels_profile.profiler.run import profile as measure
    from kernels_profile.table import OPERATORS

    spoiled = _spoiled(asked.out)
    if spoiled:
        to_stderr(f"not measured, as a kernel is wrong here: {', '.join(sorted(spoiled))}")
    tables = [name for name in asked.tables or OPERATORS if name not in spoiled]
    request = Request(
        models=asked.models,
        out=asked.out,
        device=asked.device,
        tensor_parallel=asked.tensor_parallel,
        tables=tables if spoiled or asked.tables else None,
        budget_s=asked.budget_s,
        processes=asked.processes,
    )
    outcome = measure(request)
    to_stderr(str(outcome))
    return 1 if outcome.failed or not (outcome.measured or outcome.known) else 0


def steps(asked: argparse.Namespace) -> int:
    """Whole steps of the first model: `kernels_profile.engine.steps.measure`."""
    if importlib.util.find_spec(STEPS) is None:
        return ABSENT_CODE
    if asked.device == "cpu":
        return NO_GPU_CODE
    module = importlib.import_module(STEPS)
    tp = asked.tensor_parallel[0]
    module.measure(asked.out, load_model(asked.models[0]), tp, asked.steps_s, asked.device)
    return 0


def replay(asked: argparse.Namespace) -> int:
    """A trace served on the card: `main` of the replay's module, told where and for how long."""
    if asked.device == "cpu":
        return NO_GPU_CODE
    for name in REPLAYS:
        if importlib.util.find_spec(name) is None:
            continue
        main = getattr(importlib.import_module(name), "main", None)
        if main is not None:
            said = ["--out", str(asked.out / "replay"), "--model", asked.models[0]]
            said += ["--tables", str(asked.out), "--duration-s", f"{asked.replay_s:g}"]
            return int(main(said) or 0)
    return ABSENT_CODE


def _spoiled(out: Path) -> set[str]:
    path = out / SPOILED
    return set(path.read_text(encoding="utf-8").split()) if path.is_file() else set()


def _check(asked: argparse.Namespace) -> None:
    """Refuse what no part could run with, before any starts."""
    from kernels_profile.profiler.request import shards_of

    interpreted = asked.device == "cpu"
    shards_of(Request(asked.models, asked.out, tensor_parallel=asked.tensor_parallel), interpreted)
    if not interpreted:
        find(asked.device)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m kernels_profile.profiler.session",
        description=(__doc__ or "").split("\n")[0],
    )
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder of the tables and all else")
    add("--device", default="auto", help="auto, a data sheet's name, or cpu (the interpreter)")
    add("--models", nargs="+", default=["llama-3.1-8b"], help="sheets; the first is also replayed")
    add("--tensor-parallel", nargs="+", type=int, default=[1])
    add("--budget-s", type=float, default=300.0, help="of the profile")
    add("--sanity-s", type=float, default=20.0)
    add("--steps-s", type=float, default=60.0)
    add("--replay-s", type=float, default=120.0)
    add("--processes", type=int, default=0, help="that compile; 0 for one a core")
    add("--tables", nargs="+", help="profile only these tables")
    add("--kernels", nargs="+", help="check only these kernels at the start")
    add("--part", choices=("sanity", "profile", "steps", "replay"), help="only this one, here")
    return parser


if __name__ == "__main__":
    sys.exit(main())
