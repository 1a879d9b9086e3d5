"""Checks of this reference by itself: examples worked out by hand, then random workloads.

    python -m tests.reference.selfcheck [WORKLOADS PER KIND]

Every instant of every run checks the replicas' invariants (`check` of each replica): free + used =
total, no block or node is held by anybody unknown, locks are those of the requests, counters agree
with lists.
"""

from __future__ import annotations

import sys
from fractions import Fraction

from .counting import hit_blocks, unlimited
from .examples import COUNTS
from .examples import EXAMPLES as FIRST
from .examples_more import EXAMPLES as MORE
from .fluid import finish, self_check
from .radix import RadixTree
from .simulation import simulate
from .workloads import KINDS, coverage, random_spec

EXAMPLES = {**FIRST, **MORE}


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
    if "stages" in facts:
        stages = [[(a, b) for a, b, _ in d.stages] for d in result.log]
        assert stages == facts["stages"], (name, stages)
    if "visited" in facts:
        assert {k: r.visited for k, r in result.requests.items()} == facts["visited"], name
    if "prefill_ends" in facts:
        ends = {k: r.prefill_ends_ns for k, r in result.requests.items()}
        assert ends == facts["prefill_ends"], (name, ends)
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
        if kind == "cached":
            check_scaled(spec)
        check_flows(spec, result)
        if kind.startswith("pipeline"):
            check_one_stage(spec)
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
    before: dict[str, list] = {}
    for d in result.log:  # no two steps of a replica at once
        if d.stages:  # nor two batches in one stage, and in order
            check_stages(d, before.get(d.replica, []))
            before[d.replica] = [leave for _, leave, _ in d.stages]
            continue
        assert d.start_ns >= last.get(d.replica, 0) or d.replica in before
        last[d.replica] = d.end_ns
    assert sum(d.lost_step for d in result.log) == result.corners["step lost"]
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


def check_stages(entry, before: list) -> None:
    """Each stage at least as long as its time there; entered when it is left by the one before."""
    for i, (enter, leave, takes) in enumerate(entry.stages):
        assert enter == (entry.stages[i - 1][1] if i else entry.start_ns)
        assert leave - enter >= takes or entry.lost_step
        free = before[i] if i < len(before) else 0
        assert enter >= free
        if i + 1 < len(entry.stages):  # it leaves as soon as it can
            free = before[i + 1] if i + 1 < len(before) else 0
            assert leave == max(enter + takes, free)
    assert entry.end_ns == entry.stages[-1][1]
    if not entry.lost_step:
        enter, leave, takes = entry.stages[-1]
        assert leave == enter + takes


def check_one_stage(spec: dict) -> None:
    """S = 1 is the rules without stages (55)."""

    def cut(cfg: dict, staged: bool) -> dict:
        if not cfg.get("stages"):
            return cfg
        cfg = {k: v for k, v in cfg.items() if staged or k not in ("stages", "activations")}
        if staged:
            return dict(cfg, stages=cfg["stages"][:1])
        return cfg

    def convert(spec: dict, staged: bool) -> dict:
        def side(cfgs: list) -> list:
            return [
                dict(cut(cfg, staged), step_time=cfg["stages"][0]) if cfg.get("stages") else cfg
                for cfg in cfgs
            ]

        if "replicas" in spec:
            return dict(spec, replicas=side(spec["replicas"]))
        pools = {k: side(spec["disaggregated"][k]) for k in ("prefill", "decode")}
        return dict(spec, disaggregated=dict(spec["disaggregated"], **pools))

    one, none = simulate(convert(spec, True)), simulate(convert(spec, False))
    for d in one.log:
        d.stages = []
    assert one.log == none.log
    assert one.requests == none.requests
    assert one.transfers == none.transfers


def check_flows(spec: dict, result) -> None:
    """With max-min: the same transfers by fluid.py, from their starts, releases and call-offs."""
    pair = spec.get("disaggregated")
    if pair is None or pair["transfer"].get("sharing") != "max-min":
        return
    wire = pair["transfer"]
    links: dict = {}
    flows = []
    for i, t in enumerate(result.transfers):
        path = [f"{t.source} out", f"{t.target} in"]
        for name, replica in zip(path, (t.source, t.target), strict=True):
            own = result.configs[replica].get("nic_bytes_per_s")
            links[name] = wire["bandwidth_bytes_per_s"] if own is None else own
        flow = {"id": i, "links": path, "bytes": t.bytes, "start": t.start_ns}
        flow["latency"] = round(wire.get("latency_s", 0) * 1e9)
        if t.layers:
            flow["withheld"] = Fraction(t.bytes, t.layers)
            flow["release"] = t.released_ns
        if t.called_off:
            flow["call_off"] = t.end_ns
        flows.append(flow)
    ends = finish(links, flows)
    for i, t in enumerate(result.transfers):
        if t.called_off:
            assert ends[i].called_off == t.end_ns
        else:
            assert t.end_ns is None or ends[i].applied == t.end_ns, (t, ends[i])


def check_scaled(spec: dict) -> None:
    """All three times as slow from 0 on, arrivals three times as late: all times are tripled."""
    spec = dict(spec, requests=[dict(r, arrival_ns=3 * r["arrival_ns"]) for r in spec["requests"]])
    slow = [
        {"at_ns": 0, "pool": "both", "index": i, "what": "slow", "factor": 3}
        for i in range(len(spec["replicas"]))
    ]
    early = [dict(r, arrival_ns=r["arrival_ns"] // 3) for r in spec["requests"]]
    other = dict(spec, requests=early)
    tripled, plain = simulate(dict(spec, events=slow)), simulate(other)
    for a, b in zip(tripled.log, plain.log, strict=True):
        assert (a.start_ns, a.end_ns) == (3 * b.start_ns, 3 * b.end_ns)
        assert (a.tokens, a.preempted, a.free_after) == (b.tokens, b.preempted, b.free_after)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    for name in EXAMPLES:
        check_example(name)
    check_counts()
    check_tree()
    self_check(count)
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
