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

from experiments import bundle
from experiments.bundle import BundleError
from experiments.html_report import command, compact, page, summary_view, timeline_view, worst_view
from experiments.html_report.timeline_view import Budget, time_in_parts
from experiments.worst import WORST, worst_rows
from sim.metrics import PER_REQUEST
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
    assert "record.steps: false" in values["timelines"][0]["why"]
    assert values["worst"][0]["steps"] is False
    assert "record.attribution: false" in values["attribution"]["variants"][0]["why"]


def test_a_bundle_without_token_times_is_reported_without_ladders(
    folder: Path, tmp_path: Path
) -> None:
    old = tmp_path / "old"
    shutil.copytree(folder, old)
    (old / bundle.TOKENS).unlink()
    worst = collected([old])["worst"][0]
    assert worst["tokens"] is False
    assert all(life["ladder"] is None for life in worst["lives"].values())


def test_preemptions_have_instants_of_their_own(tmp_path: Path) -> None:
    tight = {**SMALL, "events": [], "kv": {"num_blocks": 900}}
    (folder,) = run_of(tight, tmp_path)
    read = bundle.read(folder)
    (told,) = collected([folder])["worst"]
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
    worst = collected([folder])["worst"][0]
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
