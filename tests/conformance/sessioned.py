"""Workloads of sessions in the second implementation's format, as our source of sessions."""

from __future__ import annotations

from typing import Any

import numpy as np

from sim.request import NEVER, Ints, Trace
from tests.conformance import adapter
from tests.conformance.workloads import Spec
from traces.sessions import SessionSource


def source_of(spec: Spec) -> SessionSource:
    """The requests as turns; those without a session are sessions of one turn."""
    requests = spec["requests"]

    def column(name: str, default: int) -> Ints:
        return np.array([r.get(name, default) for r in requests], dtype=np.int64)

    output = column("output_tokens", 0)
    most = [r.get("max_tokens") or r["output_tokens"] for r in requests]
    alone = [r.get("session", f"alone {i}") for i, r in enumerate(requests)]
    patience = [adapter.cancel_after_ns(r) for r in requests]
    trace = Trace(
        arrival_ns=column("arrival_ns", 0),
        prompt_tokens=column("prompt_tokens", 0),
        output_tokens=output,
        max_tokens=np.array(most, dtype=np.int64),
        row=np.arange(len(requests)),
        session=np.array(alone, dtype=object),
        turn=column("turn", 0),
        delay_ns=column("delay_ns", 0),
        content=[adapter.content_of(r) for r in requests],
        cancel_after_ns=np.array([NEVER if t is None else t for t in patience], dtype=np.int64),
    )
    options: dict[str, Any] = {"concurrency": spec.get("concurrency")}
    return SessionSource(trace, on_failed_turn=spec.get("on_failed_turn", "skip"), **options)
