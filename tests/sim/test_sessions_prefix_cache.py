"""Turns of a session find what the turns before said and were told (rule 40)."""

from __future__ import annotations

import numpy as np
import pytest

from policies import POLICIES, ROUTERS
from sim.cluster import Cluster
from sim.event_loop import simulate
from sim.pool import PoolSpec
from sim.replica_spec import ReplicaSpec
from sim.request import Trace
from sim.step_time import LinearStepTime
from traces.sessions import SessionSource, sessions_of
from traces.turns import with_content

STEP = LinearStepTime(base_s=10e-9, prefill_token_s=1e-9, decode_s=1e-9)


@pytest.mark.parametrize("fast_forward", [True, False])
def test_a_turn_finds_prompt_and_output_of_the_turn_before(fast_forward: bool) -> None:
    prompt, output, session = [10, 7, 22, 25, 12], [9, 3, 5, 4, 2], ["a", "b", "a", "b", "a"]
    n = len(prompt)
    ints = [np.array(x, dtype=np.int64) for x in (range(n), prompt, output, output)]
    trace = Trace(*ints, row=np.arange(n), session=np.array(session, dtype=object))
    trace = with_content(trace, sessions_of(trace))
    spec = ReplicaSpec(
        POLICIES["vllm-v1"](prefix_cache=True), num_blocks=100, step_time=STEP, block_tokens=4
    )
    cluster = Cluster(PoolSpec("replica", [spec], ROUTERS["round-robin"]()))

    result = simulate(SessionSource(trace), cluster, fast_forward=fast_forward, check=True)

    # Stored of a: 10 + 8 tokens, 4 full blocks: 16 of turn 1's 22. Its 22 + 4 are 6 blocks, of
    # which turn 2's 12 are the first 3, capped at 11 tokens: 8. Of b: 7 + 2: 2 blocks of 25.
    assert result.requests["cached_tokens"].tolist() == [0, 0, 16, 8, 8]
