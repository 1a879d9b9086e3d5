"""What a user asks for, checked, and the plan that follows from it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernels_profile.profiler.device import Found
from kernels_profile.profiler.effort import Effort
from kernels_profile.profiler.grids import FULL, TINY
from kernels_profile.profiler.plan import Plan, make_plan
from kernels_profile.profiler.shapes import Shard
from kernels_profile.table import OPERATORS
from sim.errors import ConfigError, nearest
from sim.specs import ModelSpec, load_model, model_names

TINY_MODEL = ModelSpec(
    name="tiny",
    layers=2,
    hidden=32,
    heads=4,
    kv_heads=2,
    head_dim=16,
    intermediate=48,
    vocab=50,
    max_positions=512,
    note="not a model: shapes that the interpreter can walk through",
)
COMPILE_SHARE = 0.3
"""Of a budget, at most this goes into compiling ahead; the rest is compiled on first use."""

LARGEST_INTERPRETED = 10**6
"""Parameters of a model that the interpreter is let loose on: it is some 10^5 times slower."""


@dataclass(frozen=True)
class Request:
    """What to profile.

    Attributes:
        models: Names of sheets, or paths of a `config.json`; the most wanted first.
        out: The data set's folder.
        device: ``auto``, ``cpu``, or a sheet's name.
        tensor_parallel: For each model, every one of these.
        dtypes: Of the linear layers; None for all that the device has.
        tables: Only these tables; None for all.
        budget_s: Stop before so many seconds are over; None takes as long as it takes.
        processes: That compile; 0 for one a core.
    """

    models: Sequence[str]
    out: Path
    device: str = "auto"
    tensor_parallel: Sequence[int] = (1,)
    dtypes: Sequence[str] | None = None
    tables: Sequence[str] | None = None
    budget_s: float | None = None
    processes: int = 0

    @property
    def command(self) -> str:
        """The command that asks for this, without the folder (a path of one machine)."""
        models, ways = ",".join(map(str, self.models)), ",".join(map(str, self.tensor_parallel))
        parts = ["phasewise profile run", f"--device {self.device}", f"--models {models}"]
        parts += [f"--tensor-parallel {ways}"]
        parts += [f"--dtype {','.join(self.dtypes)}"] if self.dtypes else []
        parts += [f"--tables {','.join(self.tables)}"] if self.tables else []
        parts += [f"--budget-s {self.budget_s:g}"] if self.budget_s is not None else []
        return " ".join([*parts, "--out DIR"])


def effort_on(found: Found) -> Effort:
    """How often points are launched on a device; under the interpreter, as seldom as may be."""
    if found.kind == "cpu":
        return Effort(graph_us=0, max_launches=2, min_repeats=3, max_repeats=3, capture_us=0)
    return Effort(l2_bytes=found.l2_bytes)


def lay_out(request: Request, found: Found, effort: Effort) -> Plan:
    """The plan for a request on a device.

    Raises:
        ConfigError: an unknown model or type, a tensor parallelism that does not divide, a type
            that the device lacks, a real model under the interpreter.
    """
    interpreted = found.kind == "cpu"
    shards = shards_of(request, interpreted)
    dtypes = ["fp16"] if interpreted else dtypes_of(request, found)
    check_tables(request.tables)
    grids = TINY if interpreted else FULL
    return make_plan(
        shards, found.spec, dtypes, grids, effort, request.tables, graphs=not interpreted
    )


def shards_of(request: Request, interpreted: bool) -> list[Shard]:
    """Every model at every tensor parallelism.

    Raises:
        ConfigError: none named, or an unknown one, or sizes that do not divide, or one too large
            for the interpreter.
    """
    if not request.models:
        raise ConfigError(f"models: none named; some of {', '.join(model_names())}")
    models = [
        TINY_MODEL if name == TINY_MODEL.name else load_model(name) for name in request.models
    ]
    for model in models:
        if interpreted and model.parameters > LARGEST_INTERPRETED:
            raise ConfigError(
                f"models: {model.name} has {model.parameters:.3g} parameters, far too many for the "
                f"interpreter of --device cpu; use --models tiny, or a config.json of at most "
                f"{LARGEST_INTERPRETED:.0e} parameters"
            )
        if not interpreted and model is TINY_MODEL:
            raise ConfigError("models: tiny is no model; it goes with --device cpu only")
    return [Shard(model, tp) for model in models for tp in request.tensor_parallel]


def dtypes_of(request: Request, found: Found) -> list[str]:
    """Types of the linear layers, bf16 first.

    Raises:
        ConfigError: an unknown one, or fp8 on a device without.
    """
    wanted = request.dtypes or ["bf16", *(["fp8"] if found.spec.fp8_flops else [])]
    for dtype in wanted:
        if dtype not in ("bf16", "fp8"):
            raise ConfigError(f"dtype: {dtype} is not profiled{nearest(dtype, ('bf16', 'fp8'))}")
        if dtype == "fp8" and not found.spec.fp8_flops:
            raise ConfigError(
                f"dtype: {found.spec.name} has no fp8 tensor cores; its linear layers are "
                "profiled in bf16 only"
            )
    return ["bf16", *(dtype for dtype in dict.fromkeys(wanted) if dtype != "bf16")]


def check_tables(tables: Iterable[str] | None) -> None:
    """Raises: ConfigError: an unknown table."""
    for table in tables or ():
        if table not in OPERATORS:
            raise ConfigError(f"tables: {table} is not known{nearest(table, OPERATORS)}")
