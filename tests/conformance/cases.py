"""Workloads and what must come of them, as plain values and as text files.

`observed` is the common shape in which a result of the reference, a result of ours and a case file
are compared::

    {"requests": [{"status", "reason", "token_times_ns", "preemptions",
                    "replica", "decode_replica"}],
     "log": {replica: [[start_ns, end_ns, {request: tokens}, [preempted], free_after]]},
     "transfers": [[request, source, target, start_ns, end_ns, source_blocks]]}

Requests are named by position. Each replica's log is in order of time; transfers are in order of
start, then request. (The target's blocks show in the free blocks of its log.)
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.conformance.workloads import Spec

Observed = dict[str, Any]

CASES = Path(__file__).with_name("cases")


def observe_reference(spec: Spec, result: Any) -> Observed:
    """The reference's result in the common shape."""
    requests = [
        {
            "status": outcome.status,
            "reason": outcome.reason,
            "token_times_ns": list(outcome.token_times_ns),
            "preemptions": outcome.preemptions,
            "replica": outcome.replica,
            "decode_replica": outcome.decode_replica,
        }
        for _, outcome in sorted(result.requests.items())
    ]
    log: dict[str, list[Any]] = {}
    for x in result.log:
        entry = [x.start_ns, x.end_ns, dict(x.tokens), list(x.preempted), x.free_after]
        log.setdefault(x.replica, []).append(entry)
    transfers = [
        [t.request, t.source, t.target, t.start_ns, t.end_ns, t.source_blocks]
        for t in result.transfers
    ]
    return {"requests": requests, "log": log, "transfers": by_start(transfers)}


def by_start(transfers: list[list[Any]]) -> list[list[Any]]:
    """Transfers in order of start, then request."""
    return sorted(transfers, key=lambda t: (t[3], t[0]))


def differences(expected: Observed, got: Observed, most: int = 12) -> list[str]:
    """What differs, one line each, the earliest decisions first; empty if nothing does."""
    lines = _log_differences(expected["log"], got["log"])
    for i, (a, b) in enumerate(zip(expected["requests"], got["requests"], strict=True)):
        lines += [
            f"request {i}: {key}: expected {a[key]}, got {b[key]}" for key in a if a[key] != b[key]
        ]
    if expected["transfers"] != got["transfers"]:
        lines += _first_difference("transfer", expected["transfers"], got["transfers"])
    more = len(lines) - most
    return lines[:most] + ([f"... and {more} more"] if more > 0 else [])


def _log_differences(expected: dict[str, list[Any]], got: dict[str, list[Any]]) -> list[str]:
    """The first difference of each replica, earliest first."""
    found = []
    for replica in sorted(set(expected) | set(got)):
        a, b = expected.get(replica, []), got.get(replica, [])
        if a != b:
            at = _first_unequal(a, b)
            start = min(x[at][0] for x in (a, b) if at < len(x))
            found.append((start, _first_difference(f"{replica}: step", a, b)))
    return [line for _, lines in sorted(found) for line in lines]


def _first_unequal(a: list[Any], b: list[Any]) -> int:
    shared = min(len(a), len(b))
    return next((i for i in range(shared) if a[i] != b[i]), shared)


def _first_difference(what: str, expected: list[Any], got: list[Any]) -> list[str]:
    at = _first_unequal(expected, got)
    a = expected[at] if at < len(expected) else "nothing"
    b = got[at] if at < len(got) else "nothing"
    return [f"{what} {at}: expected {a}, got {b}"]


def write_case(path: Path, why: str, spec: Spec, expected: Observed) -> None:
    """Write a case as JSON, one request, step or transfer a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(case_text(why, spec, expected))


def case_text(why: str, spec: Spec, expected: Observed) -> str:
    """The text of a case file; `why` says which rule it holds down."""
    return _text({"why": why, "workload": spec, "expected": expected}, 0) + "\n"


def read_case(path: Path) -> tuple[str, Spec, Observed]:
    """Why the case is kept, its workload and what must come of it."""
    case = json.loads(path.read_text())
    expected = case["expected"]
    for steps in expected["log"].values():
        for step in steps:
            step[2] = {int(request): tokens for request, tokens in step[2].items()}
    return case["why"], case["workload"], expected


WIDTH = 96


def _text(value: Any, indent: int) -> str:
    """JSON that breaks only what does not fit on a line."""
    flat = json.dumps(value)
    if len(flat) + indent <= WIDTH or not isinstance(value, dict | list) or not value:
        return flat
    pad = " " * (indent + 2)
    if isinstance(value, dict):
        parts = [f"{json.dumps(str(k))}: {_text(v, indent + 2)}" for k, v in value.items()]
        opening, closing = "{", "}"
    elif all(isinstance(x, int) for x in value):
        return flat
    else:
        parts = [_text(v, indent + 2) for v in value]
        opening, closing = "[", "]"
    inside = f",\n{pad}".join(parts)
    return f"{opening}\n{pad}{inside}\n{' ' * indent}{closing}"
