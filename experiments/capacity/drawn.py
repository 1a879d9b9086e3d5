"""Whether a run goes by its seed at all, as far as that can be said before anything is run."""

from __future__ import annotations

import pickle
from pathlib import Path

from experiments import cluster
from experiments.replications import replicate
from experiments.schema import Experiment
from experiments.workload import build_workload
from sim.step_time import PerReplica

_ROUTERS = ("round-robin", "least-outstanding")
"""Routers that are known to draw nothing; of others only two runs tell."""


def nothing_is_drawn(experiment: Experiment, folder: Path) -> bool:
    """Whether every seed gives the same run for certain; else two runs have to tell.

    That is so if the requests are the same with another seed (a recorded trace at its recorded
    times), and nothing that the cluster is made of draws: no failures, stragglers or predictor,
    no noise of step times, and routers of `_ROUTERS` only.

    Args:
        experiment: Resolved and checked.
        folder: Where its relative paths start.

    Raises:
        PhasewiseError: It cannot be built.
    """
    drawn_times = experiment.workload.arrivals.process in ("poisson", "gamma")
    if experiment.workload.preset is not None or drawn_times or _cluster_may_draw(experiment):
        return False
    built = cluster.build(experiment, folder)
    pools = (built.cluster.entry, built.cluster.decode)
    models = [spec.step_time for pool in pools if pool is not None for spec in pool.replicas]
    if any(isinstance(each, PerReplica) and getattr(each, "noise_cv", 1) for each in models):
        return False
    one, other = (
        build_workload(replicate(experiment, number), folder, built.max_model_len).trace
        for number in (0, 1)
    )
    return pickle.dumps(one) == pickle.dumps(other)


def _cluster_may_draw(experiment: Experiment) -> bool:
    routers = [experiment.router, experiment.decode_router]
    names = [each["name"] for each in routers if each is not None]
    parts = (experiment.failures, experiment.stragglers, experiment.predictor)
    return any(part is not None for part in parts) or not set(names) <= set(_ROUTERS)
