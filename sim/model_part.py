"""Which part of a model one pipeline stage holds: `ModelPart`, and how layers are split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sim.errors import ConfigError
from sim.specs import ModelSpec


@dataclass(frozen=True)
class ModelPart:
    """Consecutive layers of a model, with what stands before the first and after the last.

    Attributes:
        layers: Decoder layers.
        embedding: It has the input embedding, so that steps begin here (the first stage).
        head: It has the last norm, the LM head and the sampler (the last stage).
        first: Layers before its own: the first ones of some mixtures of experts are dense.
    """

    layers: int
    embedding: bool = True
    head: bool = True
    first: int = 0

    def of(self, model: ModelSpec) -> ModelSpec:
        """The model with these layers only; its embedding and head are as they were."""
        if self.layers == model.layers:
            return model
        dense = min(max(0, model.dense_layers - self.first), self.layers)
        width = model.dense_intermediate if dense else 0
        return replace(model, layers=self.layers, dense_layers=dense, dense_intermediate=width)

    def embeddings(self, model: ModelSpec) -> int:
        """Matrices of vocabulary x hidden that it holds; tied ones are held by both their users."""
        if model.tied_embeddings:
            return int(self.embedding or self.head)
        return self.embedding + self.head


def whole(model: ModelSpec) -> ModelPart:
    """All of a model, as one stage."""
    return ModelPart(model.layers)


def split_layers(
    model: ModelSpec, stages: int, layers: Sequence[int] | None = None
) -> tuple[ModelPart, ...]:
    """The parts of a model on pipeline stages, first stage first.

    Layers that are left over by an even split go to the stages before the last one, which has the
    LM head, from the back (as vLLM's ``get_pp_indices`` in ``vllm/distributed/utils.py`` does).

    Args:
        model: Architecture.
        stages: Number of stages.
        layers: Layers of each stage, or None for an even split.

    Raises:
        ConfigError: More stages than layers, or a split that does not add up.
    """
    if not 1 <= stages <= model.layers:
        raise ConfigError(
            f"pipeline_parallel: {stages}: {model.name} has {model.layers} layers; "
            f"give 1 to {model.layers} stages"
        )
    split = _even(model.layers, stages) if layers is None else list(layers)
    if len(split) != stages or sum(split) != model.layers or min(split) < 1:
        raise ConfigError(
            f"stage_layers: {split}: expected {stages} numbers of at least 1 that add up to the "
            f"{model.layers} layers of {model.name}, such as {_even(model.layers, stages)}"
        )
    last = stages - 1
    return tuple(
        ModelPart(n, stage == 0, stage == last, sum(split[:stage])) for stage, n in enumerate(split)
    )


def _even(layers: int, stages: int) -> list[int]:
    each, left = divmod(layers, stages)
    return [each + (stages - 1 - left <= stage < stages - 1) for stage in range(stages)]
