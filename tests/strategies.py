"""Hypothesis strategies shared by property tests."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from sim.request import Arrival

STEP_TIMES = st.fixed_dictionaries(
    {"base_s": st.sampled_from([0.0, 1e-9, 5e-3])},
    optional={
        "prefill_token_s": st.sampled_from([1e-9, 2e-5]),
        "prefill_pair_s": st.sampled_from([1e-9, 2e-9]),
        "decode_s": st.sampled_from([5e-10, 3e-5]),
        "context_token_s": st.sampled_from([1e-10, 4e-8]),
    },
)
"""Coefficients of a linear step time, from the floor of 1 ns to those of a large GPU."""


@st.composite
def requests(draw: st.DrawFn, longest_prompt: int = 60, longest_output: int = 20) -> dict[str, int]:
    """One request: lengths, arrival, priority and deadline; ties and bursts are frequent."""
    output = draw(st.integers(1, longest_output))
    return {
        "arrival_ns": draw(st.sampled_from([0, 1, 5_000_000, 20_000_000, 300_000_000])),
        "prompt_tokens": draw(st.integers(1, longest_prompt)),
        "output_tokens": output,
        "max_tokens": output + draw(st.sampled_from([0, 0, 1, longest_output])),
        "priority": draw(st.integers(0, 2)),
        "deadline_ns": draw(st.sampled_from([1_000_000, 50_000_000])),
    }


@st.composite
def replicas(draw: st.DrawFn) -> dict[str, int]:
    """One replica, with memory for a few of `requests`, for one, or for some of them only."""
    block_tokens = draw(st.sampled_from([1, 4, 16]))
    tokens = draw(st.sampled_from([40, 80, 81, 120, 400]))
    replica = {"num_blocks": -(-tokens // block_tokens), "block_tokens": block_tokens}
    if draw(st.booleans()):
        replica["max_model_len"] = draw(st.sampled_from([50, 80, 200]))
    return replica


@st.composite
def workloads(draw: st.DrawFn, two_pools: bool | None = None) -> dict[str, Any]:
    """A workload of `experiments.contract`: up to 12 requests on one pool or two.

    Args:
        draw: Given by hypothesis.
        two_pools: Whether there are a prefill and a decode pool; None for either.
    """
    pool = st.lists(replicas(), min_size=1, max_size=3)
    workload = {
        "seed": draw(st.integers(0, 3)),
        "step_time": draw(STEP_TIMES),
        "requests": draw(st.lists(requests(), min_size=1, max_size=12)),
        "replicas": draw(pool),
    }
    if draw(st.booleans()) if two_pools is None else two_pools:
        workload["decode_replicas"] = draw(pool)
        if draw(st.booleans()):
            workload["local_prefill"] = {
                "max_uncached_tokens": draw(st.sampled_from([0, 5, 30])),
                "max_queue": draw(st.sampled_from([None, 1, 3])),
            }
    return workload


@st.composite
def arrivals(draw: st.DrawFn, longest: int = 60) -> list[Arrival]:
    """A list of arrivals in order, to feed to `simulate`."""
    drawn = draw(st.lists(requests(longest, longest), min_size=1, max_size=12))
    rows = sorted(drawn, key=lambda r: r["arrival_ns"])
    columns = ("arrival_ns", "prompt_tokens", "output_tokens", "max_tokens")
    return [Arrival(*(r[name] for name in columns), i) for i, r in enumerate(rows)]
