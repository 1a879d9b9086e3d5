"""The prefix cache on recorded ids: without shortage it finds what a direct count finds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import traces
from policies import POLICIES, ROUTERS
from sim.cluster import Cluster
from sim.event_loop import simulate
from sim.pool import PoolSpec
from sim.replica_spec import ReplicaSpec
from sim.step_time import LinearStepTime
from tests.conformance.reference import load_reference
from traces.arrivals import make_source
from traces.workload import resolve

ENOUGH = 10**7


@pytest.mark.parametrize(("block_tokens", "limit"), [(512, None), (16, 300)])
def test_one_after_the_other_mooncake_finds_what_it_has_in_common(
    shared: Path, block_tokens: int, limit: int | None
) -> None:
    trace = traces.load(shared / "traces" / "mooncake_conversation_head.jsonl.gz")
    trace = trace.take(np.arange(limit or len(trace)))
    settled, _ = resolve(trace, None, "reject", None)
    assert settled.block_ids is not None
    policy = POLICIES["vllm-v1"](prefix_cache=True, max_num_batched_tokens=8192)
    spec = ReplicaSpec(policy, ENOUGH, LinearStepTime(base_s=5e-3), block_tokens=block_tokens)
    cluster = Cluster(PoolSpec("replica", [spec], ROUTERS["round-robin"]()))

    result = simulate(make_source(settled, 1), cluster)

    reference = load_reference(shared)
    ids = [list(map(int, x)) for x in settled.block_ids]
    per_id = 512 // block_tokens
    if per_id > 1:
        ids = [[x * per_id + i for x in each for i in range(per_id)] for each in ids]
    # Tokens of the last, partial id are the request's own.
    full = (settled.prompt_tokens // 512 * 512).tolist()
    cut = [each[: n // block_tokens] for each, n in zip(ids, full, strict=True)]
    prompts = settled.prompt_tokens.tolist()
    hits = reference.prefix_hits(cut, ENOUGH, prompts, block_tokens)
    cached = result.requests["cached_tokens"]
    assert cached.tolist() == [block_tokens * x for x in hits]
    if limit is None:
        assert (int(cached.sum()), sum(prompts)) == (34_880_000, 97_571_920)
