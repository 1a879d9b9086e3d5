"""What has to hold at a load, such as ``ttft_s.p99 <= 0.5 and classes.chat.tpot_s.mean < 0.03``.

A goal is one or several terms joined by ``and``: ``[classes.NAME.]METRIC[.STATISTIC]``, a relation,
and a number. Metrics are those of ``phasewise metrics``; a statistic is ``mean``, ``min``, ``max``
or a percentile, ``p99`` or ``p99.9``, of which any one can be asked for.

Values of a goal differ from those of a table in one point: a request that was rejected, failed or
never finished counts as infinitely late in every latency that is asked for, whereas a table leaves
it out. Otherwise refusing requests would help to meet a goal. Requests that their clients gave up
count with what they have; what a request cannot have (TPOT of one token) is left out.
"""

from __future__ import annotations

import math
import operator
import re
from dataclasses import dataclass
from types import MappingProxyType

from experiments.quantity import Quantity, read_quantity
from sim.errors import ConfigError

_TERM = re.compile(r"\s*(?P<what>.+?)\s*(?P<relation><=|>=|<|>)\s*(?P<target>[^\s<>=]+)\s*")
_RELATIONS = MappingProxyType(
    {"<=": operator.le, "<": operator.lt, ">=": operator.ge, ">": operator.gt}
)


@dataclass(frozen=True)
class Term:
    """One comparison of a goal.

    Attributes:
        quantity: What is compared.
        relation: ``<=``, ``<``, ``>=`` or ``>``.
        target: With what.
    """

    quantity: Quantity
    relation: str
    target: float

    def __str__(self) -> str:
        return f"{self.quantity.text} {self.relation} {self.target:g}"

    def holds(self, value: float) -> bool:
        """Whether a value meets it; NaN, no value at all, does not."""
        return bool(_RELATIONS[self.relation](value, self.target))


@dataclass(frozen=True)
class Goal:
    """What has to hold, all of it."""

    terms: tuple[Term, ...]

    def __str__(self) -> str:
        return " and ".join(map(str, self.terms))


def read_goal(text: str) -> Goal:
    """Read a goal.

    Raises:
        ConfigError: One line: what cannot be read, or is no metric or statistic.
    """
    return Goal(tuple(_term(part, text) for part in re.split(r"\band\b", text)))


def _term(part: str, text: str) -> Term:
    found = _TERM.fullmatch(part)
    if found is None:
        raise ConfigError(
            f"goal: {text.strip()}: cannot read {part.strip()!r}; expected such as "
            "ttft_s.p99 <= 0.5, several joined by and"
        )
    try:
        target = float(found["target"])
    except ValueError:
        target = math.nan
    if not math.isfinite(target):
        raise ConfigError(f"goal: {part.strip()}: {found['target']} is no number")
    quantity = read_quantity(found["what"], "goal")
    if quantity.metric.better == "lower" and found["relation"].startswith(">"):
        raise ConfigError(
            f"goal: {part.strip()}: less of {quantity.metric.name_in_files} is better, so that a "
            f"goal is a bound from above; expected {found['relation'].replace('>', '<')}"
        )
    return Term(quantity, found["relation"], target)
