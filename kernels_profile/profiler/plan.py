"""Which points a profile measures, in which order, and what they are expected to cost.

Order, most valuable first: the card's ceilings and overheads; then the coarse grid of every
operator; then what refines it, and what refines that. Within one of these the tables take turns,
one point each, and a table gives its points in the order of the models as they were named: so
wherever time runs out, no operator is far ahead of the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from kernels_profile.profiler.effort import Effort
from kernels_profile.profiler.estimate import Estimator
from kernels_profile.profiler.grids import Grids
from kernels_profile.profiler.operators import Scope, cached_tokens, card_points, shard_points
from kernels_profile.profiler.points import Point
from kernels_profile.profiler.shapes import Shard
from sim.specs import DeviceSpec

USABLE = 0.85
"""Share of the device's memory that a point may use."""

TIERS = ("card", "coarse", "fine", "finest")
"""Names of the tiers, in their order."""


@dataclass(frozen=True)
class Plan:
    """Points in the order in which they are measured, and those that are not.

    Attributes:
        points: To be measured.
        left_out: (point, why not).
        notes: What the profile does not have, in sentences.
    """

    points: tuple[Point, ...]
    left_out: tuple[tuple[Point, str], ...]
    notes: tuple[str, ...]

    def seconds(self, effort: Effort) -> float:
        """Estimate for all points, compilation not counted."""
        return sum(effort.point_s(point) for point in self.points)

    def by_table(self, effort: Effort) -> dict[str, tuple[list[int], float]]:
        """For each table, points of each tier and the estimate in seconds."""
        counts = {point.table: [0, 0, 0, 0] for point in self.points}
        seconds: Counter[str] = Counter()
        for point in self.points:
            counts[point.table][point.tier] += 1
            seconds[point.table] += effort.point_s(point)  # type: ignore[assignment]
        return {table: (tiers, seconds[table]) for table, tiers in counts.items()}


def make_plan(
    shards: Sequence[Shard],
    device: DeviceSpec,
    dtypes: Sequence[str],
    grids: Grids,
    effort: Effort,
    tables: Iterable[str] | None = None,
    graphs: bool = True,
) -> Plan:
    """Lay out a profile.

    Args:
        shards: Models at a tensor parallelism, the most wanted first.
        device: What is measured, for the estimates and for what fits.
        dtypes: Of the linear layers, the 16-bit one first: ``bf16``, ``fp8``.
        grids: How finely.
        effort: How often each point is launched.
        tables: Only these; None for all.
        graphs: The device has CUDA graphs.
    """
    scope = Scope(grids, Estimator(device), dtypes, graphs)
    found = list(card_points(scope))
    for shard in shards:
        found += shard_points(shard, scope)
    wanted = None if tables is None else set(tables)
    points = [p for p in merged(found) if wanted is None or p.table in wanted]
    left_out = dict(_too_large(points, shards, device, effort))
    kept = [point for point in points if point.identity not in left_out]
    lost = [(p, left_out[p.identity]) for p in points if p.identity in left_out]
    return Plan(tuple(in_order(kept)), tuple(lost), tuple(_notes(shards, device, dtypes)))


def merged(points: Iterable[Point]) -> list[Point]:
    """Each point once: at the coarsest tier that has it, and for all shards that want it."""
    by_identity: dict[object, Point] = {}
    for point in points:
        known = by_identity.setdefault(point.identity, point)
        if known is not point:
            both = tuple(dict.fromkeys(known.models + point.models))
            tier = min(known.tier, point.tier)
            by_identity[point.identity] = replace(known, tier=tier, models=both)
    return list(by_identity.values())


def in_order(points: Sequence[Point]) -> list[Point]:
    """Most valuable first, by the rule above."""
    turns: Counter[tuple[int, str]] = Counter()
    ranked = []
    for number, point in enumerate(points):
        turn = turns[point.tier, point.table]
        turns[point.tier, point.table] += 1
        ranked.append((point.tier, turn, number, point))
    return [point for _, _, _, point in sorted(ranked, key=lambda entry: entry[:3])]


def _too_large(
    points: Iterable[Point], shards: Sequence[Shard], device: DeviceSpec, effort: Effort
) -> Iterator[tuple[object, str]]:
    by_label = {shard.label: shard for shard in shards}
    room = USABLE * device.memory_bytes
    for point in points:
        needed = effort.memory_bytes(point)
        if needed > room:
            yield (
                point.identity,
                f"needs {needed / 2**30:.1f} GiB at once, and {device.name} has "
                f"{room / 2**30:.1f} to use",
            )
            continue
        if not point.table.startswith(("attention", "mla")):
            continue
        cached = cached_tokens(point.key)
        whole = cached * min(by_label[label].kv_bytes_per_token for label in point.models)
        if whole > device.memory_bytes:
            yield (
                point.identity,
                f"keys and values of all layers, {whole / 2**30:.0f} GiB, never fit on "
                f"{device.name}",
            )


def _notes(shards: Sequence[Shard], device: DeviceSpec, dtypes: Sequence[str]) -> Iterator[str]:
    if not device.fp8_flops:
        yield f"{device.name} has no fp8 tensor cores: linear layers are in {dtypes[0]} only"
    elif "fp8" not in dtypes:
        yield "fp8 linear layers were not asked for"
    yield f"keys and values are {dtypes[0]}: no kernel of ours reads an fp8 KV cache"
    yield "collectives are not measured: they need more than one GPU"
    for shard in shards:
        if missing := shard.without_kernel():
            yield f"{shard.model.name} needs {', '.join(missing)}: no kernel of ours has it"
        if shard.model.experts:
            yield f"{shard.model.name}: expert blocks are in {dtypes[0]} only"


def within(points: Iterable[Point], effort: Effort, budget_s: float) -> list[Point]:
    """The points that are measured in so many seconds: those that would end too late are skipped.

    Args:
        points: In order of value.
        effort: For the expected times.
        budget_s: Seconds for measuring, compilation not counted.
    """
    begun_s, kept = 0.0, []
    for point in points:
        expected_s = effort.point_s(point)
        if begun_s + expected_s <= budget_s:
            begun_s += expected_s
            kept.append(point)
    return kept


def budget_text(plan: Plan, effort: Effort, budget_s: float, compile_share: float) -> list[str]:
    """What a budget covers, in lines.

    Args:
        plan: All that was asked for.
        effort: For the expected times.
        budget_s: Seconds for everything.
        compile_share: Of them, at most this goes into compiling ahead.
    """
    kept = within(plan.points, effort, budget_s * (1 - compile_share))
    most = len(within(plan.points, effort, budget_s))
    span, why = str(most), ""
    if compile_share:
        span = f"{len(kept)} to {most}"
        why = f", as compiling takes {compile_share:.0%} of it or nothing; the former"
    lines = [f"--budget-s {budget_s:g} covers {span} of {len(plan.points)} points{why}:"]
    counts = Counter((point.table, point.tier) for point in kept)
    for table, (tiers, _) in plan.by_table(effort).items():
        parts = [
            f"{counts[table, tier]} of {number} {name}"
            for tier, (name, number) in enumerate(zip(TIERS, tiers, strict=True))
            if number
        ]
        lines.append(f"  {table}: {', '.join(parts)}")
    return lines


def plan_text(plan: Plan, device: str, effort: Effort, budget: Sequence[str] = ()) -> str:
    """A plan as text: points of each table by tier, and what they are expected to take.

    Args:
        plan: It.
        device: Name of the sheet.
        effort: For the expected times.
        budget: Lines about what a budget covers (`budget_text`).
    """
    lines = [
        f"plan for {device}: estimates from the roofline, not measured",
        f"{'table':18} {'card':>5} {'coarse':>7} {'fine':>6} {'finest':>7} {'points':>7} "
        f"{'seconds':>8}",
    ]
    for table, (tiers, seconds) in plan.by_table(effort).items():
        card, coarse, fine, finest = tiers
        lines.append(
            f"{table:18} {card:5} {coarse:7} {fine:6} {finest:7} {sum(tiers):7} {seconds:8.1f}"
        )
    total = plan.seconds(effort)
    lines.append(f"{'all':18} {'':28} {len(plan.points):7} {total:8.1f}")
    lines.append("start-up, compilation and the choice of configurations come on top")
    lines += budget
    if plan.left_out:
        lines.append(f"{len(plan.left_out)} points are left out:")
        lines += [f"  {why}: {count}" for why, count in _reasons(plan)]
    return "\n".join([*lines, *(f"note: {note}" for note in plan.notes)])


def _reasons(plan: Plan) -> list[tuple[str, int]]:
    kinds = Counter(
        f"{point.table}, {'never fits' if 'never' in why else 'too large at once'}"
        for point, why in plan.left_out
    )
    return kinds.most_common()
