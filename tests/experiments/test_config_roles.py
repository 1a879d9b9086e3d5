"""Role switching in a config: what it gives, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from experiments.bundle import Bundle
from experiments.config import load
from experiments.json_schema import json_schema
from experiments.listing import KINDS
from experiments.variant import run_variant
from policies import ROLE_SWITCHERS
from sim.errors import ConfigError

PRESSURE = {"name": "pressure", "ttft_s": 0.1, "tpot_s": 0.02}
BASE: dict[str, Any] = {
    "workload": {
        "preset": "arxiv-summarization",
        "requests": 150,
        "arrivals": {"process": "poisson", "rate_per_s": 20},
        "max_tokens": 4096,
    },
    "model": "llama-3.1-8b",
    "device": "h100-sxm",
    "policy": {"name": "vllm-v1", "max_num_batched_tokens": 8192},
}


def pools(switching: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    said = {"switcher": PRESSURE, "interval_s": 0.5} if switching is None else switching
    return {
        "prefill": {"replicas": 1},
        "decode": {"replicas": 3},
        "transfer": {"bandwidth_bytes_per_s": 50e9},
        "role_switching": said,
        **more,
    }


def run(tmp_path: Path | None = None, **changes: Any) -> Bundle:
    plan = load({**BASE, **changes})
    return run_variant(plan.variants[0], tmp_path or plan.folder)


def test_prefill_replicas_come_where_requests_queue_for_them() -> None:
    got = run(pools=pools())
    counts = got.summary["changes"]["counts"]
    assert counts["changed_role"] >= 1
    assert "prefill-1" in {x["replica"] for x in got.summary["changes"]["events"]}
    assert got.summary["gpus"] == 4
    assert any(f"changed role {counts['changed_role']}" in note for note in got.notes)
    fixed = run(pools=pools(role_switching=None))
    late, later = (x.summary["overall"]["ttft_s"]["mean"] for x in (got, fixed))
    assert late < later


def test_a_minimum_and_a_cool_down_are_kept() -> None:
    three = {"switcher": PRESSURE, "interval_s": 0.5, "min_decode": 3}
    assert "changes" not in run(pools=pools(three)).summary
    rare = {"switcher": PRESSURE, "interval_s": 0.5, "cool_down_s": 1e6}
    assert run(pools=pools(rare)).summary["changes"]["counts"]["changed_role"] == 1


def test_a_switcher_of_the_user_is_one_class_in_one_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\n"
        "from sim.roles import RoleSwitcher\n"
        "@dataclass\n"
        "class Always(RoleSwitcher):\n"
        "    side: str = 'prefill'\n"
        "    def needs(self, prefill, decode):\n"
        "        return self.side\n"
    )
    said = {"switcher": {"name": "mine:Always", "side": "prefill"}, "interval_s": 1}
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({**BASE, "pools": pools(said)}))
    plan = load(config)
    got = run_variant(plan.variants[0], plan.folder)
    assert got.summary["changes"]["counts"]["changed_role"] == 2  # one decode replica stays


def test_a_word_stands_for_a_name() -> None:
    with pytest.raises(ConfigError, match=r"pools\.role_switching\.switcher.*ttft_s"):
        run(pools=pools({"switcher": "pressure"}))


def test_it_is_listed_and_in_the_schema() -> None:
    assert [each.name for each in KINDS["role-switchers"]()] == list(ROLE_SWITCHERS)
    switcher = json_schema()["$defs"]["RoleSwitching"]["properties"]["switcher"]
    assert {"enum": ["pressure"]} in switcher["anyOf"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"pools": pools({"switcher": {**PRESSURE, "name": "presure"}})},
            "pools.role_switching.switcher: no switcher 'presure'; try pressure",
        ),
        (
            {"pools": pools({"switcher": {**PRESSURE, "hi": 1}})},
            "pools.role_switching.switcher.hi",
        ),
        (
            {"pools": pools(decode={"replicas": 3, "device": "h200"})},
            "pools.decode.device: h200: a replica that changes role keeps its GPUs and weights",
        ),
        (
            {"pools": pools({"switcher": PRESSURE, "min_prefill": 2})},
            "pools.role_switching.min_prefill: 2: the pool has 1 at the start",
        ),
        (
            {
                "pools": pools(
                    decode={
                        "replicas": 3,
                        "autoscale": {"autoscaler": "queue-length", "provisioning_s": 1},
                    }
                )
            },
            "pools.decode.autoscale: scales a pool whose replicas change role",
        ),
        (
            {
                "pools": pools(
                    transfer={
                        "bandwidth_bytes_per_s": 50e9,
                        "staging": {"bytes": 10**9, "bandwidth_bytes_per_s": 1e9},
                    }
                )
            },
            "pools.transfer.staging: is not modelled where replicas change",
        ),
        (
            {"pools": pools(), "node_replicas": [["prefill-0"]]},
            "node_replicas: names replicas, and who changes role gets another name",
        ),
        (
            {"pools": pools(), "events": [{"at_s": 1, "what": "drain", "pool": "decode"}]},
            "events[0].what: drain: with role_switching nobody knows which replicas there are",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        run(**changes)
    assert message in str(refused.value)


def test_a_class_that_is_no_switcher_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"is no sim\.roles\.RoleSwitcher"):
        run(pools=pools({"switcher": {"name": "policies.scaling:QueueLength"}}))


def test_one_pool_has_no_roles() -> None:
    with pytest.raises(ConfigError, match=r"pools\.role_switching: there is a colocated pool"):
        run(pools={"colocated": {"replicas": 2}, "role_switching": {"switcher": PRESSURE}})


# --- a mixed pool


def mixed(said: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    given = {"max_prompt_tokens": 8192} if said is None else said
    return {**pools(), "role_switching": None, "mixed_pool": given, **more}


def test_replicas_run_whole_requests_where_a_queue_is_long() -> None:
    got, fixed = run(pools=mixed()), run(pools=mixed(mixed_pool=None))
    said = got.summary["mixed_pool"]
    assert said["routed"] == 150
    assert said["whole"]["decode"] > 10
    assert said["whole"]["prefill"] == 0
    whole = got.requests["replica"] == got.requests["decode_replica"]
    assert int(whole.sum()) == said["whole"]["decode"]
    assert any(f"decode replicas ran {said['whole']['decode']} whole" in x for x in got.notes)
    late, later = (x.summary["overall"]["ttft_s"]["mean"] for x in (got, fixed))
    assert late < later
    assert "mixed_pool" not in fixed.summary


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"pools": {"colocated": {}, "mixed_pool": {"max_prompt_tokens": 1}}},
            "pools.mixed_pool: there is a colocated pool; give one or the other",
        ),
        (
            {"pools": mixed(local_prefill={"max_uncached_tokens": 1})},
            "pools.local_prefill: beside mixed_pool: leave out one of them",
        ),
        (
            {"pools": {**pools(), "mixed_pool": {"max_prompt_tokens": 1}}},
            "pools.role_switching: beside mixed_pool: leave out one of them",
        ),
        (
            {"pools": mixed(prefill={"replicas": 1, "policy": "static"})},
            "pools.prefill.policy.name: static: forms batches of requests of one phase",
        ),
        (
            {
                "pools": mixed(
                    transfer={"bandwidth_bytes_per_s": 50e9, "recompute_last_token": True}
                )
            },
            "pools.transfer.recompute_last_token: prefill replicas emit nothing to clients then",
        ),
        ({"pools": mixed({"max_prompt_tokens": 0})}, "pools.mixed_pool.max_prompt_tokens"),
        (
            {"pools": mixed({"max_prompt_tokens": 1, "max_kv_share": 2})},
            "pools.mixed_pool.max_kv_share",
        ),
    ],
)
def test_a_mixed_pool_that_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        run(**changes)
    assert message in str(refused.value)
