"""Run what searches ask for, several at a time, each run once and kept with its bundle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from experiments import bundle
from experiments.capacity.goal import Goal
from experiments.capacity.judge import Evaluation, evaluate
from experiments.capacity.said import counted
from experiments.config import Plan, slug
from experiments.replications import replicate
from experiments.run import FailedRunError, InterruptedRunError, Job, job_in, run_jobs
from experiments.schema import Experiment
from experiments.uncertainty import differ
from experiments.variant import fingerprints

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Wanted:
    """One run.

    Attributes:
        experiment: With the value, under the label of the variant; seed of the config.
        point: Folder of the value below that of the variant, such as ``replicas=4``.
        replication: Number, which stands for a seed.
    """

    experiment: Experiment
    point: str
    replication: int


Key = tuple[str, str, int]
"""Label of a variant, point and replication."""


@dataclass
class Evaluator:
    """Simulates, or takes from an earlier search with the same content, and remembers.

    Attributes:
        plan: The config.
        goal: What is sampled of each run.
        out: Folder of all points.
        processes: Runs at a time.
        done: Every run so far.
    """

    plan: Plan
    goal: Goal
    out: Path
    processes: int
    done: dict[Key, Evaluation] = field(default_factory=dict)

    def run(self, wanted: Sequence[Wanted]) -> None:
        """Make these runs; none of them may have been made before.

        Raises:
            FailedRunError: One of them failed.
            InterruptedRunError: Ctrl-C; finished runs are kept, and the same command goes on.
        """
        keys = [(each.experiment.label, each.point, each.replication) for each in wanted]
        assert not set(keys) & set(self.done), "a run was asked for twice"
        self.out.mkdir(parents=True, exist_ok=True)  # or a file in its place is refused
        jobs = self._jobs(wanted)
        reused = [job.state == "reused" for job in jobs]
        try:
            run_jobs(jobs, self.plan, self.processes)
        except InterruptedRunError:
            now = sum(job.state in ("finished", "reused") for job in jobs)
            finished = counted(len(self.done) + now, "run is finished and", "runs are finished and")
            raise InterruptedRunError(
                f"interrupted: {finished} kept in {self.out}; the same command goes on from there"
            ) from None
        for key, job, was_there in zip(keys, jobs, reused, strict=True):
            if job.state == "failed":
                where = job.folder.relative_to(self.out)
                raise FailedRunError(f"{where}: {job.error}", bad_input=job.bad_input)
            made = bundle.read(job.folder, with_steps=False)
            self.done[key] = evaluate(made, self.goal, folder=str(job.folder), reused=was_there)

    def of(self, label: str, point: str) -> list[Evaluation]:
        """All runs of a point in the order of their replications."""
        found = {key[2]: run for key, run in self.done.items() if key[:2] == (label, point)}
        return [found[number] for number in sorted(found)]

    def _jobs(self, wanted: Sequence[Wanted]) -> list[Job]:
        experiments = [_lean(replicate(each.experiment, each.replication)) for each in wanted]
        prints = fingerprints(experiments, self.plan.folder)
        return [
            job_in(
                self.out / slug(each.experiment.label) / each.point / f"run-{each.replication}",
                experiment,
                its,
                self.plan.source,
            )
            for each, experiment, its in zip(wanted, experiments, prints, strict=True)
        ]


def _lean(experiment: Experiment) -> Experiment:
    """Without ``steps.parquet``, the largest file of a bundle, which nothing here reads."""
    record = experiment.record.model_copy(update={"steps": False})
    return experiment.model_copy(update={"record": record})


def differ_by_seed(runs: Sequence[Evaluation]) -> bool:
    """Whether runs with other seeds are other runs: recorded arrivals draw nothing.

    Where failures or stragglers are drawn, runs that none of them has struck are alike by chance.
    """
    if len(runs) < 2:
        return True
    bundles = (bundle.read(Path(run.folder), with_steps=False) for run in runs)
    first = next(bundles)
    spells = (first.config.get(key) for key in ("failures", "stragglers"))
    if any(each and each.get("seed") is None for each in spells):
        return True
    return any(differ(first, each) for each in bundles)
