"""From the config's `workload` to the requests that arrive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from experiments.names import canonical
from experiments.requests import arriving, generator_of, parts_of, sessions_of_source
from experiments.schema import Experiment, Part, Pool, Source
from experiments.schema import Sessions as SessionsConfig
from experiments.without_effect import of_requests
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


def build_workload(experiment: Experiment, folder: Path, max_model_len: int | None) -> Workload:
    """Read or make the requests, give them arrival times, and settle what clients ask for.

    The same `workload` and seed give the same requests in every variant; each part of a mix draws
    by its name, whatever the others are.

    Args:
        experiment: Resolved and checked.
        folder: Where its relative paths start.
        max_model_len: Shortest limit of its pools, for ``over_long``.

    Raises:
        PhasewiseError: One line: what cannot be read, or does not go together.
    """
    from traces.mixture import MixedSource, joined, seed_of_part, set_apart

    config, seed = experiment.workload, experiment.seed
    settle = partial(_settled, experiment=experiment, folder=folder, limit=max_model_len)
    if config.mix is None:
        trace, notes = settle(config, seed, "workload")
        return Workload(
            trace,
            _source_of(config, trace),
            (*trace.notes, *notes, *_without_effect(trace, experiment)),
        )
    parts = parts_of(config)
    built = [
        settle(part, seed_of_part(seed, name), f"workload.mix[{at}]")
        for at, (name, part) in enumerate(parts.items())
    ]
    traces = set_apart([trace for trace, _ in built], list(parts))
    mixed = MixedSource(
        [_source_of(part, each) for part, each in zip(parts.values(), traces, strict=True)]
    )
    trace = joined(traces)
    said = (
        f"{each.source}: {note}"
        for each, (_, notes) in zip(traces, built, strict=True)
        for note in notes
    )
    return Workload(trace, mixed, (*trace.notes, *said, *_without_effect(trace, experiment)))


def _settled(
    source: Source, seed: int, key: str, experiment: Experiment, folder: Path, limit: int | None
) -> tuple[Trace, list[str]]:
    """The requests of the source at a key as they will be run, and what was done to them."""
    from traces.cancellations import draw_cancellations
    from traces.workload import resolve

    config = experiment.workload
    asked = (source.max_tokens if isinstance(source, Part) else None) or config.max_tokens
    trace = arriving(source, seed, folder)
    if isinstance(source, Part) and source.request_class is not None:
        named = np.full(len(trace), source.request_class, dtype=object)
        trace = replace(trace, request_class=named)
    if (cancel := config.cancel) is not None:
        after = cancel.after
        how = (cancel.share, after.distribution, after.mean_s, after.cv)
        trace = draw_cancellations(trace, *how, seed=seed)
    cut: list[str] = []
    sessions = sessions_of_source(source)
    if sessions is not None:
        trace, cut = _with_turns(trace, asked, sessions, seed, f"{key}.sessions")
    settled, notes = resolve(trace, asked, config.over_long, limit)
    if not len(settled):
        raise ConfigError(f"{key}: {settled.source}: no request is left to run")
    settled = _with_deadlines(settled, experiment)
    return _with_shared_tokens(settled, source, key), [*cut, *notes]


def _source_of(source: Source, trace: Trace) -> ArrivalSource:
    """What feeds the requests of one source."""
    from traces.arrivals import make_source
    from traces.sessions import SessionSource

    sessions = sessions_of_source(source)
    concurrency = source.arrivals.concurrency
    if sessions is None:
        return make_source(trace, concurrency)
    return SessionSource(trace, concurrency=concurrency, on_failed_turn=sessions.on_failed_turn)


def _with_turns(
    trace: Trace, asked: int | None, sessions: SessionsConfig, seed: int, key: str
) -> tuple[Trace, list[str]]:
    """Delays and whole prompts of all turns, outputs cut to `max_tokens`, and notes of the cut."""
    from traces.sessions import sessions_of
    from traces.turns import draw_delays, whole_prompts, why_whole
    from traces.workload import resolve

    delay = sessions.delay
    if delay.distribution != "recorded":
        assert delay.mean_s is not None
        trace = draw_delays(trace, delay.distribution, delay.mean_s, delay.cv, seed=seed)
    elif trace.delay_ns is None:
        raise ConfigError(
            f"{key}.delay: recorded: {trace.source} has no column delay_s (or _ms); "
            "draw delays, as in {distribution: exponential, mean_s: 20}"
        )
    if sessions.prompts == "incremental" and (why := why_whole(trace)) is not None:
        raise ConfigError(
            f"{key}.prompts: incremental: those of {trace.source} are whole: {why}; leave it out"
        )
    cut, notes = resolve(trace, asked)
    return whole_prompts(cut, sessions_of(cut), sessions.prompts), notes


def _with_shared_tokens(trace: Trace, source: Source, key: str) -> Trace:
    """The trace with what turns share, if it does not say itself what prompts are made of."""
    from traces.sessions import sessions_of
    from traces.turns import with_content

    generator, order = generator_of(source), source.prompt_order
    in_turns = sessions_of_source(source) is not None
    told = trace.block_ids is not None or trace.content is not None
    unshared = not told and not in_turns
    if order is not None and (unshared or (generator is None and told)):
        why = "its block ids say" if told else "nothing is said of"
        raise ConfigError(
            f"{key}.prompt_order: {order}: {trace.source}: {why} what its prompts are made of; "
            "expected a preset whose prompts share parts, or sessions without block ids"
        )
    if told or unshared:
        return trace
    system_tokens = getattr(generator, "system_tokens", 0)
    return with_content(trace, sessions_of(trace), system_tokens, order or "stable-first")


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
    cached = any(_keeps_prefixes(pool) for pool in _pools(experiment))
    if cached and trace.block_ids is None and trace.content is None:
        notes.append(
            "prefix_cache: the trace has no block ids, so that no two requests share anything: "
            "only a preempted request finds its own again."
        )
    return notes + of_requests(trace, experiment)


def _keeps_prefixes(pool: Pool) -> bool:
    """Whether the pool's policy has a prefix cache, asked for or by default."""
    from policies import POLICIES

    default = getattr(POLICIES.get(canonical(pool.policy["name"])), "prefix_cache", False)
    return bool(pool.policy.get("prefix_cache", default))


def _few(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 5 else f"{', '.join(names[:5])} and others"


def _pools(experiment: Experiment) -> list[Pool]:
    pools = experiment.pools
    return [pool for pool in (pools.colocated, pools.prefill, pools.decode) if pool is not None]


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
