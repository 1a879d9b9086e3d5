"""What the host adds to each step: scheduling, input preparation, output handling.

Engines differ in how the two run beside each other, in three forms:

- ``max``: the longer of GPU and host. Eager engines of 2023, whose GPU starves when launches and
  Python take longer than kernels.
- ``constant``: the GPU, then the host's ``step_us``. Synchronous engines with CUDA graphs (vLLM
  0.6), which prepare the next step when this one's tokens are there.
- ``per-sequence``: the GPU, then ``step_us + request_us * sequences``. Engines that overlap most of
  the host's work (vLLM V1): what remains grows with the batch.

In each, a step that replays no CUDA graph launches its kernels one by one from Python, and the GPU
starves where that takes longer than the kernels: ``eager_layer_us`` is what a layer takes.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from types import MappingProxyType
from typing import Literal

from sim.errors import ConfigError, nearest

Form = Literal["max", "constant", "per-sequence"]
FORMS: tuple[Form, ...] = ("max", "constant", "per-sequence")


@dataclass(frozen=True)
class HostOverhead:
    """Host time of a step, ``step_us + request_us * requests``, and how it meets the GPU's.

    Attributes:
        step_us: Of every step, microseconds.
        request_us: Of every request in the step, microseconds; 0 in the form ``constant``.
        source: Where the two come from, for the summary.
        form: ``max`` takes the longer of GPU and host; ``constant`` and ``per-sequence`` add them.
        eager_layer_us: What launching one layer takes in a step without a CUDA graph, microseconds;
            the GPU's part of such a step is no shorter than that of all layers.
    """

    step_us: float
    request_us: float = field(default=0.0, metadata={"minimum": 0})
    source: str = "given in the config"
    form: Form = "per-sequence"
    eager_layer_us: float = field(default=0.0, metadata={"minimum": 0})

    def __post_init__(self) -> None:
        terms = (self.step_us, self.request_us, self.eager_layer_us)
        if not (min(terms) >= 0 and sum(terms) > 0):
            raise ConfigError(
                f"host: step_us {self.step_us}, request_us {self.request_us}: expected none "
                "below 0 and one above 0; no engine's host takes no time"
            )
        if self.form not in FORMS:
            raise ConfigError(f"host.form: {self.form} is not known{nearest(self.form, FORMS)}")
        if self.form == "constant" and self.request_us:
            raise ConfigError(
                f"host.request_us: {self.request_us:g}: the form constant does not grow with the "
                "batch; try form: per-sequence"
            )

    @property
    def added_us(self) -> tuple[float, float]:
        """What is added to the GPU's time: of every step, and of every request in it."""
        return (0.0, 0.0) if self.form == "max" else (self.step_us, self.request_us)

    @property
    def floor_us(self) -> tuple[float, float]:
        """What no step is shorter than: of every step, and of every request in it."""
        return (self.step_us, self.request_us) if self.form == "max" else (0.0, 0.0)

    def eager_us(self, layers: int) -> float:
        """What launching so many layers takes without a CUDA graph."""
        return self.eager_layer_us * layers

    def __str__(self) -> str:
        """How it acts, in a few words."""
        eager = f", {self.eager_layer_us:g} us a layer launched without a graph"
        return self._terms() + (eager if self.eager_layer_us else "")

    def _terms(self) -> str:
        if self.form == "constant":
            return f"host {self.step_us:g} us a step"
        terms = f"{self.step_us:g} us a step + {self.request_us:g} us a request"
        if self.form == "max":
            return f"no step shorter than the host's {terms}"
        return f"host {terms}"


def _presets() -> Mapping[str, HostOverhead]:
    text = files("kernels_profile").joinpath("efficiency", "host.csv").read_text(encoding="utf-8")
    return MappingProxyType(
        {
            row["name"]: HostOverhead(
                float(row["step_us"]),
                float(row["request_us"]),
                row["source"],
                row["form"],  # type: ignore[arg-type]
                float(row["eager_layer_us"]),
            )
            for row in csv.DictReader(text.splitlines())
        }
    )


HOSTS = _presets()
"""Presets by engine generation, fitted by `fit_host.py`: what was measured, and how, is in
`efficiency/README.md`."""

DEFAULT_HOST = "vllm-v1"
"""The scheduler's own time. An engine that schedules the next step while the GPU works on this one
(vLLM from 0.14 on) hides the rest; ``vllm-0.12`` is one that does not."""


def load_host(name: str) -> HostOverhead:
    """A preset by name.

    Raises:
        ConfigError: no such preset.
    """
    if name not in HOSTS:
        raise ConfigError(f"host: {name} is no preset{nearest(name, HOSTS)}")
    return HOSTS[name]
