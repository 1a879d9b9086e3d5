"""From one source of a config, a trace or a preset, to its requests with their arrival times."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from experiments import options
from experiments.names import canonical
from experiments.schema import Arrivals, Part, Sessions, Source, Workload
from sim.errors import ConfigError
from sim.request import Trace

if TYPE_CHECKING:
    from traces.generators import Generator


def sources(workload: Workload) -> list[Source]:
    """The workload itself, or the parts that it is mixed of."""
    return [workload] if workload.mix is None else [*workload.mix]


def depends_on_ends(workload: Workload) -> bool:
    """Whether requests arrive when others end, so that only the run itself tells when."""
    return any(
        source.arrivals.process == "closed-loop" or sessions_of_source(source) is not None
        for source in sources(workload)
    )


def sessions_of_source(source: Source) -> Sessions | None:
    """How the turns of its sessions follow each other; None where they do not."""
    generator = generator_of(source)
    if source.sessions is None and generator is not None and generator.sessions == "closed":
        return Sessions()
    return source.sessions


def generator_of(source: Source, where: str = "workload.preset") -> Generator | None:
    """The generator that a preset names, with its options; None for a table of quantiles.

    Args:
        source: Of the config.
        where: File and key, for messages.

    Raises:
        ConfigError: An option that it does not have.
    """
    if source.preset is None:
        return None
    from traces.generators import GENERATORS

    name = canonical(str(source.preset.get("name", "")))
    if name not in GENERATORS:
        return None
    chosen = {key: value for key, value in source.preset.items() if key != "name"}
    made: Generator = options.build(GENERATORS[name], chosen, name, where)
    return made


def trace_path(trace: str | None, folder: Path) -> Path | None:
    """The trace file, beside the config or in the working folder; None if there is none."""
    if trace is None:
        return None
    try:
        given = Path(trace).expanduser()
        return next((path for path in (folder / given, given) if path.is_file()), None)
    except (OSError, RuntimeError):  # a name too long for a path, or ~someone who is not here
        return None


def trace_paths(workload: Workload, folder: Path) -> Iterator[Path]:
    """The trace files of a workload that are there."""
    for source in sources(workload):
        path = trace_path(source.trace, folder)
        if path is not None:
            yield path


def arriving(source: Source, seed: int, folder: Path) -> Trace:
    """The requests of a source, read or made, at their times."""
    from traces.arrivals import arrive
    from traces.mixture import typed
    from traces.sessions import begin_sessions, sessions_of

    arrivals, generator = source.arrivals, generator_of(source)
    process = arrivals.process or "recorded"
    if generator is not None:
        assert source.requests is not None
        trace = generator.make(source.requests, seed, source.prompt_order or "stable-first")
        process = arrivals.process or "poisson"
    elif source.preset is not None:
        trace = _of_preset(source, seed)
        # It has been drawn with its arrivals; they are its recording.
        process = process if process == "closed-loop" else "recorded"
    else:
        trace = _of_file(source, seed, folder)
    is_typed = generator is not None and generator.sessions == "typed"
    in_sessions = is_typed or sessions_of_source(source) is not None
    window = arrivals.window_s
    begun = (begin_sessions if in_sessions else arrive)(
        trace,
        process,
        seed=seed,
        rate_per_s=arrivals.rate_per_s,
        cv=arrivals.cv,
        burst_requests=arrivals.burst_requests,
        speedup=arrivals.speedup,
        window_s=None if window is None else (window[0], window[1]),
        limit=arrivals.limit,
        spread_ticks=arrivals.spread_ticks,
    )
    return typed(begun, sessions_of(begun).order) if is_typed else begun


def _of_file(source: Source, seed: int, folder: Path) -> Trace:
    import traces

    path = trace_path(source.trace, folder)
    if path is None:
        raise ConfigError(f"workload.trace: {source.trace}: no such file")
    return traces.load(path, source.format, source.columns, seed=seed)


def _of_preset(source: Source, seed: int) -> Trace:
    from traces.presets import synthesize

    assert source.preset is not None
    assert source.requests is not None
    arrivals = source.arrivals
    return synthesize(
        source.preset["name"],
        source.requests,
        rate_per_s=arrivals.rate_per_s,
        seed=seed,
        process=arrivals.process,
        cv=arrivals.cv,
        burst_requests=arrivals.burst_requests,
    )


def parts_of(workload: Workload) -> dict[str, Part]:
    """The parts of a mix by name, their shares written out as rates and numbers of requests.

    A part is named after its class, its preset or its file, with a number where that is taken. Of
    the mix's rate and requests each part has its share: of Poisson arrivals that is the same as to
    draw for each arrival whose it is.
    """
    named: dict[str, Part] = {}
    total = sum(part.share or 0.0 for part in workload.mix or ())
    for part in workload.mix or ():
        name = first = part.request_class or _source_name(part)
        for again in range(2, len(named) + 3):
            if name not in named:
                break
            name = f"{first}-{again}"
        named[name] = (
            part if part.share is None else _with_share(part, workload, part.share / total)
        )
    return named


def _source_name(source: Source) -> str:
    if source.preset is not None:
        return str(source.preset["name"])
    return Path(source.trace or "trace").name.partition(".")[0]


def _with_share(part: Part, workload: Workload, share: float) -> Part:
    rate, requests = workload.arrivals.rate_per_s, workload.requests
    assert rate is not None
    own: dict[str, object] = {**workload.arrivals.model_dump(), "rate_per_s": rate * share}
    many = None if requests is None else max(1, round(requests * share))
    if many is not None and part.trace is not None:
        own["limit"] = many
    changed: dict[str, object] = {"arrivals": Arrivals(**own), "share": None}  # type: ignore[arg-type]
    if many is not None and part.preset is not None:
        changed["requests"] = many
    return part.model_copy(update=changed)
