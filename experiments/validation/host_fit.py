"""The two constants of a host's time, fitted to the TPOT of a measured run.

Only ``step_us`` and ``request_us`` change; the host's form and all else stay as the config has
them. Every simulation serves all requests. The first half of them (by arrival) is fitted, the
other half only says how well it went. Gauss-Newton on relative errors with bounds: where steps are
the sum of GPU and host, TPOT is a linear function of both as long as batches stay the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from experiments import cluster, parts
from experiments.names import canonical
from experiments.schema import Experiment, Pool
from experiments.validation.own_run import Latencies, Replay, simulated_latencies
from sim.errors import ConfigError
from sim.metrics import Bools, Floats

if TYPE_CHECKING:
    from kernels_profile.host import HostOverhead

WITH_HOST = ("roofline", "profile")
"""Step-time models that have a host's time."""

MOST_SIMULATIONS = 15
LEAST_REQUESTS = 8
"""In each half, with a TPOT."""

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


# --- the host of a config


def host_of(experiment: Experiment, where: str) -> HostOverhead:
    """The host's time of a config.

    Args:
        experiment: Resolved.
        where: Config and variant, for messages.

    Raises:
        ConfigError: Its step times have none; two pools have different ones.
    """
    hosts = {role: _of_pool(pool, where) for role, pool in cluster.pools_of(experiment).items()}
    first, *others = hosts.values()
    if any(other != first for other in others):
        raise ConfigError(
            f"--fit host: {where}: the pools {' and '.join(hosts)} have different hosts "
            f"({'; '.join(map(str, hosts.values()))}); one run cannot tell them apart"
        )
    return first


def _of_pool(pool: Pool, where: str) -> HostOverhead:
    from kernels_profile.host import DEFAULT_HOST, HOSTS

    model = canonical(str(pool.step_time["model"]))
    if model not in WITH_HOST:
        raise ConfigError(
            f"--fit host: {where}: step_time {model} has no host; only {' and '.join(WITH_HOST)} do"
        )
    if "host" not in pool.step_time:
        return HOSTS[DEFAULT_HOST]
    return parts.host(pool.step_time["host"], f"{where}: step_time.host")


def with_host(experiment: Experiment, host: HostOverhead) -> Experiment:
    """The same experiment with another host in each of its pools."""
    changed = {
        role: pool.model_copy(update={"step_time": {**pool.step_time, "host": _as_keys(host)}})
        for role, pool in cluster.pools_of(experiment).items()
    }
    return experiment.model_copy(update={"pools": experiment.pools.model_copy(update=changed)})


def _as_keys(host: HostOverhead) -> dict[str, Any]:
    keys: dict[str, Any] = {"form": host.form, "step_us": host.step_us}
    if host.form != "constant":
        keys["request_us"] = host.request_us
    if host.eager_layer_us:
        keys["eager_layer_us"] = host.eager_layer_us
    return keys


def _line(experiment: Experiment) -> str:
    """The `step_time` of all pools on one line of YAML; of different ones, what they share."""
    import yaml

    first, *others = (pool.step_time for pool in cluster.pools_of(experiment).values())
    ordered = {"model": first["model"], **first}
    if any(other != first for other in others):
        ordered = {"host": first["host"]}
    text: str = yaml.safe_dump(ordered, default_flow_style=True, sort_keys=False, width=math.inf)
    return text.strip()


# --- the fit


@dataclass
class _Runs:
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
    runs = _Runs(replay, host, told)
    search = _Search(runs, halves[0], simulated)
    end = search.run()
    after = runs.of(end)
    errors = [_errors(replay.measured, simulated, after, half) for half in halves]
    warnings = search.warnings(errors[1])
    fitted = runs.with_constants(end)
    line = _line(with_host(replay.experiment, fitted))
    fit = HostFit(host, fitted, len(runs.done), errors[0], errors[1], line, warnings)
    return fit, after


def _errors(measured: Latencies, before: Latencies, after: Latencies, half: Bools) -> HalfErrors:
    found = [
        float(np.mean(abs(each.tpot_s[half] / measured.tpot_s[half] - 1)))
        for each in (before, after)
    ]
    return HalfErrors(int(half.sum()), *found)


class _Search:
    """Gauss-Newton with bounds on the relative errors of TPOT.

    Args:
        runs: Simulates.
        half: Requests that are fitted, (n,).
        simulated: With the config's own host, where the search starts.
    """

    def __init__(self, runs: _Runs, half: Bools, simulated: Latencies) -> None:
        self._runs = runs
        self._half = half
        self._measured = runs.replay.measured
        self._tpot_us = float(np.median(self._measured.tpot_s[half])) * 1e6
        host = runs.host
        constant = host.form == "constant"
        self.point: Floats = np.array(
            [host.step_us] if constant else [host.step_us, host.request_us], float
        )
        self.point[0] = max(self.point[0], 1e-3)
        runs.done[_rounded(self.point)] = simulated
        batch = max(1.0, self._mean_batch())
        self._probe: Floats = _PROBE * self._tpot_us / np.array([1.0, batch])[: len(self.point)]
        self._lower: Floats = np.array([1e-3, 0.0])[: len(self.point)]
        self._upper: Floats = np.maximum(4 * self._probe / _PROBE, 2 * self.point)
        self._effect: npt.NDArray[np.float64] | None = None

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

    def warnings(self, held_out: HalfErrors) -> tuple[str, ...]:
        """What a reader has to know of the result."""
        told = [
            "A fit on one run is a fit on one run: compare another load before you rely on it.",
            *self._of_arrivals(),
            *self._of_bounds(),
            *self._of_likeness(),
        ]
        if held_out.after > held_out.before:
            told.append("The held-out half got worse: keep the host of the config.")
        return tuple(told)

    def _of_arrivals(self) -> list[str]:
        if not self._runs.replay.drawn:
            return []
        return ["Arrivals were drawn anew: requests met other batches than in the run."]

    def _of_bounds(self) -> list[str]:
        told = []
        names: tuple[str, ...] = ("step_us", "request_us")
        simulated = float(np.median(self._errors(self.point)))
        if self.point[0] <= self._lower[0] * 1.01 and simulated > _ENOUGH:
            told.append(
                "The host ended at nothing, and the simulated TPOT is still "
                f"{100 * simulated:.1f} % above the measured one: the GPU's time differs, not the "
                "host's."
            )
        if len(self.point) > 1 and self.point[1] <= 0:
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
