"""Traces that contradict themselves: what is noted, what is refused, what `info` says of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sim.errors import TraceError
from traces import load
from traces.info import describe

HEAD = "arrival_s,prompt_tokens,output_tokens,session,turn"


def csv(folder: Path, head: str, *rows: str) -> Path:
    path = folder / "t.csv"
    path.write_text("\n".join((head, *rows)) + "\n")
    return path


def mooncake(folder: Path, *lists: list[int]) -> Path:
    path = folder / "m.jsonl"
    rows = [
        {"timestamp": 0, "input_length": 512 * len(ids), "output_length": 1, "hash_ids": ids}
        for ids in lists
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.mark.parametrize(
    ("lists", "says"),
    [
        (([1, 2], [2, 3]), "1 of 4 block ids (first: 2 in line 2)"),  # another position
        (([1, 2, 3], [1, 4, 3], [1, 5, 3]), "2 of 9 block ids (first: 3 in line 2)"),
        (([1, 1],), "1 of 2 block ids (first: 1 in line 1)"),
    ],
)
def test_ids_that_are_no_prefixes_are_noted(
    tmp_path: Path, lists: tuple[list[int], ...], says: str
) -> None:
    assert any(note.startswith(says) for note in load(mooncake(tmp_path, *lists)).notes)


def test_ids_that_are_prefixes_are_not_noted(tmp_path: Path) -> None:
    notes = load(mooncake(tmp_path, [1, 2, 3], [1, 2, 4], [5], [1, 2, 3])).notes
    assert not any("block ids" in note for note in notes)


def test_an_id_beyond_64_bits_is_refused_with_line_and_value(tmp_path: Path) -> None:
    with pytest.raises(TraceError) as error:
        load(mooncake(tmp_path, [1, 2], [1, 2**63]))

    assert "m.jsonl:2: hash_ids: 9223372036854775808; expected an id of 64 bits" in str(error.value)


def test_after_needs_names_of_requests(tmp_path: Path) -> None:
    path = csv(tmp_path, f"{HEAD},after", "0,9,1,a,0,", "1,9,1,b,0,x")
    with pytest.raises(TraceError, match=r"t\.csv: after: .* expected a column request_id too"):
        load(path)


def test_info_says_what_a_run_in_sessions_refuses(tmp_path: Path) -> None:
    path = csv(tmp_path, f"{HEAD},request_id,after", "0,9,1,a,0,x,", "1,9,1,b,0,y,zz")
    said = describe(path).notes[-1]
    assert said.startswith("A run with workload.sessions refuses this trace: ")
    assert "t.csv:3: after: no request 'zz'" in said


def test_holes_in_turns_are_noted(tmp_path: Path) -> None:
    rows = ["0,9,1,a,0", "1,9,1,b,0", "2,9,1,b,2", "3,9,1,a,1", "4,9,1,b,5", "5,9,1,c,7"]
    notes = load(csv(tmp_path, HEAD, *rows)).notes
    assert any(
        note.startswith("1 session has holes in the numbers of turns (first: b, turn 2 after 0)")
        for note in notes
    )
    assert not any("holes" in note for note in load(csv(tmp_path, HEAD, *rows[:2])).notes)
