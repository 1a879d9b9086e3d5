"""Are the kernels right on this very card? Their checks, natively in bf16 and fp8, in seconds.

The checks are those that the interpreter runs (`kernels/checking.py`): odd shapes, against a
reference in float64. They go to several processes, as most of the time is compilation; one check
of each kernel comes first, then the next of each, so that whatever the time allows is spread.
"""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing
import os
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from types import MappingProxyType
from typing import Any

CHECKS = (
    ("kernels_profile.kernels.dense_checks", "dense_checks"),
    ("kernels_profile.kernels.dense_checks", "fp8_checks"),
    ("kernels_profile.kernels.moe_checks", "moe_checks"),
    ("kernels_profile.kernels.mla_checks", "mla_checks"),
)
"""Modules and functions that list checks."""

NEEDED_BY: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "linear": ("linear", "per_sequence", "moe", "mla_prefill"),
        "linear_fp8": ("linear",),
        "prefill": ("attention_prefill", "attention_mixed"),
        "decode": ("attention_decode",),
        "lm_head_greedy": ("per_sequence",),
        "greedy": ("per_sequence",),
        "rms_norm": ("elementwise", "overhead"),
        "qk_norm": ("elementwise",),
        "rotary": ("elementwise",),
        "silu_mul": ("elementwise", "moe"),
        "latent_write": ("elementwise",),
        "route": ("moe",),
        "grouped_linear": ("moe",),
        "weighted_sum": ("moe",),
        "expert_block": ("moe",),
        "mla_prefill": ("mla_prefill",),
        "mla_decode": ("mla_decode",),
    }
)
"""Tables that say nothing if a kernel is wrong, by the first word of its checks."""


@dataclass(frozen=True)
class Checked:
    """One check.

    Attributes:
        name: Of the check; its first word names the kernel.
        error: Norm of the difference over that of the reference.
        limit: Largest error of a right kernel.
        problem: What else went wrong, or an empty text.
    """

    name: str
    error: float = float("nan")
    limit: float = 0.0
    problem: str = ""

    @property
    def good(self) -> bool:
        """Within the limit."""
        return not self.problem and self.error <= self.limit


@dataclass(frozen=True)
class Sanity:
    """What the checks gave.

    Attributes:
        checked: Those that were run.
        wanted: All that there are.
        seconds: Wall time.
    """

    checked: tuple[Checked, ...]
    wanted: int
    seconds: float

    @property
    def bad(self) -> list[Checked]:
        """Those that failed."""
        return [check for check in self.checked if not check.good]

    def spoiled(self) -> set[str]:
        """Tables that rest on a kernel with a failed check."""
        return {table for check in self.bad for table in NEEDED_BY[kernel(check.name)]}

    def __str__(self) -> str:
        kernels = len({kernel(check.name) for check in self.checked})
        worst = max((c.error / c.limit for c in self.checked if c.good), default=0.0)
        return (
            f"{len(self.checked)} of {self.wanted} checks of {kernels} kernels in "
            f"{self.seconds:.0f} s, {len(self.bad)} failed; largest error of the others "
            f"{worst:.0%} of its limit"
        )


def kernel(name: str) -> str:
    """The kernel that a check is of."""
    return name.split()[0]


def check_kernels(
    device: str, fp8: bool, limit_s: float, processes: int = 0, wanted: Sequence[str] | None = None
) -> Sanity:
    """Run as many checks as the time allows.

    Args:
        device: ``cuda``, or ``cpu`` under the interpreter (then in fp32).
        fp8: The device has fp8 tensor cores.
        limit_s: Seconds.
        processes: At most so many; 0 for half the cores.
        wanted: Kernels to check; None for all.
    """
    begun = time.monotonic()
    names = [n for n in check_names(fp8) if wanted is None or kernel(n) in wanted]
    order = in_turns(names)
    count = min(processes or max(1, (os.cpu_count() or 2) // 2), len(order))
    checked = []
    with multiprocessing.get_context("spawn").Pool(count) as pool:
        results = pool.imap_unordered(_check, [(name, device) for name in order])
        for _ in order:
            try:
                said = results.next(timeout=max(0.0, begun + limit_s - time.monotonic()))
            except multiprocessing.TimeoutError:
                break
            checked += [said] if said else []
    return Sanity(tuple(checked), len(order), time.monotonic() - begun)


def check_names(fp8: bool) -> list[str]:
    """Names of all checks that this device can run."""
    return [name for name in _checks() if fp8 or "fp8" not in name]


def in_turns(names: Sequence[str]) -> list[str]:
    """The first check of every kernel, then the second of each, and so on."""
    by_kernel: dict[str, list[str]] = defaultdict(list)
    for name in names:
        by_kernel[kernel(name)].append(name)
    turns = chain.from_iterable(zip_longest(*by_kernel.values()))
    return [name for name in turns if name is not None]


def _checks() -> dict[str, Any]:
    found = {}
    for module, function in CHECKS:
        if importlib.util.find_spec(module) is not None:
            for check in getattr(importlib.import_module(module), function)():
                found[check.name] = check
    return found


def _check(given: tuple[str, str]) -> Checked | None:
    """In a worker: run one check; None where an earlier one left the process without a device.

    A kernel that reads where it must not spoils all that its process does after it.
    """
    import torch

    from kernels_profile.kernels.checking import Setting

    name, device = given
    if not _is_usable(device):
        return None
    setting = Setting(torch.bfloat16 if device == "cuda" else torch.float32, device)
    try:
        outputs = _checks()[name].errors(setting)
    except Exception as problem:  # whatever a kernel says is what this reports
        lines = str(problem).strip().splitlines() or [""]
        return Checked(name, problem=f"{type(problem).__name__}: {lines[0]}"[:300])
    error, limit = max(outputs, key=lambda output: output[0] / output[1])
    return Checked(name, error, limit)


def _is_usable(device: str) -> bool:
    import torch

    if device != "cuda":
        return True
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True
