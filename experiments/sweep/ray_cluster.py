"""Runs as tasks of a Ray cluster: an existing one, or one of this machine for the time of a sweep.

What is relied on, from the documentation of Ray ("Task fault tolerance", "Resources"): a task whose
worker or node dies is run again, up to ``max_retries`` times, on whatever node has room; a result
is handed to the driver once. So nothing is lost with a node, and what runs twice gives one row.

Every node needs phasewise in the same version, and the files of the config under the same path.
Both are checked before each run: a node with other code or another trace ends the sweep, with one
line; a file that a node lacks is the error of its runs.
"""

from __future__ import annotations

import logging
import os
import platform
import socket
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from experiments.extras import require
from experiments.sweep.unit import LOST, Row, Unit, failed_row, run_unit
from experiments.variant import fingerprints
from sim.errors import ConfigError, PhasewiseError

RETRIES = 5
"""How often a run is begun again when its worker or node dies; then its row says that it is lost.
A run that kills its worker, for want of memory say, must not go on for ever."""
_STORE_BYTES = 80 * 2**20
"""Object store of a cluster of our own: rows are a few KB (Ray takes no less than 75 MiB)."""
_CONNECT_S = 10.0
_AHEAD = 2
"""Runs handed to Ray per CPU: enough that no node waits for the driver."""


class OtherCodeError(PhasewiseError):
    """A node of the cluster has another version of phasewise, or of a file that decides a run."""


@dataclass(frozen=True)
class RayCluster:
    """See `experiments.sweep.executors.Executor`.

    Attributes:
        address: Of an existing cluster, as ``ray.init`` takes it, such as ``auto`` or
            ``ray://host:10001``; None for a cluster of this machine. Where this process is
            connected already, that cluster is used and left as it is.
        jobs: Most runs at a time; None for as many as the cluster has CPUs.
    """

    address: str | None
    jobs: int | None

    def check(self) -> None:
        """Refuse what `run` would refuse, before anything is begun or dropped for it.

        Raises:
            MissingExtraError: Ray is not installed.
            ConfigError: No cluster is at the address.
        """
        ray = require("ray", "cluster", "the executor ray")
        if self.address is not None and not ray.is_initialized():
            self.connect(ray)
            ray.shutdown()

    def run(self, units: Sequence[Unit]) -> Generator[Row | None, None, None]:
        """See `Executor`."""
        ray = require("ray", "cluster", "the executor ray")
        ours = not ray.is_initialized()
        if ours:
            self.connect(ray)
        try:
            yield from self._rows(ray, units)
        finally:
            if ours:
                ray.shutdown()

    def connect(self, ray: Any) -> None:
        """Connect this process, for `run` and whoever wants to use the cluster before.

        Args:
            ray: The module.

        Raises:
            ConfigError: No cluster is at the address.
        """
        if self.address is not None:
            _check_reachable(self.address)
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would ask, and then report
        common: dict[str, Any] = {
            "log_to_driver": False,
            "logging_level": logging.ERROR,
            # A worker takes the code from where the driver has it, if that is there on its node.
            "runtime_env": {"env_vars": {"PYTHONPATH": _python_path()}},
        }
        try:
            if self.address is None:
                ray.init(
                    address="local",
                    num_cpus=self.jobs,
                    object_store_memory=_STORE_BYTES,
                    include_dashboard=False,
                    **common,
                )
            else:
                ray.init(address=self.address, **common)
        except (ConnectionError, RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            raise ConfigError(f"--address {self.address}: no Ray cluster there: {reason}") from None

    def _rows(self, ray: Any, units: Sequence[Unit]) -> Generator[Row | None, None, None]:
        task = ray.remote(num_cpus=1, max_retries=RETRIES)(run_checked)
        rest = iter(units)
        running: dict[Any, Unit] = {}
        try:
            while True:
                for unit in islice(rest, max(0, self._most(ray) - len(running))):
                    running[task.remote(unit)] = unit
                if not running:
                    return
                ready, _ = ray.wait(list(running), num_returns=1, timeout=1.0)
                if not ready:
                    yield None
                for reference in ready:
                    yield _row(ray, reference, running.pop(reference))
        finally:
            for reference in running:
                ray.cancel(reference, force=True)

    def _most(self, ray: Any) -> int:
        """Runs to have on their way; nodes may have come or gone since the last time."""
        cpus = int(ray.cluster_resources().get("CPU", 0))
        return self.jobs or max(1, _AHEAD * cpus)


def _check_reachable(address: str) -> None:
    """Refuse an address where nobody listens now: Ray itself tries for many minutes.

    Raises:
        ConfigError: One line.
    """
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdigit():
        return  # a word, such as auto, which Ray looks up
    try:
        with socket.create_connection((host, int(port)), timeout=_CONNECT_S):
            return
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(f"--address {address}: no Ray cluster there: {reason}") from None


def _python_path() -> str:
    root = str(Path(__file__).resolve().parents[2])
    before = os.environ.get("PYTHONPATH", "")
    return f"{root}{os.pathsep}{before}" if before else root


def _row(ray: Any, reference: Any, unit: Unit) -> Row:
    try:
        row: Row = ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise error.as_instanceof_cause() from None  # not a failed run, which is a row
    except ray.exceptions.RayError as error:
        return failed_row(unit, LOST, f"its worker was lost: {_reason(error)}")
    return row


def _reason(error: Exception) -> str:
    """What kind of loss, without the addresses and ids that differ from one time to the next."""
    return type(error).__name__


def run_checked(unit: Unit) -> Row:
    """Body of a task: make a run, with the same code and files as the driver has.

    Args:
        unit: The run.

    Raises:
        OtherCodeError: This node has other ones.
    """
    try:
        here = fingerprints([unit.experiment], unit.folder)[0]
    except (OSError, PhasewiseError):
        return run_unit(unit)  # a file that is not there: the row says which
    node = f"node {platform.node()}"
    if here.code != unit.prints.code:
        raise OtherCodeError(
            f"{node}: phasewise in {Path(__file__).resolve().parents[2]}, or a module of the "
            "config, is not the version that runs this sweep; install the same on all nodes"
        )
    if here.trace != unit.prints.trace:
        raise OtherCodeError(f"{node}: a trace of the config is another file than on the driver")
    return run_unit(unit)
