"""What a config's keys may say together: names that exist, options that belong, files there.

Sizes that depend on each other (memory, heads by GPUs) are checked where the cluster is built.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from experiments import parts
from experiments.cluster import Where, load_model, pools_of
from experiments.explain import placed, shown
from experiments.names import unknown
from experiments.schema import Experiment, Workload
from experiments.workload import trace_path
from sim.errors import ConfigError, PhasewiseError
from sim.specs import check_tensor_parallel, load_device

_BELONGS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "rate_per_s": ("poisson", "gamma", "constant", "burst"),
        "cv": ("gamma",),
        "burst_requests": ("burst",),
        "concurrency": ("closed-loop",),
        "spread_ticks": ("recorded",),
        "speedup": ("recorded",),
    }
)
"""Keys of `arrivals` that mean something for some processes only."""

_OF_TRACES = ("spread_ticks", "speedup")
_OF_PRESETS = ("rate_per_s", "speedup")
"""Those that go with the default process."""


def check(experiment: Experiment, where: Where, folder: Path) -> None:
    """Refuse what cannot be run, before anything is.

    Raises:
        ConfigError: One line with file, key, value and what would do.
    """
    _check_source(experiment.workload, where, folder)
    _check_arrivals(experiment.workload, where)
    _check_names(experiment, where, folder)
    _check_routers(experiment, where, folder)


def _check_source(workload: Workload, where: Where, folder: Path) -> None:
    if (workload.trace is None) == (workload.preset is None):
        have = "both are given" if workload.trace is not None else "neither is given"
        raise ConfigError(f"{where('workload')}: needs a trace or a preset; {have}")
    if workload.preset is not None:
        _check_preset(workload, where)
        return
    if trace_path(workload, folder) is None:
        place = f"{where('workload', 'trace')}: {workload.trace}"
        raise ConfigError(f"{place}: no such file, neither beside the config nor here")
    if workload.requests is not None:
        raise ConfigError(
            f"{where('workload', 'requests')}: belongs to a preset; try arrivals.limit"
        )


def _check_preset(workload: Workload, where: Where) -> None:
    from traces.presets import PRESETS

    if workload.preset not in PRESETS:
        place = where("workload", "preset")
        raise ConfigError(f"{place}: {unknown('preset', workload.preset, PRESETS)}")
    if workload.requests is None:
        place = where("workload", "requests")
        raise ConfigError(f"{place}: is required: how many requests to make of the preset")
    for key in ("format", "columns"):
        if getattr(workload, key) is not None:
            raise ConfigError(f"{where('workload', key)}: belongs to a trace, not to a preset")


def _check_arrivals(workload: Workload, where: Where) -> None:
    arrivals = workload.arrivals
    process = arrivals.process
    unsaid_keys = _OF_PRESETS if workload.preset is not None else _OF_TRACES
    for key, processes in _BELONGS.items():
        unsaid = process is None and key in unsaid_keys
        default = type(arrivals).model_fields[key].default
        if getattr(arrivals, key) != default and not unsaid and process not in processes:
            place = where("workload", "arrivals", key)
            choices = " or ".join(processes)
            raise ConfigError(f"{place}: belongs to process {choices}, not to {process or 'none'}")
    for needing, needed in (("closed-loop", "concurrency"), ("gamma", "cv")):
        if process == needing and getattr(arrivals, needed) is None:
            place = where("workload", "arrivals", needed)
            raise ConfigError(f"{place}: is required by process {needing}")
    window = arrivals.window_s
    if window is not None and not 0 <= window[0] < window[1]:
        place = where("workload", "arrivals", "window_s")
        raise ConfigError(f"{place}: {shown(window)}: expected [from, to] with 0 <= from < to")


def _check_names(experiment: Experiment, where: Where, folder: Path) -> None:
    model = load_model(experiment.model, folder, where("model"))
    for role, pool in pools_of(experiment).items():
        place = where("pools", role, "device")
        try:
            device = load_device(pool.device)
            place = where("pools", role, "tensor_parallel")
            check_tensor_parallel(model, pool.tensor_parallel)
        except PhasewiseError as error:
            raise ConfigError(placed(place, error)) from None
        parts.policy(pool, where("pools", role, "policy"), folder)
        parts.order(pool, where("pools", role, "order"), folder)
        parts.step_time(pool, model, device, where("pools", role, "step_time"))
        if pool.order["name"] in parts.NEED_PREDICTOR and experiment.predictor is None:
            raise ConfigError(
                f"{where('predictor')}: is required by order {pool.order['name']}; "
                "choose one of bucket, noisy, oracle"
            )


def _check_routers(experiment: Experiment, where: Where, folder: Path) -> None:
    parts.router(experiment.router, where("router"), folder)
    if experiment.predictor is not None:
        parts.predictor(experiment.predictor, where("predictor"), folder)
    if experiment.decode_router is None:
        return
    parts.router(experiment.decode_router, where("decode_router"), folder)
    if experiment.pools.decode is None:
        raise ConfigError(f"{where('decode_router')}: there is no decode pool; try router")
