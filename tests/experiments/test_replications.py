"""Replications: paired seeds, intervals, differences between variants, and what they cannot say."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner, Result

import phasewise as api
from experiments import bundle
from experiments.cli import app
from experiments.config import load
from experiments.html_report import command
from experiments.replications import replicate, seed_of
from experiments.tables import three_digits
from sim.errors import ConfigError
from sim.metrics import ttft_s

CONFIG: dict[str, Any] = {
    "workload": {
        "preset": "azure-conv-2023",
        "requests": 400,
        "max_tokens": 1024,
        "arrivals": {"rate_per_s": 6},
    },
    "model": "llama-3.1-8b",
    "max_model_len": 16384,
    "step_time": {"model": "linear", "base_s": 0.005, "prefill_token_s": 3e-5},
    "slo": {"ttft_s": 0.5},
    "replications": 4,
    "compare": [
        {"label": "sarathi", "policy": {"name": "sarathi", "budget_tokens": 256}},
        {"label": "orca", "policy": "orca"},
        {"label": "sarathi again", "policy": {"name": "sarathi", "budget_tokens": 256}},
    ],
}


def phasewise(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("replications")
    (folder / "three.yaml").write_text(yaml.safe_dump(CONFIG))
    options = ("--out", str(folder / "out"), "--jobs", "1", "--figures", "none")
    done = phasewise("run", str(folder / "three.yaml"), *options)
    assert done.exit_code == 0, done.output
    (folder / "stdout.txt").write_text(done.stdout)
    return folder


def test_seeds_are_those_of_the_config_and_far_from_each_other() -> None:
    assert seed_of(7, 0) == 7
    seeds = {seed_of(seed, k) for seed in range(20) for k in range(20)}
    assert len(seeds) == 400
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_a_replication_is_a_run_of_its_own() -> None:
    variant = load(CONFIG).variants[0]

    again = replicate(variant, 2)

    assert (variant.replications, again.replications) == (4, 1)
    assert again.model_copy(update={"seed": variant.seed, "replications": 4}) == variant


def test_runs_of_one_number_serve_the_same_requests_in_every_variant(folder: Path) -> None:
    out = folder / "out"
    arrivals = {
        name: [
            bundle.read(at).requests["arrival_ns"]
            for at in (out / name, *(out / "replications" / name / f"run-{k}" for k in (1, 2, 3)))
        ]
        for name in ("sarathi", "orca")
    }

    for one, other in zip(*arrivals.values(), strict=True):
        assert (one == other).all()
    assert len({int(each[-1]) for each in arrivals["orca"]}) == 4


def test_the_tables_give_intervals_and_differences(folder: Path) -> None:
    text = (folder / "stdout.txt").read_text()

    assert "95 % intervals" in text
    assert "Runs: sarathi 4, orca 4, sarathi again 4." in text
    assert "faster by" in text
    again = phasewise("table", str(folder / "out"))
    assert "Differences of runs with the same seeds" in again.stdout


def test_what_is_the_same_is_not_separable_and_what_is_not_is(folder: Path) -> None:
    told = bundle.read_values(folder / "out" / "replications.json")["variants"]

    same = told["sarathi again"]["against"]["sarathi"]
    assert not any(each["separable"] for each in same.values())
    gaps = told["orca"]["against"]["sarathi"]["itl_s.p99"]
    assert gaps["separable"]
    assert gaps["low"] > 0  # whole prompts stretch the gaps
    mean = told["orca"]["metrics"]["tpot_s.mean"]
    assert mean["low"] < mean["estimate"] < mean["high"]
    # 1,600 requests do not tell a P99, and the file says how many would.
    assert "needs" in told["orca"]["metrics"]["ttft_s.p99"]["no_interval"]


def test_json_has_them_beside_the_summary(folder: Path) -> None:
    options = ("--out", str(folder / "out"), "--jobs", "1", "--figures", "none", "--json")

    result = phasewise("run", str(folder / "three.yaml"), *options)

    told = json.loads(result.stdout)
    assert list(told) == ["sarathi", "orca", "sarathi again"]
    assert told["orca"]["replications"]["runs"] == 4
    assert len(set(told["orca"]["replications"]["seeds"])) == 4
    assert result.stderr.count("unchanged, kept from an earlier run") == 12


def test_python_has_the_same_numbers(folder: Path) -> None:
    results = api.run(CONFIG)

    told = bundle.read_values(folder / "out" / "replications.json")["variants"]
    found = results.uncertainty()
    assert found["orca"]["metrics"]["e2e_s.mean"] == told["orca"]["metrics"]["e2e_s.mean"]
    assert len(results) == 3
    assert api.run(CONFIG, replications=1).uncertainty() == {}


@pytest.mark.slow
def test_recorded_arrivals_have_parts_of_one_run_instead(tmp_path: Path) -> None:
    rows = "".join(f"{0.3 * at:.1f},{100 + at % 37},{5 + at % 7}\n" for at in range(6000))
    (tmp_path / "trace.csv").write_text("arrival_s,prompt_tokens,output_tokens\n" + rows)
    config = {**CONFIG, "workload": {"trace": str(tmp_path / "trace.csv")}, "replications": 3}

    told = api.run(config).uncertainty()["orca"]

    assert (told["runs"], told["drawn"]) == (1, False)
    assert told["metrics"]["e2e_s.mean"]["method"] == "t over 10 groups"
    assert "no_interval" in told["metrics"]["mfu"]
    # One run of each, of the same requests: those are paired instead of runs.
    assert not told["against"]["sarathi"]["e2e_s.p50"]["separable"]
    assert "throughput_out_per_gpu_tokens_per_s" not in told["against"]["sarathi"]


def test_a_variant_named_as_their_folder_is_refused() -> None:
    config = {**CONFIG, "compare": [{"label": "Replications", "policy": "orca"}]}

    from experiments.run import replications_of

    with pytest.raises(ConfigError, match="variant Replications: the folder of this name is for"):
        replications_of(load(config), Path("out"))


def test_replications_belong_to_the_whole_file() -> None:
    compare = [{"label": "a", "policy": "orca", "replications": 2}]

    with pytest.raises(ConfigError, match="belongs to the whole file, not to a variant"):
        load({**CONFIG, "compare": compare})


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recorded trace on replicas that hold, and on ones that fail at drawn instants."""
    folder = tmp_path_factory.mktemp("failing")
    rows = "".join(f"{0.3 * at:.1f},{100 + at % 37},{5 + at % 7}\n" for at in range(400))
    (folder / "trace.csv").write_text("arrival_s,prompt_tokens,output_tokens\n" + rows)
    config = {**CONFIG, "workload": {"trace": "trace.csv"}, "policy": "orca", "compare": [
        {"label": "holds"},
        {"label": "fails", "failures": {"mtbf_s": 20, "mttr_s": 2}},
    ]}  # fmt: skip
    (folder / "failing.yaml").write_text(yaml.safe_dump(config))
    options = ("--out", str(folder / "out"), "--jobs", "1", "--figures", "none")
    done = phasewise("run", str(folder / "failing.yaml"), *options)
    assert done.exit_code == 0, done.output
    (folder / "stdout.txt").write_text(done.stdout)
    return folder


def test_failures_are_compared_with_none_seed_by_seed(failing: Path) -> None:
    told = bundle.read_values(failing / "out" / "replications.json")["variants"]

    assert (told["holds"]["drawn"], told["fails"]["drawn"]) == (False, True)
    against = told["fails"]["against"]["holds"]["ttft_s.mean"]
    each = [
        bundle.read(at).summary["overall"]["ttft_s"]["mean"]
        for at in (failing / "out" / "fails", *sorted((failing / "out").glob("rep*/fails/run-*")))
    ]
    holds = bundle.read(failing / "out" / "holds").summary["overall"]["ttft_s"]["mean"]
    assert against["difference"] == pytest.approx(sum(each) / 4 - holds)
    text = " ".join((failing / "stdout.txt").read_text().split())
    assert "Differences of runs with the same seeds, with 95 % confidence" in text


def test_a_later_run_that_differs_counts_though_the_first_two_are_the_same(failing: Path) -> None:
    from experiments.uncertainty import Repeated

    out = failing / "out"
    holds, fails = bundle.read(out / "holds"), bundle.read(out / "fails")

    assert Repeated.of("seldom", [holds, holds, fails]).drawn
    assert not Repeated.of("never", [holds, holds, holds]).drawn


def test_compare_pairs_a_run_that_draws_nothing_with_one_that_does(failing: Path) -> None:
    out = failing / "out"
    result = phasewise("compare", str(out / "holds"), str(out / "fails"))

    assert result.exit_code == 0, result.output
    text = " ".join(result.stdout.split())
    assert "Runs: 1 and 4." in text
    assert "served other requests" not in text
    assert "No test" not in text


def test_compare_says_that_the_list_of_further_runs_is_missing(
    failing: Path, tmp_path: Path
) -> None:
    shutil.copytree(failing / "out", tmp_path / "out")
    (tmp_path / "out" / "replications.json").unlink()
    first, second = tmp_path / "out" / "holds", tmp_path / "out" / "fails"
    result = phasewise("compare", str(first), str(second))

    assert result.exit_code == 0, result.output
    assert "Runs: 1 and 1." in " ".join(result.stdout.split())
    told = f"{second}: only its first run is shown: replications.json is missing, which lists 3"
    assert told in result.stderr


def test_runs_with_other_seeds_or_of_another_number_say_so(failing: Path) -> None:
    from experiments.quantity import read_quantity
    from experiments.uncertainty import COMPARED, Repeated, difference

    folders = (failing / "out" / "fails", *sorted((failing / "out").glob("rep*/fails/run-*")))
    runs = [bundle.read(at) for at in folders]
    quantity = read_quantity(COMPARED[0], "test")

    fewer = difference(Repeated.of("a", runs), Repeated.of("b", runs[:3]), quantity)
    others = difference(Repeated.of("a", runs[:2]), Repeated.of("b", runs[2:]), quantity)

    assert "there are 4 and 3 runs; give both the same seed and replications" in str(fewer)
    assert "their runs have other seeds" in str(others)


def test_figures_of_replications_have_bands_and_are_drawn_again_with_them(tmp_path: Path) -> None:
    settings = {**CONFIG, "replications": 3}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(settings))
    done = phasewise("run", str(tmp_path / "c.yaml"), "--out", str(tmp_path / "o"), "--jobs", "1")
    assert done.exit_code == 0, done.output
    page = (tmp_path / "o" / "figures.html").read_text("utf-8")
    points = (tmp_path / "o" / "e2e_cdf.csv").read_text()

    again = phasewise(
        "plot", str(tmp_path / "o"), "--out", str(tmp_path / "p"), "--formats", "html"
    )

    assert again.exit_code == 0, again.output
    assert "Curves are of all 3 replications together." in page
    assert points.splitlines()[0] == "variant,policy,e2e_s,share,share_low,share_high"
    assert (tmp_path / "p" / "e2e_cdf.csv").read_text() == points
    alone = phasewise(
        "plot", *map(str, sorted((tmp_path / "o" / "replications").glob("*/run-1"))),
        "--out", str(tmp_path / "q"), "--formats", "html",
    )  # fmt: skip
    assert alone.exit_code == 0, alone.output
    assert "share_low" not in (tmp_path / "q" / "e2e_cdf.csv").read_text()


def test_the_table_says_of_which_run_it_is(folder: Path) -> None:
    said = "The numbers above are of the first of 4 runs of each variant; intervals are of all"
    assert said in " ".join((folder / "stdout.txt").read_text().split())


def test_a_report_shows_all_runs_and_says_which_parts_show_the_first(folder: Path) -> None:
    out = folder / "out"
    folders = bundle.find(out)

    values = command.collect([bundle.read_head(each) for each in folders], folders)[1]

    told = values["runs"]
    assert told["columns"] == ["95 % intervals", "sarathi", "orca", "sarathi again"]
    assert told["notes"][0].startswith("Runs with other seeds: sarathi 4, orca 4, sarathi again 4.")
    p99 = bundle.read_values(out / "replications.json")["variants"]["orca"]["metrics"]["ttft_s.p99"]
    (row,) = [row for row in told["rows"] if row[0] == "TTFT P99 (s)"]
    assert row[2].split()[0] == three_digits(p99["estimate"])
    (ttft,) = [chart for chart in values["cdfs"] if chart["key"] == "ttft"]
    curve = ttft["curves"][1]
    assert len(curve["band"]["low"]) == len(curve["band"]["high"]) == len(curve["x"])
    assert all(
        low is None or low <= y for low, y in zip(curve["band"]["low"], curve["share"], strict=True)
    )
    runs = [out / "orca", *(out / "replications" / "orca" / f"run-{k}" for k in (1, 2, 3))]
    ttfts = np.concatenate([ttft_s(bundle.read(each).requests) for each in runs])
    assert max(curve["x"]) == pytest.approx(ttfts.max())

    one = [out / "replications" / "orca" / "run-1"]
    alone = command.collect([bundle.read_head(one[0])], one)[1]
    assert alone["runs"] is None
    assert all("band" not in curve for chart in alone["cdfs"] for curve in chart["curves"])
