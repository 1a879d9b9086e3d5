"""Length files of Vidur (Agrawal et al., MLSys 2024; MIT): prompt and output lengths, no arrivals.

CSV: ``num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio``. Rows above 4,096 tokens in
all were filtered out by the publisher.
"""

from __future__ import annotations

from sim.request import Trace
from traces.build import assemble, columns, note_ignored
from traces.rows import CsvRows
from traces.source import Source

COLUMNS = {"prompt_tokens": "num_prefill_tokens", "output_tokens": "num_decode_tokens"}


def recognise(names: frozenset[str]) -> bool:
    """Whether folded column names are those of a length file of Vidur without arrivals."""
    return {"numprefilltokens", "numdecodetokens"} <= names and "arrivedat" not in names


def load(source: Source, renamed: dict[str, str]) -> Trace:
    """The lengths; arrivals are all `NEVER`, to be generated.

    Args:
        source: The file.
        renamed: Our name of a column to the file's, where it differs from `COLUMNS`.
    """
    rows = CsvRows(source)
    used = [rows.need(field, renamed.get(field, name)) for field, name in COLUMNS.items()]
    derived = [name for name in (rows.find("num_total_tokens"), rows.find("pd_ratio")) if name]
    note_ignored(source, rows.names, used + derived)
    trace = columns(None, rows.counts(used[0]), rows.counts(used[1]), rows.lines)
    return assemble(source, trace)
