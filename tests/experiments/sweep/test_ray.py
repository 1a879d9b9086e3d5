"""Sweeps on real Ray clusters: one of two nodes, one of which is killed while both are at work.

Nothing is simulated of Ray: two raylets of this machine, and SIGKILL for one of them.
"""

from __future__ import annotations

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
import os, time
from pathlib import Path
from policies import POLICIES

class Slow(POLICIES["vllm-v1"]):
    '''Takes its time, and leaves a file for every run that it begins.'''

    begun = False

    def schedule(self, state):
        if not self.begun:
            self.begun = True
            Path(FOLDER, f"{os.getpid()}-{time.time_ns()}").touch()
            time.sleep(0.8)
        return super().schedule(state)
"""


@dataclass
class TwoNodes:
    """A cluster with one CPU on each of two nodes."""

    cluster: Any
    second: Any
    killed: bool = False

    def kill(self) -> None:
        """SIGKILL for all processes of the second node."""
        self.cluster.remove_node(self.second, allow_graceful=False)
        self.killed = True


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


@dataclass
class Killing:
    """The executor under test; kills a node when some rows have come from both."""

    nodes: TwoNodes
    inner: RayCluster
    after: int
    rows: list[Row] = field(default_factory=list)

    def run(self, units: Sequence[Unit]) -> Generator[Row | None, None, None]:
        for row in self.inner.run(units):
            if row is not None:
                self.rows.append(row)
            if len(self.rows) >= self.after and not self.nodes.killed:
                self.nodes.kill()
            yield row


def slow_config(folder: Path) -> Path:
    begun = folder / "begun"
    begun.mkdir()
    (folder / "slow_policy.py").write_text(SLOW_POLICY.replace("FOLDER", repr(str(begun))))
    given = config(compare=None, policy="slow_policy:Slow", sweep={"grid": {"seed": SEEDS}})
    (folder / "c.yaml").write_text(yaml.safe_dump(given))
    return folder / "c.yaml"


def test_a_node_that_dies_loses_nothing_and_nothing_is_there_twice(
    two_nodes: TwoNodes, tmp_path: Path
) -> None:
    asked = ask(slow_config(tmp_path))
    address = two_nodes.cluster.address
    executor = Killing(two_nodes, RayCluster(address, jobs=None), after=4)

    made = sweep(asked, tmp_path / "ray", executor)
    begun = len(list((tmp_path / "begun").iterdir()))
    local = run(tmp_path / "c.yaml", tmp_path / "local")

    assert two_nodes.killed
    assert (made.finished, made.failed, made.lost) == (len(SEEDS), 0, 0)
    assert begun > len(SEEDS), "the node was idle when it was killed"
    assert len(executor.rows) == len(SEEDS)  # what ran twice was handed over once
    workers = {row["worker"] for row in executor.rows[:4]}
    assert len(workers) == 2, "both nodes were at work"
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


def test_a_node_with_other_code_ends_the_sweep(
    two_nodes: TwoNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ask(config())
    monkeypatch.setattr(hashes, "of_code", lambda: "another version")

    with pytest.raises(OtherCodeError, match="is not the version that runs this sweep"):
        sweep(asked, tmp_path / "out", RayCluster(two_nodes.cluster.address, jobs=2))
