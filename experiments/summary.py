"""The numbers of one run: what `summary.json` holds, and what tables are made of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.verdict import judge
from sim import cache_metrics, metrics
from sim.metric_definitions import METRICS
from sim.metrics import NS_PER_S, Gaps, ReplicaFacts, Requests
from sim.model_work import ModelWork, mbu, mfu
from sim.records import STATES
from sim.slo import SLO, Windows, request_classes, select, slo_attainment


def summarize(
    requests: Requests,
    *,
    itl: Mapping[str, Gaps],
    series: Requests,
    replicas: Sequence[ReplicaFacts],
    reasons: Sequence[str],
    run_end_ns: int,
    slo: SLO | None = None,
    windows: Windows | None = None,
    work: ModelWork | None = None,
) -> dict[str, Any]:
    """Sum up a run as values that JSON can hold; None stands for what is undefined.

    Args:
        requests: All requests that arrived, with column `request_class` where the trace has one.
        itl: Counted gaps of the measured requests of each class (see `sim.slo.class_groups`).
        series: Columns `sim.records.SERIES_COLUMNS` on a time grid; empty where not recorded.
        replicas: In the order of the indices in the columns.
        reasons: Text of each code in column `reason`.
        run_end_ns: The last instant of the run.
        slo: Targets; None for none.
        windows: Ends of the run that are not measured; None to measure all.
        work: FLOPs and bytes of the model; None where they are not known.

    Returns:
        Keys in a fixed order: counts, window, hardware, verdict, targets, the metrics over all
        measured requests (``overall``) and per class (``classes``, empty with a single class).
    """
    slo, windows = slo or SLO(), windows or Windows()
    start_ns, end_ns = windows.bounds_ns(requests["arrival_ns"])
    mask = windows.mask(requests["arrival_ns"])
    measured = select(requests, mask)
    gpus = sum(replica.gpus for replica in replicas)
    span = start_ns, end_ns, run_end_ns
    cached = cache_metrics.has_cache(replicas)
    verdict = judge(requests)
    summary = {
        "requests": _counts(requests),
        "measured_requests": _counts(measured),
        "reasons": _reasons(requests, reasons),
        "window": {
            "warm_up_s": windows.warm_up_s,
            "drain_s": windows.drain_s,
            "start_s": start_ns / NS_PER_S,
            "end_s": end_ns / NS_PER_S,
        },
        "run_end_s": run_end_ns / NS_PER_S,
        "gpus": gpus,
        "replicas": _replicas(requests, replicas, run_end_ns),
        "verdict": {"name": verdict.name, "reason": verdict.reason},
        "slo": _targets(slo),
        "overall": {
            **_metrics(measured, metrics.merge_gaps(itl.values()), span, slo, gpus, cached=cached),
            **_over_time(requests, series, replicas, span),
            **_of_the_peak(requests, replicas, work, run_end_ns),
        },
        "classes": _classes(measured, itl, span, slo, gpus, cached=cached),
    }
    jsonable: dict[str, Any] = _jsonable(summary)
    return jsonable


def _counts(requests: Requests) -> dict[str, int]:
    state = np.bincount(requests["state"], minlength=len(STATES)).tolist()
    return {"arrived": len(requests["state"]), **dict(zip(STATES, state, strict=True))}


def _reasons(requests: Requests, reasons: Sequence[str]) -> dict[str, int]:
    count = np.bincount(requests["reason"], minlength=len(reasons)).tolist()
    return {text: n for text, n in sorted(zip(reasons, count, strict=True)) if text and n}


def _targets(slo: SLO) -> dict[str, Any]:
    own = {name: getattr(slo, name) for name in ("ttft_s", "tpot_s", "itl_s", "e2e_s")}
    given: dict[str, Any] = {name: target for name, target in own.items() if target is not None}
    classes = {name: _targets(each) for name, each in sorted(slo.classes.items())}
    return given | ({"classes": classes} if classes else {})


def _replicas(
    requests: Requests, replicas: Sequence[ReplicaFacts], run_end_ns: int
) -> list[dict[str, Any]]:
    shares = metrics.utilisation(replicas, metrics.run_span_ns(requests, run_end_ns)).tolist()
    return [
        {
            "name": replica.name,
            "pool": replica.pool,
            "gpus": replica.gpus,
            "total_blocks": replica.total_blocks,
            "block_tokens": replica.block_tokens,
            "iterations": replica.iterations,
            "busy_s": replica.busy_ns / NS_PER_S,
            "utilisation": share,
        }
        | ({} if replica.lost_blocks is None else {"lost_blocks": replica.lost_blocks})
        for replica, share in zip(replicas, shares, strict=True)
    ]


def _metrics(
    requests: Requests,
    gaps: Gaps,
    span: tuple[int, int, int],
    slo: SLO,
    gpus: int,
    *,
    cached: bool,
) -> dict[str, Any]:
    """Metrics of any set of requests; `span` is start and end of the window and end of the run."""
    start_ns, end_ns, run_end_ns = span
    window_s = (end_ns - start_ns) / NS_PER_S
    observed_s = metrics.observed_s(requests, start_ns, run_end_ns)
    out = metrics.throughput_out_per_s(requests, observed_s)
    into = metrics.throughput_in_per_s(requests, observed_s)
    met = int(slo.met(requests).sum()) if slo.has_targets else math.nan
    values = {
        **{key: metrics.distribution(f(requests)) for key, f in metrics.PER_REQUEST.items()},
        "itl": metrics.gap_distribution(gaps),
        "throughput_out": out,
        "throughput_in": into,
        "throughput_out_per_gpu": metrics.per_second(out, gpus),
        "throughput_in_per_gpu": metrics.per_second(into, gpus),
        "arrival_rate": metrics.per_second(len(requests["arrival_ns"]), window_s),
        "goodput": metrics.per_second(met, window_s),
        "slo_attainment": slo_attainment(requests, slo),
        "preemptions": int(requests["preemptions"].sum()),
        "recomputed_tokens": int(requests["recomputed_tokens"].sum()),
        "cached_tokens": int(requests["cached_tokens"].sum()),
    }
    if cached:
        values["prefix_hit_rate_tokens"] = cache_metrics.hit_rate_tokens(requests)
        values["prefix_hit_rate_requests"] = cache_metrics.hit_rate_requests(requests)
    return _in_order(values)


def _over_time(
    requests: Requests,
    series: Requests,
    replicas: Sequence[ReplicaFacts],
    span: tuple[int, int, int],
) -> dict[str, Any]:
    start_ns, end_ns, run_end_ns = span
    window = start_ns, end_ns
    whole = metrics.run_span_ns(requests, run_end_ns)
    shares = metrics.utilisation(replicas, whole)
    values = {
        "batch_size": metrics.distribution(metrics.batch_sizes(series, window)),
        "kv_use": metrics.distribution(metrics.kv_use(series, replicas, window)),
        "utilisation": float(shares.mean()) if len(shares) else math.nan,
    }
    if cache_metrics.has_cache(replicas):
        cached = cache_metrics.kv_cached(series, replicas, window)
        free = cache_metrics.kv_free(series, replicas, window)
        values["kv_cached"] = metrics.distribution(cached)
        values["kv_free"] = metrics.distribution(free)
        values["evicted_tokens"] = cache_metrics.evicted_tokens(replicas)
    return _in_order(values)


def _of_the_peak(
    requests: Requests, replicas: Sequence[ReplicaFacts], work: ModelWork | None, run_end_ns: int
) -> dict[str, Any]:
    if work is None:
        return _in_order({"mfu": math.nan, "mbu": math.nan})
    span = metrics.run_span_ns(requests, run_end_ns)
    values = {"mfu": mfu(requests, work, span), "mbu": mbu(requests, work, replicas, span)}
    return _in_order(values)


def _classes(
    measured: Requests,
    itl: Mapping[str, Gaps],
    span: tuple[int, int, int],
    slo: SLO,
    gpus: int,
    *,
    cached: bool,
) -> dict[str, Any]:
    request_class = request_classes(measured)
    names = sorted(set(request_class.tolist()))
    if len(names) < 2:
        return {}
    blocks = {}
    for name in names:
        rows = select(measured, request_class == name)
        gaps = itl.get(name, metrics.merge_gaps([]))
        counts = {"requests": _counts(rows)}
        blocks[name] = counts | _metrics(rows, gaps, span, slo.for_class(name), gpus, cached=cached)
    return blocks


def _in_order(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values under their names in files, in the order of the dictionary of definitions."""
    return {METRICS[key].name_in_files: values[key] for key in METRICS if key in values}


def _jsonable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _jsonable(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_jsonable(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
