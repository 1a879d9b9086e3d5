"""What one variant leaves on disk, and back: every table and figure can be redone from it.

    config.yaml        the variant, resolved; `phasewise run` takes it again
    environment.json   versions and hashes: what the numbers depend on besides the config
    wallclock.json     when and how long; all other files are the same bytes for the same seed
    requests.parquet   one row per arrived request: the trace's columns, state, times, tokens
    itl.parquet        distinct gaps between tokens and how often each occurred, per request class
    series.parquet     waiting, running, KV blocks in use, cached and lost, per replica, on a grid
    pools.parquet      replicas up, starting, draining and failed of each pool on the same grid, and
                       the requests that are neither in a replica's queue nor running
    transfers.parquet  KV moved from prefill to decode replicas
    migrations.parquet  requests that moved while they ran, or were to; only where they can
    changes.parquet    what happened to replicas: failures, drains, stragglers, slow NICs and so on
    tokens.parquet     when the tokens of the worst requests came (`experiments.worst`)
    preemptions.parquet  when these were preempted and admitted again; only where some were
    steps.parquet      one row per run of iterations; can be off, no table or figure needs it
    decisions.jsonl    every single iteration with its requests, if wanted (`experiments.exchange`)
    perfetto.json.gz   the run for trace viewers, if wanted
    summary.json       notes, metrics, verdict, replicas; written last: its presence says "finished"

A run of several variants has one such folder for each, and `variants.json`, which lists them and
holds the answer, where the config asks for one.
Times are integer nanoseconds from the start of the simulation; null where they never came.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt
import yaml

from experiments import hashes, strict_yaml
from experiments.blocked import blocking_file
from sim.attribution import E2E_COLUMNS, ITL_COLUMNS, TTFT_COLUMNS
from sim.errors import ConfigError, PhasewiseError
from sim.metrics import ReplicaFacts
from sim.records import (
    CAUSES,
    CHANGE_COLUMNS,
    CHANGES,
    OUTCOMES,
    PREEMPTIONS,
    STATES,
    STEP_CHUNK,
    STEP_COLUMNS,
    Decision,
    ReplicaInfo,
)
from sim.request import NEVER
from sim.step_time import StepTimeOrigin
from traces.arrow import from_numbers, from_strings, to_numbers

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

BUNDLE_VERSION = 1
"""Version of the bundle's files; newer ones are refused."""
_OLDEST_VERSION = 1
"""Oldest version that is still read."""

REQUESTS = "requests.parquet"
STEPS = "steps.parquet"
DECISIONS = "decisions.jsonl"
PERFETTO = "perfetto.json.gz"
MIGRATIONS = "migrations.parquet"
POOLS = "pools.parquet"
CHANGED = "changes.parquet"
TOKENS = "tokens.parquet"
PREEMPTED = "preemptions.parquet"
INDEX = "variants.json"
"""File that lists the bundles of a run, in their order."""
REPEATED = "replications.json"
"""File beside the variants of a run: intervals and differences, and the folders of their runs."""

REPLICATIONS = "replications"
"""Folder beside the variants of a run, of their further runs."""

Columns = dict[str, npt.NDArray[Any]]
Gaps = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]

_VERSION_KEY = b"phasewise.bundle_version"
_GROUP_ROWS = STEP_CHUNK
"""Rows of a row group: what a run hands over at a time, so that when it is written is the same."""
_ATTRIBUTED = frozenset((*E2E_COLUMNS, *TTFT_COLUMNS, *ITL_COLUMNS))
_TEXT = ("session", "request_class", "tenant")
"""Columns of the trace that hold text."""
_MAYBE = ("turn", "deadline_ns", "first_scheduled_ns", "prefill_end_ns", "first_token_ns")
_NEVER = ("last_token_ns", "end_ns", "largest_itl_ns", "itl_max_token", "itl_max_end_ns")
NULLABLE = (*_MAYBE, *_NEVER, "factor_millionths")
"""Columns in which -1 says that it never came or was not given; null in files."""


class BundleError(PhasewiseError):
    """A folder is no bundle, or one that cannot be read."""


@dataclass(kw_only=True)
class Head:
    """What a bundle says of its variant without its tables: enough for a comparison.

    Attributes:
        config: The resolved experiment, as plain values.
        environment: Versions and hashes.
        reasons: Text of each code in the column ``reason`` of the requests.
        replicas: In the order of the indices used in all columns.
        end_ns: The last instant at which anything happened.
        notes: What a reader of the numbers should know, one sentence each.
        summary: Metrics, as `experiments.summary` makes them.
        wallclock: When it ran and how long.
    """

    config: dict[str, Any]
    environment: dict[str, Any]
    reasons: list[str]
    replicas: list[ReplicaInfo]
    end_ns: int
    notes: list[str] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    wallclock: dict[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Name of the variant in tables and figures."""
        return str(self.config["label"])

    @property
    def policy(self) -> str:
        """Name of the policy, or ``disaggregated``: chooses colour and dash in figures."""
        colocated = self.config["pools"].get("colocated")
        return "disaggregated" if colocated is None else str(colocated["policy"]["name"])

    @property
    def workload(self) -> str:
        """One hash of what was asked for: requests, measured window and targets."""
        asked = ("workload", "seed", "warm_up_s", "drain_s", "slo")
        said = {key: self.config.get(key) for key in asked}
        return hashes.of_values({**said, "trace": self.environment.get("trace_sha256")})


@dataclass(kw_only=True)
class Bundle(Head):
    """One variant's results, in memory as on disk.

    Attributes:
        requests: One row per arrived request, in trace order, times -1 where they never came; the
            columns of `sim.records.REQUEST_COLUMNS`, ``largest_itl_ns``, those of the trace, and
            where prefixes are fetched those of `experiments.prefix_fetch`. Where time is attributed
            also those of `sim.attribution`.
        itl: Request class to its distinct gaps between tokens, ns ascending, and their counts.
        series: Columns of `sim.records.SERIES_COLUMNS`.
        pools: Columns of `sim.records.POOL_COLUMNS`; empty in bundles of older versions.
        transfers: Columns of `sim.records.TRANSFER_COLUMNS`.
        migrations: Columns of `sim.records.MIGRATION_COLUMNS` and ``resumed_ns``, in a file where
            requests can move; empty elsewhere.
        changes: Columns of `sim.records.CHANGE_COLUMNS`; empty in bundles of older versions.
        tokens: Columns of `experiments.worst.TOKEN_COLUMNS`, of the worst requests alone; empty in
            bundles of older versions.
        preemptions: Columns of `sim.records.PREEMPTION_COLUMNS`, of these requests; empty where
            none of them was preempted.
        steps: Columns of `sim.records.STEP_COLUMNS`; None if not recorded, or written while
            running.
        decisions: Every iteration, to be written; not read back.
    """

    requests: Columns
    itl: dict[str, Gaps]
    series: Columns
    transfers: Columns
    changes: Columns
    steps: Columns | None
    migrations: Columns = field(default_factory=dict)
    tokens: Columns = field(default_factory=dict)
    preemptions: Columns = field(default_factory=dict)
    pools: Columns = field(default_factory=dict)
    decisions: Sequence[Decision] | None = None


# --- writing


def write(bundle: Bundle, folder: Path) -> None:
    """Write a bundle; the folder appears complete or not at all, and replaces an older bundle.

    Raises:
        BundleError: `folder` holds something else, or cannot be written.
    """
    with replacing(folder) as partial:
        write_files(bundle, partial)


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """A new folder beside `folder` that takes its place at the end, or goes if anything fails.

    Raises:
        BundleError: `folder` holds something that is no bundle, or cannot be written.
    """
    if folder.exists() and not is_ours(folder):
        raise BundleError(f"{folder}: exists and is no bundle of results; give another --out")
    partial = partial_folder(folder)
    shutil.rmtree(partial, ignore_errors=True)
    with _telling(partial):
        partial.mkdir(parents=True)
    try:
        yield partial
        with _telling(folder):
            _take_place(partial, folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _take_place(partial: Path, folder: Path) -> None:
    """Rename only, so that no moment sees half of the old results or of the new ones."""
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    partial.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


@contextmanager
def _telling(path: Path) -> Iterator[None]:
    """A full disk, or a folder that may not be written, is one line that names `path`."""
    try:
        yield
    except OSError as error:
        if blocked := blocking_file(path, error):
            raise BundleError(blocked) from None
        reason = os.strerror(error.errno) if error.errno else str(error).splitlines()[0]
        raise BundleError(f"{path}: cannot be written: {reason}") from None


def write_index(
    folder: Path,
    variants: Sequence[str],
    failed: Mapping[str, str] | None = None,
    answer: str = "",
) -> None:
    """Say which folders belong to the last run: others may be left of an earlier config.

    Args:
        folder: Of the run.
        variants: Names of the folders of its variants, in order.
        failed: Why those without results have none, by name.
        answer: What the results say, where the config asks for it.
    """
    with _telling(folder):
        folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f".{INDEX}.partial"
    said = {"answer": answer} if answer else {}
    _write_json(partial, {"variants": list(variants), "failed": dict(failed or {}), **said})
    with _telling(folder):
        partial.replace(folder / INDEX)


def write_values(path: Path, values: Mapping[str, Any]) -> None:
    """Write what was found of several bundles, as JSON beside them.

    Raises:
        BundleError: The disk is full, or the folder cannot be written.
    """
    with _telling(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    _write_json(path, values)


def write_page(path: Path, text: str) -> None:
    """Write a page made of bundles; it appears complete or not at all.

    Raises:
        BundleError: The disk is full, or the folder cannot be written.
    """
    with _telling(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    _write_text(path, text)


def read_values(path: Path) -> dict[str, Any]:
    """Read what `write_values` wrote.

    Raises:
        BundleError: It cannot be read, or is of a version that is not read.
    """
    return _read_json(path)


def partial_folder(folder: Path) -> Path:
    """Where a bundle is written before it is complete."""
    return folder.with_name(f".{folder.name}.partial")


def is_finished(folder: Path) -> bool:
    """Whether a folder holds a complete bundle."""
    return is_bundle(folder) and (folder / "summary.json").is_file()


def content_hash(folder: Path) -> str:
    """Hash of all that the numbers of a bundle depend on."""
    return str(_read_json(folder / "environment.json").get("content_sha256", ""))


def is_bundle(folder: Path) -> bool:
    """Whether a folder looks like a bundle, finished or not."""
    return (folder / "config.yaml").is_file() and (folder / "environment.json").is_file()


_FILES = frozenset(
    {
        "config.yaml",
        "environment.json",
        "wallclock.json",
        "requests.parquet",
        "itl.parquet",
        "series.parquet",
        POOLS,
        "transfers.parquet",
        MIGRATIONS,
        CHANGED,
        TOKENS,
        PREEMPTED,
        STEPS,
        DECISIONS,
        PERFETTO,
        "summary.json",
    }
)
_REMAINS = 3
"""Files of a bundle that are no coincidence: a folder of just a config is its owner's."""


def is_ours(folder: Path) -> bool:
    """Whether a folder is a bundle, or what is left of one: then it may be replaced."""
    if is_bundle(folder) or not folder.is_dir():
        return folder.is_dir()
    names = {path.name for path in folder.iterdir()}
    return len(names) >= _REMAINS and names <= _FILES


def write_files(bundle: Bundle, folder: Path) -> None:
    """Write the files of a bundle; without `Bundle.steps`, no ``steps.parquet`` is touched.

    Raises:
        BundleError: The disk is full, or the folder cannot be written.
    """
    _write_text(folder / "config.yaml", dump_config(bundle.config))
    _write_json(folder / "environment.json", bundle.environment)
    _write_json(folder / "wallclock.json", bundle.wallclock)
    _write_table(folder / "requests.parquet", _requests_table(bundle))
    _write_table(folder / "itl.parquet", _gaps_table(bundle.itl))
    names = [replica.name for replica in bundle.replicas]
    _write_table(folder / "series.parquet", _table(bundle.series, {"replica": names}))
    if bundle.pools:
        _write_table(folder / POOLS, _table(bundle.pools, {"pool": pools_of(bundle.replicas)}))
    places = {"source": names, "target": names}
    _write_table(folder / "transfers.parquet", _table(bundle.transfers, places))
    if bundle.migrations:
        texts = {**places, "outcome": OUTCOMES}
        _write_table(folder / MIGRATIONS, _table(bundle.migrations, texts))
    _write_table(folder / CHANGED, _table(bundle.changes, {"replica": names, "change": CHANGES}))
    if bundle.tokens:
        _write_table(folder / TOKENS, _table(bundle.tokens, {}))
    if bundle.preemptions:
        _write_table(folder / PREEMPTED, _table(bundle.preemptions, {"what": PREEMPTIONS}))
    if bundle.steps is not None:
        with StepsFile(folder) as file:
            file.write(bundle.steps, names)
    if bundle.decisions is not None:
        from experiments.exchange import decisions

        with _telling(folder / DECISIONS):
            decisions.write(folder / DECISIONS, bundle.decisions, names)
    _write_json(folder / "summary.json", _summary(bundle))


def pools_of(replicas: Sequence[ReplicaFacts]) -> list[str]:
    """Names of the pools, in the order of their numbers: the one that requests enter is first."""
    return list(dict.fromkeys(replica.pool for replica in replicas))


class StepsFile:
    """``steps.parquet``, written a row group at a time while a variant runs.

    Args:
        folder: Where it is written.

    Raises:
        BundleError: The disk is full, or the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / STEPS
        empty = {name: np.zeros(0, np.int64) for name in STEP_COLUMNS}
        self._writer = _writer(self._path, _table(empty, self._texts([])).schema)

    @staticmethod
    def _texts(names: Sequence[str]) -> dict[str, Sequence[str]]:
        return {"replica": names, "cause": CAUSES}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with _telling(self._path):
            self._writer.close()

    def write(self, columns: Columns, names: Sequence[str]) -> None:
        """Add rows, as groups of at most `_GROUP_ROWS`.

        Args:
            columns: Of the step log.
            names: Of the replicas that there have been, in the order of their indices.
        """
        _write_groups(self._writer, self._path, _table(columns, self._texts(names)))


def dump_config(config: Mapping[str, Any]) -> str:
    """A resolved experiment as YAML that `phasewise run` reads back."""
    head = (
        "# Resolved by phasewise: nothing is left to defaults. `phasewise run` takes this file.\n"
    )
    return head + yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)


def _summary(bundle: Bundle) -> dict[str, Any]:
    facts = {
        "end_ns": bundle.end_ns,
        "reasons": bundle.reasons,
        "replicas": [_facts_of(replica) for replica in bundle.replicas],
    }
    return {"label": bundle.label, "notes": bundle.notes, **bundle.summary, "facts": facts}


def _facts_of(replica: ReplicaInfo) -> dict[str, Any]:
    facts = asdict(replica)
    del facts["iterations_by_rows"]  # up to one entry per batch size; MBU is made of it already
    return facts


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    # NaN is no JSON: an undefined metric is null.
    text = json.dumps(
        {"bundle_version": BUNDLE_VERSION, **_defined(values)}, indent=1, allow_nan=False
    )
    _write_text(path, text + "\n")


def _write_text(path: Path, text: str) -> None:
    """Write a file, which appears complete or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    with _telling(path):
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)


def _defined(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _defined(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_defined(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value


def _requests_table(bundle: Bundle) -> pa.Table:
    names = [replica.name for replica in bundle.replicas]
    texts = {"state": STATES, "reason": bundle.reasons, "replica": names, "decode_replica": names}
    return _table(bundle.requests, texts)


def _gaps_table(gaps: Mapping[str, Gaps]) -> pa.Table:
    import pyarrow as pa

    empty = np.zeros(0, np.int64)
    code = [np.full(len(gap_ns), at, np.int64) for at, (gap_ns, _) in enumerate(gaps.values())]
    gap_ns = np.concatenate([empty, *(gap_ns for gap_ns, _ in gaps.values())])
    count = np.concatenate([empty, *(count for _, count in gaps.values())])
    return pa.Table.from_arrays(
        [
            _coded(np.concatenate([empty, *code]), list(gaps)),
            from_numbers(gap_ns),
            from_numbers(count),
        ],
        ["request_class", "gap_ns", "count"],
    )


def _table(columns: Mapping[str, npt.NDArray[Any]], texts: Mapping[str, Sequence[str]]) -> pa.Table:
    """Columns as an Arrow table: codes as their texts, -1 as null where it means never."""
    import pyarrow as pa

    arrays: dict[str, pa.Array] = {}
    for name, column in columns.items():
        if name in texts:
            arrays[name] = _coded(column, texts[name])
        elif name in _TEXT:
            arrays[name] = from_strings(column.tolist())
        else:
            arrays[name] = from_numbers(column, column != NEVER if name in NULLABLE else None)
    return pa.Table.from_arrays(list(arrays.values()), list(arrays))


def _coded(codes: npt.NDArray[Any], texts: Sequence[str]) -> pa.Array:
    import pyarrow as pa

    indices = from_numbers(codes.astype(np.int32), codes >= 0)
    return pa.DictionaryArray.from_arrays(indices, from_strings(texts))


def _write_table(path: Path, table: pa.Table) -> None:
    writer = _writer(path, table.schema)
    try:
        _write_groups(writer, path, table)
    finally:
        with _telling(path):
            writer.close()


def _writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    import pyarrow.parquet as pq

    # No pandas block and no time in the metadata: the same rows are the same bytes.
    marked = schema.with_metadata({_VERSION_KEY: str(BUNDLE_VERSION).encode()})
    with _telling(path):
        return pq.ParquetWriter(path, marked, compression="zstd", store_schema=True)


def _write_groups(writer: pq.ParquetWriter, path: Path, table: pa.Table) -> None:
    if not table.schema.equals(writer.schema):  # to cast for nothing would import pyarrow.compute
        table = table.cast(writer.schema)
    with _telling(path):
        writer.write_table(table, row_group_size=_GROUP_ROWS)


# --- reading


def read(folder: Path, *, with_steps: bool = True, attributed: bool = True) -> Bundle:
    """Read a bundle; without `steps.parquet` it is complete too.

    Args:
        folder: Of the bundle.
        with_steps: Read ``steps.parquet`` where there is one; figures do not need it.
        attributed: Read the columns of attributed time too, which are most of a large bundle.

    Raises:
        BundleError: It is none, is not finished, or of a version that is not read.
    """
    head = read_head(folder)
    names = [replica.name for replica in head.replicas]
    texts = {
        "state": STATES,
        "reason": head.reasons,
        "replica": names,
        "decode_replica": names,
    }
    steps, gone = folder / STEPS, folder / PREEMPTED
    places = {"source": names, "target": names}
    moves, pools = folder / MIGRATIONS, folder / POOLS
    has_steps = with_steps and steps.is_file()
    return Bundle(
        **vars(head),
        requests=_read_table(folder / REQUESTS, texts, () if attributed else _ATTRIBUTED),
        itl=_read_gaps(folder / "itl.parquet"),
        series=_read_table(folder / "series.parquet", {"replica": names}),
        transfers=_read_table(folder / "transfers.parquet", places),
        pools=_read_table(pools, {"pool": pools_of(head.replicas)}) if pools.is_file() else {},
        migrations=(_read_table(moves, {**places, "outcome": OUTCOMES}) if moves.is_file() else {}),
        changes=_read_changes(folder / CHANGED, names),
        preemptions=_read_table(gone, {"what": PREEMPTIONS}) if gone.is_file() else {},
        tokens=_read_table(tokens, {}) if (tokens := folder / TOKENS).is_file() else {},
        steps=_read_table(steps, {"replica": names, "cause": CAUSES}) if has_steps else None,
    )


def _read_changes(path: Path, names: Sequence[str]) -> Columns:
    if not path.is_file():
        return {name: np.zeros(0, np.int64) for name in CHANGE_COLUMNS}
    return _read_table(path, {"replica": names, "change": CHANGES})


def read_steps(folder: Path, names: Sequence[str]) -> Iterator[Columns]:
    """The rows of ``steps.parquet``, a row group at a time.

    Args:
        folder: Of the bundle.
        names: Of its replicas, in the order of their indices.

    Raises:
        BundleError: It is damaged, or of a version that is not read.
    """
    import pyarrow.parquet as pq

    path = folder / STEPS
    texts = {"replica": names, "cause": CAUSES}
    with _reading(path), pq.ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            yield _columns_of(file.read_row_group(group), texts, path)


def count_steps(folder: Path) -> int:
    """Rows of ``steps.parquet``, from its last bytes.

    Raises:
        BundleError: It is damaged.
    """
    import pyarrow.parquet as pq

    _check_footer(folder / STEPS)
    return int(pq.read_metadata(folder / STEPS).num_rows)


def check_readable(folder: Path) -> None:
    """Read all files of a bundle; of ``steps.parquet``, which may be large, only the last bytes.

    Raises:
        BundleError: One of them is missing or damaged.
    """
    read(folder, with_steps=False)
    steps = folder / STEPS
    if steps.is_file():
        _check_footer(steps)


_OF_SUMMARIES = ("requests", "reasons", "window", "gpus", "verdict", "slo", "overall", "classes")
"""Keys without which no table can be made."""


def read_head(folder: Path) -> Head:
    """Read a bundle without its tables.

    Raises:
        BundleError: It is none, is not finished, or of a version that is not read.
    """
    if not is_bundle(folder):
        raise BundleError(f"{folder}: no bundle of results here (config.yaml and environment.json)")
    if not (folder / "summary.json").is_file():
        raise _missing(folder / "summary.json")
    environment = _read_json(folder / "environment.json")
    wallclock = _read_json(folder / "wallclock.json")
    summary = _read_json(folder / "summary.json")
    try:
        facts = summary.pop("facts")
        notes = summary.pop("notes")
        del summary["label"]  # that of the config
        reasons, end_ns = list(facts["reasons"]), facts["end_ns"]
        replicas = [_replica(entry) for entry in facts["replicas"]]
        for key in _OF_SUMMARIES:
            summary[key]
    except (AttributeError, KeyError, TypeError) as error:
        raise BundleError(
            f"{folder / 'summary.json'}: is no summary of this version ({error}); run it again"
        ) from None
    return Head(
        config=_read_config(folder / "config.yaml"),
        environment=environment,
        reasons=reasons,
        replicas=replicas,
        end_ns=end_ns,
        notes=notes,
        summary=summary,
        wallclock=wallclock,
    )


def find(folder: Path) -> list[Path]:
    """The bundles at or directly below a folder, those of its last run in their order.

    Raises:
        BundleError: There is none.
    """
    if is_bundle(folder):
        return [folder]
    if folder.is_file():
        raise BundleError(f"{folder}: is a file; give its folder, {folder.parent}")
    if not folder.is_dir():
        raise BundleError(f"{folder}: no such folder; expected results of `phasewise run`")
    if (folder / INDEX).is_file():
        names, failed = _read_index(folder)
        listed = [folder / name for name in names if name not in failed]
    else:
        listed = [path for path in sorted(folder.iterdir()) if path.name[0] != "."]
    found = [path for path in listed if is_bundle(path)]
    if not found:
        raise BundleError(f"{folder}: holds no results of `phasewise run`")
    return found


def left_out(folder: Path) -> dict[Path, str]:
    """Why variants of the last run in a folder have no results there, by the bundle's folder."""
    if is_bundle(folder) or not (folder / INDEX).is_file():
        return {}
    names, failed = _read_index(folder)
    missing = {name: "no results" for name in names if not is_bundle(folder / name)}
    return {folder / name: (missing | failed)[name] for name in names if name in missing | failed}


def runs_of(folder: Path) -> tuple[str, list[Path]] | None:
    """Of the first replication of a variant: its label, and the folders of all runs, itself first.

    None for a bundle that is the first of no replications.
    """
    beside = folder.parent / REPEATED
    known = read_values(beside)["folders"] if beside.is_file() else {}
    for label, runs in known.items():
        if runs[0] == folder.name:
            return str(label), [folder.parent / each for each in runs]
    return None


def lone_run(folder: Path) -> str:
    """That a bundle is one of several runs whose list is missing; empty where it is not."""
    others = folder.parent / REPLICATIONS / folder.name
    if (folder.parent / REPEATED).is_file() or not others.is_dir():
        return ""
    count = sum(is_finished(each) for each in others.iterdir())
    more = "1 more run" if count == 1 else f"{count} more runs"
    return (
        f"{folder}: only its first run is shown: {REPEATED} is missing, which lists {more} in "
        f"{others}; run it again"
    )


def answer_of(folder: Path) -> str:
    """What the last run in a folder had to say; empty if it had nothing, or is no run."""
    path = folder / INDEX
    return str(_read_json(path).get("answer", "")) if path.is_file() else ""


def _read_index(folder: Path) -> tuple[list[str], dict[str, str]]:
    """Variants of a run, and why some of them failed."""
    values = _read_json(folder / INDEX)
    names, failed = values.get("variants"), values.get("failed", {})
    if not isinstance(names, list) or not isinstance(failed, dict):
        raise BundleError(f"{folder / INDEX}: lists no variants; run it again")
    return [str(name) for name in names], {str(name): str(why) for name, why in failed.items()}


def _replica(entry: Mapping[str, Any]) -> ReplicaInfo:
    return ReplicaInfo(
        **{
            **entry,
            "step_time": StepTimeOrigin(**entry["step_time"]),
            "stage_busy_ns": tuple(entry.get("stage_busy_ns", ())),
        }
    )


def _missing(path: Path) -> BundleError:
    """A file is not there without which a bundle cannot be read."""
    return BundleError(f"{path.parent}: not finished: {path.name} is missing; run it again")


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Name the Parquet file that is missing or cannot be read."""
    import pyarrow as pa

    try:
        yield
    except FileNotFoundError:
        raise _missing(path) from None
    except (OSError, pa.ArrowInvalid) as error:
        raise BundleError(f"{path}: cannot be read: {str(error).splitlines()[0]}") from None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise _missing(path) from None
    except (OSError, ValueError) as error:
        raise BundleError(f"{path}: cannot be read: {error}") from None
    if not isinstance(values, dict):
        raise BundleError(f"{path}: cannot be read: holds no mapping")
    _check_version(values.pop("bundle_version", None), path)
    return values


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = strict_yaml.read(path)
    except ConfigError as error:  # it names the file alone
        raise BundleError(f"{path.parent}/{error}") from None
    if not isinstance(config, dict) or "label" not in config:
        raise BundleError(f"{path}: is no resolved config")
    return config


def _check_version(version: object, path: Path) -> None:
    if not isinstance(version, int):
        raise BundleError(f"{path}: does not say its bundle_version; not written by phasewise")
    if version < _OLDEST_VERSION:
        raise BundleError(
            f"{path}: bundle_version {version} is older than this phasewise reads, which is "
            f"{_OLDEST_VERSION} and later; run its config.yaml again"
        )
    if version > BUNDLE_VERSION:
        raise BundleError(
            f"{path}: bundle_version {version} is newer than this phasewise, which reads up to "
            f"{BUNDLE_VERSION}; install a newer one"
        )


def read_columns(folder: Path, names: Sequence[str]) -> Columns:
    """Columns of numbers of ``requests.parquet``, those of them that it has.

    Raises:
        BundleError: It is damaged, or of a version that is not read.
    """
    table = _checked_table(folder / REQUESTS, only=names)
    return {name: to_numbers(_column(table, name), NEVER) for name in table.column_names}


def _read_table(
    path: Path, texts: Mapping[str, Sequence[str]], without: Collection[str] = ()
) -> Columns:
    return _columns_of(_checked_table(path, without=without), texts, path)


def _columns_of(table: pa.Table, texts: Mapping[str, Sequence[str]], path: Path) -> Columns:
    columns: Columns = {}
    for name in table.column_names:
        column = _column(table, name)
        if name in texts:
            columns[name] = _codes(column, texts[name], path)
        elif name in _TEXT:
            columns[name] = np.array(column.to_pylist(), dtype=object)
        else:
            columns[name] = to_numbers(column, NEVER)
    return columns


def _checked_table(
    path: Path, *, only: Sequence[str] | None = None, without: Collection[str] = ()
) -> pa.Table:
    """A table, or some of its columns, once its version is known to be one that is read."""
    import pyarrow.parquet as pq

    with _reading(path), pq.ParquetFile(path) as file:  # read_table would import pandas
        present = [name for name in file.schema_arrow.names if name not in without]
        chosen = present if only is None else [name for name in only if name in present]
        table = file.read(columns=chosen)
    version = (table.schema.metadata or {}).get(_VERSION_KEY, b"")
    _check_version(int(version) if version.isdigit() else None, path)
    return table


def _check_footer(path: Path) -> None:
    import pyarrow.parquet as pq

    with _reading(path):
        pq.read_metadata(path)


def _codes(column: pa.Array, texts: Sequence[str], path: Path) -> npt.NDArray[np.int32]:
    """Positions in `texts`, -1 for null, whatever order the file's own dictionary has."""
    places = {text: position for position, text in enumerate(texts)}
    own = column.dictionary.to_pylist()
    unknown = [text for text in own if text not in places]
    if unknown:
        raise BundleError(f"{path}: holds {unknown[0]!r}, which summary.json does not list")
    lookup = np.array([*(places[text] for text in own), NEVER], dtype=np.int32)
    return lookup[to_numbers(column.indices, len(own))]


def _read_gaps(path: Path) -> dict[str, Gaps]:
    table = _checked_table(path)
    for name in ("request_class", "gap_ns", "count"):
        if name not in table.column_names:
            raise BundleError(f"{path}: has no column {name}; run it again")
    gap_ns, count = (to_numbers(_column(table, name)) for name in ("gap_ns", "count"))
    classes = _column(table, "request_class")
    code = to_numbers(classes.indices)
    names = classes.dictionary.to_pylist()
    present = [at for at in range(len(names)) if (code == at).any()]
    return {names[at]: (gap_ns[code == at], count[code == at]) for at in present}


def _column(table: pa.Table, name: str) -> pa.Array:
    """One array of a column, dictionaries of several chunks made one."""
    import pyarrow as pa

    chunks = table.column(name).unify_dictionaries()
    if chunks.num_chunks == 1:  # putting chunks together would import pandas
        return chunks.chunk(0)
    if not chunks.num_chunks:
        return pa.nulls(0, chunks.type)
    joined = chunks.combine_chunks()
    return joined.chunk(0) if isinstance(joined, pa.ChunkedArray) else joined
