"""`workload.sessions` in a config: what it means, what a run of it says, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.bundle import Bundle
from experiments.config import load
from experiments.variant import run_variant
from experiments.workload import build_workload
from sim.errors import ConfigError, PhasewiseError
from sim.records import STATES
from traces.sessions import SessionSource

TRACE = """\
arrival_s,prompt_tokens,output_tokens,session,turn,delay_s
0,100,10,a,0,
1,50,10,b,0,
2,20,10,a,1,3
3,20,10,b,1,4
4,9000,10,c,0,
5,20,10,c,1,4
"""
STEP = {"model": "linear", "base_s": 0.01}
INCREMENTAL = {"prompts": "incremental"}


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    (tmp_path / "t.csv").write_text(TRACE)
    monkeypatch.chdir(tmp_path)
    return {
        "workload": {"trace": "t.csv", "max_tokens": 64, "sessions": INCREMENTAL},
        "model": "llama-3.1-8b",
        "policy": "sarathi",
        "max_model_len": 8000,
        "step_time": STEP,
    }


def run(base: dict[str, Any], *settings: str) -> Bundle:
    plan = load(base, settings)
    return run_variant(plan.variants[0], plan.folder)


def refusal(base: dict[str, Any], *settings: str) -> str:
    plan = load(base, settings)
    with pytest.raises(PhasewiseError) as error:
        build_workload(plan.variants[0], plan.folder, 8000)
    line = str(error.value)
    assert "\n" not in line
    return line


def ms(column: Any) -> list[int]:
    return (np.asarray(column) // 10**6).tolist()


def test_turns_follow_their_sessions_and_what_never_arrived_is_said(base: dict[str, Any]) -> None:
    done = run(base)

    requests = done.requests
    # Each turn takes 10 steps of 10 ms. a: 0 -> 100, 3 s later 3,100. b: 1,000, 5,100.
    assert requests["index"].tolist() == [0, 1, 2, 3, 4]
    assert ms(requests["arrival_ns"]) == [0, 1000, 3100, 5100, 4000]
    assert requests["prompt_tokens"].tolist() == [100, 50, 130, 80, 9000]
    assert [STATES[state] for state in requests["state"]] == [*["finished"] * 4, "rejected"]
    assert requests["session"].tolist() == ["a", "b", "a", "b", "c"]
    assert done.summary["sessions"] == {"sessions": 3, "turns": 6, "skipped": 1, "cut_short": 1}
    assert done.summary["requests"]["arrived"] == 5
    assert done.notes[-1].startswith("skipped: 1 turn of 1 session never arrived")


def test_places_of_a_closed_loop_belong_to_sessions(base: dict[str, Any]) -> None:
    arrivals = "workload.arrivals={process: closed-loop, concurrency: 1}"
    done = run(base, arrivals, "workload.sessions.on_failed_turn=continue")

    # a: 0 -> 100, 3,100 -> 3,200. b: at once, and 4 s after 3,300. c: 7,400, rejected; 4 s later.
    order = np.argsort(done.requests["arrival_ns"], kind="stable")
    assert done.requests["index"][order].tolist() == [0, 2, 1, 3, 4, 5]
    # Row 5's prompt has the 9,000 tokens of the turn before in front of it: rejected too.
    assert ms(done.requests["arrival_ns"][order]) == [0, 3100, 3200, 7300, 7400, 11400]
    assert done.summary["sessions"]["skipped"] == 0


def test_without_the_key_every_request_comes_by_itself(base: dict[str, Any]) -> None:
    del base["workload"]["sessions"]
    done = run(base)

    assert ms(done.requests["arrival_ns"]) == [0, 1000, 2000, 3000, 4000, 5000]
    assert "sessions" not in done.summary


@pytest.mark.parametrize("process", ["{process: poisson, rate_per_s: 3}", "burst"])
def test_fast_forward_gives_the_same_rows(base: dict[str, Any], process: str) -> None:
    settings = (
        f"workload.arrivals={process}",
        "workload.sessions.delay={distribution: gamma, mean_s: 0.05, cv: 2}",
    )
    fast, slow = (run(base, *settings, f"fast_forward={on}") for on in ("true", "false"))

    assert fast.requests.keys() == slow.requests.keys()
    assert all((fast.requests[name] == slow.requests[name]).all() for name in fast.requests)


def test_drawn_delays_are_the_same_in_every_variant(base: dict[str, Any]) -> None:
    delay = "workload.sessions.delay={distribution: exponential, mean_s: 9}"
    plan = load({**base, "compare": [{"label": "x", "policy": "orca"}, {"label": "y"}]}, [delay])
    built = [build_workload(each, plan.folder, None).trace for each in plan.variants]

    assert built[0].delay_ns is not None
    assert built[1].delay_ns is not None
    assert (built[0].delay_ns == built[1].delay_ns).all()
    assert len(set(built[0].delay_ns.tolist())) == 6


def test_turns_are_known_to_share_what_was_said_before(base: dict[str, Any]) -> None:
    plan = load(base, ["kv.block_tokens=8"])
    built = build_workload(plan.variants[0], plan.folder, None)

    assert isinstance(built.source, SessionSource)
    trace = built.trace
    assert built.source.trace is trace
    assert trace.content is not None
    first, later, other = (trace.content_of(row) for row in (0, 2, 1))
    assert first is not None
    assert later is not None
    assert other is not None
    # 100 + 10 tokens were said in turn 0; turn 1 has them all.
    assert first.shared(later) >= 110
    assert not first.shared(other)


def test_outputs_cut_by_max_tokens_are_cut_in_later_prompts_too(base: dict[str, Any]) -> None:
    plan = load(base, ["workload.max_tokens=4"])
    trace = build_workload(plan.variants[0], plan.folder, None).trace

    assert trace.prompt_tokens.tolist() == [100, 50, 124, 74, 9000, 9024]


def test_burstgpt_sessions_have_delays_and_are_asked_for_prompts(
    base: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "t.csv").write_text(
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,"
        "Log Type\n"
        "5.0,s1,2.0,GPT-4,30,10,40,Conversation log\n"
        "9.0,s1,2.0,GPT-4,20,10,30,Conversation log\n"
        "9.5,,2.0,GPT-4,20,10,30,Conversation log\n"
    )
    base["workload"]["sessions"] = {}
    drawn = "workload.sessions.delay={distribution: constant, mean_s: 3}"
    whole = "workload.sessions.prompts=whole"

    assert "1 of 1 later turns have prompts shorter" in refusal(base)
    # The answer took 2 s in the recording, and 2 s later came the next turn; here it takes 0.1 s.
    assert ms(run(base, whole).requests["arrival_ns"]) == [5000, 7100, 9500]
    assert ms(run(base, drawn, whole).requests["arrival_ns"]) == [5000, 8100, 9500]


def test_weka_conversations_run_in_closed_loop(base: dict[str, Any], shared: Path) -> None:
    base["workload"] = {
        "trace": str(shared / "traces" / "weka_claudecode_open.jsonl.gz"),
        "arrivals": {"process": "closed-loop", "concurrency": 4, "limit": 6},
        "sessions": {},
    }
    base["max_model_len"] = "none"
    base["kv"] = {"num_blocks": 200_000}
    done = run(base)

    counts = done.summary["sessions"]
    assert counts["sessions"] == 6
    assert done.summary["requests"]["arrived"] + counts["skipped"] == counts["turns"]
    assert counts["turns"] == len(done.requests["index"]) + counts["skipped"] > 50


def test_clients_of_a_trace_give_up_and_their_sessions_go_on(
    base: dict[str, Any], tmp_path: Path
) -> None:
    rows = TRACE.splitlines()
    given = [
        rows[0] + ",cancel_after_s",
        *(f"{row},{'0.0001' * (i < 1)}" for i, row in enumerate(rows[1:])),
    ]
    (tmp_path / "t.csv").write_text("\n".join(given))

    done = run(base)

    assert done.summary["requests"]["cancelled"] == 1
    assert STATES[done.requests["state"][0]] == "cancelled"
    assert done.requests["end_ns"][0] == 100_000
    assert done.requests["arrival_ns"][2] == 3_000_100_000  # the next turn of its session


# --- misuse

MISUSES = [
    (
        {"delay": "gama"},
        "workload.sessions.delay.distribution: gama: expected one of recorded, constant, "
        "exponential, gamma, lognormal; try gamma",
    ),
    (
        {"delay": "gamma"},
        "workload.sessions.delay.mean_s: is required by distribution gamma",
    ),
    (
        {"delay": {"distribution": "gamma", "mean_s": 3}},
        "workload.sessions.delay.cv: is required by distribution gamma",
    ),
    (
        {"delay": {"mean_s": 3}},
        "workload.sessions.delay.mean_s: belongs to distribution constant or exponential or gamma "
        "or lognormal, not to recorded",
    ),
    (
        {"delay": {"distribution": "exponential", "mean_s": 3, "cv": 1}},
        "workload.sessions.delay.cv: belongs to distribution gamma or lognormal, not to "
        "exponential",
    ),
    (
        {"delay": {"distribution": "exponential", "mean_s": 0}},
        "workload.sessions.delay.mean_s: 0: expected above 0; no delay at all is constant, "
        "mean_s 0",
    ),
    (
        {"on_failed_turn": "stop"},
        "workload.sessions.on_failed_turn: stop: expected one of skip, continue",
    ),
    (
        {"prompts": "incrementel"},
        "workload.sessions.prompts: incrementel: expected one of whole, incremental; try "
        "incremental",
    ),
    (
        {"think_time": 3},
        "workload.sessions.think_time: sessions has no such option",
    ),
]


@pytest.mark.parametrize(("sessions", "says"), MISUSES)
def test_each_misuse_gives_one_line(
    base: dict[str, Any], sessions: dict[str, Any], says: str
) -> None:
    base["workload"]["sessions"] = sessions
    with pytest.raises(ConfigError) as error:
        load(base)

    line = str(error.value)
    assert says in line
    assert "\n" not in line


def test_a_preset_has_no_sessions(base: dict[str, Any]) -> None:
    base["workload"] = {"preset": "azure-conv-2023", "requests": 9, "sessions": {}}
    with pytest.raises(ConfigError, match=r"workload\.sessions: belongs to a trace with a session"):
        load(base)


def test_a_trace_without_sessions_is_refused(base: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,10,5\n")

    assert "t.csv: sessions: no row has a session" in refusal(base)


def test_rows_that_may_be_incremental_are_asked_about(base: dict[str, Any]) -> None:
    said = refusal(base, "workload.sessions.prompts=null")

    assert "t.csv:4: sessions: 3 of 3 later turns have prompts shorter" in said
