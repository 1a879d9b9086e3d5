"""Checks of single values of a benchmark's file: each error says where, what is there, and what
was expected."""

from __future__ import annotations

import json
import math
from typing import NoReturn

from experiments.names import brief
from sim.errors import ConfigError

COLUMN_NAMES = (
    "Our names: prompt_tokens, output_tokens; arrival, ttft, tpot, e2e with _s for seconds or _ms "
    "for milliseconds, of which two of ttft, tpot and e2e are needed; ok, true or false"
)
"""Of a CSV, in words."""

COLUMN_HELP = f"A CSV's column, such as ttft_ms=first_token; repeatable. {COLUMN_NAMES}."
"""Of the option ``--column``."""

MOST_S = 30 * 86_400.0
"""Longest time that is taken for one, s: 30 days. What is longer is of another unit, or broken."""

MOST_TOKENS = 10**9
"""Largest length that is taken for one."""


def wrong(where: str, value: object, expected: str) -> NoReturn:
    """Refuse a value.

    Args:
        where: File, key and index, or line.
        value: What is there.
        expected: In words.

    Raises:
        ConfigError: In any case.
    """
    raise ConfigError(f"{where}: {_written(value)}; expected {expected}")


def _written(value: object) -> str:
    """As JSON has it, shortened."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return brief(value)


def is_number(value: object) -> bool:
    """Whether a value of JSON is a number, of any size and NaN as well."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def time_s(value: object, where: str, factor: float = 1.0) -> float:
    """A duration as seconds.

    Args:
        value: A number.
        where: For messages.
        factor: Of its unit.

    Raises:
        ConfigError: It is no number, NaN, negative, or above `MOST_S`.
    """
    if not is_number(value):
        wrong(where, value, "a time, as a number")
    assert isinstance(value, int | float)
    if not 0 <= value <= MOST_S / factor:  # an integer may be too large for a float
        wrong(where, value, f"a time of 0 to {MOST_S / factor:,.0f} ({MOST_S:,.0f} s)")
    return value * factor


def any_time_s(value: object, where: str, factor: float = 1.0) -> float:
    """The same of a request that failed: NaN where it is none, but never of another type."""
    if value is None:
        return math.nan
    if not is_number(value):
        wrong(where, value, "a time, as a number")
    assert isinstance(value, int | float)
    return value * factor if 0 <= value <= MOST_S / factor else math.nan


def tokens(value: object, where: str, what: str = "a whole number of tokens") -> int:
    """A length, or another count.

    Raises:
        ConfigError: It is no whole number of 0 to `MOST_TOKENS`.
    """
    if not is_number(value):
        wrong(where, value, what)
    assert isinstance(value, int | float)
    if not 0 <= value <= MOST_TOKENS or value != int(value):
        wrong(where, value, f"{what}, 0 to {MOST_TOKENS:,}")
    return int(value)


def text_or_none(value: object, where: str) -> str:
    """A text, empty for null.

    Raises:
        ConfigError: It is something else.
    """
    if value is None:
        return ""
    if not isinstance(value, str):
        wrong(where, value, "a text")
    return value
