"""One kernel launch as a value: run it, have it compiled only, or read how it specialises.

Each kernel module has functions that plan launches (`plan_linear`, ...) and functions that run them
(`linear`, ...). The checks that need no GPU compile the very launches that would run, on tensors of
torch's `meta` device, so that they cannot drift from what a GPU sees.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, cast

import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.jit import create_function_from_signature

from sim.errors import ProfileError


@dataclass(frozen=True)
class Config:
    """What a kernel is compiled for; subclasses add block sizes, passed as constants in upper case.

    Args:
        num_warps: Warps (of 32 threads) per program.
        num_stages: Depth of the software pipeline of a loop's loads.
    """

    num_warps: int
    num_stages: int

    def constants(self) -> dict[str, int]:
        """Block sizes by the kernel's parameter names (`block_m` is `BLOCK_M`)."""
        own = asdict(self)
        return {k.upper(): v for k, v in own.items() if k not in ("num_warps", "num_stages")}

    def __str__(self) -> str:
        blocks = " ".join(f"{k.lower()}={v}" for k, v in self.constants().items())
        return f"{blocks} warps={self.num_warps} stages={self.num_stages}".strip()


@dataclass(frozen=True)
class Launch:
    """A kernel with its grid and arguments.

    Args:
        kernel: What `triton.jit` made.
        grid: Programs along each axis.
        arguments: Run-time arguments and constants by name, block sizes excepted.
        config: Block sizes, warps and stages.
    """

    kernel: Any
    grid: tuple[int, ...]
    arguments: Mapping[str, Any]
    config: Config

    def run(self) -> None:
        """Launch on the current stream (or in the interpreter); capturable in a CUDA graph."""
        self.kernel[self.grid](**self._all(), **self.options())

    def warm_up(self) -> Any:
        """Compile for the current GPU into Triton's cache, not launch; tensors may be meta ones.

        Returns:
            Triton's compiled kernel.
        """
        return self.kernel.warmup(grid=self.grid, **self._all(), **self.options())

    @property
    def name(self) -> str:
        """Name of the kernel."""
        return str(self.kernel.__name__).lstrip("_").removesuffix("_kernel")

    def specialisation(self) -> tuple[dict[str, str], dict[Any, Any], dict[Any, Any]]:
        """Types by argument, constants and alignments by place: what tells variants apart."""
        _, signature, constants, attributes = self.specialise(80)
        return signature, constants, {place: has for place, has in attributes.items() if has}

    def specialise(self, capability: int) -> tuple[Any, dict[str, str], Any, Any]:
        """Options, signature, constants and attributes as a launch on a GPU would have them.

        Triton's own launcher is asked, so that what is compiled ahead is what a launch finds in the
        cache. Its functions are private, and the same in Triton 3.6 and 3.9.

        Args:
            capability: Compute capability times ten.
        """
        backend = make_backend(GPUTarget("cuda", capability, 32))
        bind = create_function_from_signature(self.kernel.signature, self.kernel.params, backend)
        given = {**self._all(), **self.options()}
        bound, special, options = bind(**given)
        packed = self.kernel._pack_args(backend, given, bound, special, options)
        return cast("tuple[Any, dict[str, str], Any, Any]", packed)

    def _all(self) -> dict[str, Any]:
        return {**self.arguments, **self.config.constants()}

    def options(self) -> dict[str, Any]:
        """Compiler options, the same for a launch and for a compile check."""
        config = self.config
        # Said outright, as Triton 3.10 changes the default.
        return {
            "num_warps": config.num_warps,
            "num_stages": config.num_stages,
            "enable_fp_fusion": True,
        }


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """A tensor without numbers, for launches that are compiled but not run."""
    return torch.empty(shape, dtype=dtype, device="meta")


def need(holds: bool, message: str) -> None:
    """Raise a ProfileError with this message unless `holds`."""
    if not holds:
        raise ProfileError(message)
