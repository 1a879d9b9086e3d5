"""What usually makes a phase of a request's time shorter, in the setting of a variant.

Nobody is told to do what is done already, to set an option that the policy does not have, or to
change the token budget where that cannot help: a larger one where steps with prefills are bound by
compute, so that they only get longer; a smaller one where they are bound by memory bandwidth, so
that they hardly get shorter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from experiments.advice import ADVICE, Setting, resource_of
from experiments.bounds import BANDWIDTH, COMPUTE


def help_for(phase: str, setting: Setting, *, after_failure: bool = False) -> str:
    """What usually makes a phase shorter in this setting.

    Args:
        phase: One of `sim.attribution.PHASES`.
        setting: Of the variant.
        after_failure: A failure of a replica made it longer (`experiments.outages`).
    """
    otherwise = resource_of(phase, setting) != ADVICE[phase].resource
    makers = _OTHERWISE_BOUND if otherwise and phase in _OTHERWISE_BOUND else _HELP
    said = makers[phase]
    said = said if isinstance(said, str) else said(setting)
    if after_failure:
        return f"spare replicas or a shorter restart, as a replica had failed; else {said}"
    return said


def _joined(*helps: str | None) -> str:
    """``a``, ``a, or b``, ``a, b, or c``; None is none."""
    some = [each for each in helps if each]
    return ", or ".join([*filter(None, [", ".join(some[:-1])]), some[-1]])


def _either(setting: Setting, in_pools: str, otherwise: str) -> str:
    return in_pools if setting.pools else otherwise


def _prefill_bound(setting: Setting) -> str | None:
    bound = setting.bounds.get("prefill")
    return None if bound is None else bound.resource


def _budget(setting: Setting, size: str, name: str | None) -> str | None:
    """A larger or smaller token budget, where there is one and it can help."""
    useless = COMPUTE if size == "larger" else BANDWIDTH
    if name is None or _prefill_bound(setting) == useless:
        return None
    return f"a {size} token budget" + (f" ({name})" if name else "")


def _prefix_cache(setting: Setting) -> str | None:
    """Whether prompts begin alike is not looked at: a run without a cache does not need to know."""
    none = setting.cached or "prefix_cache" in setting.missing
    return None if none else "a prefix cache if prompts begin alike"


def _own_pool(setting: Setting) -> str | None:
    return None if setting.pools else "a pool of its own for prefills"


def _chunks(setting: Setting) -> str:
    return "chunked prefills" + (f" ({setting.chunks})" if setting.chunks else "")


def _less_prefill(setting: Setting, *more: str) -> str:
    gpus = _either(setting, "more prefill replicas or GPUs", "more replicas or GPUs")
    return _joined(gpus, _prefix_cache(setting), _own_pool(setting), *more)


def _more_budget(setting: Setting) -> str:
    larger = _budget(setting, "larger", setting.budget)
    if larger is None:
        return _less_prefill(setting, "less load")
    return f"{larger}; {_less_prefill(setting)}"


def _shorter_steps(setting: Setting) -> str:
    smaller = _budget(setting, "smaller", setting.budget)
    if setting.chunked or _prefill_bound(setting) == BANDWIDTH:
        return f"{smaller} makes steps shorter" if smaller else _fewer_at_once(setting)
    if smaller:
        return f"{_chunks(setting)} or {smaller} make steps shorter"
    return f"{_chunks(setting)} make steps shorter"


def _fewer_at_once(setting: Setting) -> str:
    replicas = _either(setting, "more prefill replicas", "more replicas")
    return f"{replicas}, or fewer requests at a time"


def _own_steps(setting: Setting) -> str:
    """Against decodes in the steps of prefills."""
    if setting.pools:
        return "fewer requests whose prefills and decodes share a replica"
    if setting.chunked:
        return "a pool of its own for prefills"
    return "prefills in steps or a pool of their own"


def _fewer_prefills(setting: Setting) -> str:
    """Against prefills in the steps of decodes."""
    if setting.pools:
        smaller = _budget(setting, "smaller", setting.decode_budget)
        return _joined("fewer prefills on the decode side", smaller and f"{smaller} there")
    smaller = _budget(setting, "smaller", setting.budget)
    chunks = None if setting.chunked or setting.budget is not None else _chunks(setting)
    return _joined(smaller or chunks, _own_pool(setting))


def _unstalled(setting: Setting) -> str:
    if setting.pools:
        unblocked = None if "blocks_decode" in setting.missing else "transfers that do not block"
        helps = ("more decode replicas", "fewer prefills on the decode side")
        return _joined(*helps, unblocked and f"{unblocked} decodes")
    if setting.mixed:
        return "two pools, or more replicas"
    return "chunked prefills beside decodes (sarathi, vllm-v1), or two pools"


def _more_kv(setting: Setting) -> str:
    fp8 = "" if "fp8_kv" in setting.missing else "fp8 KV, "
    return f"more KV blocks (GPUs, {fp8}a smaller model) or fewer requests at a time"


def _faster_transfers(setting: Setting) -> str:
    layers = None if "layerwise" in setting.missing else "layer-wise sending"
    return _joined("faster or more links", layers, "fewer tokens to move")


def _lower(setting: Setting, what: str) -> str | None:
    return None if "lower_weights" in setting.missing else what


def _if_offered(key: str, option: str, otherwise: str) -> Callable[[Setting], str]:
    return lambda setting: otherwise if key in setting.missing else option


def _host(setting: Setting) -> str:
    graphs = None if "cuda_graphs" in setting.missing else "CUDA graphs"
    return _joined("a newer engine", graphs, "a faster CPU")


_Help = str | Callable[[Setting], str]
_HELP: Mapping[str, _Help] = MappingProxyType(
    {
        "queue_step": _shorter_steps,
        "queue_seat": lambda setting: (
            "a higher limit of running requests, or more "
            + _either(setting, "prefill replicas", "replicas")
        ),
        "queue_budget": _more_budget,
        "queue_memory": _more_kv,
        "queue_batch": "continuous batching (another policy)",
        "queue_forming": _if_offered(
            "batch_timeout_s",
            "a shorter batch_timeout_s or a smaller batch",
            "a shorter wait for the batch, or a smaller one",
        ),
        "queue_held": "more KV memory or replicas on the decode side, or faster transfers",
        "queue_no_replica": "spare replicas, or a shorter start",
        "queue_other": "look at the policy",
        "prefill": _less_prefill,
        "prefill_others": _less_prefill,
        "prefill_decodes": _own_steps,
        "between": _more_budget,
        "decode_gpu": lambda s: _joined("more GPUs per replica", _lower(s, "lower precision")),
        "decode_host": _host,
        "decode_others": lambda setting: (
            "smaller batches, or more " + _either(setting, "decode replicas", "replicas")
        ),
        "decode_prefills": _fewer_prefills,
        "stall": _unstalled,
        "bubble": "even stages, or steps of even size",
        "batch_end": _if_offered("return_at", "return_at: token", "answers token by token"),
        "padding": _if_offered(
            "pad_prompts", "no padding, or batches of one length", "batches of one length"
        ),
        "noise": "steadier machines",
        "slow": "find the straggler; warm up beforehand",
        "preempted": _more_kv,
        "reprefill": _more_kv,
        "swapped": _more_kv,
        "copy": "a faster host link",
        "fetch": "faster or more links, or fewer tokens to move",
        "transfer_queue": "more KV memory or replicas on the decode side",
        "transfer": _faster_transfers,
        "loaded": "more decode replicas or seats",
        "migration": "fewer or smaller moves",
        "lost": "fewer failures",
        "reprefill_failure": "fewer failures",
        "other": "nothing shipped spends time here",
    }
)
_OTHERWISE_BOUND: Mapping[str, _Help] = MappingProxyType(
    {
        "prefill": lambda s: _joined(
            "several prompts in a step", _lower(s, "weights of lower precision")
        ),
        "prefill_others": lambda s: _joined(
            _budget(s, "larger", s.budget),
            _lower(s, "weights of lower precision"),
            _either(s, "more prefill replicas", "more replicas"),
        ),
        "decode_gpu": "more GPUs per replica, or more replicas",
        "decode_others": "smaller batches, or more replicas or GPUs",
    }
)
"""What helps where prefills are bound by memory bandwidth, or decodes by compute."""
