"""What a search found: as a table, as JSON, and what it has cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from experiments.capacity.choice import Choice, Rated
from experiments.capacity.evaluate import Evaluator
from experiments.capacity.goal import Goal, Term
from experiments.capacity.highest import Edge, Point
from experiments.capacity.judge import Finding, keeps_up
from experiments.capacity.said import counted
from experiments.notes import few
from experiments.quantity import Quantity
from experiments.statistics.intervals import Interval, Refusal
from experiments.statistics.pairs import Difference
from experiments.tables import Column, Comparison, three_digits
from experiments.verdict import UNTOLD

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
        f"Search: {counted(cost['runs'], 'run')}{reused} of {counted(cost['points'], 'point')}; "
        f"{counted(cost['simulated_requests'], 'request')} simulated in "
        f"{cost['simulate_s']:.1f} s of one core. No point and seed was run twice."
    )


# --- edges


def edges_table(edges: Sequence[Edge], goal: Goal, *, highest: bool) -> Comparison:
    """One row a variant: the edge, what holds there, and what does not beyond."""
    group = "Highest" if highest else "Lowest"
    better: Literal["lower", "higher", "neither"] = "higher" if highest else "lower"
    if any(edge.is_of_verdict for edge in edges):
        better = "neither"
    unit = edges[0].varied.unit or edges[0].varied.name
    columns = [
        Column("variant", "Variant", words=True),
        Column("value", group, unit, better),
        Column("arrival_rate", "Measured", "requests/s"),
        *(Column(f"term_{i}", "There", t.quantity.text, words=True) for i, t in _terms(goal)),
        Column("misses_at", "Misses at", unit),
        *(Column(f"miss_{i}", "There", t.quantity.text, words=True) for i, t in _terms(goal)),
        Column("runs", "Runs"),
    ]
    rows = [
        (
            edge.label,
            _value_said(edge),
            None if edge.best is None else edge.best.arrival_rate,
            *_findings_said(edge.best, goal),
            None if edge.next is None else _number(edge, edge.next),
            *_findings_said(edge.next, goal),
            sum(len(point.runs) for point in edge.points),
        )
        for edge in edges
    ]
    return Comparison(tuple(columns), tuple(rows), tuple(_edge_notes(edges, goal)))


def _number(edge: Edge, point: Point) -> float | int:
    """A value, of a whole-numbered key as one."""
    return int(point.value) if edge.varied.scale.whole else point.value


def _value_said(edge: Edge) -> str | float | int | None:
    """The answer, or the bound that it is."""
    if edge.best is None:
        return None
    value = _number(edge, edge.best)
    if not edge.is_bound:
        return value
    return f"{_least(edge)} {three_digits(value) if isinstance(value, float) else f'{value:,}'}"


def _least(edge: Edge) -> str:
    return "at least" if edge.varied.scale.hard_is_high else "at most"


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
    if len(edges) > 1 and (short := [edge.label for edge in edges if edge.is_of_verdict]):
        notes.append(
            f"No best value is marked: how long the runs are may have set the edge of {few(short)}."
        )
    for edge in edges:
        notes += _of_edge(edge)
    return notes


def _of_edge(edge: Edge) -> list[str]:
    notes = [*_missed_at_all(edge), *_met_at_all(edge), *_of_sessions(edge), *_of_verdict(edge)]
    if edge.best is None:
        return notes
    name, said = edge.label, edge.varied.said
    if edge.next is not None and (refusal := edge.refusal) is not None:
        notes.append(f"{name}: between them nothing is allowed ({refusal[1]}).")
    if not edge.settled:
        notes.append(f"{name}: not settled: the runs are used up (--runs).")
    if not edge.drawn:
        return [*notes, f"{name}: {ONE_SAMPLE}."]
    ends = [point for point in (edge.best, edge.next) if point is not None]
    doubtful = [said(point.value) for point in ends if not point.clear]
    if edge.settled and doubtful and edge.next is not None:
        at = " and ".join(doubtful)
        notes.append(f"{name}: at {at} noise leaves it open; --repeats, or more requests, tell.")
    refusals = {
        str(found.interval): None
        for point in ends
        for found in point.found
        if isinstance(found.interval, Refusal) and keeps_up(point.runs)
    }
    if edge.next is not None:
        notes += [f"{name}: no interval: {why}." for why in refusals]
    return notes


ONE_SAMPLE = (
    "one run of a value says all that --repeats could: nothing is drawn, and one recorded trace is "
    "one sample; other requests, or more of them, would move the answer"
)


def _missed_at_all(edge: Edge) -> list[str]:
    """What is said where nothing meets the goal."""
    if edge.best is not None:
        return []
    assert edge.next is not None
    why = "; easier values give the same numbers, so that it cannot be met so" * edge.flat
    last = "" if edge.refusal is None else f", the last one allowed ({edge.refusal[1]})"
    at = edge.varied.said(edge.next.value)
    notes = [f"{edge.label}: the goal is missed even at {at}{last}{why}."]
    return notes + [
        f"{edge.label}: {term} is missed by more there than at harder values; its sign may be the "
        "wrong way round."
        for term in _terms_worse_where_easier(edge)
    ]


def _terms_worse_where_easier(edge: Edge) -> list[Term]:
    """Terms that the easiest value misses by more than the hardest: by a tenth of the target."""
    easiest, *_, hardest = sorted(  # the last one twice: there may be no other
        [*edge.points, edge.points[-1]],
        key=lambda point: point.value,
        reverse=not edge.varied.scale.hard_is_high,
    )
    found = []
    for easy, hard in zip(easiest.found, hardest.found, strict=True):
        sign = 1 if easy.term.relation.startswith("<") else -1
        worse = sign * (easy.value - hard.value)
        if not easy.meets and math.isfinite(worse) and worse > 0.1 * abs(easy.term.target):
            found.append(easy.term)
    return found


def _met_at_all(edge: Edge) -> list[str]:
    """What is said where nothing misses the goal."""
    if edge.next is not None:
        return []
    assert edge.best is not None
    scale, value = edge.varied.scale, edge.best.value
    last = "the last one looked at"
    if edge.refusal is not None:
        last = f"the last one allowed ({edge.refusal[1]})"
    elif scale.harder(value) is None:
        last = f"the {'largest' if scale.hard_is_high else 'smallest'} there is"
    way = "up" if scale.hard_is_high else "down"
    return [f"{edge.label}: the goal is met {way} to {edge.varied.said(value)}, {last}."]


def _of_verdict(edge: Edge) -> list[str]:
    """What is said where the goal itself holds at the value that ends the search."""
    point = edge.next
    if point is None or not point.meets_goal_itself:
        return []
    numbers = ", ".join(f"{f.term.quantity.text} {three_digits(f.value)}" for f in point.found)
    best = edge.best
    answer = f"{_least(edge)} {edge.varied.said(best.value)}: " if best and edge.is_bound else ""
    way = "raise" if edge.varied.scale.hard_is_high else "lower"
    more = f"; more requests tell, and may {way} it" if edge.is_of_verdict else ""
    return [
        f"{edge.label}: {answer}the goal itself holds at {edge.varied.said(point.value)} too "
        f"({numbers}); what ends it is that {_why_not(point)}{more}."
    ]


def _why_not(point: Point) -> str:
    """What keeps runs that meet a goal from counting."""
    if point.untold:
        arrived = counted(point.runs[0].arrived, "request")
        return f"{arrived} come too fast there to tell whether they are kept up with"
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
                "bound": _least(edge) if edge.best is not None and edge.is_bound else None,
                "settled": edge.settled and not edge.is_bound,
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
        "too_short_to_tell": point.untold,
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
    rated = [(choice, each) for choice in choices for each in choice.rated]
    short = any(each.untold for _, each in rated)
    columns = (
        Column("variant", "Variant", words=True),
        Column("setting", "Setting", words=True),
        Column("objective", objective.text, "", objective.metric.better),
        Column("behind", "Overloaded", "or backlogged"),
        *[Column("untold", "Too short", "to tell")] * short,
        Column("against", "Against the best", words=True),
        Column("runs", "Runs"),
    )
    rows = [
        (
            choice.label,
            each.name,
            each.value if math.isfinite(each.value) else None,
            each.behind,
            *[each.untold] * short,
            _against_said(choice, each, objective),
            len(each.runs),
        )
        for choice, each in rated
    ]
    unranked = frozenset(row for row, (_, each) in enumerate(rated) if not each.eligible)
    return Comparison(columns, tuple(rows), tuple(_choice_notes(choices)), unranked, leading=2)


def _against_said(choice: Choice, rated: Rated, objective: Quantity) -> str:
    if rated.name == choice.best:
        return "best"
    said = ""
    if isinstance(rated.against_best, Difference):
        better = objective.metric.better
        said = rated.against_best.said(better, of_time=objective.of_time)
    if rated.eligible:
        return said
    why = f"not eligible: {UNTOLD}" if rated.untold else "not eligible"
    return f"{said}; {why}".lstrip("; ")


def _choice_notes(choices: Sequence[Choice]) -> list[str]:
    notes = []
    for choice in choices:
        others = f", not separable from {'; '.join(choice.ties)}" if choice.ties else ""
        if choice.best is None:
            sure = ", for all that can be told" if choice.short else ""
            notes.append(f"{choice.label}: none keeps up and meets the goal{sure}.")
        elif not choice.drawn:
            notes.append(f"{choice.label}: {choice.best}; {ONE_SAMPLE}.")
        else:
            notes.append(f"{choice.label}: {choice.best}{others}.")
        if choice.short:
            which = "; ".join(choice.short)
            notes.append(
                f"{choice.label}: too short to tell whether they keep up are runs of {which}; give "
                "the workload more requests."
            )
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
        "too_short_to_tell": rated.untold,
        "difference": interval_json(
            against.interval if isinstance(against, Difference) else against
        ),
        "runs": [{"verdict": run.verdict, "folder": run.folder} for run in rated.runs],
    }
