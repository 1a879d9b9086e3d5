"""Fits `sustained_clock`: ``python -m experiments.validation.fit_clock [OUT]``.

One number for aiconfigurator's tables, on the two sweeps of vLLM servers together: the value with
the least mean error of TPOT on rows of tensor parallelism 2, which both have. The other rows, and
all TTFT, are only looked at.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from experiments.validation import case as cases
from experiments.validation import data
from experiments.validation.outcome import Comparison
from experiments.validation.run import PROFILES, run_case
from experiments.validation.sweep import FREE

SWEEPS = ("llama-70b-h200", "qwen3-32b-h100")
CLOCKS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75)
FITTED_ON = "tp_size 2"


def errors(name: str, clock: float, out: Path) -> list[Comparison]:
    """Comparisons of a sweep whose rows are not short of KV memory, with a clock."""
    case = cases.load(name)
    step_time = {**case.config["step_time"], "sustained_clock": clock}
    case = replace(case, config={**case.config, "step_time": step_time})
    found = run_case(case, data.measured_folder(), out / PROFILES).comparisons
    return [each for each in found if each.group == FREE]


def main(out: Path) -> None:
    """Print the errors at each clock, and the clock that is best on the rows that are fitted."""
    best: dict[float, float] = {}
    for clock in CLOCKS:
        found = {name: errors(name, clock, out) for name in SWEEPS}
        best[clock] = float(np.mean([_tpot(each, fitted=True) for each in found.values()]))
        words = "; ".join(
            f"{name} fitted {_tpot(each, fitted=True):.2%}, "
            f"held out {_tpot(each, fitted=False):.2%}, TTFT {_median_ttft(each):.1%}"
            for name, each in found.items()
        )
        print(f"{clock:4.2f}: {best[clock]:.2%} ({words})", flush=True)
    print(f"least on the rows that are fitted: {min(best, key=best.__getitem__):.2f}")


def _tpot(found: list[Comparison], *, fitted: bool) -> float:
    of_rows = [
        abs(each.error)
        for each in found
        if each.metric == "tpot_ms" and each.row.startswith(FITTED_ON) is fitted
    ]
    return float(np.mean(of_rows))


def _median_ttft(found: list[Comparison]) -> float:
    return float(np.median([abs(each.error) for each in found if each.metric == "ttft_ms"]))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("results") / "validation")
