"""ServeGen clients (Xiang et al., arXiv 2505.09999; Apache-2.0): rates and lengths to draw from.

A pair of files: ``...-trace.csv`` without a header (window start in s, requests a second,
inter-arrival CV, distribution, shape, scale) and ``...-dataset.json`` beside it (window start to
probabilities of lengths).

Requests are drawn: gaps of the window's distribution and shape, their mean set by the window's rate
(the fitted scale is not used: it counts gaps within a window only, so its mean is off the rate
where a window holds few requests); prompt and output lengths independently, as the files hold no
joint law.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sim.errors import TraceError
from sim.request import Trace
from traces import values
from traces.build import assemble, columns
from traces.chance import generator
from traces.rows import CsvRows
from traces.source import Source, read_source

NAMES = frozenset({"start_s", "rate_per_s", "cv", "distribution", "shape", "scale"})
_HEADER = ("start_s", "rate_per_s", "cv", "distribution", "shape", "scale")
_LAWS = ("Gamma", "Weibull", "Exponential")
_ENTRY = re.compile(r"\s*(\d{1,9})\s*:\s*([0-9.eE+-]+)\s*")

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Window:
    """A stretch of time with one law of arrivals: seconds, requests a second, shape of the gaps."""

    start_s: float
    end_s: float
    rate_per_s: float
    law: str
    shape: float


@dataclass(frozen=True)
class Lengths:
    """Probabilities of lengths from `start_s` on; sizes and weights have shape (k,)."""

    start_s: float
    prompt: tuple[npt.NDArray[np.int64], Floats]
    output: tuple[npt.NDArray[np.int64], Floats]


def is_window(fields: Sequence[str]) -> bool:
    """Whether a first line without names is one of a ServeGen rate file."""
    if len(fields) != len(_HEADER) or (fields[3] and fields[3] not in _LAWS):
        return False
    return all(re.fullmatch(r"[0-9.eE+-]+", fields[i]) for i in (0, 1, 2, 4, 5))


def recognise(names: frozenset[str]) -> bool:
    """Whether `is_window` said so: the file itself names no columns."""
    return names == NAMES


def load(source: Source, renamed: dict[str, str], seed: int = 0) -> Trace:
    """Requests of one client over the time that its rate file covers.

    Args:
        source: The rate file; the lengths are read from the ``-dataset.json`` beside it.
        renamed: Nothing can be renamed here; must be empty.
        seed: Seed of the draws.

    Raises:
        TraceError: A value that cannot be read, or no file of lengths beside this one.
    """
    if renamed:
        source.refuse(None, "column map", ", ".join(renamed), "none for ServeGen pairs")
    windows = read_windows(source)
    lengths = read_lengths(read_source(_lengths_path(source)))
    times = _arrivals(windows, generator(seed, "arrivals"))
    prompt, output = _draw(lengths, times, generator(seed, "lengths"))
    arrival_ns = np.rint(times * 1e9).astype(np.int64)
    rows = np.arange(1, len(times) + 1, dtype=np.int64)
    source.notes.append(
        f"Synthetic: drawn with seed {seed} from rates of {len(windows):,} windows and lengths of"
        f" {len(lengths):,}; prompt and output lengths are independent."
    )
    if not len(times):
        raise TraceError(f"{source.name}: all rates are 0; expected a window with requests")
    return assemble(source, columns(arrival_ns, prompt, output, rows))


def read_windows(source: Source) -> list[Window]:
    """The windows of a rate file, in order."""
    rows = CsvRows(source, _HEADER)
    numbers = {
        name: _floats(rows, name) for name in ("start_s", "rate_per_s", "cv", "shape", "scale")
    }
    starts, laws = numbers["start_s"], rows.texts("distribution")
    lengths = np.diff(starts, append=2 * starts[-1] - starts[-2] if len(starts) > 1 else 600.0)
    for i in np.flatnonzero(lengths <= 0).tolist():
        source.refuse(int(rows.lines[i]), "window start", starts[i], "starts that increase")
    windows = []
    for i, law in enumerate(laws.tolist()):
        rate, shape = numbers["rate_per_s"][i], numbers["shape"][i]
        if rate and (law not in _LAWS or not shape > 0):
            found = f"{law} with shape {shape:g}"
            source.refuse(
                int(rows.lines[i]),
                "distribution",
                found,
                f"{', '.join(_LAWS)} with a shape above 0",
            )
        windows.append(Window(starts[i], starts[i] + lengths[i], rate, law or "", shape))
    return windows


def read_lengths(source: Source) -> list[Lengths]:
    """The length distributions of a dataset file, in order of window start."""
    try:
        document = json.loads(source.data)
    except json.JSONDecodeError as error:
        raise TraceError(f"{source.name}:{error.lineno}: not JSON ({error.msg})") from None
    if not isinstance(document, dict) or not document:
        source.refuse(None, "document", document, "an object of window starts")
    found = []
    for start, entry in document.items():
        if not isinstance(entry, dict) or not start.replace(".", "", 1).isdigit():
            source.refuse(None, f"window {start}", entry, "a start in s and an object")
        pair = [_weights(source, start, key, entry) for key in ("input_tokens", "output_tokens")]
        found.append(Lengths(float(start), pair[0], pair[1]))
    return sorted(found, key=lambda lengths: lengths.start_s)


def _lengths_path(source: Source) -> Path:
    path = source.path or Path(source.name)
    name = path.name.replace("-trace.csv", "-dataset.json")
    if name == path.name or not path.with_name(name).exists():
        raise TraceError(
            f"{source.name}: lengths: no {name if name != path.name else '-dataset.json'} beside"
            " it; expected the pair NAME-trace.csv and NAME-dataset.json"
        )
    return path.with_name(name)


def _floats(rows: CsvRows, name: str) -> Floats:
    result = np.empty(len(rows))
    for i, raw in enumerate(rows.raw(name, range(len(rows)))):
        try:
            result[i] = float(values.number(raw))
        except (values.BadValueError, OverflowError):
            rows.source.refuse(int(rows.lines[i]), name, raw, "a number from 0 up")
        if not 0 <= result[i] < 1e12:
            rows.source.refuse(int(rows.lines[i]), name, raw, "a number from 0 up")
    return result


def _weights(
    source: Source, start: str, key: str, entry: dict[str, object]
) -> tuple[npt.NDArray[np.int64], Floats]:
    """Lengths and their probabilities from text such as ``{3003: 0.0001, 12: 0.2}``."""
    text = entry.get(key)
    matches = (
        [_ENTRY.fullmatch(part) for part in text.strip().strip("{}").split(",")]
        if isinstance(text, str)
        else [None]
    )
    if not all(matches):
        source.refuse(None, f"window {start}: {key}", text, "{length: probability, ...}")
    sizes = np.array([int(match[1]) for match in matches if match], dtype=np.int64)
    weights = np.array([float(match[2]) for match in matches if match])
    if not (weights >= 0).all() or not math.isclose(weights.sum(), 1, rel_tol=1e-3):
        source.refuse(
            None, f"window {start}: {key}", f"sum {weights.sum():g}", "probabilities adding up to 1"
        )
    return sizes, weights / weights.sum()


def _arrivals(windows: Sequence[Window], rng: np.random.Generator) -> Floats:
    """Arrival times, s: gaps of mean 1 in units of expected requests, so that rates hold.

    A gap that reaches over the end of a window goes on in the next, at that one's rate.
    """
    parts = []
    left = 0.0
    for window in windows:
        expected = window.rate_per_s * (window.end_s - window.start_s)
        if not expected:
            continue
        marks = [np.array([left])]
        while marks[-1][-1] < expected:
            gaps = _gaps(window, rng, int(expected) + 16)
            marks.append(marks[-1][-1] + np.cumsum(gaps))
        reached = np.concatenate(marks)
        inside = reached[: int(np.searchsorted(reached, expected))]
        parts.append(window.start_s + inside / window.rate_per_s)
        left = float(reached[len(inside)] - expected)
    return np.concatenate(parts) if parts else np.empty(0)


def _gaps(window: Window, rng: np.random.Generator, n: int) -> Floats:
    if window.law == "Gamma":
        return rng.standard_gamma(window.shape, n) / window.shape
    if window.law == "Weibull":
        return rng.weibull(window.shape, n) / math.gamma(1 + 1 / window.shape)
    return rng.standard_exponential(n)


def _draw(
    lengths: Sequence[Lengths], times: Floats, rng: np.random.Generator
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Prompt and output lengths, (n,) each, of the distribution in force at each time."""
    prompt = np.empty(len(times), dtype=np.int64)
    output = np.empty(len(times), dtype=np.int64)
    starts = np.array([entry.start_s for entry in lengths])
    # The last window that began; before the first one, the first.
    which = np.maximum(np.searchsorted(starts, times, side="right") - 1, 0)
    for i, entry in enumerate(lengths):
        chosen = np.flatnonzero(which == i)
        for column, (sizes, weights) in ((prompt, entry.prompt), (output, entry.output)):
            column[chosen] = rng.choice(sizes, size=len(chosen), p=weights)
    return prompt, output
