"""The command ``phasewise search``: settings that no other ones beat in several numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from experiments import completion
from experiments.guard import guarded


@guarded
def search(
    config: Annotated[
        str,
        typer.Argument(
            help="A YAML file, or the name of a shipped config.", autocompletion=completion.configs
        ),
    ],
    over: Annotated[
        list[str],
        typer.Option(
            metavar="KEY=VALUES",
            help="What may vary: values with commas, or {from: 64, to: 4096, scale: log, whole: "
            "true}. Repeatable.",
        ),
    ],
    objective: Annotated[
        list[str],
        typer.Option(
            metavar="METRIC", help="What is to be good, such as ttft_s.p99 (phasewise metrics)."
        ),
    ],
    trials: Annotated[int, typer.Option(min=1, help="Points to try.")] = 64,
    seed: Annotated[int, typer.Option(min=0, help="Of what is tried.")] = 0,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a key in every point."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the data set. Default: results/NAME-search.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time. Default: one per CPU.")
    ] = None,
    executor: Annotated[str, typer.Option(help="local, or ray (extra: cluster).")] = "local",
    address: Annotated[str | None, typer.Option(help="Of an existing Ray cluster.")] = None,
    fresh: Annotated[
        bool,
        typer.Option("--fresh", help="Drop the rows of the folder. Default: go on with them."),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Search for the settings that no other ones beat in several numbers (the Pareto front).

    Needs optuna (extra: search). Overloaded points are out of bounds. The same search, stopped or
    not and with however many jobs, tries the same points.

    \b
    Examples:
      phasewise search quickstart --over 'policy.budget_tokens={from: 64, to: 4096, scale: log, whole: true}' --objective ttft_s.p99 --objective itl_s.p99
      phasewise search mine.yaml --over replicas=1,2,4,8 --over tensor_parallel=1,2 --objective e2e_s.p99 --objective cost_per_request_usd --trials 40
    """  # noqa: E501
    from experiments.quantity import read_quantity
    from experiments.sweep.definition import split_over
    from experiments.sweep.executors import make_executor
    from experiments.sweep.search import ask
    from experiments.sweep.search import search as run
    from experiments.sweep.search_report import print_found

    objectives = [read_quantity(text, "--objective") for text in objective]
    asked = ask(
        config, split_over(over), objectives, settings=settings or [], trials=trials, seed=seed
    )
    found = run(
        asked,
        out,
        make_executor(executor, jobs, address),
        fresh=fresh,
        tell=lambda done, every: typer.echo(f"{done} of {every} trials", err=True),
    )
    print_found(found, as_json=json)
