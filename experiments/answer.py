"""The answer of an experiment: one sentence with its numbers, made of templates in the config.

A template is text with expressions in braces (see `expression.py`), each with an optional format:

    answer: "The mean TTFT is {cache.ttft_s.mean:.2f} s, or {no cache.ttft_s.mean:.2f} s without."

What a sentence claims must follow from the numbers, so it can depend on them: in place,
``{'meets' if shared.ttft_s.p99 <= 0.1 else 'misses'}``, or by a list, of which the first entry is
said whose ``when`` holds; the last has none, so that something is always said:

    answer:
      - when: cache.ttft_s.mean < no cache.ttft_s.mean
        say: "Caching cuts the mean TTFT by {1 - cache.ttft_s.mean / no cache.ttft_s.mean:.0%}."
      - Caching does not pay here.

Everything is checked when the config is read, but names of classes, known from the workload, when a
run begins. ``{{`` and ``}}`` are braces.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.explain import shown
from experiments.expression import Node, Reference, UndefinedError, parse
from experiments.tables import three_digits
from sim.errors import ConfigError, nearest

_FORMAT = re.compile(r"[+]?,?(\.\d{1,2})?[feg%]?")
_PIECES = re.compile(r"\{\{|\}\}|\{((?:'[^']*'|\"[^\"]*\"|[^{}'\"])*)\}|[{}]|[^{}]+")


@dataclass(frozen=True)
class _Number:
    """A placeholder."""

    node: Node
    form: str

    def said(self, summaries: Mapping[str, Mapping[str, Any]]) -> str:
        value = self.node.value(summaries)
        if isinstance(value, str):
            return value
        if self.form:
            return format(value, self.form)
        return f"{value:,}" if isinstance(value, int) else three_digits(value)


@dataclass(frozen=True)
class _Entry:
    """A sentence and the condition under which it is said."""

    when: Node | None
    say: tuple[str | _Number, ...]

    def nodes(self) -> list[Node]:
        own = [piece.node for piece in self.say if isinstance(piece, _Number)]
        return own if self.when is None else [self.when, *own]


@dataclass(frozen=True)
class Answer:
    """A checked answer, to be said once there are results."""

    entries: tuple[_Entry, ...]

    @property
    def references(self) -> list[Reference]:
        """All that it names, in order."""
        nodes = [node for entry in self.entries for node in entry.nodes()]
        return [reference for node in nodes for reference in node.references]

    def said(self, summaries: Mapping[str, Mapping[str, Any]]) -> str:
        """The sentence, or why there is none.

        Args:
            summaries: Of the variants with results, by label.
        """
        try:
            entry = next(e for e in self.entries if e.when is None or e.when.value(summaries))
            pieces = [
                piece if isinstance(piece, str) else piece.said(summaries) for piece in entry.say
            ]
        except UndefinedError as error:
            return f"No answer: {error}."
        return " ".join("".join(pieces).split())


def read_answer(value: object, labels: Sequence[str], where: str) -> Answer:
    """Check an answer as it stands in a config.

    Args:
        value: A template, or a list of them and of mappings with ``when`` and ``say``.
        labels: Of the variants.
        where: File and key, for messages.

    Raises:
        ConfigError: One line: what it names does not exist, or cannot be calculated.
    """
    if not isinstance(value, list):
        return Answer((_Entry(None, _template(value, labels, where)),))
    if not value:
        raise ConfigError(f"{where}: []: expected a sentence")
    entries = tuple(_entry(each, labels, f"{where}[{at}]") for at, each in enumerate(value))
    for at, entry in enumerate(entries[:-1]):
        if entry.when is None:
            raise ConfigError(
                f"{where}[{at}]: has no when, so that what follows it is never said; "
                "put it last, or say when"
            )
    if entries[-1].when is not None:
        raise ConfigError(
            f"{where}[{len(entries) - 1}]: has a when, so that there may be nothing to say; "
            "add a sentence without one as the last"
        )
    return Answer(entries)


def _entry(value: object, labels: Sequence[str], where: str) -> _Entry:
    if not isinstance(value, Mapping):
        return _Entry(None, _template(value, labels, where))
    for key in value:
        if key not in ("when", "say"):
            hint = nearest(str(key), ("when", "say"))
            raise ConfigError(f"{where}.{key}: answer has no such option{hint}")
    if value.get("say") is None:
        raise ConfigError(f"{where}.say: is required: a sentence")
    say = _template(value["say"], labels, f"{where}.say")
    if value.get("when") is None:
        return _Entry(None, say)
    return _Entry(_condition(value["when"], labels, f"{where}.when"), say)


def _condition(value: object, labels: Sequence[str], where: str) -> Node:
    if not isinstance(value, str):
        raise ConfigError(f"{where}: {shown(value)}: expected a comparison, such as a.x < b.x")
    node, rest = _parsed(value, labels, where)
    if rest:
        raise ConfigError(f"{where}: {shown(value)}: cannot be read from {rest[:30]!r} on")
    if node.kind != "truth":
        raise ConfigError(
            f"{where}: {shown(value)}: expected a comparison, such as a.x < b.x, not a {node.kind}"
        )
    return node


def _template(value: object, labels: Sequence[str], where: str) -> tuple[str | _Number, ...]:
    if not isinstance(value, str) or not value.strip():
        quotes = "; put it in quotes" if isinstance(value, Mapping) else ""
        raise ConfigError(f"{where}: {shown(value)}: expected a sentence{quotes}")
    pieces: list[str | _Number] = []
    for found in _PIECES.finditer(value):
        text = found[0]
        if text in ("{{", "}}"):
            pieces.append(text[0])
        elif text in ("{", "}"):
            raise ConfigError(
                f"{where}: {text} stands alone before {value[found.end() :][:30]!r}; "
                f"a brace of the text is written {text * 2}"
            )
        elif found[1] is not None:
            pieces.append(_number(found[1], labels, f"{where}: {{{found[1]}}}"))
        else:
            pieces.append(text)
    return tuple(pieces)


def _number(text: str, labels: Sequence[str], where: str) -> _Number:
    node, rest = _parsed(text, labels, where)
    if rest and not rest.startswith(":"):
        raise ConfigError(f"{where}: cannot be read from {rest[:30]!r} on")
    form = rest[1:].strip()
    if node.kind == "truth":
        raise ConfigError(f"{where}: is true or false; write {{'this' if ... else 'that'}}")
    if form and node.kind == "text":
        raise ConfigError(f"{where}: {form} is a format of numbers, and this is text")
    if not _FORMAT.fullmatch(form):
        raise ConfigError(f"{where}: no format {form!r}; try one such as .2f, .0%, .3g or ,.0f")
    return _Number(node, form)


def _parsed(text: str, labels: Sequence[str], where: str) -> tuple[Node, str]:
    try:
        return parse(text, labels)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def check_names(
    references: Iterable[Reference], names: Mapping[tuple[str, str], Sequence[str]], where: str
) -> None:
    """Refuse classes, tenants and pools that a variant does not have.

    Args:
        references: Those of an answer.
        names: (variant, ``classes``, ``tenants`` or ``pools``) to the names that it has.
        where: File and key, for messages.

    Raises:
        ConfigError: One of them is not there, or is alone: then nothing is counted apart.
    """
    kinds = {"classes": "request class", "tenants": "tenant", "pools": "pool"}
    for each in references:
        if not each.group:
            continue
        known, kind = names[each.variant, each.group], kinds[each.group]
        if each.name not in known:
            none = "; they have numbers where the config asks for cost"
            hint = nearest(each.name, known) or (
                none if each.group == "pools" else "; its workload has none"
            )
            raise ConfigError(f"{where}: {each.text}: no {kind} {each.name!r}{hint}")
        if len(known) < 2 and each.group != "pools":
            raise ConfigError(
                f"{where}: {each.text}: its workload has this {kind} only; leave it out"
            )
