"""Run the variants of a plan, and keep what is finished whatever happens."""

from __future__ import annotations

import shutil
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from experiments import bundle
from experiments.config import Plan, folders_of
from experiments.explain import in_file
from experiments.replications import replicate
from experiments.schema import Experiment
from experiments.variant import Fingerprint, Progress, fingerprints, run_variant
from sim.errors import BeyondTablesError, ConfigError, PhasewiseError, TraceError

REPLICATIONS = bundle.REPLICATIONS
"""Folder of the runs of variants after their first."""

State = Literal["waiting", "running", "finished", "reused", "failed", "stopped"]


@dataclass
class Job:
    """One variant on its way.

    Attributes:
        experiment: What to run.
        position: Its place in the plan.
        folder: Where its results go.
        prints: Hashes of all that its results depend on.
        source: The config, for messages.
        state: How far it is.
        now_ns: Simulated time.
        ended: Requests that have ended.
        total: Requests in all, 0 while unknown.
        error: One line if it failed.
        bad_input: It failed for what it was given, not for how it ran.
        damage: Why results of the same content are there and cannot be read.
    """

    experiment: Experiment
    position: int
    folder: Path
    prints: Fingerprint
    source: str = "config"
    state: State = "waiting"
    now_ns: int = 0
    ended: int = 0
    total: int = 0
    error: str = ""
    bad_input: bool = False
    damage: str = ""


class InterruptedRunError(PhasewiseError):
    """The user stopped the run; finished variants are usable."""


class FailedRunError(PhasewiseError):
    """A variant failed; the others are usable.

    Attributes:
        bad_input: All that failed did so for what they were given, not for how they ran.
    """

    def __init__(self, message: str, *, bad_input: bool = False) -> None:
        super().__init__(message)
        self.bad_input = bad_input


OnChange = Callable[[Job], None]


def jobs_of(plan: Plan, out: Path) -> list[Job]:
    """One job for each variant; those whose results are there and still valid are `reused`.

    Results that cannot be read are made again: `Job.damage` says why.
    """
    names = folders_of([experiment.label for experiment in plan.variants])
    runs = [replicate(experiment, 0) for experiment in plan.variants]
    return _jobs(plan, runs, [out / name for name in names])


def replications_of(plan: Plan, out: Path) -> list[Job]:
    """One job for each further replication of each variant, in ``replications`` below `out`.

    Raises:
        ConfigError: A variant has the name of that folder.
    """
    names = folders_of([experiment.label for experiment in plan.variants])
    further = [
        (replicate(experiment, k), out / REPLICATIONS / name / f"run-{k}")
        for experiment, name in zip(plan.variants, names, strict=True)
        for k in range(1, experiment.replications)
    ]
    if further and REPLICATIONS in names:
        label = plan.variants[names.index(REPLICATIONS)].label
        raise ConfigError(
            f"{plan.source}: variant {label}: the folder of this name is for further replications; "
            "give it another label"
        )
    return _jobs(plan, [run for run, _ in further], [at for _, at in further], len(names))


def _jobs(
    plan: Plan, runs: Sequence[Experiment], folders: Sequence[Path], first: int = 0
) -> list[Job]:
    prints = fingerprints(runs, plan.folder)
    jobs = []
    for position, (experiment, folder) in enumerate(zip(runs, folders, strict=True)):
        job = job_in(folder, experiment, prints[position], plan.source)
        job.position = first + position
        jobs.append(job)
    return jobs


def job_in(folder: Path, experiment: Experiment, prints: Fingerprint, source: str) -> Job:
    """A job whose results go to a folder; `reused` if they are there and still valid.

    Args:
        folder: Of the bundle.
        experiment: What to run.
        prints: Hashes of all that its results depend on.
        source: The config, for messages.
    """
    job = Job(experiment, 0, folder, prints, source)
    job.damage = _damage(job)
    if not job.damage and _valid(job):
        job.state = "reused"
    return job


def _damage(job: Job) -> str:
    if not bundle.is_ours(job.folder):
        return ""
    try:
        if bundle.content_hash(job.folder) == job.prints.content:
            bundle.check_readable(job.folder)
    except PhasewiseError as error:
        return str(error).removesuffix("; run it again")
    return ""


def _valid(job: Job) -> bool:
    try:
        return (
            bundle.is_finished(job.folder) and bundle.content_hash(job.folder) == job.prints.content
        )
    except bundle.BundleError:
        return False


def run_jobs(
    jobs: Sequence[Job],
    plan: Plan,
    processes: int,
    on_change: OnChange = lambda job: None,
    shards: int = 1,
) -> None:
    """Run what is waiting, at most `processes` at a time; with 1, in this process.

    A variant that fails does not stop the others: its job says why. With several `shards` one runs
    after the other, its replicas shared out over so many processes (`sim.shards`).

    Raises:
        InterruptedRunError: Ctrl-C; one line that says what is usable.
    """
    waiting = [job for job in jobs if job.state == "waiting"]
    try:
        if min(processes, len(waiting)) <= 1 or shards > 1:
            for job in waiting:
                _run_here(job, plan.folder, on_change, shards)
        else:
            from experiments.workers import run_apart

            run_apart(waiting, plan.folder, processes, on_change)
    except KeyboardInterrupt:
        raise InterruptedRunError(_left_over(jobs)) from None


def _left_over(jobs: Sequence[Job]) -> str:
    for job in jobs:
        if job.state == "running" and _valid(job):
            job.state = "finished"  # it was written, and could not tell any more
        shutil.rmtree(bundle.partial_folder(job.folder), ignore_errors=True)
        if job.state in ("waiting", "running"):
            job.state = "stopped"
    done = [job for job in jobs if job.state in ("finished", "reused")]
    kept = f"{len(done)} of {len(jobs)} variants are finished and usable"
    where = f" in {done[0].folder.parent}" if done else ""
    return f"interrupted: {kept}{where}; the same command runs the rest"


def _run_here(job: Job, folder: Path, on_change: OnChange, shards: int) -> None:
    def progress(now_ns: int, ended: int, total: int) -> None:
        job.now_ns, job.ended, job.total = now_ns, ended, total
        on_change(job)

    job.state = "running"
    on_change(job)
    try:
        run_job(job, folder, progress, shards)
        job.state = "finished"
    except Exception as error:
        job.state, job.error, job.bad_input = "failed", one_line(error), is_bad_input(error)
    on_change(job)


def run_job(job: Job, folder: Path, progress: Progress, shards: int = 1) -> None:
    """Run one variant and write its results, all of them or none.

    Args:
        job: What to run.
        folder: Where relative paths of its config start.
        progress: Told now and then how far it is, and at the end.
        shards: Processes that share its replicas.
    """
    with bundle.replacing(job.folder) as partial:
        try:
            made = run_variant(
                job.experiment,
                folder,
                prints=job.prints,
                progress=progress,
                steps_folder=partial,
                shards=shards,
            )
        except ConfigError as error:
            raise ConfigError(in_file(job.source, error)) from None
        bundle.write_files(made, partial)


def one_line(error: Exception) -> str:
    """What failed; a bug, ours or of a user's policy, is shown in full as well."""
    if isinstance(error, PhasewiseError):
        return str(error)
    if isinstance(error, OSError) and error.filename:  # a full disk, a file that went away
        return f"{error.filename}: {error.strerror}"
    traceback.print_exception(error)
    return f"{type(error).__name__}: {error}"


def is_bad_input(error: Exception) -> bool:
    """Whether a variant failed for what it was given, not for how it ran."""
    return isinstance(error, ConfigError | TraceError | BeyondTablesError)
