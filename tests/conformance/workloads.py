"""Random small workloads in the format of the conformance reference.

`workload(seed)` is a pure function: the same seed gives the same dict on every machine, so that a
failure is named by one number. The dict holds keyword arguments of the reference's ``simulate``:
``requests`` and either ``replicas`` and ``router``, or ``disaggregated``; it is plain JSON.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

Spec = dict[str, Any]

POLICIES = ("static", "orca", "vllm-v0", "vllm-v1", "sarathi")
ROUTERS = ("round_robin", "least_outstanding")

SHARE_DISAGGREGATED = 0.4
MOST_TOKENS_OUT = 2000
"""Bound on requests x longest output, which keeps the reference at about 20 ms a workload."""


@dataclass(frozen=True)
class Clock:
    """How long things take in one workload.

    Attributes:
        unit_ns: Arrivals and transfers are multiples of it; 1 where nothing is meant to coincide.
        scales: Typical size of each step-time coefficient, seconds.
        exact: Coefficients are small multiples of `unit_ns`, so that step ends meet arrivals.
    """

    unit_ns: int
    scales: dict[str, float]
    exact: bool


def workload(seed: int) -> Spec:
    """The workload of this number."""
    rng = random.Random(f"conformance {seed}")
    clock = _clock(rng)
    requests = _requests(rng, clock)
    sizes = _Sizes(requests)
    spec: Spec = {"requests": requests}
    if rng.random() < SHARE_DISAGGREGATED:
        spec["disaggregated"] = _disaggregated(rng, clock, sizes)
    else:
        count = rng.choice((1, 1, 1, 2, 3, 4))
        spec["replicas"] = _pool(rng, clock, sizes, count)
        spec["router"] = rng.choice(ROUTERS)
    return spec


def _clock(rng: random.Random) -> Clock:
    kind = rng.choice(("grid", "grid", "grid", "engine", "varied", "tiny"))
    if kind == "grid":
        unit = rng.choice((1, 10, 1000, 1_000_000))
        scale = unit / 1e9
        scales = {"base_s": 4 * scale, "prefill_token_s": scale, "decode_s": scale}
        if rng.random() < 0.3:
            scales["context_token_s"] = scale
        return Clock(unit, scales, True)
    if kind == "engine":  # about Llama-3 8B on one large GPU
        scales = {
            "base_s": 5e-3,
            "prefill_token_s": 2e-5,
            "prefill_pair_s": 2e-9,
            "decode_s": 3e-5,
            "context_token_s": 4e-8,
            "prefill_token_sq_s": 1e-9,
        }
        return Clock(1, scales, False)
    names = ("base_s", "prefill_token_s", "prefill_pair_s", "decode_s", "context_token_s")
    if kind == "tiny":  # around the floor of 1 ns, where rounding half to even shows
        return Clock(1, {name: rng.choice((0.0, 1e-10, 5e-10, 1e-9)) for name in names}, False)
    scale = 10 ** rng.uniform(-7, -1)
    return Clock(1, {name: scale * 10 ** rng.uniform(-3, 0) for name in names}, False)


def _step_time(rng: random.Random, clock: Clock) -> dict[str, float]:
    if clock.exact:
        return {
            name: rng.randrange(0 if name != "base_s" else 1, 4) * scale
            for name, scale in clock.scales.items()
        }
    kept = {name: scale for name, scale in clock.scales.items() if rng.random() < 0.8}
    return {
        x: scale * rng.choice((0.5, 1.0, 1.0, rng.uniform(0.2, 3))) for x, scale in kept.items()
    }


def _typical_step_ns(clock: Clock) -> float:
    """Length of a mixed step of a few decodes and a short chunk, to pace arrivals by."""
    weights = {"base_s": 1, "prefill_token_s": 10, "prefill_pair_s": 200, "decode_s": 4}
    seconds = sum(weights.get(name, 100) * scale for name, scale in clock.scales.items())
    return max(1.0, seconds * 1e9)


def _requests(rng: random.Random, clock: Clock) -> list[Spec]:
    longest_prompt = rng.choice((3, 12, 24, 40, 120, 300))
    longest_output = rng.choice((1, 4, 15, 30, 60, 80))
    most = min(100, MOST_TOKENS_OUT // longest_output)
    n = min(most, round(3 ** rng.uniform(0.7, 4.2)))
    arrivals = _arrivals(rng, clock, n, longest_output)
    asked = rng.choice(("absent", "absent", "exact", "above", "above", "common"))
    requests = []
    for arrival_ns in arrivals:
        output = rng.randint(1, longest_output) if rng.random() < 0.7 else longest_output
        request = {
            "prompt_tokens": _length(rng, longest_prompt),
            "output_tokens": output,
            "arrival_ns": arrival_ns,
        }
        if asked == "exact" or (asked == "above" and rng.random() < 0.5):
            request["max_tokens"] = output
        elif asked == "above":
            request["max_tokens"] = output + rng.randint(0, longest_output)
        elif asked == "common":
            request["max_tokens"] = longest_output
        requests.append(request)
    return requests


def _length(rng: random.Random, longest: int) -> int:
    """Short ones and long ones alike, and often several of one length."""
    how = rng.random()
    if how < 0.3:
        return longest
    if how < 0.6:
        return max(1, round(longest ** rng.random()))
    return rng.randint(1, longest)


def _arrivals(rng: random.Random, clock: Clock, n: int, longest_output: int) -> list[int]:
    """Arrival times in ns, sorted: at once, in bursts, at random, or with long pauses between."""
    step = _typical_step_ns(clock)
    crowd = rng.choice((0.5, 2, 5, 20))  # requests that arrive while one is served
    gap = step * (longest_output + 1) / 2 / crowd
    burst = rng.choice((1, 1, 2, 5, n))
    grid = clock.unit_ns if clock.exact else rng.choice((1, max(1, round(step))))
    now = float(rng.choice((0, 0, gap)))
    times = []
    while len(times) < n:
        times += [round(now / grid) * grid] * rng.randint(1, burst)
        now += rng.expovariate(1 / (gap * (burst + 1) / 2))
        if rng.random() < 0.03:
            now += 20 * step * longest_output  # everything drains first
    return times[:n]


class _Sizes:
    """What the requests of a workload need, to size pools and limits by."""

    def __init__(self, requests: list[Spec]) -> None:
        asked = [r.get("max_tokens", r["output_tokens"]) for r in requests]
        self.longest_prompt = max(r["prompt_tokens"] for r in requests)
        self.longest = max(r["prompt_tokens"] + m for r, m in zip(requests, asked, strict=True))
        self.count = len(requests)


def _pool(
    rng: random.Random, clock: Clock, sizes: _Sizes, count: int, role: str = "both"
) -> list[Spec]:
    """Replicas of one pool: all alike, or each with its own sizes, options and at times policy."""
    policy = rng.choice(POLICIES)
    kind = rng.choice(("alike", "unequal", "unequal", "mixed"))
    first = _replica(rng, clock, sizes, policy, role)
    pool = [first]
    for _ in range(count - 1):
        if kind == "alike":
            pool.append(dict(first))
        else:
            name = rng.choice(POLICIES) if kind == "mixed" else policy
            pool.append(_replica(rng, clock, sizes, name, role))
    return pool


def _replica(rng: random.Random, clock: Clock, sizes: _Sizes, policy: str, role: str) -> Spec:
    block_tokens = rng.choice((1, 2, 4, 8, 16, 32, rng.randint(1, 32)))
    max_model_len = None
    if rng.random() < 0.4:
        max_model_len = max(2, round(sizes.longest * rng.choice((0.7, 1, 1, 1.5))))
    options = _OPTIONS[policy](rng, sizes, max_model_len, clock)
    need = sizes.longest_prompt + 1 if role == "prefill" else sizes.longest
    if options.get("reserve") == "max_model_len":
        need = max_model_len or need
    replica: Spec = {"policy": policy, "total_blocks": _total_blocks(rng, -(-need // block_tokens))}
    if block_tokens != 16 or rng.random() < 0.5:
        replica["block_tokens"] = block_tokens
    if max_model_len is not None:
        replica["max_model_len"] = max_model_len
    return replica | options | {"step_time": _step_time(rng, clock)}


def _total_blocks(rng: random.Random, need: int) -> int:
    """Mostly short: enough for the longest request, or for a few; at times too little for it."""
    how = rng.random()
    if how < 0.12:
        return max(1, round(need * rng.uniform(0.4, 1)))
    if how < 0.45:
        return need + rng.choice((0, 0, 0, 1, 2))
    if how < 0.85:
        return max(need, round(need * rng.uniform(1, 2.5))) + rng.choice((0, 1, 3))
    return need * rng.randint(3, 30)


def _seats(rng: random.Random) -> int:
    return rng.choice((1, 2, 3, 4, 6, 8, 16, 24))


def _static(rng: random.Random, sizes: _Sizes, max_model_len: int | None, clock: Clock) -> Spec:
    step_ns = _typical_step_ns(clock)
    options: Spec = {"pad_prompts": rng.choice((True, True, "attention", False))}
    if rng.random() < 0.8:
        options["batch_size"] = _seats(rng)
    if rng.random() < 0.5:
        grid = clock.unit_ns
        options["batch_timeout_s"] = round(step_ns * rng.choice((1, 4, 20)) / grid) * grid / 1e9
    if rng.random() < 0.5:
        options["keep_finished_slots"] = rng.random() < 0.5
    if rng.random() < 0.5:
        options["return_at"] = rng.choice(("token", "batch_end"))
    return options


def _orca(rng: random.Random, sizes: _Sizes, max_model_len: int | None, clock: Clock) -> Spec:
    modes = ["max_tokens", "oracle"] + ["max_model_len"] * (max_model_len is not None)
    options: Spec = {"reserve": rng.choice(modes)} if rng.random() < 0.8 else {}
    if rng.random() < 0.6:
        options["max_batch_size"] = _seats(rng)
    return options


def _vllm_v0(rng: random.Random, sizes: _Sizes, max_model_len: int | None, clock: Clock) -> Spec:
    options: Spec = {"max_num_seqs": _seats(rng)} if rng.random() < 0.6 else {}
    if rng.random() < 0.6:
        least = max_model_len or max(1, round(sizes.longest * rng.choice((0.6, 0.9, 1))))
        options["max_num_batched_tokens"] = round(least * rng.choice((1, 1, 1.5, 3)))
    return options


def _vllm_v1(rng: random.Random, sizes: _Sizes, max_model_len: int | None, clock: Clock) -> Spec:
    options: Spec = {"max_num_seqs": _seats(rng)} if rng.random() < 0.6 else {}
    if rng.random() < 0.7:
        options["max_num_batched_tokens"] = rng.randint(1, 2 * sizes.longest_prompt + 4)
    if rng.random() < 0.3:
        options["long_prefill_token_threshold"] = rng.randint(0, sizes.longest_prompt)
    if rng.random() < 0.4:
        options["reserve_full_prompt"] = rng.random() < 0.8
    return options


def _sarathi(rng: random.Random, sizes: _Sizes, max_model_len: int | None, clock: Clock) -> Spec:
    options: Spec = {"max_num_seqs": _seats(rng)} if rng.random() < 0.6 else {}
    if rng.random() < 0.8:
        options["budget_tokens"] = rng.randint(1, 2 * sizes.longest_prompt + 4)
    return options


_OPTIONS = {
    "static": _static,
    "orca": _orca,
    "vllm-v0": _vllm_v0,
    "vllm-v1": _vllm_v1,
    "sarathi": _sarathi,
}


def _disaggregated(rng: random.Random, clock: Clock, sizes: _Sizes) -> Spec:
    layout: Spec = {
        "prefill": _pool(rng, clock, sizes, rng.choice((1, 1, 2, 3)), "prefill"),
        "decode": _pool(rng, clock, sizes, rng.choice((1, 1, 2, 3)), "decode"),
        "transfer": _transfer(rng, clock, sizes),
    }
    for key in ("router", "decode_router"):
        if rng.random() < 0.7:
            layout[key] = rng.choice(ROUTERS)
    return layout


def _transfer(rng: random.Random, clock: Clock, sizes: _Sizes) -> Spec:
    """From nearly free to many steps long; on a grid a token takes a multiple of the unit."""
    transfer: Spec = {}
    step_s = _typical_step_ns(clock) / 1e9
    if rng.random() < 0.5:
        steps = rng.choice((0, 1, 3))
        transfer["latency_s"] = round(steps * step_s * 1e9 / clock.unit_ns) * clock.unit_ns / 1e9
    if clock.exact:
        transfer["kv_bytes_per_token"] = rng.choice((1, 2))
        transfer["bandwidth_bytes_per_s"] = 1e9 / clock.unit_ns
    else:
        transfer["kv_bytes_per_token"] = rng.choice((1, 1000, 131072))
        size = transfer["kv_bytes_per_token"] * sizes.longest_prompt
        transfer["bandwidth_bytes_per_s"] = size / (step_s * 10 ** rng.uniform(-2, 1.3))
    return transfer
