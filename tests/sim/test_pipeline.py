"""Pipelines by hand (rules 55 and 85 to 87), and what holds for any number of stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policies import ORDERS, POLICIES, ROUTERS
from sim.cluster import Cluster, LiveCluster
from sim.errors import ConfigError
from sim.event_loop import simulate
from sim.pipeline import PipelineReplica
from sim.pool import PoolSpec
from sim.records import FINISHED, REJECTED, UNFINISHED, Decision, Record, SimulationResult
from sim.replica_spec import ReplicaSpec
from sim.request import Arrival
from sim.stages import PipelineStepTime, StageLink
from sim.step_time import LinearStepTime, StepWork
from sim.transfer import TransferSpec
from tests.conformance import adapter, cases, reference
from tests.conformance.pipelined import simulate_pipelines
from tests.conformance.workloads import Spec
from tests.sim.timeline import Engine, replica, run
from tests.strategies import arrivals

FIRST = {"base": 10, "prefill": 1, "decode": 2}
SECOND = {"base": 6, "prefill": 1, "decode": 2}


@pytest.fixture(params=["stepping", "fast-forward", "reference"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """Runs a workload on stages: ours, step by step or not, or the reference's plain loop."""
    if request.param == "reference":
        module = reference.load_reference(request.getfixturevalue("shared"))
        return lambda spec: cases.observe_reference(spec, simulate_pipelines(module, spec))
    fast_forward = request.param == "fast-forward"

    def ours(spec: Spec) -> cases.Observed:
        observed = adapter.observe(spec, fast_forward=fast_forward)
        for entries in observed["log"].values():
            entries.sort(key=lambda entry: (entry[0], entry[1]))
        return observed

    return ours


def staged(
    policy: str,
    total_blocks: int,
    stages: Sequence[dict[str, int]],
    latency: int = 0,
    per_token: int = 0,
    **options: Any,
) -> Spec:
    """A replica of stages; a move takes `latency` and `per_token` microseconds."""
    spec = replica(policy, total_blocks, **options)
    spec["stages"] = [replica(policy, 1, step=stage)["step_time"] for stage in stages]
    del spec["step_time"]
    link = {"bytes_per_token": per_token, "bandwidth_bytes_per_s": 1e6, "latency_s": latency / 1e6}
    return spec | {"link": link}


def test_three_requests_on_two_stages_under_vllm_v1(engine: Engine) -> None:
    requests = [(0, 4, 3), (5, 3, 2), (30, 5, 2)]
    got = run(engine, requests, staged("vllm-v1", 50, [FIRST, SECOND], latency=2, per_token=1))

    # 0: A, 4 of request 0, in stage 1: 14. 14: A moves: 2 + 4 on the way, 6 + 4 in stage 2: 30.
    # 14: stage 1 is free: B, request 1's 3: 13 -> 27, where it waits for stage 2.
    # 30: A leaves; B moves: 2 + 3 + 6 + 3 = 14 -> 44. Request 2 arrives. C, the decode of 0 and
    #     5 of request 2: 10 + 5 + 2 = 17 -> 47. (Request 1 is in B.)
    # 44: B leaves. 47: C moves: 2 + 6 + 6 + 5 + 2 = 21 -> 68. D, the decode of 1: 12 -> 59, waits.
    # 68: C leaves; D moves: 2 + 1 + 6 + 2 = 11 -> 79. E, decodes of 0 and 2: 14 -> 82.
    # 79: D leaves, request 1 is done. 82: E moves: 2 + 2 + 6 + 4 = 14 -> 96.
    assert got.tokens == [[30, 68, 96], [44, 79], [68, 96]]
    assert got.steps["replica0"] == [
        (0, 30, {0: 4}),
        (14, 44, {1: 3}),
        (30, 68, {0: 1, 2: 5}),
        (47, 79, {1: 1}),
        (68, 96, {0: 1, 2: 1}),
    ]


def test_three_requests_on_two_stages_under_sarathi(engine: Engine) -> None:
    requests = [(0, 4, 3), (0, 7, 2), (0, 3, 2)]
    stages = [FIRST, FIRST]
    got = run(engine, requests, staged("sarathi", 50, stages, latency=1, budget_tokens=6))

    # 0: A, 4 of request 0 and 2 of 1: 16 -> 16. 16: A in stage 2: 1 + 16 -> 33. The budget is
    #    new: B, all 3 of request 2: 13 -> 29, waits. (The rest of 1's prompt is not to be had.)
    # 33: A leaves; B: 14 -> 47. C, the decode of 0 and the other 5 of 1: 17 -> 50.
    # 47: B leaves. 50: C: 18 -> 68. D, the decode of 2: 12 -> 62, waits.
    # 68: C leaves; D: 13 -> 81. E, decodes of 0 and 1: 14 -> 82. 82: E: 15 -> 97.
    assert got.tokens == [[33, 68, 97], [68, 97], [47, 81]]


@pytest.mark.parametrize("policy", ["vllm-v1", "sarathi", "vllm-v0"])
def test_nobody_preempts_itself_while_another_batch_is_under_way(
    policy: str, engine: Engine
) -> None:
    got = run(engine, [(0, 4, 2), (1, 3, 3)], staged(policy, 4, [FIRST, FIRST], block_tokens=2))

    # 0: request 0, 2 of 4 blocks: 14, 28. 14: request 1, the other 2: 27; waits; 28 to 41.
    # 28: request 0 wants a third block and is alone in sight: it is held back, and nothing runs.
    # 41: now request 1 is in sight as well, and is the victim; nobody is admitted. The decode of 0:
    #     53, 65. 53: one block is free, 2 are wanted.
    # 65: request 0 is done. 3 + 1 tokens of request 1: 79, 93; its last decode: 105, 117.
    assert got.tokens == [[28, 65], [41, 93, 117]]
    assert got.preemptions == [0, 1]
    assert got.preempted["replica0"] == [[], [], [1], [], []]


def test_a_static_batch_is_alone_whatever_the_stages(engine: Engine) -> None:
    stages = [FIRST, FIRST, FIRST]
    got = run(engine, [(0, 2, 2), (0, 2, 2), (1, 2, 1)], staged("static", 50, stages, batch_size=2))

    # 3 x 14 = 42 for the prompts, 3 x 14 = 42 for the decodes; only then 3 x 12 = 36.
    assert got.tokens == [[42, 84], [42, 84], [120]]


# --- speed


NO_TRANSFER = StageLink(0, 1.0)


def _linear(**us: float) -> LinearStepTime:
    return LinearStepTime(**{name: value / 1e6 for name, value in us.items()})


def _pool(
    stages: Sequence[LinearStepTime],
    policy: str = "vllm-v1",
    blocks: int = 1000,
    link: StageLink = NO_TRANSFER,
    order: str = "fcfs",
    **options: Any,
) -> PoolSpec:
    spec = ReplicaSpec(
        POLICIES[policy](**options),
        blocks,
        PipelineStepTime(stages, link),
        order=ORDERS[order](),
        kv_bytes_per_token=1,
        kind=PipelineReplica,
    )
    return PoolSpec("replica", [spec], ROUTERS["round-robin"]())


def _groups(count: int, gap_us: int, tokens: int) -> list[Arrival]:
    """Groups of 4 requests, each group a batch of its own, as they arrive apart."""
    return [Arrival(1000 * gap_us * (i // 4), 1, tokens, tokens, i) for i in range(4 * count)]


@pytest.mark.parametrize("fast_forward", [True, False])
def test_a_request_alone_takes_the_sum_of_the_stages_for_each_token(fast_forward: bool) -> None:
    stages = [
        _linear(base_s=5, prefill_token_s=1, context_token_s=0.3),
        _linear(base_s=3, decode_s=2, prefill_pair_s=0.1),
        _linear(base_s=7, prefill_token_s=0.01),
    ]
    link = StageLink(4096, 3e9, 2e-6)
    result = simulate(
        [Arrival(17, 40, 300, 300, 0)],
        Cluster(_pool(stages, link=link)),
        fast_forward=fast_forward,
        check=True,
    )
    times = result.token_times_ns(0).tolist()
    assert len(times) == 300
    now = 17
    for k, time in enumerate(times):
        work = StepWork([(40, 0)]) if k == 0 else StepWork([], 1, 40 + k)
        rows = 40 if k == 0 else 1
        now += sum(stage.step_ns(work, 0) for stage in stages)
        now += 2 * round((2e-6 + rows * 4096 / 3e9) * 1e9)
        assert time == now


@pytest.mark.parametrize("fast_forward", [True, False])
@pytest.mark.parametrize("count", [2, 3, 4])
def test_as_many_batches_as_equal_stages_take_the_time_of_one(
    count: int, fast_forward: bool
) -> None:
    stages = [_linear(base_s=10)] * count
    alone = simulate(_groups(1, 0, 200), Cluster(_pool(stages)), fast_forward=fast_forward)
    all_of_them = simulate(
        _groups(count, 10, 200), Cluster(_pool(stages)), fast_forward=fast_forward, check=True
    )
    assert alone.end_ns == 200 * count * 10_000
    assert all_of_them.end_ns == alone.end_ns + (count - 1) * 10_000
    assert all_of_them.requests["emitted_tokens"].sum() == count * 4 * 200


def test_more_batches_than_stages_keep_every_stage_busy() -> None:
    stages = [_linear(base_s=10)] * 3
    # Budget 4: each pass takes 4 of those in sight, 24 requests are 6 batches for 3 stages.
    result = simulate(
        _groups(6, 0, 100),
        Cluster(_pool(stages, max_num_batched_tokens=4)),
        record=Record(steps=True),
        check=True,
    )
    assert result.steps is not None
    for stage in (1, 2, 3):
        mine = result.steps["stage"] == stage
        assert result.steps["busy_ns"][mine].sum() > 0.97 * result.end_ns
    assert result.replicas[0].busy_ns == result.end_ns
    assert result.replicas[0].stage_busy_ns == tuple(
        result.steps["busy_ns"][result.steps["stage"] == stage].sum() for stage in (1, 2, 3)
    )


@pytest.mark.parametrize(("slow", "groups"), [(0, 4), (1, 3), (2, 3)])
def test_uneven_stages_are_paced_by_the_slowest(slow: int, groups: int) -> None:
    stages = [_linear(base_s=30 if stage == slow else 10) for stage in range(3)]
    # The budget keeps the groups apart: those that wait for stage 1 together would be one batch.
    # (Where stage 1 is the slowest, two groups keep it busy, and the others come after them.)
    cluster = Cluster(_pool(stages, max_num_batched_tokens=4))
    result = simulate(_groups(groups, 30, 200), cluster, check=True)
    steady = groups * 200 * 30_000
    assert steady <= result.end_ns <= steady + 200_000


# --- what leaves a trace


def test_rows_of_the_step_log_show_stages_waits_and_transfers() -> None:
    stages = [_linear(base_s=10), _linear(base_s=25)]
    link = StageLink(1, 1e6, 3e-6)  # 3 us, and 1 us a token
    result = simulate(
        [Arrival(0, 2, 1, 1, 0), Arrival(0, 2, 1, 1, 1)],
        Cluster(_pool(stages, link=link, max_num_batched_tokens=2)),
        record=Record(steps=True),
    )
    assert result.steps is not None
    names = ("stage", "start_ns", "end_ns", "busy_ns", "prefill_tokens")
    rows = [tuple(row) for row in np.column_stack([result.steps[n] for n in names]) // 1]
    us = [(stage, start // 1000, end // 1000, busy // 1000) for stage, start, end, busy, _ in rows]
    # The second batch leaves stage 1 when the first, with 5 us on the way, has left stage 2.
    assert us == [(1, 0, 10, 10), (2, 10, 40, 30), (1, 10, 40, 10), (2, 40, 70, 30)]
    assert [row[4] for row in rows] == [2, 2, 2, 2]


def test_a_run_of_iterations_has_one_row_of_each_stage() -> None:
    stages = [_linear(base_s=10), _linear(base_s=20)]
    cluster = Cluster(_pool(stages))
    one = [Arrival(0, 1, 10, 10, 0)]
    result = simulate(one, cluster, record=Record(steps=True))
    assert result.steps is not None
    runs = result.steps["iterations"] > 1
    assert result.steps["iterations"][runs].tolist() == [9, 9]
    assert result.steps["start_ns"][runs].tolist() == [30_000, 40_000]
    assert result.steps["end_ns"][runs].tolist() == [280_000, 300_000]
    assert result.steps["busy_ns"][runs].tolist() == [90_000, 180_000]
    assert result.replicas[0].stage_busy_ns == (100_000, 200_000)


def test_a_run_stopped_in_mid_air_keeps_the_tokens_so_far() -> None:
    stages = [_linear(base_s=10)] * 2
    for fast_forward in (True, False):
        result = simulate(
            _groups(2, 10, 50), Cluster(_pool(stages)), fast_forward=fast_forward, until_ns=95_000
        )
        assert (result.requests["state"] == UNFINISHED).all()
        # Tokens of the first group at 20, 40, 60 and 80 us, of the second 10 us later.
        assert result.requests["emitted_tokens"].tolist() == [4] * 8


def test_batches_in_every_stage_can_be_lost() -> None:
    def lose(live: LiveCluster) -> None:
        live.replicas[0].void()

    for fast_forward in (True, False):
        result = simulate(
            [Arrival(0, 4, 3, 3, 0), Arrival(5_000, 3, 2, 2, 1)],
            Cluster(_pool([_linear(base_s=10), _linear(base_s=6)])),
            cluster_events=[(15_000, lose)],
            fast_forward=fast_forward,
            check=True,
        )
        # At 15 one is in stage 2, the other in stage 1: both start anew, as one batch of 16 us.
        assert result.token_times_ns(0).tolist() == [31_000, 47_000, 63_000]
        assert result.token_times_ns(1).tolist() == [31_000, 47_000]


@pytest.mark.parametrize("lost_us", [35, 41, 46, 47])
def test_a_run_ahead_can_be_lost_in_any_stage(lost_us: int) -> None:
    def lose(live: LiveCluster) -> None:
        live.replicas[0].void()

    for fast_forward in (True, False):
        result = simulate(
            [Arrival(0, 4, 4, 4, 0)],
            Cluster(_pool([_linear(base_s=10), _linear(base_s=6)])),
            cluster_events=[(lost_us * 1000, lose)],
            fast_forward=fast_forward,
            check=True,
        )
        again = [lost_us + 16, lost_us + 32]  # the iteration from 32 to 48
        assert result.token_times_ns(0).tolist() == [1000 * t for t in (16, 32, *again)]


def test_a_pipeline_needs_a_step_time_for_each_stage() -> None:
    spec = ReplicaSpec(POLICIES["orca"](), 10, _linear(base_s=1), kind=PipelineReplica)
    pool = PoolSpec("replica", [spec], ROUTERS["round-robin"]())
    with pytest.raises(ConfigError, match="a step time for each stage, not one LinearStepTime"):
        simulate([Arrival(0, 1, 1, 1, 0)], Cluster(pool))
    with pytest.raises(ConfigError, match="give at least 1"):
        PipelineStepTime([], StageLink(0, 1.0))


def test_the_model_of_the_whole_keeps_the_contract_of_runs() -> None:
    models = [_linear(base_s=1.5, context_token_s=0.0173), _linear(decode_s=0.3)]
    whole = PipelineStepTime(models, StageLink(3, 1e6, 1e-7))
    for work in (StepWork([], 5, 77), StepWork([(7, 3)], 0, 0), StepWork()):
        for n in (1, 5, 100) if not work.chunks else (1,):
            rows = work.attending_rows
            each = [
                StepWork(work.chunks, work.decode_rows, work.context_tokens + k * rows)
                for k in range(n)
            ]
            steps = [whole.step_ns(one, k) for k, one in enumerate(each)]
            assert list(whole.steps_ns(work, n, 0)) == steps


# --- any workload

POLICY_OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("vllm-v1", {}),
    ("vllm-v1", {"max_num_batched_tokens": 7, "long_prefill_token_threshold": 4}),
    ("vllm-v1", {"max_num_seqs": 3, "watermark": 0.1}),
    ("sarathi", {"budget_tokens": 5}),
    ("sarathi", {"max_num_seqs": 3}),
    ("vllm-v0", {"max_num_seqs": 3}),
    ("orca", {"max_batch_size": 3}),
    ("static", {"batch_size": 3, "batch_timeout_s": 0.001}),
    ("static", {"return_at": "batch_end"}),
]


@st.composite
def pipelines(draw: st.DrawFn) -> Cluster:
    """A pool of 1 to 4 stages, or two such pools, mostly short of memory."""
    policy, options = draw(st.sampled_from(POLICY_OPTIONS))
    terms = st.sampled_from([0.0, 1.0, 3.7, 10.0])

    def pool() -> PoolSpec:
        stages = [
            _linear(base_s=draw(terms), prefill_token_s=draw(terms), context_token_s=draw(terms))
            for _ in range(draw(st.integers(1, 4)))
        ]
        link = StageLink(draw(st.sampled_from([0, 1000])), 1e9, draw(st.sampled_from([0, 2e-6])))
        order = draw(st.sampled_from(["fcfs", "priority"]))
        blocks = draw(st.sampled_from([8, 9, 12, 40]))
        return _pool(stages, policy, blocks, link, order, **options)

    if draw(st.booleans()):
        return Cluster(pool(), pool(), TransferSpec(1e9, draw(st.sampled_from([0.0, 1e-5]))))
    return Cluster(pool())


def _simulated(workload: list[Arrival], cluster: Cluster, *, fast_forward: bool) -> Any:
    record = Record(decisions=True, steps=True)
    return simulate(workload, cluster, fast_forward=fast_forward, check=True, record=record)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(workload=arrivals(), cluster=pipelines())
def test_whatever_the_stages_all_end_and_fast_forward_equals_stepping(
    workload: list[Arrival], cluster: Cluster
) -> None:
    workload = [a._replace(priority=a.index % 3) for a in workload]
    stepping = _simulated(workload, cluster, fast_forward=False)
    fast = _simulated(workload, cluster, fast_forward=True)
    for a in workload:
        times = stepping.token_times_ns(a.index).tolist()
        assert times == fast.token_times_ns(a.index).tolist()
        state = stepping.requests["state"][a.index]
        assert (state, len(times)) in ((FINISHED, a.output_tokens), (REJECTED, 0))
        assert times == sorted(times)
    assert _by_start(stepping) == _by_start(fast)
    for name, column in stepping.requests.items():
        assert column.tolist() == fast.requests[name].tolist(), name
    for result in (stepping, fast):
        _check_batches(result, cluster)
        _check_stages(result)


def _by_start(result: SimulationResult) -> list[Decision]:
    return sorted(result.decisions, key=lambda x: (x.start_ns, x.replica, x.end_ns))


def _check_batches(result: SimulationResult, cluster: Cluster) -> None:
    """Never more batches than stages under way, no request in two, blocks within the pool."""
    pools = [cluster.entry, *([cluster.decode] if cluster.decode else [])]
    for place, pool in enumerate(pools):
        model = pool.replicas[0].step_time
        assert isinstance(model, PipelineStepTime)
        mine = [x for x in result.decisions if x.replica == place and x.tokens]
        for x in mine:
            beside = [y for y in mine if y.start_ns <= x.start_ns < y.end_ns and y is not x]
            assert len(beside) < len(model.stages)
            assert not any(set(x.tokens) & set(y.tokens) for y in beside)
            assert 0 <= x.free_after <= pool.replicas[0].num_blocks


def _check_stages(result: SimulationResult) -> None:
    """A stage holds one batch at a time, and is busy for no longer than it holds it."""
    steps = result.steps
    assert steps is not None
    assert (steps["busy_ns"] <= steps["end_ns"] - steps["start_ns"]).all()
    for place in np.unique(steps["replica"]):
        for stage in np.unique(steps["stage"]):
            mine = (steps["replica"] == place) & (steps["stage"] == stage)
            alone = mine & (steps["iterations"] == 1)  # a run's rows span all of its iterations
            assert (steps["start_ns"][alone][1:] >= steps["end_ns"][alone][:-1]).all()
