"""``phasewise run --shards``: the same bytes from several processes, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import phasewise
from experiments.config import load
from experiments.outcome import check_shards
from experiments.variant import run_variant
from sim.errors import ConfigError

LINEAR = {"model": "linear", "base_s": 6e-3, "prefill_token_s": 2.7e-5, "decode_s": 3e-5}
SAME = "requests", "itl", "series", "steps", "transfers", "changes"


def config(**more: Any) -> dict[str, Any]:
    plain = {
        "workload": {
            "preset": {"name": "system-prompts", "applications": 3},
            "requests": 300,
            "max_tokens": 512,
            "arrivals": {"rate_per_s": 40},
        },
        "model": "llama-3.1-8b",
        "device": "h100-sxm",
        "max_model_len": 16384,
        "replicas": 5,
        "policy": {"name": "vllm-v1", "prefix_cache": True},
        "router": "random",
        "step_time": {**LINEAR},
        "kv": {"num_blocks": 3000},
    }
    return plain | more


def test_the_files_of_a_run_in_shards_are_those_of_a_run(tmp_path: Path) -> None:
    results = [phasewise.run(config(), shards=shards) for shards in (1, 3)]
    folders = [tmp_path / name for name in ("whole", "shards")]
    for result, folder in zip(results, folders, strict=True):
        result.save(folder)
    label = next(path.name for path in folders[0].iterdir() if path.is_dir())
    whole, parts = folders[0] / label, folders[1] / label
    names = {path.name for path in whole.iterdir()} - {"wallclock.json"}
    assert {f"{name}.parquet" for name in SAME} | {"summary.json", "config.yaml"} <= names
    for name in names:
        assert (whole / name).read_bytes() == (parts / name).read_bytes(), name
    assert results[0].bundles[0].requests["cached_tokens"].sum() > 0


def test_a_mix_with_cancellations_keeps_its_order() -> None:
    parts = [
        {"preset": "tab-completion", "requests": 120, "arrivals": {"rate_per_s": 30}},
        {
            "preset": "azure-conv-2023",
            "requests": 60,
            "request_class": "chat",
            "arrivals": {"rate_per_s": 15},
        },
    ]
    mixed = config(workload={"mix": parts, "max_tokens": 1024}, router="round-robin")
    plan = load(mixed)
    whole, shared = (run_variant(plan.variants[0], Path(), shards=n) for n in (1, 2))
    assert whole.summary == shared.summary
    assert all((shared.requests[name] == whole.requests[name]).all() for name in whole.requests)


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ({"router": "least-outstanding"}, "router: least-outstanding"),
        ({"events": [{"at_s": 1, "what": "fail", "replica": 0}]}, "events"),
        ({"admission": {"max_waiting_per_replica": 4}}, "admission"),
        ({"record": {"decisions": True}}, r"record\.decisions"),
        (
            {"replicas": None, "pools": {"prefill": {"replicas": 2}, "decode": {"replicas": 2},
             "transfer": {"bandwidth_bytes_per_s": 1e10}}},
            r"pools\.decode",
        ),
    ],
)  # fmt: skip
def test_one_error_names_the_key_by_which_replicas_interact(more: dict[str, Any], key: str) -> None:
    given = {name: value for name, value in config(**more).items() if value is not None}
    plan = load(given)
    with pytest.raises(ConfigError, match=rf"^shards: {key}"):
        run_variant(plan.variants[0], Path(), shards=2)


def test_closed_loops_are_refused() -> None:
    closed = {"process": "closed-loop", "concurrency": 8}
    workload = config()["workload"] | {"arrivals": closed}
    with pytest.raises(ConfigError, match=r"^shards: workload: requests arrive when others end"):
        phasewise.run(config(workload=workload), shards=2)


def test_shards_and_jobs_do_not_go_together() -> None:
    check_shards(4, None)
    check_shards(1, 4)
    with pytest.raises(ConfigError, match="--shards 4: variants then run one after the other"):
        check_shards(4, 2)
