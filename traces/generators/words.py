"""What all generators share: how lengths are drawn, and the order of the parts of a prompt."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from sim.request import Ints, Trace
from traces.build import columns
from traces.chance import generator

Order = Literal["stable-first", "variable-first"]
ORDERS: tuple[str, ...] = get_args(Order)
"""Which part of a prompt comes first: what is the same in others, or what only this one has."""

CHOICE = "a choice of this preset, not a measurement"


@dataclasses.dataclass(frozen=True)
class Generator(ABC):
    """Makes requests; see `make`.

    Attributes:
        request_class: Class of the requests, or None.
        slo: Suggested targets of that class, keys as in the config.
        slo_source: Where they come from.
        sessions: ``none``; ``closed``, turns follow each other's ends; ``typed``, the requests of a
            session come at times of their own, whatever becomes of those before.
    """

    request_class: ClassVar[str | None] = None
    slo: ClassVar[Mapping[str, float]] = {}
    slo_source: ClassVar[str] = ""
    sessions: ClassVar[Literal["none", "closed", "typed"]] = "none"

    @abstractmethod
    def make(self, n: int, seed: int, order: str = "stable-first") -> Trace:
        """`n` requests without arrival times. The first k are the same whatever n is.

        Args:
            n: Requests, at least 1.
            seed: Of the experiment; draws come from generators named after what is drawn.
            order: Of the parts of a prompt, one of `ORDERS`.
        """


def option(default: Any, source: str, **limits: float) -> Any:
    """A field with its default, where that comes from, and its bounds."""
    return dataclasses.field(default=default, metadata={"source": source, **limits})


def sources_of(made: type[Generator] | Generator) -> dict[str, str]:
    """Option to where its default comes from."""
    return {field.name: field.metadata.get("source", "") for field in dataclasses.fields(made)}


def draw_tokens(mean: int, cv: float, n: int, seed: int, purpose: str, least: int = 1) -> Ints:
    """(n,) lengths: all `mean` if `cv` is 0, else lognormal with that mean and CV, rounded.

    Args:
        mean: Before rounding.
        cv: Coefficient of variation.
        n: How many.
        seed: Of the experiment.
        purpose: Name of the generator that is drawn from.
        least: Shorter ones are as long as this.
    """
    return np.maximum(least, np.rint(draw(float(mean), cv, n, seed, purpose)).astype(np.int64))


def draw(mean: float, cv: float, n: int, seed: int, purpose: str) -> np.ndarray[Any, Any]:
    """(n,) float64 as in `draw_tokens`, not rounded."""
    if not cv or not mean:
        return np.full(n, float(mean))
    variance = math.log1p(cv**2)
    normal = generator(seed, purpose).standard_normal(n)
    return mean * np.exp(normal * math.sqrt(variance) - variance / 2)


def trace_of(name: str, made: Generator, prompt: Ints, output: Ints) -> Trace:
    """Columns of generated requests, with their class and a note on what they are."""
    n = len(prompt)
    trace = columns(None, prompt, output, np.arange(1, n + 1, dtype=np.int64))
    trace.source = f"preset {name}"
    if made.request_class is not None:
        trace.request_class = np.full(n, made.request_class, dtype=object)
    options = ", ".join(f"{key} {value}" for key, value in dataclasses.asdict(made).items())
    trace.notes = [f"Synthetic preset {name}: {options}."]
    return trace
