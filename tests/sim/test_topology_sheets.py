"""Topology sheets: each number has a source, and the fitted one meets what was measured."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from sim.clock import Clock
from sim.errors import ConfigError
from sim.kv_shards import KvShards
from sim.network import Network
from sim.topology import LinkSpec, NodeSpec, Seat, Topology
from sim.topology_sheets import load_topology, topology_names


@pytest.mark.parametrize("name", topology_names())
def test_every_sheet_can_be_built_and_says_where_its_numbers_are_from(name: str) -> None:
    sheet = load_topology(name)
    assert sheet.name == name
    node = NodeSpec(sheet.gpus_per_node, sheet.nics_per_node, LinkSpec(**sheet.nic))
    assert 0 < node.nic.efficiency <= 1
    assert 1e9 < node.nic.carried_bytes_per_s < 1e12
    stated = {"gpus_per_node", "nics_per_node", "nic"}
    stated |= {key for key in ("nvlink", "pcie") if getattr(sheet, key)}
    assert set(sheet.sources) == stated
    assert all(sheet.sources.values())


def test_names_have_aliases_and_an_unknown_one_is_refused_with_the_nearest() -> None:
    assert load_topology("DGX_H200").name == "dgx-h100"
    with pytest.raises(ConfigError, match="dgx-h10 is no topology sheet; did you mean dgx-h100"):
        load_topology("dgx-h10")


def test_the_fitted_sheet_meets_every_measured_transfer(shared: Path) -> None:
    sheet = load_topology("h800-8x-roce")
    node = NodeSpec(sheet.gpus_per_node, sheet.nics_per_node, LinkSpec(**sheet.nic))
    qwen3_8b = KvShards((36,), 8, 1, 8, 512)
    seat = Seat(qwen3_8b, nvlink=LinkSpec(200e9), pcie=LinkSpec(64e9))
    path = shared / "measured" / "mooncake" / "pd_transfer_qwen3_8b_h800.csv"
    with path.open(encoding="utf-8", newline="") as file:
        rows = [(int(r["prompt_tokens"]), float(r["transfer_ms"])) for r in csv.DictReader(file)]
    errors = []
    for tokens, measured_ms in rows:
        env = Clock(initial_time=0)
        network = Network(env, Topology((node,), endless=True))
        for side in ("prefill", "decode"):
            network.join(side, seat, side)
        ends: list[int] = []
        size = tokens * qwen3_8b.bytes_per_token
        network.send("prefill", "decode", 0, size, lambda ends=ends, env=env: ends.append(env.now))
        env.run()
        errors.append(ends[0] / 1e6 / measured_ms - 1)
    assert len(errors) == 9
    assert max(map(abs, errors)) < 0.06
