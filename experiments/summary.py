"""The numbers of one run: what `summary.json` holds, and what tables are made of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from experiments.verdict import judge
from sim import cache_metrics, fairness, metrics
from sim.cost import Rates, cost_of_run
from sim.metric_definitions import METRICS
from sim.metrics import NS_PER_S, Gaps, ReplicaFacts, Requests
from sim.model_work import ModelWork, mbu, mfu
from sim.records import STATES
from sim.slo import SLO, Windows, request_classes, request_tenants, select, slo_attainment
from sim.transfer_metrics import of_transfers

MOST_TENANTS = 100
"""Tenants with metrics of their own in a summary: those with the most requests."""


@dataclass(frozen=True)
class _Run:
    """What the metrics of any part of the requests depend on besides these.

    Attributes:
        window_ns: Start and end of the window.
        end_ns: The last instant of the run.
        gpus: Of all replicas, most at one time.
        mean_gpus: While requests were there.
        cached: There is a prefix cache.
    """

    window_ns: tuple[int, int]
    end_ns: int
    gpus: int
    mean_gpus: float
    cached: bool


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
    tenant_itl: Mapping[str, Gaps] | None = None,
    reuse: Mapping[str, Any] | None = None,
    rates: Rates | None = None,
    transfers: Mapping[str, npt.NDArray[np.int64]] | None = None,
    staging: Mapping[str, Mapping[str, int]] | None = None,
) -> dict[str, Any]:
    """Sum up a run as values that JSON can hold; None stands for what is undefined.

    Metrics that the run cannot have are absent: those of a cache, of tenants, of sessions where
    there are none.

    Args:
        requests: All requests that arrived, with the columns `request_class`, `tenant` and
            `session` where the trace has them, `saved_prefill_s` where that is known, and
            `transfer_s` and `decode_wait_s` where KV was moved.
        itl: Counted gaps of the measured requests of each class (see `sim.slo.class_groups`).
        series: Columns `sim.records.SERIES_COLUMNS` on a time grid; empty where not recorded.
        replicas: In the order of the indices in the columns.
        reasons: Text of each code in column `reason`.
        run_end_ns: The last instant of the run.
        slo: Targets; None for none.
        windows: Ends of the run that are not measured; None to measure all.
        work: FLOPs and bytes of the model; None where they are not known.
        tenant_itl: As `itl`, of each tenant.
        reuse: Of the workload (see `experiments.reuse`); None where it is not known.
        rates: Prices and power of the pools; None where neither money nor energy is asked for.
        transfers: Columns `sim.records.TRANSFER_COLUMNS`; None or empty where no KV moved.
        staging: Of each replica with staging memory, ``bytes`` copied there and ``peak_bytes``.

    Returns:
        Keys in a fixed order: counts, window, hardware, verdict, targets, the metrics over all
        measured requests (``overall``), per class (``classes``) and per tenant (``tenants``, at
        most `MOST_TENANTS`); each empty where there is only one. With `rates`, ``pools``; where KV
        moved, ``transfers`` (`sim.transfer_metrics`), and with staging memory, ``staging``.
    """
    slo, windows = slo or SLO(), windows or Windows()
    mask = windows.mask(requests["arrival_ns"])
    measured = select(requests, mask)
    run = _Run(
        windows.bounds_ns(requests["arrival_ns"]),
        run_end_ns,
        metrics.gpus_at_most(replicas),
        _mean_gpus(replicas, metrics.run_span_ns(requests, run_end_ns)),
        cache_metrics.has_cache(replicas),
    )
    verdict = judge(requests)
    everyone = metrics.merge_gaps(itl.values())
    overall = {
        **_metrics(measured, everyone, slo, run),
        **_over_time(requests, series, replicas, run),
        **_balance(requests, mask, replicas, run),
        **_of_the_peak(requests, replicas, work, run_end_ns),
        **({} if reuse is None else {"reuse_distance": reuse["distance_tokens"]}),
    }
    span_ns = metrics.run_span_ns(requests, run_end_ns)
    costs, of_pools = ({}, {}) if rates is None else cost_of_run(requests, replicas, rates, span_ns)
    summary = {
        "requests": _counts(requests),
        "measured_requests": _counts(measured),
        "reasons": _reasons(requests, reasons),
        "window": _window(windows, run),
        "run_end_s": run_end_ns / NS_PER_S,
        "gpus": run.gpus,
        "replicas": _replicas(requests, replicas, run_end_ns),
        "verdict": {"name": verdict.name, "reason": verdict.reason},
        "slo": _targets(slo),
        "overall": _in_order(overall | costs),
        "classes": _parts(measured, request_classes(measured), itl, slo, run, of_class=True),
        "tenants": _parts(measured, request_tenants(measured), tenant_itl or {}, slo, run),
        **({} if rates is None else {"pools": _pools(of_pools, rates)}),
        **({} if reuse is None else {"reuse": _curve_of(reuse)}),
        **_of_transfers(transfers, measured),
        **({"staging": staging} if staging else {}),
    }
    jsonable: dict[str, Any] = _jsonable(summary)
    return jsonable


def _mean_gpus(replicas: Sequence[ReplicaFacts], span_ns: tuple[int, int]) -> float:
    """GPUs of the replicas, each for the share of the span in which it is there."""
    there = metrics.shares_there(replicas, span_ns).tolist()
    return math.fsum(share * each.gpus for share, each in zip(there, replicas, strict=True))


def _of_transfers(
    transfers: Mapping[str, npt.NDArray[np.int64]] | None, measured: Requests
) -> dict[str, Any]:
    """The transfers of measured requests, where any KV moved."""
    if transfers is None or not len(transfers["request"]):
        return {}
    counts = np.isin(transfers["request"], measured["index"])
    return {"transfers": of_transfers({name: column[counts] for name, column in transfers.items()})}


def _pools(costs: Mapping[str, Mapping[str, float]], rates: Rates) -> dict[str, Any]:
    """Of each pool what it costs and draws, after the rates that this follows from."""
    return {
        name: {"device": of.device}
        | ({} if of.usd_per_gpu_hour is None else {"usd_per_gpu_hour": of.usd_per_gpu_hour})
        | ({} if of.power is None else {"power": asdict(of.power)})
        | _in_order(costs[name])
        for name, of in rates.pools.items()
    }


def _curve_of(reuse: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in reuse.items() if name != "distance_tokens"}


def _window(windows: Windows, run: _Run) -> dict[str, float]:
    return {
        "warm_up_s": windows.warm_up_s,
        "drain_s": windows.drain_s,
        "start_s": run.window_ns[0] / NS_PER_S,
        "end_s": run.window_ns[1] / NS_PER_S,
    }


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


def _metrics(requests: Requests, gaps: Gaps, slo: SLO, run: _Run) -> dict[str, Any]:
    """Metrics of any set of requests, by key."""
    start_ns, end_ns = run.window_ns
    window_s = (end_ns - start_ns) / NS_PER_S
    observed_s = metrics.observed_s(requests, start_ns, run.end_ns)
    out = metrics.throughput_out_per_s(requests, observed_s)
    into = metrics.throughput_in_per_s(requests, observed_s)
    met = int(slo.met(requests).sum()) if slo.has_targets else math.nan
    return {
        **{key: metrics.distribution(f(requests)) for key, f in metrics.PER_REQUEST.items()},
        **_of_moves(requests),
        "itl": metrics.gap_distribution(gaps),
        "throughput_out": out,
        "throughput_in": into,
        "throughput_out_per_gpu": metrics.per_second(out, run.mean_gpus),
        "throughput_in_per_gpu": metrics.per_second(into, run.mean_gpus),
        "arrival_rate": metrics.per_second(len(requests["arrival_ns"]), window_s),
        "goodput": metrics.per_second(met, window_s),
        "slo_attainment": slo_attainment(requests, slo),
        "preemptions": int(requests["preemptions"].sum()),
        "recomputed_tokens": int(requests["recomputed_tokens"].sum()),
        **_of_swaps(requests),
        "cached_tokens": int(requests["cached_tokens"].sum()),
        **(_of_hits(requests) if run.cached else {}),
        **_fairness(requests),
    }


def _of_moves(requests: Requests) -> dict[str, Any]:
    return {
        name: metrics.distribution(requests[f"{name}_s"])
        for name in ("decode_wait", "transfer")
        if f"{name}_s" in requests
    }


def _of_swaps(requests: Requests) -> dict[str, int]:
    swaps = int(requests["swap_outs"].sum()) if "swap_outs" in requests else 0
    return {"swap_outs": swaps} if swaps else {}


def _of_hits(requests: Requests) -> dict[str, Any]:
    known = "saved_prefill_s" in requests
    return {
        "prefix_hit_rate_tokens": cache_metrics.hit_rate_tokens(requests),
        "prefix_hit_rate_requests": cache_metrics.hit_rate_requests(requests),
        "saved_prefill": cache_metrics.saved_prefill_s(requests) if known else math.nan,
    }


def _fairness(requests: Requests) -> dict[str, Any]:
    tenants = request_tenants(requests)
    if len(set(tenants.tolist())) < 2:
        return {}
    return {
        "jain_served_tokens": fairness.jain_served_tokens(requests, tenants),
        "jain_normalised_latency": fairness.jain_normalised_latency(requests, tenants),
    }


def _over_time(
    requests: Requests, series: Requests, replicas: Sequence[ReplicaFacts], run: _Run
) -> dict[str, Any]:
    span_ns = metrics.run_span_ns(requests, run.end_ns)
    at_points = {
        "batch_size": metrics.batch_sizes(series, run.window_ns),
        "kv_use": metrics.kv_use(series, replicas, run.window_ns),
    }
    values: dict[str, Any] = {"utilisation": metrics.mean_utilisation(replicas, span_ns)}
    if run.cached:
        at_points["kv_cached"] = cache_metrics.kv_cached(series, replicas, run.window_ns)
        at_points["kv_free"] = cache_metrics.kv_free(series, replicas, run.window_ns)
        values["evicted_tokens"] = cache_metrics.evicted_tokens(replicas)
        values |= cache_metrics.of_tiers(replicas)
    return values | {key: metrics.distribution(shares) for key, shares in at_points.items()}


def _balance(
    requests: Requests, mask: metrics.Bools, replicas: Sequence[ReplicaFacts], run: _Run
) -> dict[str, Any]:
    """How evenly replicas are loaded, and how long sessions take, where there are several."""
    values: dict[str, Any] = {}
    if len(replicas) > len({replica.pool for replica in replicas}):
        served = fairness.served_tokens(select(requests, mask), replicas)
        busy = metrics.utilisation(replicas, metrics.run_span_ns(requests, run.end_ns))
        peak, cv = fairness.imbalance(served, replicas)
        values["imbalance_served_tokens"], values["imbalance_served_tokens_cv"] = peak, cv
        values["imbalance_utilisation"] = fairness.imbalance(busy, replicas)[0]
    if any(name is not None for name in requests.get("session", np.zeros(0)).tolist()):
        values["session_e2e"] = metrics.distribution(fairness.session_e2e_s(requests, mask))
    return values


def _of_the_peak(
    requests: Requests, replicas: Sequence[ReplicaFacts], work: ModelWork | None, run_end_ns: int
) -> dict[str, Any]:
    if work is None:
        return {"mfu": math.nan, "mbu": math.nan}
    span = metrics.run_span_ns(requests, run_end_ns)
    return {"mfu": mfu(requests, work, span), "mbu": mbu(requests, work, replicas, span)}


def _parts(
    measured: Requests,
    names: npt.NDArray[np.str_],
    itl: Mapping[str, Gaps],
    slo: SLO,
    run: _Run,
    *,
    of_class: bool = False,
) -> dict[str, Any]:
    """The metrics of each class or tenant by name; none where there is only one."""
    present, count = np.unique(names, return_counts=True)
    if len(present) < 2:
        return {}
    if not of_class:
        present = np.sort(present[np.argsort(-count, kind="stable")][:MOST_TENANTS])
    blocks = {}
    for name in present.tolist():
        rows = select(measured, names == name)
        gaps = itl.get(name, metrics.merge_gaps([]))
        own = slo.for_class(name) if of_class else slo
        blocks[name] = {"requests": _counts(rows)} | _in_order(_metrics(rows, gaps, own, run))
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
