"""Which card this is, and which data sheet of ours describes it. Reads settings, changes none."""

from __future__ import annotations

import csv
import importlib.util
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sim.errors import ProfileError, nearest
from sim.specs import DeviceSpec, device_names, load_device

INTERPRETER = DeviceSpec(
    name="cpu-interpreter",
    title="Triton's interpreter on a CPU",
    memory_bytes=2**30,
    memory_bytes_per_s=1e7,
    bf16_flops=1e7,
    fp16_flops=1e7,
    fp8_flops=None,
    int8_ops=None,
    nvlink_bytes_per_s=None,
    pcie_bytes_per_s=1e7,
    power_w=0,
    note="not a device: rates are guesses, to plan tests of the profiler with",
)

NAMES = (
    (r"\bH200\b", "h200"),
    (r"\bH100 PCIe\b", "h100-pcie"),
    (r"\bH100\b", "h100-sxm"),
    (r"\bA100-SXM4-40GB\b", "a100-sxm-40gb"),
    (r"\bA100-SXM4-80GB\b", "a100-sxm-80gb"),
    (r"\bA10G\b", "a10g"),
    (r"\bRTX A6000\b", "a6000"),
    (r"\bB200\b", "b200"),
    (r"\bL4\b", "l4"),
    (r"\bL40S\b", "l40s"),
    (r"\bRTX 4090\b", "rtx-4090"),
    (r"\bRTX PRO 6000\b", "rtx-pro-6000"),
    (r"\bMI300X\b", "mi300x"),
)
"""The driver's names and our sheets; the memory has to agree too (there are other H100s)."""

MEMORY_TOLERANCE = 0.08
"""The driver's figure and the sheet's differ by what the driver reserves."""


@dataclass(frozen=True)
class Found:
    """A device to profile.

    Attributes:
        kind: ``cuda`` or ``cpu``; empty where nothing can be measured (a plan only).
        spec: Its data sheet; rates of 0 where we have none for this card.
        gpu: What the driver says, for `meta.yaml`.
    """

    kind: str
    spec: DeviceSpec
    gpu: dict[str, Any] = field(default_factory=dict)

    @property
    def l2_bytes(self) -> int:
        """Last-level cache; that of an H200 where nothing is known."""
        return int(self.gpu.get("l2_bytes") or 50 * 2**20)


def find(name: str, *, plan_only: bool = False) -> Found:
    """The device of that name: ``auto``, ``cpu`` (the interpreter), or a data sheet's name.

    Raises:
        ProfileError: no GPU, no torch, or another GPU than was named.
        ConfigError: no such sheet.
    """
    if name == "cpu":
        return Found("cpu", INTERPRETER, {"name": "none: Triton's interpreter"})
    named = None if name == "auto" else _sheet(name)
    if plan_only and named is not None:
        return Found("", named)
    gpu = read_gpu()
    sheet = sheet_of(gpu["name"], gpu["memory_bytes"])
    if named is not None and (sheet is None or sheet.name != named.name):
        other = f", which is {sheet.name}" if sheet else ", which no data sheet of ours describes"
        raise ProfileError(
            f"device: {named.name} was asked for, but the GPU here is {gpu['name']}{other}; "
            f"--device auto profiles it as it is"
        )
    return Found("cuda", sheet or _unknown(gpu), gpu)


def sheet_of(gpu_name: str, memory_bytes: int) -> DeviceSpec | None:
    """The data sheet of a card by the driver's name for it, or None."""
    for pattern, name in NAMES:
        if re.search(pattern, gpu_name):
            spec = load_device(name)
            off = abs(memory_bytes / spec.memory_bytes - 1)
            return spec if off <= MEMORY_TOLERANCE and "MIG" not in gpu_name else None
    return None


def read_gpu() -> dict[str, Any]:
    """Name, memory, caches, driver and clocks of the first GPU, as found.

    Raises:
        ProfileError: torch is not installed, or sees no GPU.
    """
    need("torch")
    need("triton")
    import torch

    if not torch.cuda.is_available():
        raise ProfileError(
            f"device: no GPU here that torch {torch.__version__} can use. On a machine with one, "
            "run the same command; --plan --device h200 shows what it would measure; "
            "--device cpu --models tiny walks the whole path in Triton's interpreter"
        )
    properties = torch.cuda.get_device_properties(0)
    return {
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "memory_bytes": properties.total_memory,
        "l2_bytes": getattr(properties, "L2_cache_size", 0),
        "multiprocessors": properties.multi_processor_count,
        **driver_says(),
    }


QUERIES = (
    "driver_version", "pstate", "clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.mem",
    "clocks.applications.graphics", "clocks.applications.memory", "power.limit", "ecc.mode.current",
    "temperature.gpu", "persistence_mode", "mig.mode.current",
)  # fmt: skip


def driver_says() -> dict[str, Any]:
    """Driver and clocks by `nvidia-smi --query-gpu`, which only reads.

    A driver that lacks one of the fields refuses them all: then those that all have are asked for.
    """
    command = shutil.which("nvidia-smi")
    if command is None:
        return {"clocks": "not known: no nvidia-smi here"}
    said = _queried(command, QUERIES)
    if isinstance(said, str):
        said = _queried(command, QUERIES_OF_ALL)
    if isinstance(said, str):
        return {"clocks": f"not known: nvidia-smi: {said}"}
    return {"driver": said.pop("driver_version"), "clocks": said}


QUERIES_OF_ALL = ("driver_version", "clocks.sm", "clocks.mem", "power.limit")


def _queried(command: str, fields: Sequence[str]) -> dict[str, str] | str:
    """Values by field, or what went wrong."""
    asked = [command, f"--query-gpu={','.join(fields)}", "--format=csv,noheader", "--id=0"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError) as error:
        return type(error).__name__
    rows = list(csv.reader(done.stdout.splitlines(), skipinitialspace=True))
    if not rows or len(rows[0]) != len(fields):
        return "another format"
    return dict(zip(fields, rows[0], strict=True))


def need(library: str) -> None:
    """Raises: ProfileError: the library is not installed; says how to get it."""
    if importlib.util.find_spec(library) is None:
        raise ProfileError(
            f"profiling needs {library}, which is not installed: pip install 'phasewise[kernels]'"
        )


def _sheet(name: str) -> DeviceSpec:
    if name == INTERPRETER.name:
        raise ProfileError(f"device: {name} is written by --device cpu; it is no card of its own")
    if name.lower() in ("cuda", "gpu"):
        raise ProfileError(f"device: {name}{nearest('auto', ['auto', *device_names()])}")
    return load_device(name)


def _unknown(gpu: dict[str, Any]) -> DeviceSpec:
    """A card without a data sheet: named as the driver names it, its rates guessed low.

    They only decide how long a point is expected to take, and are corrected while measuring.
    """
    slug = re.sub(r"[^a-z0-9]+", "-", str(gpu["name"]).lower()).strip("-")
    fp8 = tuple(map(int, str(gpu["capability"]).split("."))) >= (8, 9)
    return DeviceSpec(
        name=slug,
        title=str(gpu["name"]),
        memory_bytes=int(gpu["memory_bytes"]),
        memory_bytes_per_s=5e11,
        bf16_flops=5e13,
        fp16_flops=5e13,
        fp8_flops=1e14 if fp8 else None,
        int8_ops=None,
        nvlink_bytes_per_s=None,
        pcie_bytes_per_s=1.6e10,
        power_w=0,
        note="no data sheet: rates are low guesses, to plan with",
    )
