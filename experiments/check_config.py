"""What a config's keys may say together: options that belong, files that are there.

Names, their options, and sizes that depend on each other (memory, heads by GPUs) are checked by
building the cluster.
"""

from __future__ import annotations

from pathlib import Path

from experiments import check_changes, cluster, scaling
from experiments.check_workload import check_workload
from experiments.cluster import Where
from experiments.cost import rates_of
from experiments.parts import NEED_PREDICTOR
from experiments.schema import Experiment
from sim.errors import ConfigError


def check(experiment: Experiment, where: Where, folder: Path) -> None:
    """Refuse what cannot be run, before anything is.

    Raises:
        ConfigError: One line with file, key, value and what would do.
    """
    check_workload(experiment.workload, where, folder)
    if experiment.decode_router is not None and experiment.pools.decode is None:
        raise ConfigError(f"{where('decode_router')}: there is no decode pool; try router")
    cluster.build(experiment, folder, where)
    scaling.check(experiment, where)
    check_changes.check(experiment, where)
    _check_transfers(experiment, where)
    _check_predictor(experiment, where)
    rates_of(experiment, where)


def _check_transfers(experiment: Experiment, where: Where) -> None:
    prefill, decode = experiment.pools.prefill, experiment.pools.decode
    if prefill is None or decode is None or prefill.precision.kv == decode.precision.kv:
        return
    place = where("pools", "decode", "precision", "kv")
    raise ConfigError(
        f"{place}: {decode.precision.kv}: the prefill pool keeps its KV in {prefill.precision.kv}, "
        "and transfers do not convert; give both the same"
    )


def _check_predictor(experiment: Experiment, where: Where) -> None:
    for pool in cluster.pools_of(experiment).values():
        order = pool.order.get("name")
        if order in NEED_PREDICTOR and experiment.predictor is None:
            place = where("predictor")
            choices = "bucket, noisy, oracle"
            raise ConfigError(f"{place}: is required by order {order}; choose one of {choices}")
