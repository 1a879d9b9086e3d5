"""CUDA graphs: batches are padded up to the next captured size; beyond the largest run eagerly."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from sim.errors import ConfigError


@dataclass(frozen=True)
class CudaGraphs:
    """Which numbers of rows are captured.

    Attributes:
        sizes: Captured numbers of rows, ascending; none for an eager engine.
        prefills: Steps with prefill chunks are padded too (piecewise graphs, attention outside of
            them), by their rows in all.
        name: As in a config.
    """

    sizes: tuple[int, ...] = ()
    prefills: bool = False
    name: str = "none"

    def __post_init__(self) -> None:
        if list(self.sizes) != sorted(set(self.sizes)) or any(size < 1 for size in self.sizes):
            raise ConfigError(
                f"cuda_graphs: {list(self.sizes)}: expected ascending sizes of at least 1"
            )

    def eager(self, rows: int, *, prefill: bool) -> bool:
        """Whether a step of so many rows replays no graph."""
        sizes = self.sizes
        return not sizes or rows > sizes[-1] or (prefill and not self.prefills)

    def padded(self, rows: int, *, prefill: bool) -> int:
        """Rows that the linear and element-wise layers compute."""
        if self.eager(rows, prefill=prefill):
            return rows
        return self.sizes[bisect_left(self.sizes, rows)]

    def __str__(self) -> str:
        if not self.sizes:
            return "no CUDA graphs"
        which = "all steps" if self.prefills else "decode steps"
        return f"CUDA graphs of {which} up to {self.sizes[-1]} rows ({self.name})"


_UP_TO_256 = (1, 2, 4, *range(8, 257, 8))

GRAPHS: Mapping[str, CudaGraphs] = MappingProxyType(
    {
        "none": CudaGraphs(),
        "vllm": CudaGraphs((*_UP_TO_256, *range(272, 513, 16)), True, "vllm"),
        "vllm-v0": CudaGraphs(_UP_TO_256, False, "vllm-v0"),
    }
)
"""By name. ``vllm``: V1, `vllm/config/compilation.py` (cudagraph_capture_sizes) and the padding of
`vllm/v1/worker/gpu_model_runner.py`. ``vllm-v0``: `vllm/worker/model_runner.py` of 0.4 to 0.7 with
its default of 256 sequences (`max_seq_len_to_capture` is not modelled)."""


def graphs_of(sizes: Sequence[int]) -> CudaGraphs:
    """Graphs of decode steps with these numbers of rows."""
    return CudaGraphs(tuple(sizes), False, "given in the config")
