"""How fast phasewise is: `make bench` prints this. Every row is the work of one core.

Llama-3.1-8B on one H100 per replica; (a) the shared Azure conversation trace, 11,997 rows at 5.84
a second, where that is at hand, and (b) synthetic rows of its shape. For 16 replicas arrival times
are divided by 16, so that the load per replica stays. Steps and plots are off, requests.parquet is
written. Requests per second are those of the event loop, arrivals made and outcomes collected
included, in processor time. Targets are scaled by the machine's own speed in empty SimPy timeouts,
as they were set on one that does 1.4 million a second.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from statistics import median

from experiments.attribution import MOST_REQUESTS
from tests.bench.measure import (
    CONV,
    STEP_TIMES,
    Case,
    Timing,
    best,
    in_a_process,
    recorded,
    timeouts_per_s,
)
from tests.bench.targets import Targets, table

POLICIES = ("static", "orca", "vllm-v0", "vllm-v1", "sarathi")
PARTS = ("targets", "speed", "growth", "process", "attribution")
ATTRIBUTION_LIMIT = 0.3
"""Time that recording where time went may add before it is off beyond `MOST_REQUESTS`."""
LOOP_TARGET_PER_S = {"linear": 20_000, "roofline": 12_000}
REFERENCE_TIMEOUTS_PER_S = 1.4e6


class Report:
    """Prints rows beside their targets, which are scaled to this machine.

    Args:
        speed: Speed of this machine relative to that on which the targets were set.
        tries: Runs of which the quickest counts, where a target is at stake.
    """

    def __init__(self, speed: float, tries: int) -> None:
        self.speed = speed
        self.tries = tries
        self.missed = 0

    def verdict(self, good: bool) -> str:
        """``met`` or ``missed``, counted."""
        self.missed += not good
        return "met" if good else "MISSED"

    def speeds(self, rows: int, policies: Iterable[str], step_times: Iterable[str]) -> None:
        """Requests and iterations per second: fast-forwarded, stepped, short of memory."""
        name = "(b) synthetic rows" if rows else f"(a) {CONV}"
        print(f"\n{name}, event loop, one core; short of memory: a third of the blocks ever in use")
        print(
            f"{'policy':8} {'step time':9} {'replicas':>8} | {'req/s':>7} {'iter/s':>8} "
            f"{'target':>14} | {'stepping':>8} {'iter/s':>7} | {'blocks':>6} {'req/s':>6} "
            f"{'preempted':>9}"
        )
        for step_time in step_times:
            for policy in policies:
                self._speed_of(Case(policy, step_time, rows))

    def _speed_of(self, case: Case) -> None:
        peak = best(replace(case, series_points=500))[0].peak_blocks
        one = self._line(case, None, peak // 3)
        self._line(replace(case, replicas=16), one, peak // 3)

    def _line(self, case: Case, one: Timing | None, short_blocks: int) -> Timing:
        fast, _ = best(case, self.tries)
        slow, _ = best(replace(case, fast_forward=False))
        short, _ = best(replace(case, num_blocks=short_blocks))
        if one is None:
            target = LOOP_TARGET_PER_S[case.step_time] * self.speed
            said = f"{target:7.0f} {self.verdict(fast.requests_per_s >= target):6}"
        else:
            ratio = one.requests_per_s / fast.requests_per_s
            said = f"{ratio:4.2f}x {self.verdict(ratio <= 1.5):6}"
        print(
            f"{case.policy:8} {case.step_time:9} {case.replicas:8} | {fast.requests_per_s:7.0f} "
            f"{fast.iterations_per_s:8.0f} {said:>14} | {slow.requests_per_s:8.0f} "
            f"{slow.iterations_per_s:7.0f} | {short.blocks:6} {short.requests_per_s:6.0f} "
            f"{short.preemptions:9}",
            flush=True,
        )
        return fast

    def growth(self, policies: Iterable[str], sizes: Iterable[int]) -> None:
        """Cost per request and peak memory as the number of requests grows, each run alone."""
        print(
            "\ngrowth on synthetic rows, linear step times, one replica, each size a process alone"
        )
        print(
            f"{'policy':8} {'rows':>9} | {'loop s':>7} {'us/req':>7} {'all s':>7} {'by clock':>8} "
            f"{'peak MiB':>8} |"
        )
        for policy in policies:
            first: float | None = None
            for rows in sizes:
                first = self._growth_of(policy, rows, first)

    def _growth_of(self, policy: str, rows: int, first: float | None) -> float:
        """Print one size; seconds per request of the smallest one."""
        large = rows >= 1_000_000
        timing, process = best(Case(policy, rows=rows), 1 if large else self.tries)
        cost = timing.loop_s / rows
        ratio = cost / (first or cost)
        said = f"{ratio:4.2f}x"
        if large:
            limit_s = 100 / self.speed
            good = ratio <= 1.3 and process.processor_s < limit_s and process.peak_mib < 3072
            said += f" {self.verdict(good)} (1.3x, {limit_s:.0f} s, 3072 MiB)"
        print(
            f"{policy:8} {rows:9} | {timing.loop_s:7.2f} {1e6 * cost:7.1f} "
            f"{process.processor_s:7.2f} {process.wall_s:8.2f} {process.peak_mib:8.0f} | {said}",
            flush=True,
        )
        return first or cost

    def attribution(self, rows: int, policies: Iterable[str], step_times: Iterable[str]) -> None:
        """What it costs to record where time went, a line for each step-time model at the end.

        Where it is more than `ATTRIBUTION_LIMIT`, it is left out of large runs by default. Runs
        with and without it take turns, and of each the quickest counts.
        """
        print("\nattribution of time, event loop, one replica: us a request without and with it")
        for step_time in step_times:
            ratios = {policy: self._attributed(policy, step_time, rows) for policy in policies}
            dearest = max(ratios, key=lambda name: ratios[name])
            above = f"over {ATTRIBUTION_LIMIT:.0%}: off beyond {MOST_REQUESTS:,} requests"
            said = above if ratios[dearest] > 1 + ATTRIBUTION_LIMIT else "within the limit"
            middle = median(ratios.values()) - 1
            print(
                f"attribution with {step_time} step times adds {middle:.0%} (median of policies), "
                f"at most {ratios[dearest] - 1:.0%} ({dearest}); {said}",
                flush=True,
            )

    def _attributed(self, policy: str, step_time: str, rows: int) -> float:
        """Print one policy; its time with attribution over that without."""
        plain = Case(policy, step_time, rows)
        loops: dict[bool, list[float]] = {False: [], True: []}
        for with_it in [False, True] * self.tries:
            timing, _ = best(replace(plain, attribution=with_it))
            loops[with_it].append(timing.loop_s / timing.requests)
        off, on = min(loops[False]), min(loops[True])
        print(
            f"{policy:8} {step_time:9} | {1e6 * off:7.1f} {1e6 * on:7.1f} {on / off:5.2f}x",
            flush=True,
        )
        return on / off

    def processes(self, policies: Iterable[str]) -> None:
        """The command as a user runs it: CSV to requests table, interpreter start included."""
        limit_s = 2 / self.speed
        print(f"\nphasewise run, whole process on (a), linear; targets {limit_s:.2f} s and 300 MiB")
        for policy in policies:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "bench.yaml"
                path.write_text(json.dumps(Case(policy).config()), encoding="utf-8")
                command = "import phasewise; phasewise.main()"
                options = ("--out", f"{folder}/out", "--figures", "none", "--jobs", "1")
                process = in_a_process("-c", command, "run", str(path), *options)
            good = process.processor_s < limit_s and process.peak_mib < 300
            print(
                f"{policy:8} {process.processor_s:6.2f} s ({process.wall_s:.2f} s by the clock) "
                f"{process.peak_mib:6.0f} MiB  "
                f"{self.verdict(good)}",
                flush=True,
            )


def main() -> None:
    """Print the bench, or parts of it."""
    parser = argparse.ArgumentParser(prog="make bench BENCH=...", description=__doc__)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="fewer and smaller runs, linear only but for the cost of attribution",
    )
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=POLICIES)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    options = parser.parse_args()
    timeouts = timeouts_per_s()
    speed = timeouts / REFERENCE_TIMEOUTS_PER_S
    print(
        f"yardstick: {timeouts / 1e6:.2f} million empty SimPy timeouts a second; targets, set at "
        f"{REFERENCE_TIMEOUTS_PER_S / 1e6:.1f} million, are scaled by {speed:.2f}"
    )
    report = Report(speed, tries=1 if options.quick else 3)
    targets = Targets(speed)
    if "targets" in options.parts:
        table(targets, options.policies, report.tries, quick=options.quick)
    have_trace = recorded().is_file()
    if not have_trace:
        print(f"(a) is left out: no {recorded()} (PHASEWISE_SHARED can name the folder)")
    if "speed" in options.parts:
        step_times = ("linear",) if options.quick else tuple(STEP_TIMES)
        if have_trace:
            report.speeds(0, options.policies, step_times)
        if not (have_trace and options.quick):
            report.speeds(12_000, options.policies, step_times)
    if "attribution" in options.parts:
        report.attribution(0 if have_trace else 12_000, options.policies, tuple(STEP_TIMES))
    if "growth" in options.parts and "targets" not in options.parts:  # the table has it too
        sizes = (10_000, 100_000) if options.quick else (10_000, 100_000, 1_000_000)
        report.growth(options.policies, sizes)
    if "process" in options.parts and have_trace:
        report.processes(options.policies)
    print(f"\nof the table: {targets.missed} missed, {targets.missed_scaled} at 1.4 million")
    print(f"of the rest: {report.missed} missed")


if __name__ == "__main__":
    main()
