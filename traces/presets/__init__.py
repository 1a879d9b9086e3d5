"""Synthetic workloads from quantile tables of recorded ones; each file says what it was made of."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import yaml

from sim.errors import TraceError, nearest
from sim.request import Ints, Trace
from traces.arrivals import arrive, to_ns
from traces.build import columns
from traces.chance import generator

FOLDER = Path(__file__).parent

PRESETS: dict[str, str] = {
    "azure-conv-2023": "conversations of an Azure service: medium prompts, medium outputs",
    "azure-code-2023": "code completion of an Azure service: long prompts, short outputs, bursts",
    "mooncake-conversation": "long conversations of Kimi: very long prompts, medium outputs",
    "agent-steps": "steps of coding agents: huge prompts, medium outputs",
    "arxiv-summarization": "summaries of papers: long prompts, short outputs",
    "reasoning": "a client of a reasoning model: medium prompts, long outputs",
    "sharegpt-like": "ShareGPT conversations: short prompts, medium outputs",
}
"""Names, and one line each for listings; the files hold the rest."""


@dataclass(frozen=True)
class Table:
    """A distribution by its quantiles: straight lines between the points of its inverse.

    Attributes:
        probabilities: (k,) from 0 to 1, increasing.
        tokens: (k,) the length that this share of requests does not exceed.
    """

    probabilities: list[float]
    tokens: list[int]

    def at(self, shares: npt.NDArray[np.float64]) -> Ints:
        """(n,) int64, lengths at `shares` (n,) between 0 and 1."""
        # The length is the smallest whole one not exceeded, so a constant stretch keeps its value.
        return np.ceil(np.interp(shares, self.probabilities, self.tokens) - 1e-9).astype(np.int64)


@dataclass(frozen=True)
class Gaps:
    """A distribution of gaps between arrivals by its quantiles, as in `Table`.

    Attributes:
        probabilities: (k,) from 0 to 1, increasing.
        seconds: (k,) the gap that this share of gaps does not exceed.
    """

    probabilities: list[float]
    seconds: list[float]

    def draw(self, n: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
        """(n,) independent gaps in units of their mean."""
        middles = (np.array(self.seconds[1:]) + np.array(self.seconds[:-1])) / 2
        mean = float(middles @ np.diff(self.probabilities))
        return np.interp(rng.random(n), self.probabilities, self.seconds) / mean


@dataclass(frozen=True)
class Arrivals:
    """How requests of a preset arrive unless told otherwise.

    Attributes:
        process: As in `traces.arrivals.arrive`, or ``gaps`` for draws from `gaps`.
        rate_per_s: Mean rate of the source.
        cv: Coefficient of variation of the source's gaps, None where it recorded none.
        gaps: Their quantiles, where no gamma law has their shape.
    """

    process: str
    rate_per_s: float
    cv: float | None
    gaps: Gaps | None = None


@dataclass(frozen=True)
class Preset:
    """A synthetic workload and what it was made of.

    Attributes:
        name: As in `PRESETS`.
        about: What it resembles.
        source: Publisher, file and the part used.
        licence: Of the source.
        citation: Whom to cite.
        caveat: What it does not have, and where it is off.
        rows: Requests it was made of.
        claimed_up_to: Largest share of requests up to which its quantiles are claimed.
        prompt_tokens: Distribution of prompt lengths.
        output_tokens: Distribution of output lengths.
        rank_correlation: Spearman's, between the two.
        arrivals: How they arrive.
        closeness: Kolmogorov-Smirnov distances, relative errors of the means and the error of the
            rank correlation, of 200,000 drawn requests against the source.
    """

    name: str
    about: str
    source: str
    licence: str
    citation: str
    caveat: str
    rows: int
    claimed_up_to: float
    prompt_tokens: Table
    output_tokens: Table
    rank_correlation: float
    arrivals: Arrivals
    closeness: dict[str, float]

    def said(self) -> str:
        """One sentence for summaries: that it is synthetic, of what, and how close it is."""
        near = self.closeness
        return (
            f"Synthetic preset {self.name}: drawn from quantiles of {self.rows:,} requests"
            f" ({self.citation}; {self.licence}), claimed up to P{100 * self.claimed_up_to:g};"
            f" distance from them (KS) {near['ks_prompt']:g} for prompts and"
            f" {near['ks_output']:g} for outputs. {self.caveat}"
        )


def load_preset(name: str) -> Preset:
    """The preset of that name (underscores may stand for hyphens).

    Raises:
        TraceError: No such preset, with the nearest name.
    """
    known = name.replace("_", "-")
    if known not in PRESETS:
        raise TraceError(f"preset: no {name!r}{nearest(known, PRESETS)}")
    fields = yaml.safe_load((FOLDER / f"{known}.yaml").read_text(encoding="utf-8"))
    fields["prompt_tokens"] = Table(**fields["prompt_tokens"])
    fields["output_tokens"] = Table(**fields["output_tokens"])
    gaps = fields["arrivals"].pop("gaps")
    fields["arrivals"] = Arrivals(**fields["arrivals"], gaps=Gaps(**gaps) if gaps else None)
    return Preset(**fields)


def synthesize(
    preset: str,
    n: int,
    rate_per_s: float | None = None,
    seed: int = 0,
    process: str | None = None,
    cv: float | None = None,
    burst_requests: int | None = None,
) -> Trace:
    """`n` requests drawn from a preset.

    The first k of n requests have the same lengths whatever n is, and another rate scales the same
    pattern of arrivals.

    Args:
        preset: Name in `PRESETS`.
        n: Requests, at least 1.
        rate_per_s: Mean rate; None for that of the preset's source.
        seed: Of the experiment; the generators are named ``lengths`` and ``arrivals``.
        process: As in `traces.arrivals.arrive`; None or ``recorded`` for the preset's own.
        cv: Coefficient of variation of the gaps for ``gamma``; None for the preset's own.
        burst_requests: For ``burst``.

    Raises:
        TraceError: No such preset.
        ValueError: An argument out of bounds.
    """
    if n < 1:
        raise ValueError(f"n: {n}; expected at least 1")
    chosen = load_preset(preset)
    prompt, output = draw_lengths(
        chosen.prompt_tokens,
        chosen.output_tokens,
        chosen.rank_correlation,
        n,
        generator(seed, "lengths"),
    )
    trace = columns(None, prompt, output, np.arange(1, n + 1, dtype=np.int64))
    trace.source = f"preset {chosen.name}"
    trace.notes = [chosen.said()]
    own = chosen.arrivals
    rate_per_s = own.rate_per_s if rate_per_s is None else rate_per_s
    if process is None or process == "recorded":
        if own.gaps is not None:
            return _with_gaps(trace, own.gaps, rate_per_s, seed)
        process = own.process
    return arrive(
        trace,
        process,
        seed=seed,
        rate_per_s=rate_per_s,
        cv=own.cv if cv is None else cv,
        burst_requests=burst_requests,
    )


def _with_gaps(trace: Trace, gaps: Gaps, rate_per_s: float, seed: int) -> Trace:
    if not rate_per_s > 0:
        raise ValueError(f"rate_per_s: {rate_per_s}; expected above 0")
    drawn = np.cumsum(gaps.draw(len(trace), generator(seed, "arrivals"))) / rate_per_s
    trace.arrival_ns = to_ns(drawn)
    trace.notes.append(
        f"Arrivals: gaps drawn from the source's quantiles, {rate_per_s:g} a second."
    )
    return trace


def draw_lengths(
    prompt: Table, output: Table, correlation: float, n: int, rng: np.random.Generator
) -> tuple[Ints, Ints]:
    """(n,) prompt and (n,) output lengths with the two distributions and a rank correlation.

    A Gaussian copula: two correlated normals, each mapped to a share of requests and that to a
    length. Their correlation is 2 sin(pi/6 rho) for a rank correlation rho (Pearson, 1907).
    """
    linked = 2 * np.sin(np.pi / 6 * correlation)
    normals = rng.standard_normal((n, 2))
    second = linked * normals[:, 0] + np.sqrt(1 - linked**2) * normals[:, 1]
    return prompt.at(_share_below(normals[:, 0])), output.at(_share_below(second))


def _share_below(normals: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """(n,) the normal distribution function; without scipy, whose import takes longer than this."""
    scaled = (normals / math.sqrt(2)).tolist()
    return 0.5 + 0.5 * np.fromiter(map(math.erf, scaled), dtype=np.float64, count=len(scaled))
