"""The command ``phasewise capacity``: how much load a deployment bears."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from experiments import completion
from experiments.guard import guarded


@guarded
def capacity(
    config: Annotated[
        str,
        typer.Argument(
            help="A YAML file, or the name of a shipped config.", autocompletion=completion.configs
        ),
    ],
    goal: Annotated[
        str | None,
        typer.Option(
            help="What has to hold, such as 'ttft_s.p99 <= 0.5 and classes.chat.tpot_s.p99.9 < "
            "0.05' (phasewise metrics). Default: the config's slo, met by --attainment."
        ),
    ] = None,
    attainment: Annotated[
        float | None,
        typer.Option(help="Share of requests that meet the slo, without --goal [default: 0.99]."),
    ] = None,
    highest: Annotated[
        str | None,
        typer.Option(
            metavar="KEY", help="The highest value of a whole-numbered key instead of the rate."
        ),
    ] = None,
    lowest: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="The lowest value that does, such as of replicas."),
    ] = None,
    best: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="The best of several --values, such as of a budget."),
    ] = None,
    values: Annotated[
        str | None, typer.Option(help="With --best: 128,256,512 or 128..2048 (doubling).")
    ] = None,
    splits: Annotated[
        int | None,
        typer.Option(
            min=2, metavar="GPUS", help="The best split of GPUs between prefill and decode."
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(help="With --best and --splits: what is to be best. Default: SLO met."),
    ] = None,
    start: Annotated[
        float | None,
        typer.Option(
            "--from", min=1e-6, help="Where to begin. Default: the rate of the config; 1, of a key."
        ),
    ] = None,
    precision: Annotated[
        float, typer.Option(min=1e-4, max=1, help="Width of the bracket in which a rate ends.")
    ] = 0.02,
    repeats: Annotated[
        int, typer.Option(min=1, help="Runs with other seeds where noise decides.")
    ] = 5,
    runs: Annotated[int, typer.Option(min=1, help="Most runs of a variant.")] = 200,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Override a key in every variant; repeatable."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of all points. Default: results/NAME-capacity.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time. Default: one per CPU.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Find the highest arrival rate that a goal allows, or the fewest replicas, or the best key.

    \b
    Examples:
      phasewise capacity quickstart --goal 'ttft_s.p99 <= 1 and tpot_s.p99 <= 0.05'
      phasewise capacity mine.yaml --lowest replicas --attainment 0.95
      phasewise capacity mine.yaml --best policy.budget_tokens --values 128..2048
      phasewise capacity mine.yaml --splits 8 --by goodput_requests_per_s
    """
    from experiments.capacity import command
    from experiments.capacity.choice import candidates_of
    from experiments.config import load, slug
    from experiments.outcome import print_found
    from sim.errors import ConfigError

    asked = [name for name, value in (("--highest", highest), ("--lowest", lowest),
             ("--best", best), ("--splits", splits)) if value is not None]  # fmt: skip
    if len(asked) > 1:
        raise ConfigError(f"capacity: {' and '.join(asked)}: give one of them")
    if (best is None) != (values is None):
        raise ConfigError("capacity: --best KEY and --values LIST: give both, or neither")
    choosing = best is not None or splits is not None
    if attainment is not None:
        if goal is not None or choosing:
            other = "--goal" if goal is not None else "--best and --splits"
            raise ConfigError(f"capacity: --attainment {attainment:g}: not with {other}")
        if not 0 < attainment <= 1:
            raise ConfigError(
                f"capacity: --attainment {attainment:g}: expected a share above 0 and at most 1, "
                "such as 0.99"
            )
    if by is not None and not choosing:
        raise ConfigError(f"capacity: --by {by}: needs --best or --splits")
    name = load(config, settings or []).name
    options = command.Options(
        out=out or Path("results") / f"{slug(name)}-capacity",
        processes=jobs or os.cpu_count() or 1,
        repeats=repeats,
        most_runs=runs,
        precision=precision,
        start=start,
        tell=lambda text: typer.echo(text, err=True),
    )
    if choosing:
        found = command.best(
            config,
            by or "slo_attainment",
            options=options,
            key=best,
            values=[] if values is None else candidates_of(values, "--values"),
            gpus=splits,
            goal=goal,
            settings=settings or [],
        )
    else:
        found = command.highest(
            config,
            goal,
            options=options,
            key=highest or lowest,
            lowest=lowest is not None,
            attainment=command.ATTAINMENT if attainment is None else attainment,
            settings=settings or [],
        )
    print_found(found, options.out, as_json=json)
