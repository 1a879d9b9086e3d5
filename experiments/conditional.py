"""Conditional disaggregation in a config: requests that decode replicas prefill by themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sim.errors import ConfigError
from sim.local_prefill import LocalPrefill

if TYPE_CHECKING:
    from experiments.schema import Experiment
    from sim.records import SimulationResult


def local_prefill(experiment: Experiment, where: Callable[..., str]) -> LocalPrefill | None:
    """Which requests stay on the decode side.

    Args:
        experiment: Resolved.
        where: Places for messages.

    Raises:
        ConfigError: The decode pool's policy prefills nobody there.
    """
    said, decode = experiment.pools.local_prefill, experiment.pools.decode
    if said is None or decode is None:
        return None
    if decode.policy["name"] == "static":
        raise ConfigError(
            f"{where('pools', 'decode', 'policy')}.name: static: prefills nobody on a decode "
            "replica, where it forms batches of requests whose KV came; with local_prefill try "
            "vllm-v1"
        )
    return LocalPrefill(said.max_uncached_tokens, said.max_queue)


def without_effect(experiment: Experiment) -> list[str]:
    """Keys that change nothing, one sentence each."""
    transfer, local = experiment.pools.transfer, experiment.pools.local_prefill
    notes = []
    if local is not None and not local.max_uncached_tokens and local.max_queue is None:
        notes.append(
            "local_prefill: with max_uncached_tokens 0 and no max_queue no request stays on the "
            "decode side but while no prefill replica takes any."
        )
    if transfer is not None and transfer.decode_first and local is not None:
        notes.append("transfer.decode_first has no effect: with local_prefill it always is so.")
    return notes


def report(experiment: Experiment, result: SimulationResult, summary: dict[str, Any]) -> list[str]:
    """Add how many requests stayed on the decode side to the summary, and say it in a sentence."""
    if experiment.pools.local_prefill is None:
        return []
    placed, decode = result.requests["replica"], result.requests["decode_replica"]
    routed, local = placed >= 0, (placed >= 0) & (placed == decode)
    stayed, total = int(local.sum()), int(routed.sum())
    tokens = int(result.requests["prompt_tokens"][local].sum())
    summary["local_prefill"] = {"requests": stayed, "prompt_tokens": tokens, "routed": total}
    return [
        f"local_prefill: {stayed:,} of {total:,} requests, with {tokens:,} prompt tokens, were "
        "prefilled by the decode replica that they were last sent to."
    ]
