"""Topologies in a config: what they give, what is refused, and what the outputs say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments import cluster, listing
from experiments.bundle import Bundle
from experiments.config import load
from experiments.variant import run_variant
from sim.errors import ConfigError
from sim.topology import LinkSpec

BASE: dict[str, Any] = {
    "workload": {
        "preset": "azure-conv-2023",
        "requests": 60,
        "arrivals": {"rate_per_s": 20},
        "max_tokens": 1024,
    },
    "model": "llama-3.1-8b",
    "device": "h100-sxm",
    "policy": {"name": "vllm-v1"},
    "topology": "dgx-h100",
    "pools": {"prefill": {"replicas": 1}, "decode": {"replicas": 1}, "transfer": {}},
}


def built(*settings: str, **changes: Any) -> cluster.Built:
    plan = load({**BASE, **changes}, settings)
    return cluster.build(plan.variants[0], plan.folder)


def run(*settings: str, **changes: Any) -> Bundle:
    plan = load({**BASE, **changes}, settings)
    return run_variant(plan.variants[0], plan.folder)


def test_a_sheet_by_name_gives_nodes_and_the_devices_give_their_ports() -> None:
    made = built().cluster
    assert made.transfer.shares_links
    assert made.transfer.bandwidth_bytes_per_s is None
    assert made.topology.nodes[0].gpus == 8
    assert made.topology.nodes[0].nic == LinkSpec(5e10)
    seat = made.entry.replicas[0].seat
    assert seat.nvlink == LinkSpec(4.5e11)
    assert seat.pcie == LinkSpec(6.4e10)
    assert seat.shards.bytes_per_token == made.entry.replicas[0].kv_bytes_per_token == 131072


def test_what_the_config_says_comes_before_the_sheet() -> None:
    made = built("topology.nic.efficiency=0.5", "topology.nvlink=none", "topology.nodes=3").cluster
    assert made.topology.nodes[0].nic == LinkSpec(5e10, efficiency=0.5)
    assert len(made.topology.nodes) == 3
    assert made.entry.replicas[0].seat.nvlink is None
    own = {"gpus_per_node": 4, "nics_per_node": 1, "nic": {"bytes_per_s": 1e10}}
    made = built(topology={**own, "pcie": {"efficiency": 0.5}}).cluster
    assert made.topology.nodes[0].gpus == 4
    assert made.entry.replicas[0].seat.pcie == LinkSpec(6.4e10, efficiency=0.5)


def test_nodes_of_several_kinds_are_numbered_one_after_the_other() -> None:
    more = [{"sheet": "dgx-a100", "nodes": 2}]
    pools = {
        "prefill": {"replicas": 1, "device": "a100-sxm-80gb", "nodes": [1, 2]},
        "decode": {"replicas": 1, "nodes": 0},
        "transfer": {},
    }
    got = built(topology={"sheet": "dgx-h100", "nodes": 1, "more_nodes": more}, pools=pools)
    assert [n.nic.bytes_per_s for n in got.cluster.topology.nodes] == [5e10, 2.5e10, 2.5e10]
    assert "topology: prefill on node 1; decode on node 0." in got.notes


def test_latents_groups_and_stages_lie_as_the_model_says() -> None:
    settings = {
        "model": "deepseek-v3",
        "precision": {"weights": "fp8"},
        "tensor_parallel": 8,
        "expert_parallel": 8,
        "data_parallel_attention": 8,
        "device": "h200",
        "pipeline_parallel": 2,
    }
    seat = built(**settings).cluster.entry.replicas[0].seat
    assert seat.shards.stage_layers == (31, 30)
    assert (seat.shards.heads, seat.shards.groups) == (1, 8)
    assert seat.shards.bytes_per_token == 70_272


def test_without_a_topology_nothing_of_it_is_there() -> None:
    pools = {**BASE["pools"], "transfer": {"bandwidth_bytes_per_s": 5e10}}
    made = built(topology=None, pools=pools).cluster
    assert made.topology is None
    assert made.entry.replicas[0].seat is None
    assert not made.transfer.shares_links


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            ["topology=dgx-h10"],
            "topology.sheet: dgx-h10 is no topology sheet; did you mean dgx-h100",
        ),
        (["topology.nic.bytes_per_s=1"], "expected at least 1000"),
        (["topology.nvlink=no"], "expected none, or a mapping"),
        (
            ["topology.nics_per_node=3"],
            "3 does not divide the 8 GPUs of a node; choose one of 1, 2",
        ),
        (
            ["topology.nodes=1", "pools.decode.nodes=4"],
            "nodes: 4: there are 1 nodes; choose from 0",
        ),
        (["pools.decode.nodes=[1, 1]"], "names a node twice"),
        (
            ["topology.nodes=1", "pools.decode.replicas=8"],
            "topology: decode replica 7: needs 1 GPUs (h100-sxm) on one node",
        ),
        (["topology.oversubscription=2"], "2: there are no leaf switches; set nodes_per_leaf"),
        (
            ["pools.transfer.bandwidth_bytes_per_s=1e9"],
            "bandwidth_bytes_per_s: 1e+09: the links of the topology say it",
        ),
        (
            ["pools.transfer.sharing=none"],
            "sharing: none: transfers over a topology share its links",
        ),
        (["pools.decode.nic_bytes_per_s=1e9"], "with a topology set topology.nic.bytes_per_s"),
        (["topology=null"], "bandwidth_bytes_per_s: is required: bytes per second of one transfer"),
        (["topology.gpus=4"], "topology has no such option"),
    ],
)
def test_slips_are_named(settings: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        built(*settings)
    assert message in str(caught.value)


def test_sizes_without_a_sheet_have_to_be_given() -> None:
    with pytest.raises(ConfigError, match=r"topology\.gpus_per_node: is required without a sheet"):
        built(topology={"nics_per_node": 1, "nic": {"bytes_per_s": 1e9}})
    with pytest.raises(
        ConfigError, match=r"topology\.nic\.bytes_per_s: is required without a sheet"
    ):
        built(topology={"nics_per_node": 1, "gpus_per_node": 1})
    pools = {**BASE["pools"], "transfer": {"bandwidth_bytes_per_s": 5e10}}
    with pytest.raises(ConfigError, match=r"nodes: \[0\]: there is no topology"):
        built("pools.decode.nodes=0", topology=None, pools=pools)


def test_the_summary_says_what_the_links_carried() -> None:
    got = run("pools.prefill.nodes=0", "pools.decode.nodes=1")
    moved = int(got.transfers["bytes"].sum())
    nics = [entry for entry in got.summary["network"] if entry["kind"] == "nic"]
    by = {(entry["node"], entry["direction"]): entry["bytes"] for entry in nics}
    assert by == {(0, "in"): 0, (0, "out"): moved, (1, "in"): moved, (1, "out"): 0}
    assert any(note.startswith("topology: the busiest link was node ") for note in got.notes)
    assert got.summary["overall"]["transfer_s"]["n"] == len(got.transfers["bytes"])
    assert (
        0
        < got.summary["overall"]["transfer_s"]["p50"]
        <= got.summary["overall"]["decode_wait_s"]["p50"]
    )


def test_a_faster_nic_never_makes_a_transfer_longer_and_nvlink_beats_it() -> None:
    apart = ("pools.prefill.nodes=0", "pools.decode.nodes=1")
    slow = run(*apart, topology="ethernet-25g").summary["overall"]["transfer_s"]["mean"]
    fast = run(*apart).summary["overall"]["transfer_s"]["mean"]
    beside = run().summary["overall"]["transfer_s"]["mean"]
    assert slow > 10 * fast > 50 * beside


def test_a_colocated_pool_may_have_nodes_too() -> None:
    got = run(pools={"colocated": {"replicas": 2}})
    assert "topology: colocated on node 0 (2 replicas)." in got.notes
    assert "topology: nothing moved between replicas." in got.notes
    assert "transfer_s" not in got.summary["overall"]


def test_sheets_are_listed() -> None:
    names = [entry.name for entry in listing.entries("topologies")]
    assert "dgx-h100" in names
    assert all(entry.sources for entry in listing.entries("topologies"))


def test_a_run_can_be_run_again_from_what_it_leaves(tmp_path: Path) -> None:
    first = run("pools.decode.nodes=1")
    again = load(first.config)
    second = run_variant(again.variants[0], again.folder)
    assert first.transfers["end_ns"].tolist() == second.transfers["end_ns"].tolist()


SMALL = {"gpus_per_node": 4, "nics_per_node": 1, "nic": {"bytes_per_s": 1.25e9}}


def over(**prefill: Any) -> dict[str, Any]:
    return {
        "prefill": {"replicas": 1, "tensor_parallel": 8, **prefill},
        "decode": {"replicas": 1},
        "transfer": {},
    }


@pytest.mark.parametrize(
    ("topology", "said"),
    [
        (SMALL, "pools.prefill.tensor_parallel: 8: prefill replica 0 would share its layers over "),
        (SMALL, "choose 4, the most that fits a node of 4 GPUs"),
        ({**SMALL, "gpus_per_node": 1}, "over nodes 0 to 7, and no all-reduce"),
        ({**SMALL, "gpus_per_node": 1}, "choose 1, the most that fits a node of 1 GPUs"),
        ({**SMALL, "gpus_per_node": 6}, "choose 4, the most that fits a node of 6 GPUs"),
    ],
)
def test_tensor_parallelism_across_nodes_is_refused(topology: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        built(topology=topology, pools=over())
    assert said in str(caught.value)


def test_stages_may_lie_on_several_nodes_and_one_stage_may_not() -> None:
    two = over(tensor_parallel=4, pipeline_parallel=2)
    assert (
        "topology: prefill on nodes 0 to 1; decode on node 2."
        in built(topology=SMALL, pools=two).notes
    )
    # Of three stages of 4 GPUs on nodes of 6 the second would lie on both.
    three = over(tensor_parallel=4, pipeline_parallel=3)
    with pytest.raises(ConfigError, match=r"tensor_parallel: 4: .* over nodes 0 to 1, .*choose 2,"):
        built(topology={**SMALL, "gpus_per_node": 6}, pools=three)


def test_a_replica_that_an_autoscaler_may_add_fits_all_nodes() -> None:
    scaler = {"name": "schedule", "at_s": [0], "replicas": [1]}
    pools = over(autoscale={"autoscaler": scaler, "provisioning_s": 1})
    mixed = {"sheet": "dgx-h100", "nodes": 2, "more_nodes": [{**SMALL, "nodes": 4}]}
    with pytest.raises(ConfigError, match=r"may come to node 2 with 4 GPUs.* choose 4, "):
        built(topology=mixed, pools=pools)
    pools["prefill"]["nodes"] = [0, 1]
    assert built(topology=mixed, pools=pools).gpus == 9


def test_an_event_on_a_node_that_there_is_not_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"events\[0\]\.node: 9: there are 2 nodes; .* 0 to 1"):
        built(topology={**SMALL, "nodes": 2}, events=[{"at_s": 1, "what": "fail", "node": 9}])


@pytest.mark.parametrize("nodes", [{"nodes": 2}, {}])
def test_an_event_on_a_node_without_replicas_is_told(nodes: dict[str, int]) -> None:
    events = [
        {"at_s": 1, "what": "fail", "node": 0},
        {"at_s": 1, "what": "fail", "node": 1},
        {"at_s": 0, "what": "restore", "node": 0},
    ]
    notes = built(topology={**SMALL, **nodes}, events=events).notes
    assert [note for note in notes if note.startswith("events[")] == [
        "events[1]: fail of node 1 has no effect: no replica lies on it.",
        "events[2]: restore of node 0 has no effect: nothing has failed by 0 s.",
    ]
    written = built(
        topology=None,
        events=events[:2],
        node_replicas=[["prefill-0"], []],
        pools={**over(tensor_parallel=1), "transfer": {"bandwidth_bytes_per_s": 5e9}},
    )
    assert "events[1]: fail of node 1 has no effect: node_replicas names none on it." in (
        written.notes
    )
