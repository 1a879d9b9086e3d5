"""Fits the host's time per step: ``python -m kernels_profile.fit_host MEASURED``, after `fit`.

Of the first preset a timer inside the engine says it. The others are what is left of measured times
when the GPU's time is taken away, which is summed up from measured tables of its operators
(`step_time.py`, tables imported on the fly). They hold what that sum misses as well. `efficiency/
README.md` says on which rows each was fitted, and on which it was only tested.
"""

from __future__ import annotations

import csv
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from kernels_profile.fit import OUT
from kernels_profile.graphs import GRAPHS
from kernels_profile.host import HostOverhead
from kernels_profile.importers import import_profile
from kernels_profile.measured import Floats
from kernels_profile.step_time import ProfiledStepTime
from kernels_profile.table import DataSet, find_data_sets
from sim.specs import load_device, load_model
from sim.step_time import StepWork

CLOCK = 0.85
"""`ProfiledStepTime.sustained_clock` of aiconfigurator's tables (`experiments/validation/
fit_clock.py`)."""

_ALMOST_NONE = HostOverhead(1e-6, 0.0)
"""Step times do without a host's time here: it is what is sought."""

_A100_MODELS = {
    "meta-llama/Llama-2-7b-hf": "llama-2-7b",
    "mistralai/Mistral-7B-v0.1": "mistral-7b",
}


class Tables:
    """Measured tables of vLLM's operators, imported into a folder that is gone afterwards.

    Args:
        measured: The folder of measured data.
        cache: Where to import to.
    """

    def __init__(self, measured: Path, cache: Path) -> None:
        skip = ("b200_sxm", "l40s", "rtx_pro_6000_server")
        import_profile("aiconfigurator", measured / "aiconfigurator", cache, skip=skip)
        self._cache = cache
        self._sets: dict[str, list[DataSet]] = {}
        self._models: dict[tuple[str, str, int], ProfiledStepTime] = {}

    def step_time(
        self, model: str, device: str, tp: int, *, precision: str = "bf16", graphs: str = "vllm"
    ) -> ProfiledStepTime:
        """GPU times of a model."""
        key = (model, device, tp)
        if key not in self._models:
            if device not in self._sets:
                self._sets[device] = find_data_sets([self._cache], device)
            kv_dtype = "fp8" if precision == "fp8" else "bf16"
            self._models[key] = ProfiledStepTime(
                load_model(model), load_device(device), self._sets[device], precision, kv_dtype,
                tp, _ALMOST_NONE, missing="roofline", cuda_graphs=GRAPHS[graphs],
                sustained_clock=CLOCK,
            )  # fmt: skip
        return self._models[key]


def scheduler_row(measured: Path) -> dict[str, Any]:
    """vLLM's scheduler, timed by itself, where nothing waits."""
    import pandas as pd

    table = pd.read_csv(measured / "gpullm_adapter" / "scheduler_time_per_step.csv")
    rows = table[table.avg_waiting_queue == 0]
    batch, us = (
        np.asarray(rows[name], float) for name in ("avg_batch_size", "scheduler_us_per_step")
    )
    step, request = _fit(batch, us, us)
    error = np.abs((step + request * batch) / us - 1)
    source = "GPULLMAdapterOptimization bae36e2dad96, vLLM V1 (2025): its scheduler's own time"
    return _row("vllm-v1", step, request, error, source)


def overlapped_row(measured: Path, tables: Tables, request_us: float) -> dict[str, Any]:
    """vLLM 0.10.2 with asynchronous scheduling, Llama-70B fp8 on H200: rows of 4 and 8 places.

    A request adds what the scheduler's own timer says; what is left is the step's.
    """
    rows = _sweep(measured, "meta-llama/Llama-3.1-70B")
    rows = rows[(rows.isl == 1024) & (rows.concurrency <= 8)]
    gpu = np.array(
        [
            _served_us(
                tables.step_time("llama-3.3-70b", "h200", int(row.tp_size), precision="fp8"),
                row,
                0.9,  # lengths are uniform in 0.8 to 1.0 of what is stated
            )
            for row in rows.itertuples()
        ]
    )
    us = np.asarray(rows.silicon_tpot_ms, float) * 1e3
    running = np.asarray(rows.concurrency, float)
    step = float(np.average(us - gpu - request_us * running, weights=1 / us))
    error = np.abs((gpu + step + request_us * running) / us - 1)
    source = (
        "time per output token of Llama-70B fp8 on 1 and 2 H200 (aiconfigurator 095f58a51c4c: "
        "InferenceMAX, vLLM 0.10.2 with async scheduling) less its operators; a request's part is "
        "the scheduler's own time"
    )
    return _row("vllm-v1-async", step, request_us, error, source)


def served_row(measured: Path, tables: Tables) -> dict[str, Any]:
    """vLLM 0.12.0 serving Qwen3-32B on H100s: time per output token by concurrency.

    Prompts of 1,024 tokens and 512 or 1,024 output tokens, so that prefills take a small part. A
    request's step is a decode step, and now and then one with another's prefill.
    """
    rows = _sweep(measured, "Qwen/Qwen3-32B")
    rows = rows[(rows.isl == 1024) & (rows.osl >= 512)]
    gpu = np.array(
        [
            _served_us(tables.step_time("qwen3-32b", "h100-sxm", int(row.tp_size)), row, 1.0)
            for row in rows.itertuples()
        ]
    )
    us, running = np.asarray(rows.silicon_tpot_ms, float) * 1e3, np.asarray(rows.concurrency, float)
    step, request = _fit(running, us - gpu, us)
    error = np.abs((gpu + step + request * running) / us - 1)
    source = (
        "time per output token of Qwen3-32B on 2, 4, 8 H100 (aiconfigurator 095f58a51c4c, "
        "vLLM 0.12.0) less its operators"
    )
    return _row("vllm-0.12", step, request, error, source)


def graphs_row(measured: Path, tables: Tables) -> dict[str, Any]:
    """vLLM V0 with CUDA graphs: Llama-70B near idle on H100s, and batches of 7B models on A100s.

    Of the server that is nearly idle, time to first token tells what launching a prefill's layers
    takes: it is the same on 4 and 8 GPUs.
    """
    import pandas as pd

    idle = pd.read_csv(measured / "apex_plus" / "serving_cases.csv")
    idle = idle[idle.workload == "lmsys"]
    batches = pd.read_csv(measured / "llm_inference_bench" / "offline_batch_latency.csv")
    batches = batches[batches.model.isin(_A100_MODELS) & (batches.io_length <= 256)]
    gpu = [_idle_us(tables, row) for row in idle.itertuples()]
    gpu += [_batch_us(tables, row) for row in batches.itertuples()]
    us = np.array([*idle.tpot_mean_s * 1e6, *batches.latency_s / batches.io_length * 1e6])
    running = np.array([*np.ones(len(idle)), *batches.batch], float)
    step, request = _fit(running, us - np.array(gpu), us)
    error = np.abs((np.array(gpu) + step + request * running) / us - 1)
    source = (
        "time per output token of Llama-3.1-70B on 4 and 8 H100 near idle (apex_plus 8769096536a3, "
        "vLLM 0.6.0) and of batches of Llama-2-7B and Mistral-7B on 1, 2, 4 A100 "
        "(LLM-Inference-Bench 4211f5d4e9bc, vLLM of 2024), less their operators; launches: time to "
        "first token of the former"
    )
    eager = float(np.mean([_eager_layer_us(row, step + request) for row in idle.itertuples()]))
    return _row("vllm-0.6", step, request, error, source, eager_layer_us=eager)


def eager_row(measured: Path) -> dict[str, Any]:
    """vLLM of 2023 without CUDA graphs, Llama2-70B on 8 A100: no step is shorter than its host's.

    The GPUs' part is a third of that there, so that it need not be known.
    """
    import pandas as pd

    table = pd.read_csv(measured / "splitwise" / "step_times.csv")
    rows = table[(table.tp == 8) & (table.output_tokens == 128)]
    batch, us = np.asarray(rows.batch_size, float), np.asarray(rows.token_time_ms, float) * 1e3
    step, request = _fit(batch, us, us)
    layers = load_model("llama-2-70b").layers
    error = np.abs((step + request * batch) / us - 1)
    source = (
        "time per output token of Llama2-70B on 8 A100, bound by the host (splitwise-sim "
        "8f99e7dc9b40, vLLM of 2023 without CUDA graphs)"
    )
    return _row("vllm-2023", 0.0, request, error, source, form="max", eager_layer_us=step / layers)


def _sweep(measured: Path, model: str) -> Any:
    """Rows of one model's closed loops, of those with a concurrency."""
    import pandas as pd

    table = pd.read_csv(measured / "aiconfigurator" / "serving_concurrency_sweeps.csv")
    rows = table[table.model_path == model]
    return rows[rows.precision.isna()] if model.startswith("Qwen") else rows


def _served_us(model: ProfiledStepTime, row: Any, share: float) -> float:
    """GPU time for one output token of a closed loop, the share of others' prefills included."""
    running, prompt, output = int(row.concurrency), round(row.isl * share), row.osl * share
    context, others = prompt + output / 2, running - 1
    decode = model.exact_ns(StepWork((), running, round(running * context)))
    mixed = model.exact_ns(StepWork([(prompt, 0)], others, round(others * context)))
    return (decode + (mixed - decode) * others / output) / 1e3


def _idle_us(tables: Tables, row: Any) -> float:
    """GPU time of a decode alone; half of the mean output has been produced when it is seen."""
    model = tables.step_time("llama-3.1-70b", "h100-sxm", int(row.layout[0]), graphs="vllm-v0")
    context = (row.prompt_tokens_sum + row.output_tokens_sum / 2) / row.requests
    return model.exact_ns(StepWork((), 1, round(context))) / 1e3


def _batch_us(tables: Tables, row: Any) -> float:
    """GPU time of a batch from its prefill to its end, for each output token."""
    name = _A100_MODELS[row.model]
    model = tables.step_time(name, "a100-sxm-80gb", int(row.gpus), graphs="vllm-v0")
    batch, length = int(row.batch), int(row.io_length)
    first = model.exact_ns(StepWork([(length, 0)] * batch))
    rest = model.exact_many_ns(StepWork((), batch, batch * (length + 1)), length - 1)
    return float(first + np.sum(rest)) / 1e3 / length


def _eager_layer_us(row: Any, host_us: float) -> float:
    """What is left of a nearly idle server's time to first token, for each layer.

    A request waits for half of a decode step where another one runs, which is as likely as the
    server is busy.
    """
    seconds = row.requests / row.trace_rate_rps
    waiting = row.total_latency_sum_s / seconds * row.tpot_mean_s / 2
    left_us = (row.ttft_mean_s - waiting) * 1e6 - host_us
    return float(left_us / load_model("llama-3.1-70b").layers)


def _fit(running: Floats, left_us: Floats, us: Floats) -> tuple[float, float]:
    """Fixed and per-request part of what is left, by non-negative least squares relative to all."""
    from scipy.optimize import nnls

    terms = np.stack([np.ones_like(running), running], axis=1)
    step, request = nnls(terms / us[:, None], left_us / us)[0]
    return float(step), float(request)


def _row(
    name: str,
    step: float,
    request: float,
    error: Floats,
    source: str,
    *,
    form: str = "per-sequence",
    eager_layer_us: float = 0.0,
) -> dict[str, Any]:
    step, request, eager = (float(f"{us:.3g}") for us in (step, request, eager_layer_us))
    return {
        "name": name,
        "step_us": step,
        "request_us": request,
        "form": form,
        "eager_layer_us": eager,
        "median_error": round(float(np.median(error)), 4),
        "rows": len(error),
        "source": source,
    }


def rows(measured: Path) -> Iterator[dict[str, Any]]:
    """All presets."""
    scheduler = scheduler_row(measured)
    yield scheduler
    with tempfile.TemporaryDirectory() as cache:
        tables = Tables(measured, Path(cache))
        yield overlapped_row(measured, tables, scheduler["request_us"])
        yield served_row(measured, tables)
        yield graphs_row(measured, tables)
    yield eager_row(measured)


def main(measured: Path) -> None:
    """Write `efficiency/host.csv`."""
    found = list(rows(measured))
    with (OUT / "host.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(found[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
