"""What a search found: as a table, as JSON, and what it has cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.capacity.choice import Choice, Rated
from experiments.capacity.evaluate import Evaluator
from experiments.capacity.goal import Goal
from experiments.capacity.highest import Edge, Point
from experiments.capacity.judge import UNTOLD, Evaluation, Finding, keeps_up
from experiments.quantity import Quantity
from experiments.statistics.intervals import Interval, Refusal
from experiments.statistics.pairs import Difference
from experiments.tables import Column, Comparison, three_digits

_LEAST_SESSIONS = 3
"""Mean lengths of a session for which sessions have to begin, so that as many end as begin."""


def cost_of(evaluator: Evaluator) -> dict[str, Any]:
    """What the search has cost.

    Returns:
        Points and runs, those taken over from an earlier search, requests simulated, and seconds
        of simulation, both of the runs that were made now.
    """
    runs = list(evaluator.done.values())
    made = [run for run in runs if not run.reused]
    return {
        "points": len({key[:2] for key in evaluator.done}),
        "runs": len(runs),
        "reused_runs": len(runs) - len(made),
        "simulated_requests": sum(run.arrived for run in made),
        "simulate_s": math.fsum(run.simulate_s for run in made),
    }


def cost_said(cost: Mapping[str, Any]) -> str:
    """The cost in one line."""
    reused = f" ({cost['reused_runs']} of them from before)" if cost["reused_runs"] else ""
    return (
        f"Search: {cost['runs']} runs{reused} of {cost['points']} points; "
        f"{cost['simulated_requests']:,} requests simulated in {cost['simulate_s']:.1f} s of one "
        "core. No point and seed was run twice."
    )


# --- edges


def edges_table(edges: Sequence[Edge], goal: Goal, *, highest: bool) -> Comparison:
    """One row a variant: the edge, what holds there, and what does not beyond."""
    group = "Highest" if highest else "Lowest"
    unit = edges[0].varied.unit or edges[0].varied.name
    columns = [
        Column("variant", "Variant", words=True),
        Column("value", group, unit, "higher" if highest else "lower"),
        Column("arrival_rate", "Measured", "requests/s"),
        *(Column(f"term_{i}", "There", t.quantity.text, words=True) for i, t in _terms(goal)),
        Column("misses_at", "Misses at", unit),
        *(Column(f"miss_{i}", "There", t.quantity.text, words=True) for i, t in _terms(goal)),
        Column("runs", "Runs"),
    ]
    rows = [
        (
            edge.label,
            None if edge.best is None else edge.best.value,
            None if edge.best is None else edge.best.arrival_rate,
            *_findings_said(edge.best, goal),
            None if edge.next is None else edge.next.value,
            *_findings_said(edge.next, goal),
            sum(len(point.runs) for point in edge.points),
        )
        for edge in edges
    ]
    return Comparison(tuple(columns), tuple(rows), tuple(_edge_notes(edges, goal)))


def _terms(goal: Goal) -> Any:
    return enumerate(goal.terms)


def _findings_said(point: Point | None, goal: Goal) -> list[str | None]:
    if point is None:
        return [None] * len(goal.terms)
    return [_number_said(each) for each in point.found]


def _number_said(finding: Finding) -> str:
    value = "never served" if math.isinf(finding.value) else three_digits(finding.value)
    if isinstance(finding.interval, Refusal):
        return value
    low, high = finding.interval.low, finding.interval.high
    return f"{value} ({three_digits(low)} to {three_digits(high)})"


def _edge_notes(edges: Sequence[Edge], goal: Goal) -> list[str]:
    notes = [f"Goal: {goal}, no run overloaded, and at most half of them backlogged."]
    if any(isinstance(found.interval, Interval) for found in _ends(edges)):
        notes.append("In parentheses: 95 % confidence intervals.")
    for edge in edges:
        notes += _of_edge(edge)
    return notes


def _of_edge(edge: Edge) -> list[str]:
    name, said = edge.label, edge.varied.said
    if edge.best is None:
        assert edge.next is not None
        easiest = edge.next
        why = "; easier values give the same numbers, so that it cannot be met so" * edge.flat
        return [f"{name}: the goal is missed even at {said(easiest.value)}{why}."]
    if edge.next is None:
        most = f"{name}: the goal is met up to {said(edge.best.value)}, the last one looked at."
        return [most, *_of_sessions(edge)]
    notes = [*_of_sessions(edge)]
    if all(found.meets for found in edge.next.found):
        notes.append(
            f"{name}: the goal itself holds at {said(edge.next.value)} too; what ends it is that "
            f"{_why_not(edge.next.runs)}."
        )
    if not edge.settled:
        notes.append(f"{name}: not settled: the runs are used up (--runs).")
    doubtful = [said(point.value) for point in (edge.best, edge.next) if not point.clear]
    if not edge.drawn:
        return [
            *notes,
            f"{name}: one run of a value says all: nothing is drawn, as with recorded arrivals.",
        ]
    if edge.settled and doubtful:
        at = " and ".join(doubtful)
        notes.append(f"{name}: at {at} noise leaves it open; --repeats, or more requests, tell.")
    refusals = {
        str(found.interval): None
        for point in (edge.best, edge.next)
        for found in point.found
        if isinstance(found.interval, Refusal) and keeps_up(point.runs)
    }
    notes += [f"{name}: no interval: {why}." for why in refusals]
    return notes


def _why_not(runs: Sequence[Evaluation]) -> str:
    """What keeps runs that meet a goal from counting."""
    if any(run.verdict == UNTOLD for run in runs):
        return (
            f"{runs[0].arrived:,} requests come too fast there to tell whether they are kept up "
            "with; give the workload more requests for the true edge, which is not below this one"
        )
    return "runs do not keep up with their arrivals there"


def _of_sessions(edge: Edge) -> list[str]:
    """A warning where sessions are too few for the load of their rate to build up."""
    point = edge.best
    if point is None or math.isnan(point.runs[0].begins_s):
        return []
    begins_s, session_s = (
        math.fsum(values) / len(point.runs)
        for values in (
            [run.begins_s for run in point.runs],
            [run.session_s for run in point.runs],
        )
    )
    if not begins_s < _LEAST_SESSIONS * session_s:
        return []
    needed = _LEAST_SESSIONS * session_s / max(begins_s, 1e-9) * point.runs[0].arrived
    more = f"; give it {needed:,.0f} requests" if needed < 1e9 else ""
    return [
        f"{edge.label}: {edge.varied.said(point.value)} is not sustained: all sessions begin "
        f"within {begins_s:.3g} s and last {session_s:.3g} s on average, so that the load of such "
        f"a rate never builds up{more}."
    ]


def _ends(edges: Sequence[Edge]) -> list[Finding]:
    points = [point for edge in edges for point in (edge.best, edge.next) if point is not None]
    return [found for point in points for found in point.found]


def edges_json(edges: Sequence[Edge], goal: Goal, cost: Mapping[str, Any]) -> dict[str, Any]:
    """All that was found, with every point and run."""
    return {
        "goal": str(goal),
        "variants": {
            edge.label: {
                "key": edge.varied.name,
                "unit": edge.varied.unit,
                "value": None if edge.best is None else edge.best.value,
                "arrival_rate_requests_per_s": (
                    None if edge.best is None else _or_none(edge.best.arrival_rate)
                ),
                "misses_at": None if edge.next is None else edge.next.value,
                "settled": edge.settled,
                "points": [_point_json(point) for point in edge.points],
            }
            for edge in edges
        },
        "cost": dict(cost),
    }


def _point_json(point: Point) -> dict[str, Any]:
    return {
        "value": point.value,
        "meets": point.meets,
        "clear": point.clear,
        "overloaded_or_backlogged": point.behind,
        "terms": [
            {"term": str(each.term), "value": _or_none(each.value)} | interval_json(each.interval)
            for each in point.found
        ],
        "runs": [{"verdict": run.verdict, "folder": run.folder} for run in point.runs],
    }


def interval_json(interval: Interval | Refusal) -> dict[str, Any]:
    """An interval, or why there is none."""
    if isinstance(interval, Refusal):
        return {"no_interval": str(interval)}
    return {
        "low": interval.low,
        "high": interval.high,
        "confidence": interval.confidence,
        "method": interval.method,
    }


def _or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None


# --- choices


def choice_table(choices: Sequence[Choice], objective: Quantity) -> Comparison:
    """One row a candidate, the best marked in words, the others against it."""
    columns = (
        Column("variant", "Variant", words=True),
        Column("setting", "Setting", words=True),
        Column("objective", objective.text, "", objective.metric.better),
        Column("behind", "Overloaded", "or backlogged"),
        Column("against", "Against the best", words=True),
        Column("runs", "Runs"),
    )
    rows = [
        (
            choice.label,
            each.name,
            each.value if math.isfinite(each.value) else None,
            each.behind,
            _against_said(choice, each, objective),
            len(each.runs),
        )
        for choice in choices
        for each in choice.rated
    ]
    unable = [not each.eligible for choice in choices for each in choice.rated]
    unranked = frozenset(row for row, is_unable in enumerate(unable) if is_unable)
    return Comparison(columns, tuple(rows), tuple(_choice_notes(choices)), unranked, leading=2)


def _against_said(choice: Choice, rated: Rated, objective: Quantity) -> str:
    if rated.name == choice.best:
        return "best"
    said = ""
    if isinstance(rated.against_best, Difference):
        better = objective.metric.better
        said = rated.against_best.said(better, of_time=objective.of_time)
    return said if rated.eligible else f"{said}; not eligible".lstrip("; ")


def _choice_notes(choices: Sequence[Choice]) -> list[str]:
    notes = []
    for choice in choices:
        if choice.best is None:
            notes.append(f"{choice.label}: none keeps up and meets the goal.")
        elif choice.ties:
            others = "; ".join(choice.ties)
            notes.append(f"{choice.label}: {choice.best}, not separable from {others}.")
        else:
            notes.append(f"{choice.label}: {choice.best}.")
    return notes


def choice_json(
    choices: Sequence[Choice], objective: Quantity, goal: Goal | None, cost: Mapping[str, Any]
) -> dict[str, Any]:
    """All that was found, with every candidate and run."""
    return {
        "objective": objective.text,
        "goal": None if goal is None else str(goal),
        "variants": {
            choice.label: {
                "best": choice.best,
                "not_separable": choice.ties,
                "candidates": [_rated_json(each) for each in choice.rated],
            }
            for choice in choices
        },
        "cost": dict(cost),
    }


def _rated_json(rated: Rated) -> dict[str, Any]:
    against = rated.against_best
    return {
        "setting": rated.name,
        "value": _or_none(rated.value),
        "eligible": rated.eligible,
        "overloaded_or_backlogged": rated.behind,
        "difference": interval_json(
            against.interval if isinstance(against, Difference) else against
        ),
        "runs": [{"verdict": run.verdict, "folder": run.folder} for run in rated.runs],
    }
