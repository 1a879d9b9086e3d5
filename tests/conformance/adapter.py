"""Runs a workload of the reference's format on phasewise, and gives its result in common shape.

Beyond that format: any of our routers by name, ``order`` of a replica and ``predictor`` of the
workload by name, ``priority``, ``deadline_ns``, ``cancel_at_ns`` and ``cancel_after_s`` of a
request, ``host_bandwidth``, ``kv_bytes_per_token`` and ``nic_bytes_per_s`` of a replica,
``recompute_last_token``, ``sharing``, ``blocks_decode``, ``start``, ``decode_first``,
``max_waiting_share``, ``overlap``, ``layers``, ``layerwise_above_tokens`` and all that concerns
messages, batches and staging (bytes, bandwidth) of the transfer, ``local_prefill`` of two pools and
``stages`` of a replica: a step time for each, with the ``link`` between them.
"""

from __future__ import annotations

from typing import Any

from policies import ORDERS, POLICIES, PREDICTORS, ROUTERS
from sim.cluster import Cluster
from sim.content import Content
from sim.event_loop import simulate
from sim.local_prefill import LocalPrefill
from sim.pipeline import PipelineReplica
from sim.policy import Router
from sim.pool import PoolSpec
from sim.records import STATES, Record, SimulationResult
from sim.replica_spec import ReplicaSpec
from sim.request import Arrival
from sim.stages import PipelineStepTime, StageLink
from sim.step_time import LinearStepTime
from sim.transfer import StagingSpec, TransferSpec
from tests.conformance.cases import Observed, by_start
from tests.conformance.workloads import Spec

NOT_OPTIONS = (
    *("policy", "total_blocks", "block_tokens", "max_model_len", "step_time", "order"),
    *("stages", "link", "activations", "host_bandwidth", "host_overlap", "kv_bytes_per_token"),
    *("disk_read", "disk_write"),
    "nic_bytes_per_s",
)
"""Keys of a replica that are not options of its policy."""


_OPTIONAL = ("priority", "deadline_ns")
SKIPPED = {
    "status": "skipped",
    "reason": None,
    "token_times_ns": [],
    "preemptions": 0,
    "replica": None,
    "decode_replica": None,
}
"""What is said of a turn that never arrived."""


def observe(spec: Spec, *, fast_forward: bool) -> Observed:
    """What comes of the workload."""
    cluster, names = build(spec)
    record = Record(decisions=True, steps=True)
    source = feed(spec)
    result = simulate(source, cluster, fast_forward=fast_forward, check=True, record=record)
    return observe_result(spec, result, names)


def feed(spec: Spec) -> Any:
    """What `simulate` is fed: the requests, or their sessions."""
    if not any("session" in r for r in spec["requests"]) and "concurrency" not in spec:
        return arrivals(spec)
    from tests.conformance.sessioned import source_of

    return source_of(spec)


def arrivals(spec: Spec) -> list[Arrival]:
    """The requests; without max_tokens a request asks for its true output."""
    rows = []
    for index, r in enumerate(spec["requests"]):
        most = r.get("max_tokens")
        output = r["output_tokens"]
        most = output if most is None else most
        more = {name: r[name] for name in _OPTIONAL if name in r}
        more |= {"content": content_of(r), "cancel_after_ns": cancel_after_ns(r)}
        rows.append(Arrival(r["arrival_ns"], r["prompt_tokens"], output, most, index, **more))
    return sorted(rows, key=lambda arrival: arrival.arrival_ns)


def cancel_after_ns(request: Spec) -> int | None:
    """When its client gives up, from its arrival; None: never."""
    if "cancel_at_ns" in request:
        return int(request["cancel_at_ns"] - request["arrival_ns"])
    return round(request["cancel_after_s"] * 1e9) if "cancel_after_s" in request else None


def content_of(request: Spec) -> Content | None:
    """What its tokens are."""
    if "content" in request:
        return Content(request["content"])
    if "block_ids" not in request:
        return None
    size, prompt = request["block_ids_tokens"], request["prompt_tokens"]
    return Content.of_blocks(request["block_ids"], size, prompt)


def build(spec: Spec) -> tuple[Cluster, list[str]]:
    """The cluster, and the reference's name of each replica by its position."""
    layout = spec.get("disaggregated")
    predictor = PREDICTORS[spec["predictor"]]() if "predictor" in spec else None
    if layout is None:
        entry = _pool("replica", spec["replicas"], spec.get("router", "round_robin"), 0)
        return Cluster(entry, predictor=predictor), _names(entry)
    wire = layout["transfer"]
    default = spec.get("router", "round_robin")
    kv_bytes = wire["kv_bytes_per_token"]
    entry = _pool("prefill", layout["prefill"], layout.get("router", default), kv_bytes)
    # KV that is swapped out there may have another size than on the wire; one that becomes a
    # prefill replica sends by the size on the wire.
    own = [{"kv_bytes_per_token": kv_bytes} | config for config in layout["decode"]]
    decode = _pool("decode", own, layout.get("decode_router", default), 0)
    again = layout.get("recompute_last_token", wire.get("recompute_last_token", False))
    shares = wire.get("sharing", "none") == "max-min"
    transfer = TransferSpec(
        wire["bandwidth_bytes_per_s"],
        wire.get("latency_s", 0.0),
        again,
        shares_links=shares,
        blocks_decode=wire.get("blocks_decode", False),
        push=wire.get("start", "pull") == "push",
        overlap=wire.get("overlap", "none"),
        layers=wire.get("layers", 0),
        layerwise_above_tokens=wire.get("layerwise_above_tokens", 0),
        message_bytes=wire.get("message_bytes"),
        per_message_s=wire.get("per_message_s", 0.0),
        batch_wait_s=wire.get("batch_wait_s"),
        batch_bytes=wire.get("batch_bytes"),
        staging=StagingSpec(*wire["staging"]) if "staging" in wire else None,
        decode_first=wire.get("decode_first", False),
        max_waiting_share=wire.get("max_waiting_share"),
    )
    local = LocalPrefill(**layout["local_prefill"]) if "local_prefill" in layout else None
    cluster = Cluster(entry, decode, transfer, predictor, local_prefill=local)
    return cluster, _names(entry) + _names(decode)


def _pool(name: str, configs: list[Spec], router: str, kv_bytes_per_token: int) -> PoolSpec:
    """Replicas configured alike share one spec, as those of a pool in a config do."""
    made: list[tuple[Spec, ReplicaSpec]] = []
    for config in configs:
        alike = next((replica for other, replica in made if other == config), None)
        made.append((config, alike or _replica(config, kv_bytes_per_token)))
    return PoolSpec(name, [replica for _, replica in made], _router(router.replace("_", "-")))


def _router(name: str) -> Router:
    """A router with default options, and what it has to be told."""
    told = {"classes": {"a": [0]}, "others": [0]} if name == "class-aware" else {}
    made: Router = ROUTERS[name](**told)
    return made


def _replica(config: Spec, kv_bytes_per_token: int) -> ReplicaSpec:
    options = {name: value for name, value in config.items() if name not in NOT_OPTIONS}
    if not options.get("prefix_cache"):
        options.pop("uncached_first", None)
    order = config.get("order", "fcfs")
    if config["policy"] == "sglang":  # sorts its queue itself
        options, order = options | {"order": config.get("order", "lpm")}, "fcfs"
    return ReplicaSpec(
        policy=POLICIES[config["policy"]](**options),
        num_blocks=config["total_blocks"],
        block_tokens=config.get("block_tokens", 16),
        max_model_len=config.get("max_model_len"),
        kv_bytes_per_token=kv_bytes_per_token or config.get("kv_bytes_per_token", 0),
        host_bandwidth_bytes_per_s=config.get("host_bandwidth"),
        host_overlap=config.get("host_overlap", False),
        disk_read_bytes_per_s=config.get("disk_read"),
        disk_write_bytes_per_s=config.get("disk_write"),
        nic_bytes_per_s=config.get("nic_bytes_per_s"),
        order=ORDERS[order](),
        **_staged(config),
    )


def _staged(config: Spec) -> dict[str, Any]:
    """The step time and the class of a replica with stages."""
    if "stages" not in config:
        return {"step_time": LinearStepTime(**config.get("step_time", {}))}
    link = {"bytes_per_token": 0, "bandwidth_bytes_per_s": 1.0} | (
        config.get("link") or config.get("activations") or {}
    )
    models = [LinearStepTime(**stage) for stage in config["stages"]]
    return {"step_time": PipelineStepTime(models, StageLink(**link)), "kind": PipelineReplica}


def _names(pool: PoolSpec) -> list[str]:
    return [f"{pool.name}{i}" for i in range(len(pool.replicas))]


def observe_result(spec: Spec, result: SimulationResult, names: list[str]) -> Observed:
    """A result in the common shape; `names` are those of its replicas."""
    table = {name: column.tolist() for name, column in result.requests.items()}
    requests: list[dict[str, Any]] = [dict(SKIPPED) for _ in spec["requests"]]
    for i, index in enumerate(table["index"]):
        requests[index] = {
            "status": STATES[table["state"][i]],
            "reason": result.reasons[table["reason"][i]] or None,
            "token_times_ns": result.token_times_ns(index).tolist(),
            "preemptions": table["preemptions"][i],
            "replica": _name(names, table["replica"][i]),
            "decode_replica": _name(names, table["decode_replica"][i]),
        }
    log: dict[str, list[Any]] = {}
    for x in result.decisions:
        entry = [x.start_ns, x.end_ns, dict(x.tokens), list(x.preempted), x.free_after]
        log.setdefault(names[x.replica], []).append(entry)
    return {"requests": requests, "log": log, "transfers": _transfers(spec, result, names)}


def _name(names: list[str], place: int) -> str | None:
    return None if place < 0 else names[place]


def _transfers(spec: Spec, result: SimulationResult, names: list[str]) -> list[list[Any]]:
    t = {name: column.tolist() for name, column in result.transfers.items()}
    columns = ("request", "source", "target", "start_ns", "end_ns", "bytes")
    rows = []
    for request, source, target, start, end, num_bytes in zip(*map(t.get, columns), strict=True):
        layout = spec["disaggregated"]
        block_tokens = layout["prefill"][source].get("block_tokens", 16)
        blocks = num_bytes // (block_tokens * layout["transfer"]["kv_bytes_per_token"])
        rows.append([request, names[source], names[target], start, end, blocks])
    return by_start(rows)
