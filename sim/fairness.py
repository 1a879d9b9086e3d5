"""How evenly tenants are served and replicas loaded, and how long sessions take.

As in `metrics.py`, functions of the table of requests and of the replicas.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sim.metrics import (
    NS_PER_S,
    Bools,
    Floats,
    ReplicaFacts,
    Requests,
    finished,
    normalised_latency_s_per_token,
)


def jain(values: Floats) -> float:
    """Jain's index of fairness, (sum x)^2 / (n sum x^2): 1 if all are alike, 1 / n if one has all.

    Source: Jain, Chiu and Hawe, DEC-TR-301 (1984). NaN without values, or if all are 0.
    """
    squares = float((values**2).sum())
    return float(values.sum()) ** 2 / (len(values) * squares) if squares else float("nan")


def jain_served_tokens(requests: Requests, tenants: npt.NDArray[np.str_]) -> float:
    """Jain's index of the tokens served to each tenant: prompts answered, and tokens emitted.

    Args:
        requests: Columns of shape (n,).
        tenants: Of each request, (n,).
    """
    names, of = np.unique(tenants, return_inverse=True)
    served = _served_prompts(requests) + requests["emitted_tokens"]
    return jain(np.bincount(of, served, len(names)).astype(np.float64))


def jain_normalised_latency(requests: Requests, tenants: npt.NDArray[np.str_]) -> float:
    """Jain's index of each tenant's mean normalised latency, of tenants with finished requests."""
    latency = normalised_latency_s_per_token(requests)
    known = ~np.isnan(latency)
    _, of = np.unique(tenants[known], return_inverse=True)
    return jain(np.bincount(of, latency[known]) / np.bincount(of)) if len(of) else float("nan")


def _served_prompts(requests: Requests) -> npt.NDArray[np.int64]:
    return np.where(requests["emitted_tokens"] > 0, requests["prompt_tokens"], 0)


def served_tokens(requests: Requests, replicas: Sequence[ReplicaFacts]) -> Floats:
    """Tokens that each replica served, shape (len(replicas),).

    A prompt that was answered counts where it was prefilled, whether computed or found cached; an
    emitted token where its request decoded (the prefill replica where it never got further).
    """
    n = len(replicas)
    entry, decode = requests["replica"], requests["decode_replica"]
    routed = entry >= 0
    prompts = np.bincount(entry[routed], _served_prompts(requests)[routed], n)
    emitting = np.where(decode >= 0, decode, entry)[routed]
    return np.asarray(prompts + np.bincount(emitting, requests["emitted_tokens"][routed], n))


def imbalance(values: Floats, replicas: Sequence[ReplicaFacts]) -> tuple[float, float]:
    """Largest / mean, and standard deviation / mean, over the replicas of a pool.

    Of several pools each is the worst; NaN where no pool has two replicas, or all values are 0.

    Args:
        values: Of each replica, shape (len(replicas),).
        replicas: Tell the pools.
    """
    pools = np.array([replica.pool for replica in replicas])
    parts = [values[pools == name] for name in sorted(set(pools.tolist()))]
    parts = [part for part in parts if len(part) > 1 and part.sum() > 0]
    if not parts:
        return float("nan"), float("nan")
    peaks = [float(part.max() / part.mean()) for part in parts]
    return max(peaks), max(float(part.std() / part.mean()) for part in parts)


def session_e2e_s(requests: Requests, measured: Bools) -> Floats:
    """First arrival to last token of each session, seconds, shape (k,), in order of their names.

    Sessions all of whose turns that arrived are measured and finished.

    Args:
        requests: With column `session`.
        measured: Which of them lie in the window, (n,).
    """
    column = requests["session"]
    known = np.array([name is not None for name in column.tolist()], dtype=bool)
    names, of = np.unique(column[known].astype(str), return_inverse=True)
    begin = np.full(len(names), np.iinfo(np.int64).max)
    np.minimum.at(begin, of, requests["arrival_ns"][known])
    end = np.zeros(len(names), np.int64)
    np.maximum.at(end, of, requests["last_token_ns"][known])
    whole = np.ones(len(names), dtype=bool)
    np.logical_and.at(whole, of, (finished(requests) & measured)[known])
    return np.asarray((end - begin)[whole] / NS_PER_S)
