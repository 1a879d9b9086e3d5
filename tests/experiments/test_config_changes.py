"""Changes of the cluster in a config: what they give, what is refused."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from experiments import bundle, cluster
from experiments.bundle import Bundle
from experiments.config import load
from experiments.variant import run_variant
from sim import specs
from sim.errors import ConfigError
from sim.records import STATES
from sim.startup import WarmUp

BASE: dict[str, Any] = {
    "workload": {
        "preset": "azure-conv-2023",
        "requests": 200,
        "arrivals": {"rate_per_s": 20},
        "max_tokens": 1024,
    },
    "model": "llama-3.1-8b",
    "device": "h100-sxm",
    "policy": {"name": "vllm-v1"},
}
FAILS = {"at_s": 3, "what": "fail", "replica": 0}
COMES_BACK = {"at_s": 5, "what": "restore", "replica": 0}
POOLS = {
    "prefill": {"replicas": 1},
    "decode": {"replicas": 1},
    "transfer": {"bandwidth_bytes_per_s": 50e9},
}


def run(*settings: str, **changes: Any) -> Bundle:
    plan = load({**BASE, **changes}, settings)
    return run_variant(plan.variants[0], plan.folder)


def test_what_happens_is_in_the_summary_and_in_the_notes() -> None:
    got = run(replicas=2, events=[FAILS, COMES_BACK])
    moved = int(got.requests["rerouted"].sum())
    assert moved > 0
    assert got.summary["changes"] == {
        "events": [
            {"at_s": 3.0, "replica": "replica-0", "change": "failed", "lost": moved},
            {"at_s": 5.0, "replica": "replica-0", "change": "restored", "lost": 0},
        ],
        "rerouted": moved,
    }
    said = f"lost by a replica {moved} times and routed to another {moved} times."
    assert any(note.startswith("events: ") and note.endswith(said) for note in got.notes)


def test_requests_can_fail_with_their_replica() -> None:
    got = run(replicas=2, events=[FAILS, COMES_BACK], on_failure="fail")
    failed = got.summary["requests"]["failed"]
    assert failed > 0
    assert got.summary["reasons"] == {"replica_failed": failed}


def test_a_restored_replica_loads_its_weights_and_warms_up() -> None:
    warm = {"iterations": 20, "factor": 1.1, "first_pass_s": 0.5}
    plan = load({**BASE, "restart": {"weights_bytes_per_s": 8e9, "warm_up": warm}})
    (spec,) = cluster.build(plan.variants[0], plan.folder).cluster.entry.replicas
    weights = specs.weight_bytes(specs.load_model("llama-3.1-8b"))
    assert spec.startup.load_ns == round(Fraction(weights, 8))
    assert spec.startup.warm_up == WarmUp(20, Fraction(11, 10), 500_000_000)


def test_two_times_to_load_are_refused() -> None:
    restart = {"load_s": 3, "weights_bytes_per_s": 1e9}
    with pytest.raises(ConfigError, match="restart: load_s and weights_bytes_per_s: give one"):
        run(restart=restart)


def test_without_events_nothing_is_said() -> None:
    assert "changes" not in run().summary


def test_an_added_replica_is_in_all_files(tmp_path: Path) -> None:
    events = [
        {"at_s": 4, "what": "add", "pool": "decode"},
        {"at_s": 4.5, "what": "drain", "pool": "decode", "replica": 0},
    ]
    plan = load({**BASE, "pools": POOLS, "events": events})
    folder = tmp_path / "bundle"
    folder.mkdir()
    made = run_variant(plan.variants[0], plan.folder, steps_folder=folder)
    bundle.write_files(made, folder)
    got = bundle.read(folder)
    assert [each.name for each in got.replicas] == ["prefill-0", "decode-0", "decode-1"]
    assert set(got.requests["decode_replica"].tolist()) == {1, 2}
    assert got.steps is not None
    assert 2 in got.steps["replica"]
    assert (got.requests["state"] == STATES.index("finished")).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"events": [COMES_BACK]},
            "events[0].what: restore: replica 0 is up at 5 s; choose one of add, drain, fail",
        ),
        (
            {"events": [{"at_s": 1, "what": "fail", "replica": 3}]},
            "events[0].replica: 3: there is no such replica then; choose from 0 to 0",
        ),
        ({"events": [{**FAILS, "pool": "decode"}]}, "events[0].pool: decode: leave it out"),
        (
            {"events": [FAILS], "pools": POOLS},
            "events[0].pool: not given: say which: prefill or decode",
        ),
    ],
)
def test_what_cannot_happen_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load({**BASE, **changes})
    assert message in str(caught.value)
