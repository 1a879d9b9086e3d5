"""Single gaps between tokens of results, from a run that is made once more and is the same."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from experiments import again, bundle
from experiments.cli import app
from sim.errors import ConfigError

CONFIG = """\
name: gaps
workload: {trace: trace.csv}
model: llama-3.1-8b
step_time: {model: linear, base_s: 1.0e-5, prefill_token_s: 1.0e-6, decode_s: 2.0e-6}
replicas: 1
kv: {num_blocks: 1000}
policy: vllm-v0
"""
ROWS = [*([(0, 5, 20)] * 4), (50e-6, 100, 1)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gaps")
    lines = [f"{at:.6f},{prompt},{output}" for at, prompt, output in ROWS]
    header = "arrival_s,prompt_tokens,output_tokens"
    (folder / "trace.csv").write_text("\n".join([header, *lines, ""]), encoding="utf-8")
    (folder / "gaps.yaml").write_text(CONFIG, encoding="utf-8")
    done = CliRunner().invoke(
        app, ["run", str(folder / "gaps.yaml"), "--out", str(folder / "out"), "--jobs", "1"]
    )
    assert done.exit_code == 0, done.output
    return folder


def _explain(place: Path, *arguments: str) -> Any:
    (results,) = bundle.find(place / "out")
    return CliRunner().invoke(app, ["explain", str(results), *arguments])


def _files(place: Path) -> tuple[str, ...]:
    return ("--files", str(place))


def test_the_gap_before_any_token_is_told(place: Path) -> None:
    done = _explain(place, "2", "--token", "4", "--json", *_files(place))
    assert done.exit_code == 0, done.output
    told = json.loads(done.output)
    stalled = {"decode_gpu": 12_000, "decode_others": 6_000, "stall": 110_000}
    assert told["phases_ns"] == stalled
    assert (told["token"], told["end_ns"], told["total_ns"]) == (4, 194_000, 128_000)
    plain = json.loads(_explain(place, "2", "--token", "5", "--json", *_files(place)).output)
    assert plain["phases_ns"] == {"decode_gpu": 12_000, "decode_others": 6_000}
    text = _explain(place, "2", "--token", "4", *_files(place)).output
    assert "stall: stalled while steps of others ran" in text
    assert "before token 4 of request 2) spent 86% of that" in text


def test_the_longest_gaps_come_first_and_of_equal_ones_the_earlier(place: Path) -> None:
    done = _explain(place, "0", "--gaps", "3", "--json", *_files(place))
    told = json.loads(done.output)
    assert [each["token"] for each in told] == [4, 2, 3]
    assert [each["total_ns"] for each in told] == [128_000, 18_000, 18_000]
    text = _explain(place, "0", "--gaps", "3", *_files(place)).output
    assert "the longest of its 19 gaps" in text


def test_all_gaps_of_a_request_add_up_to_what_follows_its_first_token(place: Path) -> None:
    (folder,) = bundle.find(place / "out")
    found = bundle.read(folder, with_steps=False)
    result = again.simulated_again(found, folder, place)
    splits = again.gaps_of(result, 1)
    first, last = (int(found.requests[f"{x}_token_ns"][1]) for x in ("first", "last"))
    assert sum(split.total_ns for split in splits) == last - first
    assert [split.end_ns for split in splits] == result.token_times_ns(1)[1:].tolist()


def test_a_life_is_told_in_the_order_of_time(place: Path) -> None:
    done = _explain(place, "2", "--timeline", "--json", *_files(place))
    assert done.exit_code == 0, done.output
    told = json.loads(done.output)
    # 0: the prefill of four, 30. Two decode steps of 18, the prefill of the fifth, and 17 more.
    expected = ["prefill", *["decode"] * 2, "stall", *["decode"] * 17]
    assert [each["what"] for each in told] == expected
    assert told[3] == {
        "begin_ns": 66_000,
        "end_ns": 176_000,
        "what": "stall",
        "ns": {"stall": 110_000},
    }
    assert told[1]["ns"] == {"decode_gpu": 12_000, "decode_others": 6_000}
    text = _explain(place, "2", "--timeline", *_files(place)).output
    bar = next(line for line in text.splitlines() if "|" in line)
    # 482 us in 60 places: 30 of prefill are 3.7 of them, 36 of decodes 4.5, 110 of stall 13.7.
    assert bar == f"  |{'P' * 4}{'D' * 4}{'s' * 14}{'D' * 38}|"
    assert "2 decode steps: decode_gpu 24 us, decode_others 12 us" in text
    assert "s stall: stalled while steps of others ran" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("4", "--token", "2"), "request 4 has no gap before it; it has no two tokens"),
        (("0", "--token", "21"), "gaps end with its tokens 2 to 20"),
        (("0", "--token", "3", "--gaps", "2"), "--token and --gaps: give one of them"),
        (("--gaps", "2"), "--gaps: of which request?"),
        (("9", "--gaps", "2"), "request 9: not in these results"),
    ],
)
def test_what_is_wrong_is_one_line(place: Path, arguments: tuple[str, ...], message: str) -> None:
    done = _explain(place, *arguments, *_files(place))
    assert done.exit_code == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_files_alone_simulate_nothing(place: Path) -> None:
    assert (
        "only --token, --gaps, --timeline simulate again" in _explain(place, *_files(place)).stderr
    )


def test_a_run_that_is_another_now_is_refused(place: Path, tmp_path: Path) -> None:
    lines = (place / "trace.csv").read_text(encoding="utf-8").splitlines()
    lines[-1] = lines[-1].replace(",100,", ",90,")
    (tmp_path / "trace.csv").write_text("\n".join(lines), encoding="utf-8")
    done = _explain(place, "0", "--gaps", "1", "--files", str(tmp_path))
    assert done.exit_code == 2
    assert "simulated again it is another run (" in done.stderr


def test_tokens_that_a_bundle_has_are_held_against_the_run(place: Path, tmp_path: Path) -> None:
    (folder,) = bundle.find(place / "out")
    shutil.copytree(folder, tmp_path / "copy")
    found = bundle.read(tmp_path / "copy", with_steps=False)
    assert len(np.unique(found.tokens["request"])) == 5
    found.tokens["time_ns"][1] += 1
    with pytest.raises(ConfigError, match=r"another run \(tokens of 0\)"):
        again.simulated_again(found, tmp_path / "copy", place)


MINE = """\
from dataclasses import dataclass

from policies.prefill_first import PrefillFirst


@dataclass
class Mine(PrefillFirst):
    pass
"""


def test_a_module_of_ones_own_is_found_in_the_working_folder(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "a_policy_to_explain"
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / f"{name}.py").write_text(MINE, encoding="utf-8")
    shutil.copy(place / "trace.csv", tmp_path)
    config = CONFIG.replace("policy: vllm-v0", f"policy: {name}:Mine")
    (tmp_path / "own.yaml").write_text(config, encoding="utf-8")
    run = ["run", str(tmp_path / "own.yaml"), "--out", str(tmp_path / "out"), "--jobs", "1"]
    assert CliRunner().invoke(app, run).exit_code == 0
    (results,) = bundle.find(tmp_path / "out")
    ask = ["explain", str(results), "0", "--gaps", "1"]

    def forget() -> None:
        sys.modules.pop(name, None)
        sys.path[:] = [each for each in sys.path if Path(each or ".").resolve() != tmp_path]

    forget()
    failed = CliRunner().invoke(app, ask)
    assert failed.exit_code == 2
    assert f"{results / 'config.yaml'}: " in failed.stderr
    assert "--files FOLDER says where" in failed.stderr
    assert len(failed.stderr.splitlines()) == 1
    monkeypatch.chdir(tmp_path)
    forget()
    done = CliRunner().invoke(app, ask)
    forget()
    assert done.exit_code == 0, done.output
    assert "the longest of its 19 gaps" in done.output


def test_a_folder_of_files_that_is_none_is_refused(place: Path) -> None:
    done = _explain(place, "0", "--gaps", "1", "--files", "/no/such/folder")
    assert done.exit_code == 2
    assert done.stderr.strip().endswith("explain: --files /no/such/folder: no such folder")
