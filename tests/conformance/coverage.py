"""What random workloads covered: counted on the reference's results, demanded of every run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.conformance.workloads import Spec

REQUIRED = (
    "preemption",
    "repeated pass",
    "rejection",
    "full decode pool",
    "tie",
    "padded batch",
)
LEAST_SHARE = 0.05


@dataclass
class Coverage:
    """How many workloads of a run had each feature.

    Attributes:
        workloads: How many were counted.
        counts: Feature to number of workloads.
    """

    workloads: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, features: Iterable[str]) -> None:
        """Count one workload."""
        self.workloads += 1
        self.counts.update(features)

    def merge(self, other: Coverage) -> None:
        """Add the counts of another part of the run."""
        self.workloads += other.workloads
        self.counts.update(other.counts)

    def as_json(self) -> dict[str, Any]:
        """Plain values, to hand from process to process."""
        return {"workloads": self.workloads, "counts": dict(self.counts)}

    @staticmethod
    def from_json(value: dict[str, Any]) -> Coverage:
        """The inverse of `as_json`."""
        return Coverage(value["workloads"], Counter(value["counts"]))

    def rare(self) -> list[str]:
        """Required features that fewer than 5 % of the workloads had."""
        return [x for x in REQUIRED if self.counts[x] < LEAST_SHARE * self.workloads]

    def report(self) -> str:
        """One line for each feature, required ones first."""
        rest = sorted(set(self.counts) - set(REQUIRED))
        lines = [f"{self.workloads} workloads, of which had"]
        for name in (*REQUIRED, *rest):
            share = self.counts[name] / max(1, self.workloads)
            lines.append(f"  {name:<34} {self.counts[name]:>6}  {share:6.1%}")
        return "\n".join(lines)


def features(spec: Spec, result: Any) -> set[str]:
    """What happened in a workload, read off the reference's result."""
    found = _layout_features(spec)
    configs = _configs(spec)
    for outcome in result.requests.values():
        if outcome.reason:
            found |= {"rejection", f"rejection: {outcome.reason}"}
    for step in result.log:
        where = f"{configs[step.replica]['policy']}, {_role(step.replica)}"
        if step.preempted:
            found |= {"preemption", f"preemption: {where}"}
            if not step.tokens:
                found |= {"repeated pass", f"repeated pass: {where}"}
    found |= _ties(spec, result)
    if _padded(spec, configs, result):
        found.add("padded batch")
    if _decode_pool_was_full(configs, result):
        found.add("full decode pool")
    return found


def _configs(spec: Spec) -> dict[str, Spec]:
    pools = spec.get("disaggregated") or {"replica": spec.get("replicas", [])}
    return {
        f"{pool}{i}": config
        for pool in ("replica", "prefill", "decode")
        for i, config in enumerate(pools.get(pool, []))
    }


def _role(replica: str) -> str:
    return replica.rstrip("0123456789")


def _layout_features(spec: Spec) -> set[str]:
    found = set()
    layout = spec.get("disaggregated")
    if layout:
        for a in layout["prefill"]:
            found |= {f"pools: {a['policy']} -> {b['policy']}" for b in layout["decode"]}
    else:
        found |= {f"policy: {x['policy']}" for x in spec["replicas"]}
        found.add(f"replicas: {len(spec['replicas'])}")
    return found


def _ties(spec: Spec, result: Any) -> set[str]:
    """`tie`: something arrives, or a transfer ends, at the very end of a step."""
    ends = {x.end_ns for x in result.log if x.tokens}
    arrivals = [r["arrival_ns"] for r in spec["requests"]]
    found = set()
    if not ends.isdisjoint(arrivals):
        found |= {"tie", "tie: arrival and step end"}
    if not ends.isdisjoint(t.end_ns for t in result.transfers):
        found |= {"tie", "tie: transfer end and step end"}
    if len(set(arrivals)) < len(arrivals):
        found.add("burst")
    by_replica = Counter(end for _, end in {(x.replica, x.end_ns) for x in result.log if x.tokens})
    if any(count > 1 for count in by_replica.values()):
        found.add("tie: two replicas end a step")
    return found


def _padded(spec: Spec, configs: dict[str, Spec], result: Any) -> bool:
    prompts = [r["prompt_tokens"] for r in spec["requests"]]
    return any(
        configs[x.replica]["policy"] == "static"
        and configs[x.replica].get("pad_prompts", True) is not False
        and len({prompts[i] for i in x.tokens}) > 1
        for x in result.log
    )


def _decode_pool_was_full(configs: dict[str, Spec], result: Any) -> bool:
    """A decode replica decided after a hand-over, and the KV found no room beside what it holds."""
    for transfer in result.transfers:
        handed_ns = result.requests[transfer.request].token_times_ns[0]
        config = configs[transfer.target]
        has_watermark = config["policy"] in ("vllm-v0", "sarathi")
        watermark = config["total_blocks"] // 100 if has_watermark else 0
        if any(
            x.replica == transfer.target
            and handed_ns <= x.start_ns < transfer.start_ns
            and x.free_after - transfer.target_blocks < watermark
            for x in result.log
        ):
            return True
    return False
