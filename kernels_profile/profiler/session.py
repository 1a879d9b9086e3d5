"""Everything that a card is borrowed for, in one command and in the order of its worth.

    python -m kernels_profile.profiler.session --out DIR [--archive FILE.tar.gz]

checks the kernels on the card (20 s), profiles it (300 s), measures whole steps of the real model's
shape, and replays a trace for at most 120 s. Each part runs in a process of its own, ended when its
time is over: a part that fails takes no other with it, and what was written stays valid. All ends
within ``--total-s``: where a part took longer, the later ones get less. Needs torch, triton, numpy
and PyYAML, and for the replay simpy; no network.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from kernels_profile.profiler.archive import pack
from kernels_profile.profiler.device import find
from kernels_profile.profiler.loop import DeviceLostError
from kernels_profile.profiler.processes import ABSENT, DEVICE_LOST, DONE, LOST, Part
from kernels_profile.profiler.progress import to_stderr
from kernels_profile.profiler.request import Request
from sim.errors import PhasewiseError, ProfileError
from sim.specs import load_model

TOTAL_S = 560.0
"""Of the whole session: a card may be lent for ten minutes at a time."""

LEAST_S = 5.0
"""A part that would have less time is not begun."""

OURS = "kernels_profile.profiler.session"
STEPS = "kernels_profile.engine.steps"
REPLAY = "experiments.replay"
"""Started as a command of its own, never imported: nothing below `experiments` may."""

LOG = "session.json"


def parts(asked: argparse.Namespace, given: Sequence[str]) -> list[Part]:
    """The parts in their order; `given` is the session's own command line."""
    named = (
        ("sanity", asked.sanity_s, "--sanity-s", 20.0),
        ("profile", asked.budget_s, "--budget-s", 20.0),
        ("steps", asked.steps_s, "--steps-s", 40.0),
    )
    found = [
        Part(name, limit_s, OURS, (*given, "--part", name), option, grace_s, name == "steps")
        for name, limit_s, option, grace_s in named
    ]
    replay = (
        *("--out", str(asked.out / "replay"), "--tables", str(asked.out)),
        *("--model", asked.models[0], "--device", asked.device),
        *("--tensor-parallel", str(asked.tensor_parallel[0])),
    )
    found.append(Part("replay", asked.replay_s, REPLAY, replay, "--duration-s", 60.0, True))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all parts, or with ``--part`` one of them in this process; 1 if any failed."""
    begun = time.monotonic()
    given = list(sys.argv[1:] if arguments is None else arguments)
    asked = _parser().parse_args(given)
    try:
        if asked.part:
            return {"sanity": sanity, "profile": profile, "steps": steps}[asked.part](asked)
        need_packages(asked)
        _check(asked)
        return run_all(asked, given, begun)
    except PhasewiseError as error:
        to_stderr(f"phasewise: {' '.join(str(error).split())}")
        return DEVICE_LOST if isinstance(error, DeviceLostError) else 2


def run_all(asked: argparse.Namespace, given: Sequence[str], begun: float) -> int:
    """Each part in a process of its own; the log is written after each.

    A profile that ended as the device stopped working is gone on with once, in a new process.
    """
    until, log = begun + asked.total_s, list[dict[str, object]]()
    asked.out.mkdir(parents=True, exist_ok=True)
    for part in parts(asked, given):
        started = time.monotonic()
        result = _run(part, asked, until, log)
        if part.name == "profile" and result == LOST:
            ends = min(until, started + part.limit_s + part.grace_s)
            _run(part, asked, ends, log)
    return 0 if all(entry["result"] in (DONE, ABSENT, NO_GPU, NOT_ASKED) for entry in log) else 1


def _run(part: Part, asked: argparse.Namespace, until: float, log: list[dict[str, object]]) -> str:
    """One part, with no more time than is left until then; adds to the log, which it returns."""
    begun = time.monotonic()
    granted = part.within(until - begun)
    if not part.limit_s:
        result = NOT_ASKED
    elif part.needs_gpu and asked.device == "cpu":
        result = NO_GPU
    elif granted.limit_s < min(part.limit_s, LEAST_S):
        result = NO_TIME
    else:
        to_stderr(f"--- {part.name}: at most {granted.limit_s:g} s")
        result = granted.run(lambda: _packed(asked))
    seconds = round(time.monotonic() - begun, 1)
    log.append({"part": part.name, "result": result, "seconds": seconds})
    (asked.out / LOG).write_text(json.dumps(log, indent=1) + "\n", encoding="utf-8")
    to_stderr(f"--- {part.name}: {result} ({seconds:g} s)")
    _packed(asked)
    return result


def _packed(asked: argparse.Namespace) -> None:
    if asked.archive:
        try:
            pack(asked.out, asked.archive)
        except OSError as error:  # a file that was renamed just now; the next time finds it
            to_stderr(f"not packed this time: {error}")


NO_GPU = "not done: it needs a GPU"
NO_TIME = "not begun: no time was left"
NOT_ASKED = "not asked for"


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
    _write_spoiled(asked.out, result.spoiled())
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
    try:
        outcome = measure(request)
    except DeviceLostError as error:  # the table that broke it is not tried again
        _write_spoiled(asked.out, {*spoiled, error.table})
        raise
    to_stderr(str(outcome))
    return 1 if outcome.failed or not (outcome.measured or outcome.known) else 0


def steps(asked: argparse.Namespace) -> int:
    """Whole steps of the first model: `kernels_profile.engine.steps.measure`."""
    module = importlib.import_module(STEPS)
    tp = asked.tensor_parallel[0]
    found = module.measure(asked.out, load_model(asked.models[0]), tp, asked.steps_s, asked.device)
    to_stderr(f"{len(found)} whole steps are measured")
    return 0 if found else 1


def _spoiled(out: Path) -> set[str]:
    path = out / SPOILED
    return set(path.read_text(encoding="utf-8").split()) if path.is_file() else set()


def _write_spoiled(out: Path, tables: set[str]) -> None:
    (out / SPOILED).write_text("\n".join(sorted(tables)), encoding="utf-8")


def need_packages(asked: argparse.Namespace) -> None:
    """Refuse to begin without what is needed in the end.

    Raises:
        ProfileError: names every package that is missing.
    """
    wanted = ["torch", "triton"]
    wanted += ["simpy"] if asked.replay_s and asked.device != "cpu" else []
    missing = [name for name in wanted if importlib.util.find_spec(name) is None]
    if missing:
        names = " ".join(missing)
        without = "; or go without the replay: --replay-s 0" if missing == ["simpy"] else ""
        raise ProfileError(
            f"not installed here: {', '.join(missing)}. With a network: pip install {names}. "
            f"Without: pip install --target site {names} where there is one, bring the folder, and "
            f"set PYTHONPATH=site{without}"
        )


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
    add("--steps-s", type=float, default=60.0, help="0 for none")
    add("--replay-s", type=float, default=120.0, help="0 for none")
    add("--total-s", type=float, default=TOTAL_S, help="of everything; later parts get less")
    add("--archive", type=Path, help="a .tar.gz of all files, written anew after each part")
    add("--processes", type=int, default=0, help="that compile; 0 for one a core")
    add("--tables", nargs="+", help="profile only these tables")
    add("--kernels", nargs="+", help="check only these kernels at the start")
    add("--part", choices=("sanity", "profile", "steps"), help="only this one, here")
    return parser


if __name__ == "__main__":
    sys.exit(main())
