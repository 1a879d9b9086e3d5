"""Between Arrow and numpy by way of their buffers.

`pyarrow.array`, `pyarrow.scalar` and `to_numpy` import pandas (0.4 s), which nothing here needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pyarrow as pa

Bools = npt.NDArray[np.bool_]


def from_numbers(column: npt.NDArray[Any], valid: Bools | None = None) -> pa.Array:
    """A column of numbers (n,), null where not `valid` (n,)."""
    import pyarrow as pa

    column = np.ascontiguousarray(column)
    bits = None
    if valid is not None and not valid.all():
        # Zeros under nulls: what lies there must not depend on how the column was made.
        column = np.where(valid, column, 0).astype(column.dtype)
        bits = _bits(valid)
    kind = pa.from_numpy_dtype(column.dtype)
    return pa.Array.from_buffers(kind, len(column), [bits, pa.py_buffer(column)])


def from_strings(texts: Sequence[str | None]) -> pa.Array:
    """A column of text, null where None; half of a surrogate pair is written as its escape."""
    import pyarrow as pa

    encoded = [(text or "").encode(errors="backslashreplace") for text in texts]
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    bits = None if None not in texts else _bits(np.array([text is not None for text in texts]))
    buffers = [bits, pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(encoded), buffers)


def to_numbers(array: pa.Array, null: int | None = None) -> npt.NDArray[Any]:
    """A column of numbers of fixed width (n,), `null` where there is none; may be read-only.

    Args:
        array: Numbers of 8 to 64 bits.
        null: What nulls become; None promises that there are none, or that they do not matter.
    """
    dtype = array.type.to_pandas_dtype()
    if not len(array):
        return np.zeros(0, dtype)
    column = np.frombuffer(array.buffers()[1], dtype)[array.offset : array.offset + len(array)]
    if null is None or not array.null_count:
        return column
    return np.where(_valid(array), column, null).astype(dtype)


def _valid(array: pa.Array) -> Bools:
    end = array.offset + len(array)
    packed = np.frombuffer(array.buffers()[0], np.uint8)
    return np.unpackbits(packed, count=end, bitorder="little")[array.offset :].view(np.bool_)


def _bits(column: Bools) -> pa.Buffer:
    import pyarrow as pa

    return pa.py_buffer(np.packbits(column, bitorder="little"))
