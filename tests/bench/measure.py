"""What one row of the bench is (`Case`), and how long it takes (`Timing`, `Process`).

Run as ``python -m tests.bench.measure CASE TRIES`` it prints the timing of one case as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import simpy

ROOT = Path(__file__).resolve().parents[2]
LINEAR = {
    # Llama-3.1-8B on an H100 by its data sheet: 16 GB of weights and the host's time, 16 GFLOP a
    # token at 60 % of peak, 131 kB of KV a token at 80 % of the bandwidth.
    "model": "linear",
    "base_s": 6e-3,
    "prefill_token_s": 2.7e-5,
    "decode_s": 3e-5,
    "context_token_s": 5e-8,
}
STEP_TIMES: dict[str, dict[str, Any]] = {"linear": LINEAR, "roofline": {"model": "roofline"}}
RATE_PER_S = 5.84
CONV = "azure_2023_conv_head.csv"


@dataclass(frozen=True)
class Case:
    """One run to be timed.

    Attributes:
        policy: Name of the policy.
        step_time: ``linear`` or ``roofline``.
        rows: Number of synthetic rows, or 0 for the recorded trace.
        replicas: Replicas, at the same load each.
        fast_forward: Whether runs of equal decisions are advanced at once.
        num_blocks: KV blocks per replica, or None to compute them.
        series_points: Samples of the series, to find the peak of the blocks in use.
        attribution: Whether it is recorded where time went.
    """

    policy: str
    step_time: str = "linear"
    rows: int = 0
    replicas: int = 1
    fast_forward: bool = True
    num_blocks: int | None = None
    series_points: int = 0
    attribution: bool = False

    def config(self) -> dict[str, Any]:
        """The case as a config that `phasewise run` takes."""
        workload: dict[str, Any] = {"max_tokens": 1024, "arrivals": {"speedup": self.replicas}}
        if self.rows:
            workload |= {"preset": "azure-conv-2023", "requests": self.rows}
            workload["arrivals"] = {
                "process": "poisson",
                "rate_per_s": RATE_PER_S * self.replicas,
            }
        else:
            workload["trace"] = str(recorded())
        return {
            "workload": workload,
            "model": "llama-3.1-8b",
            "device": "h100-sxm",
            "max_model_len": 16384,  # the longest prompt is 14,050
            "replicas": self.replicas,
            "policy": self.policy,
            "kv": {} if self.num_blocks is None else {"num_blocks": self.num_blocks},
            "step_time": STEP_TIMES[self.step_time],
            "record": {
                "steps": False,
                "series_points": self.series_points,
                "attribution": "always" if self.attribution else False,
            },
            "fast_forward": self.fast_forward,
        }


@dataclass(frozen=True)
class Timing:
    """What one run took.

    Attributes:
        requests: Rows.
        iterations: Iterations of all replicas.
        loop_s: Processor time of the event loop, arrivals made and outcomes collected included.
        rest_s: Processor time for reading, summing up and writing.
        preemptions: Preemptions of all requests.
        blocks: KV blocks per replica.
        peak_blocks: Most of them in use at a sampled instant.
    """

    requests: int
    iterations: int
    loop_s: float
    rest_s: float
    preemptions: int
    blocks: int
    peak_blocks: int

    @property
    def requests_per_s(self) -> float:
        """Requests per second of event loop."""
        return self.requests / self.loop_s

    @property
    def iterations_per_s(self) -> float:
        """Iterations per second of event loop."""
        return self.iterations / self.loop_s


@dataclass(frozen=True)
class Process:
    """What a whole process took.

    Attributes:
        processor_s: Processor time, user and system.
        wall_s: Time by the clock, which a busy machine makes longer.
        peak_mib: Largest resident memory.
        output: What it printed.
    """

    processor_s: float
    wall_s: float
    peak_mib: float
    output: str


def recorded() -> Path:
    """The shared conversation trace, which may be absent."""
    return Path(os.environ.get("PHASEWISE_SHARED", ROOT.parent / "shared")) / "traces" / CONV


class Clock:
    """Calls a function and keeps the processor time that it took.

    Processor time, as that is what the work costs whatever else the machine does.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.seconds = 0.0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        began = time.process_time()
        try:
            return self.function(*args, **kwargs)
        finally:
            self.seconds += time.process_time() - began


def measure(case: Case) -> Timing:
    """Run a case in this process and write its bundle."""
    from experiments import bundle, config, variant
    from sim import event_loop

    began = time.process_time()
    plan = config.load(case.config())
    variant.simulate = loop = Clock(event_loop.simulate)  # type: ignore[attr-defined]
    made = variant.run_variant(plan.variants[0], plan.folder)
    with tempfile.TemporaryDirectory() as folder:
        bundle.write(made, Path(folder) / "variant")
    used = made.series.get("used_blocks", ())
    return Timing(
        requests=len(made.requests["index"]),
        iterations=sum(replica.iterations for replica in made.replicas),
        loop_s=loop.seconds,
        rest_s=time.process_time() - began - loop.seconds,
        preemptions=int(made.requests["preemptions"].sum()),
        blocks=made.replicas[0].total_blocks,
        peak_blocks=int(max(used)) if len(used) else 0,
    )


def in_a_process(*arguments: str) -> Process:
    """Run this Python with arguments, alone, and account for it.

    Compiled modules are kept, as for any user, whatever the environment here says.
    """
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    began = time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )
    assert child.stdout is not None
    with child.stdout as pipe:
        output = pipe.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"bench: {' '.join(arguments)} ended with {child.returncode}: {output}")
    kib = usage.ru_maxrss / (1024 if sys.platform == "darwin" else 1)
    processor_s = usage.ru_utime + usage.ru_stime
    return Process(processor_s, time.perf_counter() - began, kib / 1024, output)


def best(case: Case, tries: int = 1) -> tuple[Timing, Process]:
    """The quickest of some runs in one process of their own: a busy machine only ever adds time.

    Always a process of its own, started by a lean one: the system counts a process's largest memory
    from that of its parent on.
    """
    told = json.dumps(vars(case))
    process = in_a_process("-m", "tests.bench.measure", told, str(tries))
    return Timing(**json.loads(process.output.splitlines()[-1])), process


def timeouts_per_s(count: int = 300_000) -> float:
    """Empty SimPy timeouts that this machine does in a second, the best of three tries."""

    def wait(env: simpy.Environment) -> Iterator[simpy.Event]:
        for _ in range(count):
            yield env.timeout(1)

    def once() -> float:
        env = simpy.Environment()
        env.process(wait(env))  # type: ignore[arg-type]
        began = time.process_time()
        env.run()
        return count / (time.process_time() - began)

    return max(once() for _ in range(3))


if __name__ == "__main__":
    asked, times = Case(**json.loads(sys.argv[1])), int(sys.argv[2])
    quickest = min((measure(asked) for _ in range(times)), key=lambda timing: timing.loop_s)
    print(json.dumps(vars(quickest)))
