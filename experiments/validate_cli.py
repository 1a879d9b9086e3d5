"""The command ``phasewise validate``: measured servers, and a user's own, beside the simulation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from experiments.guard import FAILED, guarded
from experiments.validation.values import COLUMN_HELP


@guarded
def validate(
    cases: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CASE]...",
            help="Cases to run (experiments/validation/cases); none for all. Not with --config.",
        ),
    ] = None,
    rows: Annotated[bool, typer.Option("--rows", help="Cases: print every measured row.")] = False,
    update: Annotated[
        bool,
        typer.Option("--update", help="Cases: write the committed table anew (expected.csv)."),
    ] = False,
    only_changes: Annotated[
        bool,
        typer.Option(
            "--only-changes",
            help="Cases: a missed bar is no failure, only a change from the committed table.",
        ),
    ] = False,
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
        typer.Option("--column", metavar="OURS=THEIRS", help=COLUMN_HELP),
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
        str, typer.Option(help="As of phasewise run: html, svg, pdf, png; or none.")
    ] = "html",
) -> None:
    """Hold the simulation against measured servers, or (--config, --measured) against your own.

    \b
    Examples:
      phasewise validate
      phasewise validate kv-transfer-h800 --rows
      phasewise validate --config mine.yaml --measured result.json --fit host
    """
    of_cases = {"--rows": rows, "--update": update, "--only-changes": only_changes}
    of_yours = {
        "--format": format, "--column": columns, "--run": run, "--variant": variant,
        "--concurrency": concurrency, "--set": settings, "--fit": fit,
        "--figures": figures != "html",
    }  # fmt: skip
    if config is None and measured is None:
        _refuse_given(of_yours, "needs --config CONFIG and --measured FILE")
        _run_cases(cases or [], out, rows=rows, update=update, only_changes=only_changes)
        return
    if cases:
        raise _misuse(f"{cases[0]}: a case brings its own config and measurement")
    _refuse_given(of_cases, "is of the shipped cases; not with --config and --measured")
    from experiments.config import slug
    from experiments.outcome import formats_of, pairs, say_left_out
    from experiments.validation.own import compare_with_server
    from sim.errors import ConfigError

    if config is None or measured is None:
        lacks = "--config CONFIG" if config is None else "--measured FILE"
        raise _misuse(
            f"expected both --config CONFIG and --measured FILE, or neither; {lacks} is missing"
        )
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
    written = compared.write(folder, formats)
    for path in written.files:
        typer.echo(f"wrote {path}", err=True)
    say_left_out(written, formats)


def _refuse_given(options: Mapping[str, object], why: str) -> None:
    """Refuse the first option that is given, as it would do nothing."""
    for name, value in options.items():
        if value not in (None, False, []):
            raise _misuse(f"{name} {why}")


def _misuse(text: str) -> Exception:
    from sim.errors import ConfigError

    return ConfigError(f"validate: {text}")


def _run_cases(
    names: list[str], out: Path | None, *, rows: bool, update: bool, only_changes: bool
) -> None:
    """Run shipped cases; exit code 1 where a bar is missed or the committed table differs."""
    from experiments.validation import expected, overlays, report
    from experiments.validation.outcome import Outcome
    from experiments.validation.run import run_cases

    folder = out or Path("results") / "validation"
    folder.mkdir(parents=True, exist_ok=True)

    def tell(outcome: Outcome) -> None:
        typer.echo(report.render(outcome, with_rows=rows) + "\n")

    outcomes = run_cases(names, folder, tell)
    written = [
        report.write_rows(outcomes, folder / "rows.csv"),
        report.write_text(outcomes, folder / "report.txt"),
    ]
    page = overlays.write(outcomes, folder / "overlays.html")
    for path in [*written, *([page] if page else [])]:
        typer.echo(f"wrote {path}", err=True)
    missed = [bar for outcome in outcomes for bar in outcome.bars if not bar.passed]
    bars = sum(len(outcome.bars) for outcome in outcomes)
    typer.echo(f"{bars - len(missed)} of {bars} bars are met")
    for bar in missed:
        typer.echo(f"MISS  {bar.case}: {bar.text}: {bar.value:.1%}")
    if update:
        expected.write(outcomes)
        typer.echo(f"wrote {expected.EXPECTED}", err=True)
    changed = expected.changes(outcomes)
    for text in changed:
        typer.echo(f"changed: {text}")
    if changed or (missed and not only_changes):
        raise typer.Exit(FAILED)
