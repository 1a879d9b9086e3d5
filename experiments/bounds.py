"""Whether steps of a run were bound by compute or by memory bandwidth, from what they computed.

Rule, where the step-time model is of a device (``roofline``, ``profile``):

1. Every iteration that was run is one of two kinds: with tokens of prompts, or of decodes alone.
   Of each kind FLOPs and bytes are added up over the run, on one GPU of each pool
   (`sim.step_cost.StepCost`): weights once an iteration, keys and values of the contexts that its
   decodes attend to. The step log does not say how many tokens each chunk attends to: pairs of
   tokens are those of whole prompts, as many times as prompt tokens were computed, and keys and
   values of a prompt's earlier chunks are not counted again.
2. A third and a fourth kind are what requests would do alone: the uncached tokens of each prompt as
   one step, and each decode at batch one, at the contexts that there were.
3. A kind is bound by compute where its FLOPs at the peak of the weights' precision take at least
   as long as its bytes at the full memory bandwidth: its arithmetic intensity, FLOPs over bytes, is
   at the ridge or above (`sim.phases`). Pools of different devices add up their times.

Step times of ``linear`` and ``distserve-fit`` know no FLOPs, and where steps are not recorded
nobody knows what they were of: resources then follow from phases alone (`experiments.advice`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from experiments.cluster import POOL_NAMES
from sim.errors import PhasewiseError
from sim.experts import ExpertLoad
from sim.metrics import Bools, Ints, ReplicaFacts, Requests
from sim.specs import load_device
from sim.step_cost import StepCost
from sim.step_time import StepWork

COMPUTE, BANDWIDTH = "compute", "memory bandwidth"
STEPS: Mapping[str, str] = {
    "prefill": "steps with prefills",
    "decode": "decode steps",
    "prefill_alone": "its prefill alone",
    "decode_alone": "decodes alone",
    "any": "steps",
}
"""Kinds of steps, and what they are called."""
_KNOWING = frozenset(("roofline", "profile"))
_ROWS_BITS = 40


@dataclass(frozen=True)
class Bound:
    """FLOPs and bytes of many steps, on one GPU.

    Attributes:
        flops: That they compute.
        num_bytes: That they move to and from memory.
        compute_s: Time of the FLOPs at the peak, s.
        memory_s: Time of the bytes at the full bandwidth, s.
    """

    flops: float
    num_bytes: float
    compute_s: float
    memory_s: float

    def __add__(self, other: Bound) -> Bound:
        return Bound(*(a + b for a, b in zip(_values(self), _values(other), strict=True)))

    @property
    def resource(self) -> str:
        """What the steps are short of."""
        return COMPUTE if self.compute_s >= self.memory_s else BANDWIDTH

    @property
    def intensity(self) -> float:
        """FLOPs per byte."""
        return self.flops / self.num_bytes

    @property
    def ridge(self) -> float:
        """FLOPs per byte at which both would take equally long."""
        return self.intensity * self.memory_s / self.compute_s


def _values(bound: Bound) -> tuple[float, ...]:
    return bound.flops, bound.num_bytes, bound.compute_s, bound.memory_s


class Tally:
    """Adds up the iterations of a run, of each replica and kind, as they are logged."""

    def __init__(self) -> None:
        self._rows: dict[int, int] = {}
        self._sums = np.zeros((0, 3), np.int64)  # prompt tokens, decodes, context tokens

    def add(self, steps: Mapping[str, Ints]) -> None:
        """Take in rows of the step log.

        Args:
            steps: Columns `sim.records.STEP_COLUMNS`, (rows,) each.
        """
        n, prompt, decodes = (steps[key] for key in ("iterations", "prefill_tokens", "decodes"))
        if not len(n):
            return
        contexts = n * steps["first_context_tokens"] + decodes * (n * (n - 1) // 2)
        group = 2 * steps["replica"] + (prompt > 0)
        codes, at = np.unique((group << _ROWS_BITS) + prompt + decodes, return_inverse=True)
        counts = np.zeros(len(codes), np.int64)
        np.add.at(counts, at, n)
        for code, count in zip(codes.tolist(), counts.tolist(), strict=True):
            self._rows[code] = self._rows.get(code, 0) + count
        more = int(group.max()) + 1 - len(self._sums)
        if more > 0:
            self._sums = np.vstack([self._sums, np.zeros((more, 3), np.int64)])
        np.add.at(self._sums, group, np.stack([n * prompt, n * decodes, contexts], axis=1))

    def work(self, replicas: Sequence[int], *, prefill: bool) -> tuple[StepWork, dict[int, int]]:
        """Of some replicas: all iterations of a kind as one work, and how many had how many rows.

        The work has no pairs of prompt tokens.
        """
        groups = {2 * replica + prefill for replica in replicas}
        prompt, decodes, contexts = (int(sum(self._of(g)[i] for g in groups)) for i in range(3))
        rows: dict[int, int] = {}
        for code, count in self._rows.items():
            if code >> _ROWS_BITS in groups:
                each = code & ((1 << _ROWS_BITS) - 1)
                rows[each] = rows.get(each, 0) + count
        return StepWork((), decodes, contexts, prefill_tokens=prompt), rows

    def _of(self, group: int) -> tuple[int, ...]:
        return tuple(self._sums[group].tolist()) if group < len(self._sums) else (0, 0, 0)


@dataclass(frozen=True)
class _Pool:
    """One pool: what a step costs there, and its peaks."""

    cost: StepCost
    peak_flops: float
    peak_bytes: float
    replicas: tuple[int, ...]

    def bound(self, work: StepWork, rows: Mapping[int, int]) -> Bound:
        """Of all iterations together: weights are read once in each."""
        flops, num_bytes = self.cost.flops_and_bytes(work)
        together = work.prefill_tokens + work.decode_rows
        num_bytes -= self.cost.weights_read(together, work.sampled_rows)
        num_bytes += sum(n * self.cost.weights_read(each, 1) for each, n in rows.items())
        return Bound(flops, num_bytes, flops / self.peak_flops, num_bytes / self.peak_bytes)


def knows_flops(config: Mapping[str, Any]) -> bool:
    """Whether the step times of all pools are of a device."""
    return all(pool["step_time"]["model"] in _KNOWING for pool in _pools(config).values())


def _pools(config: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    pools = config["pools"]
    return {POOL_NAMES[role]: pools[role] for role in POOL_NAMES if pools.get(role)}


def bounds_of(
    config: Mapping[str, Any],
    model: Any,
    tally: Tally,
    requests: Requests,
    replicas: Sequence[ReplicaFacts],
) -> dict[str, Bound]:
    """The bound of each kind of steps that there were; see the module's rule.

    Args:
        config: The resolved experiment.
        model: Its architecture.
        tally: Of all iterations.
        requests: All of the run.
        replicas: In the order of their indices.

    Returns:
        By the keys of `STEPS`; empty where nothing is known.
    """
    if not knows_flops(config):
        return {}
    try:
        pools = _costed(config, model, replicas)
    except PhasewiseError:  # FLOPs of a sheet that lacks them
        return {}
    found: dict[str, Bound] = {}
    prompts = max(1, int(_new_and_cached(requests)[0].sum()))
    for pool in pools:
        for kind in ("prefill", "decode"):
            work, rows = tally.work(pool.replicas, prefill=kind == "prefill")
            if not rows:
                continue
            if kind == "prefill":
                _add_pairs(work, requests, work.prefill_tokens / prompts)
            bound = pool.bound(work, rows)
            for key in (kind, "any"):
                found[key] = found[key] + bound if key in found else bound
    return found | _alone(pools, requests)


def _costed(config: Mapping[str, Any], model: Any, replicas: Sequence[ReplicaFacts]) -> list[_Pool]:
    made = []
    for name, pool in _pools(config).items():
        device, precision = load_device(pool["device"]), pool["precision"]
        zipf = float(pool.get("expert_imbalance", {}).get("zipf", 0.0))
        load = ExpertLoad(model, zipf=zipf) if model.experts else None
        tp, groups = int(pool["tensor_parallel"]), int(pool.get("data_parallel_attention", 1))
        cost = StepCost(model, precision["weights"], precision["kv"], tp, groups, load)
        own = tuple(at for at, replica in enumerate(replicas) if replica.pool == name)
        peak = device.peak_flops(precision["weights"])
        made.append(_Pool(cost, peak, device.memory_bytes_per_s, own))
    return made


def _prefilled(requests: Requests) -> Bools:
    return np.asarray(requests["first_token_ns"] >= 0)


def _new_and_cached(requests: Requests) -> tuple[Ints, Ints]:
    """Of prompts that were computed: tokens that were not found cached, and those that were."""
    prompt = requests["prompt_tokens"][_prefilled(requests)]
    cached = np.minimum(requests["cached_tokens"][_prefilled(requests)], np.maximum(prompt - 1, 0))
    return prompt - cached, cached


def _add_pairs(work: StepWork, requests: Requests, times: float) -> None:
    """Add the pairs of all prompts, and one LM head each, `times` times."""
    new, cached = _new_and_cached(requests)
    work.prefill_pairs_x2 = round(times * int((new * (2 * cached + new + 1)).sum()))
    work.chunks = [(0, round(times * int(cached.sum())))]
    work.sampled_rows = work.decode_rows + round(times * len(new))


def _alone(pools: Sequence[_Pool], requests: Requests) -> dict[str, Bound]:
    """What requests would do alone, on the pool that prefills and the one that decodes."""
    new, cached = _new_and_cached(requests)
    found = {}
    if len(new):
        work = StepWork((), prefill_tokens=int(new.sum()))
        _add_pairs(work, requests, 1.0)
        lengths, counts = np.unique(new, return_counts=True)
        rows = dict(zip(lengths.tolist(), counts.tolist(), strict=True))
        found["prefill_alone"] = pools[0].bound(work, rows)
    emitted = requests["emitted_tokens"][_prefilled(requests)]
    steps = np.maximum(emitted - 1, 0)
    decodes = int(steps.sum())
    if decodes:
        contexts = int((steps * (new + cached) + steps * (steps + 1) // 2).sum())
        work = StepWork((), decodes, contexts)
        found["decode_alone"] = pools[-1].bound(work, {1: decodes})
    return found


def as_values(bounds: Mapping[str, Bound]) -> dict[str, Any]:
    """For ``summary.json``."""
    return {
        kind: {
            **asdict(bound),
            "flops_per_byte": bound.intensity,
            "ridge_flops_per_byte": bound.ridge,
            "bound": bound.resource,
        }
        for kind, bound in bounds.items()
    }


def from_values(values: Mapping[str, Any]) -> dict[str, Bound]:
    """As `as_values` wrote them."""
    names = Bound.__dataclass_fields__
    return {kind: Bound(**{name: each[name] for name in names}) for kind, each in values.items()}
