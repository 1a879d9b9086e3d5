"""The dictionary of metrics: name, unit and exact words of every quantity that we report.

The functions are in `metrics.py` (latencies, rates, use of replicas), `cache_metrics.py` (prefix
caches), `fairness.py` (tenants, replicas), `model_work.py` (FLOPs and bytes) and `cost.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Metric:
    """One quantity that we report.

    Attributes:
        key: Name in Python and, with its unit, in files.
        title: Name in tables and figures.
        unit: Of the value; empty for counts and shares.
        definition: What it is, exactly, in one or two sentences.
        better: Which way is good, or neither.
        spread: It has a distribution (`STATISTICS`), and not one number.
        of_requests: Defined over any set of requests, so also per class and per tenant; else over
            the whole run.
        of_pools: It also has a value for each pool, its part of the whole.
    """

    key: str
    title: str
    unit: str
    definition: str
    better: Literal["lower", "higher", "neither"] = "lower"
    spread: bool = False
    of_requests: bool = True
    of_pools: bool = False

    @property
    def name_in_files(self) -> str:
        """The key with its unit, such as ``ttft_s`` or ``goodput_requests_per_s``."""
        unit = self.unit.replace("/", "_per_")
        return self.key if not unit or self.key.endswith(unit) else f"{self.key}_{unit}"

    @property
    def heading(self) -> str:
        """Title and unit, for axes and tables."""
        return f"{self.title} ({self.unit})" if self.unit else self.title


METRICS: dict[str, Metric] = {
    metric.key: metric
    for metric in (
        Metric(
            "ttft",
            "TTFT",
            "s",
            "Time to first token as the client sees it: arrival to first token, for every "
            "request that emitted one, however it ended.",
            spread=True,
        ),
        Metric(
            "prefill_ttft",
            "TTFT at prefill end",
            "s",
            "Arrival to the end of the first completed prefill. Differs from TTFT only where "
            "the first token reaches the client later: disaggregated pools that recompute the "
            "last prompt token, batches that answer when they end.",
            spread=True,
        ),
        Metric(
            "queueing_delay",
            "Queueing delay",
            "s",
            "Arrival to the start of the first iteration that computes a token of the request.",
            spread=True,
        ),
        Metric(
            "tpot",
            "TPOT",
            "s",
            "Time per output token of one request: (last token - first token) / (output tokens "
            "- 1), for finished requests; undefined for a single token.",
            spread=True,
        ),
        Metric(
            "itl",
            "ITL",
            "s",
            "Inter-token latency (also time between tokens): every gap between two consecutive "
            "tokens of a request, pooled over all requests, those that did not finish included; "
            "counted exactly.",
            spread=True,
        ),
        Metric(
            "largest_itl",
            "Largest ITL",
            "s",
            "The longest gap between two consecutive tokens of one request; undefined for a "
            "single token.",
            spread=True,
        ),
        Metric(
            "decode_wait",
            "Decode-side wait",
            "s",
            "End of the prefill to the instant at which the KV of the request is on its decode "
            "replica: waiting for room there, and the transfer. Absent without transfers.",
            spread=True,
        ),
        Metric(
            "transfer",
            "KV transfer",
            "s",
            "Start to end of the last transfer of a request's KV. Absent without transfers.",
            spread=True,
        ),
        Metric(
            "e2e",
            "E2E",
            "s",
            "End-to-end latency: arrival to last token, for finished requests.",
            spread=True,
        ),
        Metric(
            "normalised_latency",
            "Normalised latency",
            "s/token",
            "E2E / output tokens, for finished requests.",
            spread=True,
        ),
        Metric(
            "throughput_out",
            "Output throughput",
            "tokens/s",
            "Tokens emitted for the measured requests per second from the start of the window "
            "to the last of their ends.",
            "higher",
        ),
        Metric(
            "throughput_in",
            "Input throughput",
            "tokens/s",
            "Prompt tokens of the measured requests that emitted a token, per second of the "
            "same time; a prompt counts once, however often it was computed or found cached.",
            "higher",
        ),
        Metric(
            "throughput_out_per_gpu",
            "Output throughput per GPU",
            "tokens/s",
            "Output throughput / GPUs of all pools; where these change, their mean over the same "
            "time.",
            "higher",
        ),
        Metric(
            "throughput_in_per_gpu",
            "Input throughput per GPU",
            "tokens/s",
            "Input throughput / GPUs of all pools; where these change, their mean over the same "
            "time.",
            "higher",
        ),
        Metric(
            "arrival_rate",
            "Arrival rate",
            "requests/s",
            "Measured requests per second of the window.",
            "neither",
        ),
        Metric(
            "goodput",
            "Goodput",
            "requests/s",
            "Requests that meet every target of the SLO, per second of the window in which they"
            " arrived.",
            "higher",
        ),
        Metric(
            "slo_attainment",
            "SLO attainment",
            "",
            "Share of all requests that arrived in the window and meet every target. Rejected, "
            "failed, cancelled and unfinished requests count as missed; a target on a quantity "
            "that a request does not have (TPOT of one token) counts as met.",
            "higher",
        ),
        Metric(
            "preemptions",
            "Preemptions",
            "",
            "Times that a running request gave up its KV memory and went back to the queue.",
        ),
        Metric(
            "recomputed_tokens",
            "Recomputed tokens",
            "tokens",
            "Tokens whose KV was computed again because it had been lost to a preemption or a "
            "failure.",
        ),
        Metric(
            "swap_outs",
            "Swapped out",
            "",
            "Preemptions whose KV moved to host memory, so that nothing was computed again. Absent "
            "where none did.",
        ),
        Metric(
            "cached_tokens",
            "Cached tokens",
            "tokens",
            "Prompt tokens whose KV was found in a prefix cache.",
            "higher",
        ),
        Metric(
            "prefix_hit_rate_tokens",
            "Prefix hit rate",
            "",
            "Prompt tokens found in a prefix cache / prompt tokens, of all requests that were "
            "scheduled. A request is looked up when it is admitted; what it finds again after a "
            "preemption does not count here. Absent without a cache.",
            "higher",
        ),
        Metric(
            "prefix_hit_rate_requests",
            "Requests with a prefix hit",
            "",
            "Share of the requests that were scheduled and found any token of their prompt in a "
            "prefix cache. Absent without a cache.",
            "higher",
        ),
        Metric(
            "saved_prefill",
            "Saved prefill",
            "s",
            "Time on a replica that prefix hits saved: of each request the time of a step that "
            "computes its whole prompt alone, less that of a step that computes only what was not "
            "found, after the rest. Summed; with over 10,000 hits of every k-th, scaled up. Absent "
            "without a cache.",
            "higher",
        ),
        Metric(
            "jain_served_tokens",
            "Fairness of service",
            "",
            "Jain's index over tenants of the tokens served to each, prompts answered and tokens "
            "emitted: (sum x)^2 / (n sum x^2), 1 if all have the same, 1 / n if one has all. "
            "Absent with less than two tenants.",
            "higher",
        ),
        Metric(
            "jain_normalised_latency",
            "Fairness of latency",
            "",
            "Jain's index over tenants of the mean normalised latency of each, of tenants with "
            "finished requests. Absent with less than two tenants.",
            "higher",
        ),
        Metric(
            "session_e2e",
            "Session E2E",
            "s",
            "First arrival to last token of a session, delays between its turns included, of "
            "sessions whose turns all arrived in the window and finished. Absent without sessions.",
            spread=True,
            of_requests=False,
        ),
        Metric(
            "batch_size",
            "Batch size",
            "requests",
            "Requests running on a replica, at the points of the time grid in the window at which "
            "any runs.",
            "neither",
            spread=True,
            of_requests=False,
        ),
        Metric(
            "kv_use",
            "KV use",
            "",
            "Share of a replica's KV blocks that are in use, at the points of the time grid in the "
            "window.",
            "neither",
            spread=True,
            of_requests=False,
        ),
        Metric(
            "kv_cached",
            "KV cached",
            "",
            "Share of a replica's KV blocks that nobody uses and whose content can be found again, "
            "at the points of the time grid in the window. Absent without a prefix cache.",
            "neither",
            spread=True,
            of_requests=False,
        ),
        Metric(
            "kv_free",
            "KV free",
            "",
            "Share of a replica's KV blocks that nobody uses and that hold nothing to be found, at "
            "the points of the time grid in the window. Absent without a prefix cache.",
            "neither",
            spread=True,
            of_requests=False,
        ),
        Metric(
            "evicted_tokens",
            "Evicted tokens",
            "tokens",
            "Tokens whose KV a prefix cache gave up since their place was needed, by whole blocks, "
            "over the whole run. Absent without a cache.",
            of_requests=False,
        ),
        Metric(
            "gpu_found_tokens",
            "Found on GPU",
            "tokens",
            "Tokens found in the GPU's own blocks by all admissions of the run, those after a "
            "preemption included. Absent where nothing moved between a prefix cache and the host.",
            "higher",
            of_requests=False,
        ),
        Metric(
            "host_found_tokens",
            "Found in host memory",
            "tokens",
            "Tokens that admissions of the run loaded from host memory instead of computing them. "
            "Absent where nothing moved between a prefix cache and the host.",
            "higher",
            of_requests=False,
        ),
        Metric(
            "disk_found_tokens",
            "Found on disk",
            "tokens",
            "Tokens that admissions of the run loaded from disk, through host memory. Absent where "
            "nothing was written to a disk.",
            "higher",
            of_requests=False,
        ),
        Metric(
            "tier_hit_rate_tokens",
            "Loaded from host or disk",
            "",
            "Tokens loaded from host memory or disk / tokens known at admission, of all admissions "
            "of the run. Absent where nothing moved between a prefix cache and the host.",
            "higher",
            of_requests=False,
        ),
        Metric(
            "host_bytes",
            "Over the host link",
            "bytes",
            "KV that a prefix cache moved to host memory and back, over the whole run. Absent "
            "where nothing moved.",
            of_requests=False,
        ),
        Metric(
            "disk_bytes",
            "Read and written on disk",
            "bytes",
            "KV read from a disk behind host memory and written to it, over the whole run. Absent "
            "where nothing was.",
            of_requests=False,
        ),
        Metric(
            "reuse_distance",
            "Reuse distance",
            "tokens",
            "Tokens of other blocks used since a block was last used, of the blocks of prompts "
            "that occur again: an LRU cache finds a block if it is larger. Of all requests in "
            "order of arrival, one after the other, in blocks of the trace; of up to 20,000 "
            "requests. Absent without a prefix cache, and where nothing is known of the prompts.",
            "neither",
            spread=True,
            of_requests=False,
        ),
        Metric(
            "utilisation",
            "Utilisation",
            "",
            "Share of the time between the first arrival and the last end in which a replica "
            "has a step in flight.",
            "neither",
            of_requests=False,
        ),
        Metric(
            "imbalance_served_tokens",
            "Load imbalance",
            "",
            "Largest / mean over the replicas of a pool of the tokens served: prompts answered "
            "where they were prefilled, computed or found cached, and tokens where they were "
            "emitted; 1 is even. Of several pools the worst. Absent where none has two replicas.",
            of_requests=False,
        ),
        Metric(
            "imbalance_served_tokens_cv",
            "CV of load",
            "",
            "Standard deviation / mean of the same. Absent where no pool has two replicas.",
            of_requests=False,
        ),
        Metric(
            "imbalance_utilisation",
            "Imbalance of utilisation",
            "",
            "Largest / mean utilisation over the replicas of a pool. Of several pools the worst. "
            "Absent where none has two replicas.",
            of_requests=False,
        ),
        Metric(
            "mfu",
            "MFU",
            "",
            "Model FLOPs utilisation: FLOPs that the tokens of all requests need, each counted "
            "once (recomputation, padding and cached prompts excluded), / (peak dense FLOP/s of"
            " all GPUs x time between first arrival and last end).",
            "higher",
            of_requests=False,
        ),
        Metric(
            "mbu",
            "MBU",
            "",
            "Model bandwidth utilisation: bytes of the weights once per iteration (of experts "
            "those that its rows are expected to touch), plus the KV that decodes read and that "
            "new tokens write, / (peak memory bandwidth of all GPUs x time between first arrival "
            "and last end).",
            "higher",
            of_requests=False,
        ),
        Metric(
            "gpu_hours",
            "GPU-hours",
            "hours",
            "GPUs of all replicas x time between first arrival and last end. Absent without a "
            "config's cost, as all that follows.",
            of_requests=False,
            of_pools=True,
        ),
        Metric(
            "cost",
            "Cost",
            "usd",
            "GPU-hours x price, summed over the pools. Absent without prices.",
            of_requests=False,
            of_pools=True,
        ),
        Metric(
            "busy_cost",
            "Busy cost",
            "usd",
            "The same of the time with a step in flight only: cost weighted with utilisation. The "
            "rest of the cost is for GPUs that wait. Absent without prices.",
            "neither",
            of_requests=False,
            of_pools=True,
        ),
        Metric(
            "cost_per_request",
            "Cost per request",
            "usd",
            "Cost / finished requests. Absent without prices.",
            of_requests=False,
            of_pools=True,
        ),
        Metric(
            "cost_per_million_input_tokens",
            "Cost per 1M input tokens",
            "usd",
            "The whole cost / prompt tokens of requests that emitted a token, found cached or not, "
            "x 10^6. Absent without prices.",
            of_requests=False,
            of_pools=True,
        ),
        Metric(
            "cost_per_million_output_tokens",
            "Cost per 1M output tokens",
            "usd",
            "The whole cost / tokens emitted x 10^6. Absent without prices.",
            of_requests=False,
            of_pools=True,
        ),
        Metric(
            "cost_per_million_tokens",
            "Cost per 1M tokens",
            "usd",
            "The whole cost / (these prompt tokens + tokens emitted) x 10^6. Absent without "
            "prices.",
            of_requests=False,
            of_pools=True,
        ),
        Metric(
            "revenue",
            "Revenue",
            "usd",
            "These prompt tokens x their price + tokens emitted x theirs. Absent without prices of "
            "tokens.",
            "higher",
            of_requests=False,
        ),
        Metric(
            "margin",
            "Margin",
            "usd",
            "Revenue - cost. Absent without prices of tokens.",
            "higher",
            of_requests=False,
        ),
        Metric(
            "energy",
            "Energy",
            "kWh",
            "Of all GPUs between first arrival and last end: power while idle, in steps with any "
            "prompt token, and in steps of decodes alone, x the time of each. Absent without power "
            "levels.",
            of_requests=False,
            of_pools=True,
        ),
        Metric(
            "energy_per_output_token",
            "Energy per output token",
            "J",
            "Energy / tokens emitted. Absent without power levels.",
            of_requests=False,
            of_pools=True,
        ),
    )
}
"""Every metric by its key, in the order in which they are documented."""

STATISTICS = ("n", "mean", "min", "p50", "p90", "p95", "p99", "max")
"""What a metric with a spread has, in the order of `sim.metrics.distribution`."""
