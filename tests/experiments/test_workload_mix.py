"""Presets with options, mixes, suggested targets and the order of prompts, in a config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.bundle import Bundle
from experiments.config import load
from experiments.json_schema import json_schema
from experiments.listing import entries
from experiments.variant import run_variant
from experiments.workload import build_workload
from sim.errors import ConfigError
from sim.records import STATES

COMMON: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "policy": {"name": "vllm-v1", "prefix_cache": True},
    "max_model_len": "none",
    "kv": {"num_blocks": 40_000},
    "step_time": {"model": "linear", "base_s": 0.01, "prefill_token_s": 2e-5},
}
TAB = {"preset": {"name": "tab-completion", "turns": 5}, "requests": 40}
AGENT = {"preset": {"name": "agent", "turns": 4}, "requests": 12}
EVERY_SECOND = {"process": "constant", "rate_per_s": 1}
MIX = {
    "mix": [
        {**TAB, "arrivals": {"process": "poisson", "rate_per_s": 2}},
        {**AGENT, "arrivals": {"process": "closed-loop", "concurrency": 2}},
        {"preset": "azure-conv-2023", "requests": 10, "request_class": "chat"},
    ],
    "max_tokens": 4096,
}


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,5,2\n1,5,2\n2,5,2\n")
    monkeypatch.chdir(tmp_path)


def config(workload: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {**COMMON, "workload": workload, **more}


def run(workload: dict[str, Any], *settings: str, **more: Any) -> Bundle:
    plan = load(config(workload, **more), settings)
    return run_variant(plan.variants[0], plan.folder)


def test_a_mix_runs_completions_agents_and_plain_requests_together() -> None:
    done = run(MIX, slo="preset")
    rows = done.requests

    classes, counts = np.unique(rows["request_class"].astype(str), return_counts=True)
    assert dict(zip(classes.tolist(), counts.tolist(), strict=True)) == {
        "agent": 12,
        "chat": 10,
        "tab-completion": 40,
    }
    cancelled = rows["state"] == STATES.index("cancelled")
    assert set(rows["request_class"][cancelled].tolist()) <= {"tab-completion"}
    assert done.summary["sessions"]["sessions"] == 3
    slo = load(config(MIX, slo="preset")).variants[0].slo
    assert {name: each.ttft_s for name, each in slo.classes.items()} == {
        "tab-completion": 0.1,
        "agent": 10,
    }
    # Two places for agents: the third session begins when one of the first two is over.
    agents = [
        name for name in dict.fromkeys(rows["session"].tolist()) if str(name).startswith("agent/")
    ]
    assert len(agents) == 3
    begins, ends = (
        {name: fold(rows[column][rows["session"] == name]) for name in agents}
        for column, fold in (("arrival_ns", min), ("end_ns", max))
    )
    assert begins[agents[2]] == min(ends[agents[0]], ends[agents[1]])


@pytest.mark.parametrize("check", [False, True])
def test_fast_forward_gives_the_same_rows(check: bool) -> None:
    fast, slow = (
        run(MIX, f"fast_forward={on}", f"check={str(check).lower()}") for on in ("true", "false")
    )

    assert all((fast.requests[name] == slow.requests[name]).all() for name in fast.requests)


def test_a_part_is_the_same_whatever_the_others_are() -> None:
    alone = {"mix": MIX["mix"][1:2], "max_tokens": 4096}
    mixed, by_itself = (
        build_workload(load(config(each)).variants[0], Path(), None).trace for each in (MIX, alone)
    )

    of_agents = mixed.request_class == "agent"
    assert (mixed.prompt_tokens[of_agents] == by_itself.prompt_tokens).all()
    assert (mixed.delay_ns[of_agents] == by_itself.delay_ns).all()


def test_parts_may_share_one_process() -> None:
    mix = {
        "mix": [
            {"preset": TAB["preset"], "share": 3},
            {"preset": "few-shot", "share": 1},
            {"trace": "t.csv", "share": 4, "request_class": "x"},
        ],
        "requests": 80,
        "arrivals": {"process": "constant", "rate_per_s": 8},
    }
    trace = build_workload(load(config(mix)).variants[0], Path(), None).trace

    assert trace.request_class is not None
    names, counts = np.unique(trace.request_class.astype(str), return_counts=True)
    assert dict(zip(names.tolist(), counts.tolist(), strict=True)) == {
        "None": 10,
        "tab-completion": 30,
        "x": 3,
    }
    assert trace.arrival_ns[trace.request_class == "x"].tolist() == [0, 250_000_000, 500_000_000]


def test_the_classic_mistake_costs_what_the_cache_would_have_saved() -> None:
    preset = {"name": "system-prompts", "system_tokens": 2000, "question_cv": 0.0}
    workload = {"preset": preset, "requests": 50, "arrivals": EVERY_SECOND}
    stable, variable = (
        run({**workload, "prompt_order": order}).requests
        for order in ("stable-first", "variable-first")
    )

    assert stable["cached_tokens"].sum() == 49 * 2000
    assert variable["cached_tokens"].sum() == 0
    # 2,000 prompt tokens at 20 us each, and 10 ms for a second step: 2,070 are over the budget.
    later = stable["first_token_ns"][1:] - stable["arrival_ns"][1:]
    mistaken = variable["first_token_ns"][1:] - variable["arrival_ns"][1:]
    assert set((mistaken - later).tolist()) == {50_000_000}


def test_sessions_of_a_trace_may_put_what_is_new_first(tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_text(
        "arrival_s,prompt_tokens,output_tokens,session,delay_s\n0,64,16,a,0\n1,160,16,a,1\n"
    )
    workload = {"trace": "s.csv", "sessions": {"prompts": "whole"}, "max_tokens": 16}
    found = [
        run({**workload, "prompt_order": order}).requests["cached_tokens"].tolist()
        for order in ("stable-first", "variable-first")
    ]

    # The answer's last token is never stored: 79 of 80 tokens, 4 whole blocks.
    assert found == [[0, 64], [0, 0]]


def test_options_of_a_preset_can_be_varied() -> None:
    base = config({"preset": "prefix-repetition", "requests": 20, "arrivals": EVERY_SECOND})
    base["grid"] = {"workload.preset.num_prefixes": [1, 5], "workload.preset.prefix_tokens": [160]}
    plan = load(base)
    hits = [run_variant(each, Path()).requests["cached_tokens"].sum() for each in plan.variants]

    assert hits == [19 * 160, 15 * 160]
    assert plan.variants[0].workload.preset == {
        "name": "prefix-repetition",
        "num_prefixes": 1,
        "prefix_tokens": 160,
    }


def test_presets_are_listed_with_their_options() -> None:
    listed = {entry.name: entry for entry in entries("presets")}

    assert listed["tab-completion"].options["output_tokens"] == 10
    assert "keystroke" in listed["tab-completion"].about
    preset = json_schema()["$defs"]["Part"]["properties"]["preset"]["anyOf"]
    documents = next(each for each in preset if each.get("properties", {}).get("documents"))
    assert documents["properties"]["zipf"]["default"] == 1.0
    assert documents["properties"]["zipf"]["description"]


TIMED = {"arrivals": EVERY_SECOND}
MISUSES: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"preset": "agnt", "requests": 2, **TIMED}, {}, "no preset 'agnt'; try agent"),
    (
        {"preset": {"name": "agent", "turn": 3}, "requests": 2, **TIMED},
        {},
        "workload.preset.turn: agent has no such option; try turns",
    ),
    (
        {"preset": {"name": "azure-conv-2023", "turns": 3}, "requests": 2},
        {},
        "workload.preset.turns: azure-conv-2023 has no options",
    ),
    (
        {"preset": {"name": "documents", "documents": 0}, "requests": 2, **TIMED},
        {},
        "workload.preset.documents: 0: expected at least 1",
    ),
    (
        {"preset": {"name": "tab-completion", "shortest_tokens": 3000}, "requests": 2, **TIMED},
        {},
        "shortest_tokens 3000 is above context_tokens 2000",
    ),
    ({"preset": "agent", "requests": 2}, {}, "how preset agent arrives is not recorded"),
    (
        {
            "preset": "tab-completion",
            "requests": 2,
            "arrivals": {"process": "closed-loop", "concurrency": 2},
        },
        {},
        "closed-loop: the requests of tab-completion come at times of their own",
    ),
    (
        {"preset": "few-shot", "requests": 2, **TIMED, "sessions": {}},
        {},
        "preset few-shot have no sessions",
    ),
    ({**MIX, "trace": "t.csv"}, {}, "workload.trace: there is a mix too"),
    ({"mix": [TAB], **TIMED}, {}, "no part of the mix has a share of it"),
    (
        {"mix": [{"preset": "few-shot", "share": 1}, {**TAB, **TIMED}], **TIMED},
        {},
        "workload.mix[1]: has no share, but others have",
    ),
    (
        {"mix": [{"preset": "few-shot", "share": 1}], **TIMED},
        {},
        "of how many requests is not said; give workload.requests",
    ),
    (
        {"mix": [{"preset": "few-shot", "share": 1}], "requests": 9},
        {},
        "parts share it, so that it needs a process and a rate",
    ),
    ({"mix": [{"requests": 3}]}, {}, "workload.mix[0]: needs a trace or a preset"),
    ({"mix": [{"trace": "u.csv"}]}, {}, "workload.mix[0].trace: u.csv: no such file"),
    (
        {"mix": [{"preset": "few-shot", "requests": 3, "arrivals": {"cv": 2}}]},
        {},
        "workload.mix[0].arrivals",
    ),
    ({"trace": "t.csv"}, {"slo": "preset"}, "slo: preset: no preset of the workload suggests"),
    (
        {
            "mix": [
                {**TAB, **TIMED, "request_class": "x"},
                {**AGENT, **TIMED, "request_class": "x"},
            ]
        },
        {"slo": "preset"},
        "two presets suggest different targets for class x",
    ),
]


@pytest.mark.parametrize(("workload", "more", "says"), MISUSES, ids=[m[2] for m in MISUSES])
def test_a_misuse_is_one_line(workload: dict[str, Any], more: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(config(workload, **more))

    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_an_order_where_nothing_is_known_of_prompts_is_refused() -> None:
    plan = load(config({"trace": "t.csv", "prompt_order": "variable-first"}))

    with pytest.raises(ConfigError, match="nothing is said of what its prompts are made of"):
        build_workload(plan.variants[0], plan.folder, None)
