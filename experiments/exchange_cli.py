"""The commands ``phasewise diff`` and ``phasewise export``: results for other tools, and theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from experiments.guard import FAILED, guarded


@guarded
def diff(
    first: Annotated[
        Path, typer.Argument(help="Results with a log of decisions (run --decisions), or the log.")
    ],
    second: Annotated[Path, typer.Argument(help="Another one, also of a real engine.")],
    ignore: Annotated[
        list[str] | None,
        typer.Option("--ignore", metavar="FIELD", help="Do not compare it; repeatable."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Find the first iteration at which two runs, or a run and an engine's log, part.

    Ends with 0 if they are the same, and with 1 if they part.

    \b
    Examples:
      phasewise diff results/a/sarathi results/b/sarathi
      phasewise diff results/a/vllm-v1 engine.jsonl --ignore start_ns --ignore end_ns
    """
    from json import dumps

    from experiments.exchange import decisions, parting

    one, other = decisions.find(first), decisions.find(second)
    found = parting.compare(decisions.read_all(one), decisions.read_all(other), ignore or [])
    if json:
        typer.echo(dumps(parting.as_json(found), indent=1))
    else:
        typer.echo(parting.render(found, str(one), str(other)))
    if found.parting is not None:
        raise typer.Exit(FAILED)


@guarded
def export(
    folders: Annotated[list[Path], typer.Argument(help="Results of `phasewise run`.")],
    format: Annotated[
        str, typer.Option(help="csv (each table) or perfetto (the run, to look at).")
    ],
    out: Annotated[
        Path | None, typer.Option(help="Folder to write to. Default: beside the results.")
    ] = None,
    start: Annotated[
        float | None, typer.Option("--from", help="Only from this second of the run (perfetto).")
    ] = None,
    end: Annotated[
        float | None, typer.Option("--until", help="Only up to this second (perfetto).")
    ] = None,
) -> None:
    """Write results in the formats of other tools.

    \b
    Examples:
      phasewise export results/quickstart --format csv --out tables
      phasewise export results/quickstart/sarathi --format perfetto --from 10 --until 20
    """
    import math

    from experiments import outcome
    from experiments.exchange.export import export as write
    from experiments.exchange.perfetto import Window

    window = None
    if start is not None or end is not None:
        window = Window(0.0 if start is None else start, math.inf if end is None else end)
    for path in write(outcome.finished(folders), format, out, window):
        typer.echo(path)
