"""Run Triton's compiler in a process of its own: one that interprets cannot compile."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def run_native(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`python *arguments` in the checkout, without TRITON_INTERPRET."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = str(ROOT)
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
