"""Finding single gaps between tokens, without listing them, and splitting those that are found."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.contract import Subject, arrivals_of, cluster_of, random_workload
from sim.attribution import Attributions, GapLog
from sim.event_loop import simulate
from sim.gap_splits import GapSplits, _largest_within
from sim.records import Record, SimulationResult
from sim.step_time import LinearStepTime
from tests.contract.test_policies import SUBJECTS

HUGE = 1 << 61
"""A gap beside which a place does not fit in 64 bits."""


def _run(subject: Subject, seed: int) -> SimulationResult:
    workload = random_workload(seed)
    record = Record(attribution=True)
    return simulate(arrivals_of(workload), cluster_of(subject, workload), seed=seed, record=record)


@pytest.fixture(scope="module", params=["vllm-v1", "vllm-v0"])
def result(request: pytest.FixtureRequest) -> SimulationResult:
    found = next(each for name, each in SUBJECTS.items() if each.name == request.param)
    return _run(found, 3)


def _splits(result: SimulationResult) -> GapSplits:
    splits = result.gap_splits()
    assert splits is not None
    return splits


@pytest.mark.parametrize("scale", [1, HUGE // 9])
def test_the_longest_of_a_stretch_is_the_first_of_equal_ones(scale: int) -> None:
    gaps = np.array([5, 9, 2, 9, 1, 3, 3]) * scale
    first, last = np.array([0, 2, 4, 5]), np.array([7, 4, 6, 7])
    most, place = _largest_within(gaps, first, last)
    assert place.tolist() == [1, 3, 5, 5]
    assert most.tolist() == gaps[place].tolist()


def test_the_largest_gaps_are_those_of_the_listed_tokens(result: SimulationResult) -> None:
    gaps = _splits(result).largest()
    listed = {
        index: np.diff(result.token_times_ns(index)) for index in result.requests["index"].tolist()
    }
    having = [index for index, its in listed.items() if len(its)]
    assert gaps.request.tolist() == having
    assert gaps.ns.tolist() == [int(listed[index].max()) for index in having]
    assert gaps.token.tolist() == [int(listed[index].argmax()) + 2 for index in having]


def test_the_first_gap_of_a_length_is_found_wherever_it_is(result: SimulationResult) -> None:
    splits = _splits(result)
    index = result.requests["index"]
    listed = [
        (int(length), request, at + 2)
        for request in index.tolist()
        for at, length in enumerate(np.diff(result.token_times_ns(request)))
    ]
    for wanted in (index, index[1::2]):
        its = [each for each in listed if each[1] in set(wanted.tolist())]
        for length in {each[0] for each in its}:
            found = splits.first_of(length, wanted)
            assert found is not None
            first = next(each for each in its if each[0] == length)
            assert (int(found.ns[0]), int(found.request[0]), int(found.token[0])) == first
    assert splits.first_of(max(each[0] for each in listed) + 1, index) is None


def test_a_run_without_tokens_has_no_gaps() -> None:
    empty = np.zeros((0, 4), np.int64)
    splits = GapSplits(Attributions().gap_log(), empty, [], np.arange(2), np.ones(2, np.int64))
    assert len(splits.largest().request) == 0
    assert splits.columns()["itl_max_token"].tolist() == [-1, -1]
    assert splits.first_of(5, np.arange(2)) is None
    assert splits.split(splits.of(0)).shape[0] == 0


def test_logs_of_parts_of_a_run_stand_one_after_the_other() -> None:
    from sim.attribution import STALL, TRANSFER, Account

    parts = []
    for index, phase in ((3, STALL), (8, TRANSFER)):
        kept, account = Attributions(), Account(0)
        account.token(0, 10)
        account.to(phase, 10)
        account.token(1, 10 + index)
        kept.add(account, index)
        kept.alone(LinearStepTime())
        parts.append(kept.gap_log())
    joined = GapLog.joined(parts)
    spans = np.array([[3, -1, 10, 1], [3, -1, 13, 1], [8, -1, 10, 1], [8, -1, 18, 1]])
    splits = GapSplits(joined, spans, [], np.array([3, 8]), np.ones(2, np.int64))
    columns = splits.columns()
    assert columns["itl_max_stall_ns"].tolist() == [3, 0]
    assert columns["itl_max_transfer_ns"].tolist() == [0, 8]
