"""The arithmetic of the two phases: FLOPs, bytes, and which of them bounds a step.

All figures are of one of the GPUs of a replica, by data-sheet peaks: no efficiency, no host time,
no communication. So a time here is a floor, which no step on that device can beat. The roofline
model is that of Williams, Waterman and Patterson (CACM 52(4), 2009): a step takes at least FLOPs /
peak FLOP/s and at least bytes / memory bandwidth, and the ridge is the intensity at which both take
equally long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sim.architecture import ModelSpec
from sim.errors import ConfigError
from sim.experts import ExpertLoad
from sim.specs import DeviceSpec, check_tensor_parallel
from sim.step_cost import StepCost
from sim.step_time import StepWork

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

MOST_ROWS = 1 << 20
"""Prompt tokens, or decodes in a batch, up to which a crossing of the ridge is looked for."""


@dataclass(frozen=True)
class PhaseCost:
    """One step of one phase on one GPU.

    Attributes:
        rows: Tokens that it pushes through the weights.
        flops: That it computes.
        num_bytes: That it moves to and from memory: weights once, keys and values.
        attention_flops: Of the FLOPs, those of scores and values.
        kv_bytes: Of the bytes, keys and values.
        peak_flops: Of the GPU at the weights' precision, FLOP/s.
        peak_bytes: Memory bandwidth, bytes/s.
    """

    rows: int
    flops: float
    num_bytes: float
    attention_flops: float
    kv_bytes: float
    peak_flops: float
    peak_bytes: float

    @property
    def intensity(self) -> float:
        """Arithmetic intensity, FLOPs per byte."""
        return self.flops / self.num_bytes

    @property
    def ridge(self) -> float:
        """Intensity at which compute and memory take equally long, FLOPs per byte."""
        return self.peak_flops / self.peak_bytes

    @property
    def compute_s(self) -> float:
        """Time of the FLOPs at the peak, s."""
        return self.flops / self.peak_flops

    @property
    def memory_s(self) -> float:
        """Time of the bytes at the full bandwidth, s."""
        return self.num_bytes / self.peak_bytes

    @property
    def floor_s(self) -> float:
        """The longer of both: no such step is shorter on this GPU, s."""
        return max(self.compute_s, self.memory_s)

    @property
    def compute_bound(self) -> bool:
        """Whether compute takes longer than memory."""
        return self.intensity >= self.ridge


class PhaseArithmetic:
    """Costs and floors of prefills and decodes of one model on one kind of GPU.

    Args:
        model: Architecture.
        device: Data sheet.
        precision: Of the weights, a key of `sim.specs.WEIGHT_BITS`.
        kv_dtype: Of the KV cache, a key of `sim.specs.KV_BYTES`.
        tp: GPUs of the replica (tensor parallel).
        data_attention: Groups of these GPUs that attend apart.
        load: How tokens spread over experts. Default: evenly.

    Raises:
        ConfigError: GPUs that do not divide the heads, an unknown precision.
    """

    def __init__(
        self,
        model: ModelSpec,
        device: DeviceSpec,
        precision: str = "bf16",
        kv_dtype: str = "bf16",
        tp: int = 1,
        data_attention: int = 1,
        load: ExpertLoad | None = None,
    ) -> None:
        check_tensor_parallel(model, tp // data_attention)
        self.model, self.device = model, device
        self.peak_flops = device.peak_flops(precision)
        self._cost = StepCost(model, precision, kv_dtype, tp, data_attention, load)

    @property
    def ridge(self) -> float:
        """FLOPs per byte at which compute and memory take equally long."""
        return self.peak_flops / self.device.memory_bytes_per_s

    def prefill(self, prompt_tokens: int, prompts: int = 1, cached_tokens: int = 0) -> PhaseCost:
        """One step that computes whole prompts.

        Args:
            prompt_tokens: Of each prompt.
            prompts: Of the same length.
            cached_tokens: Of each prompt, found in a prefix cache: read, not computed.

        Raises:
            ConfigError: Less than one token to compute, or less than one prompt.
        """
        if prompts < 1 or cached_tokens < 0 or prompt_tokens - cached_tokens < 1:
            raise ConfigError(
                f"phases: {prompts} prompts of {prompt_tokens} tokens, {cached_tokens} of them "
                "cached: expected at least 1 prompt with 1 token to compute"
            )
        new = prompt_tokens - cached_tokens
        return self._of(StepWork([(new, cached_tokens)] * prompts), new * prompts)

    def decode(self, batch: int, context_tokens: int) -> PhaseCost:
        """One step that emits a token for each of a batch.

        Args:
            batch: Requests.
            context_tokens: That each attends to, the new one included.

        Raises:
            ConfigError: No request, or no token to attend to.
        """
        if batch < 1 or context_tokens < 1:
            raise ConfigError(
                f"phases: batch {batch} at context {context_tokens}: expected at least 1 and 1"
            )
        return self._of(StepWork((), batch, batch * context_tokens), batch)

    def _of(self, work: StepWork, rows: int) -> PhaseCost:
        flops, num_bytes = self._cost.flops_and_bytes(work)
        weights = self._cost.weights_read(rows, work.sampled_rows)
        return PhaseCost(
            rows,
            flops,
            num_bytes,
            self._cost.attention_flops(work),
            num_bytes - weights,
            self.peak_flops,
            self.device.memory_bytes_per_s,
        )

    def prompt_at_ridge(self) -> int | None:
        """Shortest prompt whose prefill alone is compute bound; None up to `MOST_ROWS`."""
        return _first(lambda n: self.prefill(n).compute_bound)

    def batch_at_ridge(self, context_tokens: int) -> int | None:
        """Smallest batch of decodes that is compute bound; None up to `MOST_ROWS`.

        Each decode brings its own keys and values, so that at long contexts no batch is.
        """
        return _first(lambda n: self.decode(n, context_tokens).compute_bound)

    def ttft_floor_s(self, prompt_tokens: int, cached_tokens: int = 0) -> float:
        """Of a request alone: the prefill of what was not found cached, s."""
        return self.prefill(prompt_tokens, 1, cached_tokens).floor_s

    def tpot_floor_s(self, prompt_tokens: int, output_tokens: int) -> float:
        """Of a request alone: the mean of its decode steps, s; NaN with one output token.

        The step that emits token k attends to ``prompt_tokens + k - 1`` tokens (k = 2, ...). A
        step's floor is the larger of two lines over the context, so that their mean is taken step
        by step.
        """
        if output_tokens < 2:
            return float("nan")
        contexts = np.arange(prompt_tokens + 1, prompt_tokens + output_tokens, dtype=np.float64)
        return float(self._decode_floors(contexts).mean())

    def ttft_floors_s(self, prompt_tokens: Ints, cached_tokens: Ints) -> Floats:
        """`ttft_floor_s` of many requests, s, shape (n,).

        FLOPs and bytes are polynomials of the tokens to compute n and those cached c, of
        terms n, n^2, n c and c, but for the weights, which depend on n alone.

        Args:
            prompt_tokens: Of each, shape (n,).
            cached_tokens: Of each, less than its prompt, shape (n,).
        """
        new = prompt_tokens - cached_tokens
        lengths, at = np.unique(new, return_inverse=True)
        weights = np.array([self._cost.weights_read(n, 1) for n in lengths.tolist()])[at]
        n, c = new.astype(np.float64), cached_tokens.astype(np.float64)
        terms = (n, n * n, n * c, c)
        flops, kv_bytes = self._of_terms()
        flop = flops[0] + sum(each * term for each, term in zip(flops[1:], terms, strict=True))
        kv = kv_bytes[0] + sum(each * term for each, term in zip(kv_bytes[1:], terms, strict=True))
        floors: Floats = np.maximum(
            flop / self.peak_flops, (weights + kv) / self.device.memory_bytes_per_s
        )
        return floors

    def _of_terms(self) -> tuple[list[float], list[float]]:
        """Coefficients of 1, n, n^2, n c and c in the FLOPs and KV bytes of a prefill."""
        where = ((1, 0), (2, 0), (3, 0), (1, 1), (2, 1))
        costs = [self.prefill(n + c, 1, c) for n, c in where]
        system = np.array([(1, n, n * n, n * c, c) for n, c in where], dtype=np.float64)
        flops = np.linalg.solve(system, [each.flops for each in costs])
        kv_bytes = np.linalg.solve(system, [each.kv_bytes for each in costs])
        return flops.tolist(), kv_bytes.tolist()

    def tpot_floors_s(self, prompt_tokens: Ints, output_tokens: Ints) -> Floats:
        """`tpot_floor_s` of many requests, s, shape (n,); NaN with one output token.

        Args:
            prompt_tokens: Of each, shape (n,).
            output_tokens: Of each, shape (n,).
        """
        if not len(prompt_tokens):
            return np.zeros(0)
        longest = int((prompt_tokens + output_tokens).max())
        each = self._decode_floors(np.arange(1, longest + 1, dtype=np.float64))
        below = np.concatenate(([0.0], np.cumsum(each)))  # of contexts up to and including i
        steps = output_tokens - 1
        sums = below[np.maximum(prompt_tokens + steps, 0)] - below[prompt_tokens]
        return np.where(steps > 0, sums / np.maximum(steps, 1), np.nan)

    def _decode_floors(self, contexts: Floats) -> Floats:
        """Floors of decodes alone at these contexts: FLOPs and bytes are straight lines."""
        one, two = self.decode(1, 1), self.decode(1, 2)
        flops = one.flops + (two.flops - one.flops) * (contexts - 1)
        num_bytes = one.num_bytes + (two.num_bytes - one.num_bytes) * (contexts - 1)
        return np.maximum(flops / self.peak_flops, num_bytes / self.device.memory_bytes_per_s)


def _first(holds: Callable[[int], bool]) -> int | None:
    """Smallest n from 1 to `MOST_ROWS` of which it holds, once it does for all that follow."""
    if not holds(MOST_ROWS):
        return None
    low, high = 0, MOST_ROWS  # does not hold at `low`, holds at `high`
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def token_rows(prompt_tokens: int, output_tokens: int, *, cache: bool) -> list[int]:
    """Rows that each pass pushes through the weights until a request has all its outputs.

    Without a KV cache every pass runs the whole text again; with one, only what is new.

    Args:
        prompt_tokens: Of the prompt, at least 1.
        output_tokens: Passes, of which the first is the prefill.
        cache: Whether keys and values are kept.

    Returns:
        One number for each output token, for 6 and 4: ``[6, 7, 8, 9]``, or ``[6, 1, 1, 1]``.
    """
    if prompt_tokens < 1 or output_tokens < 1:
        raise ConfigError(
            f"token rows of {prompt_tokens} prompt and {output_tokens} output tokens: expected at "
            "least 1 and 1"
        )
    again = [prompt_tokens + done for done in range(output_tokens)]
    return [prompt_tokens] + [1] * (output_tokens - 1) if cache else again


def attention_shares(costs: Sequence[PhaseCost]) -> list[tuple[float, float]]:
    """Of each step, attention's share of the FLOPs, and keys' and values' share of the bytes."""
    return [(cost.attention_flops / cost.flops, cost.kv_bytes / cost.num_bytes) for cost in costs]
