"""What a config's keys may say together: options that belong, files that are there.

Names, their options, and sizes that depend on each other (memory, heads by GPUs) are checked by
building the cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from experiments import cluster
from experiments.cluster import Where
from experiments.explain import shown
from experiments.names import unknown
from experiments.parts import NEED_PREDICTOR
from experiments.schema import Delay, Experiment, Patience, Workload
from experiments.workload import trace_path
from sim.errors import ConfigError

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
    _check_sessions(experiment.workload, where)
    if experiment.workload.cancel is not None:
        _check_drawn(experiment.workload.cancel.after, where, "workload", "cancel", "after")
    if experiment.decode_router is not None and experiment.pools.decode is None:
        raise ConfigError(f"{where('decode_router')}: there is no decode pool; try router")
    cluster.build(experiment, folder, where)
    _check_transfers(experiment, where)
    _check_predictor(experiment, where)


def _check_source(workload: Workload, where: Where, folder: Path) -> None:
    if (workload.trace is None) == (workload.preset is None):
        have = "both are given" if workload.trace is not None else "neither is given"
        raise ConfigError(f"{where('workload')}: needs a trace or a preset; {have}")
    if workload.preset is not None:
        _check_preset(workload, where)
        return
    if trace_path(workload, folder) is None:
        raise ConfigError(f"{where('workload', 'trace')}: {_no_file(workload.trace or '', folder)}")
    if workload.requests is not None:
        raise ConfigError(
            f"{where('workload', 'requests')}: belongs to a preset; try arrivals.limit"
        )


def _no_file(trace: str, folder: Path) -> str:
    """Why a trace is no file; ``~`` and names too long for a path are no folders."""
    try:
        is_folder = any(path.is_dir() for path in (folder / trace, Path(trace)))
    except OSError:
        is_folder = False
    if is_folder:
        return f"{shown(trace)}: is a folder; name the file in it"
    return f"{shown(trace)}: no such file, neither beside the config nor here"


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
            if process is None:
                raise ConfigError(
                    f"{place}: belongs to process {choices}, and none is given: say which, as in "
                    f"arrivals: {{process: {processes[0]}, {key}: {getattr(arrivals, key)!r}}}"
                )
            raise ConfigError(f"{place}: belongs to process {choices}, not to {process}")
    for needing, needed in (("closed-loop", "concurrency"), ("gamma", "cv")):
        if process == needing and getattr(arrivals, needed) is None:
            place = where("workload", "arrivals", needed)
            raise ConfigError(f"{place}: is required by process {needing}")
    if arrivals.rate_per_s is not None and arrivals.speedup != 1:
        place = where("workload", "arrivals", "speedup")
        raise ConfigError(f"{place}: changes the rate that rate_per_s gives; give one of them")
    window = arrivals.window_s
    if window is not None and not round(window[0] * 1e9) < round(window[1] * 1e9):
        place = where("workload", "arrivals", "window_s")
        raise ConfigError(f"{place}: {shown(window)}: expected [from, to] with 0 <= from < to")


_OF_DRAWN: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "mean_s": ("constant", "exponential", "gamma", "lognormal"),
        "cv": ("gamma", "lognormal"),
    }
)
"""Keys of what is drawn, and the distributions that need them; others have no use for them."""


def _check_sessions(workload: Workload, where: Where) -> None:
    if workload.sessions is None:
        return
    if workload.preset is not None:
        raise ConfigError(
            f"{where('workload', 'sessions')}: belongs to a trace with a session column; the "
            f"requests of preset {workload.preset} have no sessions"
        )
    delay = workload.sessions.delay
    _check_drawn(delay, where, "workload", "sessions", "delay")
    if delay.mean_s == 0 and delay.distribution != "constant":
        place = where("workload", "sessions", "delay", "mean_s")
        raise ConfigError(f"{place}: 0: expected above 0; no delay at all is constant, mean_s 0")


def _check_drawn(drawn: Delay | Patience, where: Where, *path: str) -> None:
    """Each distribution has its keys, and no others."""
    for key, distributions in _OF_DRAWN.items():
        place = where(*path, key)
        given, belongs = getattr(drawn, key), drawn.distribution in distributions
        if belongs and given is None:
            raise ConfigError(f"{place}: is required by distribution {drawn.distribution}")
        if not belongs and given is not None:
            choices = " or ".join(distributions)
            raise ConfigError(
                f"{place}: belongs to distribution {choices}, not to {drawn.distribution}"
            )


def _check_transfers(experiment: Experiment, where: Where) -> None:
    prefill, decode = experiment.pools.prefill, experiment.pools.decode
    if prefill is None or decode is None or prefill.precision.kv == decode.precision.kv:
        return
    place = where("pools", "decode", "precision", "kv")
    raise ConfigError(
        f"{place}: {decode.precision.kv}: the prefill pool keeps its KV in {prefill.precision.kv}, "
        "and transfers do not convert; give both the same"
    )


def _check_predictor(experiment: Experiment, where: Where) -> None:
    for pool in cluster.pools_of(experiment).values():
        order = pool.order.get("name")
        if order in NEED_PREDICTOR and experiment.predictor is None:
            place = where("predictor")
            choices = "bucket, noisy, oracle"
            raise ConfigError(f"{place}: is required by order {order}; choose one of {choices}")
