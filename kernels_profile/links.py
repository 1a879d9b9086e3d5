"""What GPUs of a replica send each other: from a table, or by latency and bandwidth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kernels_profile.lookup import Finder, Operator
from sim.errors import ConfigError


@dataclass(frozen=True)
class Collectives:
    """How collectives are timed.

    Attributes:
        backend: Of the table's rows; None takes what engines launch inside CUDA graphs where it was
            measured (see `lookup.BACKENDS`).
        latency_us: Of each, instead of a table.
        bandwidth_bytes_per_s: Of what one GPU sends, instead of a table.
    """

    backend: str | None = None
    latency_us: float = 0.0
    bandwidth_bytes_per_s: float = 0.0

    def __post_init__(self) -> None:
        if self.latency_us and not self.bandwidth_bytes_per_s:
            raise ConfigError(
                "collectives.bandwidth_bytes_per_s: is required beside latency_us, such as 300e9"
            )
        if self.backend and self.bandwidth_bytes_per_s:
            raise ConfigError("collectives.backend: belongs to a table; give it or a bandwidth")

    def finder(self, tables: Finder, gpus: int) -> Callable[[str], Operator]:
        """Gives the operator of a collective among so many GPUs, by name."""
        if self.bandwidth_bytes_per_s:
            return lambda op: self._modelled(op, gpus)
        return lambda op: tables.collective(op, gpus, self.backend)

    def _modelled(self, op: str, gpus: int) -> Operator:
        """Latency, and what a ring sends: ``(n - 1) / n`` of the bytes, twice by an all-reduce."""
        sent = (gpus - 1) / gpus * (2 if op == "all_reduce" else 1)

        def us(message_bytes: float) -> float:
            return self.latency_us + sent * message_bytes / self.bandwidth_bytes_per_s * 1e6

        return Operator(f"collective {op} of {gpus} GPUs", None, us, source=str(self), given=True)

    def __str__(self) -> str:
        return f"{self.latency_us:g} us + {self.bandwidth_bytes_per_s / 1e9:g} GB/s"


FROM_TABLES = Collectives()
"""The tables' rows, those of CUDA graphs first."""
