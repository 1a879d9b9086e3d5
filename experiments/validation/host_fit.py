"""The two constants of a host's time, fitted to the TPOT of a measured run.

Only ``step_us`` and ``request_us`` change; the host's form and all else stay as the config has
them. Every simulation serves all requests. The first half of them (by arrival) is fitted, the
other half only says how well it went.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from experiments.validation.host_keys import host_of, line_of, with_host
from experiments.validation.host_search import Runs, Search
from experiments.validation.own_run import Latencies, Replay
from sim.errors import ConfigError
from sim.metrics import Bools

if TYPE_CHECKING:
    from kernels_profile.host import HostOverhead

LEAST_REQUESTS = 8
"""In each half, with a TPOT."""

_ONE_RUN = "A fit on one run is a fit on one run: compare another load before you rely on it."


@dataclass(frozen=True)
class HalfErrors:
    """Mean absolute errors of one half of the requests.

    Attributes:
        requests: Of it that have a TPOT.
        before: TPOT of each request, with the config's host.
        after: The same with the fitted host.
    """

    requests: int
    before: float
    after: float


@dataclass(frozen=True)
class HostFit:
    """What the host's constants became.

    Attributes:
        before: The config's host.
        after: The fitted one, rounded as it is printed.
        simulations: How many it took.
        fitted: Errors of the half that was fitted.
        held_out: Errors of the other half.
        line: The config's `step_time` with the fitted host, as YAML to paste.
        warnings: What makes the constants doubtful, one sentence each.
    """

    before: HostOverhead
    after: HostOverhead
    simulations: int
    fitted: HalfErrors
    held_out: HalfErrors
    line: str
    warnings: tuple[str, ...]

    def __str__(self) -> str:
        """In a few lines."""
        halves = [
            f"  {name} ({half.requests:,} requests): "
            f"{100 * half.before:.1f} % -> {100 * half.after:.1f} %"
            for name, half in (
                ("first half, fitted", self.fitted),
                ("second half, held out", self.held_out),
            )
        ]
        return "\n".join(
            [
                f"Fitted in {self.simulations} simulations (form {self.before.form}): "
                f"{_terms(self.before)} -> {_terms(self.after)}",
                "TPOT of each request, mean |error|:",
                *halves,
                f"To keep it: step_time: {self.line}",
                *self.warnings,
            ]
        )


def _terms(host: HostOverhead) -> str:
    step = f"step_us {host.step_us:g}"
    return step if host.form == "constant" else f"{step}, request_us {host.request_us:g}"


def fit_host(
    replay: Replay, simulated: Latencies, told: Callable[[str], None] = lambda text: None
) -> tuple[HostFit, Latencies]:
    """Fit the host's constants to a measured run.

    Args:
        replay: The run.
        simulated: It, simulated with the config's own host.
        told: Called with a sentence before each simulation.

    Returns:
        What they became, and the latencies with them.

    Raises:
        ConfigError: The step times have no host; too few requests of several tokens.
    """
    host = host_of(replay.experiment, replay.where)
    known = ~np.isnan(replay.measured.tpot_s) & (replay.measured.tpot_s > 0)
    first = np.arange(len(known)) < len(known) // 2
    halves = (known & first, known & ~first)
    least = min(int(half.sum()) for half in halves)
    if least < LEAST_REQUESTS:
        raise ConfigError(
            f"--fit host: {replay.trace.source}: half of the requests hold {least} with a TPOT; "
            f"expected at least {LEAST_REQUESTS} of two or more tokens in each half"
        )
    runs = Runs(replay, host, told)
    search = Search(runs, halves[0], simulated)
    end = search.run()
    after = runs.of(end)
    errors = [_errors(replay.measured, simulated, after, half) for half in halves]
    warnings = [_ONE_RUN, *search.warnings()]
    if errors[1].after > errors[1].before:
        warnings.append("The held-out half got worse: keep the host of the config.")
    fitted = runs.with_constants(end)
    line = line_of(with_host(replay.experiment, fitted))
    fit = HostFit(host, fitted, len(runs.done), errors[0], errors[1], line, tuple(warnings))
    return fit, after


def _errors(measured: Latencies, before: Latencies, after: Latencies, half: Bools) -> HalfErrors:
    found = [
        float(np.mean(abs(each.tpot_s[half] / measured.tpot_s[half] - 1)))
        for each in (before, after)
    ]
    return HalfErrors(int(half.sum()), *found)
