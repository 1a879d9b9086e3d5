"""Figures of caches, classes, tenants and replicas: which there are, and what they show."""

import csv

import numpy as np
import pytest

from experiments import figures
from experiments.cache_figures import cache_drawings
from experiments.group_figures import group_drawings
from experiments.looks import SCREEN, STYLES
from experiments.panels import MOST
from experiments.summary import summarize
from sim.cache_metrics import hits_over_time
from sim.slo import SLO

S = 1_000_000_000
N = 400


class Replica:
    joined_ns, left_ns = 0, -1
    pool, gpus, total_blocks, busy_ns, iterations, block_tokens = "main", 1, 10, S, 50, 16

    def __init__(self, name, lost_blocks=None):
        self.name, self.lost_blocks = name, lost_blocks
        self.host_bytes = 0


class Run:
    """400 requests, one every 0.1 s, a tenth of the prompts found cached where there is a cache."""

    def __init__(
        self, label, *, cache=False, classes=(), tenants=(), uneven=False, reuse=False, seed=0
    ):
        rng = np.random.default_rng(seed)
        arrival_ns = np.arange(N) * S // 10
        first_ns = arrival_ns + rng.integers(S // 100, S, N)
        last_ns = first_ns + rng.integers(S // 100, S, N)
        self.label, self.policy = label, "vllm-v1"
        self.requests = {
            "arrival_ns": arrival_ns,
            "prompt_tokens": np.full(N, 100),
            "emitted_tokens": np.full(N, 11),
            "state": np.zeros(N, np.int8),
            "reason": np.zeros(N, np.int16),
            "replica": (rng.random(N) < (0.8 if uneven else 0.5)).astype(int),
            "decode_replica": np.full(N, -1),
            "first_scheduled_ns": arrival_ns,
            "prefill_end_ns": first_ns,
            "first_token_ns": first_ns,
            "last_token_ns": last_ns,
            "end_ns": last_ns,
            "largest_itl_ns": np.full(N, S // 50),
            "preemptions": np.zeros(N, np.int64),
            "recomputed_tokens": np.zeros(N, np.int64),
            "cached_tokens": np.full(N, 10 if cache else 0),
        }
        if classes:
            self.requests["request_class"] = np.resize(np.array(classes, object), N)
        if tenants:
            self.requests["tenant"] = np.resize(np.array(tenants, object), N)
        self.itl = {"(none)": (np.array([S // 100]), np.array([10 * N]))}
        self.replicas = [Replica(f"replica-{i}", 30 if cache else None) for i in range(2)]
        times = np.repeat(np.arange(1, 41) * S, 2)
        self.series = {
            "time_ns": times,
            "replica": np.tile([0, 1], 40),
            "waiting": np.zeros(80, np.int64),
            "running": np.zeros(80, np.int64),
            "used_blocks": np.tile([2, 4], 40),
            "cached_blocks": np.tile([6, 0] if cache else [0, 0], 40),
            "lost_blocks": np.repeat(np.arange(40) if cache else np.zeros(40, np.int64), 2),
        }
        curve = {"block_tokens": 16, "capacity_tokens": [16, 64], "hit_rate": [0.1, 0.5]}
        self.workload = ""
        self.summary = summarize(
            self.requests,
            reuse=curve | {"distance_tokens": {"n": 1}} if cache and reuse else None,
            itl=self.itl,
            series=self.series,
            replicas=self.replicas,
            reasons=[""],
            run_end_ns=int(last_ns.max()),
            slo=SLO(ttft_s=2, classes={"tab": SLO(ttft_s=0.1)}),
        )


def keys(drawings):
    return [drawing.key for drawing in drawings]


def drawing(drawings, key):
    return next(each for each in drawings if each.key == key)


def test_a_plain_run_has_no_figure_beside_its_distributions():
    assert figures.drawings_of([Run("a"), Run("b", seed=1)]) == []


def test_a_cache_has_hits_over_time_and_what_the_memory_holds():
    assert keys(cache_drawings([Run("a"), Run("b", cache=True)])) == ["cache_hits", "kv_occupancy"]


def test_hits_over_time_are_of_those_first_scheduled_in_the_interval():
    requests = {
        "first_scheduled_ns": np.array([5, 10, 11, -1, 25]),
        "prompt_tokens": np.array([10, 30, 10, 99, 10]),
        "cached_tokens": np.array([0, 20, 5, 99, 1]),
    }
    rates = hits_over_time(requests, np.array([10, 20, 24]))
    np.testing.assert_array_equal(rates, [0.5, 0.5, np.nan])


def test_the_shares_of_the_memory_add_up():
    rows = drawing(cache_drawings([Run("b", cache=True)]), "kv_occupancy").rows
    assert {tuple(row[2:]) for row in rows} == {(0.3, 0.3, 0.4)}  # of 20 blocks: 6, 6, 8
    assert [row[1] for row in rows] == list(range(1, 41))


def test_evictions_are_tokens_per_second_of_all_replicas():
    rows = drawing(cache_drawings([Run("b", cache=True)]), "cache_hits").rows
    lost = [value for _, what, _, value in rows if what == "evicted_tokens_per_s"]
    assert set(lost) == {2 * 16.0}
    hits = [value for _, what, _, value in rows if what == "prefix_hit_rate"]
    assert len(hits) == 20
    assert set(hits) == {0.1}


def test_bundles_without_these_columns_have_no_occupancy():
    run = Run("old", cache=True)
    del run.series["cached_blocks"], run.series["lost_blocks"]
    assert keys(cache_drawings([run])) == ["cache_hits"]


def test_what_was_found_stands_beside_what_lru_finds():
    runs = [Run("a"), Run("b", cache=True, reuse=True), Run("c", cache=True, reuse=True)]
    by_size = drawing(cache_drawings(runs), "cache_size")
    lru = [row[1:] for row in by_size.rows if row[0] == "LRU"]
    assert lru == [(16, 0.1), (64, 0.5), (160, 0.5)]  # a replica holds ten blocks of 16
    assert [row for row in by_size.rows if row[0] != "LRU"] == [("b", 160, 0.1), ("c", 160, 0.1)]
    fig = by_size.make(SCREEN, "log")
    assert [trace.mode for trace in fig.data] == ["lines", "markers", "markers"]


def test_classes_and_tenants_have_panels_and_bars():
    run = Run("a", classes=["tab", "agent"], tenants=["x", "y", "z"])
    made = keys(group_drawings([run]))
    assert made == [
        *(f"{key}_by_{one}" for one in ("class",) for key in ("ttft", "tpot", "e2e")),
        "by_class",
        *(f"{key}_by_tenant" for key in ("ttft", "tpot", "e2e")),
        "by_tenant",
    ]


def test_a_panel_shows_its_class_and_the_target_of_it():
    runs = [Run("a", classes=["tab", "agent"]), Run("b", classes=["tab", "agent"], seed=1)]
    of_class = drawing(group_drawings(runs), "ttft_by_class")
    shown = {(name, label) for name, label, _, _ in of_class.rows}
    assert shown == {(name, label) for name in ("tab", "agent") for label in "ab"}
    fig = of_class.make(SCREEN, "log")
    lines = {shape.xref: shape.x0 for shape in fig.layout.shapes}
    assert lines == {"x": 2, "x2": 0.1}  # agent, tab
    assert [note.text for note in fig.layout.annotations] == ["agent", "tab"]
    curve = next(trace for trace in fig.data if trace.xaxis == "x2" and trace.mode == "lines")
    requests = runs[0].requests
    tab = requests["request_class"] == "tab"
    waits = (requests["first_token_ns"] - requests["arrival_ns"])[tab] / S
    assert (curve.x[0], curve.x[-1]) == (min(waits), max(waits))


def test_a_target_far_from_all_curves_is_within_the_axes():
    run = Run("a", classes=["tab", "agent"])
    run.summary["slo"] = {"ttft_s": 300.0, "classes": {"tab": {"ttft_s": 0.0005}}}
    fig = drawing(group_drawings([run]), "ttft_by_class").make(SCREEN, "log")
    assert sorted(shape.x0 for shape in fig.layout.shapes) == [0.0005, 300]
    for axis in (fig.layout.xaxis, fig.layout.xaxis2):
        assert 10 ** axis.range[0] < 0.0005
        assert 10 ** axis.range[1] > 300


def test_bars_of_many_variants_of_one_policy_differ_and_are_in_the_legend():
    runs = [Run(f"v{i}", classes=["tab", "agent"], seed=i) for i in range(8)]
    fig = drawing(group_drawings(runs), "by_class").make(SCREEN, "log")
    named = [trace for trace in fig.data if trace.showlegend]
    assert [trace.name for trace in named] == [run.label for run in runs]
    fills = {(each.marker.color, each.marker.pattern.shape) for each in named}
    assert len({color for color, _ in fills}) == len({shape for _, shape in fills}) == 8


def test_bars_of_normalised_latency_have_the_unit_of_its_curves():
    run = Run("a", classes=["tab", "agent"])
    fig = drawing(group_drawings([run]), "by_class").make(SCREEN, "log")
    titles = [note.text for note in fig.layout.annotations]
    assert titles[-1] == "Mean normalised latency (ms/token)"
    per_token_s = run.summary["classes"]["agent"]["normalised_latency_s_per_token"]["mean"]
    assert fig.data[-1].y[0] == pytest.approx(1000 * per_token_s)


def test_bars_are_the_numbers_of_the_summary():
    run = Run("a", cache=True, classes=["tab", "agent"])
    rows = drawing(group_drawings([run]), "by_class").rows
    told = {(name, metric): value for name, _, metric, value in rows}
    block = run.summary["classes"]["tab"]
    assert told["tab", "slo_attainment"] == 100 * block["slo_attainment"]
    assert told["tab", "prefix_hit_rate_tokens"] == 10
    name = "normalised_latency_s_per_token"
    assert told["tab", name] == block[name]["mean"]


def test_of_many_tenants_those_with_the_most_requests_are_drawn():
    tenants = [f"t{i}" for i in range(20)] + ["t7", "t7"]
    of_tenant = drawing(group_drawings([Run("a", tenants=tenants)]), "ttft_by_tenant")
    names = {row[0] for row in of_tenant.rows}
    assert len(names) == MOST
    assert "t7" in names
    assert f"At most {MOST}" in of_tenant.about


def test_loads_of_replicas_are_drawn_where_they_are_uneven():
    run = Run("a", uneven=True)
    rows = drawing(group_drawings([run, Run("b")]), "load_by_replica").rows
    loads = [value for _, label, value in rows if label == "a"]
    assert max(loads) == pytest.approx(run.summary["overall"]["imbalance_served_tokens"])
    assert sum(loads) == pytest.approx(2)
    assert keys(group_drawings([Run("b")])) == []


@pytest.mark.parametrize("style", [*STYLES.values(), SCREEN], ids=lambda style: style.name)
def test_panels_and_legend_fit_into_every_figure(style):
    runs = [
        Run(
            f"variant {i} of some length",
            cache=True,
            classes=["a", "b", "c"],
            uneven=True,
            reuse=True,
            seed=i,
        )
        for i in range(3)
    ]
    for each in figures.drawings_of(runs):
        layout = each.make(style, "log").layout
        axes_px = layout.height - layout.margin.t - layout.margin.b
        assert layout.width == round(style.width_px)
        assert axes_px > 0.25 * layout.width
        domains = [layout[name].domain for name in layout if name.startswith("yaxis")]
        assert all(0 <= low < high <= 1 for low, high in domains), each.key


def test_points_and_the_page_are_written(tmp_path):
    run = Run("a", cache=True, classes=["<tab>", "agent"])
    plotted = figures.plot([run], tmp_path, formats=["html"], about="Said & done.")
    names = {path.name for path in plotted.files}
    assert {"cache_hits.csv", "kv_occupancy.csv", "by_class.csv", "ttft_by_class.csv"} <= names
    page = (tmp_path / "figures.html").read_text(encoding="utf-8")
    assert "<p>Said &amp; done.</p>" in page
    assert 'id="kv_occupancy"' in page
    (panel,) = [
        note.text
        for note in drawing(group_drawings([run]), "ttft_by_class")
        .make(SCREEN, "log")
        .layout.annotations
        if "tab" in note.text
    ]
    assert panel == "&lt;tab&gt;"
    with (tmp_path / "kv_occupancy.csv").open(newline="") as file:
        assert next(csv.reader(file)) == ["variant", "time_s", "in_use", "cached", "free"]


def test_one_class_is_drawn_without_the_others(tmp_path):
    run = Run("a", cache=True, classes=["tab", "agent"])
    run.itl = {"tab": run.itl["(none)"]}
    plotted = figures.plot([run], tmp_path, formats=["html"], request_class="tab")
    assert not any("by_class" in path.name for path in plotted.files)
