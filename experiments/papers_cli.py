"""The command ``phasewise papers``: figures of serving papers redone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from experiments.guard import guarded


@guarded
def papers(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Shipped figures, or YAML files with a paper block. Default: all."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the page and all runs.")] = Path(
        "results/papers"
    ),
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time. Default: one per CPU.")
    ] = None,
    figures: Annotated[
        str | None,
        typer.Option(
            help="Images, comma-separated: svg, pdf, png; or none. Those asked for that cannot be "
            "written are an error. Default: svg, if it can be."
        ),
    ] = None,
    readme: Annotated[
        Path | None, typer.Option(help="Also write the tables as Markdown to this file.")
    ] = None,
    list_only: Annotated[
        bool, typer.Option("--list", help="Print the names and what each figure is.")
    ] = False,
) -> None:
    """Redo the figures of serving papers, and say which of their orderings come out.

    \b
    Examples:
      phasewise papers
      phasewise papers orca sarathi --out results/papers
    """
    from experiments.extras import UndrawnError
    from experiments.outcome import formats_of
    from experiments.papers import command, page
    from experiments.papers.block import read, shipped

    if list_only:
        for name in shipped():
            paper = read(name).paper
            typer.echo(f"{name:<24}{paper.of}: {paper.figure}")
        return
    built = command.build(
        names or [],
        out,
        processes=jobs or os.cpu_count() or 1,
        formats=("svg",) if figures is None else formats_of(figures, "--figures"),
        tell=lambda text: typer.echo(text, err=True),
    )
    for one in built.told:
        for each in one.claims:
            typer.echo(f"{one.evaluated.redone.name}: {each.outcome}: {each.claim.says}")
            if each.ours:
                typer.echo(f"    {each.ours}")
    for note in built.notes:
        typer.echo(note)
    typer.echo(page.counts(built.told))
    typer.echo(f"{built.files[0]} ({built.wall_s:.0f} s)")
    if readme is not None:
        readme.write_text(page.markdown(built.told), encoding="utf-8")
    if built.undrawn and figures is not None:
        raise UndrawnError(built.undrawn)
