"""Everything that a card is borrowed for, in one command and in the order of its worth.

    python -m kernels_profile.profiler.session --out DIR [--budget-s 300]

checks the kernels on the card (20 s), profiles within the budget, measures whole steps of the
real model's shape, and replays a trace for at most 120 s. Each part runs in a process of its own,
ended when its time is over: a part that fails takes no other with it, and what was written stays
valid. Needs torch, triton, numpy and PyYAML, and for the replay simpy; no network.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kernels_profile.profiler.device import find
from kernels_profile.profiler.progress import to_stderr
from kernels_profile.profiler.request import Request
from sim.errors import PhasewiseError
from sim.specs import load_model

GRACE_S = 60.0
"""What a part may take beyond its time: loading torch and weights, a last point, writing."""

OURS = "kernels_profile.profiler.session"
STEPS = "kernels_profile.engine.steps"
REPLAY = "experiments.replay"
"""Started as a command of its own, never imported: nothing below `experiments` may."""

LOG = "session.json"


@dataclass(frozen=True)
class Part:
    """One part of a session.

    Attributes:
        name: As in the log.
        limit_s: Its time.
        module: Run by ``python -m`` in a process of its own.
        arguments: Its command line.
        needs_gpu: The interpreter is too slow for it.
    """

    name: str
    limit_s: float
    module: str
    arguments: tuple[str, ...]
    needs_gpu: bool = False

    @property
    def command(self) -> list[str]:
        """What is run."""
        return [sys.executable, "-m", self.module, *self.arguments]


def parts(asked: argparse.Namespace, given: Sequence[str]) -> list[Part]:
    """The parts in their order; `given` is the session's own command line."""
    times = {"sanity": asked.sanity_s, "profile": asked.budget_s, "steps": asked.steps_s}
    ours = [
        Part(name, limit_s, OURS, (*given, "--part", name), needs_gpu=name == "steps")
        for name, limit_s in times.items()
    ]
    replay = [
        *("--out", str(asked.out / "replay"), "--tables", str(asked.out)),
        *("--model", asked.models[0], "--device", asked.device),
        *("--tensor-parallel", str(asked.tensor_parallel[0])),
        *("--duration-s", f"{asked.replay_s:g}"),
    ]
    return [*ours, Part("replay", asked.replay_s, REPLAY, tuple(replay), needs_gpu=True)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all parts, or with ``--part`` one of them in this process; 1 if any failed."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    asked = _parser().parse_args(given)
    try:
        if asked.part:
            return {"sanity": sanity, "profile": profile, "steps": steps}[asked.part](asked)
        _check(asked)
        return run_all(asked, given)
    except PhasewiseError as error:
        to_stderr(f"phasewise: {' '.join(str(error).split())}")
        return 2


def run_all(asked: argparse.Namespace, given: Sequence[str]) -> int:
    """Each part in a process of its own; the log is written after each."""
    log: list[dict[str, object]] = []
    for part in parts(asked, given):
        to_stderr(f"--- {part.name}: at most {part.limit_s:.0f} s")
        begun = time.monotonic()
        result = NO_GPU if part.needs_gpu and asked.device == "cpu" else run_part(part)
        log.append(
            {"part": part.name, "result": result, "seconds": round(time.monotonic() - begun, 1)}
        )
        asked.out.mkdir(parents=True, exist_ok=True)
        (asked.out / LOG).write_text(json.dumps(log, indent=1) + "\n", encoding="utf-8")
        to_stderr(f"--- {part.name}: {result}")
    return 0 if all(entry["result"] in ("done", ABSENT, NO_GPU) for entry in log) else 1


ABSENT = "not there: this checkout has no module for it"
NO_GPU = "not done: it needs a GPU"


def run_part(part: Part) -> str:
    """Run a part and the processes that it starts until its time is over; says how it ended."""
    if not is_there(part.module):
        return ABSENT
    limit_s = part.limit_s + GRACE_S
    process = subprocess.Popen(part.command, start_new_session=True)
    try:
        code = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return f"ended after {limit_s:.0f} s; what it wrote stays"
    finally:  # on an interrupt, too
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return "done" if code == 0 else f"failed with exit code {code}"


def is_there(module: str) -> bool:
    """Whether a module can be found beside this package, without importing what holds it."""
    path = Path(__file__).resolve().parents[2].joinpath(*module.split("."))
    return path.with_suffix(".py").is_file()


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
    module = importlib.import_module(STEPS)
    tp = asked.tensor_parallel[0]
    written = module.measure(
        asked.out, load_model(asked.models[0]), tp, asked.steps_s, asked.device
    )
    to_stderr(f"{len(written)} whole steps measured")
    return 0 if written else 1


def _spoiled(out: Path) -> set[str]:
    path = out / SPOILED
    return set(path.read_text(encoding="utf-8").split()) if path.is_file() else set()


def _check(asked: argparse.Namespace) -> None:
    """Refuse what no part could run with, before any starts."""
    from kernels_profile.profiler.request import check_tables, shards_of

    check_tables(asked.tables)
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
    add("--part", choices=("sanity", "profile", "steps"), help="only this one, here")
    return parser


if __name__ == "__main__":
    sys.exit(main())
