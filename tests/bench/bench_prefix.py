"""Agents with long contexts under a prefix cache: ``python -m tests.bench.bench_prefix [TURNS]``.

100,000 turns of sessions at contexts of 100,000 tokens on average, of which 97 % are shared with
the turn before, on 16 replicas with blocks of 16 tokens. Wanted: under 2 minutes and 4 GiB on one
core for the whole simulation; with a dictionary touch for each block it takes longer than that for
the blocks alone.
"""

from __future__ import annotations

import resource
import sys
import time

import numpy as np

from policies import POLICIES, ROUTERS
from sim.cluster import Cluster
from sim.event_loop import simulate
from sim.pool import PoolSpec
from sim.replica_spec import ReplicaSpec
from sim.request import Trace
from sim.step_time import LinearStepTime
from traces.sessions import SessionSource, sessions_of
from traces.turns import with_content

TURNS = 100_000
TURNS_PER_SESSION = 45
FIRST_TOKENS, MORE_TOKENS, OUTPUT_TOKENS = 48_000, 2_350, 100
REPLICAS, SESSIONS_AT_ONCE = 16, 128
BLOCKS = 75_000
"""1.2 million tokens; the contexts of 8 sessions are 800,000, and what has ended is evicted."""

STEP = LinearStepTime(
    base_s=8e-3, prefill_token_s=2e-5, prefill_pair_s=1e-10, decode_s=2e-5, context_token_s=4e-8
)
SECONDS, GIBIBYTES = 120.0, 4.0


def agents(turns: int) -> SessionSource:
    """Sessions in closed loop: each turn has the tokens of the one before, and some more."""
    at = np.arange(turns)
    turn, session = at % TURNS_PER_SESSION, at // TURNS_PER_SESSION
    output = np.full(turns, OUTPUT_TOKENS)
    ints = [x.astype(np.int64) for x in (at, FIRST_TOKENS + MORE_TOKENS * turn, output, output)]
    names = np.array([f"s{x}" for x in session.tolist()], dtype=object)
    delay_ns = np.random.default_rng(1).exponential(3e9, turns).astype(np.int64)
    trace = Trace(*ints, row=ints[0], session=names, delay_ns=delay_ns)
    return SessionSource(with_content(trace, sessions_of(trace)), concurrency=SESSIONS_AT_ONCE)


OPTIONS = {"vllm-v1": {"prefix_cache": True, "max_num_batched_tokens": 8192}, "sglang": {}}


def cluster(policy: str) -> Cluster:
    """Replicas alike, each session on one of them."""
    spec = ReplicaSpec(POLICIES[policy](**OPTIONS[policy]), BLOCKS, STEP)
    return Cluster(PoolSpec("replica", [spec] * REPLICAS, ROUTERS["session-affinity"]()))


def main(turns: int) -> None:
    """Print one line for each policy with a prefix cache."""
    for policy in OPTIONS:
        source = agents(turns)
        start = time.process_time()
        result = simulate(source, cluster(policy))
        seconds = time.process_time() - start
        gibibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        shared = result.requests["cached_tokens"].sum() / result.requests["prompt_tokens"].sum()
        lost = sum((x.lost_blocks or 0) * x.block_tokens for x in result.replicas)
        met = seconds < SECONDS * turns / TURNS and gibibytes < GIBIBYTES
        print(
            f"{policy:8} {turns:,} turns of {result.requests['prompt_tokens'].mean():,.0f} tokens,"
            f" {shared:.1%} found cached, {lost:,} tokens evicted, "
            f"{int(result.requests['preemptions'].sum()):,} preemptions: {seconds:.1f} s,"
            f" {gibibytes:.2f} GiB; wanted {SECONDS:g} s, {GIBIBYTES:g} GiB for {TURNS:,}:"
            f" {'met' if met else 'MISSED'}"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else TURNS)
