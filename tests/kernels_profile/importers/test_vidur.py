"""Vidur's published and tidy tables; all times here are invented."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels_profile.importers import import_profile, read_profile
from kernels_profile.importers.naming import Naming
from kernels_profile.table import DataSet, Table
from sim.errors import ConfigError

OPERATORS = (
    "emb", "input_layernorm", "attn_pre_proj", "attn_rope", "attn_post_proj",
    "post_attention_layernorm", "mlp_up_proj", "mlp_act", "mlp_down_proj", "add",
)  # fmt: skip
"""In the order of the published columns; operator i takes (i + 1) / 100 ms a token here."""

SIZES = "n_head,n_kv_head,n_embd,n_expanded_embd,vocab_size,use_gated_mlp,num_tokens"


def columns(name: str) -> list[str]:
    return [f"time_stats.{name}.{x}" for x in ("min", "max", "mean", "median", "std")]


def stats(ms: float) -> list[str]:
    return [f"{x:g}" for x in (ms, ms, ms, ms, ms / 10)]


def mlp(path: Path, tp: int = 2, gated: bool = True) -> Path:
    head = [c for name in OPERATORS for c in columns(name)]
    lines = [",".join([*head, SIZES, "num_tensor_parallel_workers"])]
    for tokens in (1, 8):
        times = [x for i in range(len(OPERATORS)) for x in stats((i + 1) * tokens / 100)]
        lines.append(",".join([*times, f"32,8,4096,14336,128256,{gated},{tokens}", str(tp)]))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


def attention(path: Path) -> Path:
    """One chunk of 64 after 128 tokens, and 4 decodes after 32; both save KV in 2 us."""
    head = [c for x in ("attn_prefill", "attn_decode", "attn_kv_cache_save") for c in columns(x)]
    sizes = "n_embd,n_q_head,n_kv_head,block_size,num_tensor_parallel_workers,max_model_len"
    inputs = "batch_size,prefill_chunk_size,kv_cache_size,is_prefill,attention_backend"
    none, saving = [""] * 5, stats(0.002)
    rows = [
        [*stats(0.05), *none, *saving, "4096,32,8,16,2,4096", "1,64,128,True,FLASHINFER"],
        [*none, *stats(0.01), *saving, "4096,32,8,16,2,4096", "4,0,32,False,FLASHINFER"],
        [*none, *stats(9.0), *saving, "4096,32,8,16,2,4096", "4,0,32,False,NO_OP"],
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([",".join([*head, sizes, inputs]), *map(",".join, rows)]) + "\n")
    return path


def all_reduce(path: Path) -> Path:
    head = ["", *columns("all_reduce"), "rank,num_workers,size,collective,devices_per_node"]
    rows = [
        ["0", *stats(0.04), "0,2,2048,all_reduce,2"],
        ["1", *stats(0.09), "0,2,2048,all_reduce,1"],  # two nodes
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([",".join(head), *map(",".join, rows)]) + "\n")
    return path


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """Folders as Vidur has them."""
    root = tmp_path / "vidur" / "data" / "profiling"
    mlp(root / "compute" / "a100" / "meta-llama" / "Meta-Llama-3-8B" / "mlp.csv")
    attention(root / "compute" / "a100" / "meta-llama" / "Meta-Llama-3-8B" / "attention.csv")
    all_reduce(root / "network" / "a100_dgx" / "all_reduce.csv")
    return root


def imported(path: Path, out: Path, **options: object) -> Path:
    [(folder, _)] = import_profile("vidur", path, out, **options)  # type: ignore[arg-type]
    return folder


def table(folder: Path, name: str) -> Table:
    found = DataSet(folder).table(name)
    assert found is not None
    return found


def test_linear_layers_get_the_shapes_of_one_gpus_shard_in_microseconds(
    published: Path, tmp_path: Path
) -> None:
    linear = table(imported(published, tmp_path / "out"), "linear")
    one = linear.where(tokens=1).distinct("dtype", "n", "k", "time_us")
    assert one == [
        ("fp16", 3072, 4096, 30.0), ("fp16", 4096, 2048, 50.0), ("fp16", 4096, 7168, 90.0),
        ("fp16", 14336, 4096, 70.0),
    ]  # fmt: skip
    assert linear["cv"].tolist() == pytest.approx([0.1] * 8)


def test_norms_have_the_residuals_addition_and_their_median_is_kept(
    published: Path, tmp_path: Path
) -> None:
    other = table(imported(published, tmp_path / "out"), "elementwise").where(tokens=8)
    times = {op: (width, us) for op, width, us in other.distinct("op", "width", "time_us")}
    # Norms take 2/100 and 6/100 ms a token, the addition 10/100.
    assert times["rms_norm"] == (4096, pytest.approx(8 * (20 + 60) / 2 + 8 * 100))
    assert times["rotary"] == (3072, pytest.approx(320))
    assert times["silu_mul"] == (7168, pytest.approx(640))
    assert times["embedding"] == (4096, pytest.approx(80))


def test_attention_has_the_write_of_keys_and_values_and_only_one_backend(
    published: Path, tmp_path: Path
) -> None:
    folder = imported(published, tmp_path / "out")
    heads = ("kv_dtype", "heads", "kv_heads", "head_dim", "batch")
    prefill = table(folder, "attention_prefill")
    assert prefill.distinct(*heads, "tokens", "history") == [("fp16", 16, 4, 128, 1, 64, 128)]
    assert prefill.time_us.tolist() == pytest.approx([52])
    decode = table(folder, "attention_decode")
    assert decode.distinct(*heads, "context") == [("fp16", 16, 4, 128, 4, 33)]
    assert decode.time_us.tolist() == pytest.approx([12])
    assert any("NO_OP are left out" in note for note in DataSet(folder).meta.more["notes"])


def test_collectives_across_nodes_are_left_out(published: Path, tmp_path: Path) -> None:
    collective = table(imported(published, tmp_path / "out"), "collective")
    assert collective.distinct("op", "backend", "gpus", "bytes", "time_us") == [
        ("all_reduce", "nccl", 2, 2048, 40.0)
    ]


def test_a_single_file_needs_the_device(tmp_path: Path) -> None:
    file = mlp(tmp_path / "mine" / "mlp.csv")
    with pytest.raises(ConfigError, match=r"does not say which device.*or give --device"):
        read_profile("vidur", file, Naming())
    folder = imported(file, tmp_path / "out", device="h100")
    assert folder.name == "h100-sxm"


def test_an_ungated_mlp_has_no_silu(tmp_path: Path) -> None:
    file = mlp(tmp_path / "mlp.csv", tp=1, gated=False)
    folder = imported(file, tmp_path / "out", device="h100")
    assert ("silu_mul",) not in table(folder, "elementwise").distinct("op")
    assert (14336, 4096) in table(folder, "linear").distinct("n", "k")


def test_an_empty_folder_says_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no mlp\.csv, attention\.csv or all_reduce\.csv"):
        read_profile("vidur", tmp_path, Naming())
    (tmp_path / "x.csv").write_text("a\n1\n")
    with pytest.raises(ConfigError, match=r"expected one of mlp\.csv"):
        read_profile("vidur", tmp_path / "x.csv", Naming())


def test_a_partial_table_says_which_column_is_missing(tmp_path: Path) -> None:
    file = mlp(tmp_path / "compute" / "a100" / "mlp.csv")
    file.write_text(file.read_text().replace("time_stats.mlp_down_proj.median", "x"))
    with pytest.raises(ConfigError, match=r"has no column time_stats\.mlp_down_proj\.median"):
        read_profile("vidur", tmp_path, Naming())


def test_a_device_without_a_sheet_is_named(tmp_path: Path) -> None:
    mlp(tmp_path / "compute" / "a40" / "mlp.csv")
    with pytest.raises(ConfigError, match=r"device a40 has no data sheet.*--skip a40"):
        read_profile("vidur", tmp_path, Naming())


def test_the_real_tidy_tables_have_linear_layers_and_all_reduce(shared: Path) -> None:
    found = read_profile("vidur", shared / "measured" / "vidur", Naming(skip=["a40"]))

    assert [data.device for data in found] == ["a100-sxm-80gb", "h100-sxm"]
    for data in found:
        assert {"linear", "elementwise", "collective"} == set(data.tables)
        assert set(data.tables["collective"].gpus) == {2, 4, 8}


def test_a_node_goes_by_its_device_and_may_be_named_or_skipped(
    published: Path, tmp_path: Path
) -> None:
    all_reduce(published / "network" / "my_cluster" / "all_reduce.csv")
    with pytest.raises(ConfigError, match="device my_cluster has no data sheet"):
        read_profile("vidur", published, Naming())
    found = read_profile("vidur", published, Naming({"my_cluster": "h200"}))
    assert [data.device for data in found] == ["a100-sxm-80gb", "h200"]
    [data] = read_profile("vidur", published, Naming(skip=["my_cluster"]))
    assert data.device == "a100-sxm-80gb"


def tidy(folder: Path, devices: tuple[str, ...] = ("a100", "a40", "h100")) -> Path:
    """Tidy tables of some devices, a row each, with invented times."""
    times = [f"{name}_us" for name in OPERATORS]
    head = ["device,model,tp,num_tokens,n_head,n_kv_head,d_model,d_ff,gated_mlp", *times]
    rows = [f"{device},m,1,8,32,8,4096,14336,True" + ",10" * len(times) for device in devices]
    folder.mkdir()
    (folder / "linear_ops.csv").write_text("\n".join([",".join(head), *rows]) + "\n")
    (folder / "collectives.csv").write_text(
        "node,op,num_workers,devices_per_node,message_bytes,time_us\n"
        + "".join(f"{device}_pairwise_nvlink,all_reduce,2,2,512,5\n" for device in devices)
    )
    return folder


def test_rows_of_several_devices_are_not_merged_into_one(tmp_path: Path) -> None:
    source = tidy(tmp_path / "vidur")
    several = r"several devices \(a100, h100\).*leave out --device.*h100, by --skip a100$"
    with pytest.raises(ConfigError, match=several):
        read_profile("vidur", source, Naming(skip=["a40"], of="h100-sxm"))
    one = read_profile("vidur", source, Naming(skip=["a40", "a100"], of="h100-sxm"))
    assert [(data.device, len(data.tables["collective"])) for data in one] == [("h100-sxm", 1)]
    with pytest.raises(ConfigError, match=r"a100, h100\).*do not name them alike.*--skip a100"):
        read_profile("vidur", source, Naming({"a100": "h100-sxm"}, skip=["a40"]))


def test_what_is_skipped_or_named_must_be_there(tmp_path: Path) -> None:
    source = tidy(tmp_path / "vidur", ("a100",))
    with pytest.raises(ConfigError, match=r"--skip a10: .* has nothing of that name.*a100"):
        read_profile("vidur", source, Naming(skip=["a10"]))
    with pytest.raises(ConfigError, match=r"--name a40: .* has nothing of that name"):
        read_profile("vidur", source, Naming({"a40": "l40s"}))


def test_published_folders_of_two_devices_are_not_merged(tmp_path: Path) -> None:
    for name in ("a100", "h100"):
        mlp(tmp_path / "compute" / name / "m" / "mlp.csv")
    with pytest.raises(ConfigError, match=r"several devices \(a100, h100\)"):
        read_profile("vidur", tmp_path, Naming(of="h100-sxm"))
    [data] = read_profile("vidur", tmp_path, Naming(of="h100-sxm", skip=["a100"]))
    assert len(data.tables["linear"]) == 8


def spoil(path: Path, column: str, value: str, line: int = 2) -> None:
    """Write a value into a cell of a CSV file."""
    lines = [row.split(",") for row in path.read_text().splitlines()]
    lines[line - 1][lines[0].index(column)] = value
    path.write_text("\n".join(map(",".join, lines)) + "\n")


def shown(value: str) -> str:
    """A pattern of a cell as a message has it."""
    return {"": "nan", "1e30": r"1e\+30"}.get(value, value)


@pytest.mark.parametrize("value", ["abc", "-4", "", "1e30"])
@pytest.mark.parametrize("column", ["num_tokens", *(f"{name}_us" for name in OPERATORS)])
def test_a_wrong_cell_of_the_tidy_form_is_named(tmp_path: Path, column: str, value: str) -> None:
    file = tidy(tmp_path / "vidur", ("a100", "h100")) / "linear_ops.csv"
    spoil(file, column, value, line=3)
    if (column, value) == ("post_attention_layernorm_us", ""):  # as models without that norm have
        read_profile("vidur", file.parent, Naming())
        return
    said = rf"linear_ops\.csv: line 3: {column} is {shown(value)}"
    with pytest.raises(ConfigError, match=said):
        read_profile("vidur", file.parent, Naming())


def test_a_flag_that_is_neither_true_nor_false_is_named(tmp_path: Path) -> None:
    file = tidy(tmp_path / "vidur", ("a100", "h100")) / "linear_ops.csv"
    spoil(file, "gated_mlp", "maybe", line=3)
    with pytest.raises(ConfigError, match="line 3: gated_mlp is maybe, not True or False"):
        read_profile("vidur", file.parent, Naming())


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("mlp", "time_stats.add.median"),
        ("mlp", "time_stats.mlp_up_proj.median"),
        ("mlp", "time_stats.mlp_up_proj.std"),
        ("mlp", "n_embd"),
        ("attention", "time_stats.attn_prefill.median"),
        ("attention", "time_stats.attn_kv_cache_save.median"),
        ("attention", "kv_cache_size"),
        ("attention", "is_prefill"),
        ("all_reduce", "time_stats.all_reduce.median"),
    ],
)
def test_a_wrong_cell_of_the_published_form_is_named(
    tmp_path: Path, name: str, column: str
) -> None:
    write = {"mlp": mlp, "attention": attention, "all_reduce": all_reduce}[name]
    file = write(tmp_path / f"{name}.csv")
    spoil(file, column, "abc")
    with pytest.raises(ConfigError, match=rf"{name}\.csv: line 2: {column} is abc, not"):
        read_profile("vidur", file, Naming(of="h100-sxm"))


def test_semicolons_between_columns_are_said(tmp_path: Path) -> None:
    file = tidy(tmp_path / "vidur", ("a100",)) / "linear_ops.csv"
    file.write_text(file.read_text().replace(",", ";"))
    with pytest.raises(ConfigError, match="line 1: columns are separated by ';'; use commas"):
        read_profile("vidur", file.parent, Naming())


def test_a_node_without_all_reduces_may_be_skipped(tmp_path: Path) -> None:
    file = tidy(tmp_path / "vidur", ("a100",)) / "collectives.csv"
    file.write_text(f"{file.read_text()}a40_pairwise_nvlink,send_recv,2,2,512,5\n")
    [data] = read_profile("vidur", file.parent, Naming(skip=["a40_pairwise_nvlink"]))
    assert data.device == "a100-sxm-80gb"
