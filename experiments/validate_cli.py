"""The command ``phasewise validate``: a user's own server against the simulation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from experiments.guard import guarded


@guarded
def validate(
    config: Annotated[
        str | None,
        typer.Option(
            help="A YAML file, or the name of a shipped config; its workload is replaced."
        ),
    ] = None,
    measured: Annotated[
        Path | None,
        typer.Option(
            help="What your server measured: the result of `vllm bench serve --save-result "
            "--save-detailed`, of SGLang's bench_serving --output-details, AIPerf's "
            "profile_export.jsonl, or a CSV."
        ),
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(help="vllm, sglang, aiperf or csv. Default: recognised from the content."),
    ] = None,
    columns: Annotated[
        list[str] | None,
        typer.Option("--column", metavar="OURS=THEIRS", help="A CSV's column; repeatable."),
    ] = None,
    run: Annotated[int | None, typer.Option(min=1, help="Which of several runs in a file.")] = None,
    variant: Annotated[
        str | None, typer.Option(help="Which of several variants of the config, by its label.")
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Serve in a closed loop of so many requests. Default: the file's "
            "arrival times, or its limit where it has none.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the config."),
    ] = None,
    fit: Annotated[
        str | None,
        typer.Option(help="host: fit the host's two constants, and say what they became."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the results. Default: results/NAME-measured.")
    ] = None,
    figures: Annotated[
        str, typer.Option(help="Figures, comma-separated: html, svg, pdf, png; or none.")
    ] = "html",
) -> None:
    """Hold the simulation against what your own server measured."""
    from experiments.config import slug
    from experiments.outcome import formats_of, pairs
    from experiments.validation.own import compare_with_server
    from sim.errors import ConfigError

    if config is None or measured is None:
        raise ConfigError("validate: expected --config CONFIG and --measured FILE")
    if fit not in (None, "host"):
        raise ConfigError(f"--fit {fit}: expected host")
    formats = formats_of(figures, "--figures")
    compared = compare_with_server(
        config,
        measured,
        format=format,
        columns=pairs(columns or [], "--column"),
        run=run,
        variant=variant,
        concurrency=concurrency,
        settings=settings or [],
        fit_host=fit is not None,
        told=lambda text: typer.echo(text, err=True),
    )
    typer.echo(str(compared))
    folder = out or Path("results") / f"{slug(compared.replay.experiment.name)}-measured"
    for path in compared.save(folder, formats):
        typer.echo(f"wrote {path}", err=True)
