"""How the GPUs of a replica share a model: `ParallelLayout`."""

from __future__ import annotations

from dataclasses import dataclass

from sim.architecture import ModelSpec
from sim.experts import ExpertLoad
from sim.specs import check_experts, check_tensor_parallel


@dataclass(frozen=True)
class ParallelLayout:
    """Tensor parallelism, and for mixtures of experts what differs from it.

    With ``data_attention`` groups each attends its own requests and holds all weights but those of
    routed experts; every token is sent to the GPUs that hold its experts and its outputs are sent
    back. Groups are taken as equally loaded: nothing says which of them a request is on.

    Attributes:
        tensor: GPUs of the replica (of one pipeline stage).
        expert: Of them, how many hold experts of their own; ``tensor / expert`` GPUs share each
            expert. 1 cuts every expert over all GPUs.
        data_attention: Equal groups of them that attend apart; above 1 only with
            ``expert == tensor``.
        imbalance: Exponent of Zipf's law of the experts' popularity, 0 for even
            (`sim.experts`).
    """

    tensor: int = 1
    expert: int = 1
    data_attention: int = 1
    imbalance: float = 0.0

    @property
    def attention_tensor(self) -> int:
        """GPUs over which attention, dense layers, shared experts and LM head are cut."""
        return self.tensor // self.data_attention

    @property
    def expert_tensor(self) -> int:
        """GPUs over which one expert is cut."""
        return self.tensor // self.expert

    def check(self, model: ModelSpec) -> None:
        """Refuse what does not come out even.

        Raises:
            ConfigError: naming the key and the sizes that would do.
        """
        check_tensor_parallel(model, self.tensor, self.data_attention)
        check_experts(model, self.tensor, self.expert, self.data_attention)

    def load(self, model: ModelSpec) -> ExpertLoad:
        """How tokens spread over experts, and these over GPUs.

        Raises:
            ConfigError: an imbalance out of range.
        """
        return ExpertLoad(model, self.expert, self.imbalance)

    def __str__(self) -> str:
        """What is assumed, for a summary; empty for tensor parallelism alone."""
        told = []
        if self.expert > 1:
            told.append(
                f"experts spread over {self.expert} GPUs, of which the one with most to do, "
                "in expectation, sets the pace"
            )
        if self.expert > 1 or self.imbalance:
            told.append(
                f"experts popular by Zipf's law with exponent {self.imbalance:g}"
                if self.imbalance
                else "all experts equally popular"
            )
        if self.data_attention > 1:
            told.append(
                f"{self.data_attention} groups of GPUs attend apart, taken as equally loaded; "
                "tokens go to their experts and back in two all-to-alls of bf16"
            )
        return "; ".join(told)
