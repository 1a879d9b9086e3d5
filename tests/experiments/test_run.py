"""Running a plan: the same seed gives the same bytes, finished variants are kept, failures told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from experiments import bundle, hashes
from experiments.config import Plan, load
from experiments.run import InterruptedRunError, Job, jobs_of, run_jobs
from experiments.variant import run_variant
from experiments.workers import remembered_interrupt
from sim.errors import ConfigError

LINEAR = {"model": "linear", "base_s": 0.005, "prefill_token_s": 3e-5, "context_token_s": 2e-8}
POOLS = {
    "prefill": {"replicas": 1, "policy": "vllm-v0"},
    "decode": {"replicas": 1, "policy": "sarathi"},
    "transfer": {"bandwidth_bytes_per_s": 5e10},
}
CONFIG: dict[str, Any] = {
    "name": "small",
    "workload": {"preset": "azure-conv-2023", "requests": 60, "max_tokens": 1024},
    "model": "llama-3.1-8b",
    "max_model_len": 16384,
    "step_time": LINEAR,
    "policy": "sarathi",
    "replicas": 2,
    "seed": 5,
    "slo": {"ttft_s": 1.0},
    "compare": [{"label": "Sarathi"}, {"label": "pools", "pools": POOLS}],
}


@pytest.fixture(autouse=True)
def _same_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hash of the code would change when a file is saved while the tests run."""
    monkeypatch.setattr(hashes, "of_code", lambda: "0" * 64)


def run_here(plan: Plan, out: Path) -> list[Job]:
    jobs = jobs_of(plan, out)
    run_jobs(jobs, plan, processes=1)
    return jobs


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


# --- what a bundle holds


def test_the_same_seed_gives_the_same_bytes_but_for_the_wall_clock(tmp_path: Path) -> None:
    plan = load(CONFIG)
    first, second = run_here(plan, tmp_path / "a"), run_here(plan, tmp_path / "b")

    for one, other in zip(first, second, strict=True):
        a, b = files_of(one.folder), files_of(other.folder)
        assert a.pop("wallclock.json")
        assert b.pop("wallclock.json")
        assert a == b
        assert sorted(a) == [
            "changes.parquet",
            "config.yaml",
            "environment.json",
            "itl.parquet",
            "pools.parquet",
            "requests.parquet",
            "series.parquet",
            "steps.parquet",
            "summary.json",
            "tokens.parquet",
            "transfers.parquet",
        ]


def test_another_seed_gives_other_bytes(tmp_path: Path) -> None:
    (one, _), (other, _) = (
        run_here(load(CONFIG, [f"seed={seed}"]), tmp_path / str(seed)) for seed in (1, 2)
    )

    assert files_of(one.folder)["requests.parquet"] != files_of(other.folder)["requests.parquet"]


def test_variants_share_their_arrivals_and_lengths() -> None:
    plan = load(CONFIG)
    one, other = (run_variant(variant, plan.folder) for variant in plan.variants)

    for column in ("arrival_ns", "prompt_tokens", "output_tokens", "max_tokens", "row"):
        assert np.array_equal(one.requests[column], other.requests[column])


def test_what_is_read_back_is_what_was_written(tmp_path: Path) -> None:
    plan = load(CONFIG)
    for variant in plan.variants:
        made = run_variant(variant, plan.folder)
        bundle.write(made, tmp_path / variant.label)

        back = bundle.read(tmp_path / variant.label)

        assert back.config == made.config
        assert back.replicas == made.replicas
        assert back.reasons == made.reasons
        assert back.notes == made.notes
        assert back.summary == json.loads(json.dumps(made.summary))
        for name in ("requests", "series", "transfers", "changes", "steps"):
            written, read = getattr(made, name), getattr(back, name)
            assert list(read) == list(written)
            for column, values in written.items():
                assert np.array_equal(read[column], values), (name, column)
        for group, (gap_ns, count) in made.itl.items():
            assert np.array_equal(back.itl[group][0], gap_ns)
            assert np.array_equal(back.itl[group][1], count)


def test_every_arrived_request_is_in_the_table_with_its_state(tmp_path: Path) -> None:
    config = {**CONFIG, "max_model_len": 3000, "compare": None}
    plan = load(config)
    made = run_variant(plan.variants[0], plan.folder)
    bundle.write(made, tmp_path / "b")

    import pyarrow.parquet as pq

    table = pq.read_table(tmp_path / "b" / "requests.parquet").to_pydict()

    states = set(table["state"])
    assert len(table["state"]) == 60
    assert states == {"finished", "rejected"}
    for state, reason, end, first in zip(
        table["state"], table["reason"], table["end_ns"], table["first_token_ns"], strict=True
    ):
        assert end is not None
        assert (reason == "over_model_len") == (state == "rejected")
        assert (first is None) == (state == "rejected")


def test_columns_of_the_trace_are_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text(
        "arrival_s,prompt_tokens,output_tokens,session,request_class,priority\n"
        "0,100,5,s1,chat,2\n0.5,40,7,s2,code,1\n0.7,41,8,s1,chat,0\n"
    )
    workload = {"trace": "t.csv", "max_tokens": 16}
    plan = load({**CONFIG, "workload": workload, "compare": None, "order": "priority"})
    made = run_variant(plan.variants[0], plan.folder)

    assert made.requests["session"].tolist() == ["s1", "s2", "s1"]
    assert made.requests["priority"].tolist() == [2, 1, 0]
    assert made.requests["row"].tolist() == [2, 3, 4]
    assert set(made.itl) == {"chat", "code"}
    assert made.summary["classes"].keys() == {"chat", "code"}


def test_steps_can_be_off_and_the_rest_is_the_same(tmp_path: Path) -> None:
    with_steps, without = (
        load(CONFIG, [f"record.steps={word}"]).variants[0] for word in ("true", "false")
    )
    one, other = (run_variant(each, tmp_path) for each in (with_steps, without))
    bundle.write(other, tmp_path / "b")

    assert bundle.read(tmp_path / "b").steps is None
    assert one.summary == other.summary


def test_warm_up_and_drain_are_simulated_but_not_measured() -> None:
    whole, part = (
        run_variant(load(CONFIG, [f"warm_up_s={w}", f"drain_s={w}"]).variants[0], Path())
        for w in (0, 2)
    )

    assert len(part.requests["index"]) == len(whole.requests["index"])
    assert part.summary["measured_requests"]["arrived"] < 60
    gaps = {name: sum(int(c.sum()) for _, c in each.itl.values()) for name, each in
            (("whole", whole), ("part", part))}  # fmt: skip
    assert gaps["part"] < gaps["whole"]


def test_a_summary_names_where_blocks_and_step_times_come_from() -> None:
    notes = run_variant(load(CONFIG).variants[1], Path()).notes

    assert any("blocks of 16 tokens: 0.9 x" in note for note in notes)
    assert any(note.startswith("step times: linear: ") for note in notes)
    assert any("contention is not modelled" in note for note in notes)


def test_deadlines_default_to_the_ttft_target_under_edf(tmp_path: Path) -> None:
    made = run_variant(load(CONFIG, ["order=edf"]).variants[0], tmp_path)

    assert set(made.requests["deadline_ns"].tolist()) == {1_000_000_000}


# --- bundles that cannot be read


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    plan = load({**CONFIG, "compare": None, "workload": {**CONFIG["workload"], "requests": 5}})
    (job,) = run_here(plan, tmp_path / "out")
    return job.folder


@pytest.mark.parametrize(
    ("spoil", "line"),
    [
        *(
            (lambda f, name=name: (f / name).unlink(), f": not finished: {name} is missing")
            for name in (
                "summary.json",
                "wallclock.json",
                "requests.parquet",
                "itl.parquet",
                "series.parquet",
                "transfers.parquet",
            )
        ),
        (
            lambda f: (f / "requests.parquet").write_bytes(b"PAR1"),
            "requests.parquet: cannot be read",
        ),
        (lambda f: (f / "environment.json").write_text("{"), "environment.json: cannot be read"),
        (
            lambda f: (f / "environment.json").write_text('{"bundle_version": 99}'),
            "bundle_version 99 is newer than this phasewise, which reads up to 1",
        ),
        (
            lambda f: (f / "environment.json").write_text("{}"),
            "does not say its bundle_version; not written by phasewise",
        ),
        (lambda f: (f / "config.yaml").unlink(), "no bundle of results here"),
    ],
)
def test_a_bundle_that_cannot_be_read_is_one_line(finished: Path, spoil: Any, line: str) -> None:
    spoil(finished)

    with pytest.raises(bundle.BundleError) as error:
        bundle.read(finished)

    assert line in str(error.value)
    assert "\n" not in str(error.value)


def test_something_else_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "sarathi").mkdir()
    (tmp_path / "sarathi" / "thesis.tex").write_text("years of work")

    (job, _) = run_here(load(CONFIG), tmp_path)

    assert job.state == "failed"
    assert "is no bundle of results" in job.error
    assert (tmp_path / "sarathi" / "thesis.tex").exists()


def test_a_variant_of_an_earlier_config_is_no_part_of_the_results(tmp_path: Path) -> None:
    first, second = run_here(load(CONFIG), tmp_path)
    assert sorted(bundle.find(tmp_path)) == sorted([first.folder, second.folder])

    bundle.write_index(tmp_path, [second.folder.name])

    assert bundle.find(tmp_path) == [second.folder]


def test_windows_that_leave_nothing_are_refused_before_the_run() -> None:
    variant = load(CONFIG, ["warm_up_s=9000"]).variants[0]

    with pytest.raises(ConfigError, match="leave nothing to measure"):
        run_variant(variant, Path())


def test_what_an_engine_does_and_we_do_not_is_kept_with_the_results(tmp_path: Path) -> None:
    made = run_variant(
        load({**CONFIG, "compare": None, "engine": "vllm-0.19"}).variants[0], tmp_path
    )

    assert made.notes[0].startswith("engine vllm-0.19: Async scheduling")


# --- reuse


def test_a_rerun_reuses_what_has_not_changed(tmp_path: Path) -> None:
    run_here(load(CONFIG), tmp_path)

    assert [job.state for job in run_here(load(CONFIG), tmp_path)] == ["reused", "reused"]


def test_a_changed_option_runs_only_the_variants_that_it_changes(tmp_path: Path) -> None:
    run_here(load(CONFIG), tmp_path)
    changed = {**CONFIG, "compare": [{"label": "Sarathi", "replicas": 1}, CONFIG["compare"][1]]}

    assert [job.state for job in run_here(load(changed), tmp_path)] == ["finished", "reused"]


def test_changed_code_runs_everything_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_here(load(CONFIG), tmp_path)
    monkeypatch.setattr(hashes, "of_code", lambda: "1" * 64)

    assert [job.state for job in jobs_of(load(CONFIG), tmp_path)] == ["waiting", "waiting"]


def test_a_changed_trace_file_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = "arrival_s,prompt_tokens,output_tokens\n0,100,5\n"
    config = {**CONFIG, "workload": {"trace": "t.csv", "max_tokens": 16}, "compare": None}
    Path("t.csv").write_text(rows)
    run_here(load(config), tmp_path / "out")

    Path("t.csv").write_text(rows + "1,50,6\n")

    assert jobs_of(load(config), tmp_path / "out")[0].state == "waiting"


def test_a_users_own_policy_is_part_of_the_hash(tmp_path: Path) -> None:
    module = tmp_path / "hashed_policy.py"
    text = (
        "from dataclasses import dataclass\nfrom policies.orca import Orca\n"
        "@dataclass\nclass Mine(Orca):\n    pass\n"
    )
    module.write_text(text)
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump({**CONFIG, "policy": "hashed_policy:Mine", "compare": None}))
    run_here(load(path), tmp_path / "out")
    assert jobs_of(load(path), tmp_path / "out")[0].state == "reused"

    module.write_text(text + "# changed\n")

    assert jobs_of(load(path), tmp_path / "out")[0].state == "waiting"


def test_an_unfinished_variant_is_not_reused(tmp_path: Path) -> None:
    (job, _) = run_here(load(CONFIG), tmp_path)
    (job.folder / "summary.json").unlink()

    assert [each.state for each in jobs_of(load(CONFIG), tmp_path)] == ["waiting", "reused"]


# --- processes, failures, interruption


def test_processes_give_the_same_bytes_as_one(tmp_path: Path) -> None:
    plan = load(CONFIG)
    apart = jobs_of(plan, tmp_path / "apart")
    changes: list[tuple[int, str]] = []
    run_jobs(apart, plan, 2, lambda job: changes.append((job.position, job.state)))
    here = run_here(plan, tmp_path / "here")

    assert [job.state for job in apart] == ["finished", "finished"], [job.error for job in apart]
    assert {(0, "running"), (0, "finished"), (1, "running"), (1, "finished")} <= set(changes)
    for one, other in zip(apart, here, strict=True):
        for name in ("requests.parquet", "itl.parquet", "summary.json", "steps.parquet"):
            assert (one.folder / name).read_bytes() == (other.folder / name).read_bytes()


def test_a_variant_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    (tmp_path / "failing_policy.py").write_text(
        "from dataclasses import dataclass\nfrom policies.orca import Orca\n"
        "@dataclass\nclass Broken(Orca):\n"
        "    def schedule(self, state):\n        return 1 / 0\n"
    )
    path = tmp_path / "c.yaml"
    broken = {"label": "broken", "policy": "failing_policy:Broken"}
    path.write_text(yaml.safe_dump({**CONFIG, "compare": [broken, {"label": "fine"}]}))

    jobs = run_here(load(path), tmp_path / "out")

    assert [job.state for job in jobs] == ["failed", "finished"]
    assert jobs[0].error == "ZeroDivisionError: division by zero"


def test_ctrl_c_keeps_what_is_finished(tmp_path: Path) -> None:
    plan = load(CONFIG)
    jobs = jobs_of(plan, tmp_path)

    def interrupt(job: Job) -> None:
        if job.position == 1:
            raise KeyboardInterrupt

    with pytest.raises(InterruptedRunError) as error:
        run_jobs(jobs, plan, 1, interrupt)

    assert str(error.value) == (
        f"interrupted: 1 of 2 variants are finished and usable in {tmp_path}; "
        "the same command runs the rest"
    )
    assert [job.state for job in jobs] == ["finished", "stopped"]
    assert [job.state for job in jobs_of(plan, tmp_path)] == ["reused", "waiting"]


def test_ctrl_c_ends_the_command_and_its_workers(tmp_path: Path, repository: Path) -> None:
    long = {**CONFIG["workload"], "requests": 100_000, "arrivals": {"rate_per_s": 8}}
    quick = {"label": "quick", "workload.requests": 20}
    slow = [{"label": f"slow {i}", "workload": long, "fast_forward": False} for i in range(2)]
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump({**CONFIG, "compare": [quick, *slow]}))
    command = [sys.executable, "-m", "experiments", "run", str(path), "--out", str(tmp_path / "o")]
    process = subprocess.Popen(
        [*command, "--jobs", "2"],
        cwd=repository,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not bundle.is_finished(tmp_path / "o" / "quick") and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)

    os.killpg(process.pid, signal.SIGINT)
    stdout, stderr = process.communicate(timeout=30)

    assert process.returncode == 130
    assert "interrupted: 1 of 3 variants are finished and usable" in stderr.splitlines()[-1]
    assert "Traceback" not in stderr
    assert "quick" in stdout
    assert sorted(p.name for p in (tmp_path / "o").iterdir()) == ["quick", "variants.json"]


def test_an_interrupt_that_python_drops_still_counts() -> None:
    with remembered_interrupt() as check:
        check()  # nothing was pressed
        with suppress(KeyboardInterrupt):  # as a finalizer does
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
        with pytest.raises(KeyboardInterrupt):
            check()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_requests_with_block_ids_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [
        {"timestamp": 300 * i, "input_length": 1100, "output_length": 9, "hash_ids": [0, 2 * i, 5]}
        for i in range(1, 5)
    ]
    Path("t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    workload = {"trace": "t.jsonl", "max_tokens": 16}
    plan = load({**CONFIG, "workload": workload})

    for variant in plan.variants:
        made = run_variant(variant, plan.folder)
        assert made.summary["requests"]["finished"] == 4
