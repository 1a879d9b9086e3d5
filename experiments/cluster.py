"""From a resolved experiment to the `Cluster` that runs it, and what its numbers rest on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from experiments import (
    conditional,
    host_link,
    migration,
    parts,
    pipeline,
    prefix_fetch,
    roles,
    scaling,
    schema,
    startup,
    step_times,
    topology,
    transfers,
)
from experiments.explain import placed
from experiments.names import brief
from experiments.schema import Experiment, Pool
from experiments.without_effect import of_cluster
from sim import admission, specs
from sim.admission import Admission
from sim.cluster import Cluster
from sim.decode_load import DecodeLimit
from sim.errors import ConfigError, PhasewiseError
from sim.metrics import ReplicaFacts, shares_there
from sim.model_part import ModelPart
from sim.policy import Policy
from sim.pool import PoolSpec
from sim.replica_spec import ReplicaSpec
from sim.topology import Topology

if TYPE_CHECKING:
    from sim.model_work import Hardware, ModelWork

SHORTEST_SNAPSHOT_S = 1e-3
"""Below it a run consists of looks at replicas, at times between which nothing happens."""

Where = Callable[..., str]
"""Gives ``file: key`` of a path into `Experiment`."""


def pools_of(experiment: Experiment) -> dict[str, Pool]:
    """The pools that there are, by role, the prefill pool before the decode pool."""
    pools = experiment.pools
    present = {"colocated": pools.colocated, "prefill": pools.prefill, "decode": pools.decode}
    return {role: pool for role, pool in present.items() if pool is not None}


def plain_where(*path: str | int) -> str:
    """Places in a resolved experiment, for messages, where no file is known."""
    return ".".join(map(str, path))


@dataclass(frozen=True)
class Built:
    """A cluster and where its numbers come from.

    Attributes:
        cluster: What `sim.event_loop.simulate` takes.
        notes: One sentence each: KV blocks, step times, what is not modelled.
        gpus: GPUs of all replicas that are there at the start.
        max_model_len: Shortest limit of all pools, or None.
    """

    cluster: Cluster
    notes: tuple[str, ...]
    gpus: int
    max_model_len: int | None


def build(experiment: Experiment, folder: Path, where: Where = plain_where) -> Built:
    """Build the cluster of one variant.

    Args:
        experiment: Resolved and checked.
        folder: Where a user's modules and local model files are looked for first.
        where: Places for messages.

    Raises:
        ConfigError: Sizes that do not fit: no room for KV, a policy's limits, heads by GPUs.
    """
    check_nics(experiment, where)
    pipeline.check_transfer(experiment, where)
    topology.check_keys(experiment, where)
    nodes = topology.of(experiment, where)
    model = load_model(experiment.model, folder, where("model"))
    said: dict[str, list[str]] = {}
    built: dict[str, PoolSpec] = {}
    for role, pool in pools_of(experiment).items():
        spec, more = _replica(pool, role, model, folder, where)
        if nodes is not None:
            stages = pipeline.parts_of(pool, role, model, where)
            seat = topology.seat(experiment, role, pool, model, stages, where)
            spec = replace(spec, seat=seat)
        built[role] = _pool(experiment, role, [spec] * max(1, pool.replicas), folder, where)
        for note in more:
            said.setdefault(note, []).append(role)
    # What is true of both pools is said once.
    notes = [
        note if len(roles) == len(built) else f"{roles[0]}: {note}" for note, roles in said.items()
    ]
    if model.note and is_file(experiment.model, folder):
        notes.append(f"model: {experiment.model}: {model.note}.")
    transfer = experiment.pools.transfer
    if transfer is not None:
        notes.append(_sharing_note(experiment, nodes))
    if nodes is not None:
        notes += topology.placement(experiment, nodes, built, where)
    predictor = None
    if experiment.predictor is not None:
        predictor = parts.predictor(experiment.predictor, where("predictor"), folder)
    entry = built.get("colocated") or built["prefill"]
    cluster = Cluster(
        entry=entry,
        decode=built.get("decode"),
        transfer=None if transfer is None else transfers.spec_of(transfer, model, where),
        predictor=predictor,
        admission=_admission(experiment, where),
        on_failure=experiment.on_failure,
        topology=nodes,
        local_prefill=conditional.local_prefill(experiment, where),
        prefix_fetch=prefix_fetch.spec_of(experiment, entry, where),
        migration=migration.spec_of(experiment, entry, built.get("decode"), folder, where),
        roles=roles.spec_of(experiment, folder, where),
        mixed_pool=roles.mixed_pool(experiment, where),
    )
    limits = [pool.max_model_len for pool in pools_of(experiment).values() if pool.max_model_len]
    gpus = sum(len(pool.replicas) * pool.replicas[0].gpus for pool in built.values())
    notes += of_cluster(experiment, cluster)
    return Built(cluster, tuple(notes), gpus, min(limits, default=None))


def with_model_limits(experiment: Experiment, folder: Path, where: Where) -> Experiment:
    """Where `max_model_len` is not set, that of engines: the model's context length.

    Args:
        experiment: As validated.
        folder: Where a local model file is looked for first.
        where: Places for messages.
    """
    present = pools_of(experiment)
    open_roles = [r for r, pool in present.items() if "max_model_len" not in pool.model_fields_set]
    if not open_roles:
        return _with_long_context(experiment, folder, where)
    model = load_model(experiment.model, folder, where("model"))
    limited = {
        role: present[role].model_copy(update={"max_model_len": model.max_positions})
        for role in open_roles
    }
    note = (
        f"max_model_len is the context length of {model.name}, {model.max_positions:,} tokens, "
        "since none is set."
    )
    pools = experiment.pools.model_copy(update=limited)
    return experiment.model_copy(update={"pools": pools, "notes": [*experiment.notes, note]})


def _with_long_context(experiment: Experiment, folder: Path, where: Where) -> Experiment:
    """A note where requests may be longer than the model was made for."""
    most = max(pool.max_model_len or 0 for pool in pools_of(experiment).values())
    model = load_model(experiment.model, folder, where("model"))
    if most <= model.max_positions:
        return experiment
    note = (
        f"max_model_len: {most:,} is beyond the context length of {model.name}, "
        f"{model.max_positions:,} tokens: times are those of such contexts, outputs would be poor."
    )
    return experiment.model_copy(update={"notes": [*experiment.notes, note]})


def with_step_times(experiment: Experiment, folder: Path, where: Where) -> Experiment:
    """Where no step-time model is set: the device's shipped tables, or else the roofline.

    Args:
        experiment: As validated.
        folder: Where a local model file is looked for first.
        where: Places for messages.
    """
    present = pools_of(experiment)
    timed: dict[str, Pool] = {}
    notes: list[str] = []
    for role, pool in present.items():
        said = pool.step_time if "step_time" in pool.model_fields_set else {}
        if "model" in said:
            continue
        with _told_at(where("pools", role, "device")):
            device = specs.load_device(pool.device)
        model = load_model(experiment.model, folder, where("model"))
        chosen, note = step_times.default(pool, said, model, device, folder)
        if chosen != pool.step_time:
            timed[role] = pool.model_copy(update={"step_time": chosen})
        notes += [note] if note and note not in notes else []
    if not timed and not notes:
        return experiment
    pools = experiment.pools.model_copy(update=timed)
    return experiment.model_copy(update={"pools": pools, "notes": [*experiment.notes, *notes]})


POOL_NAMES: Mapping[str, str] = MappingProxyType(
    {"colocated": "replica", "prefill": "prefill", "decode": "decode"}
)
"""Names of pools in results, by the role in a config."""


def load_model(name: str, folder: Path, where: str) -> specs.ModelSpec:
    """A model by name, or from a config.json relative to `folder` or to the working folder."""
    local = folder / name
    with _told_at(where):
        try:
            return specs.load_model(str(local) if local.exists() else name)
        except OSError as error:  # a name too long for a path, a file that may not be read
            raise ConfigError(f"{where}: {brief(name)}: {error.strerror}") from None


def is_file(name: str, folder: Path) -> bool:
    """Whether a model is read from a file of the user's, not from a sheet."""
    return (folder / name).exists() or Path(name).exists()


@contextmanager
def _told_at(where: str) -> Iterator[None]:
    """Errors from below name the key that they are about."""
    try:
        yield
    except PhasewiseError as error:
        raise ConfigError(placed(where, error)) from None


def _pool(
    experiment: Experiment, role: str, replicas: list[ReplicaSpec], folder: Path, where: Where
) -> PoolSpec:
    named, key = experiment.router, "router"
    if role == "decode" and experiment.decode_router is not None:
        named, key = experiment.decode_router, "decode_router"
    router = parts.router(named, where(key), folder)
    if role == "decode" and router.places_prefills:
        raise ConfigError(
            f"{where('decode_router')}: {named['name']}: chooses where to prefill, which says "
            "nothing of decode replicas; try least-kv"
        )
    snapshot_ns = round(experiment.router_snapshot_s * 1e9)
    if 0 < experiment.router_snapshot_s < SHORTEST_SNAPSHOT_S:
        raise ConfigError(
            f"{where('router_snapshot_s')}: {experiment.router_snapshot_s:g}: expected 0, for the "
            f"state as it is, or at least {SHORTEST_SNAPSHOT_S:g}: a run looks at all replicas "
            "once an interval"
        )
    with _told_at(where(key)):
        router.check(len(replicas))
    if snapshot_ns and router.sees_contents:
        raise ConfigError(
            f"{where(key)}{_curious(named)}: looks into caches, of which a snapshot shows nothing; "
            "try router_snapshot_s: 0, or prefix-aware, which keeps an index of its own"
        )
    scales = scaling.of_pool(pools_of(experiment)[role], role, folder, where)
    return PoolSpec(POOL_NAMES[role], replicas, router, snapshot_ns, scales)


def _curious(named: schema.Named) -> str:
    """The key, below that of a router, of the one within it that looks into caches; its name."""
    for key in ("fallback", "within"):
        inner = named.get(key)
        if inner is not None:
            inner = inner if isinstance(inner, dict) else {"name": inner}
            return f".{key}{_curious(inner)}"
    return f": {named['name']}"


def _admission(experiment: Experiment, where: Where) -> Admission | None:
    said = experiment.admission
    if said == type(said)():
        return None
    limit, early = said.rate_limit, said.early_rejection
    made = Admission(
        said.max_waiting,
        said.max_waiting_per_replica,
        None if limit is None else _rate_limit(limit),
        None if early is None else _early_rejection(early, experiment, where),
    )
    with _told_at(where("admission")):
        admission.check(made, round(experiment.router_snapshot_s * 1e9))
    return made


def _rate_limit(limit: schema.RateLimit) -> admission.RateLimit:
    def bucket(said: schema.TokenBucket) -> admission.Bucket:
        return admission.Bucket(said.tokens_per_s, said.burst_tokens)

    tenants = {name: bucket(said) for name, said in limit.tenants.items()}
    return admission.RateLimit(bucket(limit), tenants, limit.charge)


def _early_rejection(
    early: schema.EarlyRejection, experiment: Experiment, where: Where
) -> admission.EarlyRejection:
    load = early.decode_load
    if early.max_ttft_s is None and not early.classes and load is None:
        raise ConfigError(
            f"{where('admission', 'early_rejection')}: needs a limit: give max_ttft_s, classes or "
            "decode_load"
        )
    general = early.max_ttft_s
    return admission.EarlyRejection(
        None if general is None else round(general * 1e9),
        {name: round(limit_s * 1e9) for name, limit_s in early.classes.items()},
        early.prefill_tokens_per_s,
        early.counts_cached,
        None if load is None else _decode_load(load, experiment, where),
    )


def _decode_load(load: schema.DecodeLoad, experiment: Experiment, where: Where) -> DecodeLimit:
    place = where("admission", "early_rejection", "decode_load")
    if experiment.pools.decode is None:
        raise ConfigError(f"{place}: there is no decode pool; leave it out")
    if load.predicted != (load.decode_s is not None):
        what = "needs decode_s, the mean time that a request decodes, in seconds"
        if not load.predicted:
            what = "has no use for decode_s; set predicted: true, or leave it out"
        raise ConfigError(f"{place}.predicted: {str(load.predicted).lower()}: {what}")
    with _told_at(place):
        return DecodeLimit(
            None if load.max_tbt_s is None else round(load.max_tbt_s * 1e9),
            load.max_kv_share,
            None if load.decode_s is None else round(load.decode_s * 1e9),
        )


def _sharing_note(experiment: Experiment, nodes: Topology | None) -> str:
    """Whether transfers contend, and for what."""
    if nodes is not None:
        return topology.sharing_note(experiment, nodes)
    transfer = experiment.pools.transfer
    assert transfer is not None
    assert transfer.bandwidth_bytes_per_s is not None
    if transfer.sharing == "none":
        return (
            f"KV transfers of {transfer.bandwidth_bytes_per_s / 1e9:g} GB/s each do not contend "
            "for links: contention is not modelled."
        )
    rates = ", ".join(
        f"{(pool.nic_bytes_per_s or transfer.bandwidth_bytes_per_s) / 1e9:g} GB/s ({role})"
        for role, pool in pools_of(experiment).items()
    )
    return (
        f"KV transfers share the NICs of their replicas max-min fairly: {rates}, each direction; "
        "other traffic and switches are not modelled."
    )


def check_nics(experiment: Experiment, where: Where) -> None:
    """A NIC's own bandwidth counts only where transfers share links."""
    transfer = experiment.pools.transfer
    links = transfer or experiment.migration
    if links is not None and links.sharing == "max-min" and experiment.topology is None:
        return
    for role, pool in pools_of(experiment).items():
        if pool.nic_bytes_per_s is not None:
            advice = "leave it out" if transfer is None else "set sharing: max-min in transfer"
            if experiment.topology is not None:
                advice = "with a topology set topology.nic.bytes_per_s"
            raise ConfigError(
                f"{where('pools', role, 'nic_bytes_per_s')}: {pool.nic_bytes_per_s:g}: counts "
                f"where transfers share links only; {advice}"
            )


def _replica(
    pool: Pool, role: str, model: specs.ModelSpec, folder: Path, where: Where
) -> tuple[ReplicaSpec, list[str]]:
    with _told_at(where("pools", role, "device")):
        device = specs.load_device(pool.device)
    tp, groups = pool.tensor_parallel, pool.data_parallel_attention
    _check_weights(pool, role, model, where)
    _check_layout(pool, role, model, where)
    stages = pipeline.parts_of(pool, role, model, where)
    with _told_at(where("pools", role, "kv")):
        blocks, origin = _blocks(pool, model, device, stages)
    place = where("pools", role, "policy")
    policy = _policy(pool, role, folder, where)
    with _told_at(place):
        policy.check(blocks // groups, pool.kv.block_tokens, pool.max_model_len)
    if policy.alone:
        _check_alone(pool, role, where)
    host_link.check(policy, stages, place)
    host_link.check_disk(pool, policy, where("pools", role, "kv"))
    step_time = pipeline.step_time(
        pool, model, device, stages, where("pools", role, "step_time"), folder
    )
    told = step_time.describe()
    spec = ReplicaSpec(
        policy=policy,
        num_blocks=blocks,
        step_time=step_time,
        block_tokens=pool.kv.block_tokens,
        max_model_len=pool.max_model_len,
        order=parts.order(pool, where("pools", role, "order"), folder),
        kv_bytes_per_token=specs.kv_bytes_per_token(model, pool.precision.kv),
        gpus=tp * len(stages),
        host_bandwidth_bytes_per_s=host_link.bandwidth(pool, policy, device, stages),
        host_overlap=pool.kv.host_overlap,
        disk_read_bytes_per_s=pool.kv.disk_bandwidth_bytes_per_s if policy.uses_disk else None,
        disk_write_bytes_per_s=(
            pool.kv.disk_write_bandwidth_bytes_per_s if policy.uses_disk else None
        ),
        nic_bytes_per_s=pool.nic_bytes_per_s,
        startup=startup.of_pool(pool, model, stages, where("pools", role, "restart")),
        kind=pipeline.kind_of(pool, policy, where("pools", role)),
    )
    return spec, [
        f"KV cache: {origin}.",
        f"step times: {told.model}: {told.origin}; error: {told.error}.",
        *host_link.notes(pool, policy, spec),
        *_group_notes(pool, blocks),
        *pipeline.notes(pool, model, device, stages),
    ]


def _policy(pool: Pool, role: str, folder: Path, where: Where) -> Policy:
    """An error about an option names the key that it was given by: it may be an engine's flag."""
    place = where("pools", role, "policy")
    try:
        return parts.policy(pool, place, folder)
    except ConfigError as error:
        for key in pool.policy:
            said = f"{place}.{key}: "
            if str(error).startswith(said):
                at = where("pools", role, "policy", key)
                raise ConfigError(f"{at}: {str(error).removeprefix(said)}") from None
        raise


def _check_weights(pool: Pool, role: str, model: specs.ModelSpec, where: Where) -> None:
    """A quantised checkpoint sets the format; one in 16 bits may be quantised by the engine."""
    given = pool.precision.weights
    if model.weights and given != model.weights:
        raise ConfigError(
            f"{where('pools', role, 'precision')}: weights: {given}, but quantization_config of "
            f"{model.name}'s config.json says {model.weights}; set precision: {model.weights}, or "
            "take that key out of the file to simulate the model unquantised"
        )


def _check_layout(pool: Pool, role: str, model: specs.ModelSpec, where: Where) -> None:
    """How GPUs share the model has to come out even; an error names the key that does not."""
    tp, groups = pool.tensor_parallel, pool.data_parallel_attention
    zipf, timed_by = pool.expert_imbalance.zipf, pool.step_time.get("model")
    try:
        specs.check_tensor_parallel(model, tp, groups)
        specs.check_experts(model, tp, pool.expert_parallel, groups)
        if zipf and not model.experts:
            raise ConfigError(f"expert_imbalance: zipf {zipf:g}: {model.name} has no experts")
        if zipf and timed_by == "linear":
            raise ConfigError(
                f"expert_imbalance: zipf {zipf:g}: step times of {timed_by} know no experts; "
                "try step_time: roofline"
            )
    except ConfigError as error:
        key = str(error).partition(":")[0]
        raise ConfigError(placed(where("pools", role, key), error)) from None


def _check_alone(pool: Pool, role: str, where: Where) -> None:
    """A policy that goes with replicas of one stage that do both, and sorts its queue itself."""
    place, name = where("pools", role, "policy"), pool.policy["name"]
    if role != "colocated":
        raise ConfigError(
            f"{place}.name: {name}: not modelled in a {role} pool; try one colocated pool, or "
            "vllm-v1 here"
        )
    if pool.pipeline_parallel > 1:
        raise ConfigError(
            f"{place}.name: {name}: not modelled with pipeline_parallel "
            f"{pool.pipeline_parallel}; try pipeline_parallel: 1"
        )
    if pool.order["name"] != "fcfs":
        raise ConfigError(
            f"{where('pools', role, 'order')}: {pool.order['name']}: {name} sorts its queue "
            "itself; leave order out, and choose policy.order: lpm or fcfs"
        )


def _group_notes(pool: Pool, blocks: int) -> list[str]:
    """What is left out where groups of GPUs attend apart."""
    groups = pool.data_parallel_attention
    if groups == 1:
        return []
    notes = [
        f"data_parallel_attention: one queue, policy and pool of KV blocks for all {groups} "
        "groups, as if requests were always spread evenly; the limits of a policy are those of all "
        "groups together."
    ]
    kept = blocks // groups * pool.kv.block_tokens
    if pool.max_model_len is not None and pool.max_model_len > kept:
        notes.append(
            f"data_parallel_attention: one group keeps {kept:,} tokens, fewer than max_model_len "
            f"{pool.max_model_len:,}: a request longer than that would not fit a real one."
        )
    return notes


def _blocks(
    pool: Pool, model: specs.ModelSpec, device: specs.DeviceSpec, stages: Sequence[ModelPart]
) -> tuple[int, str]:
    """Blocks of a replica: each stage keeps the KV of its own layers, and the fullest decides."""
    kv = pool.kv
    if kv.num_blocks is not None:
        return kv.num_blocks, f"{kv.num_blocks} blocks of {kv.block_tokens} tokens, as configured"
    if len(stages) == 1:
        return _blocks_of(pool, model, device, None)
    fitting = [_blocks_of(pool, model, device, part) for part in stages]
    least = min(range(len(stages)), key=lambda stage: fitting[stage][0])
    blocks, origin = fitting[least]
    return blocks, f"{origin}; stage {least + 1} of {len(stages)} has room for the fewest"


def _blocks_of(
    pool: Pool, model: specs.ModelSpec, device: specs.DeviceSpec, part: ModelPart | None
) -> tuple[int, str]:
    kv = pool.kv
    return specs.kv_blocks(
        model,
        device,
        precision=pool.precision.weights,
        kv_dtype=pool.precision.kv,
        tp=pool.tensor_parallel,
        data_attention=pool.data_parallel_attention,
        gpu_memory_utilization=kv.gpu_memory_utilization,
        block_tokens=kv.block_tokens,
        reserve_bytes=kv.activation_reserve_bytes,
        part=part,
    )


def work(
    experiment: Experiment,
    folder: Path,
    replicas: Sequence[ReplicaFacts],
    span_ns: tuple[int, int],
) -> ModelWork:
    """FLOPs and bytes of the model on this hardware, for MFU and MBU.

    Args:
        experiment: Resolved.
        folder: Where a local model file is looked for first.
        replicas: All that there were.
        span_ns: The time over which they count, each while it is there.
    """
    from sim.model_work import model_work

    model = load_model(experiment.model, folder, "model")
    names = [replica.pool for replica in replicas]
    return model_work(model, _hardware(experiment, names), shares_there(replicas, span_ns))


def _hardware(experiment: Experiment, names: Sequence[str]) -> list[Hardware]:
    """Of replicas, by the names of their pools."""
    from sim.model_work import Hardware

    by_name = {POOL_NAMES[role]: pool for role, pool in pools_of(experiment).items()}
    return [
        Hardware(
            device=specs.load_device(pool.device),
            tensor_parallel=pool.tensor_parallel,
            precision=pool.precision.weights,
            kv_dtype=pool.precision.kv,
            data_attention=pool.data_parallel_attention,
            pipeline_parallel=pool.pipeline_parallel,
            zipf=pool.expert_imbalance.zipf,
        )
        for pool in map(by_name.__getitem__, names)
    ]
