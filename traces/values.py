"""Single values of a trace, read exactly: whole counts, and times as integer nanoseconds.

These are the careful readers for what the vectorised ones do not take; no float is ever made of a
time.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_EVEN, Context, Decimal, InvalidOperation

MAX_COUNT = 10**9
"""Most tokens one request may have: far above any context window, far below overflow of sums."""

MAX_TIME_NS = 2**62
"""Largest time, 146 years: sums of two still fit int64."""

UNITS = {"s": 9, "ms": 6, "us": 3, "ns": 0}
"""Decimal exponent of each time unit in nanoseconds."""

COUNT_EXPECTED = f"a whole number from 0 to {MAX_COUNT:,}"
STAMP_EXPECTED = "a timestamp such as 2024-05-10 00:00:00.009930+00:00"

_GROUPED = re.compile(r"[+]?\d{1,3}([,_']\d{3})+")
_STAMP = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d+))?\s?(Z|UTC|[+-]\d\d(?::?\d\d)?)?"
)
_EXACT = Context(prec=80, rounding=ROUND_HALF_EVEN)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class BadValueError(ValueError):
    """A value that cannot be read; its text says what is expected instead."""


def number(value: object) -> Decimal:
    """The exact number that a JSON value or a CSV field spells.

    Raises:
        BadValueError: It is no finite number (None, boolean, NaN, text), or out of all bounds.
    """
    if isinstance(value, bool) or not isinstance(value, int | Decimal | str):
        raise BadValueError("a number")
    text = value.strip().lstrip("+") if isinstance(value, str) else value
    if isinstance(text, str) and _GROUPED.fullmatch(text):
        text = re.sub(r"[,_']", "", text)
    elif isinstance(text, str) and not re.fullmatch(r"-?\d*\.?\d*(?:[eE][+-]?\d+)?", text):
        raise BadValueError("a number")
    try:
        result = Decimal(text)
    except InvalidOperation:
        raise BadValueError("a number") from None
    if not result.is_finite() or (result and abs(result.adjusted()) > 40):
        raise BadValueError("a finite number")
    return result


def count(value: object) -> int:
    """A number of tokens: ``12``, ``"12"``, ``12.0`` and ``"1,234"`` are whole; ``12.5`` is not.

    Raises:
        BadValueError: Not a whole number from 0 to `MAX_COUNT`.
    """
    try:
        exact = number(value)
    except BadValueError:
        raise BadValueError(COUNT_EXPECTED) from None
    if exact != exact.to_integral_value() or not 0 <= exact <= MAX_COUNT:
        raise BadValueError(COUNT_EXPECTED)
    return int(exact)


def integer(value: object) -> int:
    """A whole number of either sign, such as a priority.

    Raises:
        BadValueError: Not whole, or beyond +-`MAX_COUNT`.
    """
    expected = f"a whole number from -{MAX_COUNT:,} to {MAX_COUNT:,}"
    try:
        exact = number(value)
    except BadValueError:
        raise BadValueError(expected) from None
    if exact != exact.to_integral_value() or abs(exact) > MAX_COUNT:
        raise BadValueError(expected)
    return int(exact)


def span_ns(value: object, unit: str) -> int:
    """A time or span of time as nanoseconds, rounded half to even.

    Args:
        value: A number of `unit`s.
        unit: ``s``, ``ms``, ``us`` or ``ns``.

    Raises:
        BadValueError: Negative, not a number, or beyond `MAX_TIME_NS`.
    """
    expected = f"a time in {unit}, from 0 to {MAX_TIME_NS // 10 ** UNITS[unit]:,}"
    try:
        exact = number(value)
    except BadValueError:
        raise BadValueError(expected) from None
    if exact < 0:
        raise BadValueError(expected)
    scaled = _EXACT.scaleb(exact, UNITS[unit])
    result = int(scaled.to_integral_value(ROUND_HALF_EVEN, context=_EXACT))
    if result > MAX_TIME_NS:
        raise BadValueError(expected)
    return result


def stamp_ns(value: object) -> int:
    """A timestamp as nanoseconds since 1970; without a zone it is taken as UTC.

    Fractions beyond nine digits are rounded half to even.

    Raises:
        BadValueError: Not of the form ``2023-11-16 18:17:03.97`` (a ``T`` and a zone may be there).
    """
    match = _STAMP.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise BadValueError(STAMP_EXPECTED)
    *parts, fraction, zone = match.groups()
    try:
        moment = datetime(*map(int, parts), tzinfo=UTC)  # type: ignore[arg-type, misc]
    except ValueError:
        raise BadValueError(STAMP_EXPECTED) from None
    if not 1970 <= moment.year <= 2100:
        raise BadValueError("a timestamp from 1970 to 2100")
    since = moment - _EPOCH - _zone(zone)
    digits = Decimal(f"0.{fraction or 0}")
    return (since.days * 86400 + since.seconds) * 10**9 + span_ns(digits, "s")


def _zone(text: str | None) -> timedelta:
    if text in (None, "Z", "UTC"):
        return timedelta()
    assert text is not None
    digits = text[1:].replace(":", "").ljust(4, "0")
    offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    if offset > timedelta(hours=15):
        raise BadValueError(STAMP_EXPECTED)
    return -offset if text[0] == "-" else offset
