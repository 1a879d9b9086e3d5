"""Search for the settings that no other ones beat in several numbers: `phasewise search`.

Which settings are tried is up to optuna: its TPE sampler, which learns from the points so far
(Bergstra et al., NeurIPS 2011; for several objectives Ozaki et al., JAIR 73, 2022), and which is
told that overloaded runs are out of bounds. Where the config has several variants, the variant is
one more thing to choose. What a point gives is written as a sweep writes it, one row per variant
and replication, so that `phasewise sweep-plot` draws searches too.

The rules, so that a search is the same on any machine: points are asked for in batches of `BATCH`,
however many runs are made at a time; a batch is told when all of it is there, in the order in which
it was asked for; a point that was tried before is not run again; an objective is the mean over the
replications of its column. A search that was stopped, or is asked for more trials, takes the same
way again with the rows that it finds.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments import config as configs
from experiments import hashes
from experiments.capacity.command import check_priced
from experiments.config import Opened, open_config, slug
from experiments.extras import require
from experiments.quantity import Quantity
from experiments.run import InterruptedRunError
from experiments.sweep.axes import Axis, Listed, Range
from experiments.sweep.columns import columns_of, with_settings
from experiments.sweep.dataset import DataSet, identity, read_table
from experiments.sweep.definition import Definition, Part, Setting, check_key
from experiments.sweep.executors import Executor
from experiments.sweep.folder import locked, open_dataset
from experiments.sweep.points import canonical, failed_point, plan_points
from experiments.sweep.unit import FINISHED, Identity, Row, Unit
from sim.errors import ConfigError

if TYPE_CHECKING:
    from types import ModuleType

BATCH = 8
"""Points that are asked for at a time."""
_STARTUP = 2 * BATCH
"""Trials that are drawn at random, before the sampler learns."""
_VARIANT = "variant"


@dataclass(frozen=True)
class Asked:
    """A search that was read, and not begun.

    Attributes:
        name: Of the config.
        opened: The config.
        axes: Key to its values.
        objectives: Numbers that are to be good, in the sense of their metrics.
        trials: Points to try.
        seed: Of the sampler.
        variants: Labels of the variants.
    """

    name: str
    opened: Opened
    axes: Mapping[str, Axis]
    objectives: tuple[Quantity, ...]
    trials: int
    seed: int
    variants: tuple[str, ...]


@dataclass(frozen=True)
class Trial:
    """One point that was tried.

    Attributes:
        number: From 0 up.
        variant: Its label.
        setting: Keys and values.
        values: Of the objectives; NaN where a run failed or has no such number.
        overloaded: Some run of it was, so that its latencies say nothing.
    """

    number: int
    variant: str
    setting: Setting
    values: tuple[float, ...]
    overloaded: bool

    @property
    def counts(self) -> bool:
        """Whether it may be on the front."""
        return not self.overloaded and not any(math.isnan(value) for value in self.values)


@dataclass(frozen=True)
class Found:
    """What came of a search.

    Attributes:
        folder: Of the data set.
        asked: What was asked for.
        trials: Different points, in the order in which they were tried.
        repeated: Trials whose point had been tried before.
        front: Those that no other one beats, by the first objective, the best first.
    """

    folder: Path
    asked: Asked
    trials: tuple[Trial, ...]
    repeated: int
    front: tuple[Trial, ...]


def ask(
    config: str | Path | Mapping[str, Any],
    axes: Mapping[str, Axis],
    objectives: Sequence[Quantity],
    *,
    settings: Sequence[str] = (),
    trials: int = 64,
    seed: int = 0,
) -> Asked:
    """Read a config and check what is to be searched.

    Args:
        config: As `experiments.config.load` takes it.
        axes: Key to its values.
        objectives: One or more; each has to say which way is good.
        settings: ``key=value`` texts for every point.
        trials: Points to try.
        seed: Of the sampler.

    Raises:
        ConfigError: One line.
    """
    opened = open_config(config, settings)
    if "sweep" in opened.raw:
        raise ConfigError(f"{opened.source}: sweep: is read by phasewise sweep; search has --over")
    if not axes:
        raise ConfigError("search: nothing to vary; give --over KEY=VALUES at least once")
    if not objectives:
        raise ConfigError("search: nothing to look for; give --objective METRIC at least once")
    texts = [each.text for each in objectives]
    for each in objectives:
        if each.metric.better == "neither":
            raise ConfigError(f"--objective {each.text}: neither less nor more of it is better")
        if texts.count(each.text) > 1:
            raise ConfigError(f"--objective {each.text}: is given twice")
    for key in axes:
        check_key(key, "--over")
        if key in (_VARIANT, "seed"):
            raise ConfigError(f"--over {key}: cannot be searched; give --seed, or variants")
    labels = [each.label or "" for each in configs.variants_of(opened)]
    plan = configs.load(config, settings)  # as it stands, it has to be a config that runs
    for each in objectives:
        check_priced(plan.variants, each, f"{plan.source}: --objective")
    return Asked(plan.name, opened, dict(axes), tuple(objectives), trials, seed, tuple(labels))


def search(
    asked: Asked,
    out: Path | None,
    executor: Executor,
    *,
    fresh: bool = False,
    tell: Callable[[int, int], None] = lambda done, trials: None,
) -> Found:
    """Try points, and say which of them no other one beats.

    Args:
        asked: What to search.
        out: Folder; None for ``results/NAME-search``.
        executor: Who makes the runs.
        fresh: Drop what the folder has; else the same search goes on, and another one is refused.
        tell: Called after each batch: trials so far, and in all.

    Raises:
        ConfigError: A key or value that no point can have.
        SweepError: The folder cannot be used.
        MissingExtraError: optuna is not installed.
        InterruptedRunError: Ctrl-C; rows are kept, and the same command makes the rest.
    """
    optuna = require("optuna", "search", "phasewise search")
    folder = out or Path("results") / f"{slug(asked.name)}-search"
    study = _study(optuna, asked)
    with locked(folder):
        work = _Work(asked, folder, executor, fresh)
        try:
            while work.asked_for < asked.trials:
                count = min(BATCH, asked.trials - work.asked_for)
                batch = [study.ask() for _ in range(count)]
                _tell(study, batch, work.run([_suggested(each, asked) for each in batch]))
                tell(work.asked_for, asked.trials)
        except KeyboardInterrupt:
            raise InterruptedRunError(
                f"interrupted: {work.asked_for} of {asked.trials} trials are in {folder}; the same "
                "command goes on"
            ) from None
        finally:
            work.end()
    trials = tuple(work.trials.values())
    return Found(folder, asked, trials, work.asked_for - len(trials), front_of(trials, asked))


def front_of(trials: Sequence[Trial], asked: Asked) -> tuple[Trial, ...]:
    """The trials that no other one beats: as good in every objective, and better in one.

    Of those that are equal in all objectives, the first.
    """
    signs = [1.0 if each.metric.better == "lower" else -1.0 for each in asked.objectives]

    def costs(trial: Trial) -> tuple[float, ...]:
        return tuple(sign * value for sign, value in zip(signs, trial.values, strict=True))

    kept: dict[tuple[float, ...], Trial] = {}
    for trial in trials:
        if trial.counts:
            kept.setdefault(costs(trial), trial)
    front = [
        trial
        for own, trial in kept.items()
        if not any(other != own and _no_worse(other, own) for other in kept)
    ]
    return tuple(sorted(front, key=costs))


def _no_worse(one: Sequence[float], other: Sequence[float]) -> bool:
    return all(a <= b for a, b in zip(one, other, strict=True))


# --- optuna's side


def _study(optuna: ModuleType, asked: Asked) -> Any:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # options that optuna calls experimental
        sampler = optuna.samplers.TPESampler(
            seed=asked.seed,
            n_startup_trials=_STARTUP,
            multivariate=True,
            constraints_func=lambda trial: trial.user_attrs["out_of_bounds"],
        )
    directions = [
        "minimize" if each.metric.better == "lower" else "maximize" for each in asked.objectives
    ]
    return optuna.create_study(directions=directions, sampler=sampler)


def _suggested(trial: Any, asked: Asked) -> tuple[str, Setting]:
    """The variant and the setting that the sampler wants to see."""
    variant = asked.variants[0]
    if len(asked.variants) > 1:
        variant = trial.suggest_categorical(_VARIANT, list(asked.variants))
    return variant, {key: _value(trial, key, axis) for key, axis in asked.axes.items()}


def _value(trial: Any, key: str, axis: Axis) -> Any:
    if isinstance(axis, Listed):  # values of any kind, by their places
        return axis.values[trial.suggest_categorical(key, list(range(len(axis.values))))]
    assert isinstance(axis, Range)
    if axis.whole:
        return trial.suggest_int(key, int(axis.low), int(axis.high), log=axis.log)
    return axis.rounded(trial.suggest_float(key, axis.low, axis.high, log=axis.log))


def _tell(study: Any, batch: Sequence[Any], results: Sequence[Trial]) -> None:
    for asked, result in zip(batch, results, strict=True):
        asked.set_user_attr("out_of_bounds", [1.0 if result.overloaded else -1.0])
        if any(math.isnan(value) for value in result.values):
            from optuna.trial import TrialState

            study.tell(asked, state=TrialState.FAIL)
        else:
            study.tell(asked, list(result.values))


# --- our side


@dataclass
class _Work:
    """The points of a search, in their data set.

    Attributes:
        trials: Different points by variant and setting.
        asked_for: Trials, repeated ones included.
    """

    asked: Asked
    folder: Path
    executor: Executor
    fresh: bool
    trials: dict[str, Trial] = field(default_factory=dict)
    asked_for: int = 0
    _data: DataSet | None = None
    _rows: dict[Identity, Row] = field(default_factory=dict)

    def run(self, wanted: Sequence[tuple[str, Setting]]) -> list[Trial]:
        """Make the runs that a batch lacks; what came of each of its points."""
        names = [canonical([variant, setting]) for variant, setting in wanted]
        new = {
            name: each for name, each in zip(names, wanted, strict=True) if name not in self.trials
        }
        planned = self._planned(list(new.values()))
        pairs = list(zip(new.values(), planned, strict=True))
        settings = {unit.point: setting for (_, setting), (_, its) in pairs for unit in its}
        self._make([unit for _, its in planned for unit in its], settings)
        for (name, (variant, setting)), (failed, its) in zip(new.items(), planned, strict=True):
            rows = [failed] if failed else [self._rows[unit.identity] for unit in its]
            self.trials[name] = _trial(len(self.trials), variant, setting, rows, self.asked)
        self.asked_for += len(wanted)
        return [self.trials[name] for name in names]

    def end(self) -> None:
        """Put the rows of the data set in order."""
        if self._data is not None:
            self._data.compact()

    def _planned(
        self, points: Sequence[tuple[str, Setting]]
    ) -> list[tuple[Row | None, list[Unit]]]:
        """Of each point its runs, or why it has none."""
        if not points:
            return []
        first = len(self.trials)
        if self._data is None:
            self._begin([setting for _, setting in points])
        return [self._plan(first + at, *point) for at, point in enumerate(points)]

    def _plan(self, number: int, variant: str, setting: Setting) -> tuple[Row | None, list[Unit]]:
        try:
            planned = plan_points(self.asked.opened, self._definition([setting]))
        except ConfigError as error:
            return self._refused(number, variant, setting, str(error)), []
        its = [
            replace(unit, number=number)
            for unit in planned.units
            if not variant or unit.variant == variant
        ]
        if not its:
            why = next(row["error"] for row in planned.failed if row["variant"] == variant)
            return self._refused(number, variant, setting, why), []
        return None, its

    def _refused(self, number: int, variant: str, setting: Setting, error: str) -> Row:
        point = hashes.of_values({"setting": canonical(setting), "error": error})[:16]
        row = failed_point(number, point, variant, error)
        assert self._data is not None
        if identity(row) not in self._data.statuses:
            self._data.add(with_settings(row, setting, self._data.columns))
        return row

    def _definition(self, settings: Sequence[Setting]) -> Definition:
        return Definition((Part("list", tuple(settings)),), quantities=self.asked.objectives)

    def _begin(self, settings: Sequence[Setting]) -> None:
        """Open the data set; what no point of the first batch can have is refused."""
        definition = self._definition(settings)
        planned = plan_points(self.asked.opened, definition)
        columns = columns_of(definition, self._samples())
        self._data = open_dataset(
            self.folder,
            self._about(planned.prints, columns),
            columns,
            fresh=self.fresh,
            retry=False,
        )
        self._rows = {identity(row): row for row in read_table(self.folder).to_pylist()}

    def _samples(self) -> list[Setting]:
        """Settings with every type of value that a key can have."""
        return [
            {key: value} for key, axis in self.asked.axes.items() for value in _samples_of(axis)
        ]

    def _about(self, prints: Mapping[str, str], columns: Mapping[str, str]) -> dict[str, Any]:
        opened = self.asked.opened
        what = {
            "axes": {key: repr(axis) for key, axis in self.asked.axes.items()},
            "objectives": [each.text for each in self.asked.objectives],
            "seed": self.asked.seed,
            # As it was read: which points the first batch has is no part of what is searched.
            "config": canonical([opened.raw, [values for values, _ in opened.last]]),
        }
        return {
            "name": self.asked.name,
            "source": opened.source,
            "keys": list(self.asked.axes),
            "variants": list(self.asked.variants),
            "objectives": what["objectives"],
            "slo_scales": list(self._definition([]).slo_scales),
            "columns": dict(columns),
            "prints": {**prints, "config": hashes.of_values(what)},
        }

    def _make(self, units: Sequence[Unit], settings: Mapping[str, Setting]) -> None:
        data = self._data
        if data is None:
            return
        waiting = [unit for unit in units if data.statuses.get(unit.identity) is None]
        if waiting:
            with closing(self.executor.run(waiting)) as made:
                for row in made:
                    if row is not None:
                        data.add(with_settings(row, settings[row["point"]], data.columns))
                        self._rows[identity(row)] = row
        data.flush()


def _samples_of(axis: Axis) -> tuple[Any, ...]:
    if isinstance(axis, Listed):
        return axis.values
    return (int(axis.low),) if axis.whole else (axis.low + 0.5,)


def _trial(number: int, variant: str, setting: Setting, rows: Sequence[Row], asked: Asked) -> Trial:
    if any(row["status"] != FINISHED for row in rows):
        return Trial(number, variant, setting, tuple(math.nan for _ in asked.objectives), False)
    values = []
    for each in asked.objectives:
        numbers = [row.get(each.text) for row in rows]
        known = [math.nan if number is None else float(number) for number in numbers]
        values.append(math.fsum(known) / len(known))
    overloaded = any(row["verdict"] == "overloaded" for row in rows)
    return Trial(number, variant, setting, tuple(values), overloaded)
