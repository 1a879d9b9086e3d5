"""The command as a process: what it loads, how it fails, and what it then leaves on disk."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from rich.console import Console
from typer.testing import CliRunner, Result

import sim.records
from experiments import bundle
from experiments.cli import app
from experiments.config import load
from experiments.progress import Bars
from experiments.results import run_plan
from experiments.run import InterruptedRunError, Job, jobs_of, run_jobs

ROWS = "".join(f"{0.1 * i:.7f},{100 + i % 50},{10 + i % 7}\n" for i in range(600))
CONFIG: dict[str, Any] = {
    "workload": {"trace": "t.csv", "max_tokens": 64},
    "model": "llama-3.1-8b",
    "policy": "sarathi",
}
LINEAR = {"model": "linear", "base_s": 0.005, "prefill_token_s": 3e-5}
HEAVY = {"pandas", "scipy", "plotly"}


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text("arrival_s,prompt_tokens,output_tokens\n" + ROWS)
    return write(tmp_path / "c.yaml", CONFIG)


def write(path: Path, config: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump(config))
    return path


def phasewise(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)])


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-c", "import phasewise; phasewise.main()", *map(str, arguments)]


def environment(repository: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(repository), **more}


def told(result: Result, code: int) -> str:
    """The last line on stderr of a command that failed with `code` and no traceback."""
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result.stderr.splitlines()[-1]


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- what is loaded


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_run_without_figures_loads_no_slow_library_in_any_process(
    config: Path, repository: Path, jobs: int
) -> None:
    variants = [{"label": "linear", "step_time": LINEAR}, {"label": "roofline"}]
    write(config, {**CONFIG, "compare": variants})

    done = subprocess.run(
        command("run", config, "--out", "o", "--figures", "none", "--jobs", str(jobs)),
        env=environment(repository, PYTHONPROFILEIMPORTTIME="1"),
        capture_output=True,
        text=True,
        check=True,
    )

    loaded = set(re.findall(r"^import time:.*\| +([\w.]+)$", done.stderr, re.MULTILINE))
    assert {"numpy", "simpy", "pyarrow.parquet", "sim.event_loop"} <= loaded
    assert {name.partition(".")[0] for name in loaded} & HEAVY == set()
    assert ("multiprocessing" in loaded) == (jobs > 1)
    assert "roofline" in done.stdout


# --- steps, written while running


def test_steps_written_while_running_are_those_kept_in_memory(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sim.records, "STEP_CHUNK", 64)
    monkeypatch.setattr(bundle, "_GROUP_ROWS", 64)
    plan = load(config, ["replicas=2"])
    (job,) = jobs_of(plan, Path("o"))

    run_jobs([job], plan, 1)
    run_plan(plan).save("kept")

    assert job.state == "finished", job.error
    written = job.folder / "steps.parquet"
    assert written.read_bytes() == (Path("kept") / job.folder.name / "steps.parquet").read_bytes()
    assert pq.ParquetFile(written).num_row_groups > 10
    steps = bundle.read(job.folder).steps
    assert steps is not None
    assert set(steps["replica"].tolist()) == {0, 1}


def test_a_run_without_steps_writes_none(config: Path) -> None:
    plan = load(config, ["record.steps=false"])
    (job,) = jobs_of(plan, Path("o"))

    run_jobs([job], plan, 1)

    assert "steps.parquet" not in left_in(job.folder)


def test_names_of_replicas_known_beforehand_are_those_of_the_results(config: Path) -> None:
    pool = {"policy": {"name": "sarathi"}, "replicas": 2}
    transfer = {"bandwidth_bytes_per_s": 1e11}
    pools = {"prefill": pool, "decode": {**pool, "replicas": 3}, "transfer": transfer}
    split = {key: value for key, value in CONFIG.items() if key != "policy"}
    plan = load({**split, "pools": pools})
    (job,) = jobs_of(plan, Path("o"))

    run_jobs([job], plan, 1)

    made = bundle.read(job.folder)
    assert made.steps is not None
    names = [replica.name for replica in made.replicas]
    in_file = pq.read_table(job.folder / "steps.parquet").column("replica").to_pylist()
    assert set(in_file) == set(names)
    assert len(names) == 5
    for place, replica in enumerate(made.replicas):
        mine = made.steps["replica"] == place
        assert made.steps["iterations"][mine].sum() == replica.iterations


# --- nothing is left half written


@pytest.mark.parametrize(
    ("error", "state"), [(KeyboardInterrupt, "stopped"), (MemoryError, "failed")]
)
def test_what_ends_a_run_leaves_the_earlier_results_whole(
    config: Path, error: type[BaseException], state: str
) -> None:
    (job,) = jobs_of(load(config), Path("o"))
    run_jobs([job], load(config), 1)
    before = {path.name: path.read_bytes() for path in job.folder.iterdir()}
    changed = load(config, ["seed=1"])
    (again,) = jobs_of(changed, Path("o"))

    def end(job: Job) -> None:
        if job.state == "running" and job.ended:
            assert "steps.parquet" in left_in(bundle.partial_folder(job.folder))
            raise error

    with suppress(InterruptedRunError):
        run_jobs([again], changed, 1, end)

    assert again.state == state
    assert left_in(Path("o")) == ["sarathi"]
    assert {path.name: path.read_bytes() for path in job.folder.iterdir()} == before


def test_ctrl_c_ends_a_run_in_one_process(config: Path, repository: Path) -> None:
    long = {"preset": "azure-conv-2023", "requests": 100_000, "max_tokens": 1024}
    slow = {"label": "slow", "workload": long, "fast_forward": False}
    base = {key: value for key, value in CONFIG.items() if key != "workload"}
    quick = {"label": "quick", "workload": CONFIG["workload"]}
    write(config, {**base, "compare": [quick, slow]})
    process = subprocess.Popen(
        command("run", config, "--out", "o", "--jobs", "1", "--figures", "none"),
        env=environment(repository),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    steps = bundle.partial_folder(Path("o/slow")) / "steps.parquet"
    deadline = time.monotonic() + 60
    while not steps.exists() and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)

    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=30)

    assert process.returncode == 130
    assert stderr.splitlines()[-1] == (
        "phasewise: interrupted: 1 of 2 variants are finished and usable in o; "
        "the same command runs the rest"
    )
    assert "Traceback" not in stderr
    assert "quick" in stdout
    assert left_in(Path("o")) == ["quick", "variants.json"]


# --- one line for what goes wrong


def test_a_stuck_run_names_the_request_and_ends_with_1(config: Path) -> None:
    Path("process_idle.py").write_text(
        "from dataclasses import dataclass\n"
        "from sim.batch import ScheduledBatch\nfrom sim.policy import Policy\n"
        "@dataclass\nclass Idle(Policy):\n"
        "    def schedule(self, state):\n        return ScheduledBatch()\n"
    )

    result = phasewise(
        "run", config, "--set", "policy=process_idle:Idle", "--jobs", "1", "--figures", "none"
    )

    line = told(result, 1)
    assert "can never run, the first one request 0 (prompt 100, max 64) on replica 0" in line
    assert left_in(Path("results/c")) == ["variants.json"]


def test_a_missing_trace_is_bad_input(config: Path) -> None:
    line = told(phasewise("run", config, "--set", "workload.trace=nothing.csv"), 2)

    assert line.startswith("phasewise: --set: workload.trace: nothing.csv: no such file")
    assert not Path("results").exists()


def test_a_folder_that_cannot_be_made_is_bad_input(config: Path) -> None:
    line = told(phasewise("run", config, "--out", "t.csv/o"), 2)

    assert line == "phasewise: t.csv/o: t.csv is a file, not a folder"


@pytest.mark.parametrize("name", ["steps.parquet", "requests.parquet", "summary.json"])
def test_a_full_disk_ends_with_1_and_leaves_nothing(
    config: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    fill_up_at(name, monkeypatch)

    line = told(phasewise("run", config, "--out", "o", "--jobs", "1", "--figures", "none"), 1)

    reason = os.strerror(errno.ENOSPC)
    assert line == f"phasewise: sarathi: o/.sarathi.partial/{name}: cannot be written: {reason}"
    assert left_in(Path("o")) == ["variants.json"]


def fill_up_at(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full when the file `name` is written."""

    def refuse(path: Path) -> None:
        if path.name in (name, f".{name}.partial"):  # written under the second, if it is text
            raise OSError(errno.ENOSPC, "full", str(path))

    groups, text = bundle._write_groups, Path.write_text

    def write_groups(writer: Any, path: Path, table: Any) -> None:
        with bundle._telling(path):
            refuse(path)
        groups(writer, path, table)

    def write_text(path: Path, *args: Any, **kwargs: Any) -> int:
        refuse(path)
        return text(path, *args, **kwargs)

    monkeypatch.setattr(bundle, "_write_groups", write_groups)
    monkeypatch.setattr(Path, "write_text", write_text)


@pytest.mark.parametrize("read", ["table", "plot"])
def test_results_of_a_version_that_is_not_read_any_more_are_refused(
    config: Path, read: str
) -> None:
    arguments = ("run", config, "--out", "o", "--jobs", "1", "--figures", "none")
    assert phasewise(*arguments).exit_code == 0
    for path in Path("o/sarathi").glob("*.json"):
        path.write_text(path.read_text().replace('"bundle_version": 1', '"bundle_version": 0'))

    line = told(phasewise(read, "o/sarathi"), 2)

    assert line == (
        "phasewise: o/sarathi/environment.json: bundle_version 0 is older than this phasewise "
        "reads, which is 1 and later; run its config.yaml again"
    )
    again = phasewise(*arguments)
    assert again.exit_code == 0
    assert "sarathi: done" in again.stderr


# --- a user's own policy

OWN = (
    "from dataclasses import dataclass\nfrom policies.orca import Orca\n"
    "@dataclass\nclass Mine(Orca):\n    option: int = 1\n"
)


def test_a_policy_beside_the_config_runs_from_another_folder(
    config: Path, tmp_path: Path, repository: Path
) -> None:
    Path("process_own.py").write_text(OWN)
    named = {"name": "process_own:Mine", "option": 3}
    write(config, {**CONFIG, "policy": named, "grid": {"seed": [0, 1]}})
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "sim").mkdir(parents=True)

    done = subprocess.run(
        command("run", "../c.yaml", "--out", "o", "--figures", "none", "--jobs", "2"),
        env=environment(repository, PYTHONSAFEPATH="1"),
        cwd=elsewhere,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert left_in(elsewhere / "o") == ["seed=0", "seed=1", "variants.json"]


def test_an_unknown_option_of_a_users_policy_names_the_nearest(config: Path) -> None:
    Path("process_own.py").write_text(OWN)
    write(config, {**CONFIG, "policy": {"name": "process_own:Mine", "optoin": 3}})

    assert told(phasewise("run", config), 2) == (
        "phasewise: c.yaml: policy.optoin: process_own:Mine has no such option; try option"
    )


def test_a_module_of_the_same_name_from_elsewhere_is_not_taken(config: Path) -> None:
    Path("json.py").write_text(OWN)

    line = told(phasewise("run", config, "--set", "policy=json:Mine"), 2)

    assert line.startswith("phasewise: --set: policy: json:Mine: Python has imported json from ")
    assert line.endswith("json.py; give the file another name")


def test_a_users_policy_is_checked_in_the_folder_of_its_module(
    tmp_path: Path, repository: Path
) -> None:
    (tmp_path / "process_own.py").write_text(OWN)
    (tmp_path / "sim").mkdir()

    done = subprocess.run(
        command("check-policy", "process_own:Mine", "--workloads", "3", "--set", "option=2"),
        env=environment(repository, PYTHONSAFEPATH="1"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("process_own:Mine: all ")


# --- progress


@pytest.mark.parametrize("arrivals", [{}, {"process": "closed-loop", "concurrency": 8}])
def test_progress_moves_and_ends_with_all_requests_at_the_last_instant(
    config: Path, arrivals: dict[str, Any]
) -> None:
    plan = load(config, overrides={"workload": {"arrivals": arrivals}})
    (job,) = jobs_of(plan, Path("o"))
    seen: list[tuple[int, int, int]] = []

    run_jobs([job], plan, 1, lambda job: seen.append((job.now_ns, job.ended, job.total)))

    ended = [count for _, count, _ in seen]
    assert ended == sorted(ended)
    assert {256, 512} <= set(ended)
    assert seen[-1] == (bundle.read_head(job.folder).end_ns, 600, 600)


def test_bars_end_full_and_count_the_rate_from_the_first_request(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    (job,) = jobs_of(load(config), Path("o"))
    console = Console(force_terminal=True, width=100, file=open(os.devnull, "w"))  # noqa: SIM115
    bars = Bars(console)

    def shown(now: float, state: str, now_ns: int, ended: int, total: int) -> tuple[Any, ...]:
        clock[0] = now
        job.state = state  # type: ignore[assignment]
        job.now_ns, job.ended, job.total = now_ns, ended, total
        bars(job)
        assert bars._progress is not None
        task = bars._progress.tasks[0]
        return task.fields["said"], task.completed, task.total

    assert shown(0, "waiting", 0, 0, 0) == ("waiting", 0, None)
    assert shown(50, "running", 0, 0, 0) == ("running", 0, None)
    assert shown(60, "running", 0, 0, 600) == ("0 s, 0/600 requests, 0/s", 0, 600)
    half = shown(62, "running", 30 * 10**9, 300, 600)
    assert half == ("30 s, 300/600 requests, 150/s", 300, 600)
    full = shown(64, "finished", 61 * 10**9, 600, 600)
    assert full == ("61 s, 600/600 requests, 150/s", 600, 600)
