"""How long one iteration takes: the `StepTimeModel` contract, and `LinearStepTime`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


PROBE_TOKENS = 2048
"""Prompt whose step time gives the rate of prefill (a token budget of vLLM's default size)."""


class StepWork:
    """What one iteration computes, as a step-time model sees it.

    In a run of iterations all fields stay the same but `context_tokens`, which grows by
    `attending_rows` from one iteration to the next. Runs longer than one have no prefill.

    Attributes:
        prefill_tokens: P, rows that prefills push through the linear layers (padding included).
        prefill_pairs_x2: 2Q = sum over chunks of c * (2 * before + c + 1), an exact integer.
        prefill_tokens_sq: S, the sum of c^2 over chunks.
        chunks: (tokens, tokens computed before) of each prefill chunk, as attention sees them.
        decode_rows: D, rows that decodes push through the linear layers, kept finished rows too.
        attending_rows: decodes whose attention runs; at most `decode_rows`.
        context_tokens: C, sum of the contexts of the attending rows.
        context_spread: How unequal these contexts are: rows^2 times their variance, an integer that
            stays the same as all of them grow. 0 where they are equal, and where the model does not
            ask for it (see `asks_spread`).
        sampled_rows: sequences that go through the LM head.
    """

    __slots__ = (
        "attending_rows",
        "chunks",
        "context_spread",
        "context_tokens",
        "decode_rows",
        "prefill_pairs_x2",
        "prefill_tokens",
        "prefill_tokens_sq",
        "sampled_rows",
    )

    def __init__(
        self,
        chunks: Sequence[tuple[int, int]] = (),
        decode_rows: int = 0,
        context_tokens: int = 0,
        *,
        prefill_tokens: int | None = None,
        attending_rows: int | None = None,
        sampled_rows: int | None = None,
        context_spread: int = 0,
    ) -> None:
        self.chunks = chunks
        self.decode_rows = decode_rows
        self.context_tokens = context_tokens
        self.context_spread = context_spread
        self.attending_rows = decode_rows if attending_rows is None else attending_rows
        self.sampled_rows = decode_rows + len(chunks) if sampled_rows is None else sampled_rows
        if not chunks:
            self.prefill_tokens = prefill_tokens or 0
            self.prefill_pairs_x2 = self.prefill_tokens_sq = 0
            return
        tokens = pairs_x2 = squares = 0
        for c, before in chunks:
            tokens += c
            pairs_x2 += c * (2 * before + c + 1)
            squares += c * c
        self.prefill_tokens = tokens if prefill_tokens is None else prefill_tokens
        self.prefill_pairs_x2 = pairs_x2
        self.prefill_tokens_sq = squares

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"StepWork({values})"


@runtime_checkable
class StepTimeModel(Protocol):
    """Gives the length of iterations; belongs to one replica type.

    Contract: ``steps_ns(work, n, i)[k] == step_ns(work at context + k * attending_rows, i + k)``,
    bit for bit, for every n and k; every value is an int of at least 1.
    """

    def step_ns(self, work: StepWork, iteration: int) -> int:
        """Length of one iteration, ns. `iteration`: its number on its replica (for noise)."""
        ...

    def steps_ns(self, work: StepWork, n: int, first_iteration: int) -> list[int] | Ints:
        """Lengths of `n` consecutive iterations, shape (n,), ns: a list, or an int64 array."""
        ...

    def describe(self) -> StepTimeOrigin:
        """Where the numbers come from, for every summary."""
        ...


@dataclass(frozen=True)
class StepTimeOrigin:
    """Provenance of step times, printed in every summary.

    Attributes:
        model: Name in a config, such as ``roofline``.
        origin: One sentence: data and how they were fitted.
        error: Its stated error, such as ``7-13 % median on GEMMs``, or why there is none.
    """

    model: str
    origin: str
    error: str


@runtime_checkable
class ReplicaStepTime(StepTimeModel, Protocol):
    """A step-time model that belongs to one replica, and hears which of its steps were run.

    Runs of iterations are computed ahead and may be cut; only what is noted here took place.
    """

    def note(
        self, work: StepWork, first_iteration: int, start_ns: int, ends_ns: Sequence[int]
    ) -> bool | Bools:
        """These iterations took place.

        Args:
            work: Of the first; the context of the others grows as in `StepTimeModel.steps_ns`.
            first_iteration: Its number.
            start_ns: When it began.
            ends_ns: End of each.

        Returns:
            Which of them rest on times beyond those measured: all, none, or a flag for each, (n,).
        """
        ...

    def usage(self) -> Mapping[str, Any] | None:
        """What was noted, as plain values: how often, and how far, times beyond those measured."""
        ...


@runtime_checkable
class PerReplica(Protocol):
    """A step-time model that differs from replica to replica (noise), or counts its use."""

    def for_replica(self, seed: int, replication: int, place: int) -> ReplicaStepTime:
        """The model of one replica.

        Args:
            seed: Of the experiment.
            replication: Which repetition of it.
            place: Position of the replica in its cluster.
        """
        ...


def bound(model: StepTimeModel, seed: int, place: int, replication: int = 0) -> StepTimeModel:
    """The model of one replica (see `PerReplica`); one that knows no replicas serves them all."""
    if isinstance(model, PerReplica):
        return model.for_replica(seed, replication, place)
    return model


def asks_spread(model: StepTimeModel) -> bool:
    """Whether a model wants `StepWork.context_spread`: it has an attribute of this name."""
    return bool(getattr(model, "asks_spread", False))


@runtime_checkable
class Dissectable(StepTimeModel, Protocol):
    """A model that can be asked about steps that never take place, and about its parts.

    See `sim.attribution`.
    """

    def quiet(self) -> StepTimeModel:
        """The same times, without noise, nothing refused and nothing counted."""
        ...

    def without_host(self) -> StepTimeModel | None:
        """The same steps if the host took no time; None: it takes none."""
        ...


def quiet(model: StepTimeModel) -> StepTimeModel:
    """A model for steps that never take place (see `Dissectable`); by default the model itself."""
    return model.quiet() if isinstance(model, Dissectable) else model


def without_host(model: StepTimeModel) -> StepTimeModel | None:
    """A model's steps if the host took no time; None where it takes none, or nobody knows."""
    return model.without_host() if isinstance(model, Dissectable) else None


def varies(own: StepTimeModel, shared: StepTimeModel) -> bool:
    """Whether the times of one replica may differ from those of its kind (noise).

    A model of one replica may say so by an attribute ``noisy``.
    """
    return bool(getattr(own, "noisy", own is not shared))


SHORT_RUN = 32
"""Runs shorter than this are quicker in plain Python than in numpy and back."""


def _seconds(most: float) -> float:
    """A coefficient. Below 0, steps of some size would end before they begin."""
    return field(default=0.0, metadata={"minimum": 0, "maximum": most})


@dataclass(frozen=True)
class LinearStepTime:
    """Closed-form step time for tests, teaching and DistServe-like fits.

    ``seconds = base_s + prefill_token_s * P + prefill_pair_s * Q + decode_s * D
    + context_token_s * C + prefill_token_sq_s * S``, in IEEE doubles added in this order from left
    to right, then rounded half to even to ns, at least 1. P, Q, D, C, S are those of `StepWork`.
    """

    base_s: float = _seconds(1000)
    prefill_token_s: float = _seconds(1)
    prefill_pair_s: float = _seconds(0.001)
    decode_s: float = _seconds(1000)
    context_token_s: float = _seconds(1)
    prefill_token_sq_s: float = _seconds(0.001)

    def step_ns(self, work: StepWork, iteration: int) -> int:
        """See `StepTimeModel.step_ns`."""
        seconds = (
            self._before_context(work)
            + self.context_token_s * work.context_tokens
            + self.prefill_token_sq_s * work.prefill_tokens_sq
        )
        return max(1, round(seconds * 1e9))

    def steps_ns(self, work: StepWork, n: int, first_iteration: int) -> list[int] | Ints:
        """See `StepTimeModel.steps_ns`."""
        before = self._before_context(work)
        after = self.prefill_token_sq_s * work.prefill_tokens_sq
        per_token, first, rows = self.context_token_s, work.context_tokens, work.attending_rows
        if n < SHORT_RUN:
            contexts = range(first, first + n * rows, rows) if rows else (first,) * n
            each = [round((before + per_token * c + after) * 1e9) for c in contexts]
            return each if min(each) > 0 else [max(1, length) for length in each]
        context = first + rows * np.arange(n, dtype=np.int64)
        rounded = np.rint((before + per_token * context + after) * 1e9)
        ns: Ints = np.maximum(rounded.astype(np.int64), 1)
        return ns

    def describe(self) -> StepTimeOrigin:
        return StepTimeOrigin(
            "linear", "coefficients given in the config", "none stated: closed form"
        )

    def _before_context(self, work: StepWork) -> float:
        return (
            self.base_s
            + self.prefill_token_s * work.prefill_tokens
            + self.prefill_pair_s * (work.prefill_pairs_x2 / 2)
            + self.decode_s * work.decode_rows
        )
