"""The command `phasewise`: each command is a few lines over a function that Python can call too.

Exit codes: 0 done, 1 a run failed or what was compared differs, 2 the input is wrong, 130
interrupted. What is wrong is one line on stderr. Everything heavy is imported inside the commands,
so that ``phasewise --help`` is quick.
"""

from __future__ import annotations

import copy
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from experiments import completion
from experiments.capacity_cli import capacity
from experiments.exchange_cli import diff, export
from experiments.explain_cli import explain
from experiments.guard import FAILED, guarded
from experiments.misuse import OneLineErrors
from experiments.new_cli import new_app
from experiments.papers_cli import papers
from experiments.profile_cli import profile_app
from experiments.search_cli import search
from experiments.sweep_cli import sweep, sweep_plot
from experiments.validate_cli import validate
from experiments.validation.values import COLUMN_HELP
from experiments.version import __version__

app = typer.Typer(
    cls=OneLineErrors,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Replay a request trace through LLM-serving schedulers and compare their latencies.",
    epilog="Exit codes: 0 done; 1 a run failed, or what was compared differs; 2 the input is "
    "wrong; 130 interrupted. Tab completion: phasewise --install-completion.",
)
trace_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Look at, make and fetch request traces."
)
app.add_typer(trace_app, name="trace")
app.add_typer(profile_app, name="profile")
app.command()(validate)
app.command()(capacity)
app.command()(papers)
app.command()(sweep)
app.command(name="sweep-plot")(sweep_plot)
app.command()(explain)
app.command()(diff)
app.command()(export)
app.command()(search)
app.add_typer(new_app, name="new")

Config = Annotated[
    str,
    typer.Argument(
        help="A YAML file, or the name of a shipped config.", autocompletion=completion.configs
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key in every variant; repeatable."),
]
Folders = Annotated[list[Path], typer.Argument(help="Results of `phasewise run`, one or more.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
RequestClass = Annotated[
    str | None, typer.Option("--class", help="Only the requests of this class of the trace.")
]


def main() -> None:
    """Run the command line."""
    _with_command(sys.argv[1] if len(sys.argv) > 1 else "")(prog_name="phasewise")


def _with_command(name: str) -> typer.Typer:
    """The command line with one command alone; with all where it is none, as for ``--help``.

    All together take 0.1 s to build.
    """
    commands = [
        each
        for each in app.registered_commands
        if name == (each.name or getattr(each.callback, "__name__", None))
    ]
    groups = [each for each in app.registered_groups if each.name == name]
    if not commands and not groups:
        return app
    alone = copy.copy(app)
    alone.registered_commands, alone.registered_groups = commands, groups
    return alone


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"phasewise {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Options of the command itself."""


# --- running and checking


@app.command()
@guarded
def run(
    config: Config,
    settings: Settings = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the results. Default: results/NAME.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Variants run at a time. Default: one per CPU.")
    ] = None,
    shards: Annotated[
        int,
        typer.Option(
            min=1,
            help="Processes that share a variant's replicas, where these do not interact.",
        ),
    ] = 1,
    figures: Annotated[
        str,
        typer.Option(
            help="Figures, comma-separated: html, svg, pdf, png; or none. "
            "Images alone that cannot be written are an error."
        ),
    ] = "html",
    check: Annotated[
        bool, typer.Option("--check", help="Check the invariants after every step (slow).")
    ] = False,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Refuse step times beyond what tables have measured."),
    ] = False,
    trace: Annotated[
        str | None,
        typer.Option(
            help="perfetto: also write each run for ui.perfetto.dev and chrome://tracing."
        ),
    ] = None,
    decisions: Annotated[
        bool,
        typer.Option("--decisions", help="Also write every scheduling decision (phasewise diff)."),
    ] = False,
    report: Annotated[
        bool, typer.Option("--report", help="Also write report.html, as phasewise report does.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Run every variant of a config; print the table, write results and figures.

    \b
    Examples:
      phasewise run quickstart
      phasewise run quickstart --set workload.requests=500 --out results/short
      phasewise run mine.yaml --figures svg,pdf --jobs 4
      phasewise run mine.yaml --decisions --trace perfetto
      phasewise run mine.yaml --report
      phasewise run mine.yaml --shards 8
    """
    from experiments import outcome
    from experiments.config import load, slug

    overrides = {"check": True} if check else {}
    overrides |= {"record.decisions": True} if decisions else {}
    plan = load(config, settings or [], overrides, strict=strict)
    traces = outcome.traces_of(plan, trace)
    outcome.check_shards(shards, jobs)
    outcome.run(
        plan,
        out or Path("results") / slug(plan.name),
        processes=jobs or os.cpu_count() or 1,
        formats=outcome.formats_of(figures, "--figures"),
        as_json=json,
        traces=traces,
        page=report,
        shards=shards,
    )


@app.command(name="check")
@guarded
def check_config(config: Config, settings: Settings = None, json: AsJson = False) -> None:
    """Validate a config and print what would run.

    \b
    Examples:
      phasewise check mine.yaml
      phasewise check quickstart --json
    """
    from experiments import outcome
    from experiments.config import load

    outcome.check(load(config, settings or []), as_json=json)


@app.command()
@guarded
def schema() -> None:
    """Print the JSON Schema of a config, for editors.

    \b
    Examples:
      phasewise schema > phasewise.schema.json
    """
    import json

    from experiments.json_schema import json_schema

    typer.echo(json.dumps(json_schema(), indent=1))


@app.command(name="check-policy")
@guarded
def check_policy(
    name: Annotated[
        str,
        typer.Argument(
            help="A shipped policy or router, or module:Class.", autocompletion=completion.plugins
        ),
    ],
    workloads: Annotated[int, typer.Option(min=1, help="Random workloads to check on.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Number of the first workload.")] = 0,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="OPTION=VALUE", help="An option of it; repeatable."),
    ] = None,
) -> None:
    """Check that a policy or router keeps the contract; shrink the first failure.

    \b
    Examples:
      phasewise check-policy sarathi --set budget_tokens=256
      phasewise check-policy short_first:ShortFirst --workloads 1000
    """
    from experiments.check_policy import check_policy as checked
    from experiments.config import parse_settings

    options = parse_settings(settings or [])
    report = checked(name, workloads=workloads, seed=seed, options=options, folder=Path.cwd())
    typer.echo(str(report))
    if report.failure is not None:
        raise typer.Exit(FAILED)


# --- results


@app.command()
@guarded
def table(
    folders: Folders,
    format: Annotated[
        str | None, typer.Option(help="markdown, latex or csv. Default: for the terminal.")
    ] = None,
    request_class: RequestClass = None,
    by: Annotated[
        str | None, typer.Option("--by", help="A row for each class or tenant of each variant.")
    ] = None,
) -> None:
    """Print the comparison of results as a table.

    \b
    Examples:
      phasewise table results/quickstart
      phasewise table results/a results/b --format latex
      phasewise table results/quickstart --by class
    """
    from experiments import bundle, outcome

    heads = [bundle.read_head(folder) for folder in outcome.finished(folders)]
    outcome.table(heads, format, request_class, outcome.answers(folders), by)
    if format is None and request_class is None and by is None:
        outcome.print_repeated_below(folders)


@app.command()
@guarded
def compare(
    first: Annotated[Path, typer.Argument(help="Results of one variant.")],
    second: Annotated[Path, typer.Argument(help="Results of another, of whatever run.")],
    json: AsJson = False,
) -> None:
    """Say how two results differ: their configs, and their numbers if that is no noise.

    \b
    Examples:
      phasewise compare results/quickstart/sarathi results/quickstart/orca
    """
    from experiments import outcome
    from experiments.compare_runs import comparison, read_variant, values

    def tell(text: str) -> None:
        typer.echo(text, err=True)

    one, other = read_variant(first, tell), read_variant(second, tell)
    outcome.print_comparison(None if json else comparison(one, other), lambda: values(one, other))


@app.command()
@guarded
def plot(
    folders: Folders,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the figures. Default: the first of the results.")
    ] = None,
    style: Annotated[str, typer.Option(help="Of the images: paper or slide.")] = "paper",
    width_mm: Annotated[float | None, typer.Option(help="Width of the images, mm.")] = None,
    x: Annotated[str, typer.Option(help="Axis of the latencies: log or linear.")] = "log",
    formats: Annotated[
        str,
        typer.Option(
            help="Comma-separated: html, svg, pdf, png. Images alone that cannot be written are an "
            "error."
        ),
    ] = "html,svg,pdf,png",
    request_class: RequestClass = None,
) -> None:
    """Draw the figures of results again, also across several runs.

    \b
    Examples:
      phasewise plot results/quickstart --formats pdf --width-mm 84
      phasewise plot results/a results/b --out figures --style slide
    """
    from experiments import bundle, outcome

    done = outcome.finished(folders)
    outcome.plot(
        [bundle.read(folder, with_steps=False) for folder in done],
        out or folders[0],
        style=style,
        width_mm=width_mm,
        x_scale=x,
        formats=outcome.formats_of(formats, "--formats"),
        request_class=request_class,
        about=" ".join(outcome.answers(folders)),
        runs=outcome.read_runs(done),
    )


@app.command(name="report")
@guarded
def write_report(
    folders: Folders,
    out: Annotated[
        Path | None, typer.Option(help="The page. Default: report.html in the first folder.")
    ] = None,
) -> None:
    """Write one HTML page of results that opens offline: what was slow, and why.

    Tables, distributions with their floors, load over time, what each replica did when, and the
    ten worst requests step by step.

    \b
    Examples:
      phasewise report results/quickstart
      phasewise report results/a results/b/sarathi --out both.html
    """
    from experiments import outcome

    outcome.report(folders, out)


# --- names and metrics


@app.command(name="list")
@guarded
def list_names(
    kind: Annotated[
        str,
        typer.Argument(
            help="policies, routers, orders, predictors, devices, models, presets, engines, "
            "configs, formats or traces.",
            autocompletion=completion.kinds,
        ),
    ],
    json: AsJson = False,
) -> None:
    """List ready-made names.

    \b
    Examples:
      phasewise list policies
      phasewise list devices --json
    """
    from experiments import outcome

    outcome.list_names(kind, as_json=json)


@app.command()
@guarded
def metrics(json: AsJson = False) -> None:
    """Print how each metric is defined.

    \b
    Examples:
      phasewise metrics
      phasewise metrics --json
    """
    from experiments import outcome

    outcome.metrics(as_json=json)


@app.command()
@guarded
def phases(
    model: Annotated[
        str,
        typer.Option(help="Name, or a Hugging Face config.json.", autocompletion=completion.models),
    ],
    device: Annotated[
        str, typer.Option(help="Name of a data sheet.", autocompletion=completion.devices)
    ],
    prompt: Annotated[int, typer.Option(min=1, help="Tokens of a prompt.")] = 1024,
    batch: Annotated[int, typer.Option(min=1, help="Decodes, or prompts, of a step.")] = 32,
    context: Annotated[
        int | None, typer.Option(min=1, help="Tokens a decode attends to. Default: the prompt.")
    ] = None,
    output: Annotated[int, typer.Option(min=1, help="Tokens that a request emits.")] = 128,
    precision: Annotated[str, typer.Option(help="Of the weights.")] = "bf16",
    kv_dtype: Annotated[str, typer.Option(help="Of the KV cache.")] = "bf16",
    tensor_parallel: Annotated[int, typer.Option(min=1, help="GPUs of a replica.")] = 1,
    token_rows: Annotated[
        bool,
        typer.Option("--token-rows", help="Also count rows with and without a KV cache."),
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Also draw the roofline, as one HTML file.")
    ] = None,
    json: AsJson = False,
) -> None:
    """The arithmetic of prefill and decode: FLOPs, bytes, what bounds them, and the floors.

    \b
    Examples:
      phasewise phases --model llama-3.1-8b --device h100-sxm
      phasewise phases --model llama-3.1-8b --device a100-sxm-80gb --plot roofline.html
    """
    from experiments.phases import Question, run

    asked = Question(
        model,
        device,
        prompt,
        batch,
        context or prompt,
        output,
        precision,
        kv_dtype,
        tensor_parallel,
    )
    run(asked, rows=token_rows, plot=plot, as_json=json)


# --- traces


@trace_app.command()
@guarded
def info(
    file: Annotated[Path, typer.Argument(help="A trace file, plain or gzip.")],
    format: Annotated[
        str | None, typer.Option(help="Default: recognised from the content.")
    ] = None,
    columns: Annotated[
        list[str] | None,
        typer.Option("--column", metavar="OURS=THEIRS", help="Name of a column; repeatable."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Print counts, rate, burstiness, quantiles, and what was odd.

    \b
    Examples:
      phasewise trace info mine.csv
      phasewise trace info log.csv --column arrival_s=timestamp
    """
    from json import dumps

    from experiments.outcome import pairs
    from traces.info import as_json, describe, render

    found = describe(file, format, pairs(columns or [], "--column"))
    typer.echo(dumps(as_json(found), indent=1) if json else render(found))


@trace_app.command()
@guarded
def prefix(
    file: Annotated[Path, typer.Argument(help="A trace file with block ids or sessions.")],
    block_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens of a KV block. Default: the trace's own, else 16."),
    ] = None,
    capacity: Annotated[
        list[str] | None,
        typer.Option(help="Blocks, or a share of the different ones, such as 5%; repeatable."),
    ] = None,
    eviction: Annotated[str, typer.Option(help="lru, fifo or lfu.")] = "lru",
    format: Annotated[
        str | None, typer.Option(help="Default: recognised from the content.")
    ] = None,
    columns: Annotated[
        list[str] | None,
        typer.Option("--column", metavar="OURS=THEIRS", help="Name of a column; repeatable."),
    ] = None,
    prompts: Annotated[
        str | None,
        typer.Option(help="whole or incremental: of sessions without block ids."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Count the prompt tokens that prefix caches of any size would have found.

    \b
    Examples:
      phasewise trace prefix mine.jsonl --capacity 1000 --capacity 5%
    """
    from json import dumps

    import traces
    from experiments.outcome import pairs
    from traces.reuse import prefix_reuse
    from traces.reuse_table import SHARES, figures, render
    from traces.turns import identified

    trace = identified(traces.load(file, format, pairs(columns or [], "--column")), prompts)
    shown = figures(prefix_reuse(trace, block_tokens), capacity or SHARES, eviction)
    typer.echo(dumps(shown, indent=1) if json else render(trace.source, shown))


@trace_app.command()
@guarded
def synth(
    preset: Annotated[
        str, typer.Argument(help="Name of a preset.", autocompletion=completion.presets)
    ],
    requests: Annotated[int, typer.Option("-n", "--requests", min=1, help="Requests to make.")],
    output: Annotated[Path, typer.Option("-o", "--output", help=".csv or .jsonl, also .gz.")],
    rate: Annotated[
        float | None, typer.Option("--rate", help="Requests per second. Default: the preset's.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of all draws.")] = 0,
) -> None:
    """Make a synthetic trace.

    \b
    Examples:
      phasewise trace synth azure-conv-2023 -n 1000 -o conv.csv --rate 4 --seed 1
    """
    from experiments.names import unknown
    from sim.errors import TraceError
    from traces.generators import GENERATORS, as_rows
    from traces.presets import PRESETS, synthesize
    from traces.write import write

    name = preset.replace("_", "-")
    if name not in (*PRESETS, *GENERATORS):
        raise TraceError(f"trace synth: {unknown('preset', preset, (*PRESETS, *GENERATORS))}")
    if rate is not None and not 1e-6 <= rate <= 1e6:
        raise TraceError(f"trace synth: --rate {rate:g}: expected 1e-6 to 1e6 requests a second")
    if name in GENERATORS and rate is None:
        raise TraceError(f"trace synth: --rate: is required: how {name} arrives is not recorded")
    if name in GENERATORS and rate is not None:
        trace = as_rows(name, requests, rate, seed)
    else:
        trace = synthesize(name, requests, rate_per_s=rate, seed=seed)
    path = write(trace, output)
    typer.echo(f"{path}: {len(trace):,} requests")
    for note in trace.notes:
        typer.echo(note)


@trace_app.command()
@guarded
def fetch(
    name: Annotated[str, typer.Argument(help="Name of a public trace (`phasewise list traces`).")],
    out: Annotated[Path, typer.Option(help="Folder to download into.")] = Path(),
) -> None:
    """Download a public trace from its publisher.

    \b
    Examples:
      phasewise trace fetch azure-conv-2023 --out traces
    """
    from traces.fetch import fetch as download

    for fetched in download(name, out):
        typer.echo(fetched.render())


@trace_app.command(name="from-bench")
@guarded
def from_bench(
    file: Annotated[
        Path,
        typer.Argument(
            help="Result of `vllm bench serve --save-result --save-detailed`, of SGLang's "
            "bench_serving --output-details, AIPerf's profile_export.jsonl, or a CSV."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help=".csv or .jsonl, also .gz.")],
    format: Annotated[
        str | None,
        typer.Option(help="vllm, sglang, aiperf or csv. Default: recognised from the content."),
    ] = None,
    columns: Annotated[
        list[str] | None,
        typer.Option("--column", metavar="OURS=THEIRS", help=COLUMN_HELP),
    ] = None,
    run: Annotated[int | None, typer.Option(min=1, help="Which of several runs in a file.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of arrival times that must be drawn.")] = 0,
) -> None:
    """Make a trace of a real server's benchmark: the same requests at the same times.

    \b
    Examples:
      phasewise trace from-bench result.json --out mine.csv
    """
    from experiments.outcome import pairs
    from experiments.validation.bench_trace import trace_of
    from experiments.validation.measured import read_measurement
    from traces.write import write

    measurement = read_measurement(
        file, format=format, columns=pairs(columns or [], "--column"), run=run
    )
    trace = trace_of(measurement, seed)
    path = write(trace, out)
    typer.echo(f"{path}: {len(trace):,} requests of {file} ({measurement.format})")
    for note in trace.notes:
        typer.echo(note)
