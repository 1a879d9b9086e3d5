"""How KV moves, said in a config: what the summary makes of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from experiments.config import load
from experiments.variant import run_variant

MODEL_LAYERS = 32
Summary = Callable[..., dict[str, Any]]


@pytest.fixture
def summary(tmp_path: Path) -> Summary:
    """Of three requests, far apart, with prompts of one length, each on an idle cluster."""

    def run(policy: str = "vllm-v0", prompt: int = 1500, **transfer: Any) -> dict[str, Any]:
        trace = tmp_path / "t.csv"
        rows = "".join(f"{t},{prompt},20\n" for t in (0, 100, 200))
        trace.write_text("arrival_s,prompt_tokens,output_tokens\n" + rows)
        config = {
            "workload": {"trace": str(trace), "max_tokens": 64},
            "model": "llama-3.1-8b",
            "device": "h100-sxm",
            "policy": policy,
            "pools": {
                "prefill": {"replicas": 1},
                "decode": {"replicas": 1},
                "transfer": {"bandwidth_bytes_per_s": 1e10, **transfer},
            },
        }
        plan = load(config, ())
        made: dict[str, Any] = run_variant(plan.variants[0], plan.folder).summary
        return made

    return run


def test_a_pull_hides_nothing(summary: Summary) -> None:
    got = summary()["transfers"]
    blocks = -(-1500 // 16)
    assert got["count"] == 3
    assert got["kv_bytes"] == 3 * blocks * 16 * 131072
    assert got["hidden_share"] == 0
    assert got["exposed_s"]["max"] == pytest.approx(blocks * 16 * 131072 / 1e10, rel=1e-6)
    assert got["wait_s"]["max"] == 0


def test_of_the_layers_of_the_model_the_last_is_seen(summary: Summary) -> None:
    slow = summary(start="push", overlap="layerwise", bandwidth_bytes_per_s=1e11)["transfers"]
    assert slow["hidden_share"] == pytest.approx(1 - 1 / MODEL_LAYERS, rel=1e-3)
    short = summary(start="push", overlap="layerwise", layerwise_above_tokens=1500)["transfers"]
    assert short["hidden_share"] == 0


def test_of_the_chunks_the_last_is_seen(summary: Summary) -> None:
    got = summary("sarathi", 1504, start="push", overlap="chunked", bandwidth_bytes_per_s=1e12)
    # Chunks of 512, 512 and 480 tokens.
    assert got["transfers"]["hidden_share"] == pytest.approx(1024 / 1504, rel=1e-3)


def test_staging_memory_is_in_the_summary(summary: Summary) -> None:
    got = summary(staging={"bytes": 1e9, "bandwidth_bytes_per_s": 2e10})
    size = -(-1500 // 16) * 16 * 131072
    assert got["staging"] == {"prefill-0": {"bytes": 3 * size, "peak_bytes": size}}
    assert got["transfers"]["wait_s"]["mean"] == pytest.approx(size / 2e10, rel=1e-6)
    assert "staging" not in summary(staging={"bytes": 1e6, "bandwidth_bytes_per_s": 2e10})


def test_small_messages_and_batches_take_their_time(summary: Summary) -> None:
    size = -(-1500 // 16) * 16 * 131072
    got = summary(message_bytes=65536, per_message_s=2e-5, batch_wait_s=0.5)["transfers"]
    assert got["wait_s"]["mean"] == pytest.approx(0.5)
    assert got["exposed_s"]["mean"] == pytest.approx(size / 65536 * 2e-5, rel=1e-6)


def test_kv_that_is_not_fetched_in_time_is_counted(summary: Summary) -> None:
    # It is fetched at once, so that even the shortest hold is long enough.
    got = summary(hold_timeout_s=1e-9)
    assert got["hold_timeouts"] == 0
    # A batch waits for company only after its requests are fetched.
    assert summary(hold_timeout_s=1e-3, batch_wait_s=0.5)["hold_timeouts"] == 0
    assert "hold_timeouts" not in summary()
