"""``step_time: {model: profile}`` in a config: tables, options, engines, what a summary says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from experiments import engines, step_times
from experiments.cli import app
from experiments.config import load
from experiments.json_schema import json_schema
from experiments.variant import fingerprints, run_variant
from kernels_profile.host import HOSTS
from kernels_profile.table import Meta, write_meta, write_table
from sim.errors import ConfigError
from tests.kernels_profile.made_up import MODEL, tables, without, written

HF_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "num_hidden_layers": MODEL.layers,
    "hidden_size": MODEL.hidden,
    "num_attention_heads": MODEL.heads,
    "num_key_value_heads": MODEL.kv_heads,
    "head_dim": MODEL.head_dim,
    "intermediate_size": MODEL.intermediate,
    "vocab_size": MODEL.vocab,
    "max_position_embeddings": 4096,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A config's folder, with a model and tables of two devices in it."""
    (tmp_path / "small.json").write_text(json.dumps(HF_CONFIG))
    short = without(tables(), "attention_decode", context=2048)
    written(tmp_path / "tables" / "h200", without(short, "attention_decode", context=512))
    written(tmp_path / "tables" / "a100", tables(), "a100-sxm-80gb")
    return tmp_path


def config(**step_time: Any) -> dict[str, Any]:
    return {
        "model": "small.json",
        "device": "h200",
        "policy": "vllm-v1",
        "kv": {"num_blocks": 900},
        "workload": {"preset": "sharegpt-like", "requests": 12},
        "step_time": {"model": "profile", "data": "tables", **step_time},
    }


def of_engine(engine: str, **step_time: Any) -> dict[str, Any]:
    said = config(**step_time) | {"engine": engine}
    del said["policy"]
    return said


def without_step_time(said: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in said.items() if key != "step_time"}


def plan(folder: Path, said: Mapping[str, Any], **more: Any) -> Any:
    path = folder / "c.yaml"
    path.write_text(yaml.safe_dump(dict(said)))
    return load(path, **more)


def notes_of(folder: Path, said: Mapping[str, Any]) -> list[str]:
    (experiment,) = plan(folder, said).variants
    return [note for note in run_variant(experiment, folder).notes if note.startswith("step times")]


class TestTables:
    def test_those_of_the_device_are_found_beside_the_config(self, folder: Path) -> None:
        origin, usage = notes_of(folder, config())
        assert origin.startswith("step times: profile: measured tables of h200: made up;")
        assert usage.startswith("step times outside the measured grid: ")
        assert "of steps and" in usage

    def test_a_list_is_looked_up_in_its_order(self, folder: Path) -> None:
        made = tables()
        written(folder / "most", without(made, "elementwise", op="rms_norm"))
        written(folder / "rest", {"elementwise": made["elementwise"]})
        (origin, _) = notes_of(folder, config(data=["rest", "most"]))
        assert "tables of h200: 1. rest, made up: elementwise (" in origin
        assert "; 2. most, made up: linear (" in origin

    def test_an_exact_shape_wins_over_one_between_others(self, folder: Path) -> None:
        made = tables()
        wide = [row | {"width": row["width"] + by} for row in made["elementwise"] for by in (-1, 1)]
        written(folder / "near", {"elementwise": wide})
        written(folder / "exact", made)
        (origin, _) = notes_of(folder, config(data=["near", "exact"]))
        assert "1. near, made up: nothing used; 2. exact, made up: elementwise (" in origin

    def test_tables_that_a_lender_stands_in_for_are_told(self, folder: Path) -> None:
        (origin, _) = notes_of(folder, config(tables_of="a100-sxm-80gb"))
        assert "scaled by data sheet to h200 although there are tables of h200: made up" in origin

    @pytest.mark.parametrize(
        ("said", "error"),
        [
            ({"data": "tabels"}, "data: tabels: no such folder; expected a data set"),
            ({"data": []}, "data: .*expected at least one folder"),
            ({"data": "tables/a100"}, "was measured on a100-sxm-80gb, not on h200"),
            ({"data": ["tables/h200", "tables"]}, "h200: is given twice"),
            ({"collectives": "banana"}, "collectives: no backend 'banana'; .*nccl"),
            ({"datta": "x"}, "profile has no such option; try data"),
            ({"outside": "guess"}, "outside: guess: expected one of roofline-scaled, clamp, error"),
            ({"cuda_graphs": "vlm"}, "cuda_graphs: no set of CUDA graphs 'vlm'; try vllm"),
            ({"cuda_graphs": [8, 4]}, "cuda_graphs: .8, 4.: expected ascending sizes"),
            ({"noise": "loud"}, "noise: loud: expected table, none or"),
            ({"noise": {"cv": -1}}, "noise.cv: -1.*: expected at least 0"),
            ({"noise": {"sd": 0.1}}, "noise.sd: noise has no such option; choose one of cv"),
            ({"collectives": {"latency_us": 3.0}}, "bandwidth_bytes_per_s: is required by"),
            ({"host": "vllm-0.66"}, "host: no host preset 'vllm-0.66'; try vllm-0.6"),
            ({"missing": "guess"}, "missing: guess: expected one of error, roofline"),
        ],
    )
    def test_what_is_wrong_is_one_line_with_its_key(
        self, folder: Path, said: dict[str, Any], error: str
    ) -> None:
        with pytest.raises(ConfigError, match=error) as raised:
            plan(folder, config(**said))
        assert "step_time" in str(raised.value)
        assert "\n" not in str(raised.value)

    def test_a_device_without_shipped_tables_says_how_to_get_some(self, folder: Path) -> None:
        said = config()
        del said["step_time"]["data"]
        with pytest.raises(ConfigError, match=r"no tables of h200 are shipped; .*profile run"):
            plan(folder, said)

    def test_a_missing_operator_names_table_device_and_gpus(self, folder: Path) -> None:
        made = tables()
        del made["collective"]
        written(folder / "alone", made)
        said = config(data="alone") | {"tensor_parallel": 2}
        with pytest.raises(
            ConfigError, match=r"h200 \(tensor_parallel 2\): no table has collective"
        ):
            plan(folder, said)
        assert "collective all_reduce of 2 GPUs" in notes_of(
            folder, config(data="alone", missing="roofline") | {"tensor_parallel": 2}
        )[0]  # fmt: skip

    def test_results_are_reused_only_while_the_tables_are_the_same(self, folder: Path) -> None:
        (experiment,) = plan(folder, config()).variants
        (before,) = fingerprints([experiment], folder)
        assert fingerprints([experiment], folder) == [before]
        rows = tables()["elementwise"]
        write_table(
            folder / "tables" / "h200", "elementwise", [*rows[1:], rows[0] | {"time_us": 9}]
        )
        assert fingerprints([experiment], folder) != [before]
        write_meta(folder / "tables" / "h200", Meta("h200", "made up again"))
        assert fingerprints([experiment], folder) != [before]


class TestStrict:
    def test_the_command_refuses_what_was_not_measured(self, folder: Path) -> None:
        plan(folder, config())
        command = ["run", str(folder / "c.yaml"), "--figures", "none", "--out", str(folder / "out")]
        runner = CliRunner()
        assert runner.invoke(app, command).exit_code == 0
        refused = runner.invoke(app, [*command, "--strict"])
        assert refused.exit_code == 2
        assert "is outside of the measured grid" in refused.output

    def test_so_it_does_where_only_some_variants_go_beyond(self, folder: Path) -> None:
        rules = {"lenient": "clamp", "strict": "error"}
        compare = [
            {"label": label, "step_time": config(outside=rule)["step_time"]}
            for label, rule in rules.items()
        ]
        plan(folder, without_step_time(config()) | {"compare": compare})
        command = ["run", str(folder / "c.yaml"), "--figures", "none", "--out", str(folder / "out")]

        refused = CliRunner().invoke(app, command)

        assert refused.exit_code == 2
        assert "strict: profile: h200 (tensor_parallel 1)" in refused.output

    def test_a_run_beyond_the_tables_is_warned_of_first(self, folder: Path) -> None:
        compare = [{"label": f"seed {n}", "seed": n} for n in range(2)]
        plan(folder, config() | {"compare": compare})
        command = ["run", str(folder / "c.yaml"), "--figures", "none", "--out", str(folder / "out")]

        lines = CliRunner().invoke(app, [*command, "--jobs", "1"]).output.splitlines()

        notes = [line for line in lines if line.startswith("- ")]
        assert all(line.startswith("- seed ") for line in notes[:2])
        assert all("% of steps and" in line for line in notes[:2])
        assert not any("where the nearest measured is" in line for line in notes)

    def test_it_is_written_into_the_resolved_config(self, folder: Path) -> None:
        (experiment,) = plan(folder, config(), strict=True).variants
        assert experiment.pools.colocated.step_time["strict"] is True

    def test_without_tables_it_says_that_it_changes_nothing(self, folder: Path) -> None:
        made = plan(folder, config() | {"step_time": "roofline"}, strict=True)
        assert made.notes == ("--strict: changes nothing: no variant has step times from tables",)


class TestEngines:
    @pytest.mark.parametrize("name", sorted(engines.presets()))
    def test_what_an_engine_says_about_step_times_is_known(self, name: str) -> None:
        said = engines.presets()[name].get("step_time", {})
        assert set(said) <= {"host", "cuda_graphs"}
        assert said.get("host", next(iter(HOSTS))) in HOSTS

    def test_it_brings_the_host_and_the_graphs_of_its_version(self, folder: Path) -> None:
        said = of_engine("vllm-0.6")
        (experiment,) = plan(folder, said).variants
        timed = experiment.pools.colocated.step_time
        assert timed["host"] == engines.presets()["vllm-0.6"]["step_time"]["host"]
        assert timed["cuda_graphs"] == "vllm-v0"

    def test_the_roofline_takes_the_host_only_and_a_closed_form_nothing(self, folder: Path) -> None:
        said = of_engine("vllm-0.6")
        (roofline,) = plan(folder, said | {"step_time": "roofline"}).variants
        assert set(roofline.pools.colocated.step_time) == {"model", "host"}
        linear = {"model": "linear", "base_s": 0.01}
        (closed,) = plan(folder, said | {"step_time": linear}).variants
        assert closed.pools.colocated.step_time == linear

    def test_what_the_config_says_goes_first(self, folder: Path) -> None:
        said = of_engine("vllm-0.6", host="vllm-v1", cuda_graphs="none")
        (experiment,) = plan(folder, said).variants
        timed = experiment.pools.colocated.step_time
        assert (timed["host"], timed["cuda_graphs"]) == ("vllm-v1", "none")


class TestDefault:
    def test_without_shipped_tables_it_is_the_roofline(self, folder: Path) -> None:
        (experiment,) = plan(folder, without_step_time(config())).variants
        assert experiment.pools.colocated.step_time == {"model": "roofline"}
        (engine,) = plan(folder, without_step_time(of_engine("vllm-0.6"))).variants
        assert set(engine.pools.colocated.step_time) == {"model", "host"}

    def test_shipped_tables_of_the_device_come_first_and_are_told(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(step_times, "DATA", folder / "tables")
        (experiment,) = plan(folder, without_step_time(of_engine("vllm-0.6"))).variants
        timed = experiment.pools.colocated.step_time
        assert timed["model"] == "profile"
        assert set(timed) == {"model", "host", "cuda_graphs"}
        assert any("come from the shipped tables of h200" in note for note in experiment.notes)
        said = without_step_time(config()) | {"device": "h100-sxm"}
        (elsewhere,) = plan(folder, said).variants
        assert elsewhere.pools.colocated.step_time == {"model": "roofline"}

    def test_tables_that_lack_an_operator_are_told_and_not_used(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(step_times, "DATA", folder / "tables")
        said = without_step_time(config()) | {"model": "llama-3.1-8b"}
        (experiment,) = plan(folder, said).variants
        assert experiment.pools.colocated.step_time == {"model": "roofline"}
        (note,) = [note for note in experiment.notes if "Tables of h200" in note]
        assert "not all that llama-3.1-8b needs" in note
        assert "step times are the roofline's" in note


def test_editors_are_told_the_options_and_what_they_mean() -> None:
    choices = json_schema()["properties"]["step_time"]["anyOf"]
    (profile,) = [
        c for c in choices if c.get("properties", {}).get("model") == {"const": "profile"}
    ]
    assert set(profile["properties"]) >= {"data", "outside", "missing", "strict", "host", "noise"}
    unsaid = [k for k, v in profile["properties"].items() if k not in ("model", "host")
              and "description" not in v]  # fmt: skip
    assert not unsaid
