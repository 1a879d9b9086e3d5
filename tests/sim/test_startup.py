"""Replicas that load their weights and warm up before they serve as usual, by hand."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from policies import POLICIES, ROUTERS
from sim.changes import Change
from sim.cluster import Cluster
from sim.errors import ConfigError
from sim.pipeline import PipelineReplica
from sim.pool import PoolSpec
from sim.records import CHANGES, SimulationResult
from sim.replica_spec import ReplicaSpec
from sim.request import Arrival
from sim.stages import PipelineStepTime, StageLink
from sim.startup import Startup, WarmUp, load_ns
from sim.step_time import LinearStepTime
from tests.sim.changing import run, tokens

STEP = LinearStepTime(base_s=10e-9, prefill_token_s=1e-9, decode_s=1e-9)


def cluster(replicas: int, startup: Startup, stages: int = 1) -> Cluster:
    spec = ReplicaSpec(
        POLICIES["vllm-v1"](max_num_seqs=1), 100, STEP, block_tokens=4, startup=startup
    )
    if stages > 1:
        model = PipelineStepTime([STEP] * stages, StageLink(1, 1e12))
        spec = replace(spec, step_time=model, kind=PipelineReplica)
    return Cluster(PoolSpec("replica", [spec] * replicas, ROUTERS["least-outstanding"]()))


def made(result: SimulationResult) -> list[tuple[int, int, str]]:
    rows = zip(*(result.changes[name].tolist() for name in result.changes), strict=True)
    return [(when, place, CHANGES[code]) for when, place, code, *_ in rows]


def test_an_added_replica_takes_requests_once_it_has_loaded(fast_forward: bool) -> None:
    arrivals = [Arrival(0, 5, 3, 3, 0), Arrival(20, 5, 1, 1, 1), Arrival(50, 5, 1, 1, 2)]
    got = run(arrivals, cluster(1, Startup(30)), [(20, Change("add"))], fast_forward=fast_forward)
    # 0: prefill to 15, decodes to 26 and 37. 1 waits behind it until 37, since replica 1 is up at
    # 50 only: 15 -> 52. 2 comes at that very instant, after it is up, and finds it empty: 65.
    assert tokens(got) == [[15, 26, 37], [52], [65]]
    assert got.requests["replica"].tolist() == [0, 0, 1]
    assert made(got) == [(20, 1, "added"), (50, 1, "up")]


def test_the_first_requests_of_a_restored_replica_pay(fast_forward: bool) -> None:
    startup = Startup(10, WarmUp(iterations=2, factor=Fraction(3, 2), first_pass_ns=100))
    changes = [(0, Change("fail")), (20, Change("restore"))]
    got = run([Arrival(0, 5, 4, 4)], cluster(1, startup), changes, fast_forward=fast_forward)
    # Up at 30. Prefill of 15: 22.5, half to even 22, and 100: 152. Decodes of 11: 16.5, which is
    # 16, to 168; then 11 each.
    assert tokens(got) == [[152, 168, 179, 190]]
    assert made(got) == [(0, 0, "failed"), (20, 0, "restored"), (30, 0, "up")]


def test_replicas_of_the_start_are_warm(fast_forward: bool) -> None:
    startup = Startup(10, WarmUp(2, Fraction(3, 2), 100))
    got = run([Arrival(0, 5, 2, 2)], cluster(1, startup), [], fast_forward=fast_forward)
    assert tokens(got) == [[15, 26]]


def test_in_a_pipeline_the_first_stage_has_the_longer_first_pass(fast_forward: bool) -> None:
    startup = Startup(0, WarmUp(1, Fraction(2), 100))
    changes = [(0, Change("drain")), (0, Change("add"))]
    got = run([Arrival(0, 5, 3, 3)], cluster(1, startup, 2), changes, fast_forward=fast_forward)
    # Stages of 15 twice as long: 30 + 100, then 30: 160. Decodes of 11 + 11: 182, 204.
    assert tokens(got) == [[160, 182, 204]]


def test_a_failure_while_loading_begins_it_anew(fast_forward: bool) -> None:
    changes = [
        (0, Change("fail")),
        (10, Change("restore")),
        (30, Change("fail")),
        (35, Change("restore")),
    ]
    got = run([Arrival(0, 5, 1, 1)], cluster(1, Startup(30)), changes, fast_forward=fast_forward)
    assert tokens(got) == [[80]]  # up at 65
    assert made(got)[-2:] == [(35, 0, "restored"), (65, 0, "up")]


def test_a_failure_as_loading_ends_comes_first(fast_forward: bool) -> None:
    changes = [(0, Change("fail")), (10, Change("restore")), (40, Change("fail"))]
    got = run([Arrival(0, 5, 1, 1)], cluster(1, Startup(30)), changes, fast_forward=fast_forward)
    assert tokens(got) == [[]]  # it waits for ever: unfinished
    assert made(got)[-1] == (40, 0, "failed")


def test_a_replica_drained_while_loading_never_comes_up(fast_forward: bool) -> None:
    changes = [(0, Change("add")), (10, Change("drain", 1))]
    got = run([Arrival(0, 5, 2, 2)], cluster(1, Startup(30)), changes, fast_forward=fast_forward)
    assert tokens(got) == [[15, 26]]
    assert made(got) == [(0, 1, "added"), (10, 1, "draining"), (10, 1, "gone")]


def test_iterations_before_a_second_failure_do_not_count(fast_forward: bool) -> None:
    startup = Startup(0, WarmUp(1, Fraction(2)))
    changes = [(20, Change("fail")), (21, Change("restore"))]
    got = run([Arrival(0, 5, 3, 3)], cluster(1, startup), changes, fast_forward=fast_forward)
    # To 15; the decode is lost at 20. From 21: 5 + 1 tokens, 16 x 2 -> 53, decode 64.
    assert tokens(got) == [[15, 53, 64]]


def test_weights_over_bandwidth() -> None:
    assert load_ns(16e9, 2e9) == 8_000_000_000
    assert load_ns(1, 1e12) == 1
    assert load_ns(5, 2e9) == 2  # 2.5, half to even


@pytest.mark.parametrize("wrong", [{"iterations": -1}, {"factor": 0}, {"first_pass_ns": -1}])
def test_a_warm_up_that_is_none_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="expected"):
        WarmUp(**wrong)  # type: ignore[arg-type]
