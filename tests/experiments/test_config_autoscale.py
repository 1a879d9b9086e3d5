"""Autoscaling in a config: what it gives, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments import bundle
from experiments.config import load
from experiments.variant import run_variant
from sim.errors import ConfigError
from tests.experiments.test_config_changes import BASE, run

SCALE: dict[str, Any] = {
    "autoscaler": {"name": "queue-length", "target": 2},
    "min_replicas": 0,
    "max_replicas": 3,
    "interval_s": 1,
    "cool_down_down_s": 2,
    "provisioning_s": 1,
}


def test_scalings_are_in_the_summary_in_the_notes_and_in_the_cost(tmp_path: Path) -> None:
    plan = load(
        {**BASE, "autoscale": SCALE, "restart": {"load_s": 0.5}, "cost": {"sheet": "runpod"}}
    )
    folder = tmp_path / "bundle"
    folder.mkdir()
    made = run_variant(plan.variants[0], plan.folder, steps_folder=folder)
    bundle.write_files(made, folder)
    got = bundle.read(folder)
    events, counts = (got.summary["changes"][key] for key in ("events", "counts"))
    assert [(x["at_s"], x["replica"], x["change"]) for x in events[:2]] == [
        (1.0, "replica-1", "added"),
        (1.0, "replica-2", "added"),
    ]
    assert (2.5, "replica-1", "up") in [(x["at_s"], x["replica"], x["change"]) for x in events]
    assert counts["added"] == len(got.replicas) - 1
    assert any(note.startswith("events: replicas ") for note in got.notes)
    assert got.steps is not None
    assert set(got.steps["replica"].tolist()) > {0}

    requests = got.requests
    first, last = int(requests["arrival_ns"].min()), int(requests["end_ns"].max())
    there = sum(
        (min(x.left_ns, last) if x.left_ns >= 0 else last) - max(first, x.joined_ns)
        for x in got.replicas
    )
    assert got.summary["overall"]["gpu_hours"] == pytest.approx(there / 3600e9)
    assert got.summary["gpus"] == 3


def test_a_word_alone_names_an_autoscaler() -> None:
    plan = load({**BASE, "autoscale": {"autoscaler": "utilisation", "provisioning_s": 0}})
    pool = plan.variants[0].pools.colocated
    assert pool is not None
    assert pool.autoscale is not None
    assert pool.autoscale.autoscaler == {"name": "utilisation"}


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"provisioning_s": None}, "autoscale.provisioning_s: is required"),
        ({"max_replicas": 1, "min_replicas": 2}, "from min_replicas 2 to max_replicas 1"),
        ({"autoscaler": "queue"}, "no autoscaler 'queue'; try queue-length"),
        ({"autoscaler": {"name": "queue-length", "targets": 2}}, "no such option; try target"),
        ({"autoscaler": {"name": "slo-headroom"}}, "slo-headroom needs a target"),
    ],
)
def test_what_cannot_scale_is_refused(change: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load({**BASE, "autoscale": {**SCALE, **change}})
    assert error in str(raised.value), str(raised.value)


def test_events_that_an_autoscaler_would_undo_are_refused() -> None:
    events = [{"at_s": 3, "what": "drain", "replica": 0}]
    with pytest.raises(ConfigError, match=r"events\[0\].what: drain: the pool has autoscale"):
        run(autoscale=SCALE, events=events)


def test_a_cold_start_from_no_replica() -> None:
    config = {
        "workload": {"preset": "azure-conv-2023", "requests": 20, "max_tokens": 1024},
        "model": "llama-3.1-8b",
        "policy": "vllm-v1",
        "replicas": 0,
        "step_time": {"model": "linear", "base_s": 0.002},
    }
    with pytest.raises(ConfigError, match="replicas: 0: expected at least 1"):
        load(config)
    scales = {
        "autoscaler": {"name": "queue-length"},
        "min_replicas": 0,
        "provisioning_s": 40,
    }
    plan = load({**config, "autoscale": scales})
    made = run_variant(plan.variants[0], plan.folder)

    first = int(made.requests["arrival_ns"].min())
    assert made.requests["first_scheduled_ns"].min() == first + 40 * 10**9
    assert made.pools["up"][0] == 0
    assert made.summary["requests"]["finished"] == 20
