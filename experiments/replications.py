"""Runs that differ in nothing but their seed."""

from __future__ import annotations

import numpy as np

from experiments.schema import Experiment


def seed_of(seed: int, replication: int) -> int:
    """The seed of a replication: that of the config for number 0, else one derived from both.

    The same in every variant, so that replication k of each serves the same requests at the same
    times (common random numbers). Not ``seed + k``, with which replication 1 of seed 0 would be
    replication 0 of seed 1, and not independent of it.

    Args:
        seed: Of the config.
        replication: From 0 up.
    """
    if not replication:
        return seed
    word = np.random.SeedSequence([seed, replication]).generate_state(1, np.uint64)[0]
    return int(word) >> 1  # seeds of a config are below 2^63


def replicate(experiment: Experiment, replication: int) -> Experiment:
    """The experiment of one replication: a run of its own."""
    changed = {"seed": seed_of(experiment.seed, replication), "replications": 1}
    return experiment.model_copy(update=changed)
