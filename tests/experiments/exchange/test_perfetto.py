"""Traces for viewers: every slice, arrow and counter where it belongs; tables as CSV."""

from __future__ import annotations

import csv
import gzip
import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner, Result

from experiments import bundle
from experiments.cli import app
from experiments.exchange.perfetto import FILE, write
from sim.errors import ConfigError

POOL = {"device": "h100-sxm", "policy": "vllm-v1"}
CONFIG: dict[str, Any] = {
    "workload": {"preset": "azure-conv-2023", "requests": 60, "max_tokens": 1024},
    "model": "llama-3.1-8b",
    "max_model_len": 16384,
    "step_time": {"model": "linear", "base_s": 0.005, "prefill_token_s": 3e-5, "decode_s": 1e-4},
    "compare": [
        {"label": "one", "policy": "sarathi", "replicas": 2},
        {
            "label": "two-pools",
            "pools": {
                "prefill": {"policy": "sarathi", "replicas": 1},
                "decode": {"policy": "sarathi", "replicas": 1},
                "transfer": {"bandwidth_bytes_per_s": 1e9},
            },
        },
        {"label": "stages", "policy": "sarathi", "pipeline_parallel": 2, "device": "h100-sxm"},
    ],
}


def phasewise(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments])


@pytest.fixture(scope="module", params=["decisions", "steps"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("perfetto")
    (made / "c.yaml").write_text(yaml.safe_dump(CONFIG))
    wanted = ["--decisions"] if request.param == "decisions" else []
    options = ["--out", made / "o", "--jobs", 1, "--figures", "none", "--trace", "perfetto"]
    done = phasewise("run", made / "c.yaml", *options, *wanted)
    assert done.exit_code == 0, done.output
    return made / "o"


def events_of(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        events: list[dict[str, Any]] = json.load(file)["traceEvents"]
    return events


def slices_of(events: list[dict[str, Any]]) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """Start and end in ns of the slices of each track."""
    found = defaultdict(list)
    for each in events:
        if each["ph"] == "X":
            start = round(each["ts"] * 1000)
            found[each["pid"], each["tid"]].append((start, start + round(each["dur"] * 1000)))
    return {track: sorted(slices) for track, slices in found.items()}


@pytest.mark.parametrize("label", ["one", "two-pools", "stages"])
def test_slices_of_a_track_do_not_overlap_and_arrows_end_in_them(folder: Path, label: str) -> None:
    events = events_of(folder / label / FILE)
    tracks = slices_of(events)

    for track, slices in tracks.items():
        if track[0]:
            assert all(a[1] <= b[0] for a, b in pairwise(slices)), track
    arrows = [each for each in events if each["ph"] in "stf"]
    assert len([each for each in arrows if each["ph"] == "f"]) == 60
    for each in arrows:
        at = round(each["ts"] * 1000)
        inside = [s for s in tracks[each["pid"], each["tid"]] if s[0] <= at < s[1]]
        assert inside, each


@pytest.mark.parametrize("label", ["one", "two-pools"])
def test_busy_time_and_tokens_are_those_of_the_replicas(folder: Path, label: str) -> None:
    made = bundle.read(folder / label)
    events = events_of(folder / label / FILE)

    for pid, replica in enumerate(made.replicas, 1):
        slices = [each for each in events if each["ph"] == "X" and each["pid"] == pid]
        assert sum(round(each["dur"] * 1000) for each in slices) == replica.busy_ns
        if "tokens" in slices[0]["args"]:
            assert len(slices) == replica.iterations
            tokens = sum(sum(each["args"]["tokens"].values()) for each in slices)
        else:
            assert sum(each["args"]["iterations"] for each in slices) == replica.iterations
            tokens = sum(
                (each["args"]["prefill_tokens"] + each["args"]["decodes"])
                * each["args"]["iterations"]
                for each in slices
            )
        assert tokens == replica.prefill_tokens + replica.decode_tokens


def test_counters_and_transfers_are_those_of_the_tables(folder: Path) -> None:
    made = bundle.read(folder / "two-pools")
    events = events_of(folder / "two-pools" / FILE)

    counters = [each for each in events if each["ph"] == "C" and each["name"] == "requests"]
    assert [each["args"]["running"] for each in counters] == made.series["running"].tolist()
    begun = [each for each in events if each["ph"] == "b"]
    assert sum(each["args"]["bytes"] for each in begun) == int(made.transfers["bytes"].sum())


def test_a_window_keeps_what_touches_it(folder: Path, tmp_path: Path) -> None:
    result = phasewise(
        *("export", folder / "one", "--format", "perfetto", "--out", tmp_path),
        *("--from", 2, "--until", 3),
    )

    assert result.exit_code == 0, result.output
    part = slices_of(events_of(tmp_path / "one" / FILE))[1, 0]
    whole = slices_of(events_of(folder / "one" / FILE))[1, 0]
    assert part == [s for s in whole if s[1] >= 2e9 and s[0] < 3e9]
    assert 0 < len(part) < len(whole)


def test_tables_as_csv_hold_every_row(folder: Path, tmp_path: Path) -> None:
    result = phasewise("export", folder, "--format", "csv", "--out", tmp_path)

    assert result.exit_code == 0, result.output
    made = bundle.read(folder / "one")
    with (tmp_path / "one" / "requests.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["end_ns"]) for row in rows] == made.requests["end_ns"].tolist()
    assert {row["state"] for row in rows} == {"finished"}
    assert {row["decode_replica"] for row in rows} == {""}
    with (tmp_path / "one" / "steps.csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(np.asarray(made.steps["end_ns"]))  # type: ignore[index]


def test_what_cannot_be_exported_is_one_line(folder: Path, tmp_path: Path) -> None:
    for arguments, said in (
        (("--format", "perfeto"), "no format 'perfeto'; try perfetto"),
        (("--format", "csv", "--from", 1), "csv has whole tables"),
        (("--format", "perfetto", "--from", 3, "--until", 1), "expected 0 <= from < until"),
    ):
        result = phasewise("export", folder / "one", *arguments, "--out", tmp_path)
        assert result.exit_code == 2
        assert said in result.stderr


def test_without_steps_a_trace_is_refused_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(CONFIG | {"record": {"steps": False}}))

    result = phasewise("run", tmp_path / "c.yaml", "--trace", "perfetto", "--out", tmp_path / "o")

    assert result.exit_code == 2
    assert "record.steps: false" in result.stderr
    assert not (tmp_path / "o").exists()
    assert phasewise("run", tmp_path / "c.yaml", "--trace", "chrome").exit_code == 2


def test_a_bundle_without_steps_has_no_trace(folder: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(folder / "one", tmp_path / "one")
    (tmp_path / "one" / bundle.STEPS).unlink()

    with pytest.raises(ConfigError, match=r"has no steps\.parquet; run it with record\.steps"):
        write(tmp_path / "one")


def test_a_window_after_the_end_of_the_run_is_an_error(folder: Path, tmp_path: Path) -> None:
    done = phasewise(
        "export", folder / "one", "--format", "perfetto", "--from", "1e9", "--out", tmp_path
    )
    assert done.exit_code == 2
    assert "--from 1e+09: " in done.stderr
    assert f"ends at {bundle.read_head(folder / 'one').end_ns / 1e9:g} s" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "one" / FILE).exists()
