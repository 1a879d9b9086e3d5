"""Fits the operators' curves to measured tables: ``python -m kernels_profile.fit MEASURED``.

MEASURED is the folder that holds `aiconfigurator`, `llmservingsim` and `vidur`. It writes
`efficiency/<operator>.csv`, one row per device and data type, and `efficiency/checks.csv`: what the
curves make of tables that they were not fitted to. Each row states its own errors:

- ``median_error``, ``p90_error``: of ``|fitted / measured - 1|`` over the rows of its fit;
- ``heldout_error``: the median over a quarter of the shapes, left out of a second fit;
- ``others_error``: the median if the device takes the median coefficients of all other devices, as
  one without a measured table does.

Least squares on log ratios with a soft loss, so that every size counts alike and outliers little.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from kernels_profile.measured import (
    TABLES,
    Fitted,
    Floats,
    Samples,
    dense_samples,
    served_attention,
    vidur_samples,
)
from kernels_profile.operators import (
    AllReduceCurve,
    AllToAllCurve,
    Curve,
    DecodeAttentionCurve,
    ElementwiseCurve,
    GemmCurve,
    MixedAttentionCurve,
    PrefillAttentionCurve,
    SamplerCurve,
    median_curve,
)

OUT = Path(__file__).parent / "efficiency"


@dataclass(frozen=True)
class Start:
    """Where a curve's search starts and what bounds its coefficients."""

    curve: type[Curve]
    start: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


STARTS = {
    "gemm": Start(GemmCurve, (4, 0.8, 0.7, 2), (0, 0.1, 0.1, 1), (40, 1, 1, 16)),
    "decode_attention": Start(DecodeAttentionCurve, (8, 10, 0.8), (0, 0, 0.1), (40, 500, 1)),
    "prefill_attention": Start(
        PrefillAttentionCurve, (8, 0.5, 0.6, 15), (0, 0.05, 0.1, 0), (40, 1, 1, 500)
    ),
    "mixed_attention": Start(MixedAttentionCurve, (20, 0.1), (0, 0), (500, 10)),
    "all_reduce": Start(AllReduceCurve, (10, 0.5), (0, 0.01), (200, 1)),
    "all_to_all": Start(AllToAllCurve, (10, 0.5), (0, 0.01), (200, 1)),
    # Activations can stay in cache, so their rate may exceed the memory's.
    "elementwise": Start(ElementwiseCurve, (2, 0.8), (0, 0.1), (20, 10)),
    "sampler": Start(SamplerCurve, (20, 0.2), (0, 0), (200, 10)),
}


def fit(start: Start, samples: Samples) -> Curve:
    """The curve whose log ratio to the measured times is least, by soft least squares."""
    from scipy.optimize import least_squares

    def residuals(theta: Floats) -> Floats:
        return np.log(start.curve(*theta).us(*samples.inputs) / samples.us)

    found = least_squares(
        residuals,
        start.start,
        bounds=(start.low, start.high),
        x_scale=np.maximum(np.abs(start.start), 1e-3),
        loss="soft_l1",
        f_scale=0.1,
    )
    return start.curve(*(float(f"{round(value, 6):.4g}") for value in found.x))


def errors(curve: Curve, samples: Samples) -> Floats:
    """``|fitted / measured - 1|``, shape (n,)."""
    return np.abs(curve.us(*samples.inputs) / samples.us - 1)


def fit_operator(operator: str, tables: Sequence[Samples]) -> list[dict[str, object]]:
    """One row for each table: its coefficients and the errors that the module names."""
    start = STARTS[operator]
    curves = [fit(start, table) for table in tables]
    rows = []
    for table, curve in zip(tables, curves, strict=True):
        error = errors(curve, table)
        held = table.group % 4 == 0
        second = fit(start, table.take(~held))
        others = [
            other
            for other, from_table in zip(curves, tables, strict=True)
            if from_table.key == table.key and from_table.device != table.device
        ]
        alone = errors(median_curve(others), table) if others else np.array([np.nan])
        rows.append(
            {
                "device": table.device,
                "key": table.key,
                **asdict(curve),
                "median_error": round(float(np.median(error)), 4),
                "p90_error": round(float(np.quantile(error, 0.9)), 4),
                "heldout_error": round(float(np.median(errors(second, table.take(held)))), 4),
                "others_error": round(float(np.median(alone)), 4),
                "rows": len(table.us),
                "source": table.source,
            }
        )
    return rows


def checks(measured: Path, fitted: Fitted) -> list[dict[str, Any]]:
    """What the curves make of tables that they were not fitted to."""
    gemm, decode, prefill = fitted["gemm"], fitted["decode_attention"], fitted["prefill_attention"]
    pro = ("rtx-pro-6000", "bf16")
    rows = [
        _check("dense layers", dense_samples(measured, "RTXPRO6000", pro[0]), gemm[pro]),
        _check("decode attention", served_attention(measured, "RTXPRO6000", pro[0], "decode"),
               decode[pro]),
        _check("prefill attention with history",
               served_attention(measured, "RTXPRO6000", pro[0], "prefill"), prefill[pro]),
    ]  # fmt: skip
    for name, sheet in (("a100", "a100-sxm-80gb"), ("h100", "h100-sxm")):
        samples = vidur_samples(measured, name, sheet)
        rows.append(_check("dense layers", samples, gemm[sheet, "bf16"]))
    return rows


def _check(what: str, samples: Samples, curve: Curve) -> dict[str, Any]:
    ratio = curve.us(*samples.inputs) / samples.us - 1
    return _check_row(what, samples.device, ratio, samples.source)


def _check_row(what: str, device: str, ratio: Floats, source: str) -> dict[str, Any]:
    return {
        "operator": what,
        "device": device,
        "median_error": round(float(np.median(np.abs(ratio))), 4),
        "p90_error": round(float(np.quantile(np.abs(ratio), 0.9)), 4),
        "median_bias": round(float(np.median(ratio)), 4),
        "rows": len(ratio),
        "source": source,
    }


def main(measured: Path) -> None:
    """Fit every operator and write its file and the checks."""
    fitted: Fitted = {}
    for operator, tables in TABLES.items():
        rows = fit_operator(operator, list(tables(measured, fitted)))
        curve = STARTS[operator].curve
        names = [field.name for field in fields(curve)]
        fitted[operator] = {
            (str(row["device"]), str(row["key"])): curve(*(float(row[n]) for n in names))  # type: ignore[arg-type]
            for row in rows
        }
        _write(OUT / f"{operator}.csv", rows)
    _write(OUT / "checks.csv", checks(measured, fitted))


def _write(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
