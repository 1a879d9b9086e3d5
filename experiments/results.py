"""Results in Python: variants side by side, as data frames and figures, without touching files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments import bundle
from experiments.bundle import Bundle
from experiments.check_answer import check_answer
from experiments.config import Plan
from experiments.names import unknown
from experiments.replications import replicate
from experiments.variant import fingerprints, run_variant
from sim.errors import ConfigError
from sim.records import CAUSES, STATES
from sim.request import NEVER

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from experiments.uncertainty import Repeated


class Results:
    """Finished variants by label, in the order of their config.

    ``results["sarathi"]`` is the `experiments.bundle.Bundle` of one variant.

    Attributes:
        bundles: One per variant.
        answer: What they say in one sentence, where the config asks for it.
        repeated: Each variant with all its runs, where the config asks for replications.
    """

    def __init__(
        self,
        bundles: Sequence[Bundle],
        answer: str = "",
        repeated: Sequence[Repeated] = (),
    ) -> None:
        self.bundles = list(bundles)
        self.answer = answer
        self.repeated = list(repeated)

    def __len__(self) -> int:
        return len(self.bundles)

    def __iter__(self) -> Iterator[Bundle]:
        return iter(self.bundles)

    def __getitem__(self, label: str) -> Bundle:
        for each in self.bundles:
            if each.label == label:
                return each
        raise KeyError(unknown("variant", label, self.labels))

    def __repr__(self) -> str:
        return f"Results({', '.join(self.labels)})"

    @property
    def labels(self) -> list[str]:
        """Names of the variants."""
        return [each.label for each in self.bundles]

    def requests(self, label: str | None = None) -> pd.DataFrame:
        """One row per arrived request of one variant, or of all (with a column ``variant``).

        Columns as in ``requests.parquet``, states, reasons and replicas as text, times in ns (NA
        where they never came), and every metric of a single request in seconds.
        """
        import pandas as pd

        if label is not None:
            return _requests_frame(self[label])
        frames = {each.label: _requests_frame(each) for each in self.bundles}
        return pd.concat(frames, names=["variant"]).reset_index("variant").reset_index(drop=True)

    def metrics(self) -> pd.DataFrame:
        """One row per variant; columns named as in ``summary.json``, such as ``ttft_s.p99``."""
        import pandas as pd

        return pd.DataFrame([_flat(each) for each in self.bundles]).set_index("variant")

    def uncertainty(self) -> dict[str, Any]:
        """Of each variant every number with its 95 % interval, and how it differs from the first.

        As in ``replications.json``; empty without replications.
        """
        from experiments.uncertainty_table import as_json

        return as_json(self.repeated) if self.repeated else {}

    def series(self, label: str) -> pd.DataFrame:
        """Waiting, running and KV blocks in use of each replica over time."""
        return _named_frame(self[label], self[label].series)

    def steps(self, label: str) -> pd.DataFrame:
        """One row per run of iterations.

        Raises:
            ConfigError: They were not recorded.
        """
        columns = self[label].steps
        if columns is None:
            raise ConfigError(f"{label}: steps were not recorded; set record.steps: true")
        return _named_frame(self[label], columns)

    def figures(self, style: str = "slide", x_scale: str = "log") -> dict[str, go.Figure]:
        """CDFs by metric: ``ttft``, ``tpot``, ``itl``, ``e2e``, ``normalised_latency``.

        Then what there is of other figures, by the names of their files: of caches, classes,
        tenants and replicas, such as ``kv_occupancy``, and of where the time of a request went,
        such as ``attribution_e2e``.

        Args:
            style: A key of `experiments.looks.STYLES`.
            x_scale: ``log`` or ``linear``.
        """
        from experiments.cdf_figure import figure, lines_of
        from experiments.figures import CDFS, drawings_of
        from experiments.looks import STYLES

        if style not in STYLES:
            raise ConfigError(f"figures: {unknown('style', style, STYLES)}")
        if x_scale not in ("log", "linear"):
            raise ConfigError(f"figures: {unknown('x scale', x_scale, ('log', 'linear'))}")
        drawn = {}
        runs = [each.runs for each in self.repeated] or None
        for key in CDFS:
            lines = lines_of(self.bundles, key, runs=runs)
            if any(line.curve for line in lines):
                drawn[key] = figure(key, lines, STYLES[style], x_scale)  # type: ignore[arg-type]
        for each in drawings_of(self.bundles):
            drawn[each.key] = each.make(STYLES[style], x_scale)  # type: ignore[arg-type]
        return drawn

    def table(self, format: str = "markdown") -> str:
        """The comparison as text: ``markdown``, ``latex`` or ``csv``."""
        from experiments.tables import compare, table_text

        return table_text(compare(self.bundles), format)

    def save(self, folder: str | Path) -> None:
        """Write one bundle per variant, as ``phasewise run --out`` does.

        Raises:
            ConfigError: Two variants have labels that give the same folder.
        """
        from experiments.config import folders_of

        names = folders_of(self.labels)
        bundle.write_index(Path(folder), names, answer=self.answer)
        for each, name in zip(self.bundles, names, strict=True):
            bundle.write(each, Path(folder) / name)


def run_plan(plan: Plan, shards: int = 1) -> Results:
    """Run all variants here, one after the other, and keep the results in memory.

    Args:
        plan: What to run.
        shards: Processes that share the replicas of a variant (`sim.shards`).

    Raises:
        PhasewiseError: One line; the first variant that fails ends the run.
    """
    check_answer(plan)
    runs = [[replicate(each, k) for k in range(each.replications)] for each in plan.variants]
    prints = fingerprints([each for its in runs for each in its], plan.folder)
    known = iter(prints)
    made = [
        [run_variant(each, plan.folder, prints=next(known), shards=shards) for each in its]
        for its in runs
    ]
    bundles = [its[0] for its in made]
    summaries = {each.label: each.summary for each in bundles}
    answer = "" if plan.answer is None else plan.answer.said(summaries)
    return Results(bundles, answer, _repeated(made))


def _repeated(made: Sequence[Sequence[Bundle]]) -> list[Repeated]:
    if all(len(its) == 1 for its in made):
        return []
    from experiments.uncertainty import Repeated

    return [Repeated.of(its[0].label, its) for its in made]


def read(folder: str | Path) -> Results:
    """The finished results below a folder of ``phasewise run``.

    Raises:
        BundleError: There are none, or they cannot be read.
    """
    found = [path for path in bundle.find(Path(folder)) if bundle.is_finished(path)]
    if not found:
        raise bundle.BundleError(f"{folder}: no variant is finished")
    return Results([bundle.read(path) for path in found], bundle.answer_of(Path(folder)))


def _requests_frame(one: Bundle) -> pd.DataFrame:
    from sim.metric_definitions import METRICS
    from sim.metrics import PER_REQUEST

    frame = _named_frame(one, one.requests)
    for key, metric in PER_REQUEST.items():
        frame[METRICS[key].name_in_files] = metric(one.requests)
    return frame


def _named_frame(one: Bundle, columns: Mapping[str, Any]) -> pd.DataFrame:
    """Columns as a frame: codes as the texts they stand for, NA for times that never came."""
    import pandas as pd

    names = [replica.name for replica in one.replicas]
    texts: dict[str, Sequence[str]] = {
        "state": STATES,
        "reason": one.reasons,
        "cause": CAUSES,
        "replica": names,
        "decode_replica": names,
    }
    made: dict[str, Any] = {}
    for name, column in columns.items():
        if name in texts:
            made[name] = pd.Categorical.from_codes(column, list(texts[name]))
        elif name in bundle.NULLABLE:
            made[name] = pd.array(np.where(column == NEVER, 0, column), dtype="Int64")
            made[name][column == NEVER] = pd.NA
        else:
            made[name] = column
    return pd.DataFrame(made)


def _flat(one: Bundle) -> dict[str, Any]:
    summary = one.summary
    row: dict[str, Any] = {
        "variant": one.label,
        "policy": one.policy,
        "gpus": summary["gpus"],
        "verdict": summary["verdict"]["name"],
        **summary["requests"],
    }
    for name, value in summary["overall"].items():
        if isinstance(value, Mapping):
            row.update({f"{name}.{part}": number for part, number in value.items()})
        else:
            row[name] = value
    return row
