"""Keys of two pools that change nothing are said, and how much of others was used."""

from __future__ import annotations

from typing import Any

import pytest

from experiments.bundle import Bundle
from experiments.config import load
from experiments.variant import run_variant

BASE: dict[str, Any] = {
    "workload": {
        "preset": "azure-conv-2023",
        "requests": 20,
        "max_tokens": 128,
        "arrivals": {"process": "poisson", "rate_per_s": 20},
    },
    "model": "llama-3.1-8b",
    "device": "h100-sxm",
    "policy": "vllm-v1",
    "step_time": {"model": "linear", "base_s": 0.005},
    "record": {"steps": False},
}
NODES = {"gpus_per_node": 4, "nics_per_node": 1, "nic": {"bytes_per_s": 12.5e9}}
SLOW = [{"at_s": 0.1, "what": "degrade", "factor": 0.5, "pool": "decode"}]
SWITCHER = {"name": "pressure", "ttft_s": 1, "tpot_s": 0.05}


def run(transfer: dict[str, Any], prefill: int = 2, decode: int = 2, **keys: Any) -> Bundle:
    given = {} if "topology" in keys else {"bandwidth_bytes_per_s": 5e9}
    pools = {
        "prefill": {"replicas": prefill},
        "decode": {"replicas": decode},
        "transfer": {**given, **transfer},
        **keys.pop("pools", {}),
    }
    plan = load({**BASE, "pools": pools, **keys})
    return run_variant(plan.variants[0], plan.folder)


def test_staging_that_holds_no_block_has_no_effect() -> None:
    staging = {"bytes": 1, "bandwidth_bytes_per_s": 1e9}
    made = run({"staging": staging})
    assert (
        "transfer.staging has no effect: bytes 1 hold less than the 2,097,152 bytes of one KV "
        "block." in made.notes
    )
    (used,) = [note for note in made.notes if note.startswith("transfer.staging: ")]
    assert used.startswith("transfer.staging: 0 GB of the ")
    assert "20 of 20 transfers were larger than its" in used


def test_how_much_of_staging_was_used_is_said() -> None:
    made = run({"staging": {"bytes": 10**11, "bandwidth_bytes_per_s": 1e12}})
    moved = made.summary["staging"]
    total = sum(each["bytes"] for each in moved.values())
    peak = max(each["peak_bytes"] for each in moved.values())
    (used,) = [note for note in made.notes if note.startswith("transfer.staging")]
    assert used.startswith(f"transfer.staging: {total / 1e9:,.3g} GB of the ")
    assert used.endswith(f"its 100 GB, of which at most {peak / 1e9:,.3g} GB were in use.")


@pytest.mark.parametrize("decode_first", [False, True])
def test_decode_first_with_push_is_told_and_changes_nothing(decode_first: bool) -> None:
    made = run({"start": "push", "decode_first": decode_first})
    told = [note for note in made.notes if note.startswith("transfer.decode_first has no effect")]
    assert len(told) == decode_first
    assert made.summary["overall"] == run({"start": "push"}).summary["overall"]


def test_minima_that_keep_all_roles_are_told() -> None:
    switching = {"switcher": SWITCHER, "min_prefill": 2, "min_decode": 2}
    made = run({}, pools={"role_switching": switching})
    told = [note for note in made.notes if note.startswith("role_switching")]
    assert told == [
        "role_switching has no effect: min_prefill 2 and min_decode 2 keep all replicas in their "
        "roles."
    ]


def test_no_change_of_role_is_told() -> None:
    made = run({}, pools={"role_switching": {"switcher": SWITCHER}})
    told = [note for note in made.notes if note.startswith("role_switching")]
    assert told == ["role_switching: 0 replicas became prefill replicas and 0 decode replicas."]
    assert made.summary["role_switching"] == {"prefill": 0, "decode": 0}


def test_a_slow_nic_that_nothing_uses_is_told() -> None:
    def told(made: Bundle) -> list[str]:
        return [note for note in made.notes if "the NIC of" in note]

    # All four on one node: KV moves over NVLink.
    assert told(run({}, topology=NODES, events=SLOW)) == [
        "events[0]: degrade has no effect: no transfer used the NIC of decode-0 in this run."
    ]
    assert told(run({}, topology={**NODES, "gpus_per_node": 2}, events=SLOW)) == []
    alone = {"sharing": "max-min"}
    assert told(run(alone, events=SLOW)) == []
    # The one request goes to the first decode replica.
    second = [{**SLOW[0], "replica": 1}]
    assert told(run(alone, events=second, **{"workload.requests": 1})) == [
        "events[0]: degrade has no effect: no transfer used the NIC of decode-1 in this run."
    ]
    assert told(run(alone, events=SLOW, **{"workload.requests": 1})) == []
    dead = [{**SLOW[0], "at_s": 0, "factor": 0}]
    assert told(run({}, topology={**NODES, "gpus_per_node": 2}, events=dead)) == []
