"""What the views make of a bundle: extremes are kept, what is missing is said."""

from __future__ import annotations

import base64
import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from plotly.offline import get_plotlyjs
from typer.testing import CliRunner

from experiments import bundle, outcome
from experiments.bundle import BundleError
from experiments.cli import app
from experiments.html_report import (
    attribution_view,
    command,
    compact,
    page,
    summary_view,
    time_view,
    timeline_view,
    worst_view,
)
from experiments.html_report.timeline_view import Budget, time_in_parts
from experiments.tables import three_digits
from experiments.worst import WORST, worst_rows
from sim.metrics import PER_REQUEST
from sim.records import CHANGES
from tests.experiments.html_report.conftest import run_of

SMALL = {
    "name": "small",
    "workload": {"preset": "azure-conv-2023", "requests": 150, "arrivals": {"rate_per_s": 30}},
    "model": "llama-3.1-8b",
    "device": "h100-sxm",
    "replicas": 2,
    "policy": "vllm-v1",
    "events": [
        {"at_s": 2, "what": "fail", "replica": 1},
        {"at_s": 3, "what": "restore", "replica": 1},
    ],
    "label": "one",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with a failure."""
    return run_of(SMALL, tmp_path_factory.mktemp("small"))[0]


def collected(folders: list[Path]) -> dict[str, Any]:
    return command.collect([bundle.read_head(each) for each in folders], folders)[1]


def test_json_on_the_page_holds_no_markup_and_reads_back() -> None:
    text = page.as_json({"a": "</script><!-- & \u2028 <b>"})
    assert not set(text) & set("<>&\u2028")
    assert json.loads(text) == {"a": "</script><!-- & \u2028 <b>"}


@pytest.mark.parametrize("most", [4, 9, 100])
def test_thinned_curves_keep_both_ends_and_the_extremes(most: int) -> None:
    values = np.random.default_rng(3).normal(size=5000)
    values[17] = np.nan
    kept = compact.thinned(values, most)
    assert len(kept) <= most
    assert {0, 4999, int(np.nanargmin(values)), int(np.nanargmax(values))} <= set(kept.tolist())
    assert compact.thinned(values[:4], 4).tolist() == [0, 1, 2, 3]


def test_shares_are_bytes_and_something_is_never_nothing() -> None:
    coded = base64.b64decode(compact.shares(np.array([0.0, 1e-9, 0.5, 1.0, 2.0])))
    assert list(coded) == [0, 1, 128, 255, 255]


def test_time_in_parts_is_the_overlap_of_each_interval_with_each_part() -> None:
    draw = np.random.default_rng(5)
    start = draw.integers(0, 1000, 200)
    end = start + draw.integers(0, 300, 200)
    ends = np.linspace(0, 1100, 12)
    by_hand = [
        sum(max(0.0, min(e, high) - max(s, low)) for s, e in zip(start, end, strict=True))
        for low, high in pairwise(ends)
    ]
    assert time_in_parts(start, end, ends) == pytest.approx(by_hand)


def test_the_parts_of_the_timeline_add_up_to_the_busy_time(folder: Path) -> None:
    read = bundle.read(folder, with_steps=False)
    made = timeline_view.timeline(read, folder, [], Budget(10**6, 2000))
    for at, replica in enumerate(read.replicas):
        coded = np.frombuffer(base64.b64decode(made["cover"][at]), np.uint8)
        cover = coded.reshape(len(timeline_view.KINDS), -1)[:4].astype(float)
        busy_s = cover.sum() / 255 * made["end_s"] / made["parts"]
        assert busy_s == pytest.approx(replica.busy_ns / 1e9, rel=0.02)
    assert made["all"]
    assert sum(made["slices"][0]["length"]) == read.replicas[0].busy_ns
    assert [mark["what"] for mark in made["marks"]][:1] == ["failed"]
    assert made["rows"][1]["down"] == [[2.0, 3.0]]


def test_few_slices_are_those_of_failures_and_of_the_worst_requests(folder: Path) -> None:
    read = bundle.read(folder, with_steps=False)
    worst = worst_view.in_turn(worst_view.rows_of(read))
    made = timeline_view.timeline(read, folder, worst, Budget(300, 2000))
    shown = made["slices"][1]
    assert not made["all"]
    assert 0 < sum(len(row["gap"]) for row in made["slices"]) <= 300
    start, length = np.cumsum(shown["gap"]), np.array(shown["length"])
    assert ((start <= 2e9) & (start + length >= 2e9)).any()  # what the failure cut off
    assert "of" in made["exact"]


def test_without_steps_the_views_that_need_them_say_so(tmp_path: Path) -> None:
    folders = run_of({**SMALL, "record": {"steps": False, "attribution": False}}, tmp_path)
    values = collected(folders)
    assert "record.steps: false" in values["views"][0]["timelines"][0]["why"]
    assert values["views"][0]["worst"][0]["steps"] is False
    assert "record.attribution: false" in values["attribution"]["variants"][0]["why"]


def test_a_bundle_without_token_times_is_reported_without_ladders(
    folder: Path, tmp_path: Path
) -> None:
    old = tmp_path / "old"
    shutil.copytree(folder, old)
    (old / bundle.TOKENS).unlink()
    worst = collected([old])["views"][0]["worst"][0]
    assert worst["tokens"] is False
    assert all(life["ladder"] is None for life in worst["lives"].values())


def test_preemptions_have_instants_of_their_own(tmp_path: Path) -> None:
    tight = {**SMALL, "events": [], "kv": {"num_blocks": 900}}
    (folder,) = run_of(tight, tmp_path)
    read = bundle.read(folder)
    (told,) = collected([folder])["views"][0]["worst"]
    met = 0
    for life in told["lives"].values():
        row = int(np.flatnonzero(read.requests["index"] == life["index"])[0])
        stops = [what for _, what in life["preempted"]]
        assert stops == ["preempted", "admitted_again"] * int(read.requests["preemptions"][row])
        times = [at for at, _ in life["preempted"]]
        assert times == sorted(times)
        met += len(stops)
    assert met
    waits = sum(
        b - a
        for life in told["lives"].values()
        for (a, _), (b, _) in zip(life["preempted"][::2], life["preempted"][1::2], strict=True)
    )
    its = np.isin(read.requests["index"], [life["index"] for life in told["lives"].values()])
    assert waits == int(read.requests["e2e_preempted_ns"][its].sum())


def test_the_worst_are_the_largest_in_order_and_ladders_end_with_the_last_token(
    folder: Path,
) -> None:
    read = bundle.read(folder)
    everyone = np.ones(len(read.requests["index"]), bool)
    for key in ("ttft", "largest_itl", "e2e"):
        values = PER_REQUEST[key](read.requests)
        rows = worst_rows(read.requests, everyone, key)
        expected = sorted(range(len(values)), key=lambda at: (-values[at], at))[:WORST]
        assert rows.tolist() == expected
    worst = collected([folder])["views"][0]["worst"][0]
    for life in worst["lives"].values():
        assert sum(life["ladder"]["gap"]) == life["last_token_ns"]
        assert life["ladder"]["of"] == life["emitted_tokens"]
        assert sum(ns for _, ns in life["parts"]) == life["end_ns"]
        longest = max((s["end"] - s["start"] for s in life["stalls"]), default=None)
        index = int(np.flatnonzero(read.requests["index"] == life["index"])[0])
        largest = int(read.requests["largest_itl_ns"][index])
        assert longest in (None, largest)
        assert sum(ns for _, ns in life["gap"]["parts"]) == largest
        assert life["gap"]["token"] == read.requests["itl_max_token"][index]


def test_attributed_bars_add_up_to_their_mean(folder: Path) -> None:
    bars = collected([folder])["attribution"]["variants"][0]["bars"][""]
    for of in bars.values():
        for bar in of:
            assert sum(s for _, s in bar["parts"]) == pytest.approx(bar["mean_s"], rel=1e-4)


def test_beside_a_bar_stands_the_percentile_of_the_table(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attribution_view, "_HALF_BAND", 0.05)  # of few requests, some around it
    bars = collected([folder])["attribution"]["variants"][0]["bars"][""]
    known = bundle.read_head(folder).summary["overall"]
    for key in ("e2e", "ttft"):
        exact = [bar["exact_s"] for bar in bars[key]]
        assert exact == [known[f"{key}_s"]["p50"], known[f"{key}_s"]["p99"]]
    assert any(bar["n"] > 1 and bar["exact_s"] != bar["mean_s"] for bar in bars["e2e"])


def test_percentiles_on_the_page_are_those_of_the_summary(folder: Path) -> None:
    values = collected([folder])
    ttft = next(each for each in values["cdfs"] if each["key"] == "ttft")["curves"][0]
    known = bundle.read_head(folder).summary["overall"]["ttft_s"]
    for percentile in ("50", "90", "95", "99"):
        at = values["percentiles"].index(percentile)
        assert ttft["exact"][at] == pytest.approx(known[f"p{percentile}"], rel=1e-6)


@pytest.mark.parametrize("color", ["#000000", "#0072b2", "#332288", "#661100", "#56b4e9"])
def test_colours_stand_out_from_the_dark_background(color: str) -> None:
    assert summary_view.contrast(summary_view.on_dark(color), "#12161c") >= 3
    assert summary_view.on_dark("#56b4e9") == "#56b4e9"


def test_too_many_variants_and_damaged_steps_are_one_error(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="61 variants: a report compares at most 60"):
        command.report([folder] * 61, tmp_path / "page.html")
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    (broken / bundle.STEPS).write_bytes(b"no parquet")
    with pytest.raises(BundleError, match=r"steps\.parquet: cannot be read"):
        command.report([broken], tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_the_page_is_complete_and_asks_for_nothing(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    command.report([folder], out)
    text = out.read_text(encoding="utf-8")
    assert len(text) < command.MOST_BYTES
    own = text.replace(get_plotlyjs(), "")
    assert len(own) < len(text) - 10**6
    assert [link for link in ('src="http', 'href="http', "@import", "fetch(") if link in own] == []


def test_a_bundle_of_before_a_phase_was_told_apart_has_its_bars(
    folder: Path, tmp_path: Path
) -> None:
    older = tmp_path / "older"
    shutil.copytree(folder, older)
    table = pq.read_table(older / "requests.parquet")
    kept = [name for name in table.column_names if "reprefill_failure" not in name]
    pq.write_table(table.select(kept), older / "requests.parquet")
    (bars,) = collected([older])["attribution"]["variants"]
    (now,) = collected([folder])["attribution"]["variants"]
    shown = {part[0] for bar in now["bars"][""]["e2e"] for part in bar["parts"]}
    assert {part[0] for bar in bars["bars"][""]["e2e"] for part in bar["parts"]} == (
        shown - {"reprefill_failure"}
    )


def test_bars_come_with_the_sentence_on_the_resource(folder: Path) -> None:
    (variant,) = collected([folder])["attribution"]["variants"]
    told = bundle.read_head(folder).summary["attribution"]["overall"]

    assert variant["said"] == {"": {key: told[key]["p99"]["sentence"] for key in ("e2e", "ttft")}}
    assert "of it hangs on" in variant["said"][""]["e2e"]


# --- replications

REPEATED = {
    "name": "repeated",
    "workload": {
        "mix": [
            {"preset": "azure-conv-2023", "share": 1, "request_class": "chat"},
            {"preset": "azure-code-2023", "share": 1, "request_class": "code"},
        ],
        "requests": 80,
        "arrivals": {"process": "poisson", "rate_per_s": 20},
    },
    "model": "llama-3.1-8b",
    "device": "h100-sxm",
    "replicas": 2,
    "replications": 3,
    "compare": [
        {"label": "whole", "policy": "vllm-v0", "events": SMALL["events"]},
        {"label": "chunks", "policy": "vllm-v1"},
    ],
}


@pytest.fixture(scope="module")
def repeated(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Bundles of two variants with three runs each."""
    folder = tmp_path_factory.mktemp("repeated")
    (folder / "c.yaml").write_text(json.dumps(REPEATED))
    arguments = ["run", str(folder / "c.yaml"), "--out", str(folder / "out"), "--jobs", "1"]
    done = CliRunner().invoke(app, [*arguments, "--figures", "none"])
    assert done.exit_code == 0, done.output
    return bundle.find(folder / "out")


def test_each_run_of_a_variant_can_be_looked_at(repeated: list[Path]) -> None:
    values = collected(repeated)
    label, folders = bundle.runs_of(repeated[0]) or ("", [])

    assert label == "whole"
    seeds = [bundle.read_head(each).config["seed"] for each in folders]
    assert values["one_run"]["names"] == [
        f"Run {at + 1} (seed {seed})" for at, seed in enumerate(seeds)
    ]
    assert values["one_run"]["note"] == "of 3"
    assert len(values["views"]) == 3
    for view, folder in zip(values["views"], folders, strict=True):
        read = bundle.read(folder, with_steps=False)
        worst = worst_rows(read.requests, np.ones(80, bool), "ttft")
        assert [row for row, _ in view["worst"][0]["lists"][0]["rows"]] == worst.tolist()
        assert view["timelines"][0]["end_s"] == read.end_ns / 1e9
        assert len(view["series"]["panels"][0]["curves"]) == 2
    assert values["views"][0] != values["views"][1]


def test_an_interval_of_gaps_is_said_to_be_a_mean_of_runs(repeated: list[Path]) -> None:
    told = collected(repeated)["runs"]
    runs = (bundle.runs_of(repeated[0]) or ("", []))[1]
    each = [bundle.read_head(run).summary["overall"]["itl_s"]["p99"] for run in runs]
    (row,) = [row for row in told["rows"] if row[0] == "ITL P99 (s)"]

    assert row[1].split()[0] == three_digits(float(np.mean(each)))
    assert told["notes"][-1].startswith(
        "ITL P99 and Output throughput per GPU are the mean of the runs' own numbers"
    )


def test_runs_whose_list_is_lost_are_said_to_be_one_run(
    repeated: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(repeated[0].parent, tmp_path / "out")
    (tmp_path / "out" / bundle.REPEATED).unlink()
    folders = outcome.finished([tmp_path / "out"])
    said = "only its first run is shown: replications.json is missing, which lists 2 more runs in"

    assert capsys.readouterr().err.replace("\n", " ").count("replications.json is missing") == 2
    assert [said in note for note in collected(folders)["table"]["notes"][:2]] == [True, True]
    assert said not in str(collected(repeated)["table"]["notes"])


def test_class_panels_are_of_all_runs_together(repeated: list[Path]) -> None:
    values = collected(repeated)
    runs = [bundle.read(each) for each in (bundle.runs_of(repeated[0]) or ("", []))[1]]
    chat = [
        PER_REQUEST["ttft"](run.requests)[run.requests["request_class"] == "chat"] for run in runs
    ]

    curve = values["classes"]["metrics"][0]["classes"][0]["curves"][0]

    assert curve["x"][-1] == pytest.approx(np.concatenate(chat).max(), rel=1e-6)
    assert len(curve["x"]) > max(map(len, chat))


def test_changes_of_the_cluster_are_marked_over_time(repeated: list[Path], folder: Path) -> None:
    first, second = collected(repeated)["views"][0]["series"]["changes"]
    told = [(mark["at_s"], mark["replica"], mark["what"]) for mark in first]

    assert told == [(2.0, "replica-1", "failed"), (3.0, "replica-1", "restored")]
    assert second == []
    assert collected([folder])["one_run"] is None


def test_of_many_changes_failures_are_marked_and_the_first_others(folder: Path) -> None:
    read = bundle.read(folder, with_steps=False)
    many = time_view.MOST_MARKS + 30
    read.changes = {
        "time_ns": np.arange(many) * 10**6,
        "replica": np.ones(many, np.int64),
        "change": np.array(
            [CHANGES.index("failed" if at % 10 == 9 else "up") for at in range(many)]
        ),
        "lost": np.zeros(many, np.int64),
    }

    series = time_view.series(read, 100)
    marks = series["changes"]["marks"]

    assert len(marks) == time_view.MOST_MARKS
    assert sum(mark["what"] == "failed" for mark in marks) == many // 10
    assert [mark["at_s"] for mark in marks] == sorted(mark["at_s"] for mark in marks)
    assert "30 more changes of clusters are not marked" in time_view.panels([series])["notes"][-1]
