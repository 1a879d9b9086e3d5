"""Work that is done again is told by its cause, and pools that are left without replicas."""

from __future__ import annotations

from typing import Any

import pytest

from experiments.bundle import Bundle
from experiments.config import load
from experiments.notes import done_again
from experiments.variant import run_variant
from sim.records import UNFINISHED

BASE: dict[str, Any] = {
    "workload": {
        "preset": "azure-conv-2023",
        "requests": 30,
        "max_tokens": 256,
        "arrivals": {"process": "poisson", "rate_per_s": 10},
    },
    "model": "llama-3.1-8b",
    "policy": "vllm-v1",
    "step_time": {"model": "linear", "base_s": 0.005},
    "record": {"steps": False},
}
TWO: dict[str, Any] = {
    "prefill": {"replicas": 2},
    "decode": {"replicas": 2},
    "transfer": {"bandwidth_bytes_per_s": 50e9},
}


def run(transfer: dict[str, Any] | None = None, **keys: Any) -> Bundle:
    pools = {**TWO, "transfer": {**TWO["transfer"], **(transfer or {})}}
    plan = load({**BASE, "pools": pools, **keys})
    return run_variant(plan.variants[0], plan.folder)


def both(what: str, pool: str, at_s: float = 1.0) -> list[dict[str, Any]]:
    return [{"at_s": at_s, "what": what, "pool": pool, "replica": n} for n in (0, 1)]


def starting(made: Bundle, word: str) -> list[str]:
    return [note for note in made.notes if note.startswith(word)]


def test_a_failure_is_not_told_as_preemptions() -> None:
    made = run(events=both("fail", "decode"))
    assert made.requests["preemptions"].sum() == 0
    assert made.requests["recomputed_tokens"].sum() > 0
    assert starting(made, "thrashing") == []
    (note,) = starting(made, "lost work: ")
    assert "was lost to failures of replicas, and computed in vain." in note


def test_hold_timeouts_are_told_as_such_and_counted_as_times() -> None:
    made = run(
        {"hold_timeout_s": 0.02, "on_hold_timeout": "reroute"},
        **{"kv.num_blocks": 300, "workload.arrivals.rate_per_s": 60},
    )
    times = made.summary["hold_timeouts"]
    assert times > 30  # requests
    assert starting(made, "thrashing") == []
    (note,) = starting(made, "lost work: ")
    assert "was lost to hold timeouts, and" in note
    (held,) = starting(made, "hold_timeout_s: ")
    assert f"within 0.02 s of its prefill {times:,} times; each time its request" in held


def test_what_was_lost_in_both_ways_is_said() -> None:
    assert done_again(60, 40, 100, ["migrations"]) == []
    (note,) = done_again(60, 140, 100, ["migrations"])
    assert note.startswith("lost work: KV of 2.0 times as many tokens")
    assert note.endswith("in vain, 140 of them of requests that were preempted too.")


@pytest.mark.parametrize(
    ("events", "said"),
    [
        (
            both("fail", "decode"),
            "pool decode has had no replica that takes requests since 1 s (decode-1 failed): ",
        ),
        (both("drain", "prefill"), "pool prefill has had no replica that takes requests since 1 s"),
        (
            [
                {"at_s": 1, "what": "role", "pool": "decode", "replica": 0},
                {"at_s": 2, "what": "role", "pool": "decode", "replica": 1},
            ],
            "pool decode has had no replica that takes requests since 2 s (decode-1 draining): ",
        ),
    ],
)
def test_a_pool_that_is_left_without_replicas_is_told_first(
    events: list[dict[str, Any]], said: str
) -> None:
    made = run(events=events)
    left = int((made.requests["state"] == UNFINISHED).sum())
    assert left > 0
    assert made.notes[0].startswith(said)
    assert f"{left} requests were left unfinished." in made.notes[0]
    assert made.summary["changes"]["availability"] < 1


def test_a_pool_that_comes_back_is_not_told() -> None:
    made = run(events=[*both("fail", "decode"), *both("restore", "decode", 2)])
    assert starting(made, "pool decode") == []


def test_time_in_which_nobody_is_there_counts_as_one_replica_down() -> None:
    # The prefill pool has left by about 1 s; its place counts from then on.
    made = run(events=both("drain", "prefill"))
    gone = [x["at_s"] for x in made.summary["changes"]["events"] if x["change"] == "gone"]
    end_s = made.end_ns / 1e9
    there = 2 * end_s + sum(gone) + (end_s - max(gone))
    expected = 1 - (end_s - max(gone)) / there
    assert made.summary["changes"]["availability"] == pytest.approx(expected)
    assert any("of which none is left counts as one" in note for note in made.notes)
