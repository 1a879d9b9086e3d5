"""The best of several settings at a given load: a token budget, a split of GPUs.

The rule: every candidate gets `_LEAST_RUNS` runs, with the same seeds as the others. The leader is
the candidate with the best mean of the objective over its runs, of those that keep up with their
arrivals (`judge.keeps_up`) and meet the goal, if there is one.
Then the leader, and all eligible ones whose paired difference from it is not separable from 0, get
the rest of `repeats` runs, until there is nobody new. What is still not separable from the leader
is named beside it: the choice among them is noise. Where nothing is drawn (recorded arrivals), one
run of each is all there is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.capacity.drawn import nothing_is_drawn
from experiments.capacity.evaluate import Evaluator, Tell, Wanted, differ_by_seed
from experiments.capacity.goal import Goal
from experiments.capacity.judge import Evaluation, behind, judge, keeps_up, untold, verdicts_said
from experiments.capacity.said import counted
from experiments.config import slug
from experiments.quantity import Quantity
from experiments.schema import Experiment
from experiments.statistics.intervals import Refusal
from experiments.statistics.pairs import Difference, paired_difference
from sim.errors import ConfigError

_LEAST_RUNS = 3


@dataclass(frozen=True)
class Candidate:
    """One setting.

    Attributes:
        name: For people and the folder, such as ``policy.budget_tokens=512``.
        experiment: Of the variant with it.
    """

    name: str
    experiment: Experiment


@dataclass(frozen=True)
class Rated:
    """What the runs of a candidate say.

    Attributes:
        name: Of the candidate.
        value: Mean of the objective over its runs; NaN where a run does not have it.
        eligible: It keeps up, and meets the goal.
        behind: Runs that were overloaded or backlogged.
        untold: Runs that are too short to tell whether they keep up.
        against_best: Against the best; a refusal for the best itself and single runs.
        runs: In the order of replications.
    """

    name: str
    value: float
    eligible: bool
    behind: int
    untold: int
    against_best: Difference | Refusal
    runs: tuple[Evaluation, ...]


@dataclass(frozen=True)
class Choice:
    """The best candidate of one variant.

    Attributes:
        label: Of the variant.
        best: Name of the best; None if none is eligible.
        rated: All candidates in their order.
        drawn: Runs with other seeds differ; else there is one sample.
    """

    label: str
    best: str | None
    rated: tuple[Rated, ...]
    drawn: bool = True

    @property
    def short(self) -> list[str]:
        """Candidates that are not eligible because runs are too short to tell."""
        return [each.name for each in self.rated if each.untold and not each.eligible]

    @property
    def ties(self) -> list[str]:
        """Eligible candidates that are not separable from the best."""
        return [
            each.name
            for each in self.rated
            if each.eligible
            and each.name != self.best
            and not (isinstance(each.against_best, Difference) and each.against_best.separable)
        ]


def candidates_of(texts: str, option: str) -> list[int]:
    """``128,256,512`` or ``128..2048``, which doubles from the first up to the last.

    Raises:
        ConfigError: Not at least two whole numbers from 1 up.
    """
    low, dots, high = texts.partition("..")
    words = [low, high] if dots else texts.split(",")
    try:
        numbers = [int(word) for word in words]
    except ValueError:
        numbers = []
    if dots and len(numbers) == 2 and 0 < numbers[0] < numbers[1]:
        first, last = numbers
        doubled = [first << k for k in range((last // first).bit_length())]
        numbers = doubled if doubled[-1] == last else [*doubled, last]
    if dots and len(numbers) == 2 and numbers[0] >= numbers[1]:
        raise ConfigError(f"{option} {texts}: expected the smaller first, such as 128..2048")
    if len(set(numbers)) < 2 or min(numbers) < 1:
        raise ConfigError(f"{option} {texts}: expected such as 128,256,512 or 128..2048")
    return list(dict.fromkeys(numbers))


def splits_of(experiment: Experiment, gpus: int, where: str) -> list[tuple[int, int]]:
    """Every (prefill replicas, decode replicas) that take exactly so many GPUs.

    Raises:
        ConfigError: There are not two pools, or no split takes all GPUs.
    """
    prefill, decode = experiment.pools.prefill, experiment.pools.decode
    if prefill is None or decode is None:
        raise ConfigError(f"{where}: --splits: expected pools.prefill and pools.decode")
    each = [pool.tensor_parallel * pool.pipeline_parallel for pool in (prefill, decode)]
    found = [
        (first, (gpus - first * each[0]) // each[1])
        for first in range(1, gpus // each[0] + 1)
        if gpus - first * each[0] > 0 and (gpus - first * each[0]) % each[1] == 0
    ]
    if not found:
        raise ConfigError(
            f"{where}: --splits {gpus}: no replicas of {each[0]} GPUs (prefill) and {each[1]} GPUs "
            f"(decode) take all; expected at least {sum(each)}"
        )
    return found


def choose(
    label: str,
    candidates: Sequence[Candidate],
    objective: Quantity,
    goal: Goal | None,
    evaluator: Evaluator,
    *,
    repeats: int,
    tell: Tell = lambda text: None,
) -> Choice:
    """Find the best candidate of a variant; the rule is above.

    Args:
        label: Of the variant.
        candidates: At least two.
        objective: What is to be best: the first term that `evaluator` samples.
        goal: What has to hold too; the other terms.
        evaluator: Makes and keeps the runs.
        repeats: Most runs of a candidate.
        tell: Given one line for each candidate that has new runs.
    """
    state = _Choosing(label, list(candidates), objective, goal, evaluator)
    if nothing_is_drawn(candidates[0].experiment, evaluator.plan.folder):
        state.drawn, repeats = False, 1
    state.extend(candidates, min(_LEAST_RUNS, repeats), tell)
    while state.drawn and (
        close := [each for each in state.close_to_best() if len(state.runs_of(each.name)) < repeats]
    ):
        state.extend(close, repeats, tell)
    return state.choice()


@dataclass
class _Choosing:
    label: str
    candidates: list[Candidate]
    objective: Quantity
    goal: Goal | None
    evaluator: Evaluator
    drawn: bool = True

    def runs_of(self, name: str) -> list[Evaluation]:
        return self.evaluator.of(self.label, slug(name))

    def extend(self, candidates: Sequence[Candidate], until: int, tell: Tell) -> None:
        """Give candidates the runs they lack."""
        wanted = [
            Wanted(each.experiment, slug(each.name), replication)
            for each in candidates
            for replication in range(len(self.runs_of(each.name)), until)
        ]
        self.evaluator.run(wanted)
        for each in candidates:
            runs = self.runs_of(each.name)
            self.drawn = self.drawn and differ_by_seed(runs)
            said = f"{self.objective.text} {self._value(each.name):.4g}"
            ran = counted(len(runs), "run") + verdicts_said(runs)
            tell(f"{self.label}: {each.name}: {said} ({ran})")

    def close_to_best(self) -> list[Candidate]:
        """The best, and what noise does not tell from it."""
        choice = self.choice()
        if choice.best is None:
            return []
        names = {choice.best, *choice.ties}
        return [each for each in self.candidates if each.name in names]

    def choice(self) -> Choice:
        sign = -1.0 if self.objective.metric.better == "higher" else 1.0
        able = [each.name for each in self.candidates if self._eligible(each.name)]
        best = min(able, key=lambda name: sign * self._value(name), default=None)
        rated = tuple(self._rated(each, best) for each in self.candidates)
        return Choice(self.label, best, rated, self.drawn)

    def _rated(self, candidate: Candidate, best: str | None) -> Rated:
        runs = self.runs_of(candidate.name)
        against: Difference | Refusal = Refusal(math.nan, "is the best, or there is none")
        if not self.drawn:
            against = Refusal(math.nan, "nothing is drawn: there is one sample")
        elif best is not None and best != candidate.name:
            pairs = zip(self._values(best), self._values(candidate.name), strict=False)
            one, other = zip(*pairs, strict=True)
            against = paired_difference(one, other)
        return Rated(
            candidate.name,
            self._value(candidate.name),
            self._eligible(candidate.name),
            behind(runs),
            untold(runs),
            against,
            tuple(runs),
        )

    def _values(self, name: str) -> list[float]:
        return [self.objective.value(run.samples[:1]) for run in self.runs_of(name)]

    def _value(self, name: str) -> float:
        values = self._values(name)
        return math.fsum(values) / len(values)

    def _eligible(self, name: str) -> bool:
        runs = self.runs_of(name)
        if not math.isfinite(self._value(name)) or not keeps_up(runs):
            return False
        return self.goal is None or judge(_without_objective(runs), self.goal).meets


def _without_objective(runs: Sequence[Evaluation]) -> list[Evaluation]:
    from dataclasses import replace

    return [replace(run, samples=run.samples[1:]) for run in runs]


def keys_said(keys: Mapping[str, Any]) -> str:
    """Keys and values as the name of a candidate."""
    return ", ".join(f"{key}={value}" for key, value in keys.items())
