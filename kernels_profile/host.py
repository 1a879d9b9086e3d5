"""What the host adds to each step: scheduling, input preparation, output handling."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType

from sim.errors import ConfigError, nearest


@dataclass(frozen=True)
class HostOverhead:
    """Host time of a step that the GPU waits for: ``step_us + request_us * requests``.

    Attributes:
        step_us: Of every step, microseconds.
        request_us: Of every request in the step, microseconds.
        source: Where the two come from, for the summary.
    """

    step_us: float
    request_us: float
    source: str = "given in the config"

    def __post_init__(self) -> None:
        if not (self.step_us >= 0 and self.request_us >= 0 and self.step_us + self.request_us > 0):
            raise ConfigError(
                f"host: step_us {self.step_us}, request_us {self.request_us}: expected neither "
                "below 0 and one above 0; no engine's host takes no time"
            )


def _presets() -> Mapping[str, HostOverhead]:
    text = files("kernels_profile").joinpath("efficiency", "host.csv").read_text(encoding="utf-8")
    return MappingProxyType(
        {
            row["name"]: HostOverhead(
                float(row["step_us"]), float(row["request_us"]), row["source"]
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
