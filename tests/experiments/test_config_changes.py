"""Changes of the cluster in a config: what they give, what is refused."""

from __future__ import annotations

import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from experiments import bundle, cluster
from experiments.bundle import Bundle
from experiments.config import load
from experiments.looks import SCREEN
from experiments.timeline_figure import timeline_drawings
from experiments.variant import run_variant
from sim import specs
from sim.errors import ConfigError
from sim.records import CHANGES, STATES
from sim.startup import WarmUp

BASE: dict[str, Any] = {
    "workload": {
        "preset": "azure-conv-2023",
        "requests": 200,
        "arrivals": {"rate_per_s": 20},
        "max_tokens": 1024,
    },
    "model": "llama-3.1-8b",
    "device": "h100-sxm",
    "policy": {"name": "vllm-v1"},
}
FAILS = {"at_s": 3, "what": "fail", "replica": 0}
COMES_BACK = {"at_s": 5, "what": "restore", "replica": 0}
SLOW = {"mtbs_s": 2, "duration_s": 1, "factor": 1.5}
POOLS = {
    "prefill": {"replicas": 1},
    "decode": {"replicas": 1},
    "transfer": {"bandwidth_bytes_per_s": 50e9},
}


def run(*settings: str, **changes: Any) -> Bundle:
    plan = load({**BASE, **changes}, settings)
    return run_variant(plan.variants[0], plan.folder)


def test_what_happens_is_in_the_summary_and_in_the_notes() -> None:
    got = run(replicas=2, events=[FAILS, COMES_BACK])
    moved = int(got.requests["rerouted"].sum())
    assert moved > 0
    counts = got.summary["changes"].pop("counts")
    end_s = got.requests["end_ns"].max() / 1e9
    share = got.summary["changes"].pop("availability")
    assert share == pytest.approx(1 - 2 / (2 * end_s))
    assert {name: n for name, n in counts.items() if n} == {"failed": 1, "restored": 1}
    assert got.summary["changes"] == {
        "events": [
            {"at_s": 3.0, "replica": "replica-0", "change": "failed", "lost": moved},
            {"at_s": 5.0, "replica": "replica-0", "change": "restored", "lost": 0},
        ],
        "rerouted": moved,
    }
    said = f"lost by a replica {moved} times and routed to another {moved} times."
    assert any(note.startswith("events: ") and said in note for note in got.notes)


def test_requests_can_fail_with_their_replica() -> None:
    got = run(replicas=2, events=[FAILS, COMES_BACK], on_failure="fail")
    failed = got.summary["requests"]["failed"]
    assert failed > 0
    assert got.summary["reasons"] == {"replica_failed": failed}


def test_a_restored_replica_loads_its_weights_and_warms_up() -> None:
    warm = {"iterations": 20, "factor": 1.1, "first_pass_s": 0.5}
    plan = load({**BASE, "restart": {"weights_bytes_per_s": 8e9, "warm_up": warm}})
    (spec,) = cluster.build(plan.variants[0], plan.folder).cluster.entry.replicas
    weights = specs.weight_bytes(specs.load_model("llama-3.1-8b"))
    assert spec.startup.load_ns == round(Fraction(weights, 8))
    assert spec.startup.warm_up == WarmUp(20, Fraction(11, 10), 500_000_000)


def test_a_restart_that_nobody_needs_is_told() -> None:
    said = "restart has no effect: no replica is restored or added during the run."
    assert said in run(restart={"load_s": 3}).notes
    assert said not in run(restart={"load_s": 3}, events=[FAILS, COMES_BACK]).notes


def test_two_times_to_load_are_refused() -> None:
    restart = {"load_s": 3, "weights_bytes_per_s": 1e9}
    with pytest.raises(ConfigError, match="restart: load_s and weights_bytes_per_s: give one"):
        run(restart=restart)


def test_a_node_fails_whole_and_a_straggler_is_slow() -> None:
    events = [
        {"at_s": 3, "what": "fail", "node": 1},
        {"at_s": 4, "what": "slow", "factor": 1.1, "until_s": 6},
        {"at_s": 5, "what": "restore", "node": 1},
    ]
    nodes = [["replica-0"], ["replica-1", "replica-2"]]
    got = run(replicas=3, events=events, node_replicas=nodes)
    said = [(x["at_s"], x["replica"], x["change"]) for x in got.summary["changes"]["events"]]
    assert said == [
        (3, "replica-1", "failed"),
        (3, "replica-2", "failed"),
        (4, "replica-0", "slowed"),
        (5, "replica-1", "restored"),
        (5, "replica-2", "restored"),
        (6, "replica-0", "normal"),
    ]
    assert got.summary["changes"]["events"][2]["factor"] == 1.1


def test_failures_of_nodes_of_a_topology() -> None:
    topology = {"sheet": "dgx-h100", "gpus_per_node": 2, "nics_per_node": 2}
    got = run(
        replicas=4,
        topology=topology,
        failures={"mtbf_s": 3, "mttr_s": 1, "of": "node"},
    )
    failed = {}
    for x in got.summary["changes"]["events"]:
        if x["change"] == "failed":
            failed.setdefault(x["at_s"], []).append(x["replica"])
    assert failed
    nodes = (["replica-0", "replica-1"], ["replica-2", "replica-3"])
    assert all(replicas in nodes for replicas in failed.values())


def test_variants_see_the_same_drawn_failures() -> None:
    drawn = {"failures": {"mtbf_s": 4, "mttr_s": 1}, "stragglers": SLOW}
    few, many = (run(replicas=n, **drawn).summary["changes"]["events"] for n in (1, 2))
    assert [x["at_s"] for x in few[:4]] == [x["at_s"] for x in many if x["replica"] == "replica-0"][
        :4
    ]


DRAWN: dict[str, Any] = {
    **BASE,
    "replicas": 2,
    "failures": {"mtbf_s": 4, "mttr_s": 1},
    "stragglers": SLOW,
    "restart": {"load_s": 0.5, "warm_up": {"iterations": 5, "factor": 1.5}},
}

_RUN = """
import sys
from pathlib import Path
from experiments.config import load
from experiments.run import jobs_of, run_jobs
from tests.experiments.test_config_changes import DRAWN
plan = load(DRAWN)
run_jobs(jobs_of(plan, Path(sys.argv[1])), plan, 1)
"""


def test_the_same_seed_gives_the_same_bytes_in_two_processes(tmp_path: Path) -> None:
    files = []
    for name in ("a", "b"):
        out = tmp_path / name
        subprocess.run([sys.executable, "-c", _RUN, str(out)], check=True)
        (folder,) = out.iterdir()
        files.append({path.name: path.read_bytes() for path in folder.iterdir()})
        assert files[-1].pop("wallclock.json")
    assert files[0] == files[1]
    assert len(files[0]["changes.parquet"]) > 0


def test_changes_are_a_table_of_the_bundle(tmp_path: Path) -> None:
    plan = load(DRAWN)
    made = run_variant(plan.variants[0], plan.folder)
    bundle.write(made, tmp_path / "bundle")
    got = bundle.read(tmp_path / "bundle")
    told = made.summary["changes"]["events"]
    assert [CHANGES[code] for code in got.changes["change"]] == [x["change"] for x in told]
    assert got.changes["time_ns"].tolist() == [round(x["at_s"] * 1e9) for x in told]
    assert {x["change"] for x in told} >= {"failed", "restored", "up", "slowed", "normal"}


def test_a_bundle_without_the_table_is_read(tmp_path: Path) -> None:
    plan = load(DRAWN)
    bundle.write(run_variant(plan.variants[0], plan.folder), tmp_path / "bundle")
    (tmp_path / "bundle" / "changes.parquet").unlink()
    assert not len(bundle.read(tmp_path / "bundle").changes["time_ns"])


def test_changes_are_marked_in_the_figure_over_time() -> None:
    got = run(replicas=2, events=[FAILS, COMES_BACK])
    (drawing,) = timeline_drawings([got])
    rows = [row for row in drawing.rows if row[1].startswith("replica-0")]
    moved = int(got.requests["rerouted"].sum())
    assert [row[1:] for row in rows] == [
        ("replica-0 failed", 3.0, moved),
        ("replica-0 restored", 5.0, 0),
    ]
    figure = drawing.make(SCREEN, "log")
    (marks,) = (trace for trace in figure.data if trace.mode == "markers")
    assert list(marks.marker.symbol) == ["x-thin", "triangle-up-open"]
    assert f"3 s: replica-0 failed, {moved} requests lost" in marks.text[0]
    assert timeline_drawings([run()]) == []


def test_the_figure_over_time_counts_who_waits_at_the_router_and_the_replicas_up() -> None:
    down = {"at_s": 3, "what": "fail"}
    got = run(replicas=1, events=[down, COMES_BACK])
    (drawing,) = timeline_drawings([got])
    points = [row[1:] for row in drawing.rows]
    waits = {at: value for what, at, value in points if what == "Waiting" and 3 < at < 5}
    up = {value for what, at, value in points if what == "Replicas up" and 3 < at < 5}
    arrival_s = got.requests["arrival_ns"] / 1e9
    assert waits
    assert up == {0.0}
    # Nobody is served then: whoever has arrived waits, and whoever was there when it failed.
    lost = got.summary["changes"]["events"][0]["lost"]
    for at, value in waits.items():
        assert value == lost + ((arrival_s > 3) & (arrival_s <= at)).sum()
    names = [axis.title.text for axis in drawing.make(SCREEN, "log").select_yaxes()]
    assert names == ["Changes", "Waiting", "Running", "KV blocks in use", "Replicas up"]


def test_without_events_nothing_is_said() -> None:
    assert "changes" not in run().summary


def test_an_added_replica_is_in_all_files(tmp_path: Path) -> None:
    events = [
        {"at_s": 4, "what": "add", "pool": "decode"},
        {"at_s": 4.5, "what": "drain", "pool": "decode", "replica": 0},
    ]
    plan = load({**BASE, "pools": POOLS, "events": events})
    folder = tmp_path / "bundle"
    folder.mkdir()
    made = run_variant(plan.variants[0], plan.folder, steps_folder=folder)
    bundle.write_files(made, folder)
    got = bundle.read(folder)
    assert [each.name for each in got.replicas] == ["prefill-0", "decode-0", "decode-1"]
    assert set(got.requests["decode_replica"].tolist()) == {1, 2}
    assert got.steps is not None
    assert 2 in got.steps["replica"]
    assert (got.requests["state"] == STATES.index("finished")).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"events": [COMES_BACK]},
            "events[0].what: restore: replica 0 is up at 5 s; choose one of add, drain, fail, slow",
        ),
        (
            {"events": [{"at_s": 1, "what": "fail", "replica": 3}]},
            "events[0].replica: 3: there is no such replica then; choose from 0 to 0",
        ),
        ({"events": [{**FAILS, "pool": "decode"}]}, "events[0].pool: decode: leave it out"),
        (
            {"events": [{"at_s": 1, "what": "slow"}]},
            "events[0].factor: is required for slow, as 1.5",
        ),
        (
            {"events": [{"at_s": 1, "what": "slow", "factor": 0.5}]},
            "events[0].factor: 0.5: expected at least 1 for slow: iterations take so many times",
        ),
        (
            {"events": [{"at_s": 3, "what": "degrade", "factor": 2}], "pools": POOLS},
            "events[0].factor: 2: expected at most 1 for degrade: the NIC carries so much of its",
        ),
        (
            {"stragglers": {"mtbs_s": 9, "duration_s": 1, "factor": 0.5}},
            "stragglers.factor: 0.5: expected at least 1",
        ),
        (
            {"events": [{**FAILS, "factor": 2}]},
            "events[0].factor: belongs to slow and degrade; leave it out",
        ),
        (
            {"events": [{"at_s": 3, "what": "slow", "factor": 2, "until_s": 3}]},
            "events[0].until_s: 3: expected later than at_s 3",
        ),
        (
            {"events": [{"at_s": 3, "what": "degrade", "factor": 0.1}]},
            "degrade: concerns links that transfers share; there are no transfers",
        ),
        (
            {
                "events": [{"at_s": 3, "what": "degrade", "factor": 0, "pool": "decode"}],
                "pools": POOLS,
            },
            "degrade: concerns links that transfers share; set transfer.sharing: max-min",
        ),
        (
            {"events": [{"at_s": 3, "what": "fail", "node": 0}]},
            "events[0].node: 0: there are no nodes; give node_replicas",
        ),
        (
            {"events": [{"at_s": 3, "what": "fail", "node": 1}], "node_replicas": [["replica-0"]]},
            "events[0].node: 1: there are 1 nodes; choose from 0 to 0",
        ),
        ({"node_replicas": [["replica-O"]]}, "node_replicas[0]: there is no replica 'replica-O'"),
        (
            {"node_replicas": [["replica-0"], ["replica-0"]]},
            "node_replicas[1]: replica-0: is on two nodes; name it once",
        ),
        (
            {"failures": {"mtbf_s": 9, "mttr_s": 1, "of": "node"}},
            "failures.of: node: there are no nodes; give node_replicas, or a topology",
        ),
        (
            {"failures": {"mtbf_s": 9, "mttr_s": 1, "pools": ["decode"]}},
            "failures.pools: there is one pool; leave it out",
        ),
        (
            {"failures": {"mtbf_s": 9, "mttr_s": 1}, "events": [FAILS]},
            "events[0].what: fail: failures are drawn, so that nobody knows",
        ),
        (
            {"events": [FAILS], "pools": POOLS},
            "events[0].pool: not given: say which: prefill or decode",
        ),
    ],
)
def test_what_cannot_happen_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load({**BASE, **changes})
    assert message in str(caught.value)


ROLE = {"at_s": 3, "what": "role", "pool": "prefill", "replica": 1}


def pools(**decode: Any) -> dict[str, Any]:
    return {**POOLS, "prefill": {"replicas": 2}, "decode": {"replicas": 1, **decode}}


def test_a_replica_changes_role_on_its_gpus() -> None:
    topology = {"sheet": "dgx-h100", "nodes": 1, "gpus_per_node": 3, "nics_per_node": 3}
    three = {**pools(), "transfer": {}}
    got = run(pools=three, topology=topology, events=[ROLE])
    counts = got.summary["changes"]["counts"]
    assert {name: n for name, n in counts.items() if n} == {
        "draining": 1,
        "gone": 1,
        "changed_role": 1,
    }
    assert got.summary["changes"]["events"][-1]["replica"] == "decode-1"
    assert got.summary["gpus"] == 3
    assert any("changed role 1" in note for note in got.notes)
    assert set(got.requests["decode_replica"]) == {2, 3}
    (drawing,) = timeline_drawings([got])
    told = [text for trace in drawing.make(SCREEN, "log").data for text in trace.text or ()]
    assert any("decode-1 changed role" in text for text in told)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"replicas": 2, "events": [{**ROLE, "pool": None}]}, "events[0].what: role: there is one"),
        (
            {"pools": pools(device="h200"), "events": [ROLE]},
            "pools.decode.device: h200: a replica that changes role keeps its GPUs and weights, "
            "and pools.prefill.device is h100-sxm",
        ),
        (
            {"pools": pools(tensor_parallel=2), "events": [ROLE]},
            "pools.decode.tensor_parallel: 2: a replica that changes role",
        ),
        (
            {"pools": pools(), "events": [ROLE, {**ROLE, "pool": "decode"}]},
            "events[1].replica: 1: replicas come to this pool by a change of role",
        ),
        (
            {"pools": pools(), "events": [ROLE, {**ROLE, "at_s": 4}]},
            "events[1].what: role: replica 1 is draining at 4 s; choose one of add, fail, slow",
        ),
        (
            {"pools": pools(), "events": [ROLE], "node_replicas": [["prefill-0"]]},
            "node_replicas: names replicas, and who changes role gets another name",
        ),
        (
            {"pools": pools(), "events": [ROLE], "failures": {"mtbf_s": 4, "mttr_s": 1}},
            "events[0].what: role: failures are drawn",
        ),
        (
            {
                "pools": pools(
                    autoscale={"autoscaler": {"name": "queue-length"}, "provisioning_s": 1}
                ),
                "events": [ROLE],
            },
            "events[0].what: role: the pool has autoscale",
        ),
    ],
)
def test_a_change_of_role_that_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        run(**changes)
    assert message in str(refused.value)
