"""Money and energy of a run, of each pool and in all: pure functions of its outcome.

What is paid. Every GPU of every replica is rented from the first arrival to the last end (requests
that never ended count as ending with the run): the span over which utilisation is defined, whole
nanoseconds, not rounded up to a provider's unit of billing. A replica that joins or leaves within
it is paid for while it is there: from when it is ordered, its provisioning and loading included, as
clouds bill a machine from its launch on, until it is gone, drained or called off. One that failed
is still rented, and draws idle power like one that waits. So a pool at zero costs nothing. Nothing
before the first arrival (loading weights) and nothing beside GPUs (networks, storage, staff, taxes)
is in it. All requests of the run pay for it, those outside the measured window too, so that cost
and work belong together.

    GPU-hours         sum over replicas of GPUs x time that it is there in the span
    cost              sum over pools of GPU-hours x price
    busy cost         sum over replicas of GPUs x time with a step in flight x price: cost weighted
                      with utilisation; the rest of the cost is for GPUs that wait
    per million       cost x 10^6 / tokens: each of input, output and both bears the whole cost
    revenue           (input tokens x input price + output tokens x output price) / 10^6

Input tokens are the prompts of requests that emitted a token, found cached or not, each once;
output tokens are all tokens emitted, of requests that failed too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sim.metrics import NS_PER_S, ReplicaFacts, Requests, finished, there_ns

NS_PER_HOUR = 3600 * NS_PER_S
JOULES_PER_KWH = 3_600_000
MILLION = 1_000_000


@dataclass(frozen=True)
class Power:
    """What one GPU draws, watts, by what its replica does: three levels, switched at once.

        idle      no step in flight
        prefill   a step that computes any prompt token (bound by compute), lost ones computed
                  again included, whatever it decodes beside them
        decode    a step of decodes alone (bound by memory bandwidth)

    The energy of a replica is its GPUs x (idle x (span - busy) + prefill x time in such steps +
    decode x time in such steps), with time in steps as `ReplicaFacts` counts it. All GPUs of a
    replica draw the same; batch size, clocks and temperature have no influence, so that a level is
    the mean over the batches of a phase. That the phases differ so much that they need levels of
    their own is shown by Patel et al. (Splitwise, ISCA 2024: prompt computation uses
    the power budget, token generation does not) and by Ma et al. (arXiv 2605.11999: decodes draw
    137 to 300 W of the 700 W of an H200). We found no publication that gives these levels for our
    devices: they are always given by the user.
    """

    idle_w: float
    prefill_w: float
    decode_w: float

    def joules(self, busy_ns: int, prefill_busy_ns: int, span_ns: int) -> float:
        """Energy of one GPU over a span; a last step may end after it, and then counts whole."""
        idle_ns = max(0, span_ns - busy_ns)
        decode_ns = busy_ns - prefill_busy_ns
        in_w_ns = (
            self.idle_w * idle_ns + self.prefill_w * prefill_busy_ns + self.decode_w * decode_ns
        )
        return in_w_ns / NS_PER_S


@dataclass(frozen=True)
class PoolRates:
    """What the GPUs of one pool cost and draw.

    Attributes:
        device: Name of the GPU.
        usd_per_gpu_hour: Price; None where money was not asked for.
        power: Levels; None where energy was not asked for.
    """

    device: str
    usd_per_gpu_hour: float | None = None
    power: Power | None = None


@dataclass(frozen=True)
class TokenPrices:
    """What clients pay, US dollars per million tokens."""

    input_usd_per_million: float
    output_usd_per_million: float


@dataclass(frozen=True)
class Rates:
    """All that turns a run into money and energy.

    Attributes:
        pools: Of each pool by its name; all of them with a price or none, and so with power.
        tokens: What clients pay; None where revenue was not asked for.
    """

    pools: Mapping[str, PoolRates]
    tokens: TokenPrices | None = None


@dataclass(frozen=True)
class _Work:
    """What was done for the money: of all requests of the run."""

    finished_requests: int
    input_tokens: int
    output_tokens: int


def cost_of_run(
    requests: Requests, replicas: Sequence[ReplicaFacts], rates: Rates, span_ns: tuple[int, int]
) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """Metrics of the whole run and of each pool, by their keys; NaN where they are undefined.

    Of a pool they are its part of the whole: GPU-hours, cost and energy of its replicas, over the
    requests and tokens of the whole run. So the pools add up to the whole. Revenue is of the whole.

    Args:
        requests: All that arrived.
        replicas: All that there were.
        rates: Prices and power of each of their pools.
        span_ns: First arrival and last end (`sim.metrics.run_span_ns`).
    """
    work = _work(requests)
    pools = {
        name: _of_pool([r for r in replicas if r.pool == name], of, span_ns, work)
        for name, of in rates.pools.items()
    }
    keys = next(iter(pools.values()))
    whole = {key: math.fsum(pool[key] for pool in pools.values()) for key in keys}
    return whole | _revenue(work, rates.tokens, whole), pools


def _work(requests: Requests) -> _Work:
    emitted = requests["emitted_tokens"]
    return _Work(
        int(finished(requests).sum()),
        int(requests["prompt_tokens"][emitted > 0].sum()),
        int(emitted.sum()),
    )


def _of_pool(
    replicas: Sequence[ReplicaFacts], of: PoolRates, span_ns: tuple[int, int], work: _Work
) -> dict[str, float]:
    there = [(r, there_ns(r, span_ns)) for r in replicas]
    values = {"gpu_hours": sum(r.gpus * time_ns for r, time_ns in there) / NS_PER_HOUR}
    if of.usd_per_gpu_hour is not None:
        busy_hours = sum(r.gpus * r.busy_ns for r in replicas) / NS_PER_HOUR
        values |= _money(values["gpu_hours"], busy_hours, of.usd_per_gpu_hour, work)
    if of.power is not None:
        joules = math.fsum(
            r.gpus * of.power.joules(r.busy_ns, r.prefill_busy_ns, time_ns) for r, time_ns in there
        )
        values["energy"] = joules / JOULES_PER_KWH
        values["energy_per_output_token"] = _per(joules, work.output_tokens)
    return values


def _money(hours: float, busy_hours: float, price: float, work: _Work) -> dict[str, float]:
    cost = hours * price
    both = work.input_tokens + work.output_tokens
    return {
        "cost": cost,
        "busy_cost": busy_hours * price,
        "cost_per_request": _per(cost, work.finished_requests),
        "cost_per_million_input_tokens": _per(cost * MILLION, work.input_tokens),
        "cost_per_million_output_tokens": _per(cost * MILLION, work.output_tokens),
        "cost_per_million_tokens": _per(cost * MILLION, both),
    }


def _revenue(
    work: _Work, prices: TokenPrices | None, whole: Mapping[str, float]
) -> dict[str, float]:
    if prices is None:
        return {}
    revenue = (
        work.input_tokens * prices.input_usd_per_million
        + work.output_tokens * prices.output_usd_per_million
    ) / MILLION
    return {"revenue": revenue, "margin": revenue - whole["cost"]}


def _per(amount: float, count: int) -> float:
    return amount / count if count else math.nan
