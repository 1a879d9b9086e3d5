"""What ``phasewise capacity`` does, for Python too."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from experiments.capacity import report
from experiments.capacity.choice import Candidate, Choice, choose, keys_said, splits_of
from experiments.capacity.evaluate import Evaluator, Tell
from experiments.capacity.goal import Goal, Term, read_goal
from experiments.capacity.highest import Edge, search_edges
from experiments.capacity.varied import LoadPlan, Varied, key_of, rate_of, with_keys
from experiments.config import Plan, load
from experiments.quantity import Quantity, read_quantity
from experiments.schema import Experiment
from experiments.tables import Comparison
from sim.errors import ConfigError

ATTAINMENT = 0.99
"""Share of requests that have to meet the config's SLO, where no goal is given."""


@dataclass(frozen=True)
class Found:
    """What a search found.

    Attributes:
        table: For people.
        values: For programs: all points and runs, and the cost.
        cost: In one line.
    """

    table: Comparison
    values: dict[str, Any]
    cost: str


@dataclass(frozen=True)
class Options:
    """How to search.

    Attributes:
        out: Folder that keeps every point.
        processes: Runs at a time.
        repeats: Runs near the edge, or of the best candidates.
        most_runs: Of a variant.
        precision: Relative width of a final bracket of rates.
        start: Where to begin; None for what the config says.
        tell: Given one line for each point.
    """

    out: Path
    processes: int = 1
    repeats: int = 5
    most_runs: int = 200
    precision: float = 0.02
    start: float | None = None
    tell: Tell = lambda text: None


def goal_of(plan: Plan, text: str | None, attainment: float = ATTAINMENT) -> Goal:
    """The goal that is given, or the SLO of the config met by a share of the requests.

    Raises:
        ConfigError: It cannot be read, or there is neither.
    """
    if text is not None:
        return read_goal(text)
    for each in plan.variants:
        if not any(value for value in each.slo.model_dump().values()):
            raise ConfigError(
                f"{plan.source}: capacity: {each.label} has no slo; give one, or a --goal such as "
                "'ttft_s.p99 <= 0.5'"
            )
    return read_goal(f"slo_attainment >= {attainment:g}")


def highest(
    config: str | Path | Mapping[str, Any],
    goal: str | None = None,
    *,
    options: Options,
    key: str | None = None,
    lowest: bool = False,
    attainment: float = ATTAINMENT,
    settings: Sequence[str] = (),
) -> Found:
    """The highest rate of each variant at which a goal holds, or the edge of a whole-numbered key.

    Args:
        config: As `experiments.config.load` takes it.
        goal: Such as ``ttft_s.p99 <= 0.5``; None for the config's SLO.
        options: How to search.
        key: Dotted key to search instead of the rate.
        lowest: Of `key`, the smallest value at which the goal holds: more of it helps.
        attainment: Of the SLO, without a goal.
        settings: ``key=value`` texts for every variant.

    Raises:
        PhasewiseError: One line.
    """
    option = "--lowest" if lowest else "--highest"
    plan, reload = _plan(config, settings, option)
    wanted = goal_of(plan, goal, attainment)
    _check_has(plan, wanted)
    if key is not None:
        _check_whole(plan, key, option)
    varied = _varied(plan, reload, key, lowest=lowest, options=options)
    evaluator = Evaluator(plan, wanted, options.out, options.processes)
    edges: list[Edge] = search_edges(
        varied,
        wanted,
        evaluator,
        repeats=options.repeats,
        most_runs=options.most_runs,
        tell=options.tell,
    )
    cost = report.cost_of(evaluator)
    table = report.edges_table(edges, wanted, highest=not lowest)
    return Found(table, report.edges_json(edges, wanted, cost), report.cost_said(cost))


def best(
    config: str | Path | Mapping[str, Any],
    by: str,
    *,
    options: Options,
    key: str | None = None,
    values: Sequence[int] = (),
    gpus: int | None = None,
    goal: str | None = None,
    settings: Sequence[str] = (),
) -> Found:
    """The best of several settings of each variant at the load of its config.

    Args:
        config: As `experiments.config.load` takes it.
        by: What is to be best, such as ``ttft_s.p99``.
        options: How to search.
        key: Dotted key of the settings, with its `values`.
        values: Of `key`.
        gpus: Instead: all splits of so many GPUs between the pools ``prefill`` and ``decode``.
        goal: What has to hold too; None for nothing.
        settings: ``key=value`` texts for every variant.

    Raises:
        PhasewiseError: One line.
    """
    plan, reload = _plan(config, settings, "--splits" if key is None else "--best")
    objective = read_quantity(by, "--by")
    if objective.metric.better == "neither":
        raise ConfigError(f"--by {by}: neither less nor more of it is better; try ttft_s.p99")
    wanted = None if goal is None else read_goal(goal)
    terms = () if wanted is None else wanted.terms
    # The objective is sampled as the first of all terms; it has no target.
    sampled = Goal((Term(objective, "<=", float("inf")), *terms))
    _check_has(plan, sampled)
    if key is not None:
        _check_whole(plan, key, "--best")
    evaluator = Evaluator(plan, sampled, options.out, options.processes)
    choices: list[Choice] = []
    for position, variant in enumerate(plan.variants):
        if gpus is not None:
            pairs = splits_of(variant, gpus, f"{plan.source}: {variant.label}")
            settings_of = [
                {"pools.prefill.replicas": first, "pools.decode.replicas": second}
                for first, second in pairs
            ]
        else:
            settings_of = [{str(key): value} for value in values]
        candidates = [
            Candidate(keys_said(keys), with_keys(reload, position, keys)) for keys in settings_of
        ]
        choices.append(
            choose(
                variant.label,
                candidates,
                objective,
                wanted,
                evaluator,
                repeats=options.repeats,
                tell=options.tell,
            )
        )
    cost = report.cost_of(evaluator)
    table = report.choice_table(choices, objective)
    return Found(
        table, report.choice_json(choices, objective, wanted, cost), report.cost_said(cost)
    )


def _check_has(plan: Plan, goal: Goal) -> None:
    """Refuse what needs prices or power before anything is run without them.

    Raises:
        ConfigError: A variant has no `cost`, or not what the goal needs of it.
    """
    for term in goal.terms:
        check_priced(plan.variants, term.quantity, f"{plan.source}: capacity")


def check_priced(variants: Sequence[Experiment], quantity: Quantity, where: str) -> None:
    """Refuse a quantity that needs prices or power of a variant without them.

    Args:
        variants: Resolved.
        quantity: What is asked for.
        where: File and option, for messages.

    Raises:
        ConfigError: A variant has no `cost`, or not what the quantity needs of it.
    """
    metric = quantity.metric
    needs = "power" if metric.key.startswith("energy") else "prices"
    if not metric.definition.endswith(("without prices.", "without power levels.")):
        return
    for each in variants:
        cost = each.cost
        has = cost is not None and bool(
            cost.power if needs == "power" else cost.sheet or cost.price_per_gpu_hour
        )
        if not has:
            such = "{power: ...}" if needs == "power" else "{sheet: runpod}"
            raise ConfigError(
                f"{where}: {quantity.text}: {each.label} has no {needs}; "
                f"give the config cost, such as {such}"
            )


def _check_whole(plan: Plan, key: str, option: str) -> None:
    """Refuse a key whose value is a text or a switch.

    Raises:
        ConfigError: No whole number can stand there.
    """
    for each in plan.variants:
        pools = (each.pools.colocated, each.pools.prefill, each.pools.decode)
        for holder in (each, *filter(None, pools)):
            value: Any = holder
            for name in key.split("."):
                inside = isinstance(value, Mapping)
                value = value.get(name) if inside else getattr(value, name, None)
            if isinstance(value, str | bool):
                raise ConfigError(
                    f"capacity: {option} {key}: is {value!r}; expected a key of whole numbers, "
                    "such as replicas, tensor_parallel or policy.budget_tokens"
                )


def _plan(
    config: str | Path | Mapping[str, Any], settings: Sequence[str], option: str
) -> tuple[Plan, LoadPlan]:
    """The plan, and how to read it again with other keys, which have the last word.

    What is wrong with those keys is said of the option that gave them.
    """

    def reload(keys: Mapping[str, Any]) -> Plan:
        more = [f"{key}={value}" for key, value in keys.items()]
        try:
            return load(config, [*settings, *more])
        except ConfigError as error:
            raise ConfigError(_of_option(str(error), keys, option)) from None

    return load(config, settings), reload


def _of_option(text: str, keys: Mapping[str, Any], option: str) -> str:
    """An error on one of `keys` with the option in the place of ``--set``."""
    for key in keys:
        if re.match(rf"--set:? {re.escape(key)}[:=.\[]", text):
            return f"{option} {text.removeprefix('--set').removeprefix(':').strip()}"
    return text


def _varied(
    plan: Plan, reload: LoadPlan, key: str | None, *, lowest: bool, options: Options
) -> list[tuple[str, Varied]]:
    if key is None:
        return [
            (each.label, rate_of(each, options.precision, options.start, _place(plan, each.label)))
            for each in plan.variants
        ]
    of = partial(key_of, key, reload, start=options.start, hard_is_high=not lowest)
    return [(each.label, of(at)) for at, each in enumerate(plan.variants)]


def _place(plan: Plan, label: str) -> str:
    return plan.source if len(plan.variants) == 1 else f"{plan.source}: variant {label}"
