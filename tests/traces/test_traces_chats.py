"""Formats with conversations: Bailian, BurstGPT 3, plain rows that come after others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import traces
from sim.errors import TraceError
from sim.request import Trace
from traces.reuse import prefix_reuse
from traces.sessions import sessions_of
from traces.write import write


def row(chat: int, parent: int, at: float, ids: list[int], **more: object) -> dict[str, object]:
    return {
        "chat_id": chat,
        "parent_chat_id": parent,
        "timestamp": at,
        "input_length": 16 * len(ids) - 3,
        "output_length": 7,
        "type": "text",
        "turn": 1,
        "hash_ids": ids,
        **more,
    }


def load(folder: Path, rows: list[dict[str, object]]) -> Trace:
    (folder / "t.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    return traces.load(folder / "t.jsonl")


CHATS = [
    row(159, 55, 61.114, [10**17, 8, 9]),
    row(55, -1, 0, [10**17, 8]),
    row(7, 55, 70, [10**17, 8, 3, 4], type="search"),
    row(8, 7, 80, [10**17, 8, 3, 4, 5]),
    row(2, 999, 90, [8, 10**17, 3]),
]


def test_bailian_rows_are_sessions_and_a_second_answer_branches_off(tmp_path: Path) -> None:
    trace = load(tmp_path, CHATS)

    assert trace.request_id is not None
    assert trace.session is not None
    assert trace.turn is not None
    assert trace.request_id.tolist() == ["55", "159", "7", "8", "2"]  # by time
    assert trace.session.tolist() == ["55", "55", "7", "7", "2"]
    assert trace.turn.tolist() == [0, 1, 0, 1, 0]
    assert trace.after == [(), (), ("55",), (), ()]
    assert sessions_of(trace).tree.tolist() == [0, 0, 2]
    assert trace.arrival_ns.tolist() == [0, 61_114_000_000, 70 * 10**9, 80 * 10**9, 90 * 10**9]
    assert any("1 rows continue a conversation from before the trace" in n for n in trace.notes)


def test_bailian_blocks_are_matched_from_the_start(tmp_path: Path) -> None:
    trace = load(tmp_path, CHATS)

    # Full blocks: 1, 2, 3, 4, 2. The last row has the same blocks in another order: nothing.
    assert trace.block_ids_tokens == 16
    assert prefix_reuse(trace).hits().tolist() == [0, 1, 2, 3, 0]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (row(1, -1, 0, [1], input_length=40), "1 ids for a prompt of 40 tokens'; expected 3"),
        (row(55, -1, 0, [1]), "chat_id: '55'; expected a name that no other row has"),
        (row(55, 55, 0, [1]), "chat_id"),
    ],
)
def test_bailian_rows_that_cannot_be_are_one_line(
    tmp_path: Path, wrong: dict[str, object], says: str
) -> None:
    with pytest.raises(TraceError, match=says) as error:
        load(tmp_path, [*CHATS, wrong])
    assert "t.jsonl:6" in str(error.value)


def test_bailian_parents_in_a_circle_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"parent_chat_id: .a circle.; expected a tree"):
        load(tmp_path, [row(1, 2, 0, [1]), row(2, 1, 1, [1])])


def test_burstgpt_delays_are_what_passes_after_an_answer(tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_text(
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,"
        "Log Type\n"
        "5.0,a,2.5,GPT-4,100,20,120,Conversation log\n"
        "6.0,,1.0,GPT-4,50,5,55,API log\n"
        "9.0,a,3.0,GPT-4,140,20,160,Conversation log\n"
        "11.0,a,1.0,GPT-4,190,20,210,Conversation log\n"
    )
    trace = traces.load(tmp_path / "b.csv")

    assert trace.delay_ns is not None
    # 9 - (5 + 2.5); the third turn came before the second had ended.
    assert trace.delay_ns.tolist() == [0, 0, 1_500_000_000, 0]


def test_plain_rows_may_come_after_others_and_survive_a_round_trip(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(
        "arrival_s,prompt_tokens,output_tokens,session,request_id,after\n"
        "0,5,2,p,p0,\n0,5,2,x,x0,p0\n0,5,2,y,y0,p0\n0,9,2,p,p1,x0 y0\n"
    )
    trace = traces.load(tmp_path / "t.csv")
    again = traces.load(write(trace, tmp_path / "again.jsonl"))

    assert trace.after == [(), ("p0",), ("p0",), ("x0", "y0")]
    assert again.after == trace.after
    assert len(sessions_of(again).starts) == 1
