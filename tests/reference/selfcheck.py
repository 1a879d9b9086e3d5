"""Checks of this reference by itself: examples worked out by hand, then random workloads.

    python -m ref5.selfcheck [WORKLOADS PER KIND]

Every instant of every run checks the replicas' invariants (`check` of each replica): free + used =
total, no block or node is held by anybody unknown, locks are those of the requests, counters agree
with lists.
"""

from __future__ import annotations

import sys

from .counting import hit_blocks, unlimited
from .examples import COUNTS, EXAMPLES
from .radix import RadixTree
from .simulation import simulate
from .workloads import KINDS, coverage, random_spec


def check_example(name: str) -> None:
    """Token times, and whatever else the example states."""
    spec, times, facts = EXAMPLES[name]
    result = simulate(spec)
    found = {k: r.token_times_ns for k, r in result.requests.items()}
    assert found == times, (name, found)
    for key in ("cached", "lost"):
        if key in facts:
            values = [d.facts[key] for d in result.log]
            assert values == facts[key], (name, key, values)
    if "free" in facts:
        assert [d.free_after for d in result.log] == facts["free"], (
            name,
            [d.free_after for d in result.log],
        )
    if "tokens" in facts:
        assert [d.tokens for d in result.log] == facts["tokens"], name
    if "preempted" in facts:
        preempted = {i: d.preempted for i, d in enumerate(result.log) if d.preempted}
        assert preempted == facts["preempted"], (name, preempted)
    if "transfers" in facts:
        moved = [(t.start_ns, t.end_ns, t.cached_tokens) for t in result.transfers]
        assert moved == facts["transfers"], (name, moved)
    if "lost_steps" in facts:
        lost = [(i, d.end_ns) for i, d in enumerate(result.log) if d.lost_step]
        assert lost == facts["lost_steps"], (name, lost)
    for key in ("rerouted", "handed_again"):
        if key in facts:
            assert {k: getattr(r, key) for k, r in result.requests.items()} == facts[key], name
    for k, status in facts.get("status", {}).items():
        assert result.requests[k].status == status, (name, k)


def check_counts() -> None:
    for prompts, capacity, policy, expected in COUNTS:
        numbers: dict[str, int] = {}  # a block's number is that of its prefix
        chains = [
            [numbers.setdefault(prompt[: i + 1], len(numbers)) for i in range(len(prompt))]
            for prompt in prompts
        ]
        most = [len(prompt) - 1 for prompt in prompts]
        hits = hit_blocks(chains, most, capacity, policy)
        assert hits == expected, (prompts, capacity, policy, hits)
        assert all(a <= b for a, b in zip(hits, unlimited(chains, most), strict=True))


def check_tree() -> None:
    """Splits, locks and the order of eviction (rule 51)."""
    tree = RadixTree()
    first, there = tree.insert([1, 2, 3, 4])
    assert there == 0
    tree.lock(first)
    second, there = tree.insert([1, 2, 5])  # splits 1 2 3 4 behind the 2
    assert there == 2
    assert sorted(n.tokens for n in tree.nodes()) == [[1, 2], [3, 4], [5]]
    assert first.tokens == [3, 4]  # the lower half is still the first's last node
    assert first.parent.locks == first.locks == 1
    tree.insert([7, 8])
    tree.match([1, 2, 5])  # so 7 8 is the least recently used
    assert (tree.size(), tree.evictable()) == (7, 3)
    assert tree.evict(1) == 2  # a whole leaf
    assert tree.evict(9) == 1  # 5; the others are locked
    tree.unlock(first)
    assert tree.evict(3) == 4  # 3 4, then its parent, a leaf now
    assert tree.match([1, 2]) == (tree.root, 0)
    assert second.locks == 0
    tree.check([])


def check_random(kind: str, count: int) -> None:
    """Runs the invariants; and what must hold for each result."""
    for seed in range(count):
        spec = random_spec(seed, kind)
        result = simulate(spec)
        check_result(spec, result)
        if seed % 5 == 0 and not spec.get("events"):  # an event after the end changes nothing
            late = {"at_ns": 10**9, "what": "add", "index": 0}
            late["pool"] = "decode" if "disaggregated" in spec else "both"
            other = simulate(dict(spec, events=[late]))
            assert other.log == result.log
            assert other.requests == result.requests
            assert other.transfers == result.transfers


def check_result(spec: dict, result) -> None:
    changing = bool(spec.get("events"))
    ends = {(d.end_ns, k) for d in result.log if not d.lost_step for k in d.tokens}
    any_end = {d.end_ns for d in result.log if not d.lost_step}
    pair = spec.get("disaggregated")
    configs = pair["prefill"] + pair["decode"] if pair else spec["replicas"]
    late = any(cfg.get("return_at") == "batch_end" for cfg in configs)
    for request in spec["requests"]:
        outcome = result.requests[request["id"]]
        times = outcome.token_times_ns
        assert times == sorted(times)
        assert (len(times) == request["output_tokens"]) == (outcome.status == "finished")
        allowed = ["finished", "rejected", "cancelled", "skipped"]
        assert outcome.status in allowed + (["failed", "unfinished"] if changing else [])
        for t in times:  # a token comes at the end of a step with the request, not a lost one
            assert t in any_end if late else (t, request["id"]) in ends, (request["id"], t)
    last: dict[str, int] = {}
    for d in result.log:  # no two steps of a replica at once
        assert d.start_ns >= last.get(d.replica, 0)
        last[d.replica] = d.end_ns
    assert sum(d.lost_step for d in result.log) == sum(
        n
        for corner, n in result.corners.items()
        if corner.endswith("in a step") and "failed" in corner
    )
    down: dict[str, int] = {}  # nothing runs on a failed replica
    spans = []
    for e in sorted(spec.get("events", []), key=lambda e: e["at_ns"]):
        name = ("replica" if e["pool"] == "both" else e["pool"]) + str(e["index"])
        if e["what"] == "fail":
            down.setdefault(name, e["at_ns"])
        elif e["what"] == "restore" and name in down:
            spans.append((name, down.pop(name), e["at_ns"]))
    spans += [(name, t, 10**18) for name, t in down.items()]
    for name, start, end in spans:
        for d in result.log:
            assert d.replica != name or not (start <= d.start_ns < end), (d, start, end)
            assert d.replica != name or not (d.start_ns < start < d.end_ns), (d, start)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    for name in EXAMPLES:
        check_example(name)
    check_counts()
    check_tree()
    sys.stdout.write(f"{len(EXAMPLES)} timelines and {len(COUNTS)} counts as worked out by hand\n")
    for kind in KINDS:
        check_random(kind, count)
        met, total = coverage(kind, range(count))
        rare = [f"{corner} {n}" for corner, n in met.items() if n < 0.03 * total]
        sys.stdout.write(
            f"{kind}: {total} workloads, {len(met)} corners met; in fewer than 3 % of "
            f"them: {', '.join(rare) or 'none'}\n"
        )


if __name__ == "__main__":
    main()
