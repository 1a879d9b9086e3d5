"""One variant, from its resolved experiment to its results in memory."""

from __future__ import annotations

import functools
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from experiments import (
    attribution,
    changes,
    cluster,
    conditional,
    hashes,
    migration,
    pipeline,
    prefix_fetch,
    roles,
    topology,
    transfers,
)
from experiments.advice import setting_of
from experiments.bounds import Tally, as_values, bounds_of
from experiments.bundle import BUNDLE_VERSION, Bundle, Columns, StepsFile
from experiments.cost import rates_of, sources_of
from experiments.notes import done_again, thrashing
from experiments.outages import outages_of
from experiments.requests import depends_on_ends, trace_paths
from experiments.reuse import MOST_REQUESTS, reuse_of
from experiments.schema import Experiment
from experiments.step_times import table_files
from experiments.summary import summarize
from experiments.version import __version__
from experiments.workload import Workload, build_workload
from experiments.worst import preemptions, token_times
from sim.cache_metrics import has_cache, saved_prefill_each_s
from sim.cluster import Cluster
from sim.event_loop import simulate
from sim.metrics import Gaps, Ints, Requests, run_span_ns, transfer_times_s
from sim.records import FAILED, FINISHED, Record, ReplicaInfo, SimulationResult
from sim.request import Trace
from sim.slo import SLO, Windows, class_groups, select, tenant_groups
from sim.specs import ModelSpec
from sim.step_time import StepTimeModel

Progress = Callable[[int, int, int], None]
"""Told now and then: simulated time in ns, requests ended, requests in all."""

_SAMPLE_S_WITHOUT_SPAN = 1.0
_TRACE_COLUMNS = (
    "row",
    "session",
    "turn",
    "request_class",
    "tenant",
    "priority",
    "deadline_ns",
)


@dataclass(frozen=True)
class Fingerprint:
    """What the numbers of a variant depend on; equal ones may be reused.

    Attributes:
        config: Hash of the resolved experiment, its label and name left out.
        trace: Hash of the trace file, or empty for a preset.
        code: Hash of our code and of the user's own files that the config names.
    """

    config: str
    trace: str
    code: str

    @property
    def content(self) -> str:
        """One hash of all."""
        parts = {"config": self.config, "trace": self.trace, "code": self.code}
        return hashes.of_values({**parts, "bundle_version": BUNDLE_VERSION})


def fingerprints(experiments: Sequence[Experiment], folder: Path) -> list[Fingerprint]:
    """Fingerprint of each variant; code and files are hashed once.

    Args:
        experiments: Resolved.
        folder: Where their relative paths start.
    """
    code = hashes.of_code()
    of_file = functools.cache(hashes.of_file)
    return [_fingerprint(each, folder, code, of_file) for each in experiments]


def _fingerprint(
    experiment: Experiment, folder: Path, code: str, of_file: Callable[[Path], str]
) -> Fingerprint:
    config = experiment.model_dump(mode="json", exclude={"label", "name", "about", "notes"})
    read = [of_file(path) for path in trace_paths(experiment.workload, folder)]
    own = [of_file(file) for file in _own_files(experiment, folder)]
    return Fingerprint(
        config=hashes.of_values(config),
        trace=hashes.of_values({"files": read}) if len(read) > 1 else "".join(read),
        code=hashes.of_values({"code": code, "own": own}) if own else code,
    )


def _own_files(experiment: Experiment, folder: Path) -> list[Path]:
    """Files of the user's that decide the result: own modules, a model's config.json, tables."""
    named = [experiment.router, experiment.decode_router or {}, experiment.predictor or {}]
    named += [experiment.migration.migrator] if experiment.migration is not None else []
    switching = experiment.pools.role_switching
    named += [switching.switcher] if switching is not None else []
    for pool in cluster.pools_of(experiment).values():
        named += [pool.policy, pool.order]
        named += [pool.autoscale.autoscaler] if pool.autoscale is not None else []
    modules = [
        str(each["name"]).partition(":")[0] for each in named if ":" in str(each.get("name"))
    ]
    files = [folder / f"{module.replace('.', '/')}.py" for module in modules]
    files.append(folder / experiment.model)
    for pool in cluster.pools_of(experiment).values():
        files += table_files(pool, folder)
    return [file for file in files if file.is_file()]


def run_variant(
    experiment: Experiment,
    folder: Path,
    *,
    prints: Fingerprint | None = None,
    progress: Progress | None = None,
    steps_folder: Path | None = None,
    shards: int = 1,
) -> Bundle:
    """Simulate one variant and sum it up.

    Args:
        experiment: Resolved and checked.
        folder: Where its relative paths start.
        prints: What it depends on, if known already.
        progress: Told now and then how far it is, and at the end.
        steps_folder: Write ``steps.parquet`` there while running, instead of keeping all steps.
        shards: Processes that share its replicas (`sim.shards`), which keep all steps.

    Raises:
        PhasewiseError: One line: sizes that do not fit, a trace that cannot be read, a stuck run.
    """
    started, clock = time.time(), time.perf_counter()
    built = cluster.build(experiment, folder)
    workload = build_workload(experiment, folder, built.max_model_len)
    windows = window_of(experiment, workload)
    prepared = time.perf_counter()
    tally = Tally()
    result = _simulated(experiment, built, workload, progress, steps_folder, shards, tally)
    if progress is not None:
        progress(result.end_ns, len(result.requests["index"]), len(workload.trace))
    simulated = time.perf_counter()
    notes = [*experiment.notes, *workload.notes, *built.notes, *beyond_tables(result.replicas)]
    notes += pipeline.bubbles(result)
    notes += sources_of(experiment)
    bundle = _bundle(experiment, folder, workload, built, result, windows, tally)
    notes += _of_sessions(workload, bundle.summary)
    notes += _of_preemptions(result)
    if experiment.record.attribution is True and not _attributes(experiment, workload.trace):
        notes.append(attribution.NOT_ATTRIBUTED)
    notes += changes.report(experiment, result, bundle.summary)
    notes += topology.report(result, bundle.summary)
    notes += topology.unused_nics(experiment, built.cluster, result)
    notes += transfers.report(experiment, result, bundle.summary)
    notes += conditional.report(experiment, result, bundle.summary)
    notes += roles.report(experiment, result, bundle.summary)
    notes += prefix_fetch.report(experiment, result, bundle.summary)
    notes += migration.report(experiment, result, bundle.summary)
    bundle.notes = [*changes.left_without_replicas(experiment, result), *notes]
    bundle.environment = _environment(experiment, prints or fingerprints([experiment], folder)[0])
    bundle.wallclock = {
        "started_unix_s": started,
        "prepare_s": prepared - clock,
        "simulate_s": simulated - prepared,
        "summarize_s": time.perf_counter() - simulated,
        "machine": platform.platform(),
    }
    return bundle


def _simulated(
    experiment: Experiment,
    built: cluster.Built,
    workload: Workload,
    progress: Progress | None,
    steps_folder: Path | None,
    shards: int,
    tally: Tally,
) -> SimulationResult:
    events, told = changes.events_of(experiment), _with_total(progress, len(workload.trace))
    if shards > 1:
        from experiments.shards import simulate_in_shards

        return simulate_in_shards(
            experiment,
            workload,
            built.cluster,
            shards,
            record=_record(experiment, workload.trace, None, tally),
            cluster_events=events,
            progress=told,
        )
    with _steps_file(experiment, steps_folder) as file:
        return simulate(
            workload.source,
            built.cluster,
            seed=experiment.seed,
            fast_forward=experiment.fast_forward,
            check=experiment.check,
            record=_record(experiment, workload.trace, file, tally),
            cluster_events=events,
            progress=told,
        )


def beyond_tables(replicas: Sequence[ReplicaInfo]) -> list[str]:
    """How much of a run rests on times that no table has, one sentence a pool.

    Args:
        replicas: Of the result; none if step times are not from tables.
    """
    counted: dict[str, list[Mapping[str, Any]]] = {}
    for replica in replicas:
        if replica.step_time_usage is not None:
            counted.setdefault(replica.pool, []).append(replica.step_time_usage)
    if not counted:
        return []
    from kernels_profile.usage import add_up, sentence

    alone = len({replica.pool for replica in replicas}) == 1
    return [
        f"{'' if alone else f'{pool}: '}step times {sentence(add_up(usages))}."
        for pool, usages in counted.items()
    ]


def warning_beyond_tables(replicas: Sequence[ReplicaInfo]) -> tuple[float, str]:
    """Share of all step time that lies outside of the tables, and a short line if it is large.

    Args:
        replicas: Of the result.

    Returns:
        The line is empty for a small share, and where step times are not from tables.
    """
    usages = [each.step_time_usage for each in replicas if each.step_time_usage is not None]
    if not usages:
        return 0.0, ""
    from kernels_profile.usage import add_up, warning

    total = add_up(usages)
    return max(total.outside_ns, total.filled_ns) / max(total.ns, 1), warning(total)


def window_of(experiment: Experiment, workload: Workload) -> Windows:
    """The measured part of a run; refused now, and not after the simulation, if it is empty.

    Raises:
        ConfigError: Warm-up and drain leave nothing to measure. Where ends cause arrivals only the
            run itself tells.
    """
    windows = Windows(experiment.warm_up_s, experiment.drain_s)
    if not depends_on_ends(experiment.workload):
        windows.bounds_ns(workload.trace.arrival_ns)
    return windows


def _of_sessions(workload: Workload, summary: dict[str, Any]) -> list[str]:
    """Add what came of the sessions to the summary; turns that never arrived, as a sentence."""
    from traces.mixture import MixedSource
    from traces.sessions import SessionSource

    source = workload.source
    if not isinstance(source, SessionSource | MixedSource) or not (counts := source.counts()):
        return []
    summary["sessions"] = counts
    note = source.note()
    return [] if note is None else [note]


def _of_preemptions(result: SimulationResult) -> list[str]:
    """Where most work was done again: after preemptions, or as KV was lost otherwise.

    A request that lost KV both ways does not say which tokens were whose: none of it is told as
    preemption.
    """
    requests = result.requests
    served = int(requests["prompt_tokens"][requests["state"] == FINISHED].sum())
    again, preempted = requests["recomputed_tokens"], requests["preemptions"] > 0
    moved = (requests["rerouted"] > 0) | (requests["migrations"] > 0)
    moved |= requests["state"] == FAILED
    only, both = (int(again[preempted & other].sum()) for other in (~moved, moved))
    causes = [
        *(["failures of replicas"] if (result.changes.get("lost", np.zeros(1)) > 0).any() else []),
        *(["hold timeouts"] if result.hold_timeouts else []),
        *(["migrations"] if requests["migrations"].any() else []),
    ]
    lost = int(again[~preempted].sum())
    return [*thrashing(only, served), *done_again(lost, both, served, causes or ["changes"])]


def _with_total(progress: Progress | None, total: int) -> Callable[[int, int], None] | None:
    if progress is None:
        return None
    progress(0, 0, total)
    return lambda now_ns, ended: progress(now_ns, ended, total)


@contextmanager
def _steps_file(experiment: Experiment, folder: Path | None) -> Iterator[StepsFile | None]:
    if folder is None or not experiment.record.steps:
        yield None
        return
    with StepsFile(folder) as file:
        yield file


def _record(experiment: Experiment, trace: Trace, file: StepsFile | None, tally: Tally) -> Record:
    attributed = _attributes(experiment, trace)
    points = experiment.record.series_points
    span_ns = int(trace.arrival_ns.max()) if len(trace) else 0  # parts of a mix overlap
    if span_ns <= 0 or depends_on_ends(experiment.workload):
        # The arrivals span no time, or nobody knows how much: sample at a fixed interval.
        span_ns = round(points * _SAMPLE_S_WITHOUT_SPAN * 1e9)
    return Record(
        steps=experiment.record.steps,
        series_points=points,
        series_span_ns=span_ns,
        attribution=attributed,
        decisions=experiment.record.decisions,
        on_steps=None if file is None else _writes(file, tally if attributed else None),
    )


def _writes(file: StepsFile, tally: Tally | None) -> Callable[[Columns, Sequence[str]], None]:
    """Takes rows of the step log to the file, and into account."""
    if tally is None:
        return file.write

    def write(columns: Columns, names: Sequence[str]) -> None:
        tally.add(columns)
        file.write(columns, names)

    return write


def _attributes(experiment: Experiment, trace: Trace) -> bool:
    """Whether it is recorded where time went."""
    said = experiment.record.attribution
    return said == "always" or (said is True and len(trace) <= attribution.MOST_REQUESTS)


def _bundle(
    experiment: Experiment,
    folder: Path,
    workload: Workload,
    built: cluster.Built,
    result: SimulationResult,
    windows: Windows,
    tally: Tally,
) -> Bundle:
    requests = _with_trace(result.requests, workload.trace)
    requests |= prefix_fetch.of_requests(experiment, result)
    requests |= migration.of_requests(experiment, result)
    mask = windows.mask(requests["arrival_ns"])
    gaps = _gaps(result, *class_groups(requests, mask))
    groups, tenants = tenant_groups(requests, mask)
    models = _step_times(built.cluster, result)
    saved = saved_prefill_each_s(requests, models)
    summary = summarize(
        {
            **attribution.without_phases(requests),
            "saved_prefill_s": saved,
            **transfer_times_s(requests, result.transfers),
        },
        itl=gaps,
        reuse=_reuse(workload.trace, result) if has_cache(result.replicas) else None,
        tenant_itl=_gaps(result, groups, tenants) if len(tenants) > 1 else None,
        series=result.series,
        replicas=result.replicas,
        reasons=result.reasons,
        run_end_ns=result.end_ns,
        slo=slo_of(experiment),
        windows=windows,
        work=cluster.work(
            experiment, folder, result.replicas, run_span_ns(requests, result.end_ns)
        ),
        rates=rates_of(experiment),
        transfers=result.transfers,
        staging={
            replica.name: {"bytes": replica.staged_bytes, "peak_bytes": replica.staging_peak_bytes}
            for replica in result.replicas
            if replica.staged_bytes
        },
    )
    tokens = token_times(result, requests, mask)
    config = experiment.model_dump(mode="json", exclude_none=True)
    if attribution.is_attributed(requests):
        model = cluster.load_model(experiment.model, folder, "model")
        _attribute(summary, config, model, tally, result, select(requests, mask), gaps)
    return Bundle(
        config=config,
        environment={},
        requests=requests,
        reasons=result.reasons,
        replicas=result.replicas,
        itl=gaps,
        series=dict(result.series),
        pools=dict(result.pools),
        transfers=dict(result.transfers),
        migrations=dict(result.migrations) if experiment.migration is not None else {},
        changes=dict(result.changes),
        tokens=tokens,
        preemptions=preemptions(result, tokens),
        steps=None if result.steps is None else dict(result.steps),
        decisions=result.decisions if experiment.record.decisions else None,
        end_ns=result.end_ns,
        summary=summary,
    )


def _attribute(
    summary: dict[str, Any],
    config: Mapping[str, Any],
    model: ModelSpec,
    tally: Tally,
    result: SimulationResult,
    measured: Requests,
    gaps: Mapping[str, Gaps],
) -> None:
    """Add to a summary where time went, and what bound the steps in which it did."""
    if result.steps is not None:
        tally.add(result.steps)
    arithmetic = {}
    if config["record"]["steps"]:
        bounds = bounds_of(config, model, tally, result.requests, result.replicas)
        arithmetic = as_values(bounds)
    outages = outages_of(config, result.changes, result.replicas)
    setting = setting_of(config, outages, arithmetic)
    ranked = attribution.gaps_at_ranks(result.gap_splits(), measured, gaps)
    if split := attribution.summarize(measured, setting, ranked):
        summary |= {"arithmetic": arithmetic} if arithmetic else {}
        summary["attribution"] = split


def _step_times(cluster: Cluster, result: SimulationResult) -> list[StepTimeModel]:
    """Step times of all replicas, in the order of their indices; those of a pool are alike."""
    pools = [pool for pool in (cluster.entry, cluster.decode) if pool is not None]
    of_pool = {pool.name: pool.replicas[0].step_time for pool in pools}
    return [of_pool[replica.pool] for replica in result.replicas]


def _reuse(trace: Trace, result: SimulationResult) -> dict[str, Any] | None:
    """Reuse in the order in which requests arrived, which in a closed loop only the run tells."""
    if len(trace) > MOST_REQUESTS:
        return None
    arrived = result.requests["index"][np.argsort(result.requests["arrival_ns"], kind="stable")]
    return reuse_of(trace.take(arrived.astype(np.intp)))


def _gaps(result: SimulationResult, groups: Ints, names: Sequence[str]) -> dict[str, Gaps]:
    """Counted gaps of each group of requests by its name."""
    counted = result.itl(groups)
    return {name: counted[group] for group, name in enumerate(names) if group in counted}


def _with_trace(requests: dict[str, Any], trace: Trace) -> Columns:
    """The requests table with the columns that only the trace has, joined by index."""
    index = requests["index"]
    joined: Columns = {}
    for name in _TRACE_COLUMNS:
        column = getattr(trace, name)
        if column is not None:
            joined[name] = np.asarray(column)[index]
    return {"index": index, **joined, **requests}


def slo_of(experiment: Experiment) -> SLO:
    """The targets of an experiment."""
    targets = experiment.slo.model_dump(exclude={"classes"})
    classes = {name: SLO(**each.model_dump()) for name, each in experiment.slo.classes.items()}
    return SLO(**targets, classes=classes)


def _environment(experiment: Experiment, prints: Fingerprint) -> dict[str, Any]:
    return {
        "phasewise": __version__,
        "python": platform.python_version(),
        **{name: version(name) for name in ("numpy", "simpy", "pyarrow")},
        "seed": experiment.seed,
        "content_sha256": prints.content,
        "config_sha256": prints.config,
        "trace_sha256": prints.trace,
        "code_sha256": prints.code,
    }
