"""Routers in a config: those within others, snapshots, classes; what is refused, in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments import cluster
from experiments.config import load
from experiments.json_schema import json_schema
from experiments.without_effect import of_cluster, of_requests
from experiments.workload import build_workload
from policies import ClassAware, LeastKV, PowerOfTwo, SessionAffinity
from sim.admission import Admission, Bucket, EarlyRejection, RateLimit
from sim.errors import ConfigError
from tests.experiments.test_config_schema import accepts

BASE: dict[str, Any] = {
    "workload": {"preset": "sharegpt-like", "requests": 10},
    "model": "llama-3.1-8b",
    "policy": "vllm-v1",
    "replicas": 3,
    "step_time": {"model": "linear", "base_s": 0.01},
}


def built(**keys: Any) -> Any:
    (experiment,) = load({**BASE, **keys}).variants
    return cluster.build(experiment, Path()).cluster.entry


def refusal(**keys: Any) -> str:
    with pytest.raises(ConfigError) as error:
        load({**BASE, **keys})
    line = str(error.value)
    assert "\n" not in line
    return line


def test_a_router_within_another_is_a_name_or_has_options() -> None:
    by_name = built(router={"name": "session-affinity", "fallback": "power_of_two"}).router
    by_default = built(router="session-affinity").router
    nested = {"name": "session-affinity", "fallback": {"name": "least-kv"}}
    placed = built(router={"name": "class-aware", "classes": {"chat": [0]}, "within": nested})

    assert isinstance(by_name, SessionAffinity)
    assert isinstance(by_name.fallback, PowerOfTwo)
    assert isinstance(by_default, SessionAffinity)
    assert isinstance(placed.router, ClassAware)
    assert isinstance(placed.router.within.fallback, LeastKV)  # type: ignore[attr-defined]


def test_a_snapshot_interval_is_in_nanoseconds_and_off_by_default() -> None:
    assert built().snapshot_ns == 0
    assert built(router_snapshot_s=0.05).snapshot_ns == 50_000_000


def test_both_pools_have_it() -> None:
    pools = {
        "prefill": {"replicas": 1},
        "decode": {"replicas": 2},
        "transfer": {"bandwidth_bytes_per_s": 1e9},
    }
    keys = {key: value for key, value in BASE.items() if key != "replicas"}
    (experiment,) = load({**keys, "pools": pools, "router_snapshot_s": 1}).variants
    made = cluster.build(experiment, Path()).cluster

    assert made.decode is not None
    assert made.entry.snapshot_ns == made.decode.snapshot_ns == 10**9


CLASSES = {"name": "class-aware", "classes": {"chat": [0, 1]}}


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        (
            {"router": {"name": "session-affinity", "fallback": "round-robbin"}},
            "config: router.fallback: no router 'round-robbin'; try round-robin",
        ),
        (
            {"router": {"name": "session-affinity", "fallback": {"name": "kv-aware", "temp": 1}}},
            "config: router.fallback.temp: kv-aware has no such option; try temperature",
        ),
        (
            {"router": {"name": "consistent-hash", "load_factor": 0.9}},
            "config: router.load_factor: 0.9: expected at least 1",
        ),
        (
            {"router": {"name": "prefix-aware", "cache_threshold": 1.5}},
            "config: router.cache_threshold: 1.5: expected at most 1",
        ),
        (
            {"router": "class-aware"},
            "config: router.classes: is required by class-aware",
        ),
        (
            {"router": {**CLASSES, "classes": {"chat": [0, 3]}}},
            "config: router: classes.chat: 3: there is no such replica; choose from 0 to 2",
        ),
        (
            {"router": {**CLASSES, "classes": {"chat": [0, 1, 2]}}},
            "config: router: classes: list all 3 replicas, so that none is left for requests of "
            "other classes or of none; say which serve these: others",
        ),
        (
            {"router": {**CLASSES, "classes": {"chat": [0], "agent": 0}}},
            "config: router.classes.agent: 0: expected a list of replica indices",
        ),
        (
            {"router": {**CLASSES, "classes": {"agent": [0, "x"]}}},
            "config: router.classes.agent: x: expected a whole number",
        ),
        (
            {"router": {**CLASSES, "overflow": {"chat": "many"}}},
            "config: router.overflow.chat: many: expected a whole number",
        ),
        (
            {"chunked_prefill_size": 100},
            "config: chunked_prefill_size: vllm-v1 has no such option; choose one of "
            "disk_cache_blocks, host_cache_blocks, long_prefill_token_threshold, "
            "max_num_batched_tokens, max_num_seqs, prefix_cache, reserve_full_prompt, "
            "uncached_first, watermark",
        ),
        (
            {"router": {"name": "session-affinity", "fallback": None}},
            "config: router.fallback: null: expected a router; leave it out for the default",
        ),
        (
            {"router": {**CLASSES, "overflow": {"chta": 3}}},
            "config: router: overflow.chta: no such class; did you mean chat?",
        ),
        (
            {"router": "kv-aware", "router_snapshot_s": 0.1},
            "config: router: kv-aware: looks into caches, of which a snapshot shows nothing; try "
            "router_snapshot_s: 0, or prefix-aware, which keeps an index of its own",
        ),
        (
            {"router": {**CLASSES, "within": "kv-aware"}, "router_snapshot_s": 0.1},
            "config: router.within: kv-aware: looks into caches, of which a snapshot shows "
            "nothing; try router_snapshot_s: 0, or prefix-aware, which keeps an index of its own",
        ),
        (
            {"router_snapshot_s": 1e-10},
            "config: router_snapshot_s: 1e-10: expected 0, for the state as it is, or at least "
            "0.001: a run looks at all replicas once an interval",
        ),
        (
            {"router": {"name": "session-affinity", "fallback": "session_affinity"}},
            "config: router: fallback: session-affinity: cannot be its own fallback; try "
            "least-outstanding",
        ),
        (
            {"admission": {"early_rejection": {}}},
            "config: admission.early_rejection: needs a limit: give max_ttft_s, classes "
            "or decode_load",
        ),
        (
            {"admission": {"rate_limit": {"tokens_per_s": 5}}},
            "config: admission.rate_limit.burst_tokens: is required",
        ),
        (
            {"admission": {"max_wating": 5}},
            "config: admission.max_wating: admission has no such option; try max_waiting",
        ),
        (
            {
                "admission": {"early_rejection": {"max_ttft_s": 1, "counts_cached": True}},
                "router_snapshot_s": 1,
            },
            "config: admission: early_rejection.counts_cached: true looks into caches, of which a "
            "snapshot shows nothing; try router_snapshot_s: 0",
        ),
        ({"router_snapshot_s": -1}, "config: router_snapshot_s: -1: expected at least 0"),
    ],
)
def test_what_is_refused(keys: dict[str, Any], line: str) -> None:
    assert refusal(**keys) == line


def test_admission_is_built_in_nanoseconds() -> None:
    keys = {
        "max_waiting": 100,
        "rate_limit": {
            "tokens_per_s": 1000,
            "burst_tokens": 100_000,
            "tenants": {"acme": {"tokens_per_s": 1, "burst_tokens": 2}},
            "charge": "prompt",
        },
        "early_rejection": {"max_ttft_s": 1.5, "classes": {"tab": 0.1}, "counts_cached": True},
    }
    (experiment,) = load({**BASE, "admission": keys}).variants

    assert cluster.build(experiment, Path()).cluster.admission == Admission(
        max_waiting=100,
        rate_limit=RateLimit(Bucket(1000, 100_000), {"acme": Bucket(1, 2)}, "prompt"),
        early_rejection=EarlyRejection(1_500_000_000, {"tab": 100_000_000}, counts_cached=True),
    )
    assert accepts(json_schema(), {**BASE, "admission": keys}, json_schema())


def test_without_the_section_nobody_is_judged() -> None:
    (experiment,) = load(BASE).variants

    assert cluster.build(experiment, Path()).cluster.admission is None


def test_the_schema_for_editors_knows_routers_within_routers() -> None:
    schema = json_schema()
    router = schema["properties"]["router"]
    fallback = {"name": "session-affinity", "fallback": {"name": "kv-aware", "temperature": 1}}

    assert accepts(router, "class-aware", schema)
    assert accepts(router, {**CLASSES, "within": "least-kv", "overflow": {"chat": 2}}, schema)
    assert accepts(router, fallback, schema)
    assert not accepts(router, {**CLASSES, "within": "least-vk"}, schema)
    assert not accepts(router, {"name": "consistent-hash", "load_factor": 0.5}, schema)


OWN = '''
from dataclasses import dataclass
from sim.policy import Router

@dataclass
class Roomiest(Router):
    """Most free blocks, less those that the queue will take."""

    weight: int = 1

    def pick(self, request, replicas):
        return max(replicas, key=self._room)

    def _room(self, view):
        assert view.cached_tokens is not None
        waiting = -(-view.waiting_tokens // view.block_tokens)
        return view.total_blocks - view.used_blocks - self.weight * waiting
'''


def test_a_users_own_router_sees_memory_and_queues(tmp_path: Path) -> None:
    from sim.event_loop import simulate
    from sim.request import Arrival

    (tmp_path / "my_roomiest.py").write_text(OWN)
    (tmp_path / "t.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,10,5\n1,20,8\n")
    (tmp_path / "c.yaml").write_text(
        "workload: {trace: t.csv, max_tokens: 9}\nmodel: llama-3.1-8b\npolicy: vllm-v1\n"
        "replicas: 2\nstep_time: {model: linear, base_s: 0.01}\n"
        "router: {name: session-affinity, fallback: {name: 'my_roomiest:Roomiest', weight: 2}}\n"
    )
    (experiment,) = load(tmp_path / "c.yaml").variants
    made = cluster.build(experiment, tmp_path).cluster
    result = simulate([Arrival(0, 40, 5, 5, i) for i in range(4)], made)

    assert result.requests["replica"].tolist() == [0, 1, 0, 1]


CACHED = {"policy": {"name": "vllm-v1", "prefix_cache": True}}


@pytest.mark.parametrize(
    ("keys", "note"),
    [
        ({"router_snapshot_s": 1}, "router_snapshot_s 1 has no effect: the routers go by nothing"),
        ({"router_snapshot_s": 1, "router": "prefix-aware"}, "router_snapshot_s 1 has no effect"),
        (
            {"router_snapshot_s": 1, "replicas": 1},
            "router_snapshot_s 1 has no effect: no router has a choice",
        ),
        ({"router_snapshot_s": 1, "router": "least-kv"}, ""),
        ({"router_snapshot_s": 1, "admission": {"max_waiting": 3}}, ""),
        ({"router": {**CLASSES, "within": "kv-aware"}}, "router kv-aware: no pool has a prefix"),
        ({"router": "kv-aware", **CACHED}, ""),
        (
            {"admission": {"early_rejection": {"max_ttft_s": 1, "counts_cached": True}}},
            "admission.early_rejection.counts_cached has no effect",
        ),
        ({"order": "mlfq", "policy": "orca"}, "order mlfq: only sorts the queue: under policy"),
        ({"order": "mlfq"}, ""),
        (
            {"admission": {"max_waiting": 3, "max_waiting_per_replica": 3}},
            "admission.max_waiting_per_replica 3 has no effect",
        ),
        ({"admission": {"max_waiting": 4, "max_waiting_per_replica": 3}}, ""),
    ],
)
def test_what_has_no_effect_on_a_cluster_is_said(keys: dict[str, Any], note: str) -> None:
    (experiment,) = load({**BASE, **keys}).variants
    said = of_cluster(experiment, cluster.build(experiment, Path()).cluster)

    assert [text[: len(note)] for text in said] == ([note] if note else [])


@pytest.mark.parametrize(
    ("keys", "notes"),
    [
        ({"router": "session-affinity"}, ["router session-affinity: no request has a session"]),
        (
            {"router": {**CLASSES, "within": "consistent-hash"}},
            ["router consistent-hash: requests have neither session nor tenant nor block ids"],
        ),
        ({"router": "prefix-aware"}, ["router prefix-aware: the trace has no block ids"]),
        (
            {"admission": {"rate_limit": {"tokens_per_s": 5, "burst_tokens": 1}}},
            [
                "admission.rate_limit: no request has a tenant, so that all share one bucket.",
                "admission.rate_limit: 10 of 10 requests cost more than burst_tokens",
            ],
        ),
    ],
)
def test_what_no_request_gives_a_router_is_said(keys: dict[str, Any], notes: list[str]) -> None:
    (experiment,) = load({**BASE, **keys}).variants
    trace = build_workload(experiment, Path(), None).trace
    said = of_requests(trace, experiment)

    assert [text[: len(note)] for text, note in zip(said, notes, strict=True)] == notes
