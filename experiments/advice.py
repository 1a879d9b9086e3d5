"""What each phase of a request's time is called, what limits it, and what usually helps.

Most resources follow from what the phase is: waiting for blocks hangs on the size of KV memory, a
transfer on the network. Where a phase is spent in steps of the GPU, compute or memory bandwidth is
what bound those steps in the run (`experiments.bounds`); where nobody knows that, prefills are
taken as bound by compute, and decodes by reading weights and KV.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from experiments.bounds import BANDWIDTH, COMPUTE, STEPS, Bound, from_values, knows_flops


class Advice(NamedTuple):
    """Of one phase of `sim.attribution.PHASES`.

    Attributes:
        words: What the request is doing, or what is done to it, behind "it spent that time".
        resource: What it is short of, where steps do not say otherwise; see `resource_of`.
        help: What usually makes it shorter, where replicas do both prefills and decodes; see
            `help_for`.
    """

    words: str
    resource: str
    help: str


MEMORY, NETWORK, HOST = "KV capacity", "network", "host"
LIMIT, REPLICAS = "a limit of the policy", "replicas"

_SHORTER_STEPS = "chunked prefills or a smaller token budget make steps shorter"
_LESS_PREFILL = "more replicas or GPUs, a prefix cache, or a pool of its own for prefills"
_MORE_KV = "more KV blocks (GPUs, fp8 KV, a smaller model) or fewer requests at a time"
_FASTER_LINKS = "faster or more links, layer-wise sending, or fewer tokens to move"


@dataclass(frozen=True)
class Setting:
    """What a variant does already, which is no advice any more.

    Attributes:
        pools: Prefills and decodes have pools of their own.
        chunked: Prompts are computed in chunks, where requests are prefilled.
        mixed: Decodes go on in the steps of prefills.
        cached: There is a prefix cache.
        failed_ns: When the first replica failed; None if none did.
        bounds: What bound the steps of the run, by kind; none where that is not known.
        unknown: Why it is not.
    """

    pools: bool = False
    chunked: bool = False
    mixed: bool = False
    cached: bool = False
    failed_ns: int | None = None
    bounds: Mapping[str, Bound] = field(default_factory=dict)
    unknown: str = ""


def setting_of(
    config: Mapping[str, Any],
    failed_ns: int | None = None,
    arithmetic: Mapping[str, Any] | None = None,
) -> Setting:
    """The setting of one variant.

    Args:
        config: The resolved config, as `Experiment` is dumped.
        failed_ns: When the first replica failed; None if none did.
        arithmetic: What bound its steps, as ``summary.json`` says it; None where it does not.
    """
    pools = config["pools"]
    entry = pools.get("colocated") or pools["prefill"]
    policy = entry["policy"]
    name, chunk = policy["name"], policy.get("chunked_prefill_size", 8192)
    mixes = name in ("sarathi", "vllm-v1")
    sliced = name == "sglang" and chunk is not None
    return Setting(
        pools=pools.get("colocated") is None,
        chunked=mixes or sliced,
        mixed=mixes or name == "orca" or (sliced and bool(policy.get("mixed_chunk"))),
        cached=bool(policy.get("prefix_cache", name == "sglang")),
        failed_ns=failed_ns,
        bounds=from_values(arithmetic or {}),
        unknown="" if arithmetic else _why_unknown(config),
    )


def _why_unknown(config: Mapping[str, Any]) -> str:
    pools = filter(None, map(config["pools"].get, ("colocated", "prefill", "decode")))
    models = {str(pool.get("step_time", {}).get("model", "")) for pool in pools}
    if knows_flops(config):
        return "what its steps computed was not recorded"
    return f"{' and '.join(sorted(models))} step times know no FLOPs"


def resource_of(phase: str, setting: Setting) -> str:
    """What a phase is short of: by its steps in this run where they are known."""
    bound = setting.bounds.get(_STEPS_OF.get(phase, ""))
    return ADVICE[phase].resource if bound is None else bound.resource


def why(phase: str, setting: Setting) -> str:
    """How it is known that a phase hangs on compute or bandwidth, in brackets; else empty."""
    kind = _STEPS_OF.get(phase)
    if kind is None:
        return ""
    bound = setting.bounds.get(kind)
    if bound is None:
        return f" (by the phase: {setting.unknown})" if setting.unknown else ""
    side = "below" if bound.resource == BANDWIDTH else "above"
    return (
        f" ({STEPS[kind]} did {_digits(bound.intensity)} FLOP per byte, {side} the ridge of "
        f"{_digits(bound.ridge)})"
    )


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def help_for(phase: str, setting: Setting, end_ns: int = 0) -> str:
    """What usually makes a phase shorter in this setting.

    Args:
        phase: One of `sim.attribution.PHASES`.
        setting: Of the variant.
        end_ns: End of the time that is told of: what failed later has no part in it.
    """
    of_pools = _IN_POOLS.get(phase) if setting.pools else None
    if resource_of(phase, setting) != ADVICE[phase].resource:
        of_pools = _OTHERWISE_BOUND.get(phase, of_pools)
    said = of_pools or _OF_SETTING.get(phase, lambda _: ADVICE[phase].help)(setting)
    after_failure = setting.failed_ns is not None and setting.failed_ns < end_ns
    if after_failure and phase in _LONGER_AFTER_FAILURES:
        return f"spare replicas or a shorter restart, as a replica had failed before; else {said}"
    return said


def _less_prefill(setting: Setting) -> str:
    helps = ["more prefill replicas or GPUs" if setting.pools else "more replicas or GPUs"]
    helps += [] if setting.cached else ["a prefix cache"]
    helps += [] if setting.pools else ["a pool of its own for prefills"]
    return ", or ".join([*filter(None, [", ".join(helps[:-1])]), helps[-1]])


def _shorter_steps(setting: Setting) -> str:
    return "a smaller token budget makes steps shorter" if setting.chunked else _SHORTER_STEPS


def _own_steps(setting: Setting) -> str:
    """Against decodes in the steps of prefills."""
    if setting.pools:
        return "fewer requests whose prefills and decodes share a replica"
    return "a pool of its own for prefills" if setting.chunked else ADVICE["prefill_decodes"].help


def _unstalled(setting: Setting) -> str:
    return "two pools, or more replicas" if setting.mixed else ADVICE["stall"].help


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
        "reprefill_failure": Advice(
            "computing again what it had lost with a replica", REPLICAS, "fewer failures"
        ),
        "other": Advice("on anything else", LIMIT, "nothing shipped spends time here"),
    }
)

_OF_SETTING: Mapping[str, Callable[[Setting], str]] = MappingProxyType(
    {
        "queue_step": _shorter_steps,
        "queue_budget": lambda setting: f"a larger token budget; {_less_prefill(setting)}",
        "prefill": _less_prefill,
        "prefill_others": _less_prefill,
        "prefill_decodes": _own_steps,
        "between": lambda setting: f"a larger token budget; {_less_prefill(setting)}",
        "stall": _unstalled,
    }
)
"""Of phases whose help depends on what a variant does already."""
_IN_POOLS: Mapping[str, str] = MappingProxyType(
    {
        "queue_seat": "a higher limit of running requests, or more prefill replicas",
        "decode_others": "smaller batches, or more decode replicas",
        "decode_prefills": "fewer prefills on the decode side, or a smaller token budget there",
        "stall": "more decode replicas, fewer prefills on the decode side, or transfers that do "
        "not block decodes",
    }
)
"""What helps where prefills and decodes have pools of their own already."""
_OTHERWISE_BOUND: Mapping[str, str] = MappingProxyType(
    {
        "prefill": "several prompts in a step, or weights of lower precision",
        "prefill_others": "a larger token budget, or weights of lower precision",
        "decode_gpu": "more GPUs per replica, or more replicas",
        "decode_others": "smaller batches, or more replicas or GPUs",
    }
)
"""What helps where prefills are bound by memory bandwidth, or decodes by compute."""
_STEPS_OF: Mapping[str, str] = MappingProxyType(
    {
        "queue_step": "any",
        "queue_budget": "prefill",
        "prefill": "prefill_alone",
        "prefill_others": "prefill",
        "prefill_decodes": "prefill",
        "between": "prefill",
        "decode_gpu": "decode_alone",
        "decode_others": "decode",
        "decode_prefills": "prefill",
        "stall": "prefill",
        "bubble": "any",
        "padding": "any",
        "noise": "any",
        "slow": "any",
        "loaded": "decode",
    }
)
"""Of phases that are spent in steps of the GPU, or waiting for some, which kind they are."""
_LONGER_AFTER_FAILURES = frozenset(
    {
        *("queue_step", "queue_seat", "queue_budget", "queue_memory", "queue_held"),
        *("queue_no_replica", "queue_other", "between", "prefill_others", "decode_others"),
        *("decode_prefills", "stall", "preempted", "reprefill", "transfer_queue", "loaded", "lost"),
    }
)
"""Phases that grow while fewer replicas have to do the same work, and after that."""
