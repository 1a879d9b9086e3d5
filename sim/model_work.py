"""FLOPs and bytes that the tokens of a run need, for MFU and MBU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sim.metrics import NS_PER_S, Ints, ReplicaFacts, Requests, per_second


@dataclass(frozen=True)
class ModelWork:
    """What a model costs per token, for MFU and MBU; only where every replica runs the same model.

    Attributes:
        flops_per_token: Linear layers, per token computed.
        flops_per_pair: Attention, per (query token, key token) pair.
        flops_per_sample: LM head, per token emitted.
        weight_bytes: Read once per iteration, over all GPUs of a replica.
        kv_bytes_per_token: Read once per token of context by a decode, written once per token.
        peak_flops_per_s: Dense peak of one GPU at the precision in use.
        peak_bytes_per_s: Memory bandwidth of one GPU.
    """

    flops_per_token: float
    flops_per_pair: float
    flops_per_sample: float
    weight_bytes: float
    kv_bytes_per_token: float
    peak_flops_per_s: float
    peak_bytes_per_s: float


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


def moved_bytes(requests: Requests, iterations: int, work: ModelWork) -> float:
    """Bytes of weights and KV that the iterations move, activations and prefill reads left out."""
    prompt, emitted = _served(requests)
    decodes = emitted - 1
    # The decode that emits token k attends to p + k - 1 tokens, k = 2 .. emitted.
    contexts = decodes * prompt + decodes * (decodes + 1) // 2
    kv_tokens = float(contexts.sum()) + float((prompt + decodes).sum())
    return work.weight_bytes * iterations + work.kv_bytes_per_token * kv_tokens


def _served(requests: Requests) -> tuple[Ints, Ints]:
    served = requests["emitted_tokens"] > 0
    return requests["prompt_tokens"][served], requests["emitted_tokens"][served]


def mfu(requests: Requests, work: ModelWork, gpus: int, span_ns: tuple[int, int]) -> float:
    """Model FLOPs utilisation, a share; NaN over no time."""
    seconds = (span_ns[1] - span_ns[0]) / NS_PER_S
    return per_second(useful_flops(requests, work), work.peak_flops_per_s * gpus * seconds)


def mbu(
    requests: Requests,
    work: ModelWork,
    replicas: Sequence[ReplicaFacts],
    span_ns: tuple[int, int],
) -> float:
    """Model bandwidth utilisation, a share; NaN over no time."""
    seconds = (span_ns[1] - span_ns[0]) / NS_PER_S
    iterations = sum(replica.iterations for replica in replicas)
    gpus = sum(replica.gpus for replica in replicas)
    moved = moved_bytes(requests, iterations, work)
    return per_second(moved, work.peak_bytes_per_s * gpus * seconds)
