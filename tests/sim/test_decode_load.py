"""Early rejection on the load of the decode pool (`sim.decode_load`)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from policies import POLICIES, RoundRobin
from sim.admission import Admission, EarlyRejection
from sim.cluster import Cluster
from sim.decode_load import DecodeLimit
from sim.errors import ConfigError
from sim.event_loop import simulate
from sim.pool import PoolSpec
from sim.records import FINISHED, SimulationResult
from sim.replica_spec import ReplicaSpec
from sim.request import Arrival
from sim.step_time import LinearStepTime
from sim.transfer import TransferSpec

STEP = LinearStepTime(base_s=10e-9, prefill_token_s=1e-9, decode_s=1e-9, context_token_s=1e-9)
"""10 ns, 1 ns for each token and 1 ns for each token of context."""


@pytest.fixture(params=[True, False], ids=["fast", "stepped"])
def fast(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def run(
    requests: Sequence[tuple[int, int, int]],
    limit: DecodeLimit,
    *,
    decode: int = 1,
    blocks: int = 100,
    max_tokens: int = 100,
    step: LinearStepTime = STEP,
    fast: bool = True,
) -> SimulationResult:
    """The prefill pace is stated as a token in 5 ns."""
    spec = ReplicaSpec(POLICIES["vllm-v1"](), blocks, step, block_tokens=4, kv_bytes_per_token=1)
    cluster = Cluster(
        PoolSpec("prefill", [spec], RoundRobin()),
        PoolSpec("decode", [spec] * decode, RoundRobin()),
        TransferSpec(1e9),
        admission=Admission(
            early_rejection=EarlyRejection(prefill_tokens_per_s=200_000_000, decode_load=limit)
        ),
    )
    arrivals = [Arrival(a, p, o, max_tokens, i) for i, (a, p, o) in enumerate(requests)]
    return simulate(arrivals, cluster, fast_forward=fast, check=True)


def reasons(result: SimulationResult) -> list[str]:
    return [result.reasons[code] for code in result.requests["reason"]]


def test_the_load_as_it_is_does_not_see_those_in_their_prefill(fast: bool) -> None:
    # Of 4 tokens each, 5 with that of the prefill: two take 12 + 10 ns. All three arrive before
    # anybody decodes, so that all pass, and then three take more.
    burst = [(0, 4, 50), (1, 4, 50), (2, 4, 50)]
    got = run(burst, DecodeLimit(max_tbt_ns=22), fast=fast)
    assert reasons(got) == ["", "", ""]
    # Predicted they end their prefills at 20, 41 (1 ns and 4 + 4 tokens) and 62; each stays 100 ns.
    got = run(burst, DecodeLimit(max_tbt_ns=22, decode_ns=100), fast=fast)
    assert reasons(got) == ["", "", "decode_load"]


def test_those_who_will_have_ended_make_room(fast: bool) -> None:
    # Request 0 decodes from about 20 on, for long; but taken to decode for 30 ns it is thought to
    # be gone when the prefill of request 1, 20 ns from 60 on, will be over.
    requests = [(0, 4, 90), (60, 4, 2)]
    limit = 16  # one request: 11 + 5
    assert reasons(run(requests, DecodeLimit(max_tbt_ns=limit), fast=fast)) == ["", "decode_load"]
    for decode_ns, reason in ((30, ""), (80, "decode_load")):
        got = run(requests, DecodeLimit(max_tbt_ns=limit, decode_ns=decode_ns), fast=fast)
        assert reasons(got) == ["", reason]


def test_the_instant_at_which_somebody_leaves_is_exact(fast: bool) -> None:
    # Request 0 has its first token at 14. Request 1 would begin to decode at 60 + 20 = 80: with
    # 66 ns of decoding request 0 ends at 80, with 67 it does not.
    for decode_ns, reason in ((66, ""), (67, "decode_load")):
        limit = DecodeLimit(max_tbt_ns=16, decode_ns=decode_ns)
        assert reasons(run([(0, 4, 90), (60, 4, 2)], limit, fast=fast)) == ["", reason]


def test_the_mean_batch_of_several_replicas_counts(fast: bool) -> None:
    # Four requests of 5 tokens on two replicas are two decodes with 10 tokens of context: 22.
    burst = [(i, 4, 50) for i in range(6)]
    limit = DecodeLimit(max_tbt_ns=22, decode_ns=1000)
    got = run(burst, limit, decode=2, fast=fast)
    assert reasons(got) == [""] * 4 + ["decode_load"] * 2


def test_the_share_of_kv_memory(fast: bool) -> None:
    # 40 tokens of memory, half of them: three requests of 5 leave 5, and a fourth is still in.
    burst = [(i, 4, 10) for i in range(6)]
    limit = DecodeLimit(max_kv_share=0.5, decode_ns=1000)
    got = run(burst, limit, blocks=10, max_tokens=10, fast=fast)
    assert reasons(got) == [""] * 4 + ["decode_load"] * 2


def test_true_output_lengths_play_no_part(fast: bool) -> None:
    limit = DecodeLimit(max_tbt_ns=40, decode_ns=60)
    first = run([(9 * i, 4, 2 + i % 5) for i in range(4)], limit, fast=fast)
    other = run([(9 * i, 4, 90) for i in range(4)], limit, fast=fast)
    assert reasons(first) == reasons(other)


def test_what_is_refused() -> None:
    with pytest.raises(ConfigError, match="decode_load: needs a limit"):
        DecodeLimit(decode_ns=5)
    spec = ReplicaSpec(POLICIES["vllm-v1"](), 100, STEP)
    early = EarlyRejection(decode_load=DecodeLimit(max_tbt_ns=5))
    with pytest.raises(ConfigError, match="there is no decode pool"):
        Cluster(
            PoolSpec("replica", [spec], RoundRobin()), admission=Admission(early_rejection=early)
        )


def test_prediction_overloads_less_than_the_load_as_it_is(fast: bool) -> None:
    # Waves of 20 requests, each of them over before the next. n decodes take 10 + 5 n: 10 of them
    # are within the limit. As it is, the load is 0 when a wave comes, and nobody is refused.
    step = LinearStepTime(base_s=10e-9, prefill_token_s=1e-9, decode_s=5e-9)
    waves = [(9000 * (i // 20) + i // 5, 4, 60) for i in range(100)]
    done, worst = [], []
    for decode_ns in (None, 3600):
        limit = DecodeLimit(max_tbt_ns=60, decode_ns=decode_ns)
        got = run(waves, limit, blocks=1000, step=step, fast=fast)
        done.append(int((got.requests["state"] == FINISHED).sum()))
        finished = got.requests["index"][got.requests["state"] == FINISHED].tolist()
        gaps = [np.diff(got.token_times_ns(index))[10:40] for index in finished]
        worst.append(int(np.max(gaps)))
    assert done == [100, 50]
    assert worst == [110, 60]
