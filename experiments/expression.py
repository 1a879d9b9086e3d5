"""Expressions over the results of variants: numbers, texts and truths, checked before a run.

    expression = choice
    choice     = or ["if" or "else" choice]
    or         = and {"or" and}
    and        = not {"and" not}
    not        = "not" not | comparison
    comparison = sum [("<" | "<=" | ">" | ">=" | "==" | "!=") sum]
    sum        = product {("+" | "-") product}
    product    = sign {("*" | "/") sign}
    sign       = "-" sign | atom
    atom       = number | 'text' | "text" | "(" choice ")" | reference
    reference  = variant "." [("classes" | "tenants" | "pools") "." name "."] metric ["." statistic]

Metrics and statistics are those of ``phasewise metrics``; ``requests.finished`` and the like count
measured requests, ``sessions.skipped`` and the like sessions in closed loop.

Variants are found by the labels they have, so that these may hold spaces, dots and signs. Words and
operators other than ``*``, ``/`` and parentheses need spaces around them where a name ends.
Python's own `eval` has no part in it: there is nothing here that could do harm.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from sim.errors import ConfigError, nearest
from sim.metric_definitions import METRICS, STATISTICS, Metric
from sim.records import STATES

Kind = Literal["number", "text", "truth"]
Value = float | int | str | bool

COUNTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "requests": ("arrived", *STATES),
        "sessions": ("sessions", "turns", "skipped", "cut_short"),
    }
)
"""Counts that stand beside the metrics: of measured requests, and of sessions in closed loop."""
LONGEST = 500
"""Characters of an expression: whoever needs more says too much in one."""
GROUPS = ("classes", "tenants", "pools")
"""Parts of a summary with the metrics of a part of the requests, or of the replicas, by name."""
_BY_NAME: Mapping[str, Metric] = MappingProxyType({m.name_in_files: m for m in METRICS.values()})


class UndefinedError(Exception):
    """An expression has no value: something that it names has none in this run."""


@dataclass(frozen=True)
class Reference:
    """One number of one variant.

    Attributes:
        text: As written.
        variant: Its label.
        group: ``classes``, ``tenants`` or ``pools``, or empty for the whole run.
        name: Of the class, tenant or pool.
        metric: Name in ``summary.json``.
        statistic: Of its distribution, or empty.
    """

    text: str
    variant: str
    group: str
    name: str
    metric: str
    statistic: str

    def value(self, summaries: Mapping[str, Mapping[str, Any]]) -> Value:
        """Its number.

        Args:
            summaries: Of each variant with results, by label.

        Raises:
            UndefinedError: The variant has no results, or they do not have this number.
        """
        if self.variant not in summaries:
            raise UndefinedError(f"{self.variant} has no results")
        summary = summaries[self.variant]
        counts = {"requests": summary["measured_requests"], "sessions": summary.get("sessions", {})}
        block: Any = summary["overall"] | counts
        if self.group:
            block = summary.get(self.group, {}).get(self.name, {})
        value = block.get(self.metric)
        if self.statistic and value is not None:
            value = value.get(self.statistic)
        if value is None:
            raise UndefinedError(f"{self.text} has no value{self._why()}")
        number: Value = value
        return number

    def _why(self) -> str:
        """When the metric has none, as its definition says."""
        known = _BY_NAME.get(self.metric)
        if known is None:
            return " (no sessions in closed loop)" if self.metric == "sessions" else ""
        said = (part for part in known.definition.split(". ") if part.startswith("Absent"))
        return "".join(f" ({part.rstrip('.')})" for part in said)


@dataclass(frozen=True)
class Node:
    """A checked expression.

    Attributes:
        kind: Of its value.
        references: What it names.
        value: Gives its value from the summaries of the variants by label.
    """

    kind: Kind
    references: tuple[Reference, ...]
    value: Callable[[Mapping[str, Mapping[str, Any]]], Any]


def parse(text: str, labels: Sequence[str]) -> tuple[Node, str]:
    """Read an expression from the start of a text.

    Args:
        text: What is written.
        labels: Of the variants that there are.

    Returns:
        The expression, and what follows it.

    Raises:
        ConfigError: It is none, or names a variant, metric or statistic that there is not.
    """
    if len(text) > LONGEST:
        raise ConfigError(f"has {len(text)} characters; expected at most {LONGEST}")
    parser = _Parser(text, labels)
    try:
        node = parser.choice()
    except RecursionError:
        raise ConfigError("has too many parentheses") from None
    return node, parser.rest


_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = MappingProxyType(
    {
        "<=": operator.le,
        ">=": operator.ge,
        "==": operator.eq,
        "!=": operator.ne,
        "<": operator.lt,
        ">": operator.gt,
    }
)
_ARITHMETIC: Mapping[str, Callable[[Any, Any], Any]] = MappingProxyType(
    {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
)
_NUMBER = re.compile(r"\d+(\.\d+)?([eE][-+]?\d+)?")
_QUOTED = re.compile(r"'([^']*)'|\"([^\"]*)\"")
_WORD = r"[^\s.:(){}*/<>=!'\"]+"
_PATH = re.compile(rf"{_WORD}(?:\.{_WORD})*")
_END = re.compile(r"\s*(?:$|[-+*/<>=!:)]|(?:if|else|and|or)\b)")
_UNKNOWN = re.compile(r"[^(){}'\"]+?(?=\s+(?:[-+*/<>=!]|if|else|and|or)|\s*[(){}*/:'\"]|\s*$)")


class _Parser:
    """Reads from the left; one method for each line of the grammar."""

    def __init__(self, text: str, labels: Sequence[str]) -> None:
        self.rest = text.lstrip()
        self._labels = sorted(labels, key=len, reverse=True)

    def choice(self) -> Node:
        value = self._either()
        if not self._word("if"):
            return value
        condition = self._of_kind(self._either(), "truth", "if")
        if not self._word("else"):
            raise self._error("else is missing after if")
        other = self.choice()
        if value.kind != other.kind:
            raise ConfigError(f"if gives a {value.kind}, else a {other.kind}; both have to be one")
        return _joined(
            value.kind,
            (value, condition, other),
            lambda of: value.value(of) if condition.value(of) else other.value(of),
        )

    def _either(self) -> Node:
        return self._chain("or", self._both, lambda parts, of: any(p.value(of) for p in parts))

    def _both(self) -> Node:
        return self._chain("and", self._not, lambda parts, of: all(p.value(of) for p in parts))

    def _chain(
        self, word: str, member: Callable[[], Node], value: Callable[[list[Node], Any], bool]
    ) -> Node:
        parts = [member()]
        while self._word(word):
            parts.append(member())
        if len(parts) == 1:
            return parts[0]
        for part in parts:
            self._of_kind(part, "truth", word)
        return _joined("truth", parts, lambda of: value(parts, of))

    def _not(self) -> Node:
        if not self._word("not"):
            return self._comparison()
        inner = self._of_kind(self._not(), "truth", "not")
        return _joined("truth", [inner], lambda of: not inner.value(of))

    def _comparison(self) -> Node:
        left = self._sum()
        sign = self._sign_of(_COMPARE)
        if sign is None:
            return left
        right = self._sum()
        for side in (left, right):
            self._of_kind(side, "number", sign)
        compare = _COMPARE[sign]
        return _joined("truth", (left, right), lambda of: compare(left.value(of), right.value(of)))

    def _sum(self) -> Node:
        return self._series("+-", self._product)

    def _product(self) -> Node:
        return self._series("*/", self._signed)

    def _series(self, signs: str, member: Callable[[], Node]) -> Node:
        left = member()
        while (sign := self._sign_of(signs)) is not None:
            right = member()
            for side in (left, right):
                self._of_kind(side, "number", sign)
            left = _calculated(sign, left, right)
        return left

    def _signed(self) -> Node:
        if self._sign_of("-") is None:
            return self._atom()
        inner = self._of_kind(self._signed(), "number", "-")
        return _joined("number", [inner], lambda of: -inner.value(of))

    def _atom(self) -> Node:
        reference = self._reference()
        if reference is not None:
            return Node("number", (reference,), reference.value)
        self._refuse_label_alone()
        if self.rest.startswith("("):
            self._take(1)
            inner = self.choice()
            if not self.rest.startswith(")"):
                raise self._error(") is missing")
            self._take(1)
            return inner
        if found := _QUOTED.match(self.rest):
            self._take(found.end())
            text = found[1] if found[1] is not None else found[2]
            return Node("text", (), lambda _: text)
        if found := _NUMBER.match(self.rest):
            self._take(found.end())
            number = float(found[0])
            if not math.isfinite(number):
                raise ConfigError(f"{found[0]} is beyond all numbers")
            return Node("number", (), lambda _: number)
        raise self._unknown()

    # --- names

    def _reference(self) -> Reference | None:
        for label in self._labels:
            if self.rest.startswith(f"{label}.") and (
                path := _PATH.match(self.rest, len(label) + 1)
            ):
                text = self.rest[: path.end()]
                self._take(path.end())
                return _resolved(text, label, path[0])
        return None

    def _refuse_label_alone(self) -> None:
        named = (label for label in self._labels if self.rest.startswith(label))
        for label in named:
            if _END.match(self.rest, len(label)) and not _NUMBER.fullmatch(label):
                raise ConfigError(f"{label} needs a metric, such as {{{label}.ttft_s.mean}}")

    def _unknown(self) -> ConfigError:
        found = _UNKNOWN.match(self.rest)
        if found is None:
            return self._error("expected a number, or one of a variant such as label.ttft_s.mean")
        parts = found[0].split(".")
        dot = len(parts) > 1
        known = (at for at in range(1, len(parts)) if parts[at] in (*_BY_NAME, *GROUPS, *COUNTS))
        name = ".".join(parts[: next(known, 1)])
        hint = nearest(name, self._labels)
        more = "" if dot else f"; a number of a variant is written {self._labels[-1]}.ttft_s.mean"
        return ConfigError(f"no variant {name!r}{hint}{more}")

    # --- tokens

    def _take(self, characters: int) -> None:
        self.rest = self.rest[characters:].lstrip()

    def _word(self, word: str) -> bool:
        found = re.match(rf"{word}\b", self.rest)
        if found:
            self._take(found.end())
        return found is not None

    def _sign_of(self, signs: Iterable[str]) -> str | None:
        for sign in signs:
            if self.rest.startswith(sign):
                self._take(len(sign))
                return sign
        return None

    def _of_kind(self, node: Node, kind: Kind, what: str) -> Node:
        if node.kind != kind:
            wanted = {"truth": "a comparison, such as a.x < b.x"}.get(kind, f"a {kind}")
            raise ConfigError(f"{what} needs {wanted}, not a {node.kind}")
        return node

    def _error(self, what: str) -> ConfigError:
        there = f" at {self.rest[:30]!r}" if self.rest else " at the end"
        return ConfigError(f"{what}{there}")


def _joined(kind: Kind, parts: Sequence[Node], value: Callable[[Any], Any]) -> Node:
    return Node(kind, tuple(each for part in parts for each in part.references), value)


def _calculated(sign: str, left: Node, right: Node) -> Node:
    def value(of: Mapping[str, Mapping[str, Any]]) -> Any:
        divisor = right.value(of)
        if sign == "/" and not divisor:
            raise UndefinedError("it divides by 0")
        result = _ARITHMETIC[sign](left.value(of), divisor)
        if not math.isfinite(result):
            raise UndefinedError("it is beyond all numbers")
        return result

    node = _joined("number", (left, right), value)
    try:  # what depends on no result is wrong in every run
        if not right.references:
            if sign == "/" and not right.value({}):
                raise UndefinedError("it divides by 0")
            if not left.references:
                node.value({})
    except UndefinedError as error:
        raise ConfigError(f"has no value: {error}") from None
    return node


def _resolved(text: str, label: str, path: str) -> Reference:
    """What a path below a variant names.

    Raises:
        ConfigError: There is no such metric, or it has no such statistic.
    """
    parts, group, name = path.split("."), "", ""
    if parts[0] in GROUPS and len(parts) > 2:
        # A name may hold dots: it ends where a metric begins.
        ends = (at for at in range(2, len(parts)) if parts[at] in (*_BY_NAME, *COUNTS))
        end = next(ends, 2)
        group, name, parts = parts[0], ".".join(parts[1:end]), parts[end:]
    metric, statistic = parts[0], ".".join(parts[1:])
    statistics = _statistics(metric, group, text)
    if statistic not in statistics and statistics != ("",):
        given = f"no statistic {statistic!r}" if statistic else f"{metric} has several numbers"
        raise ConfigError(f"{text}: {given}{nearest(statistic, statistics)}")
    if statistic not in statistics:
        raise ConfigError(f"{text}: {metric} is one number and has no {statistic}")
    return Reference(text, label, group, name, metric, statistic)


def _statistics(metric: str, group: str, text: str) -> tuple[str, ...]:
    """What may stand behind the name of a metric; an empty text for one number."""
    known = _BY_NAME.get(metric)
    if group == "pools":
        return _of_pools(metric, text)
    if group and (metric == "sessions" or (known is not None and not known.of_requests)):
        raise ConfigError(f"{text}: {metric} is of the whole run, and not of one of its {group}")
    if metric in COUNTS:
        return COUNTS[metric]
    if known is None:
        names = [name for name, each in _BY_NAME.items() if each.of_requests or not group]
        raise ConfigError(f"{text}: no metric {metric!r}{nearest(metric, [*names, *COUNTS])}")
    return STATISTICS if known.spread else ("",)


def _of_pools(metric: str, text: str) -> tuple[str, ...]:
    names = [name for name, each in _BY_NAME.items() if each.of_pools]
    if metric not in names:
        raise ConfigError(f"{text}: pools have no {metric!r}{nearest(metric, names)}")
    return ("",)
