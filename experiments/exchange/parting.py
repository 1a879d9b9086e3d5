"""Where two logs of decisions part: two runs, or a run and a real engine's log.

Each replica's iterations are compared in order, the k-th of one log with the k-th of the other, by
the fields that both logs have. Of all replicas, the parting that is decided first counts (by
``start_ns``, else by iteration). If each log has one replica, their names need not be the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.exchange.decisions import FIELDS, Entry
from experiments.names import suggestion
from sim.errors import ConfigError

COMPARED = tuple(field for field in FIELDS if field != "replica")
"""Fields that can be compared; the replica says what is held against what."""
_BEFORE = 3
"""Iterations that are shown before a parting."""
_EMPTY: Mapping[str, Any] = {"preempted": [], "cached": {}, "lost_blocks": 0, "lost": False}
"""What a field means that a line leaves out."""


@dataclass(frozen=True)
class Parting:
    """The first iteration of a replica that is not the same in both logs.

    Attributes:
        replica: Its name in the first log, or in the second if only that has it.
        iteration: Its number in the replica's order, from 0.
        first: As the first log has it; None where that has ended.
        second: As the second has it.
        fields: Those that differ; none where one log has ended.
        before: Iterations just before, which are the same.
    """

    replica: str
    iteration: int
    first: Entry | None
    second: Entry | None
    fields: tuple[str, ...]
    before: Sequence[Entry]

    @property
    def start_ns(self) -> int | None:
        """When it was decided, the earlier of both; None if neither says."""
        known = [
            each["start_ns"] for each in (self.first, self.second) if each and "start_ns" in each
        ]
        return min(known) if known else None


@dataclass(frozen=True)
class Compared:
    """What two logs have in common.

    Attributes:
        parting: Where they part first; None if they do not.
        same: Iterations that are the same, those before the parting of each replica.
        fields: What was compared.
        left_out: What was not, and why.
    """

    parting: Parting | None
    same: int
    fields: tuple[str, ...]
    left_out: Mapping[str, str]


def compare(
    first: Iterable[Entry], second: Iterable[Entry], ignore: Sequence[str] = ()
) -> Compared:
    """Hold two logs against each other.

    Args:
        first: Entries of one log, in order.
        second: Those of the other.
        ignore: Fields that are not compared, such as the times of a real engine.

    Raises:
        ConfigError: A field to ignore does not exist.
    """
    for name in ignore:
        if name not in COMPARED:
            raise ConfigError(f"--ignore {name}: no such field; {suggestion(name, COMPARED)}")
    one, other = _by_replica(first), _by_replica(second)
    fields, left_out = _shared_fields(one, other, ignore)
    pairs = _pairs(one, other)
    partings, same = [], 0
    for replica, a, b in pairs:
        equal = _equal(a, b, fields)
        same += equal
        if equal < max(len(a), len(b)):
            partings.append(_parting(replica, equal, a, b, fields))
    earliest = min(partings, key=_when, default=None)
    return Compared(earliest, same, fields, left_out)


def _when(parting: Parting) -> tuple[int, int]:
    start_ns = parting.start_ns
    return (parting.iteration if start_ns is None else start_ns, parting.iteration)


def _by_replica(log: Iterable[Entry]) -> dict[str, list[Entry]]:
    found: dict[str, list[Entry]] = {}
    for entry in log:
        found.setdefault(entry["replica"], []).append(entry)
    return found


def _pairs(
    one: Mapping[str, list[Entry]], other: Mapping[str, list[Entry]]
) -> list[tuple[str, list[Entry], list[Entry]]]:
    if len(one) == len(other) == 1:
        ((name, a),), (b,) = one.items(), other.values()
        return [(name, a, b)]
    names = [*one, *(name for name in other if name not in one)]
    return [(name, one.get(name, []), other.get(name, [])) for name in names]


def _shared_fields(
    one: Mapping[str, list[Entry]], other: Mapping[str, list[Entry]], ignore: Sequence[str]
) -> tuple[tuple[str, ...], dict[str, str]]:
    present = [
        {key for log in each.values() for entry in log for key in entry} for each in (one, other)
    ]
    left_out = dict.fromkeys(ignore, "ignored")
    for name in COMPARED:
        if name not in left_out and (name in present[0]) != (name in present[1]):
            left_out[name] = f"only the {'first' if name in present[0] else 'second'} log has it"
    both = present[0] & present[1]
    return tuple(name for name in COMPARED if name in both and name not in left_out), left_out


def _equal(a: Sequence[Entry], b: Sequence[Entry], fields: Sequence[str]) -> int:
    """How many iterations are the same from the start."""
    for at, (x, y) in enumerate(zip(a, b, strict=False)):
        if any(_value(x, name) != _value(y, name) for name in fields):
            return at
    return min(len(a), len(b))


def _value(entry: Entry, name: str) -> Any:
    return entry.get(name, _EMPTY.get(name))


def _parting(
    replica: str, at: int, a: Sequence[Entry], b: Sequence[Entry], fields: Sequence[str]
) -> Parting:
    x, y = (log[at] if at < len(log) else None for log in (a, b))
    differ = (
        () if x is None or y is None else tuple(f for f in fields if _value(x, f) != _value(y, f))
    )
    return Parting(replica, at, x, y, differ, a[max(at - _BEFORE, 0) : at])


# --- as text and as JSON


def as_json(found: Compared) -> dict[str, Any]:
    """The comparison as plain values."""
    told: dict[str, Any] = {
        "same": found.parting is None,
        "iterations_alike": found.same,
        "compared": list(found.fields),
        "not_compared": dict(found.left_out),
    }
    if found.parting is not None:
        told["parting"] = {**vars(found.parting), "fields": list(found.parting.fields)}
    return told


def render(found: Compared, first: str, second: str) -> str:
    """The comparison as lines for a terminal.

    Args:
        found: What was found.
        first: How the first log is called.
        second: How the second is.
    """
    lines = []
    if found.parting is None:
        lines.append(f"The same: {found.same:,} iterations.")
    else:
        lines += _told(found.parting, found.same, first, second)
    lines.append(f"Compared: {', '.join(found.fields)}.")
    lines += [f"Not compared: {name} ({why})." for name, why in found.left_out.items()]
    return "\n".join(lines)


def _told(parting: Parting, same: int, first: str, second: str) -> list[str]:
    start_ns = parting.start_ns
    when = "" if start_ns is None else f", decided at {start_ns / 1e9:.9f} s"
    of = f" of {parting.replica}" if parting.replica else ""
    lines = [f"They part at iteration {parting.iteration + 1:,}{of}{when}; {same:,} are alike."]
    lines += [f"  both    {_line(entry)}" for entry in parting.before]
    for name, entry in (("first", parting.first), ("second", parting.second)):
        lines.append(f"  {name:<7} {'has ended' if entry is None else _line(entry)}")
    if parting.first is not None and parting.second is not None:
        for field in parting.fields:
            lines += [f"  {line}" for line in _difference(field, parting.first, parting.second)]
    return [*lines, f"first: {first}", f"second: {second}"]


_MOST_REQUESTS = 8
"""Requests of an iteration, and of a difference, that are shown."""


def _line(entry: Entry) -> str:
    tokens = entry["tokens"]
    shown = " ".join(f"{request}:{n}" for request, n in list(tokens.items())[:_MOST_REQUESTS])
    more = f" and {len(tokens) - _MOST_REQUESTS} more" if len(tokens) > _MOST_REQUESTS else ""
    times = [f"{entry[name] / 1e9:.9f}" for name in ("start_ns", "end_ns") if name in entry]
    parts = [" to ".join(times) + (" s" if times else ""), f"tokens {shown or 'none'}{more}"]
    if entry.get("preempted"):
        parts.append(f"preempted {' '.join(entry['preempted'])}")
    if "free_after" in entry:
        parts.append(f"free {entry['free_after']:,}")
    return ", ".join(part for part in parts if part)


def _difference(field: str, first: Entry, second: Entry) -> list[str]:
    a, b = _value(first, field), _value(second, field)
    if not isinstance(a, dict) or not isinstance(b, dict):
        return [f"{field}: {_plain(a)} against {_plain(b)}"]
    keys = [key for key in {**a, **b} if a.get(key) != b.get(key)]
    if not keys:
        return []
    told = [f"request {key}: {_plain(a.get(key))} against {_plain(b.get(key))}" for key in keys]
    more = [f"and {len(told) - _MOST_REQUESTS} more"] if len(told) > _MOST_REQUESTS else []
    return [f"{field}: {each}" for each in (*told[:_MOST_REQUESTS], *more)]


def _plain(value: Any) -> str:
    if value is None or value == []:
        return "none"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
