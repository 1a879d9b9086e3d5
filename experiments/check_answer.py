"""Classes, tenants and pools that an answer names, checked before a run."""

from __future__ import annotations

from experiments import cluster
from experiments.config import Plan
from experiments.explain import in_file
from experiments.schema import Experiment
from experiments.workload import Workload, build_workload
from sim.errors import ConfigError
from sim.slo import distinct_names


def check_answer(plan: Plan) -> None:
    """Refuse an answer on a class, tenant or pool that its variant does not have.

    Raises:
        ConfigError: One line with the nearest that it has.
    """
    if plan.answer is None:
        return
    from experiments.answer import check_names

    references = [each for each in plan.answer.references if each.group]
    names: dict[tuple[str, str], list[str]] = {}
    for experiment in plan.variants:
        if all(each.variant != experiment.label for each in references):
            continue
        limit = cluster.build(experiment, plan.folder).max_model_len
        trace = planned_workload(plan, experiment, limit).trace
        for group, column in (("classes", trace.request_class), ("tenants", trace.tenant)):
            names[experiment.label, group] = distinct_names(column, len(trace))
        roles = cluster.pools_of(experiment) if experiment.cost else ()
        names[experiment.label, "pools"] = [cluster.POOL_NAMES[role] for role in roles]
    check_names(references, names, f"{plan.source}: answer")


def planned_workload(plan: Plan, experiment: Experiment, max_model_len: int | None) -> Workload:
    """The workload of a variant, for a check before any run.

    Raises:
        PhasewiseError: As `build_workload`, with the config's file in front of its keys.
    """
    try:
        return build_workload(experiment, plan.folder, max_model_len)
    except ConfigError as error:
        raise ConfigError(in_file(plan.source, error)) from None
