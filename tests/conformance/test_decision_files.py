"""The log of decisions as a file, held against the reference's as `phasewise diff` does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from experiments.exchange import decisions, parting
from sim.event_loop import simulate
from sim.records import Record
from tests.conformance.adapter import build, feed
from tests.conformance.reference import load_reference
from tests.conformance.workloads import workload

WORKLOADS = 60


def _of_reference(path: Path, log: Any) -> Path:
    lines = [
        {
            "replica": x.replica,
            "start_ns": x.start_ns,
            "end_ns": x.end_ns,
            "tokens": dict(x.tokens),
            "preempted": list(x.preempted),
            "free_after": x.free_after,
        }
        for x in log
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_files_of_decisions_are_those_of_the_reference(shared: Path, tmp_path: Path) -> None:
    reference = load_reference(shared)
    for seed in range(WORKLOADS):
        spec = workload(seed)
        theirs = _of_reference(tmp_path / "theirs.jsonl", reference.simulate(**spec).log)
        cluster, names = build(spec)
        result = simulate(feed(spec), cluster, record=Record(decisions=True))
        decisions.write(tmp_path / "ours.jsonl", result.decisions, names)

        found = parting.compare(decisions.read(theirs), decisions.read(tmp_path / "ours.jsonl"))

        text = parting.render(found, "reference", "phasewise")
        assert found.parting is None, f"workload {seed}: {text}"
        assert found.same == len(result.decisions)
        assert not result.decisions or "tokens" in found.fields
