"""Files of other projects: each thing that can be wrong with one is said in one line."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from kernels_profile.importers.naming import Naming
from kernels_profile.importers.reading import positive, provenance, read_table, whole
from sim.errors import ConfigError

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:93b0a5042f\nsize 432461\n"


@pytest.mark.parametrize("name", ["gemm_perf.txt", "gemm_perf.parquet", "attention.csv"])
def test_a_git_lfs_pointer_is_named_with_the_size_of_what_is_missing(
    tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    path.write_text(POINTER)
    with pytest.raises(ConfigError, match=r"Git LFS pointer to 432,461 bytes .*git lfs pull") as e:
        read_table(path, ["m"])
    assert str(path) in str(e.value)


def test_a_missing_column_is_named_with_the_nearest_one(tmp_path: Path) -> None:
    path = tmp_path / "dense.csv"
    path.write_text("layer,token,time_us\nqkv_proj,1,2.5\n")
    with pytest.raises(ConfigError, match="has no column tokens; did you mean token"):
        read_table(path, ["layer", "tokens"])


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.csv", b"layer,tokens\n", "has no rows"),
        ("a.csv", b"", "is no CSV table"),
        ("a.csv", b'a,b\n1,2\n3,4,5,6\n"', "is no CSV table"),
        ("a.parquet", b"layer,tokens\n1,2\n", "is no Parquet table"),
    ],
)
def test_a_file_that_is_no_table_is_refused(
    tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=said):
        read_table(tmp_path / name, [])


@pytest.mark.parametrize("value", ["-1", "2.5", "many", ""])
def test_a_count_that_is_none_is_named_with_its_line(tmp_path: Path, value: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"tokens,x\n1,0\n{value},0\n")
    table = read_table(path, ["tokens"])
    with pytest.raises(ConfigError, match=r"a\.csv: line 3: tokens is .*, not a whole number"):
        whole(table, ["tokens"], path)


@pytest.mark.parametrize("value", ["0", "-3", "inf", "fast"])
def test_a_time_that_is_none_is_named_with_its_line(tmp_path: Path, value: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"time_us,x\n{value},0\n")
    table = read_table(path, ["time_us"])
    with pytest.raises(ConfigError, match=r"a\.csv: line 2: time_us is .*, not a time above 0"):
        positive(table, "time_us", path)


def test_single_precision_times_keep_their_digits() -> None:
    table = pd.DataFrame({"time_us": pd.Series([9.31067, 0.1], dtype="float32")})
    positive(table, "time_us", Path("a.parquet"))
    assert table.time_us.tolist() == [9.31067, 0.1]


def test_revision_and_licence_are_read_from_a_readme_beside_the_data(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("Origin: a/b, rev 0123456789ab, `x`. Licence: BSD-3 (Us).")
    stated = provenance(tmp_path, None, "MIT")
    assert (stated.revision, stated.licence) == ("0123456789ab", "BSD-3 (Us)")


def test_revision_is_that_of_the_checkout_and_else_unknown(tmp_path: Path) -> None:
    assert provenance(tmp_path, None, "MIT").revision == "unknown"
    (tmp_path / ".git" / "refs" / "heads").mkdir(parents=True)
    (tmp_path / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (tmp_path / ".git" / "refs" / "heads" / "main").write_text("ab" * 20 + "\n")
    inner = tmp_path / "data" / "perf"
    inner.mkdir(parents=True)
    stated = provenance(inner, None, "MIT")
    assert (stated.revision, stated.licence) == ("ab" * 20, "MIT")
    assert provenance(inner, "feed", "MIT").revision == "feed"


def test_a_model_without_a_sheet_is_named_with_the_nearest_and_the_ways_out() -> None:
    with pytest.raises(
        ConfigError, match=r"nearest is yi-34b.*--name Yi-35B-Base=SHEET.*--skip Yi-35B"
    ):
        Naming().model("Yi-35B-Base")
    model = Naming({"Yi-35B-Base": "yi-34b"}).model("Yi-35B-Base")
    assert model is not None
    assert model.name == "yi-34b"
    skipping = Naming(skip=["Yi-35B-Base"])
    assert skipping.model("Yi-35B-Base") is None
    assert skipping.skipped == {"Yi-35B-Base"}


def test_a_device_goes_by_the_name_that_the_source_gives_it() -> None:
    assert Naming().device("h100_sxm") == "h100-sxm"
    assert Naming().device("RTX4090", {"RTX4090": "rtx-4090"}) == "rtx-4090"
    with pytest.raises(ConfigError, match="device gb999 has no data sheet"):
        Naming().device("gb999")
