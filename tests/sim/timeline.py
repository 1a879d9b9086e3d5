"""Hand-worked timelines: say a small workload in microseconds, get every token time back in them.

A request is ``(arrival, prompt_tokens, output_tokens)`` or ``(..., max_tokens)``; a step takes
``base + prefill * P + decode * D + context * C`` microseconds. The same workload can be run by us
and by the conformance reference, so a timeline worked out by hand checks both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from policies import ORDERS
from sim.admission import Admission
from sim.cluster import Predictor
from sim.event_loop import simulate
from sim.policy import Router
from sim.queue import QueueOrder
from sim.records import Record
from tests.conformance import adapter
from tests.conformance.cases import Observed
from tests.conformance.workloads import Spec

Request = tuple[int, int, int] | tuple[int, int, int, int]
Engine = Callable[[Spec], Observed]

STEP = {"base": 10, "prefill": 1, "decode": 2, "context": 0, "pair": 0}
"""Microseconds of a step, of each prefill token, decode, context token and prefill pair (Q)."""


@dataclass(frozen=True)
class Timeline:
    """What came of a workload, times in microseconds.

    Attributes:
        tokens: Token times of each request.
        preemptions: How often each request was preempted.
        reasons: Why each request was rejected, or None.
        states: How each request ended.
        steps: (start, end, {request: tokens}) of each step, by replica.
        free: Free blocks while each step runs, by replica.
        preempted: Requests preempted by the pass before each step, by replica.
        transfers: (request, source, target, start, end).
        placed: Replica of each request.
    """

    tokens: list[list[int]]
    preemptions: list[int]
    reasons: list[str | None]
    states: list[str]
    steps: dict[str, list[tuple[int, int, dict[int, int]]]]
    free: dict[str, list[int]]
    preempted: dict[str, list[list[int]]]
    transfers: list[tuple[int, str, str, int, int]]
    placed: list[str | None]


def replica(
    policy: str,
    total_blocks: int,
    block_tokens: int = 4,
    step: dict[str, int] = STEP,
    **options: Any,
) -> Spec:
    """One replica; an option that ends in ``_us`` is given to the policy in seconds."""
    for name in [x for x in options if x.endswith("_us")]:
        options[name.removesuffix("_us") + "_s"] = options.pop(name) / 1e6
    names = {
        "base": "base_s",
        "prefill": "prefill_token_s",
        "decode": "decode_s",
        "context": "context_token_s",
        "pair": "prefill_pair_s",
    }
    return {
        "policy": policy,
        "total_blocks": total_blocks,
        "block_tokens": block_tokens,
        "step_time": {names[key]: us / 1e6 for key, us in (STEP | step).items()},
        **options,
    }


def pools(prefill: list[Spec], decode: list[Spec], latency: int = 0, **options: Any) -> Spec:
    """Two pools; a token's KV takes one microsecond, after `latency`."""
    transfer = {
        "latency_s": latency / 1e6,
        "kv_bytes_per_token": 1,
        "bandwidth_bytes_per_s": 1e6,
    }
    return {"prefill": prefill, "decode": decode, "transfer": transfer, **options}


def run(
    engine: Engine, requests: Sequence[Request], *replicas: Spec, router: str = "round_robin"
) -> Timeline:
    """The timeline of these requests on one pool."""
    return _timeline(
        engine({"requests": _requests(requests), "replicas": list(replicas), "router": router})
    )


def run_pools(engine: Engine, requests: Sequence[Request], layout: Spec) -> Timeline:
    """The timeline of these requests on a prefill and a decode pool."""
    return _timeline(engine({"requests": _requests(requests), "disaggregated": layout}))


def run_here(
    requests: Sequence[Request],
    *replicas: Spec,
    fast_forward: bool,
    router: Router | str = "round_robin",
    order: QueueOrder | str = "fcfs",
    predictor: Predictor | None = None,
    priorities: Sequence[int] = (),
    deadlines: Sequence[int | None] = (),
    snapshot: int = 0,
    admission: Admission | None = None,
    **columns: Sequence[Any],
) -> Timeline:
    """The timeline on one pool, with what the conformance reference does not have.

    Args:
        requests: As in `run`.
        replicas: As in `run`.
        fast_forward: Whether runs of equal decisions are advanced at once.
        router: A router, or the name of one.
        order: A queue order, or the name of one.
        predictor: Guesses output lengths.
        priorities: One per request, lower first; all 0 if empty.
        deadlines: One per request, microseconds from arrival; none if empty.
        snapshot: Microseconds between snapshots of the router; 0 for the exact state.
        admission: Who is turned away.
        columns: More of each `Arrival`, such as ``session`` or ``content``; one value per request.
    """
    name = router if isinstance(router, str) else "round_robin"
    spec = {"requests": _requests(requests), "replicas": list(replicas), "router": name}
    cluster, names = adapter.build(spec)
    made = ORDERS[order]() if isinstance(order, str) else order
    specs = [replace(x, order=made) for x in cluster.entry.replicas]
    entry = replace(cluster.entry, replicas=specs, snapshot_ns=1000 * snapshot)
    if isinstance(router, Router):
        entry = replace(entry, router=router)
    cluster = replace(cluster, entry=entry, predictor=predictor, admission=admission)
    arrivals = adapter.arrivals(spec)
    if priorities:
        arrivals = [a._replace(priority=priorities[a.index]) for a in arrivals]
    if deadlines:
        wanted = [None if d is None else 1000 * d for d in deadlines]
        arrivals = [a._replace(deadline_ns=wanted[a.index]) for a in arrivals]
    for column, values in columns.items():
        arrivals = [a._replace(**{column: values[a.index]}) for a in arrivals]
    record = Record(decisions=True)
    result = simulate(arrivals, cluster, fast_forward=fast_forward, check=True, record=record)
    return _timeline(adapter.observe_result(spec, result, names))


def run_giving_up(
    requests: Sequence[Request],
    cancelled: dict[int, int],
    layout: Sequence[Spec] | Spec,
    *,
    fast_forward: bool,
    router: str = "round_robin",
    contents: Sequence[list[tuple[int, int]]] = (),
) -> Timeline:
    """The timeline on one pool, or on two (`pools`), with clients that give up.

    Args:
        requests: As in `run`.
        cancelled: Who gives up, and when, microseconds.
        layout: The replicas of one pool, or two pools.
        fast_forward: Whether runs of equal decisions are advanced at once.
        router: Name of the router.
        contents: Runs of tokens (first, how many) of each request; its own ones if empty.
    """
    rows = _requests(requests)
    for index, when in cancelled.items():
        rows[index]["cancel_at_ns"] = 1000 * when
    for row, content in zip(rows, contents, strict=False):
        row["content"] = content
    one = not isinstance(layout, dict)
    where = {"replicas": list(layout), "router": router} if one else {"disaggregated": layout}
    return _timeline(adapter.observe({"requests": rows, **where}, fast_forward=fast_forward))


def _requests(requests: Sequence[Request]) -> list[Spec]:
    names = ("arrival_ns", "prompt_tokens", "output_tokens", "max_tokens")
    return [dict(zip(names, (1000 * arrival, *rest), strict=False)) for arrival, *rest in requests]


def _us(ns: int) -> Any:
    """Microseconds, exactly: a whole number but where links are shared by several."""
    return ns // 1000 if ns % 1000 == 0 else Fraction(ns, 1000)


def _timeline(observed: Observed) -> Timeline:
    requests, log = observed["requests"], observed["log"]
    return Timeline(
        tokens=[[_us(t) for t in r["token_times_ns"]] for r in requests],
        preemptions=[r["preemptions"] for r in requests],
        reasons=[r["reason"] for r in requests],
        states=[r["status"] for r in requests],
        steps={x: [(_us(s[0]), _us(s[1]), s[2]) for s in steps] for x, steps in log.items()},
        free={x: [s[4] for s in steps] for x, steps in log.items()},
        preempted={x: [s[3] for s in steps] for x, steps in log.items()},
        transfers=[(t[0], t[1], t[2], _us(t[3]), _us(t[4])) for t in observed["transfers"]],
        placed=[r["replica"] for r in requests],
    )
