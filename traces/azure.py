"""Azure LLM inference traces of 2023 (Splitwise, ISCA 2024) and 2024 (DynamoLLM, HPCA 2025).

CSV: ``TIMESTAMP,ContextTokens,GeneratedTokens``; timestamps of seven digits without a zone (2023),
or of six or no digits with one (2024). Source: the repository AzurePublicDataset, CC-BY 4.0.
"""

from __future__ import annotations

from sim.request import Trace
from traces.build import assemble, columns, note_ignored
from traces.rows import CsvRows
from traces.source import Source

COLUMNS = {
    "arrival": "TIMESTAMP",
    "prompt_tokens": "ContextTokens",
    "output_tokens": "GeneratedTokens",
}


def recognise(names: frozenset[str]) -> bool:
    """Whether folded column names are those of an Azure trace."""
    return {"timestamp", "contexttokens", "generatedtokens"} <= names


def load(source: Source, renamed: dict[str, str]) -> Trace:
    """The rows; arrivals from the first row on, which is at 0.

    Args:
        source: The file.
        renamed: Our name of a column to the file's, where it differs from `COLUMNS`.
    """
    rows = CsvRows(source)
    used = [rows.need(field, renamed.get(field, name)) for field, name in COLUMNS.items()]
    when, prompt, output = used
    note_ignored(source, rows.names, used)
    trace = columns(rows.stamps_ns(when), rows.counts(prompt), rows.counts(output), rows.lines)
    return assemble(source, trace, absolute=True)
