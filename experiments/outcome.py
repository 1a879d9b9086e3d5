"""What the commands print: the plan of a run, its table and figures, names and definitions."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments import bundle, cluster, notes
from experiments.bundle import REPEATED, Bundle, BundleError, Head
from experiments.check_answer import check_answer, planned_workload
from experiments.config import Plan
from experiments.extras import UndrawnError, require
from experiments.names import unknown
from experiments.run import (
    FailedRunError,
    InterruptedRunError,
    Job,
    jobs_of,
    replications_of,
    run_jobs,
)
from experiments.schema import Pool
from sim.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from experiments.capacity.command import Found
    from experiments.figures import Plotted
    from experiments.tables import Comparison
    from experiments.uncertainty import Repeated

# --- running


def run(
    plan: Plan,
    out: Path,
    *,
    processes: int,
    formats: Sequence[str],
    as_json: bool = False,
    traces: bool = False,
    page: bool = False,
    shards: int = 1,
) -> None:
    """Run a plan, print its table and write its figures.

    Args:
        plan: What to run.
        out: Folder of the results.
        processes: Variants at a time.
        formats: Of the figures; none for no figures.
        as_json: Print summaries as JSON instead of the table.
        traces: Write each variant for trace viewers too.
        page: Write the report too.
        shards: Processes that share the replicas of a variant (`sim.shards`).

    Raises:
        FailedRunError: A variant failed; what finished is written and shown.
        InterruptedRunError: Ctrl-C; what finished is written and shown.
        UndrawnError: Images alone were asked for, and none could be written; all else is.
    """
    from experiments.progress import Bars

    _say_all(plan.notes)
    check_answer(plan)
    if shards > 1:
        _check_shards_of(plan)
    _refuse_sweep(out)
    jobs, further = jobs_of(plan, out), replications_of(plan, out)
    every = [*jobs, *further]
    bundle.write_index(out, [job.folder.name for job in jobs])
    for job in every:
        if job.damage:
            _say(f"{job.experiment.label}: {job.damage}; simulated again")
    try:
        with Bars(_console(stderr=True)) as bars:
            for job in every:
                bars(job)
            run_jobs(every, plan, processes, bars, shards)
    except InterruptedRunError:
        _show_finished(plan, jobs, further, out, formats=(), as_json=as_json)
        raise
    undrawn = None
    try:
        _show_finished(plan, jobs, further, out, formats, as_json)
    except UndrawnError as error:  # said at the end: the rest is written all the same
        undrawn = error
    if traces:
        _write_traces([job.folder for job in jobs if job.state in _DONE])
    if page and (done := [job.folder for job in jobs if job.state in _DONE]):
        _say(_report(done, out / "report.html"))
    _raise_failures([job for job in every if job.state == "failed"], len(every))
    if undrawn is not None:
        raise undrawn


def _check_shards_of(plan: Plan) -> None:
    from experiments.shards import check_shards

    for experiment in plan.variants:
        try:
            check_shards(experiment, plan.folder)
        except ConfigError as error:
            raise ConfigError(f"{plan.source}: variant {experiment.label}: {error}") from None


def check_shards(shards: int, jobs: int | None) -> None:
    """Whether ``--shards`` and ``--jobs`` go together.

    Raises:
        ConfigError: Both ask for several processes.
    """
    if shards > 1 and jobs is not None and jobs > 1:
        raise ConfigError(
            f"--shards {shards}: variants then run one after the other; take off --jobs {jobs}"
        )


def traces_of(plan: Plan, format: str | None) -> bool:
    """Whether ``--trace`` asks for traces.

    Raises:
        ConfigError: For an unknown format, or where steps are not recorded.
    """
    if format is None:
        return False
    if format != "perfetto":
        raise ConfigError(f"--trace: {unknown('format', format, ('perfetto',))}")
    for each in plan.variants:
        if not each.record.steps:
            raise ConfigError(
                f"{plan.source}: variant {each.label}: record.steps: false: --trace perfetto needs "
                "the steps; take --trace off, or set it to true"
            )
    return True


def _write_traces(folders: Sequence[Path]) -> None:
    from experiments.exchange import perfetto

    for folder in folders:
        _say(f"trace: {perfetto.write(folder)}")


def _index(out: Path, jobs: Sequence[Job], answer: str) -> None:
    """Keep which variants have no results, or none of this config, and why, and the answer."""
    words = {"failed": "failed", "stopped": "stopped before its end"}
    failed = {
        job.folder.name: ": ".join(filter(None, (words[job.state], job.error)))
        for job in jobs
        if job.state in words
    }
    if failed or answer:
        bundle.write_index(out, [job.folder.name for job in jobs], failed, answer)


def _raise_failures(failed: Sequence[Job], ran: int) -> None:
    """One line for each variant that failed, or one for all if it is what they were given."""
    if not failed:
        return
    if len({job.error for job in failed}) == 1 and len(failed) == ran and failed[0].bad_input:
        raise ConfigError(failed[0].error)
    for job in failed[1:]:
        _say(f"phasewise: {job.experiment.label}: {job.error}")
    raise FailedRunError(
        f"{failed[0].experiment.label}: {failed[0].error}",
        bad_input=all(job.bad_input for job in failed),
    )


def _refuse_sweep(out: Path) -> None:
    """Variants among the points of a sweep would be taken for part of it."""
    from experiments.sweep.dataset import ABOUT

    if (out / ABOUT).is_file():
        raise ConfigError(f"{out}: holds a sweep; give another --out")


def _show_finished(
    plan: Plan,
    jobs: Sequence[Job],
    further: Sequence[Job],
    out: Path,
    formats: Sequence[str],
    as_json: bool,
) -> None:
    done = [job.folder for job in jobs if job.state in _DONE]
    heads = [bundle.read_head(folder) for folder in done]
    answer = plan.answer.said({e.label: e.summary for e in heads}) if plan.answer and done else ""
    _index(out, jobs, answer)
    if not done:
        return
    repeated = _repeated(jobs, further, out) if further else []
    if not further:
        (out / REPEATED).unlink(missing_ok=True)  # of an earlier run with replications
    if as_json:
        told = {} if not repeated else bundle.read_values(out / REPEATED)["variants"]
        _print_json(
            {
                each.label: each.summary
                | ({"replications": told[each.label]} if each.label in told else {})
                for each in heads
            }
        )
        _say_all([answer] if answer else [])  # stdout has variants only
    else:
        if plan.about:
            # Lines are broken where the terminal ends, not where the file has them.
            _console().print(" ".join(plan.about.split()))
        table(heads)
        _print_classes(heads)
        _print_repeated(repeated)
        _print_answers([answer])
        _print_notes(heads)
    bundles = [bundle.read(each, with_steps=False) for each in done]
    if not as_json:
        if not repeated:
            _print_warnings(bundles)
        _print(f"results: {out}{_folders_said(heads, done)}")
    if formats:
        runs = [each.runs for each in repeated] if repeated else None
        plot(bundles, out, formats=formats, about=answer, runs=runs)


def _folders_said(heads: Sequence[Head], folders: Sequence[Path]) -> str:
    """Where the variants are whose folders have other names than they."""
    pairs = zip(heads, folders, strict=True)
    other = [f"{head.label} in {path.name}" for head, path in pairs if head.label != path.name]
    return f" ({', '.join(other)})" if other else ""


_DONE = ("finished", "reused")


def _repeated(jobs: Sequence[Job], further: Sequence[Job], out: Path) -> list[Repeated]:
    """The variants with all their finished runs, whose intervals are kept as `REPEATED`."""
    from experiments.uncertainty_table import as_json

    folders = {
        job.experiment.label: [
            str(each.folder.relative_to(out))
            for each in (job, *further)
            if each.state in _DONE and each.experiment.label == job.experiment.label
        ]
        for job in jobs
        if job.state in _DONE
    }
    variants = read_repeated(out, folders)
    bundle.write_values(out / REPEATED, {"folders": folders, "variants": as_json(variants)})
    return variants


def read_repeated(out: Path, folders: Mapping[str, Sequence[str]]) -> list[Repeated]:
    """Variants with their runs, read from the folders of these."""
    from experiments.uncertainty import Repeated

    return [
        Repeated.of(label, [bundle.read(out / each, with_steps=False) for each in its])
        for label, its in folders.items()
    ]


def print_repeated_below(folders: Iterable[Path]) -> None:
    """Print the intervals of runs with replications in these folders."""
    for folder in folders:
        if (folder / REPEATED).is_file():
            known = bundle.read_values(folder / REPEATED)["folders"]
            _print_repeated(read_repeated(folder, known))


def print_comparison(comparison: Comparison | None, values: Callable[[], dict[str, Any]]) -> None:
    """Print a comparison of two results, or where there is none its values as JSON."""
    from experiments.tables import show

    if comparison is None:
        _print_json(values())
    else:
        show(comparison, _console())


def _print_repeated(variants: Sequence[Repeated]) -> None:
    if not variants:
        return
    from experiments.tables import show
    from experiments.uncertainty_table import differences_table, intervals_table

    _print_first_runs(variants)
    show(intervals_table(variants), _console())
    if (differences := differences_table(variants)) is not None:
        show(differences, _console())


def _print_first_runs(variants: Sequence[Repeated]) -> None:
    """What the tables before this are of, as they are of one run of each variant."""
    counts = {len(each.runs) for each in variants}
    if counts == {1}:
        return
    if len(counts) == 1:
        told = f"the first of {counts.pop()} runs of each variant"
    else:
        several = ", ".join(f"{each.label} of {len(each.runs)}" for each in variants)
        told = f"the first run of each variant ({several})"
    _console().print(f"- The numbers above are of {told}; intervals are of all runs.")


def _print_answers(answers: Iterable[str]) -> None:
    for answer in filter(None, answers):
        _console().print(f"\n{answer}\n")


def _print_notes(bundles: Sequence[Head]) -> None:
    """Warnings, then notes once each, with the variants that they belong to where not all."""
    from experiments.variant import beyond_tables, warning_beyond_tables

    console = _console()
    told = notes.identical([(each.label, each.summary) for each in bundles])
    told += notes.with_warnings_first(
        [(each.label, each.notes) for each in bundles],
        {each.label: warning_beyond_tables(each.replicas) for each in bundles},
        {each.label: beyond_tables(each.replicas) for each in bundles},
        "summary.json of each" if len(bundles) > 1 else "summary.json",
    )
    for line in told:
        console.print(f"- {line}")


def _print_warnings(bundles: Sequence[Bundle]) -> None:
    """What runs are too short for."""
    from experiments.enough import warnings

    console = _console()
    for line in warnings(bundles):
        console.print(f"- {line}")


def check(plan: Plan, *, as_json: bool = False) -> None:
    """Build everything that a plan would run, and say what that is."""
    from experiments.variant import window_of

    check_answer(plan)
    rows: list[dict[str, Any]] = []
    for experiment in plan.variants:
        built = cluster.build(experiment, plan.folder)
        workload = planned_workload(plan, experiment, built.max_model_len)
        window_of(experiment, workload)
        pools = cluster.pools_of(experiment)
        rows.append(
            {
                "label": experiment.label,
                "requests": len(workload.trace),
                "gpus": built.gpus,
                "pools": [_said(role, pool) for role, pool in pools.items()],
                "notes": [*experiment.notes, *workload.notes, *built.notes],
            }
        )
    if as_json:
        every = dict.fromkeys([*plan.notes, *(note for row in rows for note in row["notes"])])
        _print_json({"name": plan.name, "variants": rows, "notes": list(every)})
        return
    _print(f"{plan.source}: {len(rows)} variant{'s' if len(rows) > 1 else ''}")
    for row in rows:
        gpus = f"{row['gpus']} GPU" + "s" * (row["gpus"] != 1)
        size = f"{row['requests']:,} requests, {gpus}"
        _print(f"  {row['label']}: {size}; {'; '.join(row['pools'])}")
    of_variants = [(row["label"], row["notes"]) for row in rows]
    for line in [*plan.notes, *notes.lines_of(of_variants, "phasewise check --json")]:
        _print(f"- {line}")


def _said(role: str, pool: Pool) -> str:
    stages = f" x {pool.pipeline_parallel} stages" if pool.pipeline_parallel > 1 else ""
    gpus = f"{pool.tensor_parallel} {pool.device}{stages}"
    if pool.expert_parallel > 1:
        gpus += f" (experts over {pool.expert_parallel}"
        groups = pool.data_parallel_attention
        gpus += f", attention in {groups} groups)" if groups > 1 else ")"
    return f"{role}: {pool.replicas} x {gpus}, {pool.policy['name']}, {pool.step_time['model']}"


# --- results


def finished(folders: Sequence[Path]) -> list[Path]:
    """The folders of the finished bundles in all folders, in order.

    Raises:
        BundleError: There are none.
    """
    for folder in folders:
        for path, why in bundle.left_out(folder).items():
            _say(f"{path}: {why}; left out")
    found = [path for folder in folders for path in bundle.find(folder)]
    done = [path for path in found if bundle.is_finished(path)]
    for path in found:
        if path not in done:
            _say(f"{path}: not finished, left out")
    if not done:
        raise BundleError(f"{', '.join(map(str, folders))}: no variant is finished")
    for path in done:
        if told := bundle.lone_run(path):
            _say(told)
    return done


def _print_classes(heads: Sequence[Head]) -> None:
    """Their classes apart, where there are few enough to be read."""
    from experiments.group_table import MOST_ROWS, compare_by, has_groups
    from experiments.tables import show

    if has_groups(heads, "class"):
        comparison = compare_by(heads, "class")
        if len(comparison.rows) <= MOST_ROWS:
            show(comparison, _console())


def answers(folders: Iterable[Path]) -> list[str]:
    """What the runs in these folders had to say."""
    return [answer for folder in folders if (answer := bundle.answer_of(folder))]


def table(
    bundles: Sequence[Head],
    name: str | None = None,
    request_class: str | None = None,
    answers: Iterable[str] = (),
    by: str | None = None,
) -> None:
    """Print the comparison, for the terminal with the answers, or in a named format.

    Args:
        bundles: At least one.
        name: Of a text format; None for the terminal.
        request_class: Only the requests of one class.
        answers: What the runs had to say.
        by: A row for each ``class`` or ``tenant`` of each variant.

    Raises:
        ConfigError: There is no such format, class or kind of row.
    """
    from experiments.tables import compare, show, table_text

    comparison = compare(bundles, request_class) if by is None else _by(bundles, by, request_class)
    if name is None:
        show(comparison, _console())
        _print_answers(answers)
    else:
        _print(table_text(comparison, name).rstrip("\n"))


def _by(bundles: Sequence[Head], by: str, request_class: str | None) -> Comparison:
    from experiments.group_table import compare_by

    if request_class is not None:
        raise ConfigError(f"--by {by} --class {request_class}: give one of them")
    if by not in ("class", "tenant"):
        raise ConfigError(f"--by {by}: {unknown('kind', by, ('class', 'tenant'))}")
    return compare_by(bundles, "class" if by == "class" else "tenant")


def read_runs(folders: Sequence[Path]) -> list[tuple[Bundle, ...]] | None:
    """All replications of each bundle, itself the first; None if none of them has any."""
    from experiments.uncertainty import Repeated

    found = []
    for folder in folders:
        _, its = bundle.runs_of(folder) or ("", [folder])
        runs = [bundle.read(each, with_steps=False) for each in its]
        found.append(Repeated.of(runs[0].label, runs).runs)
    return found if any(len(runs) > 1 for runs in found) else None


def plot(bundles: Sequence[Bundle], out: Path, *, formats: Sequence[str], **options: Any) -> None:
    """Draw all figures and say where they are."""
    from experiments.figures import plot as draw

    print_plotted(draw(bundles, out, formats=formats, **options), formats)


def print_plotted(plotted: Plotted, formats: Sequence[str]) -> None:
    """Say where figures are.

    Args:
        plotted: What was written.
        formats: That were asked for.

    Raises:
        UndrawnError: Nothing but images was asked for, and none could be written.
    """
    pages = [path for path in plotted.files if path.suffix != ".csv"]
    for path in pages[:1]:
        more = f" and {len(plotted.files) - 1} more files" if len(plotted.files) > 1 else ""
        _say(f"figures: {path}{more}")
    say_left_out(plotted, formats)


def say_left_out(plotted: Plotted, formats: Sequence[str]) -> None:
    """Say what figures lack. Arguments and errors as of `print_plotted`."""
    refused = plotted.undrawn if "html" not in formats else ""
    for note in plotted.notes:
        if note != refused:
            _say(note)
    if refused:
        raise UndrawnError(refused)


def report(folders: Sequence[Path], out: Path | None) -> None:
    """Write the report of all finished variants in these folders, and say where it is."""
    _print(_report(finished(folders), out or folders[0] / "report.html"))


def _report(folders: Sequence[Path], page: Path) -> str:
    from experiments.html_report.command import report as write

    write(folders, page)
    return f"report: {page} ({page.stat().st_size / 1e6:.1f} MB)"


def formats_of(text: str, option: str) -> tuple[str, ...]:
    """``html,svg`` as a tuple; ``none`` is empty.

    Raises:
        ConfigError: No such format, or ``none`` with others: before anything is simulated.
        MissingExtraError: Nothing but images, and what writes them is not installed; likewise.
    """
    words = [word.strip().lower() for word in text.split(",") if word.strip()]
    if words == ["none"]:
        return ()
    from experiments.figures import FORMATS

    if "none" in words:
        raise ConfigError(f"{option} {text}: none stands alone")
    for word in words:
        if word not in FORMATS:
            raise ConfigError(f"{option} {text}: {unknown('format', word, (*FORMATS, 'none'))}")
    if not words:
        raise ConfigError(f"{option}: expected some of {', '.join(FORMATS)}, or none")
    if "html" not in words:
        require("kaleido", "figures", f"{option} {text}")
    return tuple(words)


def pairs(texts: Sequence[str], option: str) -> dict[str, str] | None:
    """``ours=theirs`` texts as a mapping, None if there are none."""
    found = {}
    for text in texts:
        ours, equals, theirs = text.partition("=")
        if not equals or not ours.strip() or not theirs.strip():
            raise ConfigError(f"{option} {text}: expected ours=theirs, such as prompt_tokens=input")
        found[ours.strip()] = theirs.strip()
    return found or None


def print_found(found: Found, out: Path, *, as_json: bool) -> None:
    """Print what a search of the capacity found, and keep it beside the points."""
    from experiments.tables import show

    bundle.write_values(out / "capacity.json", found.values)
    if as_json:
        _print_json(found.values)
        return
    show(found.table, _console())
    _print(found.cost)
    _print(f"results: {out}")


# --- names and metrics


def list_names(kind: str, *, as_json: bool = False) -> None:
    """Print all names of a kind."""
    from experiments import listing

    entries = listing.entries(kind)
    if as_json:
        _print_json({entry.name: dataclasses.asdict(entry) for entry in entries})
        return
    width = max((len(entry.name) for entry in entries), default=0)
    for entry in entries:
        _print(f"{entry.name:<{width}}  {entry.about}")
        if entry.options:
            said = ", ".join(f"{key} [{_word(value)}]" for key, value in entry.options.items())
            _print(f"{'':<{width}}    {said}")


def _word(value: Any) -> str:
    if isinstance(value, Mapping):  # of an engine: what depends on the size of the GPU
        return f"{value['large_gpu']} on large GPUs, else {value['otherwise']}"
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


def metrics(*, as_json: bool = False) -> None:
    """Print the dictionary of definitions."""
    from experiments.verdict import DEFINITION
    from sim.metric_definitions import METRICS, STATISTICS

    if as_json:
        told = {
            metric.name_in_files: {
                "title": metric.title,
                "definition": metric.definition,
                "statistics": STATISTICS if metric.spread else (),
                "per_class": metric.of_requests,
            }
            for metric in METRICS.values()
        }
        _print_json({**told, "verdict": {"title": "Verdict", "definition": DEFINITION}})
        return
    for metric in METRICS.values():
        _print(f"{metric.heading}  [{metric.name_in_files}{'.*' if metric.spread else ''}]")
        _print(f"    {metric.definition}")
    _print("Verdict")
    _print(f"    {DEFINITION}")
    _print(f".* is one of {', '.join(STATISTICS)}, such as ttft_s.p99.")


# --- output


def _print(text: str) -> None:
    """A line on stdout."""
    print(text)


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _say_all(texts: Sequence[str]) -> None:
    for text in texts:
        _say(text)


def _print_json(values: Mapping[str, Any]) -> None:
    print(json.dumps(values, indent=1, default=list))


def _console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    # Labels and texts of users are neither markup nor codes of emoji.
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)
