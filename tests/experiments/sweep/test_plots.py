"""Figures of sweeps: which there are, what is marked, and that they need the data set alone."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from experiments.cli import app
from experiments.looks import STYLES
from experiments.sweep.curves import left_out, log_ticks, series_of
from experiments.sweep.dataset import ABOUT, DATA
from experiments.sweep.frame import Frame, Place, read_frame
from experiments.sweep.pareto import front_of
from experiments.sweep.plots import drawings_of, plot_sweep
from sim.errors import ConfigError
from tests.experiments.sweep.examples import config, run

RATE = "workload.arrivals.rate_per_s"
BUDGET = "variants.sarathi.policy.budget_tokens"
STYLE = STYLES["paper"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("plots") / "out"
    run(config(replications=2), out)
    return out


ONE = ["--at", f"{RATE}=5"]
"""Leaves one key with several values, and so no heat map."""


def place(first: float, second: float, *, behind: bool = False, rate: float = 1.0) -> Place:
    values = {"ttft_s.p99": first, "throughput_out_tokens_per_s": second, "slo_attainment": 0.5}
    spread = {name: (value, value) for name, value in values.items()}
    return Place("a", "orca", {RATE: rate}, values, spread, behind)


def frame_of(*places: Place) -> Frame:
    return Frame("s", (RATE,), places, 0, (1.0,))


def test_a_sweep_over_rates_gives_every_kind_of_figure(folder: Path) -> None:
    keys = [each.key for each in drawings_of(read_frame(folder))]

    assert keys == [
        "rate_ttft",
        "rate_tpot",
        "rate_itl",
        "rate_e2e",
        "rate_attainment",
        "slo_scale",
        "heat_slo_attainment",
        "heat_ttft_s_p99",
        "heat_tpot_s_p99",
        "pareto_ttft_s_p99_throughput_out_per_gpu_tokens_per_s",
        "pareto_ttft_s_p99_tpot_s_p99",
    ]


def test_figures_need_the_data_set_alone(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / DATA, tmp_path / "copy" / DATA)
    shutil.copy(folder / ABOUT, tmp_path / "copy")

    plotted = plot_sweep(tmp_path / "copy", formats=["html"])

    names = [path.name for path in plotted.files]
    assert "figures.html" in names
    assert (tmp_path / "copy" / "figures" / "rate_ttft.csv").read_text().startswith("curve,")


def test_replications_are_one_place_with_their_spread(folder: Path) -> None:
    frame = read_frame(folder)

    assert len(frame.places) == 8
    first = frame.places[0]
    low, high = first.spread["ttft_s.p99"]
    assert low < first.values["ttft_s.p99"] < high


def test_curves_follow_the_rate_for_each_variant_and_setting(folder: Path) -> None:
    series = series_of(read_frame(folder), RATE)

    assert [each.name for each in series] == [
        "sarathi, budget_tokens 128",
        "vllm v1, budget_tokens 128",
        "sarathi, budget_tokens 512",
        "vllm v1, budget_tokens 512",
    ]
    assert all([p.settings[RATE] for p in each.places] == [5, 20] for each in series)


def test_at_takes_the_points_with_a_value(folder: Path) -> None:
    frame = read_frame(folder, [f"{BUDGET}=512"])

    assert frame.keys == (RATE,)
    assert {each.settings[BUDGET] for each in frame.places} == {512}
    with pytest.raises(ConfigError, match="--at seed=1: no swept key 'seed'"):
        read_frame(folder, ["seed=1"])
    with pytest.raises(ConfigError, match="no value '7'"):
        read_frame(folder, [f"{BUDGET}=7"])


def test_overloaded_points_have_open_markers() -> None:
    frame = frame_of(place(1, 1, rate=1), place(9, 1, rate=2, behind=True))
    drawing = next(each for each in drawings_of(frame) if each.key == "rate_attainment")

    curve = drawing.make(STYLE, "log").data[0]

    assert list(curve.x) == [1, 2]
    assert [color == "white" for color in curve.marker.color] == [False, True]
    assert [row[2] for row in drawing.rows] == [False, True]


def drawn(*variants: str, points: int = 8) -> Frame:
    """Points of which no two share a value of either key; the second falls as the rate grows."""
    one = {"x": 1.0, "slo_attainment": 0.5}
    places = [
        Place(name, "orca", {RATE: float(k), "a.seqs": 2 * (points - k)}, one, {}, False)
        for name in variants
        for k in range(points)
    ]
    return Frame("s", (RATE, "a.seqs"), tuple(places), 0, (1.0,))


def test_drawn_points_are_not_joined_and_look_as_their_range_of_the_second_key() -> None:
    series = series_of(drawn("a"), RATE)

    assert [(each.name, len(each.places), each.joined) for each in series] == [
        ("seqs 2 to 4", 2, False),
        ("seqs 6 to 8", 2, False),
        ("seqs 10 to 12", 2, False),
        ("seqs 14 to 16", 2, False),
    ]
    assert [place.settings["a.seqs"] for place in series[0].places] == [4, 2]
    assert len({each.look for each in series}) == 4
    text = left_out(drawn("a"), RATE)
    assert text.endswith("they differ in seqs too; those that look alike are in one range of seqs.")


def test_more_variants_leave_fewer_ranges_and_no_point_is_left_out() -> None:
    for variants, ranges in (("ab", 4), ("abc", 2), ("abcd", 2), ("abcde", 1)):
        series = series_of(drawn(*variants), RATE)
        assert len(series) == len(variants) * ranges
        assert sum(len(each.places) for each in series) == 8 * len(variants)
    assert series[0].name == "a"
    assert "range" not in left_out(drawn(*"abcde"), RATE)


def test_a_key_of_one_variant_tells_no_points_of_another_apart() -> None:
    key = "variants.a.policy.seqs"
    places = tuple(
        replace(place, settings={RATE: place.settings[RATE], key: place.settings["a.seqs"]})
        for place in drawn("a", "b").places
    )

    series = series_of(Frame("s", (RATE, key), places, 0, (1.0,)), RATE)

    assert [each.name for each in series][:2] == ["a, seqs 2 to 4", "a, seqs 6 to 8"]
    assert [(each.name, len(each.places)) for each in series][4:] == [("b", 8)]


def test_words_are_told_apart_where_they_are_few() -> None:
    frame = drawn("a", points=4)
    places = tuple(
        replace(place, settings={**place.settings, "router": word})
        for place, word in zip(frame.places, ("x", "y", "x", "y"), strict=True)
    )

    series = series_of(Frame("s", (RATE, "router", "a.seqs"), places, 0, (1.0,)), RATE)

    assert [(each.name, len(each.places)) for each in series] == [("router x", 2), ("router y", 2)]


def test_of_many_curves_those_shown_go_from_the_lowest_to_the_highest_value() -> None:
    values = [7, 90, 3, 55, 21, 34, 1, 8, 13, 2, 89, 5]
    places = tuple(
        Place("a", "orca", {RATE: rate, "seqs": value}, {"x": 1.0}, {}, False)
        for value in values
        for rate in (1.0, 2.0)
    )

    series = series_of(Frame("s", (RATE, "seqs"), places, 0, (1.0,)), RATE)

    shown = [each.places[0].settings["seqs"] for each in series]
    assert shown == sorted(shown)
    assert (len(shown), shown[0], shown[-1]) == (8, 1, 90)


def test_the_front_is_what_nothing_beats() -> None:
    good, fast, slow = place(1, 5), place(0.5, 3), place(2, 5)
    equal, overloaded = place(1, 5), place(0.1, 9, behind=True)

    front = front_of(
        [slow, good, overloaded, fast, equal], "ttft_s.p99", "throughput_out_tokens_per_s"
    )

    assert [id(each) for each in front] == [id(fast), id(good), id(equal)]


def test_a_cell_of_a_heat_map_is_where_its_keys_are(folder: Path) -> None:
    drawing = next(e for e in drawings_of(read_frame(folder)) if e.key == "heat_ttft_s_p99")

    maps = [trace for trace in drawing.make(STYLE, "log").data if trace.type == "heatmap"]

    assert [len(maps), len(maps[0].z), len(maps[0].z[0])] == [2, 2, 2]
    rows = {(variant, x, y): value for variant, x, y, _, value in drawing.rows}
    assert float(maps[0].text[1][0]) == pytest.approx(rows["sarathi", 5, 512], rel=1e-2)


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([0.02, 50], [0.1, 1, 10]),
        ([0.2, 8], [0.3, 1, 3]),
        ([9.4, 44], [10, 20, 30]),
        ([7.4, 17], [8, 10, 12]),
        ([4.0, 4.4], [4, 4.2, 4.4]),
        ([0.0], []),
    ],
)
def test_a_logarithmic_axis_has_some_labels(values: list[float], ticks: list[float]) -> None:
    found = log_ticks(values).get("tickvals", [])

    assert set(ticks) <= set(found)
    assert len(found) <= 9
    assert all(0.9 * min(values) <= tick <= 1.1 * max(values) for tick in found)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--over", "sed,seed"], "--over sed: no swept key 'sed'"),
        (["--over", RATE], "expected two keys"),
        (["--value", "ttft_s.p9"], "--value ttft_s.p9: no number of this sweep"),
        (["--value", "ttft.p99"], "--value: ttft.p99: no metric 'ttft'"),
        ([*ONE, "--value", "ttft_s.p98"], "sweep 'ttft_s.p98'; try ttft_s.p9"),
        ([*ONE, "--value", "ttft_s.p99"], "--value ttft_s.p99: is of heat maps, which take two"),
        ([*ONE, "--over", "sed,seed"], "--over sed: no swept key 'sed'"),
        ([*ONE, "--at", "sed=1"], "--at sed=1: no swept key 'sed'"),
        ([*ONE, "--pareto", "ttft_s.p99,tpot_s.p98"], "try tpot_s.p9"),
        (["--pareto", "ttft_s.p99"], "--pareto ttft_s.p99: expected two, such as"),
        (["--style", "papr"], "no style 'papr'"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(folder: Path, options: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["sweep-plot", str(folder), *options, "--formats", "html"])

    assert result.exit_code == 2
    assert message in result.output
    assert result.output.count("\n") == 1


def test_a_folder_without_a_sweep(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["sweep-plot", str(tmp_path)])

    assert result.exit_code == 2
    assert "no sweep there" in result.output
