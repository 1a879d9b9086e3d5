"""The speed that is wanted, and what there is: one table, each row the work of one core.

Whole processes are run as a user runs the command, with ``requests.parquet`` written, and steps,
attribution, series and figures off; their processor time counts, as the machine may have other
work. The last column is what the row would take on a machine that does 1.4 million empty SimPy
timeouts a second, which is where earlier targets were set; an interpreter built without
profile-guided optimisation is a third slower than one with it, and shows there too.
"""

from __future__ import annotations

import json
import sysconfig
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.bench.measure import Case, Process, best, in_a_process, recorded

COMMAND = "import phasewise; phasewise.main()"
LARGE, REPLICAS = 1_000_000, 64
LARGE_S = {"linear": 40.0, "roofline": 60.0}
RUNS, RUNS_S = 10_000, 60.0
MIB = 3072
QUICK = 20
"""Of the large rows a quick bench does one part in so many, against the same part of the target."""


@dataclass
class Targets:
    """Prints rows, and counts the targets that are not met.

    Attributes:
        speed: Of this machine, relative to the one that does 1.4 million timeouts a second.
        missed: Targets not met as measured.
        missed_scaled: Not met by what would be measured there.
    """

    speed: float
    missed: int = 0
    missed_scaled: int = 0

    def head(self) -> None:
        """The heading of the table."""
        built = sysconfig.get_config_var("CONFIG_ARGS") or ""
        optimised = "with" if "enable-optimizations" in built else "not built with"
        print(f"\ntargets; Python {optimised} --enable-optimizations")
        print(f"{'what':58} | {'target':>9} | {'measured':>9} | {'':6} | at 1.4 M/s")

    def row(self, what: str, limit: float, measured: float, unit: str = "s") -> None:
        """One target; seconds are scaled by the machine's speed as well."""
        scaled = measured * self.speed if unit == "s" else measured
        self.missed += measured > limit
        self.missed_scaled += scaled > limit
        verdict = "MISSED" if measured > limit else "met"
        there = f"{scaled:9.2f} {'MISSED' if scaled > limit else 'met'}" if unit == "s" else ""
        print(
            f"{what:58} | {limit:7.4g} {unit:3}|{measured:8.2f} {unit:3}| {verdict:6} | {there}",
            flush=True,
        )

    def say(self, what: str, value: str) -> None:
        """A row without a target."""
        print(f"{what:58} | {'':>9} | {value}", flush=True)


def run_of(case: Case, *more: str, tries: int = 1) -> Process:
    """``phasewise run`` of a case in a process of its own; the quickest of some tries."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.yaml"
        path.write_text(json.dumps(case.config()), encoding="utf-8")
        made = [
            in_a_process(
                "-c", COMMAND, "run", str(path), "--out", f"{folder}/{at}", "--figures", "none",
                *(more or ("--jobs", "1")),
            )
            for at in range(tries)
        ]  # fmt: skip
    return min(made, key=lambda process: process.processor_s)


def table(targets: Targets, policies: Iterable[str], tries: int, *, quick: bool) -> None:
    """All targets in one table."""
    targets.head()
    _help(targets)
    if recorded().is_file():
        for policy in policies:
            process = run_of(Case(policy, "roofline"), tries=tries + 1)  # the first one compiles
            targets.row(f"Azure conv, 11,997 rows, {policy}", 1.0, process.processor_s)
    part = QUICK if quick else 1
    _large(targets, policies, part)
    _short(targets, part)
    _growth(targets, policies, tries, quick=quick)
    _shards(targets)


def _help(targets: Targets) -> None:
    process = min(
        (in_a_process("-c", COMMAND, "--help") for _ in range(4)), key=lambda each: each.processor_s
    )
    targets.row("phasewise --help", 0.3, process.processor_s)


def _large(targets: Targets, policies: Iterable[str], part: int) -> None:
    rows = LARGE // part
    for step_time, limit_s in LARGE_S.items():
        for policy in policies:
            process = run_of(Case(policy, step_time, rows, REPLICAS))
            what = f"{rows:,} requests, {REPLICAS} replicas, {policy}, {step_time}"
            targets.row(what, limit_s / part, process.processor_s)
            targets.row("    peak memory", MIB, process.peak_mib, "MiB")


def _short(targets: Targets, part: int) -> None:
    runs = RUNS // part
    process = in_a_process("-m", "tests.bench.short_runs", str(runs))
    seconds = float(process.output.splitlines()[-1])
    targets.row(f"{runs:,} runs of 100 requests by Python, vllm-v1", RUNS_S / part, seconds)


def _growth(targets: Targets, policies: Iterable[str], tries: int, *, quick: bool) -> None:
    """Cost per request of the event loop, relative to that at 10,000 requests."""
    sizes = (10_000, 100_000) if quick else (10_000, 100_000, 1_000_000)
    for policy in policies:
        costs = [
            best(Case(policy, rows=rows), tries if rows < LARGE else 1)[0].loop_s / rows
            for rows in sizes
        ]
        said = ", ".join(
            f"{rows:,}: {1e6 * cost:.0f} us ({cost / costs[0]:.2f}x)"
            for rows, cost in zip(sizes, costs, strict=True)
        )
        targets.say(f"cost of a request as runs grow, {policy}", said)


def _shards(targets: Targets) -> None:
    """How much sooner a run is over that two processes share, by the clock."""
    case = Case("vllm-v1", rows=LARGE // QUICK, replicas=REPLICAS)
    times = []
    for more in (("--jobs", "1"), ("--shards", "2")):
        began = time.perf_counter()
        run_of(case, *more)
        times.append(time.perf_counter() - began)
    said = f"{times[0]:.1f} s, {times[1]:.1f} s by the clock: {times[0] / times[1]:.2f}x"
    targets.say(f"{case.rows:,} requests in one process, and in 2 shards", said)
