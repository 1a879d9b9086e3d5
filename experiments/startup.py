"""How replicas of a pool start, from its keys `restart`."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from experiments.schema import Pool
from sim.architecture import ModelSpec
from sim.errors import ConfigError
from sim.metrics import NS_PER_S
from sim.model_part import ModelPart
from sim.specs import weight_bytes
from sim.startup import Startup, WarmUp, load_ns


def exact(number: float) -> Fraction:
    """The decimal number that was written, which a float only comes near."""
    return Fraction(str(number))


def of_pool(pool: Pool, model: ModelSpec, stages: Sequence[ModelPart], where: str) -> Startup:
    """How a replica of the pool starts.

    Args:
        pool: As validated.
        model: What its GPUs load.
        stages: What each stage of the pipeline holds.
        where: The key, for messages.

    Raises:
        ConfigError: Two times to load are given.
    """
    said, warm = pool.restart, pool.restart.warm_up
    if said.load_s is not None and said.weights_bytes_per_s is not None:
        raise ConfigError(f"{where}: load_s and weights_bytes_per_s: give one of them")
    loading_ns = round((said.load_s or 0) * NS_PER_S)
    if said.weights_bytes_per_s is not None:
        loading_ns = load_ns(_most_weights(pool, model, stages), said.weights_bytes_per_s)
    first_pass_ns = round(warm.first_pass_s * NS_PER_S)
    return Startup(loading_ns, WarmUp(warm.iterations, exact(warm.factor), first_pass_ns))


def _most_weights(pool: Pool, model: ModelSpec, stages: Sequence[ModelPart]) -> float:
    """Bytes of the GPU with most weights."""
    parts = stages if len(stages) > 1 else [None]
    return max(
        weight_bytes(
            model,
            pool.precision.weights,
            pool.tensor_parallel,
            pool.data_parallel_attention,
            part,
        )
        for part in parts
    )
