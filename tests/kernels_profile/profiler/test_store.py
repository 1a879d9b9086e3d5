"""Tables that grow by a point survive being cut off, and take nothing that is not theirs."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels_profile.profiler.points import Point
from kernels_profile.profiler.store import Store, missing
from kernels_profile.table import DataSet, Meta, read_table, write_meta
from sim.errors import ConfigError, ProfileError

ROW = {"time_us": 12.5, "p10_us": 12.0, "p90_us": 13.0, "cv": 0.01, "repeats": 5}


def point(tokens: int) -> Point:
    return Point("linear", {"dtype": "bf16", "n": 6144, "k": 4096, "tokens": tokens}, 1)


def decode(skew: float) -> Point:
    key = {"kv_dtype": "bf16", "heads": 32, "kv_heads": 8, "head_dim": 128}
    return Point("attention_decode", {**key, "batch": 16, "context": 1024, "skew": skew}, 1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_meta(tmp_path, Meta("h200", "ours", "own"))
    return tmp_path


def test_points_that_were_written_are_known_to_the_next_run(folder: Path) -> None:
    store = Store(folder, "h200")
    for measured in (point(1), point(16), decode(0), decode(0.5)):
        store.add(measured, ROW)
    again = Store(folder, "h200")
    assert missing([point(1), point(2), decode(0), decode(0.5), decode(1.0)], again) == [
        point(2),
        decode(1.0),
    ]
    assert again.counts() == {"linear": 2, "attention_decode": 2}


def test_what_is_written_is_a_data_set(folder: Path) -> None:
    Store(folder, "h200").add(point(64), ROW)
    table = DataSet(folder).table("linear")
    assert table is not None
    assert table.time_us.tolist() == [12.5]
    assert table["p90_us"].tolist() == [13.0]


@pytest.mark.parametrize("kept", range(1, 34))
def test_a_line_that_was_cut_off_is_dropped_wherever_it_was_cut(folder: Path, kept: int) -> None:
    store = Store(folder, "h200")
    store.add(point(1), ROW)
    store.add(point(16), ROW)
    path = folder / "linear.csv"
    whole = path.read_text()
    start = whole.rstrip("\n").rindex("\n") + 1
    path.write_text(whole[: start + kept])
    again = Store(folder, "h200")
    assert again.has(point(1))
    assert not again.has(point(16))
    assert len(again.notes) == 1
    assert "dropped a last line that was cut off" in again.notes[0]
    again.add(point(16), ROW)
    assert len(read_table(path, "linear")) == 2


def test_a_table_cut_off_in_its_first_line_begins_anew(folder: Path) -> None:
    (folder / "linear.csv").write_text("dtype,n,k,tok")
    store = Store(folder, "h200")
    assert not (folder / "linear.csv").exists()
    store.add(point(1), ROW)
    assert len(read_table(folder / "linear.csv", "linear")) == 1


def test_tables_of_another_device_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds tables of h200, and this is l40s; choose"):
        Store(folder, "l40s")


def test_imported_tables_are_refused(tmp_path: Path) -> None:
    write_meta(tmp_path, Meta("h200", "somebody's", "imported"))
    with pytest.raises(ConfigError, match="holds imported tables"):
        Store(tmp_path, "h200")


def test_tables_of_nobody_knows_whom_are_refused(tmp_path: Path) -> None:
    (tmp_path / "linear.csv").write_text("dtype,n,k,tokens,time_us\nbf16,1,1,1,1\n")
    with pytest.raises(ConfigError, match=r"has linear\.csv but no meta\.yaml"):
        Store(tmp_path, "h200")


def test_a_damaged_line_in_the_middle_is_an_error_not_a_gap(folder: Path) -> None:
    store = Store(folder, "h200")
    for tokens in (1, 16, 64):
        store.add(point(tokens), ROW)
    path = folder / "linear.csv"
    path.write_text(path.read_text().replace("bf16,6144,4096,16", "bf16,6144,x,16"))
    with pytest.raises(ProfileError, match="line 3: k: 'x' is no number"):
        Store(folder, "h200")
