"""``phasewise profile ...``: measure kernels, import other projects' tables, look at what there is.

Heavy imports stay inside the commands.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated

import typer

from experiments.guard import guarded
from sim.errors import ConfigError, ProfileError

profile_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Measure kernels on a GPU, import measured tables, and look at them.",
)


UNWRITABLE = frozenset(
    (
        errno.EACCES, errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG, errno.ENOENT, errno.ENOTDIR,
        errno.EPERM, errno.EROFS,
    )
)  # fmt: skip
"""What the system says of a folder that can be none."""


@contextmanager
def out_of_user(out: Path) -> Iterator[None]:
    """Say of a folder that cannot be written that it is ``--out``: bad input.

    Raises:
        ConfigError: instead of the system's error.
    """
    try:
        yield
    except OSError as error:
        place = Path(error.filename or "")
        if error.errno not in UNWRITABLE or not (
            place.is_relative_to(out) or out.is_relative_to(place)
        ):
            raise
        raise ConfigError(f"--out: {place}: cannot be written: {error.strerror}") from None


@contextmanager
def input_of_user(out: Path | None = None) -> Iterator[None]:
    """Files that a user names, where nothing but them can be wrong: bad input (exit code 2).

    Raises:
        ConfigError: instead of what is said of the tables.
    """
    try:
        with out_of_user(out) if out else nullcontext():
            yield
    except ProfileError as error:
        raise ConfigError(str(error)) from None


@profile_app.callback()
def _group() -> None:
    """Commands about profiles."""


@profile_app.command(name="import")
@guarded
def import_tables(
    path: Annotated[Path, typer.Argument(help="Folder or file of the other project's profile.")],
    source: Annotated[
        str,
        typer.Option("--from", help="vidur, llmservingsim, llmservingsim-v0 or aiconfigurator."),
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
    """Turn another project's profile into tables for step_time: {model: profile}.

    \b
    Examples:
      phasewise profile import vidur/data/profiling --from vidur --out tables
    """
    from experiments import profile_import

    with input_of_user(out):
        profile_import.run(source, path, out, name or [], skip or [], device, engine, revision)


@profile_app.command(name="run")
@guarded
def run_profile(
    models: Annotated[
        list[str],
        typer.Option(help="Models by data sheet or config.json, the most wanted first; commas do."),
    ],
    out: Annotated[Path, typer.Option(help="Folder of the tables; a stopped run goes on.")],
    device: Annotated[
        str,
        typer.Option(help="auto: the GPU here; a data sheet, to be sure of it; cpu: interpreter."),
    ] = "auto",
    tensor_parallel: Annotated[
        list[str] | None, typer.Option(help="GPUs that share the model: 1 by default, or 1,2,4.")
    ] = None,
    dtype: Annotated[
        list[str] | None,
        typer.Option(help="Of linear layers: bf16, fp8; by default all that the device has."),
    ] = None,
    tables: Annotated[
        list[str] | None, typer.Option(help="Only these tables, such as linear,attention_decode.")
    ] = None,
    budget_s: Annotated[
        float | None, typer.Option(min=1, help="Seconds to spend; the most valuable points first.")
    ] = None,
    processes: Annotated[
        int, typer.Option(min=0, help="Processes that compile kernels; 0 for one a core.")
    ] = 0,
    plan: Annotated[
        bool, typer.Option("--plan", help="Say what would be measured, and measure nothing.")
    ] = False,
) -> None:
    """Measure our kernels on a GPU, into tables for step_time: {model: profile}.

    Every operator gets a coarse grid before any gets a finer one. The card's settings are left as
    they are.

    \b
    Examples:
      phasewise profile run --models llama-3.1-8b --out tables --plan
      phasewise profile run --models llama-3.1-8b,qwen3-30b-a3b --out tables --budget-s 600
    """
    from experiments import profile_run

    with out_of_user(out):
        profile_run.run(
            models=models,
            out=out,
            device=device,
            tensor_parallel=tensor_parallel,
            dtypes=dtype,
            tables=tables,
            budget_s=budget_s,
            processes=processes,
            plan_only=plan,
        )


@profile_app.command(name="show")
@guarded
def show_tables(
    path: Annotated[Path, typer.Argument(help="A data set, or a folder of some.")],
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Say what the tables lack for this model; repeatable."),
    ] = None,
) -> None:
    """Say where tables come from, what they hold, and which models they suffice for.

    Interpolation: the median error of points that are taken from their two neighbours.

    \b
    Examples:
      phasewise profile show tables --model llama-3.1-8b
    """
    from experiments import profile_show

    with input_of_user():
        profile_show.run(path, model or [])


@profile_app.command(
    name="replay",
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
@guarded
def replay_trace(context: typer.Context) -> None:
    """Serve requests on the card with our kernels, and compare with a simulation of the same run.

    The options are those of ``python -m experiments.replay``, which needs less to be installed.

    \b
    Examples:
      phasewise profile replay --help
    """
    from experiments import replay

    raise typer.Exit(replay.main(context.args))
