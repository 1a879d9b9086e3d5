"""FLOPs and bytes that the tokens of a run need, for MFU and MBU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sim.experts import ExpertLoad
from sim.metrics import NS_PER_S, Floats, Ints, ReplicaFacts, Requests, per_second
from sim.specs import DeviceSpec, ModelSpec, kv_bytes_per_token, weight_bits, weight_bytes
from sim.step_cost import prefill_pair_flops


@dataclass(frozen=True)
class Hardware:
    """What one replica runs on.

    Attributes:
        device: Its GPUs.
        tensor_parallel: How many of them, in each stage.
        precision: Of the weights.
        kv_dtype: Of the KV memory.
        data_attention: Groups of them that attend apart.
        pipeline_parallel: Stages.
        zipf: How uneven experts' popularity is (`sim.experts`); 0 for even.
    """

    device: DeviceSpec
    tensor_parallel: int = 1
    precision: str = "bf16"
    kv_dtype: str = "bf16"
    data_attention: int = 1
    pipeline_parallel: int = 1
    zipf: float = 0.0

    @property
    def gpus(self) -> int:
        """GPUs of all stages."""
        return self.tensor_parallel * self.pipeline_parallel


@dataclass(frozen=True)
class RoutedExperts:
    """What an iteration of one replica reads of the experts among which a router chooses.

    Attributes:
        load: How many of a layer's experts some rows touch.
        bytes_each: Of one expert in every layer that has experts, over all GPUs.
    """

    load: ExpertLoad
    bytes_each: float

    def unread_bytes(self, replica: ReplicaFacts) -> float:
        """Bytes of experts that the replica's iterations are expected to leave unread.

        Raises:
            ValueError: The iterations by their rows are not known, as in a bundle read back.
        """
        counted = sum(count for _, count in replica.iterations_by_rows)
        if counted != replica.iterations:
            raise ValueError(
                f"{replica.name}: rows of {counted} of {replica.iterations} iterations are known"
            )
        experts = self.load.model.experts
        unread = sum(
            count * (experts - self.load.touched(rows))
            for rows, count in replica.iterations_by_rows
        )
        return self.bytes_each * unread


@dataclass(frozen=True)
class ModelWork:
    """What a model costs per token and what the GPUs of a run could do.

    Attributes:
        flops_per_token: Linear layers, per token computed.
        flops_per_pair: Attention, per (query token, key token) pair.
        flops_per_sample: LM head, per token emitted.
        kv_bytes_per_token: Read once per token of context by a decode, written once per token.
        weight_bytes: Read per iteration of each replica, over all its GPUs, in order of replica;
            with all experts.
        peak_flops_per_s: Dense peak of all GPUs together.
        peak_bytes_per_s: Memory bandwidth of all GPUs together.
        routed: Which of those weights may stay unread, in order of replica; empty for a dense
            model.
    """

    flops_per_token: float
    flops_per_pair: float
    flops_per_sample: float
    kv_bytes_per_token: float
    weight_bytes: tuple[float, ...]
    peak_flops_per_s: float
    peak_bytes_per_s: float
    routed: tuple[RoutedExperts, ...] = ()


def model_work(
    model: ModelSpec, replicas: Sequence[Hardware], there: Sequence[float] | Floats | None = None
) -> ModelWork:
    """Derive the costs from the architecture, and the peaks from the data sheets.

    A mixture of experts counts the experts of each token in FLOPs, and in bytes those that the rows
    of each iteration are expected to touch. Where KV types differ between pools, that of the last
    replica counts, which is one that decodes.
    A replica that was there for a part of the span (`there`; None: all for all of it) counts in the
    peaks with that share.
    Latent attention counts as in a prefill, with keys and values of each head: what the model
    needs, of which a decode over latents computes more. Each GPU reads all of the latents.
    """
    last = replicas[-1]
    shares = [1.0] * len(replicas) if there is None else [float(share) for share in there]
    readers = last.tensor_parallel // last.data_attention if model.latent else 1
    return ModelWork(
        flops_per_token=2.0 * model.active_linear_weights,
        flops_per_pair=prefill_pair_flops(model),
        flops_per_sample=2.0 * model.vocab * model.hidden,
        kv_bytes_per_token=float(readers * kv_bytes_per_token(model, last.kv_dtype)),
        weight_bytes=tuple(_bytes_per_iteration(model, hardware) for hardware in replicas),
        peak_flops_per_s=sum(
            share * hardware.gpus * hardware.device.peak_flops(hardware.precision)
            for share, hardware in zip(shares, replicas, strict=True)
        ),
        peak_bytes_per_s=sum(
            share * hardware.gpus * hardware.device.memory_bytes_per_s
            for share, hardware in zip(shares, replicas, strict=True)
        ),
        routed=tuple(_routed(model, each) for each in replicas) if model.experts else (),
    )


def _routed(model: ModelSpec, hardware: Hardware) -> RoutedExperts:
    each = model.expert_layers * model.expert_weights * weight_bits(hardware.precision) / 8
    return RoutedExperts(ExpertLoad(model, zipf=hardware.zipf), each)


def _bytes_per_iteration(model: ModelSpec, hardware: Hardware) -> float:
    # Of the input embedding only the rows of the batch's tokens are read; as an LM head all are.
    # Pipeline stages together read what one would.
    tp, groups = hardware.tensor_parallel, hardware.data_attention
    looked_up = 0 if model.tied_embeddings else groups * 2 * model.vocab * model.hidden
    return float(tp * weight_bytes(model, hardware.precision, tp, groups) - looked_up)


def useful_flops(requests: Requests, work: ModelWork) -> float:
    """FLOPs that the emitted tokens need, each token computed once."""
    prompt, emitted = _served(requests)
    cached = np.minimum(requests["cached_tokens"][requests["emitted_tokens"] > 0], prompt)
    held = prompt + emitted - 1
    pairs = (held * (held + 1) - cached * (cached + 1)) // 2
    return (
        work.flops_per_token * float((held - cached).sum())
        + work.flops_per_pair * float(pairs.sum())
        + work.flops_per_sample * float(emitted.sum())
    )


def moved_bytes(requests: Requests, work: ModelWork, replicas: Sequence[ReplicaFacts]) -> float:
    """Bytes of weights and KV that the iterations move; activations and prefill reads left out."""
    prompt, emitted = _served(requests)
    decodes = emitted - 1
    # The decode that emits token k attends to p + k - 1 tokens, k = 2 .. emitted.
    contexts = decodes * prompt + decodes * (decodes + 1) // 2
    kv_tokens = float(contexts.sum()) + float((prompt + decodes).sum())
    weights = sum(
        replica.iterations * each for replica, each in zip(replicas, work.weight_bytes, strict=True)
    )
    if work.routed:
        weights -= sum(
            routed.unread_bytes(each) for routed, each in zip(work.routed, replicas, strict=True)
        )
    return weights + work.kv_bytes_per_token * kv_tokens


def _served(requests: Requests) -> tuple[Ints, Ints]:
    served = requests["emitted_tokens"] > 0
    return requests["prompt_tokens"][served], requests["emitted_tokens"][served]


def mfu(requests: Requests, work: ModelWork, span_ns: tuple[int, int]) -> float:
    """Model FLOPs utilisation over the span, a share; NaN over no time."""
    seconds = (span_ns[1] - span_ns[0]) / NS_PER_S
    return per_second(useful_flops(requests, work), work.peak_flops_per_s * seconds)


def mbu(
    requests: Requests,
    work: ModelWork,
    replicas: Sequence[ReplicaFacts],
    span_ns: tuple[int, int],
) -> float:
    """Model bandwidth utilisation over the span, a share; NaN over no time."""
    seconds = (span_ns[1] - span_ns[0]) / NS_PER_S
    return per_second(moved_bytes(requests, work, replicas), work.peak_bytes_per_s * seconds)
