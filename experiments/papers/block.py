"""What a paper says of a figure, beside an ordinary config: the key ``paper`` of a YAML file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from experiments import strict_yaml
from experiments.config import Plan, load
from experiments.explain import explain
from experiments.names import unknown
from experiments.quantity import read_quantity
from experiments.schema import Strict
from sim.errors import ConfigError

FOLDER = Path(__file__).parent
"""Where the shipped ones are."""

Text = Annotated[str, Field(min_length=1)]
Figure = float | int


class Vary(Strict):
    """What changes along the x axis."""

    key: Text | None = None
    """Dotted key of the config, such as workload.arrivals.rate_per_s."""
    scale: list[Text] = Field(default_factory=list)
    """Instead: dotted keys whose values in the config are multiplied."""
    values: Annotated[list[Figure], Field(min_length=2)]
    """Its values, or the factors."""
    title: Text
    """Of the x axis, with the unit."""
    log: bool = False
    """The x axis is logarithmic."""


class Slowdown(Strict):
    """Bounds relative to what a variant shows where it is alone: at the first value of `vary`."""

    of: Text
    """Label of the variant."""
    times: dict[str, Figure]
    """Quantity to how many times that is allowed."""


class Measure(Strict):
    """One number of a variant: a metric, or how far along the x axis bounds hold."""

    title: Annotated[str, Field(min_length=1, max_length=58)]
    """What it is, with its unit; short enough for a panel in one column of a paper."""
    quantity: Text | None = None
    """A metric as in goals (``phasewise metrics``), such as ttft_s.p50."""
    at: Figure | None = None
    """Where on the x axis; needed if something is varied."""
    bounds: dict[str, Figure] = Field(default_factory=dict)
    """The largest x up to which these hold: quantity to bound, at most or, where more is better, at
    least. Between the last point that holds and the first that does not it is interpolated."""
    slowdown: Slowdown | None = None
    """More such bounds, relative ones."""
    falling: bool = False
    """The bounds hold for large x: the smallest x down to which they do."""
    goal: Text | None = None
    """Instead: the highest arrival rate that a goal allows, as `phasewise capacity` finds it."""
    search: bool = False
    """The bounds are not followed along the x axis, but searched as a `goal` is."""
    per_gpu: bool = False
    """Divided by the GPUs of the variant."""
    of: list[Text] = Field(default_factory=list)
    """Labels of the variants that have it. Default: all."""

    def is_of(self, label: str) -> bool:
        """Whether a variant has it."""
        return not self.of or label in self.of

    @property
    def searched(self) -> bool:
        """Whether a search finds it."""
        return self.search or self.goal is not None


class Number(Strict):
    """A number that the paper prints, and how ours is made."""

    says: Text
    """What it is."""
    where: Text
    """Section, figure or table of the paper."""
    paper: Text
    """The paper's number as it prints it, such as 36.9 or 2.7 to 8."""
    read: Literal["text", "secondary", "none"]
    """Where we read it: in the paper's own text (as conversions of it in public repositories have
    it), in what others write of a table or figure that these keep as an image, or nowhere, the
    paper printing no number."""
    measure: Text
    """Which measure."""
    of: Text
    """Of which variant."""
    over: Text | None = None
    """Divided by that of this one; of a smaller-is-better measure the other way around is not done.
    """
    unit: str = ""


class Claim(Strict):
    """An ordering that the paper claims, best first."""

    says: Text
    where: Text
    measure: Text | None = None
    """Which measure; larger is better but for latencies."""
    order: list[Text] = Field(default_factory=list)
    """Labels of variants; each has to be better than the next."""
    more: bool | None = None
    """Whether more of the measure comes first. Default: as the measure is better."""
    tie: bool = False
    """The paper says that they hardly differ: by at most a tenth."""
    missing: str = ""
    """Instead: what of it cannot be simulated."""
    if_not: str = ""
    """Why it does not come out, where it does not."""


class Fact(Strict):
    """A setting, in the paper and here."""

    what: Text
    paper: Text
    ours: Text


class Paper(Strict):
    """What a paper says of one figure."""

    of: Text
    """The paper, in a few words, such as vLLM (SOSP 2023)."""
    cite: Text
    figure: Text
    """Which figure or table, and what it shows."""
    sources: Text
    """How its numbers were read."""
    settings: Annotated[list[Fact], Field(min_length=1)]
    vary: Vary | None = None
    measures: Annotated[dict[str, Measure], Field(min_length=1)]
    draw: list[str] = Field(default_factory=list)
    """Quantities to draw along the x axis, or measures to draw as bars. Default: all measures."""
    log: bool = False
    """The y axes of curves are logarithmic."""
    top: dict[str, Figure] = Field(default_factory=dict)
    """Quantity to the largest value of its axis."""
    numbers: Annotated[list[Number], Field(min_length=1)]
    claims: Annotated[list[Claim], Field(min_length=1)]
    differs: Annotated[list[Text], Field(min_length=1)]
    """Why our numbers are not the paper's."""
    precision: Annotated[float, Field(gt=0, le=0.5)] = 0.05
    """Of goals: relative width of the bracket."""


@dataclass(frozen=True)
class Redone:
    """One file: what the paper says, and what to run.

    Attributes:
        name: Of the file.
        paper: The block.
        config: The rest, an ordinary config.
        plan: That, resolved.
    """

    name: str
    paper: Paper
    config: Mapping[str, Any]
    plan: Plan

    def load(self, overrides: Mapping[str, Any]) -> Plan:
        """The config again with overrides that have the last word."""
        return replace(load(self.config, overrides=overrides), source=self.plan.source)

    @property
    def labels(self) -> list[str]:
        """Of the variants."""
        return [each.label for each in self.plan.variants]


def shipped() -> dict[str, Path]:
    """The files that come with phasewise, by name."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.yaml"))}


def read(name: str | Path) -> Redone:
    """A file by its name or path.

    Raises:
        ConfigError: One line naming file, key and value.
    """
    known = shipped()
    path = Path(name) if str(name).endswith((".yaml", ".yml")) else known.get(str(name))
    if path is None or not path.exists():
        raise ConfigError(f"papers: {unknown('paper', str(name), known)}")
    raw = strict_yaml.read(path)
    if not isinstance(raw, Mapping) or "paper" not in raw:
        raise ConfigError(f"{path.name}: paper: is required: what the paper says")
    paper = _block(raw["paper"], path.name)
    config = {key: value for key, value in raw.items() if key != "paper"}
    config.setdefault("name", path.stem)
    try:
        plan = replace(load(config), source=path.name, folder=path.parent)
    except ConfigError as error:
        raise ConfigError(f"{path.name}{str(error).removeprefix('config')}") from None
    redone = Redone(path.stem, paper, config, plan)
    _check(redone, path.name)
    return redone


def _block(raw: Any, source: str) -> Paper:
    try:
        return Paper.model_validate(raw)
    except ValidationError as error:
        errors = error.errors()
        place = errors[0]["loc"]
        dotted = ".".join(map(str, place))
        told = explain([each for each in errors if each["loc"] == place])
        raise ConfigError(f"{source}: paper.{dotted}: {told}") from None


def _check(redone: Redone, source: str) -> None:
    """Refuse names of variants, measures and metrics that there are not.

    Raises:
        ConfigError: The first of them.
    """
    paper = redone.paper
    for key, measure in paper.measures.items():
        _check_measure(measure, redone, f"{source}: paper.measures.{key}")
    for at, number in enumerate(paper.numbers):
        where = f"{source}: paper.numbers[{at}]"
        _check_name(number.measure, "measure", [*paper.measures], f"{where}.measure")
        for label in (number.of, number.over):
            if label is not None:
                _check_name(label, "variant", _having(redone, number.measure), where)
    for at, claim in enumerate(paper.claims):
        _check_claim(claim, redone, f"{source}: paper.claims[{at}]")
    for name in paper.draw:
        if name not in paper.measures:
            read_quantity(name, f"{source}: paper.draw")
    for key in paper.vary.scale if paper.vary is not None else []:
        value_of(redone.config, key, f"{source}: paper.vary.scale")


def _check_measure(measure: Measure, redone: Redone, where: str) -> None:
    kinds = [measure.quantity, measure.bounds or measure.slowdown, measure.goal]
    if sum(bool(kind) for kind in kinds) != 1:
        raise ConfigError(f"{where}: expected one of quantity, bounds (or slowdown), and goal")
    vary = redone.paper.vary
    for label in measure.of:
        _check_name(label, "variant", redone.labels, f"{where}.of")
    relative = measure.slowdown is not None
    if vary is None and (relative or (measure.bounds and not measure.search)):
        raise ConfigError(f"{where}: bounds hold along an x axis: give paper.vary")
    if measure.quantity is not None and vary is not None and measure.at not in vary.values:
        raise ConfigError(f"{where}.at: {measure.at}: expected one of paper.vary.values")
    for name in quantities_of(measure):
        read_quantity(name, where)
    if measure.slowdown is not None:
        _check_name(measure.slowdown.of, "variant", redone.labels, f"{where}.slowdown.of")


def _check_claim(claim: Claim, redone: Redone, where: str) -> None:
    if claim.missing:
        return
    if claim.measure is None or len(claim.order) < 2:
        raise ConfigError(f"{where}: expected a measure and an order of variants, or missing")
    _check_name(claim.measure, "measure", [*redone.paper.measures], f"{where}.measure")
    for label in claim.order:
        _check_name(label, "variant", _having(redone, claim.measure), f"{where}.order")


def _having(redone: Redone, measure: str) -> list[str]:
    """Labels of the variants that have a measure."""
    return [label for label in redone.labels if redone.paper.measures[measure].is_of(label)]


def _check_name(name: str, kind: str, known: list[str], where: str) -> None:
    if name not in known:
        raise ConfigError(f"{where}: {unknown(kind, name, known)}")


def quantities_of(measure: Measure) -> list[str]:
    """The metrics that it is made of; none of a goal."""
    relative = measure.slowdown.times if measure.slowdown is not None else {}
    single = [measure.quantity] if measure.quantity is not None else []
    return [*single, *measure.bounds, *relative]


def value_of(config: Mapping[str, Any], key: str, where: str) -> float:
    """The number at a dotted key of the config.

    Raises:
        ConfigError: There is none.
    """
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    if not isinstance(value, int | float):
        raise ConfigError(f"{where}: {key}: the config has no number there")
    return float(value)


Better = Literal["higher", "lower"]


def better_of(measure: Measure) -> Better:
    """Which way is good: of a metric its own, of an x up to which bounds hold more."""
    if measure.quantity is None:
        return "lower" if measure.falling else "higher"
    own = read_quantity(measure.quantity, "measure").metric.better
    return "lower" if own == "lower" else "higher"
