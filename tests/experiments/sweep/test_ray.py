"""Sweeps on real Ray clusters: one of two nodes, one of which is killed while both are at work.

Nothing is simulated of Ray: two raylets of this machine, and SIGKILL for one of them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from experiments import hashes
from experiments.cli import app
from experiments.sweep.command import ask, sweep
from experiments.sweep.ray_cluster import OtherCodeError, RayCluster
from experiments.sweep.unit import Row, Unit
from sim.errors import ConfigError
from tests.experiments.sweep.examples import config, rows, run

pytestmark = pytest.mark.cluster

STORE_BYTES = 80 * 2**20
SEEDS = list(range(14))
SLOW_POLICY = """
import time
from pathlib import Path
import ray
from policies import POLICIES

class Slow(POLICIES["vllm-v1"]):
    '''Takes its time, and leaves a file, named by its node, for every run that it begins.'''

    begun = False

    def schedule(self, state):
        if not self.begun:
            self.begun = True
            here = ray.is_initialized()
            node = ray.get_runtime_context().get_node_id() if here else "none"
            Path(FOLDER, f"{node}-{time.time_ns()}").touch()
            time.sleep(1.0)
        return super().schedule(state)
"""


@dataclass
class TwoNodes:
    """A cluster with one CPU on each of two nodes."""

    cluster: Any
    second: Any

    def connect(self, ray: Any) -> RayCluster:
        """The executor, with a worker started on each node, which takes long on a busy machine."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        executor = RayCluster(self.cluster.address, jobs=None)
        executor.connect(ray)
        task = ray.remote(num_cpus=1)(lambda: None)
        nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
        assert len(nodes) == 2
        where = [NodeAffinitySchedulingStrategy(node, soft=False) for node in nodes]
        ray.get([task.options(scheduling_strategy=each).remote() for each in where])
        return executor


@pytest.fixture
def two_nodes(ray: Any) -> Iterator[TwoNodes]:
    from ray.cluster_utils import Cluster

    sizes = {"num_cpus": 1, "object_store_memory": STORE_BYTES}
    cluster = Cluster(initialize_head=True, head_node_args={**sizes, "include_dashboard": False})
    try:
        second = cluster.add_node(**sizes)
        cluster.wait_for_nodes()
        yield TwoNodes(cluster, second)
    finally:
        ray.shutdown()
        cluster.shutdown()


class Killer(threading.Thread):
    """Waits until the second node is in the midst of its second run, and kills it."""

    def __init__(self, nodes: TwoNodes, begun: Path) -> None:
        super().__init__(daemon=True)
        self.nodes, self.begun = nodes, begun
        self.killed = False

    def run(self) -> None:
        for _ in range(60_000):
            names = sorted(path.name for path in self.begun.glob(f"{self.nodes.second.node_id}-*"))
            if len(names) >= 2 and time.time_ns() - int(names[-1].rpartition("-")[2]) < 0.5e9:
                self.nodes.cluster.remove_node(self.nodes.second, allow_graceful=False)
                self.killed = True
                return
            time.sleep(0.01)


@dataclass
class Listening:
    """The executor under test, and all that it handed over."""

    inner: RayCluster
    rows: list[Row] = field(default_factory=list)

    def run(self, units: Sequence[Unit]) -> Generator[Row | None, None, None]:
        for row in self.inner.run(units):
            self.rows += [row] if row is not None else []
            yield row


def slow_config(folder: Path) -> Path:
    begun = folder / "begun"
    begun.mkdir()
    (folder / "slow_policy.py").write_text(SLOW_POLICY.replace("FOLDER", repr(str(begun))))
    given = config(compare=None, policy="slow_policy:Slow", sweep={"grid": {"seed": SEEDS}})
    (folder / "c.yaml").write_text(yaml.safe_dump(given))
    return folder / "c.yaml"


def test_a_node_that_dies_loses_nothing_and_nothing_is_there_twice(
    ray: Any, two_nodes: TwoNodes, tmp_path: Path
) -> None:
    asked = ask(slow_config(tmp_path))
    executor = Listening(two_nodes.connect(ray))
    killer = Killer(two_nodes, tmp_path / "begun")
    killer.start()

    made = sweep(asked, tmp_path / "ray", executor)
    killer.join(timeout=10)
    nodes = [path.name.partition("-")[0] for path in (tmp_path / "begun").iterdir()]
    ray.shutdown()
    local = run(tmp_path / "c.yaml", tmp_path / "local")

    assert killer.killed
    assert (made.finished, made.failed, made.lost) == (len(SEEDS), 0, 0)
    assert len(set(nodes)) == 2
    assert len(nodes) > len(SEEDS)  # a run was begun twice
    assert len(executor.rows) == len(SEEDS)  # and handed over once
    assert local.finished == len(SEEDS)
    in_order = sorted(rows(tmp_path / "ray"), key=lambda row: row["point"])
    assert in_order == sorted(rows(tmp_path / "local"), key=lambda row: row["point"])


def test_the_command_runs_on_a_cluster_of_its_own(ray: Any, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config(), sort_keys=False))
    options = ["--out", str(tmp_path / "out"), "--figures", "none", "--jobs", "1"]

    result = CliRunner().invoke(
        app, ["sweep", str(tmp_path / "c.yaml"), "--executor", "ray", *options]
    )

    assert result.exit_code == 0, result.output
    assert "4 points, 8 runs: 8 finished." in result.output
    run(tmp_path / "c.yaml", tmp_path / "local")
    assert rows(tmp_path / "out") == rows(tmp_path / "local")
    assert not ray.is_initialized()


def test_no_cluster_at_the_address(ray: Any, tmp_path: Path) -> None:
    executor = RayCluster("127.0.0.1:1", jobs=None)

    with pytest.raises(ConfigError, match=r"--address 127\.0\.0\.1:1: no Ray cluster there"):
        run(config(), tmp_path / "out", executor)  # type: ignore[arg-type]


def test_rows_are_not_dropped_for_a_cluster_that_is_not_there(ray: Any, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config(), sort_keys=False))
    run(tmp_path / "c.yaml", tmp_path / "out")
    before = rows(tmp_path / "out")
    options = ["--out", str(tmp_path / "out"), "--executor", "ray", "--address", "127.0.0.1:1"]

    result = CliRunner().invoke(app, ["sweep", str(tmp_path / "c.yaml"), "--fresh", *options])

    assert result.exit_code == 2
    assert "--address 127.0.0.1:1: no Ray cluster there" in result.output
    assert rows(tmp_path / "out") == before


def test_a_node_with_other_code_ends_the_sweep(
    two_nodes: TwoNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hashes, "of_code", lambda: "another version")
    asked = ask(config())

    with pytest.raises(OtherCodeError, match="is not the version that runs this sweep"):
        sweep(asked, tmp_path / "out", RayCluster(two_nodes.cluster.address, jobs=2))
