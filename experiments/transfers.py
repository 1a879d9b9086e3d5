"""How KV moves between two pools, from the config: `TransferSpec`, and what it cannot be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim import specs
from sim.errors import ConfigError
from sim.transfer import TransferSpec

if TYPE_CHECKING:
    from experiments.cluster import Where
    from experiments.schema import Transfer


def spec_of(transfer: Transfer, model: specs.ModelSpec, where: Where) -> TransferSpec:
    """How KV moves.

    Args:
        transfer: The key `transfer` of two pools.
        model: Whose KV it is: a layer-wise transfer has as many parts as it has layers.
        where: Places for messages.

    Raises:
        ConfigError: Options that do not go together.
    """
    _check_overlap(transfer, where)
    return TransferSpec(
        bandwidth_bytes_per_s=transfer.bandwidth_bytes_per_s,
        latency_s=transfer.latency_s,
        recompute_last_token=transfer.recompute_last_token,
        shares_links=transfer.sharing == "max-min",
        blocks_decode=transfer.blocks_decode,
        push=transfer.start == "push",
        decode_first=transfer.decode_first,
        max_waiting_share=transfer.max_waiting_share,
        overlap=transfer.overlap,
        layers=model.layers,
        layerwise_above_tokens=transfer.layerwise_above_tokens,
    )


def _check_overlap(transfer: Transfer, where: Where) -> None:
    overlap, place = transfer.overlap, where("pools", "transfer", "overlap")
    if overlap != "none" and transfer.start != "push":
        raise ConfigError(
            f"{place}: {overlap}: needs start: push, so that the decode side has its blocks before "
            "the prefill begins; try start: push, or overlap: none"
        )
    if overlap != "none" and transfer.blocks_decode:
        raise ConfigError(
            f"{place}: {overlap}: with blocks_decode: true a decode replica would stand still "
            "while prompts are computed; try blocks_decode: false"
        )
    if overlap != "layerwise" and transfer.layerwise_above_tokens:
        raise ConfigError(
            f"{where('pools', 'transfer', 'layerwise_above_tokens')}: "
            f"{transfer.layerwise_above_tokens}: counts with overlap: layerwise only; set that, or "
            "leave it out"
        )
