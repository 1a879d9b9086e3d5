"""Tidy tables of aiconfigurator and LLMServingSim: shapes, units and names arrive as ours."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from experiments.cli import app
from kernels_profile.importers import import_profile, read_profile
from kernels_profile.importers.naming import Naming
from kernels_profile.table import DataSet, Table, find_data_sets
from sim.errors import ConfigError


def table(folder: Path, name: str) -> Table:
    found = DataSet(folder).table(name)
    assert found is not None
    return found


def aiconfigurator(folder: Path) -> Path:
    """Tidy tables of one system, with invented times."""
    folder.mkdir()
    pd.DataFrame(
        {"dtype": ["bfloat16", "bfloat16", "bfloat16", "nvfp4"], "m": [1, 8, 8, 8],
         "n": 512, "k": 256, "time_us": [2.5, 4.0, 6.0, 1.0]}
    ).to_parquet(folder / "gemm_h100_sxm.parquet")  # fmt: skip
    heads = {"kv_dtype": "fp8", "batch": 2, "n_heads": 4, "n_kv_heads": 1}
    pd.DataFrame(
        {**heads, "q_len": [16, 16], "kv_len": [16, 48], "time_us": [9.0, 9.5]}
    ).to_parquet(folder / "attention_context_h100_sxm.parquet")
    pd.DataFrame({**heads, "q_len": 1, "kv_len": [2, 4], "time_us": [7.0, 7.5]}).to_parquet(
        folder / "attention_generation_h100_sxm.parquet"
    )
    (folder / "collectives.csv").write_text(
        "system,backend,op,n_gpus,bytes,time_us\n"
        "h100_sxm,nccl,alltoall,2,512,8.5\nh100_sxm,vllm_graph,all_reduce,2,512,4.5\n"
        "a100_sxm,nccl,all_reduce,2,512,9.5\n"
    )
    return folder


def llmservingsim(folder: Path) -> Path:
    """Tidy tables of Llama-3.1-8B at tp 2, with invented times."""
    folder.mkdir()
    at = "RTX4090,Llama-3.1-8B,2"
    layers = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj", "embedding", "layernorm")
    dense = [f"{at},{name},8,{i + 1}.5" for i, name in enumerate(layers)]
    dense += [f"{at},{x},8,3.5" for x in ("rotary_emb", "act_fn", "final_layernorm")]
    write(folder / "ops_dense.csv", "layer,tokens", dense)
    rows = [f"{at},lm_head,4,99", f"{at},sampler,4,11"]
    write(folder / "ops_per_sequence.csv", "layer,sequences", rows)
    pd.DataFrame(
        {"device": "RTX4090", "model": "Llama-3.1-8B", "tp": 2, "prefill_chunk": [16, 0, 16],
         "kv_prefill": [32, 0, 32], "n_decode": [0, 4, 4], "kv_decode": [0, 64, 64],
         "time_us": [5.0, 6.0, 7.0]}
    ).to_parquet(folder / "ops_attention.parquet")  # fmt: skip
    return folder


def write(path: Path, columns: str, rows: list[str]) -> None:
    path.write_text("\n".join([f"device,model,tp,{columns},time_us", *rows]) + "\n")


def test_aiconfigurators_tables_become_a_data_set_of_the_system(tmp_path: Path) -> None:
    source = aiconfigurator(tmp_path / "aic")
    [(folder, data)] = import_profile(
        "aiconfigurator", source, tmp_path / "out", revision="abc1234"
    )

    assert folder == tmp_path / "out" / "h100-sxm"
    linear = table(folder, "linear")
    assert linear.distinct("dtype", "n", "k") == [("bf16", 512, 256)]
    assert linear["tokens"].tolist() == [1, 8]
    assert linear.time_us.tolist() == [2.5, 5.0]  # the median of 4 and 6
    prefill = table(folder, "attention_prefill")
    assert prefill.distinct("kv_dtype", "heads", "kv_heads", "head_dim") == [("fp8", 4, 1, 128)]
    assert prefill["history"].tolist() == [0, 32]
    decode = table(folder, "attention_decode")
    assert decode["context"].tolist() == [2, 4]
    assert decode["skew"].tolist() == [0, 0]
    collective = table(folder, "collective")
    assert collective.distinct("op", "backend") == [
        ("all_reduce", "vllm_graph"),
        ("all_to_all", "nccl"),
    ]
    assert any("nvfp4" in note for note in data.notes)
    meta = DataSet(folder).meta
    assert (meta.device, meta.measured) == ("h100-sxm", "imported")
    said = {key: meta.more[key] for key in ("engine", "version", "licence", "revision")}
    assert said == {
        "engine": "vllm", "version": "0.19.0", "licence": "Apache-2.0", "revision": "abc1234",
    }  # fmt: skip
    assert "aiconfigurator" in meta.more["repository"]


def test_llmservingsims_layers_get_the_shapes_of_one_gpus_shard(tmp_path: Path) -> None:
    source = llmservingsim(tmp_path / "lss")
    [(folder, _)] = import_profile("llmservingsim", source, tmp_path / "out")

    linear = table(folder, "linear")
    assert linear.distinct("n", "k", "time_us") == [
        (3072, 4096, 1.5), (4096, 2048, 2.5), (4096, 7168, 4.5), (14336, 4096, 3.5),
    ]  # fmt: skip
    other = table(folder, "elementwise")
    assert other.distinct("op", "width", "time_us") == [
        ("embedding", 4096, 5.5), ("rms_norm", 4096, 6.5), ("rotary", 3072, 3.5),
        ("silu_mul", 7168, 3.5),
    ]  # fmt: skip
    sequences = table(folder, "per_sequence")
    assert sequences.distinct("op", "vocab", "hidden", "sequences") == [
        ("lm_head", 64128, 4096, 4), ("sampler", 64128, 4096, 4),
    ]  # fmt: skip


def test_attention_is_split_by_what_is_in_the_launch(tmp_path: Path) -> None:
    source = llmservingsim(tmp_path / "lss")
    [(folder, _)] = import_profile("llmservingsim", source, tmp_path / "out")

    heads = ("heads", "kv_heads", "head_dim")
    prefill = table(folder, "attention_prefill")
    assert prefill.distinct(*heads, "batch", "tokens", "history", "time_us") == [
        (16, 4, 128, 1, 16, 32, 5.0)
    ]
    decode = table(folder, "attention_decode")
    assert decode.distinct(*heads, "batch", "context", "time_us") == [(16, 4, 128, 4, 64, 6.0)]
    mixed = table(folder, "attention_mixed")
    assert mixed.distinct("tokens", "history", "decodes", "context", "time_us") == [
        (16, 32, 4, 64, 7.0)
    ]


def test_the_same_import_may_be_repeated_but_not_mixed_with_another(tmp_path: Path) -> None:
    source, out = llmservingsim(tmp_path / "lss"), tmp_path / "out"
    import_profile("llmservingsim", source, out)
    import_profile("llmservingsim", source, out)
    other = aiconfigurator(tmp_path / "aic")
    with pytest.raises(ConfigError, match="holds another data set already"):
        import_profile("aiconfigurator", other, out, names={"h100_sxm": "rtx-4090"})


@pytest.mark.parametrize("lost", ["ops_per_sequence.csv", "ops_attention.parquet"])
def test_a_partial_profile_is_refused_with_the_file_that_is_missing(
    tmp_path: Path, lost: str
) -> None:
    source = llmservingsim(tmp_path / "lss")
    (source / lost).unlink()
    with pytest.raises(ConfigError, match=f"{lost}: no such file"):
        read_profile("llmservingsim", source, Naming())


def test_an_unknown_layer_is_named_with_the_nearest(tmp_path: Path) -> None:
    source = llmservingsim(tmp_path / "lss")
    dense = source / "ops_dense.csv"
    dense.write_text(dense.read_text().replace("qkv_proj", "qkv_pro"))
    with pytest.raises(ConfigError, match="layer qkv_pro is not known; did you mean qkv_proj"):
        read_profile("llmservingsim", source, Naming())


def test_skipping_all_there_is_says_so(tmp_path: Path) -> None:
    source = llmservingsim(tmp_path / "lss")
    with pytest.raises(ConfigError, match="--skip leaves out RTX4090"):
        read_profile("llmservingsim", source, Naming(skip=["RTX4090"]))


def test_the_command_says_what_came_and_what_is_lacking(tmp_path: Path) -> None:
    source, out = aiconfigurator(tmp_path / "aic"), tmp_path / "out"
    arguments = ["profile", "import", str(source), "--out", str(out), "--from"]
    done = CliRunner().invoke(app, [*arguments, "aiconfigurator"])

    assert done.exit_code == 0, done.output
    assert "linear: 2 points, tokens 1 to 8" in done.stdout
    assert "lacks elementwise, per_sequence" in done.stdout
    assert [d.meta.device for d in find_data_sets([out], "h100-sxm")] == ["h100-sxm"]

    wrong = CliRunner().invoke(app, [*arguments, "aiconfigurater"])
    assert wrong.exit_code == 2
    assert wrong.stderr.strip() == (
        "phasewise: --from: aiconfigurater is no importer; did you mean aiconfigurator?"
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--name", "h100_sxm"), "--name h100_sxm: expected the source's name = a sheet of ours"),
        (("--name", "h100_sxm=h10"), "device h100_sxm (taken as h10) has no data sheet"),
        (("--engine", "vlm"), "--engine: llmservingsim publishes one engine's kernels"),
    ],
)
def test_a_wrong_option_is_one_line(tmp_path: Path, options: tuple[str, ...], said: str) -> None:
    project = "llmservingsim" if "--engine" in options else "aiconfigurator"
    source = aiconfigurator(tmp_path / "aic")
    arguments = ["profile", "import", str(source), "--from", project, "--out", str(tmp_path / "o")]
    done = CliRunner().invoke(app, [*arguments, *options])

    assert done.exit_code == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "o").exists()


def test_tidy_tables_are_of_one_engine(tmp_path: Path) -> None:
    source = aiconfigurator(tmp_path / "aic")
    with pytest.raises(ConfigError, match="are of vllm only"):
        read_profile("aiconfigurator", source, Naming(), "sglang")


def test_a_path_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="none: no such file or folder"):
        read_profile("vidur", tmp_path / "none", Naming())


def test_the_real_tables_of_the_rtx_4090_are_complete_for_a_dense_model(shared: Path) -> None:
    source = shared / "measured" / "llmservingsim"
    others = ["RTXPRO6000", "Qwen3-30B-A3B-Instruct-2507"]
    [data] = read_profile("llmservingsim", source, Naming(skip=others))

    assert {"linear", "attention_prefill", "attention_decode", "attention_mixed"} < set(data.tables)
    decode = data.tables["attention_decode"]
    assert decode.groupby("batch").time_us.apply(lambda us: us.is_monotonic_increasing).all()
    assert len(data.tables["attention_mixed"]) == 8448


def test_no_importer_merges_devices(tmp_path: Path) -> None:
    lsim = llmservingsim(tmp_path / "lsim")
    dense = lsim / "ops_dense.csv"
    dense.write_text(dense.read_text() + "RTXPRO6000,Llama-3.1-8B,2,o_proj,8,1\n")
    with pytest.raises(ConfigError, match=r"several devices \(RTX4090, RTXPRO6000\)"):
        read_profile("llmservingsim", lsim, Naming(of="rtx-4090"))
    [data] = read_profile("llmservingsim", lsim, Naming(of="rtx-4090", skip=["RTXPRO6000"]))
    assert (data.tables["linear"].time_us != 1).all()
    aic = aiconfigurator(tmp_path / "aic")
    for file in list(aic.glob("*h100_sxm.parquet")):
        (aic / file.name.replace("h100", "h200")).write_bytes(file.read_bytes())
    with pytest.raises(ConfigError, match=r"several devices \(h100_sxm, h200_sxm\)"):
        read_profile("aiconfigurator", aic, Naming(of="h200"))


def test_a_published_table_of_two_gpus_is_not_taken_as_one(tmp_path: Path) -> None:
    (tmp_path / "gemm_perf.csv").write_text(
        "device,gemm_dtype,m,n,k,latency\nNVIDIA H200,bfloat16,1,8,8,1\n"
        "NVIDIA B200,bfloat16,1,8,8,2\n"
    )
    with pytest.raises(ConfigError, match=r"several devices \(NVIDIA B200, NVIDIA H200\)"):
        read_profile("aiconfigurator", tmp_path / "gemm_perf.csv", Naming(of="h200"))


def shown(value: str) -> str:
    """A pattern of a cell as a message has it."""
    return {"": "nan", "1e30": r"1e\+30"}.get(value, value)


@pytest.mark.parametrize(
    ("file", "column"),
    [("ops_dense.csv", "tokens"), ("ops_dense.csv", "time_us"), ("ops_per_sequence.csv", "tp"),
     ("ops_per_sequence.csv", "sequences")],
)  # fmt: skip
@pytest.mark.parametrize("value", ["abc", "-4", "", "0", "1e30"])
def test_a_wrong_cell_is_named(tmp_path: Path, file: str, column: str, value: str) -> None:
    path = llmservingsim(tmp_path / "lsim") / file
    lines = [row.split(",") for row in path.read_text().splitlines()]
    lines[2][lines[0].index(column)] = value
    path.write_text("\n".join(map(",".join, lines)) + "\n")
    with pytest.raises(ConfigError, match=rf"{file}: line 3: {column} is {shown(value)}"):
        read_profile("llmservingsim", path.parent, Naming())


@pytest.mark.parametrize("column", ["tp", "tokens", "time_us"])
@pytest.mark.parametrize("value", ["abc", "-4", ""])
def test_a_wrong_cell_of_the_first_profiler_is_named(
    tmp_path: Path, column: str, value: str
) -> None:
    row = {"device": "H100", "model": "Llama-3.1-8B", "tp": "1", "layer": "o_proj", "tokens": "8",
           "time_us": "5"}  # fmt: skip
    cells = row | {column: value}
    text = "\n".join(",".join(each) for each in (row, row.values(), cells.values()))
    (tmp_path / "ops_v0_layers.csv").write_text(text + "\n")
    said = rf"ops_v0_layers\.csv: line 3: {column} is {shown(value)}"
    with pytest.raises(ConfigError, match=said):
        read_profile("llmservingsim-v0", tmp_path, Naming())


@pytest.mark.parametrize("column", ["m", "n", "k", "latency"])
@pytest.mark.parametrize("value", ["abc", "-4", ""])
def test_a_wrong_cell_of_a_published_table_is_named(
    tmp_path: Path, column: str, value: str
) -> None:
    row = {"gemm_dtype": "bfloat16", "m": "1", "n": "8", "k": "8", "latency": "1"}
    cells = row | {column: value}
    text = "\n".join(",".join(each) for each in (row, row.values(), cells.values()))
    (tmp_path / "gemm_perf.csv").write_text(text + "\n")
    said = rf"gemm_perf\.csv: line 3: {column} is {shown(value)}"
    with pytest.raises(ConfigError, match=said):
        read_profile("aiconfigurator", tmp_path / "gemm_perf.csv", Naming(of="h200"))
