"""The command line: output, exit codes, one line for whatever is wrong."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner, Result

from experiments import cli, figures, listing
from experiments.cli import app
from experiments.config import load, shipped
from experiments.version import __version__

CONFIG: dict[str, Any] = {
    "about": "Two budgets.",
    "workload": {"preset": "azure-conv-2023", "requests": 30, "max_tokens": 1024},
    "model": "llama-3.1-8b",
    "max_model_len": 16384,
    "step_time": {"model": "linear", "base_s": 0.005, "prefill_token_s": 3e-5},
    "policy": "sarathi",
    "grid": {"policy.budget_tokens": [128, 512]},
}


def phasewise(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "two.yaml"
    path.write_text(yaml.safe_dump(CONFIG))
    return path


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    (folder / "two.yaml").write_text(yaml.safe_dump(CONFIG))
    done = phasewise("run", str(folder / "two.yaml"), "--out", str(folder / "o"), "--jobs", "1")
    assert done.exit_code == 0, done.output
    return folder / "o"


# --- run and check


def test_run_prints_the_table_and_writes_bundles_and_figures(config: Path) -> None:
    result = phasewise("run", str(config), "--jobs", "1")

    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("Two budgets.")
    assert "budget_tokens=128" in result.stdout
    assert "results: results/two" in result.stdout
    assert sorted(path.name for path in Path("results/two").iterdir() if path.is_dir()) == [
        "budget_tokens=128",
        "budget_tokens=512",
    ]
    assert "plotly" in Path("results/two/figures.html").read_text()[:10_000_000].lower()
    assert Path("results/two/ttft_cdf.csv").is_file()


def test_run_as_json_prints_summaries_only(config: Path) -> None:
    result = phasewise("run", str(config), "--jobs", "1", "--json", "--figures", "none")

    assert list(json.loads(result.stdout)) == ["budget_tokens=128", "budget_tokens=512"]
    assert not Path("results/two/figures.html").exists()


def test_a_resolved_config_of_a_bundle_runs_again(results: Path, tmp_path: Path) -> None:
    again = results / "budget_tokens=128" / "config.yaml"

    result = phasewise("run", str(again), "--out", str(tmp_path), "--figures", "none", "--json")

    assert result.exit_code == 0, result.output
    first = json.loads((results / "budget_tokens=128" / "summary.json").read_text())
    assert json.loads(result.stdout)["budget_tokens=128"]["overall"] == first["overall"]


def test_images_that_cannot_be_written_are_an_error_where_nothing_else_was_asked_for(
    results: Path, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "kaleido", types.ModuleType("kaleido"))
    monkeypatch.setattr(figures, "_write_images", lambda *_: ([], "No images: no browser."))

    for formats, code in (("png", 1), ("svg,pdf", 1), ("html,png", 0)):
        drawn = phasewise("plot", str(results), "--out", str(tmp_path), "--formats", formats)
        assert drawn.exit_code == code, drawn.output
        assert drawn.stderr.count("No images: no browser.") == 1
    ran = phasewise("run", str(config), "--jobs", "1", "--figures", "png", "--report")
    assert ran.exit_code == 1
    assert ran.stderr.endswith("phasewise: No images: no browser.\n")
    assert Path("results/two/report.html").is_file()

    monkeypatch.setitem(sys.modules, "kaleido", None)
    shutil.rmtree("results")
    refused = phasewise("run", str(config), "--figures", "png")
    assert refused.exit_code == 2
    assert refused.stderr.startswith("phasewise: --figures png needs kaleido, which is not inst")
    assert not Path("results").exists()


def test_a_file_in_the_place_of_a_folder_is_said_to_be_one(config: Path) -> None:
    Path("there").write_text("mine")

    for out, said in (("there", "there: is"), ("there/below", "there/below: there is")):
        result = phasewise("run", str(config), "--out", out)
        assert (result.exit_code, result.stderr) == (
            2,
            f"phasewise: {said} a file, not a folder\n",
        )


@pytest.mark.parametrize(
    ("formats", "line"),
    [
        ("gif", "phasewise: --figures gif: no format 'gif'; try "),
        ("none,html", "phasewise: --figures none,html: none stands alone"),
        (",", "phasewise: --figures: expected some of html, svg, pdf, png, or none"),
    ],
)
def test_formats_are_refused_before_anything_runs(config: Path, formats: str, line: str) -> None:
    result = phasewise("run", str(config), "--figures", formats)

    assert result.exit_code == 2
    assert result.stderr.startswith(line.removesuffix("try "))
    assert not Path("results").exists()


def test_check_says_what_would_run_and_runs_nothing(config: Path) -> None:
    result = phasewise("check", str(config), "--set", "replicas=3")

    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "two.yaml: 2 variants"
    assert lines[1] == (
        "  budget_tokens=128: 30 requests, 3 GPUs; colocated: 3 x 1 h100-sxm, sarathi, linear"
    )
    assert any("KV cache:" in line for line in lines)
    assert not Path("results").exists()


def test_check_refuses_windows_that_a_run_would_refuse(config: Path) -> None:
    result = phasewise("check", str(config), "--set", "warm_up_s=9000")

    assert result.exit_code == 2
    assert "leave nothing to measure" in result.stderr


def test_check_as_json(config: Path) -> None:
    told = json.loads(phasewise("check", str(config), "--json").stdout)

    assert [variant["label"] for variant in told["variants"]] == [
        "budget_tokens=128",
        "budget_tokens=512",
    ]


@pytest.mark.parametrize("name", sorted(shipped()))
def test_every_shipped_config_resolves_and_says_what_clients_ask_for(name: str) -> None:
    plan = load(name)

    assert plan.about.strip()
    assert "Takes about" in shipped()[name].read_text()
    assert all(variant.workload.max_tokens for variant in plan.variants)


@pytest.mark.parametrize("name", sorted(shipped()))
def test_every_shipped_config_runs(name: str, tmp_path: Path) -> None:
    mix = yaml.safe_load(shipped()[name].read_text())["workload"].get("mix")
    few = "workload.requests=12"
    if mix is not None and "requests" in mix[0]:  # else the parts are shares of the whole
        few = f"workload.mix={json.dumps([{**part, 'requests': 12} for part in mix])}"

    options = ("--set", few, "--out", str(tmp_path), "--jobs", "1")
    result = phasewise("run", name, *options, "--figures", "none")

    assert result.exit_code == 0, result.output


def test_a_shipped_config_takes_a_trace_instead_of_its_preset(tmp_path: Path) -> None:
    rows = "".join(f"{i},{100 + i},{10 + i}\n" for i in range(8))
    (tmp_path / "t.csv").write_text(f"arrival_s,prompt_tokens,output_tokens\n{rows}")

    result = phasewise(
        "check", "policies_azure", "--set", f"workload.trace={tmp_path / 't.csv'}", "--json"
    )

    assert {variant["requests"] for variant in json.loads(result.stdout)["variants"]} == {8}


# --- what is wrong


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (
            ("run", "quikstart"),
            2,
            "phasewise: quikstart: no such file, and no shipped config of this name; "
            "try quickstart",
        ),
        (("run", "nothing.yaml"), 2, "phasewise: nothing.yaml: no such file"),
        (
            ("check", "quickstart", "--set", "model=lama-3.1-8b"),
            2,
            "phasewise: --set: model: lama-3.1-8b has no data sheet (or the path of a "
            "config.json); did you mean llama-3.1-8b?",
        ),
        (
            ("check", "quickstart", "--set", "model=llama-3.1-405b"),
            2,
            "phasewise: quickstart.yaml: variant static: kv: no room for KV blocks: ",
        ),
        (
            ("check", "quickstart", "--set", "tensor_parallel=3"),
            2,
            "phasewise: --set: tensor_parallel: 3 does not divide",
        ),
        (
            ("list", "polices"),
            2,
            "phasewise: list: no kind 'polices' (did you mean policies?); choose one of policies,",
        ),
        (("table", "nowhere"), 2, "phasewise: nowhere: no such folder; expected results of"),
        (("explain", __file__), 2, f"phasewise: {__file__}: is a file; give its folder, "),
        (("plot", "."), 2, "phasewise: .: holds no results of `phasewise run`"),
        (("trace", "info", "nowhere.csv"), 2, "phasewise: nowhere.csv: no such file"),
        (
            ("trace", "synth", "azure-cnv-2023", "-n", "5", "-o", "t.csv"),
            2,
            "phasewise: trace synth: no preset 'azure-cnv-2023'; try azure-conv-2023",
        ),
        (("trace", "fetch", "nothing"), 2, "phasewise: "),
        (
            ("check-policy", "nothing:Mine"),
            2,
            "phasewise: check-policy: nothing:Mine: module nothing",
        ),
    ],
)
def test_what_is_wrong_is_one_line_on_stderr(
    arguments: tuple[str, ...],
    code: int,
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)

    result = phasewise(*arguments)

    assert result.exit_code == code, result.output
    told = result.stderr.strip().splitlines()
    assert len(told) == 1
    assert told[0].startswith(line)


def test_a_failed_variant_ends_with_1_and_the_others_are_shown(config: Path) -> None:
    Path("cli_failing.py").write_text(
        "from dataclasses import dataclass\nfrom policies.orca import Orca\n"
        "@dataclass\nclass Broken(Orca):\n"
        "    def schedule(self, state):\n        raise ValueError('never')\n"
    )
    broken = {"label": "broken", "policy": "cli_failing:Broken"}
    config.write_text(
        yaml.safe_dump({**CONFIG, "grid": None, "compare": [broken, {"label": "fine"}]})
    )

    result = phasewise("run", str(config), "--jobs", "1", "--figures", "none")

    assert result.exit_code == 1
    assert "phasewise: broken: ValueError: never" in result.stderr.splitlines()
    assert "fine" in result.stdout


def test_a_trace_that_no_variant_can_use_is_bad_input(config: Path) -> None:
    Path("t.csv").write_text("num_prefill_tokens,num_decode_tokens\n100,5\n")

    result = phasewise("run", str(config), "--set", "workload.trace=t.csv", "--jobs", "1")

    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1].startswith("phasewise: ")
    assert "the trace has no arrival times" in result.stderr.splitlines()[-1]


def test_a_misspelt_command_or_option_ends_with_2() -> None:
    assert phasewise("rnu").exit_code == 2
    assert phasewise("run", "quickstart", "--job", "2").exit_code == 2


# --- results


@pytest.mark.parametrize(
    ("name", "start"),
    [("markdown", "| Variant"), ("latex", "% "), ("csv", "variant,gpus,verdict")],
)
def test_tables_in_every_format(results: Path, name: str, start: str) -> None:
    result = phasewise("table", str(results), "--format", name)

    assert result.exit_code == 0, result.output
    assert start in result.stdout
    assert "budget" in result.stdout


def test_results_are_drawn_again_without_steps(results: Path, tmp_path: Path) -> None:
    for steps in results.glob("*/steps.parquet"):
        steps.unlink()

    result = phasewise("plot", str(results), "--out", str(tmp_path), "--formats", "html")

    assert result.exit_code == 0, result.output
    assert (tmp_path / "figures.html").is_file()


def test_several_folders_are_compared_in_one_table(results: Path) -> None:
    one, other = sorted(path for path in results.iterdir() if path.is_dir())

    result = phasewise("table", str(other), str(one), "--format", "csv")

    rows = [line.partition(",")[0] for line in result.stdout.splitlines()[1:3]]
    assert rows == ["budget_tokens=512", "budget_tokens=128"]


# --- names, definitions, traces


@pytest.mark.parametrize("kind", sorted(listing.KINDS))
def test_every_kind_of_name_is_listed(kind: str) -> None:
    result = phasewise("list", kind)
    told = json.loads(phasewise("list", kind, "--json").stdout)

    assert result.exit_code == 0
    assert told
    assert all(name in result.stdout for name in told)


def test_metrics_prints_every_definition() -> None:
    from sim.metric_definitions import METRICS

    printed = phasewise("metrics").stdout

    assert all(metric.definition in printed for metric in METRICS.values())
    assert "Verdict" in printed


def test_version() -> None:
    assert phasewise("--version").stdout == f"phasewise {__version__}\n"


def test_a_trace_is_made_described_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "t.csv.gz"

    made = phasewise("trace", "synth", "reasoning", "-n", "20", "--rate", "2", "-o", str(path))
    described = phasewise("trace", "info", str(path))

    assert made.exit_code == 0
    assert "Synthetic preset reasoning" in made.stdout
    assert "requests    20" in described.stdout


def test_a_trace_is_described_as_json(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,5,2\n2,7,1\n")

    told = json.loads(phasewise("trace", "info", str(tmp_path / "t.csv"), "--json").stdout)

    assert told["requests"] == 2
    assert told["duration_s"] == 2.0
    assert told["prompt"] == {"mean": 6.0, "p50": 5, "p90": 7, "p99": 7, "largest": 7}
    assert told["cached_share"] is None


def test_check_policy_passes_on_a_shipped_policy() -> None:
    result = phasewise("check-policy", "sarathi", "--workloads", "3", "--set", "budget_tokens=16")

    assert result.exit_code == 0, result.output
    assert "checks hold on" in result.stdout


def test_help_is_quick_and_loads_nothing_heavy(repository: Path) -> None:
    code = (
        "import sys, runpy\n"
        "sys.argv = ['phasewise', '--help']\n"
        "try:\n    import phasewise; phasewise.main()\nexcept SystemExit: pass\n"
        "heavy = {'numpy', 'pandas', 'pyarrow', 'scipy', 'plotly', 'pydantic', 'simpy', 'yaml'}\n"
        "print('heavy:', sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=repository, capture_output=True, text=True, check=True
    )

    assert done.stdout.splitlines()[-1] == "heavy: []"


def test_a_command_is_built_alone_and_is_the_same() -> None:
    whole = typer.main.get_group(app).commands

    assert cli._with_command("") is cli._with_command("rnu") is app
    for name, command in whole.items():
        alone = typer.main.get_group(cli._with_command(name)).commands
        assert list(alone) == [name]
        assert _options(alone[name]) == _options(command)


def _options(command: Any) -> dict[str, Any]:
    """Options of a command and of those below it."""
    below = getattr(command, "commands", {})
    own = {each.name: each.opts for each in command.params}
    return own | {name: _options(each) for name, each in below.items()}


def test_the_hot_path_loads_neither_pandas_nor_scipy_nor_plotly(
    config: Path, repository: Path
) -> None:
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from experiments import bundle\n"
        "from experiments.config import load\n"
        "from experiments.variant import run_variant\n"
        f"plan = load({str(config)!r})\n"
        "bundle.write(run_variant(plan.variants[0], plan.folder), Path(sys.argv[1]))\n"
        "slow = {'pandas', 'scipy', 'plotly', 'rich', 'typer', 'pyarrow.compute'}\n"
        "print(sorted(slow & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(config.parent / "b")],
        cwd=repository,
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout == "[]\n"
