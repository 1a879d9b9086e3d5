"""Who makes the runs of a sweep: this process, processes here, or a cluster.

Another one (a batch system, say) is a class with the one method of `Executor`, and a line in
`make_executor`.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Protocol

from experiments.names import unknown
from experiments.sweep.unit import Row, Unit, run_unit
from sim.errors import ConfigError

EXECUTORS = ("local", "ray")
Rows = Generator[Row | None, None, None]


class Executor(Protocol):
    """Makes runs, in whatever order and as often as it takes, and hands over their rows."""

    def run(self, units: Sequence[Unit]) -> Rows:
        """Make every run, and yield its row, once for each; None now and then where none is ready.

        At least once a second something is yielded, except by an executor that runs here, so that
        rows reach the disk and progress is shown. The generator ends when all rows are out; when it
        is closed before, it stops what still runs.
        """


class Here:
    """One run after the other, in this process."""

    def run(self, units: Sequence[Unit]) -> Rows:
        """See `Executor`."""
        for unit in units:
            yield run_unit(unit)


def make_executor(name: str, jobs: int | None, address: str | None) -> Executor:
    """An executor by its name.

    Args:
        name: Of `EXECUTORS`.
        jobs: Runs at a time; None for what there is.
        address: Of a cluster.

    Raises:
        ConfigError: There is no such executor, it takes no address, or no cluster is there.
    """
    if name not in EXECUTORS:
        raise ConfigError(f"--executor {name}: {unknown('executor', name, EXECUTORS)}")
    if name == "ray":
        from experiments.sweep.ray_cluster import RayCluster

        cluster = RayCluster(address, jobs)
        cluster.check()
        return cluster
    if address is not None:
        raise ConfigError(f"--address {address}: the executor local has none; try --executor ray")
    import os

    processes = jobs or os.cpu_count() or 1
    if processes == 1:
        return Here()
    from experiments.sweep.local import Processes

    return Processes(processes)
