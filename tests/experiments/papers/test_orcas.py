"""The Orcas of papers: a buddy allocator and a batch per stage, by hand, and the contract."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from experiments.check_policy import check_policy
from experiments.config import load
from experiments.papers.buddy import BuddyMemory
from experiments.results import run_plan

BUDDY = "experiments.papers.buddy:BuddyOrca"
STAGED = "experiments.papers.staged_orca:StagedOrca"


def times(trace: Path, rows: str, **config: Any) -> tuple[list[float], list[float]]:
    """TTFT and E2E of the rows, at 10 ms a step."""
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n" + rows, encoding="utf-8")
    plan = {
        "workload": {"trace": str(trace)},
        "model": "llama-3.1-8b",
        "step_time": {"model": "linear", "base_s": 0.01},
        "compare": [{"label": "a"}],
        **config,
    }
    got = run_plan(load(plan)).requests("a")
    return got["ttft_s"].tolist(), got["e2e_s"].tolist()


def test_pieces_are_halved_and_join_their_buddies() -> None:
    memory = BuddyMemory(22)  # 16 from slot 0, 4 from 16, 2 from 20

    assert [memory.take(2), memory.take(2), memory.take(1)] == [16, 0, 20]
    assert [memory.take(3), memory.take(2), memory.take(0)] == [8, 4, None]
    memory.give(0, 2)
    assert memory.take(3) is None  # its buddy, from 4, is taken
    memory.give(4, 2)
    memory.give(16, 2)  # joins nothing: it was cut from nothing
    assert memory.take(4) is None
    memory.give(8, 3)
    assert memory.take(4) == 0


@pytest.mark.parametrize("seed", range(20))
def test_pieces_never_overlap_and_all_come_back(seed: int) -> None:
    draw = random.Random(seed)
    slots = draw.randrange(1, 3000)
    memory, taken = BuddyMemory(slots), dict[int, int]()
    for _ in range(300):
        if taken and draw.random() < 0.5:
            begin = draw.choice([*taken])
            memory.give(begin, taken.pop(begin))
        else:
            order = draw.randrange(9)
            got = memory.take(order)
            if got is not None:
                assert got % (1 << order) == 0
                taken[got] = order
        used = [slot for b, o in taken.items() for slot in range(b, b + (1 << o))]
        assert len(used) == len(set(used))
        assert not used or max(used) < slots
    for begin, order in taken.items():
        memory.give(begin, order)
    assert [memory.take(o) is not None for o in reversed(range(12))] == [
        bool(slots >> o & 1) for o in reversed(range(12))
    ]


@pytest.mark.parametrize(
    ("policy", "ttft", "e2e"),
    [
        # 64 slots. Request 0 needs 33 of them and request 1 needs 12: 3 blocks and 1, at once.
        ("orca", [0.01, 0.01], [0.13, 0.02]),
        # Rounded up, 64 and 16: request 1 waits until request 0 has ended.
        (BUDDY, [0.01, 0.14], [0.13, 0.15]),
    ],
)
def test_a_reservation_is_a_power_of_two(
    tmp_path: Path, policy: str, ttft: list[float], e2e: list[float]
) -> None:
    chosen = {"name": policy, "reserve": "oracle"}

    got = times(tmp_path / "t.csv", "0,20,13\n0,10,2\n", policy=chosen, kv={"num_blocks": 4})

    assert got[0] == pytest.approx(ttft)
    assert got[1] == pytest.approx(e2e)


@pytest.mark.parametrize(
    ("policy", "ttft", "e2e"),
    [
        # Each stage takes 5 ms. One seat: request 1 comes when request 0 has ended.
        ({"name": "orca"}, [0.01, 0.03], [0.02, 0.04]),
        # A batch in each stage: request 1 is in stage 1 from 5 ms on, behind request 0.
        ({"name": STAGED, "stages": 2}, [0.01, 0.015], [0.02, 0.025]),
    ],
)
def test_each_stage_has_a_batch(
    tmp_path: Path, policy: dict[str, Any], ttft: list[float], e2e: list[float]
) -> None:
    chosen = {"max_batch_size": 1, **policy}

    got = times(
        tmp_path / "t.csv",
        "0,10,2\n0,10,2\n",
        policy=chosen,
        kv={"num_blocks": 50},
        pipeline_parallel=2,
        stage_link={"bandwidth_bytes_per_s": 1e15, "latency_s": 0},
    )

    assert got[0] == pytest.approx(ttft, abs=1e-6)
    assert got[1] == pytest.approx(e2e, abs=1e-6)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        (BUDDY, {"reserve": "oracle"}),
        (BUDDY, {"max_batch_size": 3, "reserve": "pow2"}),
        (STAGED, {"max_batch_size": 1, "stages": 2}),
        (STAGED, {"max_batch_size": 3, "stages": 2, "reserve": "oracle"}),
    ],
)
def test_they_keep_the_contract(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    report = check_policy(name, workloads=5, seed=0, options=options, folder=tmp_path)

    assert report.failure is None, str(report)


@pytest.mark.parametrize("policy", [BUDDY, STAGED])
def test_fast_forward_changes_nothing_on_a_pipeline(policy: str) -> None:
    stages = {"stages": 2} if policy == STAGED else {"reserve": "oracle"}
    plan = {
        "workload": {
            "preset": {"name": "uniform-lengths", "longest_prompt": 90, "longest_output": 40},
            "requests": 120,
            "arrivals": {"process": "poisson", "rate_per_s": 12},
        },
        "model": "llama-3.1-8b",
        "pipeline_parallel": 2,
        "kv": {"num_blocks": 60},
        "step_time": {"model": "linear", "base_s": 0.02, "prefill_token_s": 1e-4},
        "policy": {"name": policy, "max_batch_size": 3, **stages},
        "compare": [{"label": "a"}],
    }
    fast, slow = (
        run_plan(load({**plan, "fast_forward": fast, "check": True})).requests("a")
        for fast in (True, False)
    )

    assert fast["first_token_ns"].tolist() == slow["first_token_ns"].tolist()
    assert fast["end_ns"].tolist() == slow["end_ns"].tolist()
