"""Plainly written numbers and timestamps, a whole column at once and exact.

Each function gives the values and where others stand, which are read one by one (`traces.values`).
`pyarrow.compute` could read them too, but to import it takes longer than to read 100,000 rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sim.request import Ints
from traces import values

if TYPE_CHECKING:
    import pyarrow as pa

Bools = npt.NDArray[np.bool_]
Places = npt.NDArray[np.intp]

_COUNT_DIGITS = 9
_PLACES = 18
"""Digits behind the point that are read at once: as an integer they fit 64 bits."""
_PARTS = ((0, 4, "-"), (5, 2, "-"), (8, 2, " T"), (11, 2, ":"), (14, 2, ":"), (17, 2, ""))
"""Year to second of a timestamp: first place, digits, and what may stand behind them."""
_LARGEST_ZONE_MIN = 15 * 60
_NS_IN_S = 10**9


def counts(text: pa.Array) -> tuple[Ints, Places]:
    """(n,) numbers of one to nine digits, and the rows where something else stands."""
    fields = _Fields(text)
    numbers, end = fields.number(0, _COUNT_DIGITS)
    return numbers, np.flatnonzero((end == 0) | (end < fields.lengths))


def decimals(text: pa.Array, exponent: int) -> tuple[Ints, Places]:
    """(n,) numbers x 10^exponent rounded half to even, and the rows where something else stands.

    Args:
        text: (n,) such as ``12`` or ``0.25``.
        exponent: 0 to 9.
    """
    fields = _Fields(text)
    # As many digits as fit 64 bits once scaled; what overflows shows as negative below.
    whole, point = fields.number(0, 19 - exponent)
    fraction, end = fields.fraction(point, _PLACES)
    kept, rest = np.divmod(fraction, 10 ** (_PLACES - exponent))
    numbers = whole * 10**exponent + kept
    half = 10 ** (_PLACES - exponent) // 2
    numbers += (rest > half) | ((rest == half) & (numbers % 2 == 1))
    odd = (point == 0) | (end < fields.lengths) | (numbers < 0) | (numbers > values.MAX_TIME_NS)
    return numbers, np.flatnonzero(odd)


def stamps_ns(text: pa.Array) -> tuple[Ints, Places, int]:
    """(n,) ns since 1970, the rows where something else stands, and how many have a zone.

    Args:
        text: (n,) such as ``2024-05-10 00:00:00.009930+00:00``; up to nine digits behind the point.
    """
    fields = _Fields(text)
    parts, written = [], np.ones(len(text), bool)
    for first, digits, behind in _PARTS:
        part, end = fields.number(first, digits)
        written &= end == first + digits
        if behind:
            written &= fields.is_one_of(behind, end)
        parts.append(part)
    fraction_ns, end = fields.fraction(np.full(len(text), 19), 9)
    zone_min, zone_end = _zone(fields, end)
    written &= zone_end == fields.lengths
    since_s, valid = _seconds(parts)
    numbers = (since_s - 60 * zone_min) * _NS_IN_S + fraction_ns
    valid &= (abs(zone_min) <= _LARGEST_ZONE_MIN) & (numbers > 0)
    zoned = int((written & (zone_end > end)).sum())
    return numbers, np.flatnonzero(~(written & valid)), zoned


def _seconds(parts: Sequence[Ints]) -> tuple[Ints, Bools]:
    """(n,) seconds since 1970 of years to seconds, and (n,) where there is such a moment."""
    year, month, day, hour, minute, second = parts
    months = (12 * (year - 1970) + month - 1).astype("datetime64[M]")
    first = months.astype("datetime64[D]").astype(np.int64)
    next_first = (months + 1).astype("datetime64[D]").astype(np.int64)
    days = first + day - 1
    valid = (year >= 1970) & (year <= 2100) & (month >= 1) & (month <= 12)
    valid &= (day >= 1) & (days < next_first) & (hour < 24) & (minute < 60) & (second < 60)
    return ((days * 24 + hour) * 60 + minute) * 60 + second, valid


def _zone(fields: _Fields, first: Places) -> tuple[Ints, Places]:
    """(n,) minutes east of UTC of ``Z``, ``+01``, ``+0100`` or ``+01:00``, and (n,) their ends.

    Where there is none: 0, and `first`.
    """
    hours, hours_end = fields.number(first + 1, 2)
    colon = fields.is_one_of(":", hours_end)
    minutes, minutes_end = fields.number(hours_end + colon, 2)
    to_minutes = (minutes_end == hours_end + colon + 2) & (minutes < 60)
    offset = fields.is_one_of("+-", first) & (hours_end == first + 3)
    end = np.where(offset, np.where(to_minutes, minutes_end, hours_end), first)
    end += fields.is_one_of("Z", first)
    zone_min = np.where(offset, 60 * hours + np.where(to_minutes, minutes, 0), 0)
    return np.where(fields.is_one_of("-", first), -zone_min, zone_min), end


class _Fields:
    """A column of text by the places of its characters, from 0; 0 stands behind the end of each.

    Attributes:
        lengths: (n,) bytes of each field.
    """

    def __init__(self, text: pa.Array) -> None:
        _, offsets, characters = text.buffers()
        ends = np.frombuffer(offsets, np.int32)[text.offset : text.offset + len(text) + 1]
        self._starts, self.lengths = ends[:-1].astype(np.intp), np.diff(ends)
        self._bytes = np.frombuffer(characters or b"\0", np.uint8)

    def at(self, place: int | Places) -> npt.NDArray[np.uint8]:
        """(n,) the byte at a place, the same in all rows or one for each."""
        byte = np.take(self._bytes, self._starts + place, mode="clip")
        return np.where(place < self.lengths, byte, 0)

    def is_one_of(self, characters: str, place: int | Places) -> Bools:
        """(n,) whether the one at a place is among these."""
        byte = self.at(place)
        return np.logical_or.reduce([byte == ord(each) for each in characters])

    def number(self, first: int | Places, most: int) -> tuple[Ints, Places]:
        """(n,) what up to `most` digits from a place on spell, and (n,) the places behind them."""
        value = np.zeros(len(self.lengths), np.int64)
        end = np.zeros(len(self.lengths), np.intp) + first
        for _ in range(most):
            digit = self.at(end) - np.uint8(ord("0"))  # what stands before 0 becomes large
            more = digit <= 9
            if not more.any():
                break
            value = np.where(more, 10 * value + digit, value)
            end += more
        return value, end

    def fraction(self, point: Places, digits: int) -> tuple[Ints, Places]:
        """(n,) up to `digits` digits behind a point, filled up with zeros, and (n,) their ends.

        Where there is no point at the place, or no digit behind it: 0, and the place.
        """
        value, end = self.number(point + 1, digits)
        there = self.is_one_of(".", point) & (end > point + 1)
        value *= 10 ** (digits - (end - point - 1))
        return np.where(there, value, 0), np.where(there, end, point)
