"""What a summary says of transfers, worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from sim.event_loop import simulate
from sim.transfer_metrics import of_transfers
from tests.conformance import adapter
from tests.sim.timeline import pools, replica


def of_run(rows: list[tuple[int, int, int]], **wire: Any) -> dict[str, Any]:
    layout = pools([replica("vllm-v0", 10, max_num_batched_tokens=64)], [replica("orca", 3)])
    layout["transfer"] |= wire
    names = ("arrival_ns", "prompt_tokens", "output_tokens")
    spec = {
        "requests": [dict(zip(names, (1000 * t, p, o), strict=True)) for t, p, o in rows],
        "disaggregated": layout,
    }
    cluster, _ = adapter.build(spec)
    return of_transfers(simulate(adapter.arrivals(spec), cluster).transfers)


@pytest.mark.parametrize("sharing", ["none", "max-min"])
def test_of_layers_sent_beside_the_prefill_only_the_last_is_seen(sharing: str) -> None:
    got = of_run([(0, 8, 2)], start="push", overlap="layerwise", layers=4, sharing=sharing)
    # 8 us of KV, of which 2 come after the prefill.
    assert got["count"] == 1
    assert got["kv_bytes"] == 8
    assert got["exposed_s"]["mean"] == 2e-6
    assert got["hidden_share"] == pytest.approx(6 / 8)


def test_what_waits_for_room_is_not_hidden() -> None:
    got = of_run([(0, 8, 4), (18, 8, 4)])
    # Sent at 18, until 26; it decodes until 62. The second, prefilled at 36, waits until then.
    assert got["wait_s"]["max"] == pytest.approx(26e-6)
    assert got["wait_s"]["min"] == 0
    assert got["exposed_s"]["max"] == pytest.approx(8e-6)
    assert got["hidden_share"] == 0


def test_contention_is_exposed_and_hides_nothing() -> None:
    layout = pools([replica("orca", 10)] * 2, [replica("orca", 10)])
    layout["transfer"] |= {"sharing": "max-min"}
    requests = [{"arrival_ns": 0, "prompt_tokens": 8, "output_tokens": 2}] * 2
    spec = {"requests": requests, "disaggregated": layout}
    cluster, _ = adapter.build(spec)
    got = of_transfers(simulate(adapter.arrivals(spec), cluster).transfers)
    assert got["exposed_s"]["mean"] == pytest.approx(16e-6)  # two at once into one NIC
    assert got["hidden_share"] == 0


def test_without_transfers_nothing_is_said_of_their_share() -> None:
    got = of_run([(0, 8, 1)])
    assert got["count"] == 0
    assert got["hidden_share"] != got["hidden_share"]
