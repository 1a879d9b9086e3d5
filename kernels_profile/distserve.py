"""DistServe's own fits of step times, for OPT on A100: `DistServeStepTime`, ``distserve-fit``.

Source: LLMServe/DistServe rev 82831f1604cc (Apache-2.0), `simdistserve/estimators/`: the
coefficients of `profile_data/` are in `efficiency/distserve.csv`, the formulas are those of
`time_estimator.py`. Its authors fitted them to steps measured with their engine and with vLLM on
A100-80GB SXM. They are agreement with a fit to redo that paper by, not a measurement.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType

import numpy as np

from sim.errors import ConfigError, ProfileError, nearest
from sim.step_time import SHORT_RUN, Ints, StepTimeOrigin, StepWork

DEVICE = "a100-sxm-80gb"
"""What all of them were measured on."""


@dataclass(frozen=True)
class Line:
    """``a_ms + b_ms * tokens + c_ms * x``: x is the sum of squared lengths, or the batch."""

    a_ms: float
    b_ms: float
    c_ms: float


@dataclass(frozen=True)
class DistServeFit:
    """Coefficients of one engine, model and tensor parallelism.

    Attributes:
        prefill: Over tokens and the sum of squared prompt lengths.
        small: Decodes, over the sum of contexts and the batch, below `large_batch`.
        large: The same from `large_batch` on.
        large_batch: First batch size of `large`.
    """

    prefill: Line
    small: Line
    large: Line
    large_batch: int


def _fits() -> Mapping[tuple[str, str, int], DistServeFit]:
    path = files("kernels_profile").joinpath("efficiency", "distserve.csv")
    rows = csv.DictReader(path.read_text(encoding="utf-8").splitlines())
    return MappingProxyType(
        {(row["engine"], row["model"], int(row["tensor_parallel"])): _fit(row) for row in rows}
    )


def _fit(row: Mapping[str, str]) -> DistServeFit:
    prefill, small, large = (
        Line(*(float(row[f"{part}_{term}_ms"]) for term in "abc"))
        for part in ("prefill", "small", "large")
    )
    return DistServeFit(prefill, small, large, int(row["large_batch"]))


FITS = _fits()
"""By engine (``distserve``, ``vllm``), model and tensor parallelism."""


class DistServeStepTime:
    """Step times by DistServe's fits; a `StepTimeModel`.

    Prefill: ``a + b n + c sum(len^2)`` of whole prompts with n tokens together. Decode:
    ``a + b context + c batch``, one line below a batch of 95 and another from it on. Each of
    several pipeline stages takes an equal part, as in DistServe's simulator. Prompts and decodes in
    one batch, and parts of prompts, were not fitted.

    Args:
        model: ``opt-13b`` or ``opt-66b``.
        engine: ``distserve`` or ``vllm``.
        tensor_parallel: GPUs of one stage.
        pipeline_parallel: Stages, of which this is one.

    Raises:
        ConfigError: no fit of that engine, model or tensor parallelism.
    """

    def __init__(
        self,
        model: str,
        engine: str = "distserve",
        tensor_parallel: int = 1,
        pipeline_parallel: int = 1,
    ) -> None:
        self.fit = find_fit(model, engine, tensor_parallel)
        self.name = f"{model}, {engine}, tensor_parallel {tensor_parallel}"
        self.pipeline_parallel = pipeline_parallel
        self._ns = 1e6 / pipeline_parallel

    def step_ns(self, work: StepWork, iteration: int) -> int:
        """See `StepTimeModel.step_ns`.

        Raises:
            ProfileError: prompts and decodes in one batch, or a part of a prompt.
        """
        if work.chunks:
            return max(1, round(self._prefill_ns(work)))
        fixed, slope = self._decode_ns(work)
        return max(1, round(fixed + slope * work.context_tokens))

    def steps_ns(self, work: StepWork, n: int, first_iteration: int) -> list[int] | Ints:
        """See `StepTimeModel.steps_ns`."""
        if work.chunks:
            return [self.step_ns(work, first_iteration)] * n
        fixed, slope = self._decode_ns(work)
        first, rows = work.context_tokens, work.attending_rows
        if n < SHORT_RUN:
            return [max(1, round(fixed + slope * (first + k * rows))) for k in range(n)]
        context = first + rows * np.arange(n, dtype=np.int64)
        ns: Ints = np.maximum(np.rint(fixed + slope * context).astype(np.int64), 1)
        return ns

    def describe(self) -> StepTimeOrigin:
        """The fit in use."""
        stages = f", one of {self.pipeline_parallel} stages" if self.pipeline_parallel > 1 else ""
        return StepTimeOrigin(
            "distserve-fit",
            f"coefficients that DistServe's authors fitted to steps measured on {DEVICE} "
            f"({self.name}{stages}; LLMServe/DistServe rev 82831f1604cc)",
            "none stated by the source; it does not say which lengths were fitted either",
        )

    def _prefill_ns(self, work: StepWork) -> float:
        if work.decode_rows:
            raise ProfileError(
                f"distserve-fit: a batch with {len(work.chunks)} prefills and {work.decode_rows} "
                "decodes: mixed batches were not fitted; choose a policy that keeps them apart "
                "(vllm-v0, static) or a prefill and a decode pool"
            )
        if any(before for _, before in work.chunks):
            raise ProfileError(
                "distserve-fit: a part of a prompt: only whole prompts were fitted; choose a "
                "policy that does not cut them"
            )
        line = self.fit.prefill
        tokens, squares = work.prefill_tokens, work.prefill_tokens_sq
        return (line.a_ms + line.b_ms * tokens + line.c_ms * squares) * self._ns

    def _decode_ns(self, work: StepWork) -> tuple[float, float]:
        """Intercept, and slope over the sum of contexts, ns."""
        batch = work.decode_rows
        line = self.fit.large if batch >= self.fit.large_batch else self.fit.small
        return (line.a_ms + line.c_ms * batch) * self._ns, line.b_ms * self._ns


def find_fit(model: str, engine: str, tensor_parallel: int) -> DistServeFit:
    """The coefficients of an engine, model and tensor parallelism.

    Raises:
        ConfigError: there are none; says what there is.
    """
    engines = {key[0] for key in FITS}
    if engine not in engines:
        raise ConfigError(
            f"distserve-fit: engine: {engine} is not fitted{nearest(engine, engines)}"
        )
    models = {key[1] for key in FITS if key[0] == engine}
    if model not in models:
        choices = ", ".join(sorted(models))
        raise ConfigError(f"distserve-fit: model {model} is not fitted; there are {choices}")
    sizes = sorted(key[2] for key in FITS if key[:2] == (engine, model))
    if tensor_parallel not in sizes:
        raise ConfigError(
            f"distserve-fit: tensor_parallel {tensor_parallel} is not fitted for {model} on "
            f"{engine}; choose one of {', '.join(map(str, sizes))}"
        )
    return FITS[engine, model, tensor_parallel]
