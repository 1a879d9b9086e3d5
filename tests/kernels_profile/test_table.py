"""Tables: what is written is read again, and what is wrong is named with file and line."""

import re
from pathlib import Path

import numpy as np
import pytest

from kernels_profile.table import (
    OPERATORS,
    WORDS,
    DataSet,
    Meta,
    append_rows,
    find_data_sets,
    read_table,
    rows_of,
    write_meta,
    write_table,
)
from sim.errors import ProfileError

LINEAR = [
    {"dtype": "bf16", "n": 4096, "k": 4096, "tokens": tokens, "time_us": 10 + tokens / 7}
    for tokens in (64, 1, 8)
]


def data_set(folder: Path, device: str = "h200", **more: object) -> Path:
    write_meta(folder, Meta(device, "a test", "own", more))
    write_table(folder, "linear", LINEAR)
    return folder


def test_a_table_is_read_as_written_and_sorted(tmp_path: Path) -> None:
    table = DataSet(data_set(tmp_path)).table("linear")
    assert table is not None
    assert table["tokens"].tolist() == [1, 8, 64]
    assert table.time_us.tolist() == [10 + t / 7 for t in (1, 8, 64)]
    assert [dict(row) for row in rows_of(table)] == sorted(LINEAR, key=lambda r: r["tokens"])


def test_a_table_is_read_once_while_its_file_is_the_same(tmp_path: Path) -> None:
    data_set(tmp_path)
    first, again = (DataSet(tmp_path).table("linear") for _ in range(2))
    assert first is again
    append_rows(tmp_path, "linear", [LINEAR[0] | {"tokens": 128}])
    grown = DataSet(tmp_path).table("linear")
    assert grown is not None
    assert grown["tokens"].tolist() == [1, 8, 64, 128]


def test_rows_may_be_appended_with_their_spread(tmp_path: Path) -> None:
    append_rows(tmp_path, "linear", [{**LINEAR[0], "cv": 0.02, "repeats": 9}])
    append_rows(tmp_path, "linear", LINEAR[1:2])
    table = read_table(tmp_path / "linear.csv", "linear")
    assert len(table) == 2
    assert table["cv"][0] == 0.02
    assert np.isnan(table["cv"][1])


def test_points_are_selected_by_their_columns(tmp_path: Path) -> None:
    table = read_table(write_table(tmp_path, "linear", LINEAR), "linear")
    assert len(table.where(n=4096, tokens=8)) == 1
    assert len(table.where(n=4097)) == 0
    assert table.distinct("dtype", "n") == [("bf16", 4096)]


def test_single_precision_keeps_its_own_digits(tmp_path: Path) -> None:
    row = {**LINEAR[0], "time_us": np.float32(12.138667)}
    path = write_table(tmp_path, "linear", [row])
    assert path.read_text().splitlines()[1].endswith(",12.13867")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("dtype,n,k,tokens\nbf16,1,1,1", "line 1: column time_us is missing; linear needs it"),
        ("dtype,n,k,token,time_us,tokens\n", "has no rows"),
        ("dtype,n,k,tokens,time_us,time_ms\nbf16,1,1,1,1,1", "time_ms' is not known; did you mean"),
        ("dtype,n,k,tokens,time_us\nbf61,1,1,1,1", "line 2: dtype: 'bf61'; did you mean bf16?"),
        ("dtype,n,k,tokens,time_us\nbf16,1,1,1,1\nbf16,1,1,x,1", "line 3: tokens: 'x' is no num"),
        ("dtype,n,k,tokens,time_us\nbf16,1,1,1,0", "line 2: time_us: 0: expected a number above 0"),
        ("dtype,n,k,tokens,time_us\nbf16,1,1,1,nan", "time_us: nan: expected a number above 0"),
        ("dtype,n,k,tokens,time_us\nbf16,1,1,-1,2", "tokens: -1: expected a whole number from 1"),
        ("dtype,n,k,tokens,time_us\nbf16,1,1,0,2", "line 2: tokens: 0: expected a whole number"),
        ("dtype,n,k,tokens,time_us\nbf16,1,1,1.5,2", "tokens: 1.5: expected a whole number from 1"),
        ("dtype,n,k,tokens,time_us\nbf16,1,1,1e30,2", "tokens: 1e30: expected a whole number"),
        ("dtype,n,k,tokens,time_us\nbf16,1,1,1,1e12", "line 2: time_us: 1e12: expected a number"),
        ("dtype,n,k,tokens,time_us,p90_us\nbf16,1,1,1,1,1e30", "p90_us: 1e30: expected a number"),
        ("dtype,n,k,tokens,time_us,cv\nbf16,1,1,1,1,1e30", "cv: 1e30: expected a number from 0"),
        ("dtype,n,k,tokens,time_us\nbf16,1,1,1\n", "line 2: 4 cells, not 5"),
        (
            "dtype,n,k,tokens,time_us\nbf16,1,1,1,1\nbf16,1,1,1.0,2",
            "line 3: the point of line 2 again",
        ),
        ("version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "Git LFS pointer"),
    ],
)
def test_a_wrong_table_is_refused_with_file_and_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "linear.csv"
    path.write_text(text)
    with pytest.raises(ProfileError, match=re.escape(said)) as error:
        read_table(path, "linear")
    assert str(path) in str(error.value)


def test_what_would_not_be_read_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="expected a number above 0"):
        write_table(tmp_path, "linear", [{**LINEAR[0], "time_us": 0}])
    with pytest.raises(ProfileError, match="a row has no tokens"):
        write_table(tmp_path, "linear", [{"dtype": "bf16", "n": 1, "k": 1, "time_us": 1}])
    with pytest.raises(ProfileError, match="'speed' is not known"):
        write_table(tmp_path, "linear", [{**LINEAR[0], "speed": 1}])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("operator", sorted(OPERATORS))
def test_every_operator_has_a_table_that_can_be_written(tmp_path: Path, operator: str) -> None:
    from kernels_profile.table import WORDS

    columns = OPERATORS[operator]
    row: dict[str, object] = {
        name: WORDS.get((operator, name), ("any",))[0] for name in columns.texts
    }
    row |= dict.fromkeys(columns.sizes, 8) | dict.fromkeys(columns.values, 1.5)
    row |= {"unit": "GB/s"} if "unit" in columns.optional else {"cv": 0.01}
    table = read_table(write_table(tmp_path, operator, [row]), operator)
    assert next(rows_of(table)) == row


class TestDataSets:
    def test_those_of_the_device_are_found_in_a_folder_of_several(self, tmp_path: Path) -> None:
        data_set(tmp_path / "a", "h100-sxm")
        data_set(tmp_path / "b", "h200", engine="vllm", version="0.19.0")
        (found,) = find_data_sets([tmp_path], "h200")
        assert found.folder == tmp_path / "b"
        assert found.meta.source == "a test (vllm 0.19.0)"

    def test_one_of_another_device_is_refused(self, tmp_path: Path) -> None:
        data_set(tmp_path / "a", "h100-sxm")
        with pytest.raises(ProfileError, match="was measured on h100-sxm, not on h200"):
            find_data_sets([tmp_path / "a"], "h200")
        with pytest.raises(ProfileError, match="no data set of h200; did you mean h100-sxm"):
            find_data_sets([tmp_path], "h200")

    def test_a_folder_without_meta_is_none(self, tmp_path: Path) -> None:
        write_table(tmp_path / "x", "linear", LINEAR)
        with pytest.raises(ProfileError, match="nor has a folder in it: not a data set"):
            find_data_sets([tmp_path], "h200")
        with pytest.raises(ProfileError, match="no such folder"):
            find_data_sets([tmp_path / "nowhere"], "h200")

    def test_a_newer_schema_and_missing_keys_are_refused(self, tmp_path: Path) -> None:
        folder = data_set(tmp_path)
        (folder / "meta.yaml").write_text("schema: 2\ndevice: h200\norigin: x\n")
        with pytest.raises(ProfileError, match="schema: 2: this phasewise reads up to 1"):
            DataSet(folder)
        (folder / "meta.yaml").write_text("schema: 1\ndevice: h200\n")
        with pytest.raises(ProfileError, match="origin: is required"):
            DataSet(folder)


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_number_of_every_table_has_bounds(tmp_path: Path, operator: str) -> None:
    known = OPERATORS[operator]
    words = {name: WORDS.get((operator, name), ("w",))[0] for name in known.texts}
    good = words | dict.fromkeys((*known.sizes, *known.values), 1)
    write_table(tmp_path, operator, [good])
    for name in (*known.sizes, *known.values):
        for wrong in (-1, 1e30, float("inf")):
            with pytest.raises(ProfileError, match=rf"line 2: {name}: .*expected a"):
                write_table(tmp_path, operator, [good | {name: wrong}])


@pytest.mark.parametrize(
    ("said", "refused"),
    [
        ("engin: x", r"engin: is no key; did you mean engine\?"),
        ("engine: [a, b]", r"engine: \['a', 'b'\]: expected a word or a sentence"),
        ("engine:", "engine: None: expected a word"),
        ("notes: text", "notes: text: expected a list"),
        ("gpu: H100", "gpu: H100: expected keys and values"),
    ],
)
def test_a_key_of_the_meta_that_is_not_known_is_refused(
    tmp_path: Path, said: str, refused: str
) -> None:
    data_set(tmp_path)
    meta = tmp_path / "meta.yaml"
    meta.write_text(f"{meta.read_text()}{said}\n")
    with pytest.raises(ProfileError, match=rf"meta\.yaml: {refused}"):
        DataSet(tmp_path)


def test_a_misspelt_table_is_named(tmp_path: Path) -> None:
    data_set(tmp_path)
    for other in ("left_out", "launch_configs", "sanity"):  # of our profiler, beside the tables
        (tmp_path / f"{other}.csv").write_text("a\n")
    DataSet(tmp_path)
    (tmp_path / "liner.csv").write_text("a\n")
    with pytest.raises(ProfileError, match=r"liner\.csv: .* did you mean linear\.csv\?"):
        DataSet(tmp_path)


def test_a_data_set_is_given_once(tmp_path: Path) -> None:
    inner = data_set(tmp_path / "h200")
    for twice in ([inner, inner], [tmp_path, inner], [inner, tmp_path / "h200" / ".." / "h200"]):
        with pytest.raises(ProfileError, match="h200: is given twice"):
            find_data_sets(twice, "h200")


def test_what_a_spreadsheet_saves_is_said(tmp_path: Path) -> None:
    path = data_set(tmp_path) / "linear.csv"
    text = path.read_text()
    for wrong, said in (
        ("\ufeff" + text, "byte order mark"),
        (text.replace(",", ";"), "separated by ';'; use commas"),
        (text.replace(",", "\t"), "separated by tabs"),
    ):
        path.write_text(wrong, encoding="utf-8")
        with pytest.raises(ProfileError, match=rf"linear\.csv: line 1: .*{said}"):
            read_table(path, "linear")
