"""What a sweep does with its folder: dropping, extending, refusing; dry runs say the same."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from experiments.cli import app
from experiments.sweep.command import ask, standing
from experiments.sweep.dataset import ABOUT, SweepError
from tests.experiments.sweep.examples import config, rows, run

ONE = {"list": [{"seed": 1}]}
TWO = {"list": [{"seed": 1}, {"seed": 2}]}
OTHER = {"list": [{"seed": 3}]}


def small(sweep: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return config(compare=None, policy="sarathi", sweep=sweep, **changes)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made") / "out"
    run(small(ONE), out)
    return out


@pytest.fixture
def out(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "out"))


def sweep_command(given: dict[str, Any], out: Path, *options: str) -> Result:
    (out.parent / "c.yaml").write_text(yaml.safe_dump(given, sort_keys=False))
    fixed = ["--jobs", "1", "--figures", "none", "--out", str(out)]
    return CliRunner().invoke(app, ["sweep", str(out.parent / "c.yaml"), *fixed, *options])


def test_fresh_drops_rows_and_own_figures_and_runs(out: Path) -> None:
    (out / "figures").mkdir()
    for name in ("figures.html", "heat_slo_attainment.csv", "mine.svg"):
        (out / "figures" / name).touch()
    (out / "notes.txt").touch()

    done = sweep_command(small(OTHER), out, "--fresh")

    assert done.exit_code == 0, done.output
    assert [row["seed"] for row in rows(out)] == [3]
    assert [path.name for path in (out / "figures").iterdir()] == ["mine.svg"]
    assert (out / "notes.txt").exists()


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_fresh_with_extend_is_refused_and_drops_nothing(out: Path, dry: list[str]) -> None:
    before = rows(out)

    done = sweep_command(small(TWO), out, "--fresh", "--extend", *dry)

    assert done.exit_code == 2
    assert done.output.startswith("phasewise: --fresh --extend: one drops the rows")
    assert done.output.count("\n") == 1
    assert rows(out) == before


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_what_is_no_folder_of_a_sweep_is_refused_untouched(tmp_path: Path, dry: list[str]) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").touch()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / ABOUT).write_text("{}")

    for name, words in (
        ("file", "file: is a file, not a folder; give another --out"),
        ("file/below", "file: is a file, not a folder; give another --out"),
        ("mine", "mine: holds something else than a sweep"),
        ("other", "sweep.json: does not say its bundle_version; not written by phasewise"),
    ):
        for more in ([], ["--fresh"]):
            (tmp_path / "c.yaml").write_text(yaml.safe_dump(small(ONE), sort_keys=False))
            options = ["--jobs", "1", "--figures", "none", "--out", str(tmp_path / name)]
            done = CliRunner().invoke(
                app, ["sweep", str(tmp_path / "c.yaml"), *options, *more, *dry]
            )
            assert (done.exit_code, done.stderr.count("\n")) == (2, 1), done.output
            assert words in done.stderr
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes"]
    assert [path.name for path in (tmp_path / "other").iterdir()] == [ABOUT]


@pytest.mark.parametrize(
    ("given", "options", "words"),
    [
        (
            small(TWO),
            ["--extend"],
            "1 rows of 2: 1 finished, 0 failed; --extend keeps them; 1 runs",
        ),
        (small(TWO), ["--fresh"], "1 rows, which --fresh drops with their figures; all 2 runs"),
        (small(ONE), [], "1 rows of 1: 1 finished, 0 failed; 0 runs are left"),
        (small(ONE), ["--fresh"], "1 rows, which --fresh drops with their figures; all 1 runs"),
    ],
)
def test_a_dry_run_says_what_is_kept_and_left(
    out: Path, given: dict[str, Any], options: list[str], words: str
) -> None:
    done = sweep_command(given, out, "--dry-run", *options)

    assert done.exit_code == 0, done.output
    assert f"{out}: has {words}" in done.stdout


def test_a_dry_run_refuses_what_cannot_be_extended_as_the_real_one_does(out: Path) -> None:
    dry, real = (sweep_command(small(OTHER), out, "--extend", *o) for o in (["--dry-run"], []))

    assert (dry.exit_code, real.exit_code) == (2, 2)
    assert dry.stderr == real.stderr
    assert "cannot be extended: 1 of its 1 points are not among those asked for now" in dry.stderr
    assert f"{out}: has 1 rows of another sweep" in dry.stdout


def test_extend_is_offered_only_where_it_works(tmp_path: Path, out: Path) -> None:
    for given, offered in ((TWO, True), (OTHER, False)):
        with pytest.raises(SweepError) as told:
            run(small(given), out)
        assert ("--extend to add points" in str(told.value)) == offered
        assert str(told.value).endswith("--fresh to drop it")
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,10,5\n1,10,5\n")
    given = small(ONE, workload={"trace": str(trace)})
    run(given, tmp_path / "traced")
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,10,5\n2,10,5\n")
    with pytest.raises(SweepError, match="its traces changed; give another --out, or --fresh to"):
        run(given, tmp_path / "traced")


def test_left_counts_failed_runs_that_are_retried(tmp_path: Path) -> None:
    sweep = {"list": [{"gpu_memory_utilization": 0.9}, {"gpu_memory_utilization": 0.15}]}
    run(small(sweep), tmp_path / "out")

    asked = ask(small(sweep))

    for retry, left in ((False, 0), (True, 1)):
        there = standing(asked, tmp_path / "out", retry=retry)
        assert there is not None
        assert (there.failed, there.left) == (1, left)


def test_points_that_cannot_run_are_named(tmp_path: Path) -> None:
    sweep = {"list": [{"gpu_memory_utilization": 0.9}, {"gpu_memory_utilization": 0.15}]}

    one = sweep_command(small(sweep), tmp_path / "out", "--dry-run")
    two = sweep_command(config(sweep=sweep), tmp_path / "out", "--dry-run")

    assert "- cannot run: gpu_memory_utilization=0.15: c.yaml: " in one.stdout
    assert "cannot run: gpu_memory_utilization=0.15 (variant vllm v1): c.yaml: " in two.stdout


def test_a_run_does_not_write_among_the_points_of_a_sweep(out: Path) -> None:
    before = sorted(path.name for path in out.iterdir())
    given = {key: value for key, value in small(ONE).items() if key != "sweep"}
    (out.parent / "plain.yaml").write_text(yaml.safe_dump(given))
    result = CliRunner().invoke(app, ["run", str(out.parent / "plain.yaml"), "--out", str(out)])

    assert result.exit_code == 2
    assert result.stderr.endswith(f"phasewise: {out}: holds a sweep; give another --out\n")
    assert sorted(path.name for path in out.iterdir()) == before
