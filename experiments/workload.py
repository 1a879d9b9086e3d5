"""From the config's `workload` to the requests that arrive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from experiments.schema import Experiment, Pool
from experiments.schema import Sessions as SessionsConfig
from experiments.schema import Workload as WorkloadConfig
from sim.errors import ConfigError
from sim.request import NEVER, Trace
from sim.slo import NO_CLASS

if TYPE_CHECKING:
    from traces.workload import ArrivalSource


@dataclass(frozen=True)
class Workload:
    """What arrives.

    Attributes:
        trace: The requests in trace order, `max_tokens` settled.
        source: What feeds them to the event loop.
        notes: What was odd and what was done about it, one sentence each.
    """

    trace: Trace
    source: ArrivalSource
    notes: tuple[str, ...]


def depends_on_ends(workload: WorkloadConfig) -> bool:
    """Whether requests arrive when others end, so that only the run itself tells when."""
    return workload.arrivals.process == "closed-loop" or workload.sessions is not None


def trace_path(workload: WorkloadConfig, folder: Path) -> Path | None:
    """The trace file, beside the config or in the working folder; None if there is none."""
    if workload.trace is None:
        return None
    try:
        given = Path(workload.trace).expanduser()
        return next((path for path in (folder / given, given) if path.is_file()), None)
    except (OSError, RuntimeError):  # a name too long for a path, or ~someone who is not here
        return None


def build_workload(experiment: Experiment, folder: Path, max_model_len: int | None) -> Workload:
    """Read or make the requests, give them arrival times, and settle what clients ask for.

    The same `workload` and seed give the same requests in every variant.

    Args:
        experiment: Resolved and checked.
        folder: Where its relative paths start.
        max_model_len: Shortest limit of its pools, for ``over_long``.

    Raises:
        PhasewiseError: One line: what cannot be read, or does not go together.
    """
    from traces.arrivals import make_source
    from traces.cancellations import draw_cancellations
    from traces.sessions import SessionSource
    from traces.workload import resolve

    config = experiment.workload
    trace = _arriving(config, experiment.seed, folder)
    if (cancel := config.cancel) is not None:
        after = cancel.after
        how = (cancel.share, after.distribution, after.mean_s, after.cv)
        trace = draw_cancellations(trace, *how, seed=experiment.seed)
    cut: list[str] = []
    if config.sessions is not None:
        trace, cut = _with_turns(trace, config, config.sessions, experiment.seed)
    settled, notes = resolve(trace, config.max_tokens, config.over_long, max_model_len)
    if not len(settled):
        raise ConfigError(f"workload: {settled.source}: no request is left to run")
    settled = _with_deadlines(settled, experiment)
    source: ArrivalSource
    if config.sessions is None:
        source = make_source(settled, config.arrivals.concurrency)
    else:
        settled = _with_shared_tokens(settled)
        source = SessionSource(
            settled,
            concurrency=config.arrivals.concurrency,
            on_failed_turn=config.sessions.on_failed_turn,
        )
    idle = _without_effect(settled, experiment)
    return Workload(settled, source, (*settled.notes, *cut, *notes, *idle))


def _with_turns(
    trace: Trace, config: WorkloadConfig, sessions: SessionsConfig, seed: int
) -> tuple[Trace, list[str]]:
    """Delays and whole prompts of all turns, outputs cut to `max_tokens`, and notes of the cut."""
    from traces.sessions import sessions_of
    from traces.turns import draw_delays, whole_prompts
    from traces.workload import resolve

    delay = sessions.delay
    if delay.distribution != "recorded":
        assert delay.mean_s is not None
        trace = draw_delays(trace, delay.distribution, delay.mean_s, delay.cv, seed=seed)
    elif trace.delay_ns is None:
        raise ConfigError(
            f"workload.sessions.delay: recorded: {trace.source} has no column delay_s (or _ms); "
            "draw delays, as in {distribution: exponential, mean_s: 20}"
        )
    cut, notes = resolve(trace, config.max_tokens)
    return whole_prompts(cut, sessions_of(cut), sessions.prompts), notes


def _with_shared_tokens(trace: Trace) -> Trace:
    """The trace with what turns share, if it does not say itself what prompts are made of."""
    from traces.sessions import sessions_of
    from traces.turns import with_content

    return trace if trace.block_ids is not None else with_content(trace, sessions_of(trace))


def _unmet_names(
    trace: Trace, experiment: Experiment, classes: Sequence[str], there: str
) -> list[str]:
    """Classes and tenants that routing and admission name, and no request has."""
    early, limit = experiment.admission.early_rejection, experiment.admission.rate_limit
    keys = {
        "router.classes": experiment.router.get("classes") or (),
        "admission.early_rejection.classes": () if early is None else early.classes,
    }
    notes = [
        f"{key}.{name}: no request is of this class; {there}."
        for key, named in keys.items()
        for name in named
        if name not in classes
    ]
    tenants = set() if trace.tenant is None else set(trace.tenant.tolist())
    unmet = [] if limit is None else [name for name in limit.tenants if name not in tenants]
    return notes + [f"admission.rate_limit.tenants.{x}: no request is of it." for x in unmet]


def _without_effect(trace: Trace, experiment: Experiment) -> list[str]:
    """Keys of the config that say nothing about these requests, one sentence each."""
    given = [None] if trace.request_class is None else trace.request_class.tolist()
    classes = sorted({name or NO_CLASS for name in given})
    there = "there are no classes" if classes == [NO_CLASS] else f"the classes are {_few(classes)}"
    notes = [
        f"slo.classes.{name}: no request is of this class; {there}."
        for name in experiment.slo.classes
        if name not in classes
    ]
    notes += _unmet_names(trace, experiment, classes, there)
    orders = {pool.order["name"] for pool in _pools(experiment)}
    if "priority" in orders and (trace.priority is None or len(set(trace.priority.tolist())) < 2):
        notes.append(
            "order priority: all requests have the same, so it is first come, first served."
        )
    if "vtc" in orders and (trace.tenant is None or len(set(trace.tenant.tolist())) < 2):
        notes.append(
            "order vtc: all requests are of one tenant, so it is first come, first served."
        )
    if "edf" in orders and (trace.deadline_ns is None or (trace.deadline_ns == NEVER).all()):
        notes.append(
            "order edf: no request has a deadline, of the trace or as slo.ttft_s, so it is first "
            "come, first served."
        )
    cached = any(pool.policy.get("prefix_cache") for pool in _pools(experiment))
    if cached and trace.block_ids is None and trace.content is None:
        notes.append(
            "prefix_cache: the trace has no block ids, so that no two requests share anything: "
            "only a preempted request finds its own blocks again."
        )
    return notes


def _few(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 5 else f"{', '.join(names[:5])} and others"


def _pools(experiment: Experiment) -> list[Pool]:
    pools = experiment.pools
    return [pool for pool in (pools.colocated, pools.prefill, pools.decode) if pool is not None]


def _arriving(config: WorkloadConfig, seed: int, folder: Path) -> Trace:
    from traces.arrivals import arrive
    from traces.sessions import begin_sessions

    arrivals = config.arrivals
    window = arrivals.window_s
    made = config.preset is not None
    trace = _of_preset(config, seed) if made else _of_file(config, seed, folder)
    # A preset has been drawn with its arrivals; they are its recording.
    drawn = made and arrivals.process != "closed-loop"
    return (arrive if config.sessions is None else begin_sessions)(
        trace,
        "recorded" if drawn else arrivals.process or "recorded",
        seed=seed,
        rate_per_s=arrivals.rate_per_s,
        cv=arrivals.cv,
        burst_requests=arrivals.burst_requests,
        speedup=arrivals.speedup,
        window_s=None if window is None else (window[0], window[1]),
        limit=arrivals.limit,
        spread_ticks=arrivals.spread_ticks,
    )


def _of_file(config: WorkloadConfig, seed: int, folder: Path) -> Trace:
    import traces

    path = trace_path(config, folder)
    if path is None:
        raise ConfigError(f"workload.trace: {config.trace}: no such file")
    return traces.load(path, config.format, config.columns, seed=seed)


def _of_preset(config: WorkloadConfig, seed: int) -> Trace:
    from traces.presets import synthesize

    assert config.preset is not None
    assert config.requests is not None
    arrivals = config.arrivals
    return synthesize(
        config.preset,
        config.requests,
        rate_per_s=arrivals.rate_per_s,
        seed=seed,
        process=arrivals.process,
        cv=arrivals.cv,
        burst_requests=arrivals.burst_requests,
    )


def _with_deadlines(trace: Trace, experiment: Experiment) -> Trace:
    """Under `edf`, requests without a deadline get the TTFT target of their class (rule 57)."""
    if all(pool.order["name"] != "edf" for pool in _pools(experiment)):
        return trace
    slo = experiment.slo
    general = slo.ttft_s
    by_class = {name: each.ttft_s or general for name, each in slo.classes.items()}
    n = len(trace)
    classes = [None] * n if trace.request_class is None else trace.request_class.tolist()
    targets_s = [by_class.get(name, general) if name else general for name in classes]
    targets = [NEVER if target is None else round(target * 1e9) for target in targets_s]
    own = np.full(n, NEVER, dtype=np.int64) if trace.deadline_ns is None else trace.deadline_ns
    deadline_ns = np.where(own == NEVER, np.array(targets, dtype=np.int64), own)
    return replace(trace, deadline_ns=deadline_ns)
