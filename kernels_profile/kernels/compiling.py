"""Compile every kernel at every configuration for sm_80, sm_90 and sm_100 without a GPU.

`python -m kernels_profile.kernels.compiling` prints a table of kernel, target, configuration, the
matrix instructions in its PTX, registers, shared memory, and what is wrong with it. Triton's own
compiler and the `ptxas` and `cuobjdump` that it bundles do the work, so that what is checked is the
machine code that a GPU would run; it is not run here.

Each kernel module lists its launches in `compile_cases()`.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from kernels_profile.kernels.launch import Launch
from sim.errors import ProfileError, nearest

PACKAGE = "kernels_profile.kernels"
MODULES = (
    "linear",
    "norm",
    "rotary",
    "prefill_attention",
    "decode_attention",
    "activation",
    "sampling",
    "moe_routing",
    "moe",
    "mla",
    "mla_prefill",
    "mla_cache",
)
"""Kernel modules, in the order of the table; each has `compile_cases() -> list[CompileCase]`."""


@dataclass(frozen=True)
class Target:
    """A GPU generation to compile for.

    Args:
        capability: Compute capability times ten (80 is sm_80, the A100).
        instruction: Its matrix instruction in PTX.
        shared_bytes: Most shared memory that one program may have. Source: CUDA C++ Programming
            Guide, table of technical specifications per compute capability (163, 227 and 227 KiB).
    """

    capability: int
    instruction: str
    shared_bytes: int

    @property
    def name(self) -> str:
        """As `ptxas` names it: sm_90."""
        return f"sm_{self.capability}"


TENSOR_MEMORY_COLUMNS = 512
"""Most tensor memory that one program may have on sm_100, in columns of 128 lanes by 32 bits.
Source: PTX ISA, tcgen05.alloc."""

TARGETS = (
    Target(80, "mma.sync", 166_912),
    Target(90, "wgmma.mma_async", 232_448),
    Target(100, "tcgen05.mma", 232_448),
)
INSTRUCTIONS = tuple(target.instruction for target in TARGETS)
"""Matrix instructions that are looked for in the PTX."""


@dataclass(frozen=True)
class CompileCase:
    """One launch that has to compile.

    Args:
        launch: What a GPU would launch, on meta tensors of a real model's shapes.
        about: The types and shape, such as "bf16 n=4096 k=4096".
        matrix: "native" where the target's own matrix instruction has to be in the PTX (wgmma on
            sm_90, tcgen05 on sm_100), "any" where an older one is good too (tiles of fewer than 64
            rows, as these instructions work on 64 or more), "" where the kernel has no `tl.dot`.
        first_capability: Oldest target that has what the kernel needs (90 for fp8).
    """

    launch: Launch
    about: str
    matrix: str = ""
    first_capability: int = 80

    @property
    def name(self) -> str:
        """Unique among the cases of a module."""
        return f"{self.launch.name} {self.about} {self.launch.config}"


@dataclass(frozen=True)
class Compiled:
    """What the compiler made of one case for one target, and what is wrong with it.

    Args:
        kernel: Name of the kernel.
        about: The types and shape.
        config: Block sizes, warps and stages.
        target: sm_80, ...
        instructions: Matrix instructions found in the PTX.
        registers: Per thread.
        shared_bytes: Shared memory per program.
        stack_bytes: Stack per thread (has to be 0).
        local_bytes: Local memory per thread, where registers spill to (has to be 0).
        problems: What is wrong, in words; empty if nothing is.
    """

    kernel: str
    about: str
    config: str
    target: str
    instructions: tuple[str, ...] = ()
    registers: int = 0
    shared_bytes: int = 0
    stack_bytes: int = 0
    local_bytes: int = 0
    problems: tuple[str, ...] = ()


def compile_case(case: CompileCase, target: Target) -> Compiled:
    """Compile one case and check it; compile errors are among the problems, not raised."""
    about = (case.launch.name, case.about, str(case.launch.config), target.name)
    try:
        built = build(case.launch, target)
    except Exception as error:  # whatever the compiler says is what this reports
        return Compiled(*about, problems=(f"does not compile: {last_line(error)}",))
    ptx = str(built.asm["ptx"])
    found = tuple(name for name in INSTRUCTIONS if name in ptx)
    shared = int(built.metadata.shared)
    if problem := too_much_memory(built.metadata, target):
        # The machine code is none that could run: cuobjdump would find nothing else wrong with it.
        return Compiled(*about, found, shared_bytes=shared, problems=(problem,))
    usage = resource_usage(built.asm["cubin"])
    memory = {key: usage[key] for key in ("STACK", "LOCAL")}
    problems = [f"{value} bytes of {key.lower()} memory" for key, value in memory.items() if value]
    if wrong := wrong_instruction(case, target, found):
        problems.append(wrong)
    return Compiled(
        *about, found, usage["REG"], shared, memory["STACK"], memory["LOCAL"], tuple(problems)
    )


def too_much_memory(metadata: Any, target: Target) -> str:
    """What does not fit in a multiprocessor's shared or tensor memory, or an empty string."""
    shared, columns = int(metadata.shared), int(getattr(metadata, "tmem_size", None) or 0)
    if shared > target.shared_bytes:
        return f"{shared} bytes of shared memory, over the limit of {target.shared_bytes}"
    if columns > TENSOR_MEMORY_COLUMNS:
        return f"{columns} columns of tensor memory, over the limit of {TENSOR_MEMORY_COLUMNS}"
    return ""


def build(launch: Launch, target: Target) -> Any:
    """Compile a launch with Triton; its result has `asm` and `metadata`."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    if os.environ.get("TRITON_INTERPRET", "0") == "1":
        raise ProfileError("TRITON_INTERPRET is set: kernels cannot be compiled in this process")
    options, signature, constants, attributes = launch.specialise(target.capability)
    source = ASTSource(launch.kernel, signature, constants, attributes)
    gpu = GPUTarget("cuda", target.capability, 32)
    return triton.compile(source, target=gpu, options=vars(options))


def wrong_instruction(case: CompileCase, target: Target, found: Sequence[str]) -> str:
    """What is wrong with the matrix instructions found, or an empty string."""
    wanted = {"native": (target.instruction,), "any": INSTRUCTIONS, "": ()}[case.matrix]
    if wanted and not set(wanted) & set(found):
        return f"no {' or '.join(wanted)} in the PTX"
    return ""


def resource_usage(cubin: bytes) -> dict[str, int]:
    """REG, STACK, SHARED and LOCAL of a compiled kernel, by the `cuobjdump` that Triton bundles."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [cuobjdump(), "-res-usage", file.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.findall(r"\b(REG|STACK|SHARED|LOCAL):(\d+)", done.stdout)
    usage = {key: int(value) for key, value in found}
    if not {"REG", "STACK", "LOCAL"} <= set(usage):
        raise ProfileError(f"cuobjdump -res-usage said {done.stdout + done.stderr!r}")
    return usage


def cuobjdump() -> str:
    """Path of the bundled `cuobjdump`."""
    import triton

    path = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    if not path.is_file():
        raise ProfileError(f"{path}: this Triton bundles no cuobjdump; needed is 3.6 or newer")
    return str(path)


def last_line(error: Exception) -> str:
    """The end of a compiler's message, where it says what went wrong."""
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1].strip() if lines else ''}"


def cases_of(module: str) -> list[CompileCase]:
    """Every launch of a kernel module that has to compile."""
    if module not in MODULES:
        raise ProfileError(f"no kernel module {module}{nearest(module, MODULES)}")
    listed: Callable[[], list[CompileCase]] = importlib.import_module(
        f"{PACKAGE}.{module}"
    ).compile_cases
    return listed()


@dataclass(frozen=True)
class Task:
    """Some cases of a module, by number, for one target: what one worker process compiles."""

    module: str
    numbers: tuple[int, ...]
    target: Target

    def run(self) -> list[Compiled]:
        """Compile them here."""
        cases = cases_of(self.module)
        return [compile_case(cases[number], self.target) for number in self.numbers]


def tasks(modules: Iterable[str], targets: Iterable[Target]) -> Iterator[Task]:
    """One task for each case and target that has what the case needs."""
    for module in modules:
        for number, case in enumerate(cases_of(module)):
            for target in targets:
                if target.capability >= case.first_capability:
                    yield Task(module, (number,), target)


def compile_all(
    modules: Sequence[str] = MODULES, targets: Sequence[Target] = TARGETS, jobs: int | None = None
) -> list[Compiled]:
    """Compile every case in parallel processes; Triton's cache makes a second time quick."""
    todo = list(tasks(modules, targets))
    jobs = min(jobs or os.cpu_count() or 1, len(todo))
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        return [row for rows in pool.map(Task.run, todo) for row in rows]


COLUMNS = ("kernel", "about", "config", "target", "instructions", "registers", "shared", "problems")


def table(rows: Iterable[Compiled]) -> str:
    """A text table, one line a case and target."""
    cells = [COLUMNS, *(cells_of(row) for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(COLUMNS))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    )


def cells_of(row: Compiled) -> tuple[str, ...]:
    """One line of the table."""
    instructions, problems = " ".join(row.instructions) or "-", "; ".join(row.problems) or "none"
    numbers = (str(row.registers), str(row.shared_bytes))
    return (row.kernel, row.about, row.config, row.target, instructions, *numbers, problems)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; the exit code is 1 if anything is wrong."""
    parser = argparse.ArgumentParser(prog=f"python -m {PACKAGE}.compiling", description=__doc__)
    parser.add_argument("modules", nargs="*", help=f"of {', '.join(MODULES)}; all by default")
    parser.add_argument("--target", type=int, choices=[t.capability for t in TARGETS])
    parser.add_argument("--jobs", type=int, help="processes (default: one per core)")
    chosen = parser.parse_args(arguments)
    targets = [t for t in TARGETS if chosen.target in (None, t.capability)]
    try:
        rows = compile_all(chosen.modules or MODULES, targets, chosen.jobs)
    except ProfileError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 - a command of its own
        return 1
    wrong = sum(bool(row.problems) for row in rows)
    print(table(rows))  # noqa: T201
    print(f"{len(rows)} compiled, {wrong} with problems")  # noqa: T201
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
