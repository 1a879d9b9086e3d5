"""Sweeps on this machine: rows, the same bytes on 1 and 2 processes, resuming, failures."""

from __future__ import annotations

import copy
import json
import math
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml

from experiments.config import load
from experiments.results import run_plan
from experiments.run import InterruptedRunError
from experiments.sweep.command import Progress, Standing, ask, standing
from experiments.sweep.dataset import ABOUT, DATA, DataSet, SweepError
from experiments.sweep.executors import Here
from experiments.sweep.folder import locked
from experiments.sweep.local import Processes
from experiments.sweep.report import print_asked, said, summed_up
from experiments.sweep.unit import Row, Unit, run_unit
from sim.errors import ConfigError
from tests.experiments.sweep.examples import config, rows, run, without_wall

RATE = "workload.arrivals.rate_per_s"
BUDGET = "variants.sarathi.policy.budget_tokens"


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("swept") / "out"
    run(config(), out)
    return out


def test_there_is_one_row_for_each_point_and_variant(swept: Path) -> None:
    found = rows(swept)

    assert [(row[RATE], row[BUDGET], row["variant"]) for row in found] == [
        (rate, budget, variant)
        for rate in (5, 20)
        for budget in (128, 512)
        for variant in ("sarathi", "vllm v1")
    ]
    assert {row["status"] for row in found} == {"finished"}
    assert len({row["point"] for row in found}) == 4


def test_a_row_has_the_numbers_of_the_run_with_these_keys(swept: Path) -> None:
    plan = load(config(), overrides={RATE: 20})
    made = run_plan(plan)["sarathi"]  # budget 512

    row = rows(swept)[6]

    overall = made.summary["overall"]
    for metric in ("ttft_s", "tpot_s", "itl_s", "e2e_s"):
        for statistic in ("p50", "p90", "p99", "mean"):
            assert row[f"{metric}.{statistic}"] == overall[metric][statistic]
    assert row["goodput_requests_per_s"] == overall["goodput_requests_per_s"]
    assert row["slo_attainment"] == row["slo_attainment.x1"] == overall["slo_attainment"]
    assert row["requests.finished"] == 30
    assert row["verdict"] == "too short to tell"


def test_attainment_at_a_scale_is_that_of_a_run_with_scaled_targets(swept: Path) -> None:
    for scale in (0.5, 2.0):
        slo = {"ttft_s": 0.04 * scale, "tpot_s": 0.1 * scale}
        made = run_plan(load(config(slo=slo), overrides={RATE: 20}))["sarathi"]

        expected = made.summary["overall"]["slo_attainment"]

        assert rows(swept)[6][f"slo_attainment.x{scale:g}"] == expected
        assert 0 < expected < 1


def test_the_scale_that_is_needed_meets_the_share_and_less_does_not(tmp_path: Path) -> None:
    first = config(compare=None, policy="vllm-v1", sweep={"list": [{"seed": 1}]})
    run(first, tmp_path / "a")
    needed = rows(tmp_path / "a")[0]["slo_scale.p90"]
    about = {"list": [{"seed": 1}], "slo_scales": [0.999 * needed, 1.001 * needed]}
    run({**first, "sweep": about}, tmp_path / "b")

    row = rows(tmp_path / "b")[0]

    below, above = (value for name, value in row.items() if name.startswith("slo_attainment.x"))
    assert below < 0.9 <= above


def test_two_processes_give_the_same_bytes_as_one(swept: Path, tmp_path: Path) -> None:
    made = run(config(), tmp_path / "out", Processes(2))

    assert made.finished == 8
    files = []
    for at, folder in enumerate((swept, tmp_path / "out")):
        assert [path.name for path in (folder / DATA).iterdir()] == ["part-000000.parquet"]
        table = pq.read_table(folder / DATA / "part-000000.parquet")
        assert set(table.column("worker").to_pylist()) != {None}
        assert min(table.column("wall_s").to_pylist()) > 0
        pq.write_table(without_wall(table), tmp_path / f"{at}.parquet")
        files.append((tmp_path / f"{at}.parquet").read_bytes())
    assert files[0] == files[1]
    assert (swept / ABOUT).read_bytes() == (tmp_path / "out" / ABOUT).read_bytes()


def test_pandas_reads_the_data_set(swept: Path) -> None:
    frame = pd.read_parquet(swept / DATA)

    assert frame.loc[frame.variant == "sarathi", BUDGET].tolist() == [128, 512, 128, 512]
    assert str(frame[RATE].dtype) == "int64"


class Stops(Here):
    """Makes some runs, and is then stopped from outside."""

    def __init__(self, after: int) -> None:
        self.after = after

    def run(self, units: Sequence[Unit]) -> Generator[Row | None, None, None]:
        for unit in units[: self.after]:
            yield run_unit(unit)
        raise KeyboardInterrupt


class Counts(Here):
    """Remembers what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def run(self, units: Sequence[Unit]) -> Generator[Row | None, None, None]:
        self.asked += [f"{unit.number} {unit.variant}" for unit in units]
        yield from super().run(units)


def test_a_stopped_sweep_goes_on_where_it_was(swept: Path, tmp_path: Path) -> None:
    with pytest.raises(InterruptedRunError, match="3 of 8 runs are in"):
        run(config(), tmp_path / "out", Stops(after=3))
    assert len(rows(tmp_path / "out")) == 3

    rest = Counts()
    made = run(config(), tmp_path / "out", rest)

    assert rest.asked == [f"{at} {name}" for at in range(4) for name in ("sarathi", "vllm v1")][3:]
    assert (made.kept, made.finished) == (3, 8)
    assert rows(tmp_path / "out") == rows(swept)
    again = Counts()
    assert run(config(), tmp_path / "out", again).kept == 8
    assert again.asked == []
    assert rows(tmp_path / "out") == rows(swept)


def test_a_sweep_that_is_killed_goes_on(swept: Path, tmp_path: Path) -> None:
    # SIGKILL in the midst of the runs; at most the rows of the last seconds are lost.
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config(), sort_keys=False))
    command = [sys.executable, "-m", "experiments", "sweep", str(tmp_path / "c.yaml")]
    code = (
        "import experiments.sweep.dataset as d; d._PART_S = 0.0; d._PART_ROWS = 1\n"
        "from experiments.cli import main; import sys; sys.argv = sys.argv[1:]; main()"
    )
    options = ["--out", str(tmp_path / "out"), "--figures", "none", "--jobs", "1"]
    process = subprocess.Popen([sys.executable, "-c", code, *command[2:], *options])
    for _ in range(600):
        if len(list((tmp_path / "out" / DATA).glob("part-*"))) >= 2:
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()

    rest = Counts()
    run(config(), tmp_path / "out", rest)

    assert len(rest.asked) < 8
    assert rows(tmp_path / "out") == rows(swept)


def test_another_sweep_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    few = {"list": [{"seed": 1}]}
    run(config(sweep=few), tmp_path / "out")

    with pytest.raises(SweepError, match="holds another sweep: its config changed; give another"):
        run(config(sweep={"list": [{"seed": 2}]}), tmp_path / "out")
    with pytest.raises(SweepError, match="its config changed"):
        run(config(sweep=few, warm_up_s=0.1), tmp_path / "out")
    made = run(config(sweep={"list": [{"seed": 2}]}), tmp_path / "out", fresh=True)
    assert (made.kept, [row["seed"] for row in rows(tmp_path / "out")]) == (0, [2, 2])

    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    with pytest.raises(SweepError, match="holds something else than a sweep"):
        run(config(sweep=few), tmp_path / "mine", fresh=True)
    with locked(tmp_path / "out"), pytest.raises(SweepError, match="another phasewise sweep is"):
        run(config(sweep=few), tmp_path / "out")


MORE = {
    "grid": {
        "workload.arrivals.rate_per_s": [2.5, 5, 20],
        "variants.sarathi.policy.budget_tokens": [128, 256, 512],
    }
}


def test_a_sweep_extended_by_points_is_the_larger_sweep_byte_for_byte(
    swept: Path, tmp_path: Path
) -> None:
    shutil.copytree(swept, tmp_path / "out")
    run(config(sweep=MORE), tmp_path / "whole")

    made = run(config(sweep=MORE), tmp_path / "out", extend=True)

    assert (made.kept, made.runs, made.points) == (8, 18, 9)
    assert rows(tmp_path / "out") == rows(tmp_path / "whole")
    one, other = (without_wall(pq.read_table(tmp_path / name / DATA)) for name in ("out", "whole"))
    assert one.schema.equals(other.schema, check_metadata=True)
    abouts = [json.loads((tmp_path / name / ABOUT).read_text()) for name in ("out", "whole")]
    assert abouts[0] == abouts[1]
    again = run(config(sweep=MORE), tmp_path / "out", extend=True)
    assert (again.kept, again.runs) == (18, 18)


def test_an_extension_that_was_killed_before_its_first_row_goes_on(
    swept: Path, tmp_path: Path
) -> None:
    shutil.copytree(swept, tmp_path / "out")

    class Dies(Here):
        def run(self, units: Sequence[Unit]) -> Generator[Row | None]:
            raise KeyboardInterrupt
            yield

    with pytest.raises(InterruptedRunError, match="8 of 18 runs"):
        run(config(sweep=MORE), tmp_path / "out", Dies(), extend=True)
    run(config(sweep=MORE), tmp_path / "out")
    run(config(sweep=MORE), tmp_path / "whole")

    assert rows(tmp_path / "out") == rows(tmp_path / "whole")


def test_what_is_no_larger_sweep_does_not_extend(swept: Path, tmp_path: Path) -> None:
    shutil.copytree(swept, tmp_path / "out")
    before = rows(tmp_path / "out")
    fewer = copy.deepcopy(MORE)
    fewer["grid"]["workload.arrivals.rate_per_s"] = [2.5, 5]
    scales = {**MORE, "slo_scales": [1, 3]}

    for sweep, words in (
        (fewer, r"2 of its 4 points are not among those asked for now, such as workload\.arr"),
        (scales, "the scales of its targets changed"),
    ):
        with pytest.raises(SweepError, match=words):
            run(config(sweep=sweep), tmp_path / "out", extend=True)
    one = config(compare=[config()["compare"][0]], sweep=MORE)
    with pytest.raises(SweepError, match="its variants changed"):
        run(one, tmp_path / "out", extend=True)
    with pytest.raises(SweepError, match="--extend to add points"):
        run(config(sweep=MORE), tmp_path / "out")
    assert rows(tmp_path / "out") == before


def test_a_sweep_whose_trace_changed_is_not_extended(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    given = config(workload={"trace": str(trace)})
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,10,5\n1,10,5\n")
    run({**given, "sweep": {"list": [{"seed": 1}]}}, tmp_path / "out")
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,10,5\n2,10,5\n")

    more = {**given, "sweep": {"list": [{"seed": 1}, {"seed": 2}]}}
    with pytest.raises(SweepError, match="cannot be extended: its traces changed"):
        run(more, tmp_path / "out", extend=True)


def test_another_trace_is_another_sweep(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    given = config(sweep={"list": [{"seed": 1}]}, workload={"trace": str(trace)})
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,10,5\n1,10,5\n")
    run(given, tmp_path / "out")
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,10,5\n2,10,5\n")

    with pytest.raises(SweepError, match="its traces changed"):
        run(given, tmp_path / "out")


def test_a_point_that_cannot_be_resolved_is_a_row_with_its_error(tmp_path: Path) -> None:
    sweep = {"list": [{"gpu_memory_utilization": 0.9}, {"gpu_memory_utilization": 0.15}]}
    given = config(compare=None, policy="sarathi", sweep=sweep)

    made = run(given, tmp_path / "out")

    first, second = rows(tmp_path / "out")
    assert (first["status"], first["error"]) == ("finished", None)
    assert second["status"] == "failed"
    assert "no room for KV blocks: 0.15 x 79.65 GiB" in second["error"]
    assert second["ttft_s.p99"] is None
    assert (made.finished, made.failed) == (1, 1)
    assert run(given, tmp_path / "out").kept == 2


def test_a_run_that_fails_is_a_row_with_its_error(tmp_path: Path) -> None:
    trace = tmp_path / "long.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n" + "0,10,5\n" * 3)
    (tmp_path / "bad.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,-1,5\n")
    sweep = {"grid": {"workload.trace": [str(trace), str(tmp_path / "bad.csv")]}}
    given = config(compare=None, policy="sarathi", workload={"trace": str(trace)}, sweep=sweep)

    made = run(given, tmp_path / "out")

    first, second = rows(tmp_path / "out")
    assert (first["status"], second["status"]) == ("finished", "failed")
    assert "bad.csv:2: prompt_tokens" in second["error"]
    assert (made.finished, made.failed) == (1, 1)
    kept = Counts()
    run(given, tmp_path / "out", kept)
    assert kept.asked == []
    run(given, tmp_path / "out", kept, retry=True)
    assert kept.asked == ["1 sarathi"]


def test_a_process_that_dies_takes_one_run_with_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, swept: Path
) -> None:
    policy = tmp_path / "deadly.py"
    policy.write_text(
        "import os\nfrom policies import POLICIES\n\n"
        "class Deadly(POLICIES['vllm-v1']):\n    '''Kills its process once.'''\n\n"
        "    def schedule(self, state):\n"
        f"        if not os.path.exists({str(tmp_path / 'died')!r}):\n"
        f"            open({str(tmp_path / 'died')!r}, 'w').close()\n"
        "            os.kill(os.getpid(), 9)\n"
        "        return super().schedule(state)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "c.yaml").write_text(
        yaml.safe_dump(config(compare=None, policy="deadly:Deadly", sweep={"list": [
            {"seed": 1}, {"seed": 2}, {"seed": 3}]}))
    )  # fmt: skip
    given: Any = tmp_path / "c.yaml"

    made = run(given, tmp_path / "out", Processes(1))

    assert (made.finished, made.lost) == (2, 1)
    lost = [row for row in rows(tmp_path / "out") if row["status"] == "lost"]
    assert [row["error"] for row in lost] == ["its process ended with code -9"]
    again = run(given, tmp_path / "out", Processes(1))
    assert (again.finished, again.lost, again.kept) == (3, 0, 2)
    assert len(rows(tmp_path / "out")) == 3


@pytest.mark.parametrize(
    ("sweep", "message"),
    [
        ({"grid": {"policy.budget_token": [1, 2]}}, "try budget_tokens"),
        ({"grid": {"polcy.budget_tokens": [1, 2]}}, "try policy"),
        ({"grid": {"policy": ["sarathi", "saratih"]}}, "try sarathi"),
        ({"grid": {"seed": [1, -1]}}, "seed: -1: expected at least 0"),
        ({"grid": {"variants.sarthi.seed": [1]}}, "no variant 'sarthi'; try sarathi"),
        ({"grid": {"variants.sarathi.sed": [1]}}, "try seed (variant sarathi)"),
        (
            {"random": {"points": 3, "over": {"replica": {"from": 1, "to": 9, "whole": True}}}},
            "try replicas",
        ),
    ],
)
def test_a_key_or_value_that_no_point_can_use_is_refused(sweep: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ask(config(sweep=sweep))

    assert message in str(caught.value)
    assert str(caught.value).startswith("config: sweep: ")


def test_points_that_occur_twice_are_run_once() -> None:
    entries = [{"seed": 1}, {"seed": 2}, {"seed": 1}]

    asked = ask(config(sweep={"list": entries}))

    assert [each["seed"] for each in asked.planned.settings.values()] == [1, 2]
    assert asked.notes == ("1 points occur more than once, and are run once.",)


def test_the_key_of_a_point_depends_on_what_it_runs_alone() -> None:
    few = ask(config(sweep={"list": [{"seed": 1}]})).planned
    more = ask(config(sweep={"list": [{"seed": 5}, {"seed": 1.0}]})).planned
    other = ask(config(sweep={"list": [{"seed": 1}]}, warm_up_s=0.1)).planned

    assert list(few.settings) == list(more.settings)[1:]
    assert list(few.settings) != list(other.settings)


def test_replications_are_rows_with_seeds_of_their_own(tmp_path: Path) -> None:
    run(config(replications=3, sweep={"list": [{"seed": 4}]}), tmp_path / "out")

    found = rows(tmp_path / "out")

    assert [(row["variant"], row["replication"]) for row in found] == [
        (name, k) for name in ("sarathi", "vllm v1") for k in range(3)
    ]
    seeds = [row["run_seed"] for row in found]
    assert seeds[0] == 4
    assert seeds[:3] == seeds[3:]  # common random numbers
    assert len({row["ttft_s.mean"] for row in found}) == 6


def test_quantities_are_columns(tmp_path: Path) -> None:
    sweep = {"list": [{"seed": 1}], "quantities": ["ttft_s.p99.9", "ttft_s.p99"]}
    run(config(sweep=sweep), tmp_path / "out")

    row = rows(tmp_path / "out")[0]

    assert row["ttft_s.p99.9"] == row["ttft_s.max"]
    assert math.isfinite(row["ttft_s.p99"])


def test_rows_that_occur_twice_are_read_once(swept: Path, tmp_path: Path) -> None:
    columns = json.loads((swept / ABOUT).read_text())["columns"]
    data = DataSet(tmp_path, columns)
    (tmp_path / DATA).mkdir()
    finished = {"number": 1, "point": "p", "variant": "a", "replication": 0, "status": "finished"}
    data.add({**finished, "status": "lost", "error": "first try"})
    data.flush()
    data.add({**finished, "ttft_s.p99": 1.0})
    data.add({**finished, "ttft_s.p99": 1.0, "worker": "late"})
    data.flush()
    data.add({**finished, "status": "lost", "error": "a late message"})
    data.add({**finished, "number": 0, "variant": "b"})
    data.flush()

    assert [(row["variant"], row["status"]) for row in rows(tmp_path)] == [
        ("b", "finished"),
        ("a", "finished"),
    ]
    assert rows(tmp_path)[1]["ttft_s.p99"] == 1.0


def test_progress_says_how_far_how_fast_and_how_long() -> None:
    assert said(Progress(0, 40, 0, 0.0, None)) == "0 of 40 runs"
    assert said(Progress(9, 40, 1, 3.07, 9.1)) == "9 of 40 runs, 1 failed, 3.07 a second, 9 s left"
    assert said(Progress(4, 9000, 0, 0.5, 7992.0)).endswith("0.5 a second, 2.2 h left")
    assert said(Progress(9, 9, 0, 0.5, 0.0)) == "9 of 9 runs, 0.5 a second"


def test_points_that_served_nothing_are_counted(tmp_path: Path) -> None:
    """Prompts of 64 tokens and up do not fit in 4 blocks of 16."""
    given = config() | {"sweep": {"grid": {"kv.num_blocks": [2, 4000]}}}
    made = run(given, tmp_path / "out")
    assert (made.points, made.finished, made.unserved, made.unserved_points) == (2, 4, 2, 1)
    assert "in 2 of the finished runs (all those of 1 points)" in summed_up(made)


def test_a_dry_run_says_what_the_folder_holds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked, out = ask(config()), tmp_path / "out"
    assert standing(asked, out) is None
    run(config(), out)
    there = standing(asked, out)
    assert there == Standing(out, "same", "", 8, 8, 0, 8, 0)
    print_asked(asked, there, as_json=False)
    assert f"{out}: has 8 rows of 8: 8 finished, 0 failed; 0 runs are left" in (
        capsys.readouterr().out
    )
    other = standing(ask(config() | {"seed": 5}), out)
    assert other is not None
    assert other.stance is None
    assert other.refusal.startswith(f"{out}: holds another sweep: its config changed; give another")
