"""The commands ``phasewise sweep`` and ``phasewise sweep-plot``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from experiments.guard import FAILED, guarded


@guarded
def sweep(
    config: Annotated[
        str, typer.Argument(help="A YAML file with a key sweep, or the name of a shipped config.")
    ],
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE[,VALUE]",
            help="Override a key in every point; several values, or {from: 1, to: 8, steps: 4}, "
            "sweep it. Repeatable.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the data set. Default: results/NAME-sweep.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time. Default: one per CPU.")
    ] = None,
    executor: Annotated[
        str, typer.Option(help="local: processes here; ray: a Ray cluster (extra: cluster).")
    ] = "local",
    address: Annotated[
        str | None,
        typer.Option(help="Of an existing Ray cluster, such as auto. Default: one started here."),
    ] = None,
    fresh: Annotated[
        bool,
        typer.Option("--fresh", help="Drop rows and figures of the folder. Default: go on."),
    ] = False,
    retry: Annotated[
        bool, typer.Option("--retry", help="Run again what failed; else its error is kept.")
    ] = False,
    extend: Annotated[
        bool,
        typer.Option(
            "--extend", help="Add points to the sweep in the folder, which keeps its rows."
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would run, or why not, and run nothing.")
    ] = False,
    figures: Annotated[
        str,
        typer.Option(
            help="Figures, comma-separated: html, svg, pdf, png; or none. "
            "Images alone that cannot be written are an error."
        ),
    ] = "html",
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run every point of a sweep; one data set of all numbers, which a killed sweep goes on with.

    Ends with 0 if every run finished, 1 if some failed (their rows say why, the rest is there), 2
    if the config or an option is wrong, 130 after Ctrl-C.

    \b
    Examples:
      phasewise sweep sweep_token_budget
      phasewise sweep mine.yaml --set policy.budget_tokens=128,256,512 --jobs 8
      phasewise sweep mine.yaml --set policy.budget_tokens=128,256,512,1024 --extend
      phasewise sweep mine.yaml --executor ray --address auto
    """
    from experiments.outcome import formats_of
    from experiments.sweep import report
    from experiments.sweep.command import ask, standing
    from experiments.sweep.command import sweep as run
    from experiments.sweep.dataset import SweepError
    from experiments.sweep.executors import make_executor

    formats = formats_of(figures, "--figures")
    runner = make_executor(executor, jobs, address)
    asked = ask(config, settings or [])
    for note in asked.notes:
        typer.echo(note, err=True)
    if dry_run:
        there = standing(asked, out, fresh=fresh, retry=retry, extend=extend)
        report.print_asked(asked, there, as_json=json)
        if there is not None and there.refusal:
            raise SweepError(there.refusal)
        return
    swept = run(asked, out, runner, fresh=fresh, retry=retry, extend=extend, tell=report.Teller())
    report.print_swept(swept, formats, as_json=json)
    if swept.finished < swept.runs:
        raise typer.Exit(FAILED)


@guarded
def sweep_plot(
    folder: Annotated[Path, typer.Argument(help="Folder of a sweep; it may still be running.")],
    over: Annotated[
        str | None,
        typer.Option(metavar="KEY,KEY", help="Keys of the heat maps. Default: the first two."),
    ] = None,
    values: Annotated[
        list[str] | None,
        typer.Option("--value", help="Number of a heat map, such as ttft_s.p99; repeatable."),
    ] = None,
    pareto: Annotated[
        list[str] | None,
        typer.Option(metavar="METRIC,METRIC", help="Numbers of a Pareto plot; repeatable."),
    ] = None,
    at: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Only the points with this value; repeatable."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the figures. Default: FOLDER/figures.")
    ] = None,
    style: Annotated[str, typer.Option(help="Of the images: paper or slide.")] = "paper",
    width_mm: Annotated[float | None, typer.Option(help="Width of the images, mm.")] = None,
    formats: Annotated[
        str,
        typer.Option(
            help="Comma-separated: html, svg, pdf, png. Images alone that cannot be written are an "
            "error."
        ),
    ] = "html,svg,pdf,png",
) -> None:
    """Draw a sweep from its data set: curves over rate and SLO scale, heat maps, Pareto plots.

    \b
    Examples:
      phasewise sweep-plot results/sweep_token_budget-sweep
    """
    from experiments.outcome import formats_of, print_plotted
    from experiments.sweep.plots import plot_sweep
    from sim.errors import ConfigError

    drawn = formats_of(formats, "--formats")
    pairs = [tuple(text.split(",")) for text in pareto or []]
    for text, pair in zip(pareto or [], pairs, strict=True):
        if len(pair) != 2:
            raise ConfigError(f"--pareto {text}: expected two, such as ttft_s.p99,tpot_s.p99")
    plotted = plot_sweep(
        folder,
        out=out,
        over=over.split(",") if over else (),
        values=values or [],
        pairs=[(pair[0].strip(), pair[1].strip()) for pair in pairs],
        at=at or [],
        style=style,
        width_mm=width_mm,
        formats=drawn,
    )
    print_plotted(plotted, drawn)
