"""One kernel launch as a value: run it, have it compiled only, or read how it specialises.

Each kernel module has functions that plan launches (`plan_linear`, ...) and functions that run them
(`linear`, ...). The checks that need no GPU compile the very launches that would run, on tensors of
torch's `meta` device, so that they cannot drift from what a GPU sees.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from sim.errors import ProfileError

TYPE_NAMES = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.int8: "i8",
    torch.bool: "i1",
}
"""Triton's name of each element type that a kernel may get."""


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

    def warm_up(self) -> None:
        """Compile for the current GPU into Triton's cache, not launch; tensors may be meta ones."""
        self.kernel.warmup(grid=self.grid, **self._all(), **self.options())

    @property
    def name(self) -> str:
        """Name of the kernel."""
        return str(self.kernel.__name__).lstrip("_").removesuffix("_kernel")

    def specialisation(self) -> tuple[dict[str, str], dict[tuple[int], Any], dict[tuple[int], Any]]:
        """Signature, constants and attributes as `triton.compiler.ASTSource` takes them.

        The rules are those of a launch: a pointer or integer divisible by 16 is marked so, an
        integer 1 and None become constants, `do_not_specialize` turns that off for integers.
        """
        signature: dict[str, str] = {}
        constants: dict[tuple[int], Any] = {}
        attributes: dict[tuple[int], Any] = {}
        given = self._all()
        for index, parameter in enumerate(self.kernel.params):
            value = given[parameter.name]
            fixed = parameter.do_not_specialize
            signature[parameter.name] = kind = type_of(value, parameter.is_constexpr, fixed)
            if kind == "constexpr":
                constants[(index,)] = value
            elif divisible(value) and not (fixed and isinstance(value, int)):
                attributes[(index,)] = [["tt.divisibility", 16]]
        return signature, constants, attributes

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


def type_of(value: Any, is_constant: bool = False, fixed: bool = False) -> str:
    """Triton's type of an argument: `*bf16`, `i32`, `fp32`, `constexpr`, ..."""
    if is_constant or value is None:
        return "constexpr"
    if isinstance(value, torch.Tensor):
        return "*" + TYPE_NAMES[value.dtype]
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, int):
        if value == 1 and not fixed:
            return "constexpr"
        return "i32" if -(2**31) <= value < 2**31 else "i64"
    if isinstance(value, float):
        return "fp32"
    raise TypeError(f"no Triton type for {value!r}")


def divisible(value: Any) -> bool:
    """Whether a pointer or integer is a multiple of 16, which lets loads be 16 bytes wide."""
    if isinstance(value, torch.Tensor):
        return value.data_ptr() % 16 == 0
    return isinstance(value, int) and not isinstance(value, bool) and value % 16 == 0


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """A tensor without numbers, for launches that are compiled but not run."""
    return torch.empty(shape, dtype=dtype, device="meta")


def need(holds: bool, message: str) -> None:
    """Raise a ProfileError with this message unless `holds`."""
    if not holds:
        raise ProfileError(message)
