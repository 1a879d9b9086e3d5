"""How KV moves between two pools, from the config: `TransferSpec`, and what it cannot be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sim import specs
from sim.errors import ConfigError
from sim.transfer import StagingSpec, TransferSpec

if TYPE_CHECKING:
    from experiments.cluster import Where
    from experiments.schema import Experiment, Staging, Transfer
    from sim.records import SimulationResult


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
    _check_batches(transfer, where)
    _check_share(transfer, where)
    _check_hold(transfer, where)
    staging = transfer.staging
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
        message_bytes=transfer.message_bytes,
        per_message_s=transfer.per_message_s,
        batch_wait_s=transfer.batch_wait_s,
        batch_bytes=transfer.batch_bytes,
        staging=None if staging is None else _staging(staging),
        hold_timeout_s=transfer.hold_timeout_s,
        on_hold_timeout=transfer.on_hold_timeout,
    )


def _staging(staging: Staging) -> StagingSpec:
    return StagingSpec(staging.bytes, staging.bandwidth_bytes_per_s)


def _check_hold(transfer: Transfer, where: Where) -> None:
    hold_s, place = transfer.hold_timeout_s, where("pools", "transfer", "hold_timeout_s")
    if hold_s is None:
        # What a run leaves behind to be run again says all keys, those by default too.
        if transfer.on_hold_timeout != "reroute":
            raise ConfigError(
                f"{where('pools', 'transfer', 'on_hold_timeout')}: {transfer.on_hold_timeout}: "
                "says what becomes of a request after hold_timeout_s; set that, or leave it out"
            )
        return
    if transfer.start == "push":
        raise ConfigError(
            f"{place}: {hold_s:g}: with start: push KV is sent when its prefill has ended, and "
            "none is held; try start: pull, or leave it out"
        )
    if transfer.staging is not None:
        raise ConfigError(
            f"{place}: {hold_s:g}: not modelled with staging, whose memory holds KV for as long as "
            "it takes; leave one of them out"
        )


def _check_share(transfer: Transfer, where: Where) -> None:
    share = transfer.max_waiting_share
    if share is not None and (transfer.start == "push" or not transfer.blocks_decode):
        raise ConfigError(
            f"{where('pools', 'transfer', 'max_waiting_share')}: {share:g}: is for a decode side "
            "that pulls, and decodes or loads; set blocks_decode: true and start: pull"
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


def _check_batches(transfer: Transfer, where: Where) -> None:
    wait_s = transfer.batch_wait_s
    if wait_s is None and transfer.batch_bytes is not None:
        raise ConfigError(
            f"{where('pools', 'transfer', 'batch_bytes')}: {transfer.batch_bytes}: needs "
            "batch_wait_s, for how long a smaller batch waits; 0: those of one instant go together"
        )
    if wait_s is not None and transfer.overlap != "none":
        raise ConfigError(
            f"{where('pools', 'transfer', 'batch_wait_s')}: {wait_s:g}: what is sent while its "
            "prefill goes on joins no batch; try overlap: none, or leave it out"
        )
    if (transfer.message_bytes is None) != (transfer.per_message_s == 0):
        given, other = ("message_bytes", "per_message_s")
        if transfer.message_bytes is None:
            given, other = other, given
        value = getattr(transfer, given)
        raise ConfigError(
            f"{where('pools', 'transfer', given)}: {value:g}: says with {other} how fast messages "
            "are sent; give both, or neither"
        )
    if transfer.staging is not None and transfer.start == "push":
        raise ConfigError(
            f"{where('pools', 'transfer', 'staging')}: with start: push the target's blocks are "
            "there before the prefill begins, and nothing waits; try start: pull, or leave it out"
        )


def report(experiment: Experiment, result: SimulationResult, summary: dict[str, Any]) -> list[str]:
    """Add how often KV was not fetched in time to the summary, and say what staging was used."""
    pools, staged = experiment.pools, _of_staging(experiment, result)
    if pools.transfer is None or pools.transfer.hold_timeout_s is None:
        return staged
    ended, transfer = result.hold_timeouts, pools.transfer
    summary["hold_timeouts"] = ended
    then = {"reroute": "was routed again", "fail": "failed"}[transfer.on_hold_timeout]
    return [
        f"hold_timeout_s: KV was not fetched within {transfer.hold_timeout_s:g} s of its prefill "
        f"{ended:,} times" + (f"; each time its request {then}." if ended else ".")
    ]


def without_effect(experiment: Experiment, block_bytes: int) -> list[str]:
    """Keys that change nothing, one sentence each.

    Args:
        experiment: Resolved.
        block_bytes: KV of one block of a prefill replica.
    """
    transfer = experiment.pools.transfer
    if transfer is None:
        return []
    notes = []
    if transfer.decode_first and transfer.start == "push":
        notes.append(
            "transfer.decode_first has no effect with start: push, which chooses the decode "
            "replica at arrival as well, but while no prefill replica takes any request."
        )
    staging = transfer.staging
    if staging is not None and staging.bytes < block_bytes:
        notes.append(
            f"transfer.staging has no effect: bytes {staging.bytes:,} hold less than the "
            f"{block_bytes:,} bytes of one KV block."
        )
    return notes


def _of_staging(experiment: Experiment, result: SimulationResult) -> list[str]:
    """How much of the KV that moved went through staging memory."""
    transfer = experiment.pools.transfer
    if transfer is None or transfer.staging is None:
        return []
    sizes = result.transfers["bytes"]
    copied = sum(replica.staged_bytes for replica in result.replicas)
    peak = max((replica.staging_peak_bytes for replica in result.replicas), default=0)
    large = int((sizes > transfer.staging.bytes).sum())
    held = f"; {large:,} of {len(sizes):,} transfers were larger than its" if large else "; its"
    return [
        f"transfer.staging: {copied / 1e9:,.3g} GB of the {float(sizes.sum()) / 1e9:,.3g} GB that "
        f"moved went through it{held} {transfer.staging.bytes / 1e9:,.3g} GB, of which at most "
        f"{peak / 1e9:,.3g} GB were in use."
    ]
