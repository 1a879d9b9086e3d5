"""What is said of an edge or a choice: bounds, margins, plurals; nothing is simulated."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from experiments.capacity import report
from experiments.capacity.choice import Choice, Rated
from experiments.capacity.goal import read_goal
from experiments.capacity.highest import Edge, Point, said
from experiments.capacity.judge import Evaluation, behind, findings, judge, untold
from experiments.capacity.said import counted
from experiments.capacity.search import Scale
from experiments.capacity.varied import Varied
from experiments.quantity import Sample, read_quantity
from experiments.statistics.intervals import Refusal
from experiments.tables import show
from experiments.verdict import UNTOLD

GOAL = read_goal("slo_attainment >= 0.95")
NO_COST = {"points": 1, "runs": 5, "reused_runs": 0, "simulated_requests": 1, "simulate_s": 0.1}


def run(verdict: str, share: float = 1.0, seed: int = 0) -> Evaluation:
    met = (np.random.default_rng(seed).random(1000) < share).astype(np.float64)
    return Evaluation(verdict, (Sample(met, math.nan),), 37.0, 1000, 1.0, False, "out")


def point(value: float, *verdicts: str, share: float = 1.0) -> Point:
    runs = [run(verdict, share, seed) for seed, verdict in enumerate(verdicts)]
    judged, found = judge(runs, GOAL), tuple(findings(runs, GOAL))
    late, short = behind(runs), untold(runs)
    return Point(value, judged.meets, judged.clear, late, short, found, tuple(runs))


def edge(
    best: Point | None, miss: Point | None, *, key: str = "", lowest: bool = False, **more: Any
) -> Edge:
    scale = Scale(0, 1, 10**6, not lowest) if key else Scale(0.02, 1e-6, 1e6)
    unit = "" if key else "a second"
    varied = Varied(key or "rate", unit, 1, scale, lambda value: None)  # type: ignore[arg-type, return-value]
    points = tuple(each for each in (best, miss) if each is not None)
    known = {"settled": True, "drawn": True, "flat": False} | more
    return Edge("vLLM", varied, best, miss, points=points, **known)


def notes(found: Edge, *, highest: bool = True) -> str:
    return " ".join(report.edges_table([found], GOAL, highest=highest).notes)


def test_of_replicas_more_requests_can_only_lower_the_answer() -> None:
    found = edge(point(6, "stable"), point(5, UNTOLD), key="replicas", lowest=True)

    told = notes(found, highest=False)

    assert "vLLM: at most 6: the goal itself holds at 5 too (slo_attainment 1.00)" in told
    assert "may lower it" in told
    assert "raise" not in told
    assert report.edges_table([found], GOAL, highest=False).shown()[0][1] == "at most 6"
    values = report.edges_json([found], GOAL, {})["variants"]["vLLM"]
    assert (values["bound"], values["settled"]) == ("at most", False)


def test_of_a_rate_more_requests_can_only_raise_the_answer() -> None:
    found = edge(point(2.0, "stable"), point(2.04, UNTOLD))

    told = notes(found)

    assert "vLLM: at least 2 a second: the goal itself holds at 2.04 a second too" in told
    assert "1,000 requests come too fast there to tell whether they are kept up with" in told
    assert "may raise it" in told
    assert report.edges_table([found], GOAL, highest=True).shown()[0][1] == "at least 2.00"
    values = report.edges_json([found], GOAL, {})["variants"]["vLLM"]
    assert (values["bound"], values["settled"], values["value"]) == ("at least", False, 2.0)


def test_an_edge_that_the_verdict_alone_may_have_set_is_not_marked_as_best() -> None:
    by_verdict = edge(point(2.0, "stable"), point(2.04, "overloaded"), drawn=False)
    by_goal = edge(point(1.0, "stable"), point(1.02, "stable", share=0.8))
    by_overload = edge(point(2.0, *["stable"] * 3), point(2.04, *["overloaded"] * 3))

    marked = report.edges_table([by_overload, by_goal], GOAL, highest=True)
    unmarked = report.edges_table([by_verdict, by_goal], GOAL, highest=True)

    assert marked.best()[1] == {0}
    assert not any(unmarked.best())
    assert "No best value is marked: how long the runs are may have set the edge of vLLM." in (
        unmarked.notes
    )
    assert "more requests tell, and may raise it" in notes(by_verdict)
    assert "do not keep up with their arrivals there." in notes(by_overload)


def test_one_recorded_trace_is_one_sample_and_no_repeats_are_advised() -> None:
    told = notes(edge(point(2.0, "stable"), point(2.04, "stable", share=0.8), drawn=False))

    assert "one recorded trace is one sample" in told
    assert "noise leaves it open" not in told
    assert "no interval" not in told


def test_runs_too_short_to_tell_are_called_neither_overloaded_nor_backlogged() -> None:
    short = point(5, UNTOLD, "stable", "backlogged")

    assert (short.behind, short.untold, short.meets) == (1, 1, False)
    assert said(short).endswith(
        "(3 runs, 1 overloaded or backlogged, 1 too short to tell): misses the goal, not for "
        "certain"
    )
    values = report.edges_json([edge(None, short)], GOAL, {})["variants"]["vLLM"]["points"][0]
    assert (values["overloaded_or_backlogged"], values["too_short_to_tell"]) == (1, 1)


def rated(name: str, verdict: str) -> Rated:
    runs = tuple(run(verdict, seed=seed) for seed in range(3))
    able = verdict == "stable"
    return Rated(name, 1.0, able, behind(runs), untold(runs), Refusal(math.nan, "none"), runs)


def test_a_choice_says_which_settings_are_too_short_to_tell() -> None:
    quantity = read_quantity("slo_attainment", "--by")
    choice = Choice("vLLM", None, (rated("a=1", "overloaded"), rated("a=2", UNTOLD)))

    table = report.choice_table([choice], quantity)
    values = report.choice_json([choice], quantity, None, {})["variants"]["vLLM"]["candidates"]

    assert [column.heading for column in table.columns][3:5] == [
        "Overloaded or backlogged",
        "Too short to tell",
    ]
    assert [row[3:6] for row in table.rows] == [
        (3, 0, "not eligible"),
        (0, 3, "not eligible: too short to tell"),
    ]
    assert table.notes == (
        "vLLM: none keeps up and meets the goal, for all that can be told.",
        "vLLM: too short to tell whether they keep up are runs of a=2; give the workload more "
        "requests.",
    )
    assert [each["too_short_to_tell"] for each in values] == [0, 3]


@pytest.mark.parametrize("width", [80, 120])
def test_a_narrow_table_of_a_choice_loses_and_cuts_nothing(width: int) -> None:
    quantity = read_quantity("slo_attainment", "--by")
    name = "pools.prefill.replicas=1, pools.decode.replicas=23"
    choice = Choice("disaggregated", None, (rated(name, UNTOLD), rated("a=2", "stable")))
    console = Console(file=io.StringIO(), width=width)

    show(report.choice_table([choice], quantity), console)

    text = console.file.getvalue().partition("disaggregated: none")[0]  # type: ignore[attr-defined]
    tables = [part for part in text.split("─") if "disaggregated" in part]
    assert len(tables) == text.count("Variant")
    assert all("pools.decode.replicas=23" in part for part in tables)
    assert "not eligible: too" in text
    assert max(map(len, text.splitlines())) <= width


def test_down_to_and_up_to_and_why_a_search_ends_there() -> None:
    best = point(1, "stable")
    refused = {5.0: "5: odd", 8.0: "--highest replicas: 8: at most 4"}
    fewer = {2.0: "--lowest replicas: 2: at least 4", 3.0: "3: odd"}

    assert "met down to 1, the smallest there is." in notes(
        edge(best, None, key="replicas", lowest=True), highest=False
    )
    assert "met up to 1, the last one looked at." in notes(edge(best, None, key="replicas"))
    four = edge(point(4, "stable"), None, key="replicas", refused=refused)
    assert "up to 4, the last one allowed (--highest replicas: 8: at most 4)." in notes(four)
    down = edge(point(4, "stable"), None, key="replicas", lowest=True, refused=fewer)
    assert "down to 4, the last one allowed (--lowest replicas: 2: at least 4)." in notes(down)
    missed = edge(None, point(4, "stable", share=0.5), key="replicas", lowest=True, refused=refused)
    assert "missed even at 4, the last one allowed (--highest replicas: 8" in notes(missed)


def test_whole_numbers_and_single_things_are_written_as_such() -> None:
    found = edge(point(6, "stable"), point(5, "stable", share=0.5), key="replicas", lowest=True)

    shown = report.edges_table([found], GOAL, highest=False).shown()[0]

    assert (shown[1], shown[4]) == ("6", "5")
    assert report.cost_said(NO_COST).startswith("Search: 5 runs of 1 point; 1 request simulated")
    assert [counted(number, "run") for number in (0, 1, 2000)] == ["0 runs", "1 run", "2,000 runs"]


def test_a_goal_that_gets_worse_where_it_is_easier_may_have_its_sign_the_wrong_way_round() -> None:
    goal = read_goal("slo_attainment <= 0.5")
    found = [point(value, "stable", share=share) for value, share in ((1.0, 1.0), (2.0, 0.7))]
    turned = [replace(each, found=tuple(findings(each.runs, goal))) for each in found]
    missed = replace(edge(None, turned[0]), points=tuple(turned))
    falling = [point(value, "stable", share=share) for value, share in ((1.0, 0.7), (2.0, 0.4))]
    usual = replace(edge(None, falling[0]), points=tuple(falling))

    assert "slo_attainment <= 0.5 is missed by more there than at harder" in notes(missed)
    assert "wrong way round" not in notes(usual)
