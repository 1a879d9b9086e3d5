"""A server made by simulation: what it served, in the formats of benchmark tools."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments import cluster, config
from experiments.workload import build_workload
from sim.event_loop import simulate
from sim.records import Record, SimulationResult

HOST = {"form": "per-sequence", "step_us": 2400, "request_us": 25}
"""Of the server; large, so that it matters."""


def config_of(host: object = HOST, **more: Any) -> dict[str, Any]:
    """A config without a workload."""
    step_time = {"model": "roofline", "host": host}
    return {"model": "llama-3.1-8b", "device": "h100-sxm", "engine": "vllm-0.10",
            "step_time": step_time, "name": "mine", **more}  # fmt: skip


@dataclass(frozen=True)
class Server:
    """A run of the simulator that stands for a server.

    Attributes:
        result: What it came to.
    """

    result: SimulationResult

    @classmethod
    def of(cls, settings: Mapping[str, Any], requests: int = 80, **arrivals: Any) -> Server:
        """Serve requests like those of ShareGPT; by default at 12 a second."""
        arrivals = arrivals or {"process": "poisson", "rate_per_s": 12}
        workload = {"preset": "sharegpt-like", "requests": requests, "arrivals": arrivals}
        plan = config.load({**settings, "workload": workload})
        built = cluster.build(plan.variants[0], plan.folder)
        source = build_workload(plan.variants[0], plan.folder, None).source
        return cls(simulate(source, built.cluster, record=Record()))

    def column(self, name: str) -> list[int]:
        """One value of each request."""
        values: list[int] = self.result.requests[name].tolist()
        return values

    def gaps_s(self) -> list[list[float]]:
        """Gaps between the tokens of each request, seconds."""
        n = len(self.result.requests["index"])
        return [(np.diff(self.result.token_times_ns(i)) / 1e9).tolist() for i in range(n)]

    def since_arrival_s(self, name: str) -> list[float]:
        """A time of each request, from its arrival, seconds."""
        then, start = self.result.requests[name], self.result.requests["arrival_ns"]
        return ((then - start) / 1e9).tolist()

    def vllm(self, folder: Path, **more: Any) -> Path:
        """As ``vllm bench serve --save-result --save-detailed`` writes it."""
        starts = [1000 + ns / 1e9 for ns in self.column("arrival_ns")]
        said = {"date": "20260901-101500", "model_id": "m", "start_times": starts,
                "request_rate": 12.0, **self._arrays(), **more}  # fmt: skip
        return _written(folder / "vllm.json", json.dumps(without_none(said)))

    def sglang(self, folder: Path, **more: Any) -> Path:
        """As ``bench_serving --output-file --output-details`` writes it: without arrival times."""
        said = {"backend": "sglang", "sharegpt_output_len": None, **self._arrays(), **more}
        return _written(folder / "sglang.jsonl", json.dumps(said))

    def _arrays(self) -> dict[str, Any]:
        return {
            "input_lens": self.column("prompt_tokens"),
            "output_lens": self.column("output_tokens"),
            "ttfts": self.since_arrival_s("first_token_ns"),
            "itls": self.gaps_s(),
            "errors": [""] * len(self.column("index")),
        }

    def aiperf(self, folder: Path) -> Path:
        """As AIPerf's profile_export.jsonl."""
        columns = zip(
            self.column("arrival_ns"),
            self.column("prompt_tokens"),
            self.column("output_tokens"),
            self.since_arrival_s("first_token_ns"),
            self.since_arrival_s("last_token_ns"),
            self.gaps_s(),
            strict=True,
        )
        lines = [
            {
                "metadata": {"request_start_ns": 10**18 + start, "benchmark_phase": "profiling"},
                "metrics": {
                    "input_sequence_length": {"value": prompt, "unit": "tokens"},
                    "output_sequence_length": {"value": output, "unit": "tokens"},
                    "time_to_first_token": {"value": 1e3 * first, "unit": "ms"},
                    "request_latency": {"value": 1e3 * last, "unit": "ms"},
                    "inter_chunk_latency": {"value": [1e3 * gap for gap in gaps], "unit": "ms"},
                },
            }
            for start, prompt, output, first, last, gaps in columns
        ]
        return _written(folder / "profile_export.jsonl", "\n".join(map(json.dumps, lines)))

    def csv(self, folder: Path, heads: str = "arrival_s,isl,osl,first_ms,e2e_s") -> Path:
        """A table of one's own."""
        columns = zip(
            self.column("arrival_ns"),
            self.column("prompt_tokens"),
            self.column("output_tokens"),
            self.since_arrival_s("first_token_ns"),
            self.since_arrival_s("last_token_ns"),
            strict=True,
        )
        rows = [f"{a / 1e9!r},{p},{o},{1e3 * t!r},{e!r}" for a, p, o, t, e in columns]
        return _written(folder / "mine.csv", "\n".join([heads, *rows]))


def without_none(said: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that have a value."""
    return {key: value for key, value in said.items() if value is not None}


def _written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path
