"""What each phase of a request's time is called, what limits it, and what usually helps.

The resource of a phase follows from what the phase is, not from a measurement: prefills are bound
by compute, decodes by reading weights and KV, waiting for blocks by the size of KV memory
(`phasewise phases` works this out for a model on a device).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class Advice(NamedTuple):
    """Of one phase of `sim.attribution.PHASES`.

    Attributes:
        words: What the request is doing, or what is done to it, behind "it spent that time".
        resource: What it is short of.
        help: What usually makes it shorter.
    """

    words: str
    resource: str
    help: str


COMPUTE, BANDWIDTH, MEMORY = "compute", "memory bandwidth", "KV capacity"
NETWORK, HOST, LIMIT, REPLICAS = "network", "host", "a limit of the policy", "replicas"

_SHORTER_STEPS = "chunked prefills or a smaller token budget make steps shorter"
_LESS_PREFILL = "more replicas or GPUs, a prefix cache, or a pool of its own for prefills"
_MORE_KV = "more KV blocks (GPUs, fp8 KV, a smaller model) or fewer requests at a time"
_FASTER_LINKS = "faster or more links, layer-wise sending, or fewer tokens to move"

ADVICE: Mapping[str, Advice] = MappingProxyType(
    {
        "queue_step": Advice("waiting for the step under way to end", COMPUTE, _SHORTER_STEPS),
        "queue_seat": Advice(
            "waiting for a seat", LIMIT, "a higher limit of running requests, or more replicas"
        ),
        "queue_budget": Advice(
            "waiting for token budget", COMPUTE, f"a larger token budget; {_LESS_PREFILL}"
        ),
        "queue_memory": Advice("waiting for KV memory", MEMORY, _MORE_KV),
        "queue_batch": Advice(
            "waiting for the static batch at work", LIMIT, "continuous batching (another policy)"
        ),
        "queue_forming": Advice(
            "waiting for its batch to fill", LIMIT, "a shorter batch_timeout_s or a smaller batch"
        ),
        "queue_held": Advice(
            "held by the decode side",
            MEMORY,
            "more KV memory or replicas on the decode side, or faster transfers",
        ),
        "queue_no_replica": Advice(
            "waiting for a replica to come up", REPLICAS, "spare replicas, or a shorter start"
        ),
        "queue_other": Advice("waiting, its policy does not say why", LIMIT, "look at the policy"),
        "prefill": Advice("prefilling its own tokens", COMPUTE, _LESS_PREFILL),
        "prefill_others": Advice(
            "slowed by other prompts in its prefill steps", COMPUTE, _LESS_PREFILL
        ),
        "prefill_decodes": Advice(
            "slowed by decodes in its prefill steps",
            BANDWIDTH,
            "prefills in steps or a pool of their own",
        ),
        "between": Advice(
            "waiting between its own chunks", COMPUTE, f"a larger token budget; {_LESS_PREFILL}"
        ),
        "decode_gpu": Advice(
            "decoding as if alone", BANDWIDTH, "more GPUs per replica, or lower precision"
        ),
        "decode_host": Advice(
            "on the host's part of decoding alone",
            HOST,
            "a newer engine, CUDA graphs, or a faster CPU",
        ),
        "decode_others": Advice(
            "slowed by other decodes", BANDWIDTH, "smaller batches, or more replicas"
        ),
        "decode_prefills": Advice(
            "slowed by prefills in its decode steps",
            COMPUTE,
            "a smaller token budget, or a pool of its own for prefills",
        ),
        "stall": Advice(
            "stalled while steps of others ran",
            COMPUTE,
            "chunked prefills beside decodes (sarathi, vllm-v1), or two pools",
        ),
        "bubble": Advice(
            "waiting for the next pipeline stage", COMPUTE, "even stages, or steps of even size"
        ),
        "batch_end": Advice("held to the end of its batch", LIMIT, "return_at: token"),
        "padding": Advice("on padding rows", COMPUTE, "no padding, or batches of one length"),
        "noise": Advice("on noise, step by step", COMPUTE, "steadier machines"),
        "slow": Advice(
            "slowed by a straggler or a warm-up", COMPUTE, "find the straggler; warm up beforehand"
        ),
        "preempted": Advice("preempted and waiting", MEMORY, _MORE_KV),
        "reprefill": Advice("computing again what it had lost", MEMORY, _MORE_KV),
        "swapped": Advice("swapped out", MEMORY, _MORE_KV),
        "copy": Advice("on copies to and from the host in its steps", HOST, "a faster host link"),
        "fetch": Advice("waiting for its prefix from another cache", NETWORK, _FASTER_LINKS),
        "transfer_queue": Advice(
            "waiting for its transfer to start",
            MEMORY,
            "more KV memory or replicas on the decode side",
        ),
        "transfer": Advice("with its KV on the way", NETWORK, _FASTER_LINKS),
        "loaded": Advice(
            "waiting to join, its KV being there", BANDWIDTH, "more decode replicas or seats"
        ),
        "migration": Advice("standing still for its migration", NETWORK, "fewer or smaller moves"),
        "lost": Advice("in steps that gave it nothing", REPLICAS, "fewer failures"),
        "other": Advice("on anything else", LIMIT, "nothing shipped spends time here"),
    }
)
