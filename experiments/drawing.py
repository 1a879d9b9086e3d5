"""Figures beside the latency distributions: what one is made of, and which of them there are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from experiments.cdf_figure import XScale
from experiments.looks import Style

if TYPE_CHECKING:
    import plotly.graph_objects as go


@dataclass(frozen=True)
class Drawing:
    """A figure, and its points.

    Attributes:
        key: Name of its files.
        title: Heading on the page.
        about: What it shows, as plain text.
        header: Names of the columns of its points.
        rows: Its points.
        make: Draws it at some size, latencies on some scale.
    """

    key: str
    title: str
    about: str
    header: Sequence[str]
    rows: Iterable[Sequence[object]]
    make: Callable[[Style, XScale], go.Figure]
