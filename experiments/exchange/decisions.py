"""The log of scheduling decisions as JSON lines: one object per iteration, in order of time.

Each line of ``decisions.jsonl`` is one iteration of one replica (or one stage's batch)::

    {"replica": "replicas/0", "start_ns": 0, "end_ns": 8213000, "tokens": {"0": 512, "3": 1},
     "preempted": [], "free_after": 1211}

``tokens`` is the real (unpadded) tokens computed for each request, named as in the column ``index``
of ``requests.parquet``; ``preempted`` is in order of preemption; ``free_after`` is the free blocks
while the iteration runs (under ``sglang`` in tokens, those that could be evicted included). A pass
that only preempted has no length. Keys that say something only now and then are left out where they
do not: ``cached`` (of each admitted request, the tokens found in a prefix cache), ``lost_blocks``
(that lost their content), ``lost`` (the replica failed, and nothing of it happened).

Another simulator's log, or one taken from a real engine, needs ``tokens`` alone: what a line does
not have is not compared.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from experiments.bundle import DECISIONS
from experiments.names import brief, suggestion
from sim.errors import ConfigError
from sim.records import Decision

FILE = DECISIONS
"""Its name in a bundle."""

FIELDS = (
    "replica",
    "start_ns",
    "end_ns",
    "tokens",
    "preempted",
    "free_after",
    "cached",
    "lost_blocks",
    "lost",
)
"""Keys of a line."""

Entry = dict[str, Any]


def entries(decisions: Iterable[Decision], names: Sequence[str]) -> Iterator[Entry]:
    """Decisions as they are written, in order of start, then replica, then end.

    Args:
        decisions: Of a result, in any order.
        names: Of the replicas, by the decisions' indices.
    """
    for each in sorted(decisions, key=lambda x: (x.start_ns, x.replica, x.end_ns)):
        entry: Entry = {
            "replica": names[each.replica],
            "start_ns": each.start_ns,
            "end_ns": each.end_ns,
            "tokens": {str(request): tokens for request, tokens in each.tokens.items()},
            "preempted": [str(request) for request in each.preempted],
            "free_after": each.free_after,
        }
        if each.cached:
            entry["cached"] = {str(request): found for request, found in each.cached.items()}
        if each.lost_blocks:
            entry["lost_blocks"] = each.lost_blocks
        if each.lost:
            entry["lost"] = True
        yield entry


def write(path: Path, decisions: Iterable[Decision], names: Sequence[str]) -> None:
    """Write a log.

    Args:
        path: Of the file.
        decisions: Of a result, in any order.
        names: Of the replicas, by the decisions' indices.

    Raises:
        OSError: It cannot be written.
    """
    with path.open("w", encoding="utf-8") as file:
        for entry in entries(decisions, names):
            file.write(json.dumps(entry, separators=(",", ":")) + "\n")


def find(path: Path) -> Path:
    """The log at a path: a file, or that of a bundle.

    Raises:
        ConfigError: There is none; says how to get one.
    """
    if path.is_file():
        return path
    if (path / FILE).is_file():
        return path / FILE
    below = sorted(each.parent.name for each in path.glob(f"*/{FILE}"))
    if below:
        raise ConfigError(f"{path}: holds {len(below)} logs; name one: {path / below[0]}")
    if not path.exists():
        raise ConfigError(f"{path}: no such file or folder; expected a {FILE} or a bundle with one")
    raise ConfigError(
        f"{path}: has no {FILE}; run its config again with: phasewise run CONFIG --decisions"
    )


def read(path: Path) -> Iterator[Entry]:
    """The entries of a log, one at a time; blank lines are passed over.

    Raises:
        ConfigError: A line is no entry: file, line and what is wrong.
    """
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield _checked(line, path, number)
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is no text; expected JSON lines, as {FILE} has") from None


def read_all(path: Path) -> list[Entry]:
    """All entries of a log.

    Raises:
        ConfigError: A line is no entry, or there is none.
    """
    found = list(read(path))
    if not found:
        raise ConfigError(f"{path}: has no iteration; expected JSON lines, one for each")
    return found


def _checked(line: str, path: Path, number: int) -> Entry:
    where = f"{path}:{number}"
    try:
        entry = json.loads(line)
    except ValueError:
        if _is_one_document(path):
            raise ConfigError(
                f"{path}: is one JSON value over several lines; expected JSON lines, one object "
                f"for each iteration, as {FILE} has"
            ) from None
        raise ConfigError(f"{where}: is no JSON: {brief(line.strip())}") from None
    if not isinstance(entry, dict):
        raise ConfigError(f"{where}: {brief(entry)}: expected an object with the key tokens")
    for key in entry:
        if key not in FIELDS:
            raise ConfigError(f"{where}: unknown key {brief(key)}; {suggestion(key, FIELDS)}")
    if "tokens" not in entry:
        raise ConfigError(f"{where}: lacks the key tokens: request to tokens computed")
    for key, expected in _SHAPES.items():
        if key in entry and not expected[1](entry[key]):
            raise ConfigError(f"{where}: {key}: {brief(entry[key])}: expected {expected[0]}")
    entry["tokens"] = {str(request): tokens for request, tokens in entry["tokens"].items()}
    if "preempted" in entry:
        entry["preempted"] = [str(request) for request in entry["preempted"]]
    entry["replica"] = str(entry.get("replica", ""))
    return entry


def _is_one_document(path: Path) -> bool:
    """Whether a whole file is JSON, as summaries are."""
    try:
        with path.open(encoding="utf-8") as file:
            json.load(file)
    except ValueError:
        return False
    return True


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _counts(value: object) -> bool:
    return isinstance(value, dict) and all(_whole(each) for each in value.values())


_SHAPES = {
    "replica": ("a name", lambda x: isinstance(x, str | int)),
    "start_ns": ("whole nanoseconds", _whole),
    "end_ns": ("whole nanoseconds", _whole),
    "tokens": ("request to whole tokens", _counts),
    "preempted": ("a list of requests", lambda x: isinstance(x, list)),
    "free_after": ("a whole number", _whole),
    "cached": ("request to whole tokens", _counts),
    "lost_blocks": ("a whole number", _whole),
    "lost": ("true or false", lambda x: isinstance(x, bool)),
}
