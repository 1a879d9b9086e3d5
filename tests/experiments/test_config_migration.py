"""Migration in a config: what runs, what is left behind, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from experiments import bundle
from experiments.config import load
from experiments.json_schema import json_schema
from experiments.results import run_plan
from sim.errors import ConfigError
from sim.records import OUTCOMES

BASE = """
workload: {preset: azure-conv-2023, requests: 150, arrivals: {rate_per_s: 14}, max_tokens: 1024}
model: llama-3.1-8b
device: a100-sxm-80gb
policy: vllm-v1
check: true
"""
ONE = BASE + "replicas: 2\nkv: {num_blocks: 1000}\n"
TWO = """
workload: {preset: azure-conv-2023, requests: 150, arrivals: {rate_per_s: 14}, max_tokens: 1024}
model: llama-3.1-8b
device: a100-sxm-80gb
policy: vllm-v1
kv: {num_blocks: 700}
pools:
  prefill: {replicas: 1}
  decode: {replicas: 2}
  transfer: {bandwidth_bytes_per_s: 50e9, sharing: max-min}
migration: {migrator: llumnix, interval_s: 0.01}
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "c.yaml"
    path.write_text(text)
    return path


LINKS = {
    "alone": "migration: {migrator: llumnix, bandwidth_bytes_per_s: 8e9, interval_s: 0.01}",
    "shared": "migration: {migrator: {name: llumnix, threshold_blocks: 30}, interval_s: 0.01, "
    "bandwidth_bytes_per_s: 8e9, sharing: max-min}\nnic_bytes_per_s: 4e9",
    "topology": "migration: {migrator: llumnix, interval_s: 0.01}\ntopology: dgx-h100",
    "recompute": "migration: {migrator: llumnix, interval_s: 0.01, mode: recompute}",
}


@pytest.mark.parametrize("link", LINKS)
def test_what_moved_is_in_tables_and_summary(tmp_path: Path, link: str) -> None:
    path = written(tmp_path, ONE + LINKS[link])
    (made,) = run_plan(load(path)).bundles
    told, table = made.summary["migrations"], made.migrations
    moved = np.asarray(table["outcome"]) == OUTCOMES.index("moved")
    assert told["outcomes"]["moved"] == moved.sum() == made.requests["migrations"].sum() > 0
    assert told["bytes"] == table["bytes"].sum() == made.requests["migrated_bytes"].sum()
    assert (told["bytes"] == 0) == (link == "recompute")
    down = (table["end_ns"] - table["stop_ns"])[moved]
    assert told["downtime_s"]["mean"] == pytest.approx(down.mean() / 1e9)
    assert made.requests["migration_downtime_ns"].sum() >= down.sum()
    assert any(note.startswith("migration: requests moved") for note in made.notes)
    bundle.write(made, tmp_path / "b")
    again = bundle.read(tmp_path / "b")
    for name, column in made.migrations.items():
        assert np.asarray(again.migrations[name]).tolist() == np.asarray(column).tolist()


def test_decode_replicas_use_the_links_of_transfers(tmp_path: Path) -> None:
    (made,) = run_plan(load(written(tmp_path, TWO))).bundles
    assert made.summary["migrations"]["outcomes"]["moved"] > 0
    places = {made.replicas[i].role for i in np.asarray(made.migrations["source"]).tolist()}
    assert places == {"decode"}


def test_without_it_nothing_is_said(tmp_path: Path) -> None:
    (made,) = run_plan(load(written(tmp_path, ONE))).bundles
    assert "migrations" not in made.summary
    assert not made.migrations
    assert "migrated_bytes" not in made.requests


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("replicas: 1\nmigration: {migrator: llumnix, mode: recompute}", "migration has no effect"),
        (
            "replicas: 2\nmigration: {migrator: llumnix, mode: recompute, latency_s: 0.1}",
            "migration.latency_s has no effect",
        ),
        (
            "replicas: 2\nmigration: {migrator: llumnix, mode: stop, max_stages: 2, "
            "bandwidth_bytes_per_s: 8e9}",
            "migration.max_stages has no effect",
        ),
    ],
)
def test_what_has_no_effect_is_said(tmp_path: Path, text: str, note: str) -> None:
    (made,) = run_plan(load(written(tmp_path, BASE + text))).bundles
    assert any(note in said for said in made.notes)


MOVE = "migration: {migrator: llumnix, bandwidth_bytes_per_s: 8e9"
REFUSED = [
    (
        ONE + "migration: {migrator: llumnx}",
        "migration.migrator: no migrator 'llumnx'; try llumnix",
    ),
    (ONE + "migration: {migrator: {name: llumnix, threshold: 3}}", "try threshold_blocks"),
    (ONE + "migration: {migrator: llumnix}", "migration.bandwidth_bytes_per_s: is required with"),
    (ONE + MOVE + "}\npolicy: static", "migration: not modelled with policy static"),
    (ONE + MOVE + "}\npolicy: sglang", "migration: not modelled with policy sglang"),
    (ONE + MOVE + "}\npipeline_parallel: 2", "migration: not modelled in a pipeline"),
    (ONE + MOVE + "}\ntopology: dgx-h100", "the links of the topology say it; leave it out"),
    (ONE + MOVE + "}\nnic_bytes_per_s: 1e9", "nic_bytes_per_s: 1e+09: counts where transfers"),
    (ONE + MOVE + ", interval_s: 0}", "migration.interval_s"),
    (TWO.replace("interval_s", "latency_s"), "KV moves as transfer says; leave it out"),
    (TWO.replace("sharing: max-min", "start: push"), "not modelled with transfer.start: push"),
]


@pytest.mark.parametrize(("text", "said"), REFUSED, ids=[said for _, said in REFUSED])
def test_what_cannot_be_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    lines = text.splitlines()
    keys = [line.partition(":")[0] for line in lines]
    kept = [x for i, x in enumerate(lines) if not x or x[0] == " " or keys[i] not in keys[i + 1 :]]
    with pytest.raises(ConfigError) as refused:
        load(written(tmp_path, "\n".join(kept)))
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_editors_know_migrators() -> None:
    described = json_schema()["$defs"]["Migration"]["properties"]["migrator"]
    assert described["anyOf"][0] == {"enum": ["llumnix", "evacuation"]}
