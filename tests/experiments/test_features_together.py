"""Features of clusters and workloads put together at random, through configs.

Each config either runs, with the same integers whether or not equal iterations are advanced at once
and whenever it is run again, or is refused with one clear error.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments import changes, cluster, config
from experiments.workload import build_workload
from sim.errors import ConfigError
from sim.event_loop import simulate
from sim.records import FINISHED, UNFINISHED, SimulationResult

SEEDS = 10
MORE_SEEDS = 300


def config_of(seed: int) -> dict[str, Any]:
    """A config with a few features, most of which go together."""
    draw = random.Random(seed)
    two = draw.random() < 0.65
    drawn: dict[str, Any] = {
        "model": "llama-3.1-8b",
        "device": "h100-sxm",
        "max_model_len": 4096,
        "seed": seed,
        "check": True,
        "step_time": {"model": "linear", "base_s": 0.006, "prefill_token_s": 3e-5},
        "workload": _workload(draw),
        "policy": _policy(draw),
        "kv": {"num_blocks": draw.choice([300, 400, 2000]), "host_bandwidth_bytes_per_s": 2e10},
        "router": draw.choice(
            ["round-robin", "least-outstanding", "least-kv", "power-of-two", "prefix-aware"]
        ),
    }
    if two:
        drawn["pools"] = _pools(draw)
    else:
        drawn["replicas"] = draw.randint(1, 4)
    for feature in draw.sample(FEATURES, draw.randint(1, 4)):
        feature(draw, drawn, two)
    return drawn


def _workload(draw: random.Random) -> dict[str, Any]:
    workload: dict[str, Any] = draw.choice(
        [
            {"preset": "azure-conv-2023"},
            {
                "preset": {"name": "editor-chat", "turns": 4, "delay_s": 0.5},
                "sessions": {"on_failed_turn": draw.choice(["skip", "continue"])},
            },
            {
                "preset": {
                    "name": "documents",
                    "documents": 4,
                    "document_tokens": 800,
                    "question_tokens": 50,
                    "output_tokens": 40,
                }
            },
        ]
    )
    sessions = "sessions" in workload
    arrivals = {"process": "poisson", "rate_per_s": draw.choice([1, 5] if sessions else [4, 20])}
    return {**workload, "requests": 40, "max_tokens": 1024, "arrivals": arrivals}


def _policy(draw: random.Random) -> dict[str, Any]:
    return draw.choice(
        [
            {"name": "vllm-v1", "max_num_batched_tokens": 1024},
            {"name": "vllm-v1", "max_num_batched_tokens": 512, "prefix_cache": True},
            {"name": "vllm-v1", "prefix_cache": True, "host_cache_blocks": 500},
            {"name": "vllm-v0"},
            {"name": "sarathi"},
            {"name": "sglang"},
            {"name": "distserve"},
        ]
    )


def _pools(draw: random.Random) -> dict[str, Any]:
    transfer: dict[str, Any] = {
        "bandwidth_bytes_per_s": draw.choice([5e8, 2e10]),
        "sharing": draw.choice(["none", "max-min", "max-min"]),
        "latency_s": draw.choice([0, 0.003]),
    }
    if draw.random() < 0.4:
        transfer["start"] = "push"
        transfer["overlap"] = draw.choice(["none", "layerwise", "chunked"])
    options = [
        {"batch_wait_s": 0.004, "batch_bytes": 10**8},
        {"staging": {"bytes": 3 * 10**8, "bandwidth_bytes_per_s": 1e10}},
        {"decode_first": True},
        {"recompute_last_token": True},
        {"blocks_decode": True, "max_waiting_share": 0.05},
        {"message_bytes": 65536, "per_message_s": 1e-5},
        {"hold_timeout_s": 0.05, "on_hold_timeout": "fail"},
        {"hold_timeout_s": 0.02},
    ]
    for option in draw.sample(options, draw.choice([0, 1, 1, 2])):
        transfer.update(option)
    return {
        "prefill": {"replicas": draw.randint(1, 3)},
        "decode": {"replicas": draw.randint(1, 3)},
        "transfer": transfer,
    }


def _topology(draw: random.Random, drawn: dict[str, Any], two: bool) -> None:
    drawn["topology"] = {
        "gpus_per_node": draw.choice([2, 4]),
        "nics_per_node": draw.choice([1, 2]),
        "nic": {"bytes_per_s": draw.choice([1e9, 2.5e10])},
        "nodes_per_leaf": 1,
        "oversubscription": draw.choice([1, 2]),
    }
    if two:
        drawn["pools"]["transfer"].pop("bandwidth_bytes_per_s")
        drawn["pools"]["transfer"].pop("sharing")


def _failures(draw: random.Random, drawn: dict[str, Any], two: bool) -> None:
    drawn["failures"] = {"mtbf_s": draw.choice([1, 5]), "mttr_s": 0.5, "until_s": 20}
    drawn["on_failure"] = draw.choice(["reroute", "fail"])


def _stragglers(draw: random.Random, drawn: dict[str, Any], two: bool) -> None:
    drawn["stragglers"] = {"mtbs_s": 2, "duration_s": 1, "factor": 1.7, "until_s": 20}


def _events(draw: random.Random, drawn: dict[str, Any], two: bool) -> None:
    pool = {"pool": draw.choice(["prefill", "decode"])} if two else {}
    kinds = [
        [{"what": "fail"}, {"what": "restore"}],
        [{"what": "add"}, {"what": "drain"}],
        [{"what": "role"}, {"what": "fail"}],
        [{"what": "slow", "factor": 2}, {"what": "normal"}],
        [{"what": "degrade", "factor": 0.2}, {"what": "mend"}],
    ]
    drawn["events"] = [
        {"at_s": at, **event, **pool}
        for at, event in zip([1.0, 2.5], draw.choice(kinds), strict=True)
    ]


def _restart(draw: random.Random, drawn: dict[str, Any], two: bool) -> None:
    drawn["restart"] = {"load_s": 0.7, "warm_up": {"iterations": 5, "factor": 1.5}}


def _autoscale(draw: random.Random, drawn: dict[str, Any], two: bool) -> None:
    scale = {
        "autoscaler": {"name": "queue-length", "target": 3},
        "min_replicas": draw.choice([0, 1]),
        "max_replicas": 4,
        "interval_s": 0.5,
        "cool_down_down_s": 1,
        "provisioning_s": draw.choice([0, 0.8]),
        "take_back": draw.random() < 0.5,
    }
    pool = drawn["pools"][draw.choice(["prefill", "decode"])] if two else drawn
    pool["autoscale"] = scale


def _migration(draw: random.Random, drawn: dict[str, Any], two: bool) -> None:
    mode = draw.choice(["live", "stop", "recompute"])
    drawn["migration"] = {"migrator": draw.choice(["llumnix", "evacuation"]), "mode": mode}
    if not two and mode != "recompute" and "topology" not in drawn:
        drawn["migration"]["bandwidth_bytes_per_s"] = 5e9


def _prefix_fetch(draw: random.Random, drawn: dict[str, Any], two: bool) -> None:
    drawn["prefix_fetch"] = {} if two else {"bandwidth_bytes_per_s": 5e9}
    drawn["policy"] = {"name": "vllm-v1", "prefix_cache": True}
    drawn["router"] = draw.choice(["mooncake", "least-outstanding"])
    if two:
        drawn["decode_router"] = "least-kv"


def _local_prefill(draw: random.Random, drawn: dict[str, Any], two: bool) -> None:
    if two:
        drawn["pools"]["local_prefill"] = {"max_uncached_tokens": 400, "max_queue": 3}


def _roles(draw: random.Random, drawn: dict[str, Any], two: bool) -> None:
    if not two:
        return
    switcher = {"name": "pressure", "ttft_s": draw.choice([0.05, 0.3]), "tpot_s": 0.02}
    drawn["pools"]["role_switching"] = {
        "switcher": switcher,
        "interval_s": 0.2,
        "cool_down_s": draw.choice([0, 1]),
    }


def _mixed_pool(draw: random.Random, drawn: dict[str, Any], two: bool) -> None:
    if two:
        share = draw.choice([0.4, 0.9])
        drawn["pools"]["mixed_pool"] = {"max_prompt_tokens": 800, "max_kv_share": share}


def _pipeline(draw: random.Random, drawn: dict[str, Any], two: bool) -> None:
    drawn["pipeline_parallel"] = 2
    drawn["chunked_pipeline"] = draw.random() < 0.5


def _admission(draw: random.Random, drawn: dict[str, Any], two: bool) -> None:
    early: dict[str, Any] = {"max_ttft_s": 2}
    if two:
        early["decode_load"] = {"max_kv_share": 0.7, "predicted": True, "decode_s": 1}
    drawn["admission"] = {"early_rejection": early, "max_waiting": 20}


def _cancel(draw: random.Random, drawn: dict[str, Any], two: bool) -> None:
    after = {"distribution": "exponential", "mean_s": 1}
    drawn["workload"]["cancel"] = {"share": 0.4, "after": after}


def _snapshots(draw: random.Random, drawn: dict[str, Any], two: bool) -> None:
    drawn["router_snapshot_s"] = 0.1


FEATURES = [
    _topology,
    _failures,
    _stragglers,
    _events,
    _restart,
    _autoscale,
    _migration,
    _prefix_fetch,
    _local_prefill,
    _roles,
    _mixed_pool,
    _pipeline,
    _admission,
    _cancel,
    _snapshots,
]


def run(drawn: dict[str, Any], *, fast_forward: bool) -> SimulationResult:
    plan = config.load(drawn)
    variant = plan.variants[0]
    built = cluster.build(variant, Path())
    workload = build_workload(variant, Path(), built.max_model_len)
    return simulate(
        workload.source,
        built.cluster,
        seed=variant.seed,
        fast_forward=fast_forward,
        check=True,
        cluster_events=changes.events_of(variant),
    )


def check(seed: int) -> bool:
    """Run one config three times; False if it is refused."""
    drawn = config_of(seed)
    try:
        fast = run(drawn, fast_forward=True)
    except ConfigError as error:
        line = str(error)
    else:
        line = ""
    if line:
        assert "\n" not in line
        return False
    again = run(drawn, fast_forward=True)
    slow = run(drawn, fast_forward=False)
    for other in (again, slow):
        assert other.end_ns == fast.end_ns
        for name, column in fast.requests.items():
            np.testing.assert_array_equal(column, other.requests[name], err_msg=name)
        for table in ("transfers", "changes", "migrations", "fetches"):
            for name, column in getattr(fast, table).items():
                np.testing.assert_array_equal(column, getattr(other, table)[name], err_msg=name)
        for row in range(len(fast.requests["index"])):
            np.testing.assert_array_equal(fast.token_times_ns(row), other.token_times_ns(row))
    requests = fast.requests
    assert len(set(requests["index"].tolist())) == len(requests["index"])
    if np.any(requests["state"] == UNFINISHED):  # only where a pool has lost its last replica
        assert changes.left_without_replicas(config.load(drawn).variants[0], fast)
    done = requests["state"] == FINISHED
    np.testing.assert_array_equal(requests["emitted_tokens"][done], requests["output_tokens"][done])
    assert np.all(requests["emitted_tokens"] <= requests["output_tokens"])
    return True


def test_features_put_together_at_random_keep_their_integers() -> None:
    assert sum(check(seed) for seed in range(SEEDS)) >= SEEDS // 4


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_more_features_put_together_at_random(block: int) -> None:
    step = MORE_SEEDS // 10
    seeds = range(1000 + block * step, 1000 + (block + 1) * step)
    assert sum(check(seed) for seed in seeds) >= step // 4


def two_pools(transfer: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "workload": {"preset": "azure-conv-2023", "requests": 5, "max_tokens": 512},
        "model": "llama-3.1-8b",
        "policy": "vllm-v1",
        "pools": {"prefill": {"replicas": 1}, "decode": {"replicas": 1}, "transfer": transfer},
        **more,
    }


def test_messages_over_a_topology_are_refused_with_their_place() -> None:
    topology = {"gpus_per_node": 4, "nics_per_node": 1, "nic": {"bytes_per_s": 1e9}}
    transfer = {"message_bytes": 65536, "per_message_s": 1e-5}
    place = r"^config: pools\.transfer\.message_bytes: 65536: with a"
    with pytest.raises(ConfigError, match=place):
        config.load(two_pools(transfer, topology=topology))


@pytest.mark.parametrize(
    "change",
    [
        {"failures": {"mtbf_s": 9, "mttr_s": 1}},
        {"stragglers": {"mtbs_s": 9, "duration_s": 1, "factor": 2}},
        {"events": [{"at_s": 1, "what": "fail", "pool": "decode"}]},
    ],
)
def test_staging_where_replicas_change_is_refused_with_its_place(change: dict[str, Any]) -> None:
    staging = {"bytes": 1e9, "bandwidth_bytes_per_s": 1e9}
    transfer = {"bandwidth_bytes_per_s": 1e9, "staging": staging}
    (key,) = change
    place = rf"^config: pools\.transfer\.staging: is not modelled .* or {key}"
    with pytest.raises(ConfigError, match=place):
        config.load(two_pools(transfer, **change))
