"""The search for a host's two constants: Gauss-Newton with bounds, a few simulations in all.

Where steps are the sum of GPU and host, TPOT is a linear function of both constants as long as
batches stay the same, so that a few steps do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from experiments.validation.host_keys import with_host
from experiments.validation.own_run import Latencies, Replay, simulated_latencies
from sim.metrics import Bools, Floats

if TYPE_CHECKING:
    from kernels_profile.host import HostOverhead

MOST_SIMULATIONS = 15

_HUBER = 0.01
"""Relative errors beyond this count as they are and not squared, as in the mean that is reported:
requests that the model of the GPU is wrong about shall not pull the host with them."""
_PROBE = 0.05
"""Host constants are moved by so much of the measured TPOT to see what they do."""
_ENOUGH = 0.003
"""Steps that move TPOT by less than this end the search."""
_ALIKE = 0.99
"""Cosine of the effects of both constants from which on the run cannot tell them apart."""
_DIGITS = 4
_LEAST_US = 1.0
"""Of ``step_us``: a host that takes no time at all is refused as a mistake."""


@dataclass
class Runs:
    """Simulations with different hosts, each done once.

    Attributes:
        replay: The requests.
        host: The config's host.
        told: Called with a sentence before each simulation.
        done: Latencies by constants.
    """

    replay: Replay
    host: HostOverhead
    told: Callable[[str], None]
    done: dict[tuple[float, ...], Latencies] = field(default_factory=dict)

    def of(self, constants: Floats) -> Latencies:
        """Latencies with these constants, microseconds: ``step_us``, ``request_us``."""
        key = _rounded(constants)
        if key not in self.done:
            host = self.with_constants(constants)
            self.told(f"simulation {len(self.done) + 1} (at most {MOST_SIMULATIONS}): {host}")
            experiment = with_host(self.replay.experiment, host)
            self.done[key] = simulated_latencies(self.replay.run(experiment))
        return self.done[key]

    def with_constants(self, constants: Floats) -> HostOverhead:
        """The host with these constants, rounded."""
        rounded = _rounded(constants)
        request_us = rounded[1] if len(rounded) > 1 else 0.0
        return replace(
            self.host, source="fitted to a measured run", step_us=rounded[0], request_us=request_us
        )


def _rounded(constants: Floats) -> tuple[float, ...]:
    """As they are printed."""
    return tuple(float(f"{value:.{_DIGITS}g}") for value in constants)


class Search:
    """Gauss-Newton with bounds on the relative errors of TPOT.

    Args:
        runs: Simulates.
        half: Requests that are fitted, (n,).
        simulated: With the config's own host, where the search starts.
    """

    def __init__(self, runs: Runs, half: Bools, simulated: Latencies) -> None:
        self._runs = runs
        self._half = half
        self._measured = runs.replay.measured
        self._tpot_us = float(np.median(self._measured.tpot_s[half])) * 1e6
        host = runs.host
        constant = host.form == "constant"
        self.point: Floats = np.array(
            [host.step_us] if constant else [host.step_us, host.request_us], float
        )
        self.point[0] = max(self.point[0], _LEAST_US)
        runs.done[_rounded(self.point)] = simulated
        batch = max(1.0, self._mean_batch())
        self._probe: Floats = _PROBE * self._tpot_us / np.array([1.0, batch])[: len(self.point)]
        self._lower: Floats = np.array([_LEAST_US, 0.0])[: len(self.point)]
        self._upper: Floats = np.maximum(4 * self._probe / _PROBE, 2 * self.point)
        self._effect: Floats | None = None

    def _mean_batch(self) -> float:
        """Requests between first and last token at a time, simulated, by Little's law."""
        simulated = self._runs.of(self.point)
        gaps = self._runs.replay.trace.output_tokens - 1
        decoding_s = float((np.nan_to_num(simulated.tpot_s) * gaps).sum())
        return decoding_s / max(simulated.span_s, 1e-9)

    def run(self) -> Floats:
        """The best constants found within `MOST_SIMULATIONS`."""
        self._lift()
        while len(self._runs.done) + len(self.point) < MOST_SIMULATIONS:
            moved = self._step()
            if moved < _ENOUGH:
                break
        return self.point

    def _lift(self) -> None:
        """In the form ``max``, a host that is shorter than the GPU does nothing: start above it."""
        if self._runs.host.form != "max" or np.mean(self._errors(self.point)) >= 0:
            return
        raised = self.point.copy()
        raised[0] = max(raised[0], self._tpot_us)
        if self._cost(raised) < self._cost(self.point):
            self.point = raised

    def _step(self) -> float:
        """Move to a better point; by how much TPOT changes, as a share, 0 if there is none."""
        from scipy.optimize import lsq_linear

        errors = self._errors(self.point)
        self._effect = np.stack([self._effect_of(i, errors) for i in range(len(self.point))], 1)
        weight = np.sqrt(np.minimum(1, _HUBER / np.maximum(abs(errors), 1e-12)))
        # What the run does not tell stays where it is: a small pull, in probes, on each constant.
        pull = 1e-3 * math.sqrt(len(errors)) * np.eye(len(self.point)) * _PROBE
        found = lsq_linear(
            np.vstack([self._effect * weight[:, None], pull]),
            np.concatenate([-errors * weight, np.zeros(len(self.point))]),
            bounds=(
                (self._lower - self.point) / self._probe - 1e-12,
                (self._upper - self.point) / self._probe + 1e-12,
            ),
        )
        return self._along(found.x * self._probe)

    def _effect_of(self, which: int, errors: Floats) -> Floats:
        """Change of the errors for one probe of a constant, (k,)."""
        moved = self.point.copy()
        moved[which] += self._probe[which]
        return self._errors(moved) - errors

    def _along(self, step: Floats) -> float:
        """Take the step, or half or a quarter of it, where that is better."""
        cost = self._cost(self.point)
        for share in (1.0, 0.5, 0.25):
            if len(self._runs.done) >= MOST_SIMULATIONS:
                return 0.0
            tried = np.clip(self.point + share * step, self._lower, self._upper)
            # The solver keeps a little away from bounds.
            tried = np.where(tried - self._lower < 1e-3 * self._probe, self._lower, tried)
            if self._cost(tried) < cost:
                change = float(np.median(abs(self._errors(tried) - self._errors(self.point))))
                self.point = tried
                return change
        return 0.0

    def _errors(self, constants: Floats) -> Floats:
        """Relative errors of TPOT of the fitted half, (k,)."""
        simulated = self._runs.of(constants)
        return simulated.tpot_s[self._half] / self._measured.tpot_s[self._half] - 1

    def _cost(self, constants: Floats) -> float:
        size = abs(self._errors(constants))
        huber = np.where(size < _HUBER, size**2 / 2, _HUBER * (size - _HUBER / 2))
        return float(huber.mean())

    def warnings(self) -> list[str]:
        """What a reader has to know of the result."""
        return [*self._of_arrivals(), *self._of_bounds(), *self._of_likeness()]

    def _of_arrivals(self) -> list[str]:
        if not self._runs.replay.drawn:
            return []
        return ["Arrivals were drawn anew: requests met other batches than in the run."]

    def _of_bounds(self) -> list[str]:
        told = []
        names: tuple[str, ...] = ("step_us", "request_us")
        simulated = float(np.median(self._errors(self.point)))
        if (self.point <= 1.01 * self._lower).all() and simulated > _ENOUGH:
            told.append(
                "The host ended at nothing, and the simulated TPOT is still "
                f"{100 * simulated:.1f} % above the measured one: the GPU's time differs, not the "
                "host's."
            )
        elif len(self.point) > 1 and self.point[1] <= 0:
            told.append(
                "request_us ended at 0: steps grow with the batch no faster than the GPU's."
            )
        for name, value, most in zip(names, self.point, self._upper, strict=False):
            if value >= 0.999 * most:
                told.append(f"{name} ended at the largest value that was tried, {most:.4g}.")
        return told

    def _of_likeness(self) -> list[str]:
        if self._effect is None or self._effect.shape[1] < 2:
            return []
        sizes = np.linalg.norm(self._effect, axis=0)
        if sizes.min() < 1e-9:
            return []
        alike = float(abs(self._effect[:, 0] @ self._effect[:, 1]) / sizes.prod())
        if alike < _ALIKE:
            return []
        batch = self._probe[0] / self._probe[1]
        return [
            "The batch hardly changes in this run, so that it tells the sum of both constants (at "
            f"about {batch:.0f} requests), and not the two apart."
        ]
