"""Curves, looks and files of figures."""

import csv
import itertools
import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments import cdf_figure, figures
from experiments.cdf import MAX_POINTS, curve_of_gaps, curve_of_values
from experiments.drawing import Drawing
from experiments.html_report.summary_view import contrast
from experiments.layout import axis_lines, plain_ticks
from experiments.looks import DASHES, POLICY_LOOKS, STYLES, looks, looks_over_time
from experiments.summary import summarize
from sim.errors import ConfigError
from sim.metrics import quantiles
from sim.records import FINISHED, SERIES_COLUMNS, UNFINISHED

S = 1_000_000_000


class Replica:
    joined_ns, left_ns = 0, -1
    name, pool, gpus, total_blocks, busy_ns, iterations = "main-0", "main", 1, 10, S, 50
    block_tokens, lost_blocks = 16, None


class Run:
    """A bundle of 250 requests with random latencies, in memory."""

    def __init__(self, label, policy="sarathi", seed=0, tokens=11, unfinished=0):
        n = 250
        rng = np.random.default_rng(seed)
        arrival_ns = np.arange(n) * S // 10
        first_ns = arrival_ns + rng.integers(S // 100, S, n)
        last_ns = first_ns + rng.integers(S // 100, S, n) * (tokens > 1)
        state = np.full(n, FINISHED, np.int8)
        state[n - unfinished :] = UNFINISHED
        self.label, self.policy = label, policy
        self.requests = {
            "arrival_ns": arrival_ns,
            "prompt_tokens": np.full(n, 10),
            "emitted_tokens": np.full(n, tokens),
            "state": state,
            "reason": np.zeros(n, np.int16),
            "first_scheduled_ns": arrival_ns,
            "prefill_end_ns": first_ns,
            "first_token_ns": first_ns,
            "last_token_ns": last_ns,
            "end_ns": np.where(state == FINISHED, last_ns, -1),
            "largest_itl_ns": np.full(n, S // 50 if tokens > 1 else -1),
            "preemptions": np.zeros(n, np.int64),
            "recomputed_tokens": np.zeros(n, np.int64),
            "cached_tokens": np.zeros(n, np.int64),
        }
        gap_ns = np.unique(rng.integers(S // 1000, S // 50, 400))[: 400 * (tokens > 1)]
        self.itl = {"(none)": (gap_ns, rng.integers(1, 9, len(gap_ns)))}
        names = SERIES_COLUMNS
        self.series = {name: np.zeros(0, np.int64) for name in names}
        self.replicas = [Replica()]
        self.workload = ""
        self.summary = summarize(
            self.requests,
            itl=self.itl,
            series=self.series,
            replicas=self.replicas,
            reasons=[""],
            run_end_ns=int(last_ns.max()),
        )


# Curves


def test_ties_are_one_step_of_the_staircase():
    curve = curve_of_values(np.array([2.0, 1.0, 2.0, np.nan, 5.0]))
    assert curve.x.tolist() == [1, 2, 5]
    assert curve.share.tolist() == [0.25, 0.75, 1]


def test_gaps_are_weighted_by_their_counts():
    curve = curve_of_gaps((np.array([S, 3 * S]), np.array([3, 1])))
    assert curve.x.tolist() == [1, 3]
    assert curve.share.tolist() == [0.75, 1]
    assert curve.marks.tolist() == [1, 3, 3]


def test_no_values_make_no_curve():
    assert curve_of_values(np.array([np.nan])) is None
    assert curve_of_gaps((np.zeros(0, np.int64), np.zeros(0, np.int64))) is None


@given(st.integers(0, 2**32 - 1), st.sampled_from((10, MAX_POINTS, 5 * MAX_POINTS, 100_000)))
def test_thinned_curves_keep_extremes_and_marks_and_stay_close(seed, n):
    values = np.random.default_rng(seed).lognormal(0, 2, n)
    curve = curve_of_values(values)
    assert len(curve.x) <= MAX_POINTS
    assert curve.x[0] == values.min()
    assert curve.x[-1] == values.max()
    assert set(quantiles(values, (0.5, 0.9, 0.99))) <= set(curve.x)
    ordered = np.sort(values)
    exact = np.searchsorted(ordered, curve.x, side="right") / n
    np.testing.assert_array_equal(curve.share, exact)
    # The largest rise from one drawn point to the next bounds the error in between.
    assert np.diff(curve.share, prepend=0).max() <= max(1 / 740, 1 / n) + 1 / n


# Looks


def test_policies_differ_in_colour_and_in_dash():
    assert len({color for color, _ in POLICY_LOOKS.values()}) == len(POLICY_LOOKS)
    assert len({dash for _, dash in POLICY_LOOKS.values()}) == len(POLICY_LOOKS)
    assert {dash for _, dash in POLICY_LOOKS.values()} <= set(DASHES)


def test_a_policy_looks_the_same_beside_whatever_others():
    assert looks(["sarathi"])[0] == looks(["static", "mine", "sarathi"])[2]
    assert looks(["mine"])[0] == looks(["sarathi", "mine"])[1]


def test_variants_of_a_policy_differ_from_each_other():
    for policy in ("sarathi", "static", "mine"):
        variants = looks([policy] * 8)
        for one in ("color", "dash", "symbol", "pattern"):
            assert len({getattr(look, one) for look in variants}) == 8, (policy, one)
        many = looks([policy] * 30)
        assert len({(look.color, look.dash) for look in many}) == 30
        assert len({(look.color, look.pattern) for look in many}) == 30


@pytest.mark.parametrize(
    "policies",
    [
        [*POLICY_LOOKS],
        ["vllm-v1"] * 40,
        ["mine", "other", "third", "fourth", "fifth", "sixth"] * 6,
        [*POLICY_LOOKS, "mine"] * 5,
    ],
)
def test_every_line_stands_out_from_white(policies):
    for look in (*looks(policies), *looks_over_time(policies)):
        assert contrast(look.color, "#ffffff") >= 3, look


def _seen_by(color, matrix):
    """A colour in CIELAB as somebody sees it (Machado et al. 2009, severity 1)."""
    parts = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    x, y, z = np.cbrt(to_xyz @ np.clip(matrix @ linear, 0, 1) / [0.9505, 1, 1.089])
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize(
    "matrix",
    [
        np.eye(3),
        np.array([[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]),
        np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]),
    ],
    ids=["all cones", "no red", "no green"],
)
def test_colours_are_apart_for_the_colour_blind(matrix):
    for policies in ([*POLICY_LOOKS], ["vllm-v1"] * 8, ["vllm-v1", "disaggregated"] * 4):
        seen = [_seen_by(look.color, matrix) for look in looks(policies)]
        apart = [np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)]
        assert min(apart) > 10  # 2.3 is what is just seen


def test_a_variant_has_one_colour_in_all_figures():
    for policies in (["vllm-v1"] * 8, ["sarathi", "vllm-v0", *["disaggregated"] * 6]):
        steady, moving = looks(policies), looks_over_time(policies)
        assert [look.color for look in steady] == [look.color for look in moving]
        assert {look.dash for look in moving} == {"solid"}
    many = looks_over_time(["vllm-v1"] * 40)
    assert len({(look.color, look.dash) for look in many}) == 40


def test_the_page_is_named_after_what_is_on_it(tmp_path):
    import plotly.graph_objects as go

    drawing = Drawing("x", "X", "", (), [], lambda *_: go.Figure())
    cases = (([], "Latency distributions"), ([drawing], "Latency, caches, memory and load"))
    for at, (drawings, heading) in enumerate(cases):
        (tmp_path / str(at)).mkdir()
        figures.write({}, tmp_path / str(at), STYLES["paper"], "log", ("html",), drawings)
        page = (tmp_path / str(at) / "figures.html").read_text()
        assert f"<h1>{heading}</h1>" in page
        assert f"<title>phasewise: {heading}</title>" in page


# Figures


def test_labels_are_shown_as_they_stand():
    lines = cdf_figure.lines_of([Run("<b>a</b> & $x_1$")], "ttft")
    fig = cdf_figure.figure("ttft", lines, STYLES["paper"])
    names = [trace.name for trace in fig.data]
    assert all("&lt;b&gt;a&lt;/b&gt;" in name for name in names)
    assert all("$" not in name for name in names)


def test_verdict_and_unfinished_share_stand_behind_the_label():
    run = Run("a", unfinished=25)
    run.summary["verdict"]["name"] = "overloaded"
    (line,) = cdf_figure.lines_of([run], "e2e")
    assert line.name == "a (overloaded, 10.0% not finished)"


def test_legend_and_axes_fit_into_the_figure():
    runs = [Run("a label that is much too long for one column " * 3, seed=i) for i in range(5)]
    for style in STYLES.values():
        fig = cdf_figure.figure("ttft", cdf_figure.lines_of(runs, "ttft"), style)
        layout = fig.layout
        axes_px = layout.height - layout.margin.t - layout.margin.b
        assert axes_px == pytest.approx(0.52 * layout.width, abs=1)
        entry_px = layout.legend.entrywidth + layout.legend.itemwidth
        assert entry_px <= layout.width - layout.margin.l - layout.margin.r


def test_a_log_axis_leaves_out_zeros_and_keeps_their_share():
    run = Run("a")
    run.requests["last_token_ns"][:50] = run.requests["first_token_ns"][:50]
    fig = cdf_figure.figure("tpot", cdf_figure.lines_of([run], "tpot"), STYLES["paper"], "log")
    assert min(fig.data[0].x) > 0
    assert min(fig.data[0].y) > 0.2


def test_a_log_axis_of_less_than_a_decade_has_round_labels():
    run = Run("a")
    spans = np.linspace(0.31, 0.38, 250) * S  # of ten gaps
    run.requests["last_token_ns"] = run.requests["first_token_ns"] + spans.astype(np.int64)
    fig = cdf_figure.figure("tpot", cdf_figure.lines_of([run], "tpot"), STYLES["paper"], "log")
    assert fig.layout.xaxis.tickvals == (30, 32, 34, 36, 38)


def test_html_and_csv_are_written_without_images(tmp_path):
    plotted = figures.plot([Run("a"), Run("b", "orca")], tmp_path, formats=["html"])
    names = {path.name for path in plotted.files}
    assert names == {"figures.html"} | {f"{key}_cdf.csv" for key in figures.CDFS}
    assert plotted.notes == ()
    page = (tmp_path / "figures.html").read_text(encoding="utf-8")
    assert "font/woff2;base64," in page
    assert not re.search(r"<(script|link)[^>]+(src|href)=", page)


def test_the_csv_holds_the_points_of_the_figure(tmp_path):
    run = Run("a, <b>")
    figures.plot([run], tmp_path, formats=["html"])
    with (tmp_path / "ttft_cdf.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    values = (run.requests["first_token_ns"] - run.requests["arrival_ns"]) / S
    assert [float(row["ttft_s"]) for row in rows] == sorted(set(values.tolist()))
    assert float(rows[-1]["share"]) == 1
    assert {row["variant"] for row in rows} == {"a, <b>"}


def test_plotting_again_gives_the_same_bytes(tmp_path):
    for name in ("one", "two"):
        figures.plot([Run("a")], tmp_path / name, formats=["html"])
    for path in sorted((tmp_path / "one").iterdir()):
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


def test_a_metric_without_values_is_left_out_with_a_note(tmp_path):
    plotted = figures.plot([Run("a", tokens=1)], tmp_path, formats=["html"])
    assert not (tmp_path / "tpot_cdf.csv").exists()
    assert "TPOT: no request has a value, so there is no figure." in plotted.notes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"style": "papr"}, r"plot: no style 'papr'; did you mean paper\?"),
        ({"formats": ["pgn"]}, r"plot: no format 'pgn'; did you mean png\?"),
        ({"width_mm": 3}, r"plot: width 3 mm; expected 20 to 2000 for paper"),
        ({"x_scale": "lin"}, r"plot: no x scale 'lin'; did you mean linear\?"),
    ],
)
def test_wrong_options_are_refused_in_one_line(tmp_path, options, message):
    with pytest.raises(ConfigError, match=message):
        figures.plot([Run("a")], tmp_path, **options)


def test_a_missing_extra_gives_one_line_and_the_rest(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "kaleido", None)
    plotted = figures.plot([Run("a")], tmp_path, formats=["html", "png"])
    assert (tmp_path / "figures.html").exists()
    (note,) = plotted.notes
    assert "phasewise[figures]" in note
    assert "\n" not in note


def test_a_missing_browser_gives_one_line_and_the_rest(tmp_path):
    pytest.importorskip("kaleido")
    plotted = figures.plot(
        [Run("a")], tmp_path, formats=["html", "png"], browser=tmp_path / "no-browser"
    )
    (note,) = plotted.notes
    assert note.startswith("No images: ")
    assert "\n" not in note


def test_images_are_written_in_one_session_at_their_width(tmp_path, chromium: Path):
    pytest.importorskip("kaleido")
    plotted = figures.plot(
        [Run("<i>a</i> $x$"), Run("b", "orca", 1)],
        tmp_path,
        width_mm=100,
        formats=["svg", "pdf", "png"],
        browser=chromium,
    )
    assert plotted.notes == ()
    assert {path.suffix for path in plotted.files} == {".csv", ".svg", ".pdf", ".png"}
    svg = (tmp_path / "ttft_cdf.svg").read_text(encoding="utf-8")
    assert "font/woff2;base64," in svg
    assert "<i>a</i> $x$" in unescape(svg)
    pdf = (tmp_path / "ttft_cdf.pdf").read_bytes()
    assert b"/FontFile" in pdf
    width_pt = float(re.search(rb"/MediaBox \[0 0 ([0-9.]+)", pdf).group(1))
    assert width_pt / 72 * 25.4 == pytest.approx(100, abs=0.5)
    png = (tmp_path / "ttft_cdf.png").read_bytes()
    assert int.from_bytes(png[16:20]) == pytest.approx(100 / 25.4 * 300, abs=4)


def test_the_page_draws_its_figures_without_a_network(tmp_path, chromium: Path):
    figures.plot([Run("<i>a</i>"), Run("b", "orca", 1)], tmp_path, formats=["html"])
    command = [str(chromium), "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += ["--host-resolver-rules=MAP * ~NOTFOUND", (tmp_path / "figures.html").as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    assert dom.count('class="main-svg"') >= len(figures.CDFS)
    assert "&lt;i&gt;a&lt;/i&gt;" in dom
    assert "TTFT (s)" in dom


@pytest.mark.parametrize(
    ("most", "expected"), [(0.9, ",~f"), (1.0, ",~f"), (9_999.0, ",~f"), (120_000.0, "~s")]
)
def test_numbers_of_axes_have_no_prefix_below_one(most: float, expected: str) -> None:
    assert plain_ticks(most) == expected
    assert axis_lines(STYLES["paper"])["exponentformat"] == "none"
