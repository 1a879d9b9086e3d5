"""One page on all figures: what the papers print, what came out, and why the two differ."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.figures import section, write_sections
from experiments.looks import SCREEN
from experiments.papers.block import Paper
from experiments.papers.claims import Compared, Judged, compare, judge
from experiments.papers.evaluate import Evaluated
from experiments.papers.figure import drawings

HEADING = "Figures of serving papers, redone"

ABOUT = (
    "Each figure is a config of phasewise with synthetic requests of the lengths that the paper "
    "prints, on data sheets of its GPUs and models; step times come from a roofline with fitted "
    "efficiencies. No number was fitted to the papers' results; but the host time of vLLM in 2023, "
    "the step times that DistServe fitted to both engines, and what baselines of the papers did (a "
    "buddy allocator, prompts beside decodes, 16 seats, 20 chats), each with its source, went in "
    "after a first look at results without them, and so did the sizes of runs and the number of "
    "replications. Orderings and ratios are to be compared, not seconds.",
    "Papers' numbers were not read in the PDFs. Each table says where: in the paper's own text, as "
    "conversions of it in public repositories have it, or, where these keep a table or a figure as "
    "an image, in what others write of it.",
    "An ordering is reproduced if every variant is better than the next one beyond noise: paired "
    "95 % intervals over runs with different seeds, or brackets of a search that do not overlap. "
    "It is not separable if noise, or the end of the x axis, leaves it open.",
)

_HTML = {"reproduced": "#009e73", "not separable": "#e69f00", "not reproduced": "#d55e00"}


@dataclass(frozen=True)
class Told:
    """What there is to say of one figure.

    Attributes:
        evaluated: What was run.
        numbers: The paper's and ours.
        claims: Orderings, judged.
    """

    evaluated: Evaluated
    numbers: tuple[Compared, ...]
    claims: tuple[Judged, ...]

    @property
    def paper(self) -> Paper:
        """What the paper says."""
        return self.evaluated.redone.paper


def tell(evaluated: Evaluated) -> Told:
    """Numbers and claims of one figure."""
    paper = evaluated.redone.paper
    return Told(
        evaluated,
        tuple(compare(evaluated, number) for number in paper.numbers),
        tuple(judge(evaluated, claim) for claim in paper.claims),
    )


def counts(told: Sequence[Told]) -> str:
    """How many orderings came out, in one sentence."""
    outcomes = [each.outcome for one in told for each in one.claims]
    checked = len(outcomes) - outcomes.count("missing")
    return (
        f"Of {checked} orderings {outcomes.count('reproduced')} are reproduced, "
        f"{outcomes.count('not separable')} not separable and "
        f"{outcomes.count('not reproduced')} not reproduced; {outcomes.count('missing')} more "
        "cannot be simulated."
    )


# --- tables, as rows of plain text

Table = tuple[Sequence[str], Sequence[Sequence[str]]]


def claims_table(told: Told) -> Table:
    """One row an ordering."""
    rows = [
        (judged.claim.says, judged.claim.where, judged.outcome, judged.ours, judged.reason)
        for judged in told.claims
    ]
    return ("The paper claims", "Where", "Here", "Ours", "Why"), rows


_READ = {"text": "its text", "secondary": "others on it", "none": "not printed"}


def numbers_table(told: Told) -> Table:
    """One row a number."""
    rows = [
        (
            each.number.says,
            each.number.where,
            " ".join(part for part in (each.number.paper, each.number.unit) if part),
            _READ[each.number.read],
            each.ours,
        )
        for each in told.numbers
    ]
    return ("Number", "Where", "Paper", "Read in", "Ours"), rows


def settings_table(told: Told) -> Table:
    """One row a setting."""
    return ("Setting", "Paper", "Here"), [(f.what, f.paper, f.ours) for f in told.paper.settings]


def summary_table(told: Sequence[Told]) -> Table:
    """One row a figure."""
    rows = []
    for one in told:
        outcomes = [each.outcome for each in one.claims]
        rows.append(
            (
                one.paper.of,
                one.paper.figure,
                *(str(outcomes.count(name)) for name in ("reproduced", "not separable")),
                *(str(outcomes.count(name)) for name in ("not reproduced", "missing")),
                one.evaluated.redone.name,
            )
        )
    return (
        "Paper",
        "Figure",
        "Reproduced",
        "Not separable",
        "Not reproduced",
        "Missing",
        "Config",
    ), rows


# --- Markdown


def markdown(told: Sequence[Told]) -> str:
    """The page without its figures."""
    parts = [f"# {HEADING}", *ABOUT, _MADE_BY, counts(told), _markdown_table(summary_table(told))]
    for one in told:
        parts += [
            f"## {one.paper.of}: {one.paper.figure}",
            f"{one.paper.cite} Numbers: {one.paper.sources} "
            f"Config: [{one.evaluated.redone.name}.yaml]({one.evaluated.redone.name}.yaml).",
            _markdown_table(claims_table(one)),
            _markdown_table(numbers_table(one)),
            _markdown_table(settings_table(one)),
            "Why they differ:",
            "\n".join(f"- {reason}" for reason in one.paper.differs),
        ]
    return "\n\n".join(parts) + "\n"


_MADE_BY = "Made by `phasewise papers` (or `make papers`); do not edit by hand."


def _markdown_table(table: Table) -> str:
    header, rows = table
    lines = [_markdown_row(header), _markdown_row(["---"] * len(header))]
    return "\n".join([*lines, *map(_markdown_row, rows)])


def _markdown_row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"


# --- HTML


def write_page(told: Sequence[Told], path: Path) -> Path:
    """The page with its figures, in one file that needs nothing else."""
    sections = [_STYLE, _html_table(summary_table(told))]
    for one in told:
        sections += _html_of(one)
    return write_sections(path, HEADING, [*ABOUT, counts(told)], sections)


def _html_of(told: Told) -> list[str]:
    paper = told.paper
    escaped = {
        "title": html.escape(f"{paper.of}: {paper.figure}"),
        "cite": html.escape(f"{paper.cite} Numbers: {paper.sources}"),
    }
    reasons = "\n".join(f"<li>{html.escape(reason)}</li>" for reason in paper.differs)
    return [
        f"<h2>{escaped['title']}</h2>\n<p>{escaped['cite']}</p>",
        _html_table(claims_table(told)),
        _html_table(numbers_table(told)),
        *(
            section(each.key, "", each.about, each.make(SCREEN, "linear")).removeprefix(
                "<h2></h2>\n"
            )
            for each in drawings(told.evaluated)
        ),
        _html_table(settings_table(told)),
        f"<p>Why they differ:</p>\n<ul>\n{reasons}\n</ul>",
    ]


_STYLE = """<style>
table { border-collapse: collapse; font-size: 85%; margin: 0.8em 0; }
th, td { border-bottom: 1px solid #ccc; padding: 0.25em 0.6em; }
th, td { text-align: left; vertical-align: top; }
th { border-bottom: 1px solid black; }
</style>"""


def _html_table(table: Table) -> str:
    header, rows = table
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    body = "\n".join(f"<tr>{''.join(map(_html_cell, row))}</tr>" for row in rows)
    return f"<table>\n<tr>{head}</tr>\n{body}\n</table>"


def _html_cell(text: str) -> str:
    color = _HTML.get(text)
    style = f' style="color: {color}; font-weight: bold"' if color else ""
    return f"<td{style}>{html.escape(text)}</td>"
