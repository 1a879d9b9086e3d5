"""Fits the host's time per step: ``python -m kernels_profile.fit_host MEASURED``, after `fit`.

Two ways, and which was used is said in the source of each row of `efficiency/host.csv`: a timer
inside the engine, or what is left of a measured time per output token when the GPU's time by the
roofline is taken away. The second holds all that the roofline misses, so it is as good as that is;
it is taken only where it is the same for any tensor parallelism.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from kernels_profile.fit import OUT
from kernels_profile.host import Form, HostOverhead
from kernels_profile.measured import Floats
from kernels_profile.roofline import RooflineStepTime
from sim.specs import load_device, load_model
from sim.step_time import StepWork

_ALMOST_NONE = HostOverhead(1e-6, 0.0)
"""The roofline does without a host's time here: it is what is sought."""


def scheduler_row(measured: Path) -> dict[str, Any]:
    """vLLM's scheduler, timed by itself, where nothing waits."""
    import pandas as pd

    table = pd.read_csv(measured / "gpullm_adapter" / "scheduler_time_per_step.csv")
    rows = table[table.avg_waiting_queue == 0]
    batch, us = (
        np.asarray(rows[name], float) for name in ("avg_batch_size", "scheduler_us_per_step")
    )
    step, request = _fit(batch, us)
    error = np.abs((step + request * batch) / us - 1)
    source = "GPULLMAdapterOptimization bae36e2dad96, vLLM V1 (2025): its scheduler's own time"
    return _row("vllm-v1", step, request, error, source)


def served_row(measured: Path) -> dict[str, Any]:
    """vLLM 0.12.0 serving Qwen3-32B on H100s: time per output token by concurrency.

    Prompts of 1,024 tokens and 512 or 1,024 output tokens, so that prefills take a small part. A
    request's step is a decode step, and now and then one with another's prefill.
    """
    import pandas as pd

    table = pd.read_csv(measured / "aiconfigurator" / "serving_concurrency_sweeps.csv")
    rows = table[(table.model_path == "Qwen/Qwen3-32B") & (table.isl == 1024) & (table.osl >= 512)]
    rows = rows[rows.precision.isna()]
    gpu = np.array([_gpu_us(row) for row in rows.itertuples()])
    measured_us = np.asarray(rows.silicon_tpot_ms, float) * 1e3
    running = np.asarray(rows.concurrency, float)
    step, request = _fit(running, measured_us - gpu)
    error = np.abs((gpu + step + request * running) / measured_us - 1)
    source = (
        "time per output token of Qwen3-32B on 2, 4, 8 H100 (aiconfigurator 095f58a51c4c, "
        "vLLM 0.12.0) less the roofline"
    )
    return _row("vllm-0.12", step, request, error, source)


def idle_row(measured: Path) -> dict[str, Any]:
    """vLLM 0.6.0 with one request at a time: its step's fixed part; nothing tells the other."""
    import pandas as pd

    table = pd.read_csv(measured / "apex_plus" / "serving_cases.csv")
    rows = table[table.workload == "lmsys"]
    model, device = load_model("llama-3.1-70b"), load_device("h100-sxm")
    gpu, tpot = [], np.asarray(rows.tpot_mean_s, float) * 1e6
    for row in rows.itertuples():
        roofline = RooflineStepTime(
            model, device, tensor_parallel=int(row.layout[0]), host=_ALMOST_NONE
        )
        # Half of the mean output has been produced when a request is seen.
        context = (row.prompt_tokens_sum + row.output_tokens_sum / 2) / row.requests
        gpu.append(roofline.step_ns(StepWork((), 1, round(context)), 0) / 1e3)
    step = float(np.mean(tpot - gpu))
    source = (
        "time per output token of Llama-3.1-70B on 4 and 8 H100 near idle (apex_plus 8769096536a3, "
        "vLLM 0.6.0) less the roofline; its growth with the batch is unknown, taken as none"
    )
    error = np.abs((np.array(gpu) + step) / tpot - 1)
    return _row("vllm-0.6", step, 0.0, error, source, "constant")


def _gpu_us(row: Any) -> float:
    """GPU time for one output token of a closed loop, the share of others' prefills included."""
    roofline = RooflineStepTime(
        load_model("qwen3-32b"), load_device("h100-sxm"), tensor_parallel=int(row.tp_size),
        host=_ALMOST_NONE,
    )  # fmt: skip
    running, context = int(row.concurrency), row.isl + row.osl / 2
    decode = roofline.step_ns(StepWork((), running, round(running * context)), 0)
    others = running - 1
    chunk = [(int(row.isl), 0)]
    mixed = roofline.step_ns(StepWork(chunk, others, round(others * context)), 0)
    return (decode + (mixed - decode) * others / row.osl) / 1e3


def _fit(running: Floats, us: Floats) -> tuple[float, float]:
    """Fixed and per-request part by non-negative least squares on relative errors."""
    from scipy.optimize import nnls

    terms = np.stack([np.ones_like(running), running], axis=1)
    step, request = nnls(terms / us[:, None], np.ones_like(us))[0]
    return float(f"{step:.3g}"), float(f"{request:.3g}")


def _row(
    name: str,
    step: float,
    request: float,
    error: Floats,
    source: str,
    form: Form = "per-sequence",
) -> dict[str, Any]:
    return {
        "name": name,
        "step_us": float(f"{step:.3g}"),
        "request_us": request,
        "form": form,
        "median_error": round(float(np.median(error)), 4),
        "rows": len(error),
        "source": source,
    }


def rows(measured: Path) -> Iterator[dict[str, Any]]:
    """All presets."""
    yield scheduler_row(measured)
    yield served_row(measured)
    yield idle_row(measured)


def main(measured: Path) -> None:
    """Write `efficiency/host.csv`."""
    found = list(rows(measured))
    with (OUT / "host.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(found[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
