"""How figures look: a colour and dash per policy, and the sizes of paper, slide and screen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from zlib import crc32

PX_PER_MM = 96 / 25.4
"""CSS pixels per millimetre, which SVG and browsers go by."""

PX_PER_PT = 96 / 72


@dataclass(frozen=True)
class Style:
    """Sizes of one kind of figure.

    Attributes:
        name: Name of the option.
        width_mm: Width of the whole figure.
        font_pt: Size of all text.
        line_px: Width of the curves.
        legend_columns: Most labels beside each other.
        top_px: Room above the axes, for plotly's toolbar.
    """

    name: str
    width_mm: float
    font_pt: float
    line_px: float
    legend_columns: int
    top_px: float = 0

    @property
    def width_px(self) -> float:
        """Width of the whole figure in CSS pixels."""
        return self.width_mm * PX_PER_MM

    @property
    def font_px(self) -> float:
        """Size of all text in CSS pixels."""
        return self.font_pt * PX_PER_PT


STYLES = {
    "paper": Style("paper", 88, 7.5, 1.3, 2),
    "slide": Style("slide", 254, 16, 3, 3),
}
"""Styles of files: one column of a paper, a slide of ten inches."""

SCREEN = Style("screen", 230, 10.5, 2, 3, top_px=40)
"""The style of HTML pages."""

FONT = "Arimo"
"""The embedded font, and the name of its file in `fonts/`."""

FONT_STACK = "Arimo, Liberation Sans, Arial, Helvetica, sans-serif"
"""Fonts of the same widths, so that text has its place where the first is not at hand."""


@dataclass(frozen=True)
class Look:
    """How one variant is drawn.

    Attributes:
        color: ``#rrggbb``.
        dash: A key of `DASHES`.
        symbol: Marker of the percentiles.
        pattern: Of its bars, as plotly names it; empty for plain ones.
    """

    color: str
    dash: str
    symbol: str
    pattern: str = ""

    def dash_px(self, line_px: float) -> str:
        """The dash as plotly takes it, in proportion to the width of the line."""
        unit = max(line_px, 1.0)
        return ",".join(f"{unit * length:.3g}px" for length in DASHES[self.dash]) or "solid"


DASHES: dict[str, tuple[float, ...]] = {
    "solid": (),
    "dash": (4, 2),
    "dot": (1, 1.5),
    "dashdot": (4, 1.5, 1, 1.5),
    "longdash": (8, 2),
    "dashdotdot": (4, 1.5, 1, 1.5, 1, 1.5),
    "longdashdot": (8, 1.5, 1, 1.5),
    "widedash": (3, 5),
}
"""Line and gap lengths in widths of the line."""

# After Okabe and Ito (2008), told apart by the colour-blind; orange, vermilion and sky blue are
# darker here, since lines need a contrast of 3 with white (WCAG 2.2, 1.4.11), and are still apart
# for those who see no red or no green. In grey the lightness differs less than the eye needs, so
# the dash differs too.
POLICY_LOOKS = {
    "static": ("#000000", "dot"),
    "orca": ("#c08400", "dash"),
    "vllm-v0": ("#a63c00", "dashdot"),
    "vllm-v1": ("#0072b2", "solid"),
    "sarathi": ("#009e73", "longdash"),
    "disaggregated": ("#3a9bdc", "longdashdot"),
    "sglang": ("#cc79a7", "dashdotdot"),
}
"""Colour and dash of each policy in all figures."""

# After Tol (2021), muted, two of them darker: for policies of users.
_SPARE_LOOKS = (
    ("#882255", "solid"),
    ("#999933", "dash"),
    ("#332288", "dashdot"),
    ("#3d9a8b", "longdash"),
    ("#661100", "dot"),
    ("#6096c8", "longdashdot"),
)
_HUES = (
    *("#0072b2", "#a63c00", "#009e73", "#cc79a7", "#000000", "#c08400", "#3a9bdc"),
    *("#882255", "#332288", "#777777"),
)
"""For further variants of a policy: the colours of policies that are not there, and some more;
neighbours far apart in hue and lightness."""
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star", "triangle-down", "cross")
_PATTERNS = ("", "/", "\\", "x", "-", "|", "+", ".")
_DARKER = (0.35, 0.5)
"""How far hues that come again are mixed with black, and black with white."""


def looks(policies: Sequence[str]) -> list[Look]:
    """One look per variant, given its policy: the first of a policy has the policy's own.

    Further variants of a policy get hues that no policy here has, then darker ones, and other
    dashes, markers and patterns of bars than the first: eight of each; beyond that they come
    together in other ways. Every colour has a contrast of at least 3 with white.
    """
    known = POLICY_LOOKS | _spare(policies)
    more = cycle(_further([known[policy][0] for policy in policies]))
    seen: dict[str, int] = {}
    result = []
    for policy in policies:
        k = seen.get(policy, 0)
        seen[policy] = k + 1
        color, dash = known[policy]
        turn = k + k // len(_SYMBOLS)
        if k:
            color = next(more)
            others = [other for other in DASHES if other != dash]
            dash = others[(k - 1) % len(others)]
        symbol, pattern = _SYMBOLS[turn % len(_SYMBOLS)], _PATTERNS[turn % len(_PATTERNS)]
        result.append(Look(color, dash, symbol, pattern))
    return result


def _further(used: Sequence[str]) -> list[str]:
    """Colours of variants that do not have their policy's own."""
    free = [hue for hue in _HUES if hue not in used]
    return free + [_shade(hue, amount) for amount in _DARKER for hue in _HUES]


def looks_over_time(policies: Sequence[str]) -> list[Look]:
    """One look per variant for curves over time, which cross and jitter too much for dashes.

    Solid lines in the colours that `looks` gives; where a colour comes again, with its dash.
    """
    seen: set[str] = set()
    result = []
    for look in looks(policies):
        result.append(look if look.color in seen else replace(look, dash="solid"))
        seen.add(look.color)
    return result


def _spare(policies: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Looks of policies that are not ours, chosen by name, so that they do not depend on order."""
    spare: dict[str, tuple[str, str]] = {}
    for policy in sorted(set(policies) - set(POLICY_LOOKS)):
        first = crc32(policy.encode()) % len(_SPARE_LOOKS)
        turns = [_SPARE_LOOKS[(first + i) % len(_SPARE_LOOKS)] for i in range(len(_SPARE_LOOKS))]
        free = [look for look in turns if look not in spare.values()]
        spare[policy] = (free or turns)[0]
    return spare


def _shade(color: str, amount: float) -> str:
    """Mix with black, or black with white."""
    target = 255 if color == "#000000" else 0
    parts = [int(color[i : i + 2], 16) for i in (1, 3, 5)]
    mixed = [round(part + amount * (target - part)) for part in parts]
    return "#" + "".join(f"{part:02x}" for part in mixed)
