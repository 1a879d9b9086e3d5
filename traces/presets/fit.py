"""Compute the preset files from recorded traces: ``python -m traces.presets.fit FOLDER``.

FOLDER holds ``traces/`` and ``measured/`` as described in their READMEs. Nothing of the data is
kept but quantiles of lengths, their rank correlation and figures of the arrivals.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import yaml

from sim.request import Ints, Trace
from traces import arrivals, load, servegen
from traces.info import rank_correlation
from traces.presets import FOLDER, PRESETS, Arrivals, Gaps, Preset, Table, draw_lengths
from traces.source import read_source

Floats = npt.NDArray[np.float64]

_TAILS = (0.0, 0.001, 0.002, 0.005, 0.995, 0.998, 0.999, 1.0)
_FINE = tuple(sorted({*_TAILS, *(round(i / 100, 2) for i in range(1, 100))}))
_COARSE = tuple(round(i / 20, 2) for i in range(21))
"""Probabilities of the tables: percentiles with finer tails; steps of 5 % for few rows."""

_GAPS = tuple(sorted({*_FINE, 0.996, 0.997, 0.9985, 0.9995, 0.9999}))
"""Finer still at the top: the longest half per cent of gaps make up most of the time."""

_CHECK = 200_000
"""Requests drawn to measure how close a preset is; the sampling error of KS is then 0.003."""


@dataclass(frozen=True)
class Recipe:
    """How one preset is made.

    Attributes:
        read: Folder to the lengths and weights of a `Sample`.
        source: Publisher, file and what part of it was used.
        licence: Of the source.
        citation: Who to cite.
        claimed_up_to: Largest percentile that the rows support.
        probabilities: Where the quantile tables have their points.
        caveat: What the preset does not have.
    """

    read: Callable[[Path], Sample]
    source: str
    licence: str
    citation: str
    caveat: str
    claimed_up_to: float = 0.999
    probabilities: tuple[float, ...] = _FINE


@dataclass(frozen=True)
class Sample:
    """Lengths of n requests with weights adding up to 1, and how they arrive."""

    prompt: Ints
    output: Ints
    prompt_weights: Floats
    output_weights: Floats
    correlation: float
    rows: int
    arrivals: Arrivals


def fit(recipe: Recipe, name: str, folder: Path) -> Preset:
    """The preset of one recipe, with its distance from the data measured."""
    sample = recipe.read(folder)
    prompt = _table(sample.prompt, sample.prompt_weights, recipe.probabilities)
    output = _table(sample.output, sample.output_weights, recipe.probabilities)
    drawn = draw_lengths(prompt, output, sample.correlation, _CHECK, np.random.default_rng(0))
    reached = rank_correlation(*drawn)
    return Preset(
        name=name,
        about=PRESETS[name],
        source=recipe.source,
        licence=recipe.licence,
        citation=recipe.citation,
        caveat=recipe.caveat,
        rows=sample.rows,
        claimed_up_to=recipe.claimed_up_to,
        prompt_tokens=prompt,
        output_tokens=output,
        rank_correlation=round(sample.correlation, 4),
        arrivals=sample.arrivals,
        closeness={
            "ks_prompt": _ks(drawn[0], sample.prompt, sample.prompt_weights),
            "ks_output": _ks(drawn[1], sample.output, sample.output_weights),
            "mean_prompt_error": _mean_error(drawn[0], sample.prompt, sample.prompt_weights),
            "mean_output_error": _mean_error(drawn[1], sample.output, sample.output_weights),
            "rank_correlation_error": round((reached or 0.0) - sample.correlation, 3),
        },
    )


def dump(preset: Preset) -> str:
    """The text of a preset file."""
    header = (
        "# Made by traces/presets/fit.py from recorded requests; do not edit by hand.\n"
        "# SYNTHETIC: requests drawn from these tables resemble the source, they are not it.\n"
    )
    return header + yaml.safe_dump(
        asdict(preset), sort_keys=False, width=100, default_flow_style=None, allow_unicode=True
    )


def main(folder: Path) -> None:
    """Write all preset files."""
    for name, recipe in RECIPES.items():
        (FOLDER / f"{name}.yaml").write_text(dump(fit(recipe, name, folder)), encoding="utf-8")


def _of_trace(trace: Trace, timing: Arrivals) -> Sample:
    """Every request that is not empty counts the same."""
    full = trace.take((trace.prompt_tokens > 0) & (trace.output_tokens > 0))
    weights = np.full(len(full), 1 / len(full))
    correlation = rank_correlation(full.prompt_tokens, full.output_tokens) or 0.0
    return Sample(
        full.prompt_tokens, full.output_tokens, weights, weights, correlation, len(full), timing
    )


def _gamma(trace: Trace) -> Arrivals:
    """Gaps as a gamma law of the measured mean and coefficient of variation."""
    gaps = np.diff(trace.arrival_ns) / 1e9
    return Arrivals(
        "gamma", round(float(1 / gaps.mean()), 4), round(float(gaps.std() / gaps.mean()), 3)
    )


def _azure_conv(folder: Path) -> Sample:
    trace = load(folder / "traces" / "azure_2023_conv_head.csv")
    return _of_trace(trace, _gamma(trace))


def _azure_code(folder: Path) -> Sample:
    """With the gaps' own quantiles: a gamma law of their CV, 13, would put 170 requests at once."""
    trace = load(folder / "traces" / "azure_2023_code.csv")
    gaps = np.quantile(np.diff(trace.arrival_ns) / 1e9, _GAPS, method="inverted_cdf")
    table = Gaps(list(_GAPS), [round(gap, 6) for gap in gaps.tolist()])
    return _of_trace(trace, replace(_gamma(trace), process="gaps", gaps=table))


def _mooncake(folder: Path) -> Sample:
    trace = load(folder / "traces" / "mooncake_conversation_head.jsonl.gz")
    return _of_trace(trace, _gamma(arrivals.arrive(trace, spread_ticks=True)))


def _agent_steps(folder: Path) -> Sample:
    trace = load(folder / "traces" / "weka_claudecode_open.jsonl.gz")
    return _of_trace(trace, Arrivals("poisson", 1.0, None))


def _summarization(folder: Path) -> Sample:
    trace = load(folder / "traces" / "lengths_arxiv_summarization_head.csv")
    return _of_trace(trace, Arrivals("poisson", 1.0, None))


def _sharegpt(folder: Path) -> Sample:
    name = "workload_sharegpt_req300_rate10_llama.csv"
    trace = load(folder / "measured" / "llmservingsim" / name)
    return _of_trace(trace, Arrivals("poisson", 10.0, None))


def _reasoning(folder: Path) -> Sample:
    """Length laws of all windows, each weighted with the requests expected while it held."""
    stem = folder / "traces" / "servegen_deepseek-r1_chunk-17"
    windows = servegen.read_windows(read_source(f"{stem}-trace.csv"))
    lengths = servegen.read_lengths(read_source(f"{stem}-dataset.json"))
    starts = np.array([entry.start_s for entry in lengths])
    expected = np.zeros(len(lengths))
    for window in windows:
        at = max(int(np.searchsorted(starts, window.start_s, side="right")) - 1, 0)
        expected[at] += window.rate_per_s * (window.end_s - window.start_s)
    share = expected / expected.sum()
    columns = []
    for side in ("prompt", "output"):
        laws = [getattr(entry, side) for entry in lengths]
        sizes = np.concatenate([law[0] for law in laws])
        weights = np.concatenate([law[1] * part for law, part in zip(laws, share, strict=True)])
        columns.append((sizes, weights))
    active = [window for window in windows if window.rate_per_s]
    rate = expected.sum() / (windows[-1].end_s - windows[0].start_s)
    # The burstiness inside a window, weighted by its requests, without the day's ups and downs.
    rates = [window.rate_per_s for window in active]
    cv = float(np.average([_cv(window) for window in active], weights=rates))
    timing = Arrivals("gamma", round(float(rate), 4), round(cv, 3))
    (prompt, prompt_weights), (output, output_weights) = columns
    rows = round(float(expected.sum()))
    return Sample(prompt, output, prompt_weights, output_weights, 0.0, rows, timing)


def _cv(window: servegen.Window) -> float:
    """Coefficient of variation of the gaps of one window."""
    if window.law == "Gamma":
        return float(window.shape**-0.5)
    first, second = math.gamma(1 + 1 / window.shape), math.gamma(1 + 2 / window.shape)
    return math.sqrt(second / first**2 - 1)


def _table(values: Ints, weights: Floats, probabilities: tuple[float, ...]) -> Table:
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    at = np.searchsorted(reached, np.array(probabilities) - 1e-9)
    quantiles = values[order][np.minimum(at, len(values) - 1)]
    return Table(list(probabilities), quantiles.tolist())


def _ks(drawn: Ints, values: Ints, weights: Floats) -> float:
    """Largest distance between the two distribution functions (Kolmogorov-Smirnov)."""
    order = np.argsort(values, kind="stable")
    points = np.unique(np.concatenate((drawn, values)))
    reached = np.concatenate(([0.0], np.cumsum(weights[order])))
    data = reached[np.searchsorted(values[order], points, side="right")]
    ours = np.searchsorted(np.sort(drawn), points, side="right") / len(drawn)
    return round(float(np.abs(data - ours).max()), 3)


def _mean_error(drawn: Ints, values: Ints, weights: Floats) -> float:
    mean = float((values * weights).sum())
    return round(float(drawn.mean()) / mean - 1, 3)


_SPLITWISE = "Patel et al., Splitwise, ISCA 2024"
_AZURE = "github.com/Azure/AzurePublicDataset, data/AzureLLMInferenceTrace_"

RECIPES: dict[str, Recipe] = {
    "azure-conv-2023": Recipe(
        _azure_conv,
        f"{_AZURE}conv.csv, rows before 18:50:00",
        "CC-BY 4.0",
        _SPLITWISE,
        "Gaps are independent: no drift of the rate over the half hour.",
    ),
    "azure-code-2023": Recipe(
        _azure_code,
        f"{_AZURE}code.csv, whole",
        "CC-BY 4.0",
        _SPLITWISE,
        "Prompts end at the service's context limit of 7,437 tokens. Gaps are"
        " independent: the source's bursts are longer than these, and its silences come in rows.",
    ),
    "mooncake-conversation": Recipe(
        _mooncake,
        "github.com/kvcache-ai/Mooncake, FAST25-release/traces/conversation_trace.jsonl, rows"
        " before 2,400,000 ms",
        "Apache-2.0",
        "Qin et al., Mooncake, FAST 2025",
        "No prefix identity: nothing to reuse in a prefix cache. Burstiness after spreading the"
        " recording's ticks of 3 s; below them it is unknown.",
    ),
    "agent-steps": Recipe(
        _agent_steps,
        "github.com/callanjfox/kv-cache-tester, traces/, 20 of 739 conversations, sub-agents"
        " included, one empty output left out",
        "Apache-2.0",
        "C. Fox, kv-cache-tester",
        "Steps are independent: no sessions, no growing prompts, no prefix identity. Tokens are"
        " tiktoken's. The recording has no joint arrivals: Poisson, 1 a second unless given.",
        claimed_up_to=0.99,
    ),
    "arxiv-summarization": Recipe(
        _summarization,
        "github.com/microsoft/vidur, data/processed_traces/"
        "arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv, first 5,000 rows",
        "MIT",
        "Agrawal et al., Vidur, MLSys 2024",
        "Rows above 4,096 tokens in all had been filtered out; prompts and outputs are bounded on"
        " their own here, so some sums are above it. The source has no arrivals: Poisson, 1 a"
        " second unless given.",
    ),
    "reasoning": Recipe(
        _reasoning,
        "github.com/alibaba/ServeGen, data/reason/deepseek-r1/, client chunk-17",
        "Apache-2.0",
        "Xiang et al., ServeGen, arXiv 2505.09999",
        "One client of 73. Prompt and output are independent, as the source has no joint law; the"
        " rate is constant where the source's changes every ten minutes.",
    ),
    "sharegpt-like": Recipe(
        _sharegpt,
        "github.com/casys-kaist/LLMServingSim, tag ispass26-artifact,"
        " workload_sharegpt_req300_rate10_llama.csv, whole",
        "MIT",
        "LLMServingSim 2.0, ISPASS 2026 artifact",
        "From 300 rows: no percentile beyond P95 is claimed; what lies beyond is spread evenly up"
        " to the largest seen. Arrivals were generated by the source: Poisson, about 10 a second.",
        claimed_up_to=0.95,
        probabilities=_COARSE,
    ),
}


if __name__ == "__main__":
    arguments: list[Any] = sys.argv[1:]
    if len(arguments) != 1:
        sys.exit("usage: python -m traces.presets.fit FOLDER")
    main(Path(arguments[0]))
