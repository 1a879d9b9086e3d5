"""``python -m experiments.replay``: serve requests on the card here, and simulate the same.

Requests have the lengths of a preset. Needs torch, triton, simpy, numpy and PyYAML;
``phasewise profile replay`` is the same command.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from experiments.replay_run import (
    GRAPH_SIZES,
    METRICS,
    Comparison,
    Plan,
    compare,
    finished_in_both,
    host_of,
    rows_of,
    serve,
    simulated,
)
from kernels_profile.host import HostOverhead
from policies import POLICIES
from sim import specs
from sim.errors import PhasewiseError, ProfileError, called, nearest
from sim.records import SimulationResult
from sim.request import Trace

if TYPE_CHECKING:
    from kernels_profile.engine.realtime import StepLog
    from sim.step_time import StepTimeModel


ARRIVING = 0.85
"""Share of the time in which requests arrive, so that most end within it."""
DRAWS = 64
"""Requests drawn for each that is wanted, as some are too long."""


def make_trace(preset: str, rate_per_s: float, wanted: int, longest: int, seed: int) -> Trace:
    """Requests of a preset, as Poisson arrivals, whose prompt and output fit `longest` tokens.

    What clients ask for is `longest` less the prompt, as policies must not know outputs.
    """
    from dataclasses import replace

    from traces.arrivals import arrive
    from traces.presets import synthesize

    trace = synthesize(preset, DRAWS * wanted, rate_per_s, seed)
    fits = np.flatnonzero(trace.prompt_tokens + trace.output_tokens <= longest)[:wanted]
    if not len(fits):
        raise ProfileError(f"replay: no request of {preset} fits in {longest} tokens")
    kept = replace(
        trace,
        arrival_ns=np.zeros(len(fits), np.int64),
        prompt_tokens=trace.prompt_tokens[fits],
        output_tokens=trace.output_tokens[fits],
        max_tokens=longest - trace.prompt_tokens[fits],
    )
    return arrive(kept, "poisson", seed=seed, rate_per_s=rate_per_s)


def step_time_of(plan: Plan, host: HostOverhead) -> StepTimeModel:
    """The plan's tables (what they lack is taken from the roofline), else the roofline."""
    options: dict[str, Any] = {"tensor_parallel": plan.tensor_parallel, "host": host}
    if plan.tables is None:
        from kernels_profile.roofline import RooflineStepTime

        return RooflineStepTime(plan.model, plan.device, **options)
    from kernels_profile.graphs import CudaGraphs
    from kernels_profile.links import Collectives
    from kernels_profile.step_time import ProfiledStepTime
    from kernels_profile.table import find_data_sets

    sizes = tuple(size for size in GRAPH_SIZES if size <= plan.policy.seats)
    return ProfiledStepTime(
        plan.model,
        plan.device,
        find_data_sets([plan.tables], plan.device.name),
        **options,
        missing="roofline",
        cuda_graphs=CudaGraphs(sizes, False, "engine"),
        collectives=Collectives(bandwidth_bytes_per_s=1e30),
        noise_cv=0.0,
    )


def write(
    out: Path,
    plan: Plan,
    runs: tuple[SimulationResult, SimulationResult],
    compared: Sequence[Comparison],
    about: Sequence[str],
) -> None:
    """Leave requests and the comparison as CSV, and in words what was compared."""
    out.mkdir(parents=True, exist_ok=True)
    index = finished_in_both(*runs)
    sides = [rows_of(result, index) for result in runs]
    first = sides[0]
    columns: dict[str, Any] = {
        "request": index,
        "arrival_s": first["arrival_ns"] / 1e9,
        "prompt_tokens": first["prompt_tokens"],
        "output_tokens": first["output_tokens"],
    }
    for side, rows in zip(("measured", "simulated"), sides, strict=True):
        columns |= {f"{name}_{side}_s": of(rows) for name, of in METRICS.items()}
    _write_csv(out / "requests.csv", list(columns), zip(*columns.values(), strict=True))
    names = ["metric", "statistic", "measured_s", "simulated_s", "error", "request_error"]
    _write_csv(out / "comparison.csv", names, ([getattr(c, n) for n in names] for c in compared))
    lines = [*about, f"requests finished in both: {len(index)} of {len(plan.trace)}"]
    (out / "about.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_steps(out: Path, log: Sequence[StepLog]) -> None:
    """Leave the steps of the card as CSV."""
    out.mkdir(parents=True, exist_ok=True)
    names = ["start_ns", "gpu_ns", "end_ns", "prefill_tokens", "decodes", "sequences"]
    _write_csv(out / "steps.csv", names, ([getattr(s, n) for n in names] for s in log))


def _write_csv(path: Path, names: Sequence[str], rows: Any) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        writer.writerows(rows)


def table(compared: Sequence[Comparison]) -> str:
    """The comparison as text, milliseconds."""
    lines = [f"{'metric':8}{'':6}{'measured ms':>14}{'simulated ms':>14}{'error':>9}"]
    for row in compared:
        measured, simulation = row.measured_s * 1e3, row.simulated_s * 1e3
        line = f"{row.metric:8}{row.statistic:6}{measured:14.2f}{simulation:14.2f}{row.error:+9.1%}"
        if row.request_error is not None and row.statistic == "mean":
            line += f"   median error of a request {row.request_error:.1%}"
        lines.append(line)
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve and compare; returns an exit code. See ``--help``."""
    asked = _parser().parse_args(arguments)
    try:
        run(asked)
    except PhasewiseError as error:
        print(f"phasewise: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


def run(asked: argparse.Namespace) -> list[Comparison]:
    """Serve what was asked for, simulate it, compare, print and write."""
    plan, device = plan_of(asked)
    measured, log, layer_us = serve(plan, device)
    if not log:
        raise ProfileError("replay: not one step was run; give a higher rate or a longer time")
    write_steps(asked.out, log)  # at once: simulating takes its time, too
    host = host_of(log, layer_us)
    step_time = step_time_of(plan, host)
    simulation = simulated(plan, step_time)
    compared = compare(measured, simulation)
    told = step_time.describe()
    about = [
        f"{plan.model.name}, tp {plan.tensor_parallel} (one rank, no all-reduce), on "
        f"{plan.device.name}; {called(plan.policy)}; {len(plan.trace)} requests, "
        f"{asked.rate:g}/s for {plan.duration_s:g} s; {plan.num_blocks} blocks of "
        f"{plan.block_tokens} tokens",
        f"step times of the simulation: {told.model}: {told.origin}; error: {told.error}",
        f"host of the simulation: {host.step_us:.1f} us + {host.request_us:.2f} us a sequence, "
        f"{host.eager_layer_us:.1f} us a layer launched without a graph, from the {len(log)} steps "
        "of this replay and those before it",
    ]
    write(asked.out, plan, (measured, simulation), compared, about)
    print("\n".join([*about, table(compared)]))
    return compared


def plan_of(asked: argparse.Namespace) -> tuple[Plan, str]:
    """What to serve, and on ``cuda`` or ``cpu``.

    Raises:
        ProfileError: no GPU, an unknown policy, no room for the model.
        ConfigError: an unknown model.
    """
    from kernels_profile.profiler.device import find
    from kernels_profile.profiler.run import use_interpreter

    found = find(asked.device)
    if asked.policy not in POLICIES:
        raise ProfileError(f"policy: {asked.policy} is not known{nearest(asked.policy, POLICIES)}")
    options = {"pad_prompts": False, "keep_finished_slots": False}  # the engine does not pad
    policy = POLICIES[asked.policy](**options if asked.policy == "static" else {})
    model = _model(asked.model, found.kind)
    blocks, share = _room(model, asked.tensor_parallel, found.kind, asked.num_blocks)
    arriving = max(1, round(asked.rate * asked.duration_s * ARRIVING))
    requests = min(arriving, asked.requests or arriving)
    longest = min(asked.max_model_len, model.max_positions, blocks * 16)
    held = asked.tables is not None and (asked.tables / "meta.yaml").is_file()
    plan = Plan(
        model,
        found.spec,
        policy,
        make_trace(asked.preset, asked.rate, requests, longest, asked.seed),
        num_blocks=blocks,
        tensor_parallel=asked.tensor_parallel,
        duration_s=asked.duration_s,
        seed=asked.seed,
        share_layers=share,
        tables=asked.tables if held else None,
    )
    if found.kind == "cpu":
        use_interpreter()
    return plan, found.kind


def _model(name: str, kind: str) -> specs.ModelSpec:
    from kernels_profile.profiler.request import TINY_MODEL

    if kind == "cpu" and name != TINY_MODEL.name:
        raise ProfileError(f"model: {name} is too large for the interpreter of --device cpu; tiny")
    return TINY_MODEL if kind == "cpu" else specs.load_model(name)


def _room(model: specs.ModelSpec, tp: int, kind: str, blocks: int | None) -> tuple[int, bool]:
    """Blocks of KV memory beside the weights, and whether layers have to share those."""
    if kind == "cpu":
        return blocks or 64, False
    import torch

    from kernels_profile.engine.model import layer_block_bytes, weight_bytes

    free, _ = torch.cuda.mem_get_info()
    share = weight_bytes(model, tp) > 0.7 * free
    weights = weight_bytes(model, tp, layers=1 if share else model.layers)
    fit = int((0.85 * free - weights) / (layer_block_bytes(model, tp, 16) * model.layers))
    if fit < 1:
        raise ProfileError(f"replay: {model.name} at tp {tp} leaves no room for KV on this card")
    return min(blocks or fit, fit), share


class _Parser(argparse.ArgumentParser):
    """Tells what it cannot take in one line, as the command line does elsewhere."""

    def error(self, message: str) -> NoReturn:
        """See `argparse.ArgumentParser.error`."""
        said = message.removeprefix("argument ")
        if unknown := re.match(r"unrecognized arguments: (\S+)", said):
            options = [name for action in self._actions for name in action.option_strings]
            said = f"{unknown[1]}: no such option{nearest(unknown[1], options)}"
        self.exit(2, f"phasewise: replay: {said}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m experiments.replay",
        description="Serve requests on the card here with our kernels, and simulate the same run.",
    )
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder of the results")
    add("--model", default="llama-3.1-8b", help="data sheet of the model")
    add("--device", default="auto", help="auto, a data sheet's name, or cpu (the interpreter)")
    add("--tables", type=Path, help="data set whose step times simulate the run; else the roofline")
    add("--policy", default="vllm-v1", help="what runs next")
    add("--preset", default="azure-conv-2023", help="whose lengths the requests have")
    add("--rate", type=float, default=8.0, help="requests per second, Poisson")
    add("--requests", type=int, help="at most so many; default: as many as arrive in the time")
    add("--duration-s", type=float, default=120.0, help="when serving stops")
    add("--max-model-len", type=int, default=8192, help="longest prompt and output")
    add("--tensor-parallel", type=int, default=1, help="ranks; one of them is run")
    add("--num-blocks", type=int, help="KV blocks of 16 tokens; default: what fits")
    add("--seed", type=int, default=0)
    return parser


if __name__ == "__main__":
    sys.exit(main())
