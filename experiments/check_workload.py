"""What the keys of a workload may say together: sources, arrivals, sessions, mixes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType

from experiments.cluster import Where
from experiments.explain import shown
from experiments.names import unknown
from experiments.requests import generator_of, parts_of, trace_path
from experiments.schema import Delay, Part, Patience, Source, Workload
from sim.errors import ConfigError, closest

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


def check_workload(workload: Workload, where: Where, folder: Path) -> None:
    """Refuse a workload that cannot be made, before anything is.

    Args:
        workload: Of the config.
        where: Says file and key of a path.
        folder: Where its relative paths start.

    Raises:
        ConfigError: One line with file, key, value and what would do.
    """
    if workload.cancel is not None:
        _check_drawn(workload.cancel.after, where, "workload", "cancel", "after")
    if workload.mix is None:
        _check_source(workload, partial(where, "workload"), folder)
        return
    for key in ("trace", "preset", "format", "columns", "sessions", "prompt_order"):
        if getattr(workload, key) is not None:
            raise ConfigError(
                f"{where('workload', key)}: there is a mix too; give it in a part of workload.mix"
            )
    _check_shares(workload, where)
    for at, (given, part) in enumerate(zip(workload.mix, parts_of(workload).values(), strict=True)):
        place = partial(where, "workload", "mix", at)
        _check_share(given, workload, place)
        _check_source(part, place, folder)


def _check_shares(workload: Workload, where: Where) -> None:
    """Of a mix's arrivals and requests all parts have a share, or none."""
    shared = [part.share is not None for part in workload.mix or ()]
    if not any(shared):
        for key in ("arrivals", "requests"):
            if getattr(workload, key) != type(workload).model_fields[key].default:
                raise ConfigError(
                    f"{where('workload', key)}: no part of the mix has a share of it; give each "
                    f"part {key} of its own, or a share"
                )
        return
    if not all(shared):
        place = where("workload", "mix", shared.index(False))
        raise ConfigError(f"{place}: has no share, but others have; give all or none")
    if workload.arrivals.rate_per_s is None or workload.arrivals.process in (None, "closed-loop"):
        raise ConfigError(
            f"{where('workload', 'arrivals')}: parts share it, so that it needs a process and a "
            "rate, as in {process: poisson, rate_per_s: 10}"
        )


def _check_share(part: Part, workload: Workload, where: Where) -> None:
    if part.share is None:
        return
    for key in ("arrivals", "requests"):
        if getattr(part, key) != type(part).model_fields[key].default:
            raise ConfigError(f"{where(key)}: there is a share too; give one of them")
    if part.preset is not None and workload.requests is None:
        place = where("share")
        raise ConfigError(f"{place}: of how many requests is not said; give workload.requests")


def _check_source(source: Source, where: Where, folder: Path) -> None:
    if (source.trace is None) == (source.preset is None):
        have = "both are given" if source.trace is not None else "neither is given"
        raise ConfigError(f"{where()}: needs a trace or a preset; {have}")
    if source.preset is not None:
        _check_preset(source, where)
    elif trace_path(source.trace, folder) is None:
        raise ConfigError(f"{where('trace')}: {_no_file(source.trace or '', folder)}")
    elif source.requests is not None:
        raise ConfigError(f"{where('requests')}: belongs to a preset; try arrivals.limit")
    _check_arrivals(source, where)
    _check_sessions(source, where)


def _no_file(trace: str, folder: Path) -> str:
    """Why a trace is no file; ``~`` and names too long for a path are no folders."""
    try:
        is_folder = any(path.is_dir() for path in (folder / trace, Path(trace)))
    except OSError:
        is_folder = False
    if is_folder:
        return f"{shown(trace)}: is a folder; name the file in it"
    return f"{shown(trace)}: no such file, neither beside the config nor here"


def _check_preset(source: Source, where: Where) -> None:
    from traces.generators import GENERATORS
    from traces.presets import PRESETS

    assert source.preset is not None
    name = source.preset.get("name")
    if name is None:
        slips = [key for key in source.preset if closest(key, ("name",))]
        hint = "".join(f", not {key}: try name" for key in slips[:1])
        raise ConfigError(
            f"{where('preset')}: its name is missing, as in {{name: system-prompts}}{hint}"
        )
    if name not in (*PRESETS, *GENERATORS):
        raise ConfigError(f"{where('preset')}: {unknown('preset', name, (*PRESETS, *GENERATORS))}")
    if name in PRESETS and len(source.preset) > 1:
        key = next(key for key in source.preset if key != "name")
        raise ConfigError(
            f"{where('preset', key)}: {name} has no options: it is drawn from recorded lengths"
        )
    generator_of(source, where("preset"))
    if source.requests is None:
        place = where("requests")
        raise ConfigError(f"{place}: is required: how many requests to make of the preset")
    for key in ("format", "columns"):
        if getattr(source, key) is not None:
            raise ConfigError(f"{where(key)}: belongs to a trace, not to a preset")
    _check_generated_arrivals(source, where)


def _check_generated_arrivals(source: Source, where: Where) -> None:
    """A generator does not say how its requests arrive."""
    generator, arrivals = generator_of(source), source.arrivals
    if generator is None or source.preset is None:
        return
    name = source.preset["name"]
    if arrivals.rate_per_s is None and arrivals.process not in ("burst", "closed-loop"):
        counted = "requests" if generator.sessions == "none" else "sessions"
        raise ConfigError(
            f"{where('arrivals')}: how preset {name} arrives is not recorded; say it, as in "
            f"{{process: poisson, rate_per_s: 2}} ({counted} a second)"
        )
    if generator.sessions == "typed" and arrivals.process == "closed-loop":
        raise ConfigError(
            f"{where('arrivals', 'process')}: closed-loop: the requests of {name} come at times of "
            "their own, whatever becomes of those before; try poisson"
        )


def _check_arrivals(source: Source, where: Where) -> None:
    arrivals = source.arrivals
    process = arrivals.process
    unsaid_keys = _OF_PRESETS if source.preset is not None else _OF_TRACES
    for key, processes in _BELONGS.items():
        unsaid = process is None and key in unsaid_keys
        default = type(arrivals).model_fields[key].default
        if getattr(arrivals, key) != default and not unsaid and process not in processes:
            place = where("arrivals", key)
            choices = " or ".join(processes)
            if process is None:
                raise ConfigError(
                    f"{place}: belongs to process {choices}, and none is given: say which, as in "
                    f"arrivals: {{process: {processes[0]}, {key}: {getattr(arrivals, key)!r}}}"
                )
            raise ConfigError(f"{place}: belongs to process {choices}, not to {process}")
    for needing, needed in (("closed-loop", "concurrency"), ("gamma", "cv")):
        if process == needing and getattr(arrivals, needed) is None:
            place = where("arrivals", needed)
            raise ConfigError(f"{place}: is required by process {needing}")
    if arrivals.rate_per_s is not None and arrivals.speedup != 1:
        place = where("arrivals", "speedup")
        raise ConfigError(f"{place}: changes the rate that rate_per_s gives; give one of them")
    window = arrivals.window_s
    if window is not None and not round(window[0] * 1e9) < round(window[1] * 1e9):
        place = where("arrivals", "window_s")
        raise ConfigError(f"{place}: {shown(window)}: expected [from, to] with 0 <= from < to")


_OF_DRAWN: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "mean_s": ("constant", "exponential", "gamma", "lognormal"),
        "cv": ("gamma", "lognormal"),
    }
)
"""Keys of what is drawn, and the distributions that need them; others have no use for them."""


def _check_sessions(source: Source, where: Where) -> None:
    if source.sessions is None:
        return
    generator = generator_of(source)
    if source.preset is not None and (generator is None or generator.sessions != "closed"):
        raise ConfigError(
            f"{where('sessions')}: belongs to a trace with a session column; the requests of "
            f"preset {source.preset['name']} have no sessions whose turns wait for each other"
        )
    delay = source.sessions.delay
    _check_drawn(delay, where, "sessions", "delay")
    if delay.mean_s == 0 and delay.distribution != "constant":
        place = where("sessions", "delay", "mean_s")
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
