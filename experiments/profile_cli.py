"""``phasewise profile ...``: measure kernels, import other projects' tables, look at what there is.

Heavy imports stay inside the commands.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from experiments.guard import guarded

profile_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Measure kernels on a GPU, import measured tables, and look at them.",
)


@profile_app.callback()
def _group() -> None:
    """Commands about profiles."""


@profile_app.command(name="import")
@guarded
def import_tables(
    path: Annotated[Path, typer.Argument(help="Folder or file of the other project's profile.")],
    source: Annotated[
        str, typer.Option("--from", help="The project: vidur, llmservingsim or aiconfigurator.")
    ],
    out: Annotated[Path, typer.Option(help="Folder of the data sets; one folder per device.")],
    name: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SHEET",
            help="Our sheet of a device or model that the project names otherwise; repeatable.",
        ),
    ] = None,
    skip: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A device or model to leave out; repeatable."),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(help="The card, where the files do not say, or to overrule them."),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(help="Of several engines (aiconfigurator): vllm, sglang or trtllm."),
    ] = None,
    revision: Annotated[
        str | None, typer.Option(help="Commit of the project, where its files do not say.")
    ] = None,
) -> None:
    """Turn another project's profile into tables for step_time: {model: profile}."""
    from experiments import profile_import

    profile_import.run(source, path, out, name or [], skip or [], device, engine, revision)
