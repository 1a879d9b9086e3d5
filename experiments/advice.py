"""What each phase of a request's time is called, what limits it, and what a variant does already.

Most resources follow from what the phase is: waiting for blocks hangs on the size of KV memory, a
transfer on the network. Where a phase is spent in steps of the GPU, compute or memory bandwidth is
what bound those steps in the run (`experiments.bounds`); where nobody knows that, prefills are
taken as bound by compute, and decodes by reading weights and KV.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from experiments import options
from experiments.bounds import BANDWIDTH, COMPUTE, STEPS, Bound, from_values, knows_flops
from experiments.outages import Outage


class Advice(NamedTuple):
    """Of one phase of `sim.attribution.PHASES`.

    Attributes:
        words: What the request is doing, or what is done to it, behind "it spent that time".
        resource: What it is short of, where steps do not say otherwise; see `resource_of`.
    """

    words: str
    resource: str


_BUDGETS = (
    *("chunked_prefill_size", "max_num_batched_tokens", "budget_tokens", "max_tokens_per_batch"),
    "max_prefill_tokens",
)
"""Options of policies that bound the tokens of a step, the one that binds first before others."""
MEMORY, NETWORK, HOST = "KV capacity", "network", "host"
LIMIT, REPLICAS = "a limit of the policy", "replicas"


@dataclass(frozen=True)
class Setting:
    """What a variant does already, which is no advice any more.

    Attributes:
        pools: Prefills and decodes have pools of their own.
        chunked: Prompts are computed in chunks, where requests are prefilled.
        mixed: Decodes go on in the steps of prefills.
        cached: There is a prefix cache.
        outages: When replicas were down after failures.
        bounds: What bound the steps of the run, by kind; none where that is not known.
        unknown: Why it is not.
        budget: The option that bounds the tokens of a step, where requests are prefilled; None if
            the policy has none, empty if that is not known.
        decode_budget: That of the decode side, where it has a pool of its own.
        chunks: What chunks prompts: an option of the policy, or other policies.
        missing: What cannot be had by an option any more, or at all: ``prefix_cache``, ``fp8_kv``,
            ``lower_weights``, ``layerwise``, ``blocks_decode``, ``cuda_graphs``, and options of
            batches (``batch_timeout_s``, ``return_at``, ``pad_prompts``).
    """

    pools: bool = False
    chunked: bool = False
    mixed: bool = False
    cached: bool = False
    outages: tuple[Outage, ...] = ()
    bounds: Mapping[str, Bound] = field(default_factory=dict)
    unknown: str = ""
    budget: str | None = ""
    decode_budget: str | None = ""
    chunks: str = ""
    missing: frozenset[str] = frozenset()


def setting_of(
    config: Mapping[str, Any],
    outages: Sequence[Outage] = (),
    arithmetic: Mapping[str, Any] | None = None,
) -> Setting:
    """The setting of one variant.

    Args:
        config: The resolved config, as `Experiment` is dumped.
        outages: Of its run.
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
        outages=tuple(outages),
        bounds=from_values(arithmetic or {}),
        unknown="" if arithmetic else _why_unknown(config),
        budget=_budget_of(policy),
        decode_budget=_budget_of(pools["decode"]["policy"]) if pools.get("decode") else None,
        chunks="chunked_prefill_size" if name == "sglang" else "sarathi, vllm-v1",
        missing=_missing(config, entry),
    )


def _options_of(policy: Mapping[str, Any]) -> Sequence[str]:
    """Options of a policy; of one of the user's own those that its config gives."""
    from policies import POLICIES

    shipped = POLICIES.get(policy["name"])
    return tuple(policy) if shipped is None else options.names(shipped)


def _budget_of(policy: Mapping[str, Any]) -> str | None:
    there = _options_of(policy)
    unlimited = policy.get("chunked_prefill_size", 8192) is None
    names = _BUDGETS[1:] if unlimited else _BUDGETS
    return next((name for name in names if name in there), None)


def _missing(config: Mapping[str, Any], entry: Mapping[str, Any]) -> frozenset[str]:
    """What `Setting.missing` says of a variant."""
    there, precision = _options_of(entry["policy"]), entry.get("precision", {})
    transfer = config["pools"].get("transfer") or {}
    decodes = config["pools"].get("decode") or entry
    done = {
        "fp8_kv": precision.get("kv") == "fp8",
        "lower_weights": precision.get("weights") == "int4",
        "layerwise": transfer.get("overlap", "none") != "none",
        "blocks_decode": not transfer.get("blocks_decode", False),
        "cuda_graphs": decodes["step_time"].get("cuda_graphs", "vllm") != "none",
        "pad_prompts": entry["policy"].get("pad_prompts") is False,
    }
    options_of_policies = ("prefix_cache", "batch_timeout_s", "return_at", "pad_prompts")
    lacks = {name for name in options_of_policies if name not in there}
    return frozenset(lacks | {name for name, is_done in done.items() if is_done})


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


ADVICE: Mapping[str, Advice] = MappingProxyType(
    {
        "queue_step": Advice("waiting for the step under way to end", COMPUTE),
        "queue_seat": Advice("waiting for a seat", LIMIT),
        "queue_budget": Advice("waiting for token budget", COMPUTE),
        "queue_memory": Advice("waiting for KV memory", MEMORY),
        "queue_batch": Advice("waiting for the static batch at work", LIMIT),
        "queue_forming": Advice("waiting for its batch to fill", LIMIT),
        "queue_held": Advice("held by the decode side", MEMORY),
        "queue_no_replica": Advice("waiting for a replica to come up", REPLICAS),
        "queue_other": Advice("waiting, its policy does not say why", LIMIT),
        "prefill": Advice("prefilling its own tokens", COMPUTE),
        "prefill_others": Advice("slowed by other prompts in its prefill steps", COMPUTE),
        "prefill_decodes": Advice("slowed by decodes in its prefill steps", BANDWIDTH),
        "between": Advice("waiting between its own chunks", COMPUTE),
        "decode_gpu": Advice("decoding as if alone", BANDWIDTH),
        "decode_host": Advice("on the host's part of decoding alone", HOST),
        "decode_others": Advice("slowed by other decodes", BANDWIDTH),
        "decode_prefills": Advice("slowed by prefills in its decode steps", COMPUTE),
        "stall": Advice("stalled while steps of others ran", COMPUTE),
        "bubble": Advice("waiting for the next pipeline stage", COMPUTE),
        "batch_end": Advice("held to the end of its batch", LIMIT),
        "padding": Advice("on padding rows", COMPUTE),
        "noise": Advice("on noise, step by step", COMPUTE),
        "slow": Advice("slowed by a straggler or a warm-up", COMPUTE),
        "preempted": Advice("preempted and waiting", MEMORY),
        "reprefill": Advice("computing again what it had lost", MEMORY),
        "swapped": Advice("swapped out", MEMORY),
        "copy": Advice("on copies to and from the host in its steps", HOST),
        "fetch": Advice("waiting for its prefix from another cache", NETWORK),
        "transfer_queue": Advice("waiting for its transfer to start", MEMORY),
        "transfer": Advice("with its KV on the way", NETWORK),
        "loaded": Advice("waiting to join, its KV being there", BANDWIDTH),
        "migration": Advice("standing still for its migration", NETWORK),
        "lost": Advice("in steps that gave it nothing", REPLICAS),
        "reprefill_failure": Advice("computing again what it had lost with a replica", REPLICAS),
        "other": Advice("on anything else", LIMIT),
    }
)

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
