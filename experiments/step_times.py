"""A config's ``step_time: {model: profile}``: its options, its tables, and what engines add."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from experiments import options
from experiments.explain import placed, shown
from experiments.names import canonical, unknown
from experiments.schema import Named, Pool
from sim.errors import ConfigError, PhasewiseError
from sim.model_part import ModelPart
from sim.specs import DeviceSpec, ModelSpec

if TYPE_CHECKING:
    from kernels_profile.graphs import CudaGraphs
    from kernels_profile.links import Collectives
    from kernels_profile.step_time import ProfiledStepTime
    from kernels_profile.table import DataSet

DATA = Path(__file__).resolve().parent.parent / "kernels_profile" / "data"
"""Tables that are shipped, one folder a device."""


@dataclass(frozen=True)
class ProfileOptions:
    """Options of ``step_time: {model: profile}``, `host` aside.

    Args:
        data: A data set, a folder whose subfolders are (those of the pool's device are used), or a
            list of such, in the order in which operators are looked up: an exact shape wins over an
            interpolated one, whichever set has it; relative to the config's folder or to the
            working folder. Default: the device's shipped tables.
        outside: What to take beyond the measured grid: the nearest measured time scaled by the
            roofline's ratio, that time as it is (clamp), or an error.
        missing: What to do about an operator that no table has: an error, or the roofline's time.
        strict: Refuse both, whatever else is said (`phasewise run --strict`).
        cuda_graphs: Captured batch sizes: vllm (V1, all steps), vllm-v0 (decode steps), none, or a
            list of sizes of decode steps.
        noise: Factor of each step: table (from the tables' repeats), none, or {cv: x} for a
            log-normal factor of mean 1 and that variation.
        collectives: Backend of the table's collectives (default: that of CUDA graphs), or
            {latency_us: x, bandwidth_bytes_per_s: y} instead of a table.
        sustained_clock: Share of the clock at which the tables' kernels were timed that a serving
            load leaves to compute-bound matrix products (0.85 for aiconfigurator's tables).
        tables_of: Device that the tables are of instead of the pool's own, such as one of the same
            architecture: each time is scaled by the ratio that the two data sheets give. Tables of
            the pool's device are passed over then, and the summary says so.
    """

    data: str | list[str] | None = None
    outside: Literal["roofline-scaled", "clamp", "error"] = "roofline-scaled"
    missing: Literal["error", "roofline"] = "error"
    strict: bool = False
    cuda_graphs: str | list[int] = "vllm"
    noise: str | bool | dict[str, float] = "table"
    collectives: str | dict[str, float] | None = None
    sustained_clock: float = field(default=1.0, metadata={"minimum": 0.1, "maximum": 1})
    tables_of: str | None = None


@dataclass(frozen=True)
class NoiseOption:
    """A user's own noise.

    Args:
        cv: Standard deviation over mean of the steps' log-normal factors.
    """

    cv: float = field(metadata={"minimum": 0, "maximum": 2})


@dataclass(frozen=True)
class LinkOption:
    """Collectives by latency and bandwidth.

    Args:
        bandwidth_bytes_per_s: Of what one GPU sends.
        latency_us: Of each, microseconds.
    """

    bandwidth_bytes_per_s: float = field(metadata={"minimum": 1e6, "maximum": 1e15})
    latency_us: float = field(default=0.0, metadata={"minimum": 0, "maximum": 1e6})


def profile(
    pool: Pool,
    model: ModelSpec,
    device: DeviceSpec,
    chosen: Named,
    where: str,
    folder: Path,
    part: ModelPart | None = None,
) -> ProfiledStepTime:
    """Step times from tables, as a config says.

    Args:
        pool: The pool.
        model: Architecture.
        device: Data sheet.
        chosen: Options.
        where: File and key, for messages.
        folder: Where relative paths of tables start first.
        part: The layers of one pipeline stage; None for all.

    Raises:
        ConfigError: A bad option; tables that are not there, or lack an operator.
    """
    from experiments.parts import host
    from kernels_profile.grouped import GroupedStepTime
    from kernels_profile.step_time import ProfiledStepTime

    own = {key: value for key, value in chosen.items() if key != "host"}
    said: ProfileOptions = options.build(ProfileOptions, own, "profile", where)
    more: dict[str, Any] = {
        "cuda_graphs": _graphs(said.cuda_graphs, f"{where}.cuda_graphs"),
        "noise_cv": _noise_cv(said.noise, f"{where}.noise"),
        "collectives": _collectives(said.collectives, f"{where}.collectives"),
    }
    if "host" in chosen:
        more["host"] = host(chosen["host"], f"{where}.host")
    if said.tables_of is not None:
        with_tables = _lender(said.tables_of, f"{where}.tables_of")
        more["lender"] = with_tables
    else:
        with_tables = device
    sets = _data_sets(said.data, with_tables, f"{where}.data", folder)
    _check_backend(more["collectives"].backend, sets, f"{where}.collectives")
    more["passed_over"] = with_tables != device and _has_own(said.data, device, folder)
    kind = GroupedStepTime if pool.data_parallel_attention > 1 else ProfiledStepTime
    try:
        return kind(
            model,
            device,
            sets,
            precision=pool.precision.weights,
            kv_dtype=pool.precision.kv,
            tensor_parallel=pool.tensor_parallel,
            outside=said.outside,
            missing=said.missing,
            strict=said.strict,
            sustained_clock=said.sustained_clock,
            expert_parallel=pool.expert_parallel,
            imbalance=pool.expert_imbalance.zipf,
            data_parallel_attention=pool.data_parallel_attention,
            part=part,
            **more,
        )
    except PhasewiseError as error:
        raise ConfigError(placed(where, error)) from None


def default(
    pool: Pool, said: Named, model: ModelSpec, device: DeviceSpec, folder: Path
) -> tuple[Named, str]:
    """A pool's ``step_time`` where no model is named, and a sentence about it or "".

    The shipped tables of the device if they have every operator of the model, else the roofline.

    Args:
        pool: The pool.
        said: What its engine or its config says besides.
        model: Architecture.
        device: Data sheet.
        folder: Where relative paths start first.
    """
    known = {key: value for key, value in said.items() if key != "cuda_graphs"}
    roofline = {"model": "roofline", **known}
    if not (DATA / device.name).is_dir() or "data" in said:
        return ({"model": "profile", **said}, "") if "data" in said else (roofline, "")
    try:
        profile(pool, model, device, said, "step_time", folder)
    except ConfigError as error:
        lacking = str(error).partition("no table has ")[2].partition(" (looked")[0] or str(error)
        return roofline, (
            f"Tables of {device.name} are shipped, but not all that {model.name} needs "
            f"({lacking.partition(';')[0]}): step times are the roofline's."
        )
    return {"model": "profile", **said}, (
        f"Step times come from the shipped tables of {device.name}, since no model of them is set."
    )


def table_files(pool: Pool, folder: Path) -> list[Path]:
    """The files that a pool's step times are looked up in; none for other models.

    Args:
        pool: The pool.
        folder: Where relative paths start first.
    """
    if canonical(str(pool.step_time.get("model"))) != "profile":
        return []
    data = pool.step_time.get("data")
    if data is None:  # shipped: part of our own code
        return []
    folders = [_found(str(each), folder) for each in ([data] if isinstance(data, str) else data)]
    return [file for each in folders for file in sorted(each.rglob("*")) if _is_of_tables(file)]


def _is_of_tables(file: Path) -> bool:
    return file.suffix == ".csv" or file.name == "meta.yaml"


def _lender(name: str, where: str) -> DeviceSpec:
    from sim.specs import load_device

    try:
        return load_device(name)
    except PhasewiseError as error:
        raise ConfigError(f"{where}: {error}") from None


def _data_sets(
    data: str | list[str] | None, device: DeviceSpec, where: str, folder: Path
) -> list[DataSet]:
    from kernels_profile.table import find_data_sets

    if data is None:
        if not (DATA / device.name).is_dir():
            raise ConfigError(
                f"{where}: no tables of {device.name} are shipped; measure some on such a GPU "
                "(phasewise profile run --out DIR) or import some (phasewise profile import "
                "--from ... --out DIR), and give data: DIR"
            )
        return find_data_sets([DATA / device.name], device.name)
    paths = [_found(each, folder) for each in ([data] if isinstance(data, str) else data)]
    if not paths:
        raise ConfigError(f"{where}: []: expected at least one folder")
    try:
        return find_data_sets(paths, device.name)
    except PhasewiseError as error:
        hint = "; or scale another device's: tables_of" if "no data set of" in str(error) else ""
        raise ConfigError(f"{where}: {error}{hint}") from None


def _has_own(data: str | list[str] | None, device: DeviceSpec, folder: Path) -> bool:
    """Whether there are tables of the pool's own device beside those that are lent to it."""
    from kernels_profile.table import folders_of, read_meta

    if data is None:
        return (DATA / device.name).is_dir()
    paths = [_found(each, folder) for each in ([data] if isinstance(data, str) else data)]
    return any(read_meta(set_).device == device.name for path in paths for set_ in folders_of(path))


def _check_backend(backend: str | None, sets: Sequence[DataSet], where: str) -> None:
    """A backend must be one that engines have or the tables hold, even where none is looked up."""
    if backend is None:
        return
    from kernels_profile.lookup import BACKENDS

    tables = [data.table("collective") for data in sets]
    held = {str(word) for table in tables if table for (word,) in table.distinct("backend")}
    if backend not in held | set(BACKENDS):
        raise ConfigError(f"{where}: {unknown('backend', backend, sorted(held | set(BACKENDS)))}")


def _found(path: str, folder: Path) -> Path:
    beside = folder / path
    return beside if beside.exists() else Path(path)


def _graphs(graphs: str | list[int], where: str) -> CudaGraphs:
    from kernels_profile.graphs import GRAPHS, graphs_of

    if isinstance(graphs, list):
        try:
            return graphs_of(graphs)
        except PhasewiseError as error:
            raise ConfigError(placed(where, error)) from None
    if canonical(graphs) not in GRAPHS:
        raise ConfigError(f"{where}: {unknown('set of CUDA graphs', graphs, GRAPHS)}")
    return GRAPHS[canonical(graphs)]


def _noise_cv(noise: str | bool | Mapping[str, float], where: str) -> float | None:
    """None: that of the tables."""
    if isinstance(noise, Mapping):
        own: NoiseOption = options.build(NoiseOption, noise, "noise", where)
        return own.cv
    if noise in (False, "none", "off"):
        return 0.0
    if noise != "table":
        raise ConfigError(f"{where}: {shown(noise)}: expected table, none or {{cv: 0.02}}")
    return None


def _collectives(said: str | Mapping[str, float] | None, where: str) -> Collectives:
    from kernels_profile.links import Collectives

    if isinstance(said, Mapping):
        link: LinkOption = options.build(LinkOption, said, "collectives", where)
        return Collectives(None, link.latency_us, link.bandwidth_bytes_per_s)
    return Collectives(said)
