"""When requests arrive: as recorded, or drawn anew over the same requests in the same order."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from sim.errors import TraceError, nearest
from sim.request import NEVER, Ints, Trace
from traces.chance import generator
from traces.values import MAX_TIME_NS
from traces.workload import ArrivalSource, ClosedLoopSource, TraceSource

Process = Literal["recorded", "poisson", "gamma", "constant", "burst", "closed-loop"]
PROCESSES: tuple[str, ...] = get_args(Process)

_COARSE_NS = 100_000_000
"""Ticks from 0.1 s on are the recorder's; finer ones are the resolution of a clock."""


def arrive(
    trace: Trace,
    process: str = "recorded",
    *,
    seed: int = 0,
    rate_per_s: float | None = None,
    cv: float | None = None,
    burst_requests: int | None = None,
    speedup: float = 1.0,
    window_s: tuple[float, float] | None = None,
    limit: int | None = None,
    spread_ticks: bool = False,
) -> Trace:
    """The requests of `trace` with the arrival times of `process`; `trace` itself stays as it is.

    Args:
        trace: In order of arrival.
        process: ``recorded``; ``poisson``; ``gamma`` (gaps of a given CV); ``constant`` (equal
            gaps, the first at 0); ``burst`` (`burst_requests` at once, bursts at equal distances;
            without it all at 0); ``closed-loop`` (times are not used: see `make_source`).
        seed: Of the experiment; draws come from its generator ``arrivals``.
        rate_per_s: Mean rate of ``poisson``, ``gamma``, ``constant`` and ``burst``; None for the
            recorded one.
        cv: Coefficient of variation of the gaps of ``gamma``.
        burst_requests: Requests of a burst.
        speedup: Recorded times are divided by this.
        window_s: Part [from, to) of the recording to keep, seconds of its own clock, before
            `speedup`. If it begins after 0 the first request kept is at 0.
        limit: Keep the first requests only, after `window_s`.
        spread_ticks: Recorded on coarse ticks, such as Mooncake's 3 s: draw each request's time
            uniformly within its tick, in the order of the trace.

    Raises:
        TraceError: The trace has no times and the process needs them, or nothing is left.
        ValueError: An argument out of bounds, or an unknown process.
    """
    name = process.replace("_", "-")
    if name not in PROCESSES:
        raise ValueError(f"arrivals: no process {process!r}{nearest(name, PROCESSES)}")
    kept = _select(trace, window_s, limit)
    notes = [*kept.notes]
    if name == "recorded":
        times = _recorded(kept, speedup, spread_ticks, seed, notes)
    elif name == "closed-loop":
        times = np.zeros(len(kept), dtype=np.int64)
        notes.append("Arrivals: closed loop; recorded times are not used.")
    else:
        rate = _rate(kept, rate_per_s, name, burst_requests)
        times = _drawn(name, len(kept), rate, cv, burst_requests, generator(seed, "arrivals"))
        notes.append(_said(name, rate, cv, burst_requests))
    return replace(kept, arrival_ns=times, notes=notes)


def make_source(trace: Trace, concurrency: int | None = None) -> ArrivalSource:
    """What feeds `trace` to a simulation: open loop, or closed with `concurrency` places."""
    return TraceSource(trace) if concurrency is None else ClosedLoopSource(trace, concurrency)


def divide_half_even(values: Ints, divisor: Fraction) -> Ints:
    """(n,) `values` / `divisor`, exactly, rounded half to even; `values` from 0 up.

    Raises:
        TraceError: A result beyond `MAX_TIME_NS`.
    """
    numerator, denominator = divisor.numerator, divisor.denominator
    largest = int(values.max(initial=0)) * denominator
    wide: npt.NDArray[Any] = values
    if largest > np.iinfo(np.int64).max // 2 or numerator > np.iinfo(np.int64).max // 2:
        wide = values.astype(object)
    scaled = wide * denominator
    quotient, rest = scaled // numerator, scaled % numerator
    up = (2 * rest > numerator) | ((2 * rest == numerator) & (quotient % 2 == 1))
    result = quotient + up
    if len(result):
        _refuse_endless(result.max() / 10**9)
    return result.astype(np.int64)


def _refuse_endless(last_s: float) -> None:
    if not last_s <= MAX_TIME_NS / 1e9:
        raise TraceError(
            f"arrivals: the last request would arrive after {last_s:.3g} s; expected at most "
            f"{MAX_TIME_NS / 1e9:.3g} s: give a higher rate_per_s or speedup, or fewer requests"
        )


def to_ns(times_s: npt.NDArray[np.float64]) -> Ints:
    """(n,) int64 ns of ascending times (n,) in seconds.

    Raises:
        TraceError: A time beyond `MAX_TIME_NS`.
    """
    if len(times_s):
        _refuse_endless(float(times_s[-1]))
    return np.rint(times_s * 1e9).astype(np.int64)


def _select(trace: Trace, window_s: tuple[float, float] | None, limit: int | None) -> Trace:
    if limit is not None and limit < 1:
        raise ValueError(f"limit: {limit}; expected at least 1")
    kept = trace
    if window_s is not None:
        start, end = (round(Fraction(str(edge)) * 10**9) for edge in window_s)
        if not 0 <= start < end:
            raise ValueError(f"window_s: {list(window_s)}; expected [from, to) with 0 <= from < to")
        times = _need_times(trace, "window_s")
        low, high = np.searchsorted(times, [start, end])
        kept = trace.take(np.arange(low, high))
        if not len(kept):
            raise TraceError(
                f"{trace.source}: window_s: no request from {window_s[0]:g} to {window_s[1]:g} s;"
                f" expected a part of {times[0] / 1e9:g} to {times[-1] / 1e9:g} s"
            )
        shift = int(kept.arrival_ns[0]) if start else 0
        kept.arrival_ns = kept.arrival_ns - shift
        kept.notes.append(f"{len(kept):,} of {len(trace):,} requests are in the window.")
    if limit is not None and limit < len(kept):
        kept = kept.take(np.arange(limit))
        kept.notes.append(f"Limited to the first {limit:,} requests.")
    return kept


def _recorded(
    trace: Trace, speedup: float, spread_ticks: bool, seed: int, notes: list[str]
) -> Ints:
    if not speedup > 0:
        raise ValueError(f"speedup: {speedup}; expected above 0")
    times = _need_times(trace, "recorded arrivals")
    if spread_ticks:
        times = _spread(trace, times, generator(seed, "arrivals"), notes)
    if speedup != 1:
        times = divide_half_even(times, Fraction(str(speedup)))
        notes.append(f"Recorded times were divided by {speedup:g}{_rate_of(times)}.")
    return times


def _rate_of(times: Ints) -> str:
    """What a note says of the rate of `times` (n,) ns; nothing where they span no time."""
    duration_ns = int(times[-1] - times[0]) if len(times) else 0
    return (
        f", which gives {(len(times) - 1) * 1e9 / duration_ns:.4g} a second" if duration_ns else ""
    )


def _spread(trace: Trace, times: Ints, rng: np.random.Generator, notes: list[str]) -> Ints:
    since = times - times[:1]
    steps, how_many = np.unique(np.diff(np.unique(since)), return_counts=True)
    tick = int(steps[np.argmax(how_many)]) if len(steps) else 0
    if tick < _COARSE_NS or _off_tick(since, tick) > tick // 100:
        raise TraceError(
            f"{trace.source}: spread_ticks: its clock most often steps {tick / 1e9:g} s;"
            f" expected all times on ticks of at least {_COARSE_NS / 1e9:g} s"
        )
    notes.append(f"Requests were spread uniformly over their ticks of {tick / 1e9:g} s.")
    ticks = (since + tick // 2) // tick
    # Sorting keeps the order of the trace within a tick; ticks do not overlap.
    return np.sort(times[:1] + ticks * tick + rng.integers(0, tick, size=len(times)))


def _off_tick(since: Ints, tick: int) -> int:
    """Largest distance from a multiple of `tick`: recorders round, so 1 ms in 3 s happens."""
    rest = since % tick
    return int(np.minimum(rest, tick - rest).max())


def _rate(trace: Trace, rate_per_s: float | None, process: str, burst: int | None) -> Fraction:
    """Requests a second, exactly as the decimal text of the number says."""
    if rate_per_s is not None:
        if not rate_per_s > 0:
            raise ValueError(f"rate_per_s: {rate_per_s}; expected above 0")
        return Fraction(str(rate_per_s))
    if process == "burst" and burst is None:
        return Fraction(1)
    times = _need_times(trace, f"{process} arrivals without rate_per_s")
    duration_ns = int(times[-1] - times[0]) if len(times) else 0
    if not duration_ns:
        raise TraceError(f"{trace.source}: arrivals: all at one time; expected rate_per_s")
    return Fraction((len(times) - 1) * 10**9, duration_ns)


def _drawn(
    process: str,
    n: int,
    rate: Fraction,
    cv: float | None,
    burst_requests: int | None,
    rng: np.random.Generator,
) -> Ints:
    """(n,) int64 ns. Gaps are drawn at rate 1, so that another rate scales the same pattern."""
    if process == "constant":
        return divide_half_even(np.arange(n, dtype=np.int64) * 10**9, rate)
    if process == "burst":
        size = n if burst_requests is None else burst_requests
        if n and size < 1:
            raise ValueError(f"burst_requests: {size}; expected at least 1")
        first = np.arange(n, dtype=np.int64) // max(size, 1) * size
        return divide_half_even(first * 10**9, rate)
    if process == "poisson":
        gaps = rng.standard_exponential(n)
    else:
        if cv is None or not cv > 0:
            raise ValueError(f"cv: {cv}; expected above 0 for gamma")
        gaps = rng.standard_gamma(1 / cv**2, n) * cv**2
    return to_ns(np.cumsum(gaps) / float(rate))


def _need_times(trace: Trace, what: str) -> Ints:
    if len(trace) and trace.arrival_ns[0] == NEVER:
        raise TraceError(
            f"{trace.source}: {what}: the trace has no arrival times; expected a process that"
            " makes them, such as poisson with rate_per_s"
        )
    return trace.arrival_ns


def _said(process: str, rate: Fraction, cv: float | None, burst_requests: int | None) -> str:
    if process == "burst" and burst_requests is None:
        return "Arrivals: all at 0; recorded times are not used."
    detail = {"gamma": f", CV of gaps {cv}", "burst": f", {burst_requests} at a time"}
    return f"Arrivals: {process}, {float(rate):g} a second{detail.get(process, '')}."
