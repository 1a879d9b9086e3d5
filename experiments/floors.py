"""Floors of the latencies of a run: what no request can beat on the devices that served it.

Rule, for each request by itself, from the peaks of the data sheet alone: no efficiency, no host
time, no communication, no other request (`sim.phases`).

1. TTFT: the prefill of its prompt tokens that were not found cached when it was first admitted
   (``cached_tokens``; at least one token is computed), attending to those that were.
2. Where a request was preempted or re-routed in a pool with a prefix cache, others may have
   computed part of its prompt before it began again: then only its last prompt token counts.
3. TPOT: the mean of its decode steps at batch one, over the contexts that they had. Where the
   tokens of a request came all at once, as in a static batch, TPOT has no floor.
4. The device is that of the pool that prefilled, or decoded; a request that was re-routed or
   migrated has the lowest floor of all pools, and so has every request where prefills may be
   local. Pipeline stages one after the other take as long as one stage would; with chunks of one
   prompt in several stages at once (``chunked_pipeline``), TTFT is divided by the stages.
5. Step times of ``linear`` are of no device: there is no floor.

So the distribution of a metric is never above that of its floors, unless a step-time table was
measured to beat the data sheet; `Floors.beaten` counts such requests, and nothing is clipped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from experiments.cluster import POOL_NAMES
from sim.errors import PhasewiseError
from sim.experts import ExpertLoad
from sim.metrics import Bools, Floats, ReplicaFacts, Requests, tpot_s, ttft_s
from sim.phases import PhaseArithmetic
from sim.specs import load_device, load_model

KEYS = ("ttft", "tpot")
"""Metrics that have a floor."""

_TOLERANCE_S = 1e-9
"""Step times are whole nanoseconds."""


class Served(Protocol):
    """What floors are made from: a bundle."""

    @property
    def config(self) -> Mapping[str, Any]:
        """The resolved experiment."""

    @property
    def requests(self) -> Requests:
        """One row per arrived request."""

    @property
    def replicas(self) -> Sequence[ReplicaFacts]:
        """In the order of the indices in the columns."""


@dataclass(frozen=True)
class Floors:
    """Floors of each request of a run.

    Attributes:
        values: Of each key of `KEYS` that has floors, seconds, shape (n,), NaN where a request has
            none.
        why: Of each key that has none, why not, as a sentence.
        beaten: Of each key that has floors, requests whose value is below their own.
    """

    values: dict[str, Floats] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)
    beaten: dict[str, int] = field(default_factory=dict)


def floors_of(run: Served) -> Floors:
    """The floors of a run; see the module's rule."""
    pools = {
        POOL_NAMES[role]: pool for role, pool in run.config["pools"].items() if role in POOL_NAMES
    }
    timed_by = {str(pool["step_time"]["model"]) for pool in pools.values()}
    if "linear" in timed_by:
        return Floors(why=dict.fromkeys(KEYS, "Step times of linear are of no device: no floor."))
    try:
        sums = {name: _arithmetic(str(run.config["model"]), pool) for name, pool in pools.items()}
    except PhasewiseError as error:
        return Floors(why=dict.fromkeys(KEYS, f"No floor: {error}"))
    made = Floors(values={"ttft": _ttft(run, pools, sums)})
    if _all_at_once(run.requests).any():
        made.why["tpot"] = "No floor of TPOT: tokens of a request came all at once."
    else:
        made.values["tpot"] = _tpot(run, sums)
    measured = {"ttft": ttft_s, "tpot": tpot_s}
    for key, floors in made.values.items():
        made.beaten[key] = int((measured[key](run.requests) < floors - _TOLERANCE_S).sum())
    return made


def _arithmetic(model_name: str, pool: Mapping[str, Any]) -> PhaseArithmetic:
    model = load_model(model_name)
    precision = pool["precision"]
    zipf = float(pool.get("expert_imbalance", {}).get("zipf", 0.0))
    return PhaseArithmetic(
        model,
        load_device(pool["device"]),
        precision["weights"],
        precision["kv"],
        int(pool["tensor_parallel"]),
        int(pool.get("data_parallel_attention", 1)),
        ExpertLoad(model, zipf=zipf) if model.experts else None,
    )


def _all_at_once(requests: Requests) -> Bools:
    several = requests["emitted_tokens"] > 1
    return np.asarray(several & (requests["first_token_ns"] == requests["last_token_ns"]))


def _ttft(
    run: Served, pools: Mapping[str, Mapping[str, Any]], sums: Mapping[str, PhaseArithmetic]
) -> Floats:
    requests = run.requests
    prompt = requests["prompt_tokens"]
    last = np.maximum(prompt - 1, 0)
    again = (requests["preemptions"] > 0) | _moved(requests)
    cached = np.minimum(requests["cached_tokens"], last)
    if any(replica.lost_blocks is not None for replica in run.replicas):
        cached = np.where(again, last, cached)

    def of(name: str, mask: Bools) -> Floats:
        pool = pools[name]
        at_once = int(pool["pipeline_parallel"]) if pool.get("chunked_pipeline") else 1
        return sums[name].ttft_floors_s(prompt[mask], cached[mask]) / at_once

    known = (prompt > 0) & (requests["first_token_ns"] >= 0)
    return _by_place(run, "replica", known, of)


def _tpot(run: Served, sums: Mapping[str, PhaseArithmetic]) -> Floats:
    requests = run.requests

    def of(name: str, mask: Bools) -> Floats:
        emitted = requests["emitted_tokens"][mask]
        return sums[name].tpot_floors_s(requests["prompt_tokens"][mask], emitted)

    return _by_place(run, "decode_replica", ~np.isnan(tpot_s(requests)), of)


def _moved(requests: Requests) -> Bools:
    """Requests that were served by replicas which their row does not name."""
    moved = requests.get("rerouted", 0) + requests.get("migrations", 0)
    return np.asarray(moved > 0) & np.ones(len(requests["index"]), bool)


def _by_place(
    run: Served, column: str, known: Bools, floors: Callable[[str, Bools], Floats]
) -> Floats:
    """Floors of the pool that served each request; of those that moved, the lowest of all pools."""
    requests = run.requests
    place = requests["replica"]
    if column == "decode_replica":
        place = np.where(requests[column] >= 0, requests[column], place)
    names = [replica.pool for replica in run.replicas]
    code = np.array([*(sorted(set(names)).index(name) for name in names), -1])
    anywhere = _moved(requests) if "local_prefill" not in run.config["pools"] else known
    found = np.full(len(place), np.inf)
    for at, name in enumerate(sorted(set(names))):
        mask = known & (anywhere | (code[place] == at))
        found[mask] = np.minimum(found[mask], floors(name, mask))
    return np.where(np.isinf(found), np.nan, found)
