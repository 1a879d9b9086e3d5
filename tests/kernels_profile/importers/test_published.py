"""Published files of aiconfigurator and LLMServingSim, in their own layout with invented times."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import yaml

from kernels_profile.importers import import_profile, read_profile
from kernels_profile.importers.naming import Naming
from kernels_profile.table import DataSet, Table
from sim.errors import ConfigError
from tests.kernels_profile.importers.test_reading import POINTER

START = "VLLM,0.19.0,NVIDIA H100 80GB HBM3"
ATTENTION = (
    "framework,version,device,op_name,kernel_source,batch_size,isl,num_heads,num_key_value_heads,"
    "head_dim,beam_width,attn_dtype,kv_cache_dtype,step,latency"
)
"""Columns of the attention tables of 0.19."""


def table(folder: Path, name: str) -> Table:
    found = DataSet(folder).table(name)
    assert found is not None
    return found


def put(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


# --- aiconfigurator


def aiconfigurator(root: Path, version: str = "0.19.0") -> Path:
    """One system, one version of vLLM; the tables' columns are those of 0.19."""
    folder = root / "systems" / "data" / "h100_sxm" / "vllm" / version
    put(
        folder / "gemm_perf.txt",
        "framework,version,device,op_name,kernel_source,gemm_dtype,m,n,k,latency",
        f"{START},gemm,vllm_default,bfloat16,9,4096,1024,0.0125",
        f"{START},gemm,vllm_default,fp8_block,9,4096,1024,0.0075",
    )
    put(
        folder / "context_attention_perf.txt",
        ATTENTION,
        f"{START},context_attention,fa,2,512,8,1,128,1,bfloat16,fp8,0,0.02",
        f"{START},context_attention,fa,2,512,8,1,128,1,fp8,fp8,0,0.01",
        f"{START},context_attention,other,2,512,8,1,128,1,bfloat16,fp8,0,0.9",
        f"{START},context_attention,fa,1,512,8,1,128,1,bfloat16,bfloat16,0,0.015",
    )
    put(
        folder / "generation_attention_perf.txt",
        ATTENTION,
        f"{START},generation_attention,fa,16,1,8,1,64,1,bfloat16,bfloat16,4095,0.044",
    )
    put(
        folder / "custom_allreduce_perf.txt",
        "framework,version,device,op_name,kernel_source,allreduce_dtype,num_gpus,message_size,"
        "latency,backend",
        f"{START},all_reduce,vLLM_custom_graph,bfloat16,2,128,0.0044,vllm_graph",
        f"{START},all_reduce,vLLM_custom_eager,bfloat16,2,128,0.0228,vllm_eager",
    )
    put(
        root / "systems" / "data" / "h100_sxm" / "nccl" / "2.27.3" / "nccl_perf.txt",
        "nccl_dtype,num_gpus,message_size,kernel_source,op_name,latency",
        "half,4,256,NCCL,alltoall,0.0085",
        "int8,4,256,NCCL,alltoall,0.0075",
    )
    put(
        folder / "moe_perf.txt",
        "framework,version,device,op_name,kernel_source,moe_dtype,num_tokens,hidden_size,"
        "inter_size,topk,num_experts,moe_tp_size,moe_ep_size,distribution,latency",
        f"{START},moe,fused,bfloat16,3,4096,14336,2,8,2,1,balanced,0.5",
        f"{START},moe,fused,bfloat16,3,4096,14336,2,8,2,1,power_law_1.2,0.4",
        f"{START},moe,fused,bfloat16,3,4096,14336,2,8,1,4,balanced,0.3",
    )
    return root


def test_aiconfigurators_own_files_are_read_in_microseconds(tmp_path: Path) -> None:
    source = aiconfigurator(tmp_path / "aic")
    [(folder, data)] = import_profile("aiconfigurator", source, tmp_path / "out")

    assert folder.name == "h100-sxm"
    linear = table(folder, "linear")
    assert linear.distinct("dtype", "n", "k", "tokens", "time_us") == [
        ("bf16", 4096, 1024, 9, 12.5)
    ]
    heads = ("kv_dtype", "heads", "kv_heads", "head_dim", "batch")
    prefill = table(folder, "attention_prefill")
    assert prefill.distinct(*heads, "tokens", "history", "time_us") == [
        ("bf16", 8, 1, 128, 1, 512, 0, 15.0),
        ("fp8", 8, 1, 128, 2, 512, 0, 20.0),
    ]
    decode = table(folder, "attention_decode")
    assert decode.distinct(*heads, "context", "time_us") == [("bf16", 8, 1, 64, 16, 4096, 44.0)]
    collective = table(folder, "collective")
    assert collective.distinct("op", "backend", "gpus", "bytes", "time_us") == [
        ("all_reduce", "vllm_eager", 2, 256, 22.8),
        ("all_reduce", "vllm_graph", 2, 256, 4.4),
        ("all_to_all", "nccl", 4, 512, 8.5),
    ]
    moe = table(folder, "moe")
    assert moe.distinct("experts", "top_k", "hidden", "intermediate", "tokens", "touched") == [
        (8, 2, 4096, 7168, 3, 6)
    ]
    assert data.version == "0.19.0"
    notes = " ".join(data.notes)
    for left_out in ("fp8_block", "other are left out", "8-bit products", "uneven distributions"):
        assert left_out in notes
    assert "NCCL 2.27.3" in notes


def test_the_newest_version_of_each_table_is_taken_and_a_version_may_be_chosen(
    tmp_path: Path,
) -> None:
    source = aiconfigurator(tmp_path / "aic")
    newer = source / "systems" / "data" / "h100_sxm" / "attention" / "vllm" / "0.24.0"
    put(
        newer / "generation_attention_perf.csv",
        ATTENTION,
        f"{START},generation_attention,fa,16,1,8,1,64,1,bfloat16,bfloat16,4095,0.033",
    )
    [data] = read_profile("aiconfigurator", source, Naming())
    assert data.tables["attention_decode"].time_us.tolist() == [33.0]
    assert data.version == "0.19.0, 0.24.0"
    assert any("generation_attention_perf is of vllm 0.24.0" in note for note in data.notes)

    older = source / "systems" / "data" / "h100_sxm" / "vllm" / "0.19.0"
    [data] = read_profile("aiconfigurator", older, Naming())
    assert data.tables["attention_decode"].time_us.tolist() == [44.0]
    assert data.version == "0.19.0"


def test_parquet_is_read_like_the_text_of_older_versions(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "h200_sxm" / "gemm" / "vllm" / "0.24.0"
    folder.mkdir(parents=True)
    rows = {"gemm_dtype": ["fp8"], "m": [1], "n": [256], "k": [512], "latency": [0.002]}
    pd.DataFrame(rows).to_parquet(folder / "gemm_perf.parquet")
    [data] = read_profile("aiconfigurator", tmp_path, Naming())
    assert data.device == "h200"
    assert data.tables["linear"].time_us.tolist() == [2.0]


def test_a_pointer_in_a_checkout_without_lfs_is_named(tmp_path: Path) -> None:
    source = aiconfigurator(tmp_path / "aic")
    file = source / "systems" / "data" / "h100_sxm" / "vllm" / "0.19.0" / "gemm_perf.txt"
    file.write_text(POINTER)
    with pytest.raises(ConfigError, match=r"gemm_perf\.txt: is a Git LFS pointer.*git lfs pull"):
        read_profile("aiconfigurator", source, Naming())


def test_other_engines_and_systems_are_told_apart(tmp_path: Path) -> None:
    source = aiconfigurator(tmp_path / "aic")
    sglang = source / "systems" / "data" / "gb200" / "sglang" / "0.5.9" / "gemm_perf.txt"
    put(sglang, "gemm_dtype,m,n,k,latency", "fp8,1,256,512,0.003")
    with pytest.raises(ConfigError, match="device gb200 has no data sheet"):
        read_profile("aiconfigurator", source, Naming(skip=["h100_sxm"]), "sglang")
    named = Naming({"gb200": "b200"}, skip=["h100_sxm"])
    [data] = read_profile("aiconfigurator", source, named, "sglang")
    assert (data.device, data.engine, data.version) == ("b200", "sglang", "0.5.9")
    with pytest.raises(ConfigError, match="--engine: sglan is not known; did you mean sglang"):
        read_profile("aiconfigurator", source, Naming(), "sglan")
    with pytest.raises(ConfigError, match="has no table of trtllm"):
        read_profile("aiconfigurator", sglang.parent, Naming(), "trtllm")


def test_one_file_is_of_the_card_that_it_names(tmp_path: Path) -> None:
    columns = "framework,version,device,op_name,kernel_source,gemm_dtype,m,n,k,latency"
    row = "VLLM,0.20.0,NVIDIA B200,gemm,x,bfloat16,1,256,512,0.003"
    file = put(tmp_path / "gemm_perf.txt", columns, row)
    [data] = read_profile("aiconfigurator", file, Naming())
    assert (data.device, data.version) == ("b200", "0.20.0")
    put(file, "gemm_dtype,m,n,k,latency", "bfloat16,1,256,512,0.003")
    with pytest.raises(ConfigError, match="does not say which system it is of; give --device"):
        read_profile("aiconfigurator", file, Naming())
    [data] = read_profile("aiconfigurator", file, Naming(of="h200"))
    assert data.device == "h200"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (",n,k,latency", ",nn,k,latency", "has no column n; did you mean nn"),
        ("0.0125", "-1", "line 2: latency is -1.*not a time above 0"),
        ("9,4096,1024", "9,4096,many", "line 2: k is many, not a whole number"),
    ],
)
def test_a_damaged_table_is_named(tmp_path: Path, old: str, new: str, said: str) -> None:
    source = aiconfigurator(tmp_path / "aic")
    file = source / "systems" / "data" / "h100_sxm" / "vllm" / "0.19.0" / "gemm_perf.txt"
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(ConfigError, match=said):
        read_profile("aiconfigurator", source, Naming())


def test_an_empty_folder_says_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no table of vllm.*gemm_perf\.txt"):
        read_profile("aiconfigurator", tmp_path, Naming())


# --- LLMServingSim

META = {
    "vllm_version": "0.19.0", "gpu": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
    "hardware": "RTXPRO6000", "model": "Qwen/Qwen3-30B-A3B-Instruct-2507", "variant": "bf16-kvfp8",
}  # fmt: skip
LAYERS = (
    "embedding",
    "final_layernorm",
    "layernorm",
    "o_proj",
    "qk_norm",
    "qkv_proj",
    "rotary_emb",
)


def llmservingsim(root: Path, **meta: str) -> Path:
    """One model with experts at tp 1; the columns are those of the docs of October 2026."""
    said = {**META, **meta}
    variant = root / "perf" / said["hardware"] / said["model"] / said["variant"]
    dense = [f"{name},{t},{i + t}" for i, name in enumerate(LAYERS, 2) for t in (1, 8)]
    put(variant / "tp1" / "dense.csv", "layer,tokens,time_us", *dense)
    put(
        variant / "tp1" / "per_sequence.csv",
        "layer,sequences,time_us",
        "lm_head,1,1075.13",
        "sampler,1,25.9",
    )
    put(
        variant / "tp1" / "attention.csv",
        "layer,prefill_chunk,prefill_key,n_decode,kv_decode,decode_q_len,time_us",
        "attention,0,0.0,1,128,1,7",
        "attention,0,0.0,2,128,1,8",
        "attention,0,0.0,2,128,3,99",  # speculative: not imported
        "attention,64,32.0,0,0,1,9",
        "attention,64,160.0,0,0,1,10",
        "attention,64,16.0,0,0,1,11",  # two prompts in one launch: not imported
        "attention,64,160.0,2,128,1,12",
    )
    put(
        variant / "tp1" / "skew.csv",
        "layer,regime,n,nb,ratio,skew,pc,kp,kvs,kv_big,kv_mean,t_mean_us,t_max_us,t_skew_us,alpha",
        "attention,pure,2,1,0.5,4.0,0,0,128,512,320,52.1,56.2,53.3,0.2945",
        "attention,mixed,2,1,0.5,4.0,16,0,128,512,320,52.2,74.9,74.2,0.9662",
    )
    moe = ("ep,tokens,activated_experts,time_us", "1,1,8,48.2", "2,1,4,36.1")
    put(variant / "tp1" / "moe.csv", *moe)
    put(variant / "meta.yaml", yaml.safe_dump(said))
    samples = [
        {"collective": "all_reduce", "bytes": 4096, "us": 13.0, "us_graphed": 12.7},
        {"collective": "all_gather", "bytes": 4096, "us": 10.5},
    ]
    hardware = {"measured": {"interconnect": {"npus": 2, "samples": samples}}}
    put(root / "perf" / said["hardware"] / "hardware.yaml", yaml.safe_dump(hardware))
    return variant


def test_llmservingsims_own_folders_are_read_with_experts_skew_and_links(tmp_path: Path) -> None:
    llmservingsim(tmp_path / "lss")
    [(folder, data)] = import_profile("llmservingsim", tmp_path / "lss", tmp_path / "out")

    assert folder.name == "rtx-pro-6000"
    linear = table(folder, "linear")
    assert linear.distinct("dtype", "n", "k") == [("bf16", 2048, 4096), ("bf16", 5120, 2048)]
    other = table(folder, "elementwise").distinct("op", "width")
    assert other == [("embedding", 2048), ("qk_norm", 4608), ("rms_norm", 2048), ("rotary", 5120)]
    heads = ("kv_dtype", "heads", "kv_heads", "head_dim")
    prefill = table(folder, "attention_prefill")
    assert prefill.distinct(*heads, "tokens", "history", "time_us") == [
        ("fp8", 32, 4, 128, 64, 0, 9), ("fp8", 32, 4, 128, 64, 128, 10),
    ]  # fmt: skip
    decode = table(folder, "attention_decode")
    assert decode.distinct("batch", "context", "skew", "time_us") == [
        (1, 128, 0, 7), (2, 128, 0, 8), (2, 320, 0.6, 53.3),
    ]  # fmt: skip
    mixed = table(folder, "attention_mixed")
    assert mixed.distinct("tokens", "history", "decodes", "context") == [(64, 128, 2, 128)]
    moe = table(folder, "moe")
    assert moe.distinct("experts", "top_k", "hidden", "intermediate", "tokens", "touched") == [
        (128, 8, 2048, 768, 1, 8)
    ]
    collective = table(folder, "collective")
    assert collective.distinct("op", "backend", "gpus", "bytes", "time_us") == [
        ("all_gather", "nccl", 2, 8192, 10.5), ("all_reduce", "nccl", 2, 4096, 12.7),
    ]  # fmt: skip
    assert DataSet(folder).meta.more["gpu"]["name"].startswith("NVIDIA RTX PRO 6000")
    notes = " ".join(data.notes)
    assert "1 launches of several prompts are left out" in notes
    assert "expert parallelism" in notes


def test_older_attention_tables_have_the_history_itself(tmp_path: Path) -> None:
    variant = llmservingsim(tmp_path / "lss")
    rows = ("0,0,2,128,8", "64,128,0,0,10")
    columns = "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us"
    put(variant / "tp1" / "attention.csv", columns, *rows)
    [data] = read_profile("llmservingsim", variant / "tp1", Naming())
    assert data.tables["attention_prefill"].history.tolist() == [128]


def test_unequal_contexts_of_some_batches_only_are_left_out(tmp_path: Path) -> None:
    variant = llmservingsim(tmp_path / "lss")
    attention = variant / "tp1" / "attention.csv"
    attention.write_text(attention.read_text() + "attention,0,0.0,4,128,1,9\n")
    [data] = read_profile("llmservingsim", tmp_path / "lss", Naming())
    assert set(data.tables["attention_decode"]["skew"]) == {0}
    assert any("do not cover all batches" in note for note in data.notes)


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        ("tp1/dense.csv", r"dense\.csv: no such file"),
        ("tp1/attention.csv", r"attention\.csv: no such file"),
        ("meta.yaml", r"meta\.yaml: no such file"),
    ],
)
def test_a_partial_profile_names_the_file_that_is_missing(
    tmp_path: Path, lost: str, said: str
) -> None:
    variant = llmservingsim(tmp_path / "lss")
    (variant / lost).unlink()
    with pytest.raises(ConfigError, match=said):
        read_profile("llmservingsim", tmp_path / "lss", Naming())


@pytest.mark.parametrize(
    ("meta", "said"),
    [
        (
            {"model": "Qwen/Qwen3-33B-A3C"},
            "model Qwen/Qwen3-33B-A3C has no data sheet; the nearest",
        ),
        ({"hardware": "TPU-v6e-1"}, "device TPU-v6e-1 has no data sheet"),
        ({"variant": "nvfp4"}, "variant nvfp4 is not known"),
    ],
)
def test_a_name_that_is_not_known_is_said(tmp_path: Path, meta: dict[str, str], said: str) -> None:
    llmservingsim(tmp_path / "lss", **meta)
    with pytest.raises(ConfigError, match=said):
        read_profile("llmservingsim", tmp_path / "lss", Naming())


def test_a_meta_yaml_that_lacks_a_key_is_said(tmp_path: Path) -> None:
    variant = llmservingsim(tmp_path / "lss")
    put(variant / "meta.yaml", "hardware: RTXPRO6000")
    with pytest.raises(ConfigError, match="lacks model, variant, vllm_version"):
        read_profile("llmservingsim", tmp_path / "lss", Naming())


def test_a_folder_without_profiles_says_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no tp<N> folder"):
        read_profile("llmservingsim", tmp_path, Naming())


# --- LLMServingSim's first profiler


def first_profiler(root: Path) -> Path:
    """One model at tp 2 with invented times."""
    folder = root / "perf_models" / "A6000" / "meta-llama" / "Llama-3.1-8B" / "tp2"
    layers = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "attn")
    layers += ("embedding", "input_layernorm", "post_layernorm", "rope", "act_fn", "lm_head")
    rows = [f"{name},8,0,2,{1000 * i}" for i, name in enumerate(layers, 1)]
    put(folder / "layers.csv", "layer_name,input,kv_cache,tp_size,latency(ns)", *rows)
    columns = "time_stats.attn_prefill.median,time_stats.attn_decode.median,n_q_head,batch_size"
    sizes = "prefill_chunk_size,kv_cache_size,is_prefill"
    rows = ["0.05,,32,1,64,64,True", ",0.0125,32,4,0,32,False"]
    put(folder / "attention.csv", f"{columns},{sizes}", *rows)
    return root


def test_products_of_the_first_profiler_are_added_up(tmp_path: Path) -> None:
    source = first_profiler(tmp_path / "old")
    [(folder, data)] = import_profile("llmservingsim-v0", source, tmp_path / "out")

    assert folder.name == "a6000"
    assert table(folder, "linear").distinct("n", "k", "tokens", "time_us") == [
        (3072, 4096, 8, 6), (4096, 2048, 8, 4), (4096, 7168, 8, 7), (14336, 4096, 8, 11),
    ]  # fmt: skip
    assert table(folder, "elementwise").distinct("op", "width", "time_us") == [
        ("embedding", 4096, 9), ("rms_norm", 4096, 10.5), ("rotary", 3072, 12),
        ("silu_mul", 7168, 13),
    ]  # fmt: skip
    head = table(folder, "per_sequence")
    assert head.distinct("op", "vocab", "sequences", "time_us") == [("lm_head", 64128, 8, 14)]
    decode = table(folder, "attention_decode")
    assert decode.distinct("heads", "kv_heads", "batch", "context", "time_us") == [
        (16, 4, 4, 33, 12.5)
    ]
    assert "attention_prefill" not in data.tables
    assert any("prefill attention and experts are left out" in note for note in data.notes)


def test_the_first_profilers_tidy_tables_are_read(shared: Path) -> None:
    others = ["RTX3090", "Phi-mini-MoE-instruct", "Mixtral-8x7B-v0.1"]
    source = shared / "measured" / "llmservingsim"
    found = read_profile("llmservingsim-v0", source, Naming(skip=others))
    assert [data.device for data in found] == ["a6000", "h100-sxm"]
    for data in found:
        assert {"linear", "elementwise", "per_sequence", "attention_decode"} == set(data.tables)


def test_a_folder_without_the_first_profilers_files_says_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no perf_models.*layers\.csv"):
        read_profile("llmservingsim-v0", tmp_path, Naming())
    put(tmp_path / "layers.csv", "a")
    with pytest.raises(ConfigError, match="expected it at perf_models"):
        read_profile("llmservingsim-v0", tmp_path, Naming())
