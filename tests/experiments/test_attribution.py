"""What users see of where time went: the summary, the figure, `phasewise explain`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from typer.testing import CliRunner

import phasewise
from experiments import attribution, bundle, story
from experiments.advice import ADVICE, Setting, setting_of
from experiments.attribution_figure import attribution_drawings, color_of
from experiments.bounds import Bound
from experiments.cli import app
from experiments.figures import section
from experiments.looks import SCREEN, STYLES
from experiments.outages import Outage, outages_of
from experiments.remedies import help_for
from sim.attribution import E2E_COLUMNS, PHASES
from sim.errors import ConfigError
from sim.metrics import PER_REQUEST
from sim.records import CANCELLED, CHANGES
from sim.slo import select

CONFIG = """\
name: where
workload:
  mix:
  - {preset: azure-conv-2023, share: 2, request_class: chat}
  - {preset: azure-code-2023, share: 1, request_class: code}
  requests: 60
  arrivals: {process: poisson, rate_per_s: 12}
model: llama-3.1-8b
device: h100-sxm
compare:
- {label: v0, policy: vllm-v0}
- {label: v1, policy: vllm-v1}
- {label: off, policy: vllm-v1, record: {attribution: false}}
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("where")
    (folder / "where.yaml").write_text(CONFIG, encoding="utf-8")
    done = CliRunner().invoke(
        app, ["run", str(folder / "where.yaml"), "--out", str(folder / "out"), "--jobs", "1"]
    )
    assert done.exit_code == 0, done.output
    return folder / "out"


def _explain(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["explain", *arguments])


def test_the_file_adds_up_and_the_summary_is_of_requests_in_it(results: Path) -> None:
    found = bundle.read(results / "v0")
    table = found.requests
    e2e = np.sum([table[name] for name in E2E_COLUMNS], axis=0)
    assert e2e.tolist() == (table["end_ns"] - table["arrival_ns"]).tolist()
    told = found.summary["attribution"]
    setting = setting_of(found.config, (), found.summary["arithmetic"])
    assert list(told) == ["overall", "chat", "code"]
    counted = {"overall": found.summary["overall"], **found.summary["classes"]}
    for name, block in told.items():
        for whole, ranks in block.items():
            for rank, share in attribution.RANKS.items():
                split = ranks[rank]
                assert sum(split["phases_ns"].values()) == split["total_ns"]
                row = attribution.row_of(table, split["request"])
                if whole != "itl":
                    key = "p50" if rank == "median" else "p99"
                    assert split["total_ns"] == round(counted[name][f"{whole}_s"][key] * 1e9)
                    assert f"(request {split['request']}, " in split["sentence"]
                    one = attribution.split_of(table, row, whole)
                    assert one.values(setting).items() <= split.items()
                assert name in ("overall", table["request_class"][row])
                assert split["total_ns"] >= block[whole]["median"]["total_ns"] or share < 0.5


def test_the_ranked_gaps_are_those_that_the_summary_counts(results: Path) -> None:
    found = bundle.read(results / "v0")
    known, told = found.summary, found.summary["attribution"]
    counted = {"overall": known["overall"], **known["classes"]}
    for name, block in told.items():
        for rank, key in (("median", "p50"), ("p99", "p99")):
            split = block["itl"][rank]
            assert split["total_ns"] == round(counted[name]["itl_s"][key] * 1e9)
            assert split["token"] > 1
            most = found.requests["largest_itl_ns"][split["request"]]
            assert split["total_ns"] <= most


def test_the_largest_gap_is_told_and_that_of_an_older_version_is_not(results: Path) -> None:
    table = bundle.read(results / "v1").requests
    row = attribution.worst(table, "itl", 1)[0]
    gap = attribution.largest_gap(table, row)
    assert gap is not None
    assert gap.total_ns == int(table["largest_itl_ns"].max())
    said = story.render(table, row, "v1", Setting(), "itl")
    assert f"before token {gap.token} of request {gap.index}" in said.splitlines()[-1]
    older = {name: x for name, x in table.items() if not name.startswith("itl_max")}
    assert attribution.largest_gap(older, row) is None
    assert "which does not split single gaps" in story.render(older, row, "v1", Setting(), "itl")


def test_ranks_are_those_of_the_sorted_requests() -> None:
    e2e = [30, 10, 20, 40]
    table = {name: np.zeros(4, np.int64) for name in E2E_COLUMNS}
    table["e2e_stall_ns"] = np.array(e2e)
    table |= {"index": np.arange(4), "arrival_ns": np.zeros(4, np.int64)}
    table |= {"last_token_ns": np.array(e2e), "emitted_tokens": np.ones(4, np.int64)}
    table |= {"end_ns": np.array(e2e), "state": np.array([0, 0, 0, 1])}
    median, last = attribution.at_rank(table, 0.5), attribution.at_rank(table, 0.99)
    assert median is not None
    assert last is not None
    assert (median.index, last.index) == (2, 0)  # the fourth was rejected
    assert last.dominant == "stall"
    assert "stalled while steps of others ran" in attribution.sentence(last, Setting(), "p99")


def test_the_sentence_names_phase_resource_and_help() -> None:
    split = attribution.Split(3, "e2e", {"queue_memory": 600, "preempted": 150, "decode_gpu": 250})
    said = attribution.sentence(split, Setting(), "p99", "chat")
    assert said.startswith("The P99 request of class chat (request 3, E2E 1 us) spent 60% of that")
    assert "75% of it hangs on KV capacity" in said
    assert "more KV blocks (GPUs, fp8 KV, a smaller model) or fewer requests at a time" in said


POOL = "a pool of its own for prefills"
TWO = {"replicas": 1, "policy": {"name": "sarathi"}, "step_time": {"model": "linear"}}


@pytest.mark.parametrize(
    ("policy", "chunked", "mixed", "cached"),
    [
        ({"name": "vllm-v0"}, False, False, False),
        ({"name": "orca"}, False, True, False),
        ({"name": "vllm-v1", "prefix_cache": True}, True, True, True),
        ({"name": "sarathi"}, True, True, False),
        ({"name": "sglang"}, True, False, True),
        ({"name": "sglang", "mixed_chunk": True, "prefix_cache": False}, True, True, False),
        ({"name": "sglang", "chunked_prefill_size": None, "mixed_chunk": True}, False, False, True),
    ],
)
def test_what_a_variant_does_already(
    policy: dict[str, Any], chunked: bool, mixed: bool, cached: bool
) -> None:
    pool = {"policy": policy, "step_time": {"model": "linear"}}
    alone = setting_of({"pools": {"colocated": pool}})
    does = (chunked, mixed, cached)
    assert (alone.pools, alone.chunked, alone.mixed, alone.cached) == (False, *does)
    assert alone.unknown == "linear step times know no FLOPs"
    two = {"prefill": pool, "decode": TWO, "transfer": {}}
    outage = Outage(decodes=False, begin_ns=7, end_ns=9)
    apart = setting_of({"pools": two}, [outage])
    assert (apart.pools, apart.chunked, apart.mixed, apart.cached) == (True, *does)
    assert apart.outages == (outage,)
    assert apart.decode_budget == "budget_tokens"


@pytest.mark.parametrize("phase", PHASES)
def test_nobody_is_told_to_do_what_is_done_already(phase: str) -> None:
    split = help_for(phase, Setting(pools=True))
    assert "pool of its own" not in split
    assert "pool of their own" not in split
    assert "two pools" not in split
    chunks = help_for(phase, Setting(chunked=True, mixed=True))
    assert "chunked prefills" not in chunks
    assert "prefills in steps" not in chunks
    assert "a prefix cache" not in help_for(phase, Setting(cached=True))


def test_help_is_still_given_where_it_is_none_already() -> None:
    assert POOL in help_for("prefill", Setting(chunked=True, cached=True))
    assert POOL in help_for("decode_prefills", Setting(mixed=True))
    assert "a prefix cache" in help_for("prefill", Setting(pools=True))
    assert help_for("prefill", Setting(pools=True, cached=True)) == "more prefill replicas or GPUs"
    assert "chunked prefills" in help_for("stall", Setting(chunked=True))  # sglang, not mixed


POLICIES: list[dict[str, Any]] = [
    {"name": "static"},
    {"name": "orca"},
    {"name": "vllm-v0"},
    {"name": "vllm-v1"},
    {"name": "sarathi"},
    {"name": "sglang"},
    {"name": "sglang", "chunked_prefill_size": None},
    {"name": "distserve"},
    {"name": "mine:Own"},
]
BUDGETS = [
    *(None, None, "max_num_batched_tokens", "max_num_batched_tokens", "budget_tokens"),
    *("chunked_prefill_size", "max_prefill_tokens", "max_tokens_per_batch", None),
]


@pytest.mark.parametrize(("policy", "budget"), list(zip(POLICIES, BUDGETS, strict=True)))
def test_only_options_that_the_policy_has_are_told(
    policy: dict[str, Any], budget: str | None
) -> None:
    pool = {"policy": policy, "step_time": {"model": "linear"}}
    setting = setting_of({"pools": {"colocated": pool}})
    said = {phase: help_for(phase, setting) for phase in PHASES}
    together = " ".join(said.values())
    assert ("token budget" in together) == (budget is not None)
    if budget is not None:
        assert f"a larger token budget ({budget})" in said["queue_budget"]
        assert f"a smaller token budget ({budget})" in said["queue_step"]
    assert ("a prefix cache" in together) == (policy["name"] == "vllm-v1")  # sglang has it on
    for option in ("return_at", "batch_timeout_s", "no padding"):
        assert (option in together) == (policy["name"] == "static")


def test_what_precision_and_transfers_have_already_is_not_told() -> None:
    pool = {"policy": {"name": "vllm-v1"}, "step_time": {"model": "linear"}}
    small = {**pool, "precision": {"kv": "fp8", "weights": "int4"}}
    for entry, transfer, told in ((pool, {}, True), (small, {"overlap": "layerwise"}, False)):
        setting = setting_of({"pools": {"prefill": entry, "decode": entry, "transfer": transfer}})
        assert ("fp8 KV" in help_for("queue_memory", setting)) == told
        assert ("lower precision" in help_for("decode_gpu", setting)) == told
        assert ("layer-wise" in help_for("transfer", setting)) == told
        assert "do not block" not in help_for("stall", setting)


@pytest.mark.parametrize(
    ("resource", "larger", "smaller"),
    [("compute", False, True), ("memory bandwidth", True, False)],
)
def test_another_budget_is_told_only_where_it_can_help(
    resource: str, larger: bool, smaller: bool
) -> None:
    times = (2.0, 1.0) if resource == "compute" else (1.0, 2.0)
    for pools in (False, True):
        setting = Setting(pools=pools, chunked=True, bounds={"prefill": Bound(1.0, 1.0, *times)})
        for phase in ("queue_budget", "between"):
            said = help_for(phase, setting)
            assert ("a larger token budget" in said) == larger
            assert ("less load" in said) != larger
        for phase in ("queue_step", "decode_prefills"):
            assert ("a smaller token budget" in help_for(phase, setting)) == smaller


S = 1_000_000_000
WAITS = {"queue_budget": 6 * S, "prefill": 4 * S}
HIT = {"queue_no_replica": 2 * S, "decode_gpu": 8 * S}


@pytest.mark.parametrize(
    ("ns", "whole", "down", "told"),
    [
        (WAITS, "ttft", [(12, 14)], True),  # arrived at 10, queued to 16
        (WAITS, "ttft", [(12, 13)], False),  # a tenth of the time
        (WAITS, "ttft", [(12, 13), (14, 15)], True),
        (WAITS, "ttft", [(12, 13.5), (12, 13.5)], False),  # two at once count once
        (WAITS, "ttft", [(16, 20)], False),  # it was prefilled meanwhile
        (WAITS, "ttft", [(2, 10)], False),  # up again as it came
        ({"prefill": 6 * S, "queue_budget": 4 * S}, "ttft", [(10, 20)], False),
        ({"stall": 10 * S}, "itl", [(2, 9)], False),
        ({"stall": 10 * S}, "itl", [(2, 30)], False),
        (WAITS, "itl", [(14, 20)], True),  # of 6 s within it 4 at most were no wait
        (WAITS, "itl", [(15, 20)], False),
        (HIT, "e2e", [(11, 13)], True),
        (HIT, "e2e", [(5, 9)], False),  # it waited for one that was drained
        ({"queue_no_replica": S, "decode_gpu": 9 * S}, "e2e", [(11, 12)], False),
    ],
)
def test_a_failure_is_told_only_where_it_is_shown_to_matter(
    ns: dict[str, int], whole: str, down: list[tuple[float, float]], told: bool
) -> None:
    outages = tuple(Outage(False, round(a * S), round(b * S)) for a, b in down)
    split = attribution.Split(1, whole, ns, 20 * S)
    said = attribution.sentence(split, Setting(outages=outages))
    assert ("spare replicas or a shorter restart, as a replica had failed" in said) == told
    elsewhere = tuple(each._replace(decodes=True) for each in outages)
    if ns is WAITS:
        assert "failed" not in attribution.sentence(split, Setting(pools=True, outages=elsewhere))


class _Replica(NamedTuple):
    pool: str


def test_an_outage_ends_when_the_replica_or_another_is_up() -> None:
    def outages(events: list[tuple[int, int, str]], restart: dict[str, Any]) -> list[Any]:
        changes = {
            "time_ns": np.array([at_ns for at_ns, _, _ in events]),
            "replica": np.array([replica for _, replica, _ in events]),
            "change": np.array([CHANGES.index(change) for _, _, change in events]),
        }
        pool = {"restart": restart}
        replicas: Any = [_Replica("prefill"), _Replica("decode"), _Replica("decode")]
        config = {"pools": {"prefill": pool, "decode": pool}}
        return [tuple(each) for each in outages_of(config, changes, replicas)]

    back, loads = [(1, 0, "failed"), (4, 0, "restored")], {"load_s": 2.0}
    assert outages(back, {}) == [(False, 1, 4)]
    assert outages([*back, (6, 0, "up")], loads) == [(False, 1, 6)]
    assert outages([(1, 1, "failed"), (3, 0, "added"), (5, 2, "added")], {}) == [(True, 1, 5)]
    assert outages(back, loads)[0][2] > 1 << 60


def test_the_sentence_of_a_run_goes_by_its_layout_and_its_failures(tmp_path: Path) -> None:
    config: dict[str, Any] = {
        "workload": {
            "preset": "azure-code-2023",
            "requests": 60,
            "arrivals": {"process": "poisson", "rate_per_s": 40},
        },
        "model": "llama-3.1-8b",
        "policy": "sarathi",
        "pools": {
            "prefill": {"replicas": 2},
            "decode": {"replicas": 1},
            "transfer": {"bandwidth_bytes_per_s": 50e9},
        },
    }
    events = [{"at_s": 0.01, "what": "fail", "pool": "prefill", "replica": 1}]
    plain, failed = (
        phasewise.run({**config, "events": made}).bundles[0].summary for made in ([], events)
    )
    said = plain["attribution"]["overall"]["ttft"]["p99"]["sentence"]
    assert "token budget" in said
    assert POOL not in said
    assert "failed" not in said
    after = failed["attribution"]["overall"]["ttft"]["p99"]["sentence"]
    assert "What usually helps: spare replicas or a shorter restart" in after


def test_every_phase_has_advice_and_a_colour_of_its_own() -> None:
    assert set(ADVICE) == set(PHASES)
    assert len({color_of(phase) for phase in PHASES if not phase.startswith("queue")}) == 26


def test_a_bar_for_each_variant_and_rank_adds_up_to_all_of_it(results: Path) -> None:
    bundles = [bundle.read(results / name) for name in ("v0", "v1", "off")]
    drawings = attribution_drawings(bundles)
    assert [each.key for each in drawings] == [f"attribution_{x}" for x in ("e2e", "ttft", "itl")]
    for drawing in drawings:
        first, *lines = drawing.about.split("\n")
        assert "P99" in first
        assert [line.split(":")[0] for line in lines] == ["v0", "v1"]
        page = section("a", "A", drawing.about, drawing.make(SCREEN, "log"))
        assert page.count("<p>") == 3
        assert f"<p>v0: The P99 {'gap' if drawing.key.endswith('itl') else 'request'}" in page
        for style in (SCREEN, *STYLES.values()):
            fig = drawing.make(style, "log")
            bars = [trace for trace in fig.data if trace.type == "bar" and trace.xaxis == "x"]
            sums = np.sum([trace.y for trace in bars], axis=0)
            assert sums == pytest.approx([100] * 4)
    assert attribution_drawings([bundles[2]]) == []


def test_explain_says_it_in_words_and_as_json(results: Path) -> None:
    whole = _explain(str(results / "v0"))
    assert whole.exit_code == 0, whole.output
    assert "class chat" in whole.output
    assert "What usually helps" in whole.output

    one = _explain(str(results / "v0"), "7", "--json")
    (told,) = json.loads(one.output)
    assert told["index"] == 7
    assert sum(told["e2e"]["phases_ns"].values()) == told["end_ns"] - told["arrival_ns"]
    assert sum(told["decode_ns"].values()) == told["last_token_ns"] - told["first_token_ns"]

    text = _explain(str(results / "v0"), "7").output
    assert "to the first token" in text
    assert "decode_gpu: decoding as if alone" in text
    assert all(len(line) <= 110 for line in text.splitlines()[:-1])


def test_the_worst_come_first(results: Path) -> None:
    told = json.loads(_explain(str(results / "v1"), "--worst", "ttft", "3", "--json").output)
    ttft = [each["first_token_ns"] - each["arrival_ns"] for each in told]
    table = bundle.read(results / "v1").requests
    assert ttft == sorted((table["first_token_ns"] - table["arrival_ns"]).tolist())[:-4:-1]
    gaps = json.loads(_explain(str(results / "v1"), "--worst", "itl", "1", "--json").output)
    assert gaps[0]["index"] == int(table["index"][table["largest_itl_ns"].argmax()])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("v0", "60"), "request 60: not in these results; they have 0 to 59"),
        (("v0", "--worst", "itf", "1"), "--worst itf 1: no metric 'itf'; try itl"),
        (("v0", "--worst", "itl", "0"), "--worst itl 0: expected at least 1"),
        (("v0", "3", "--worst", "itl", "1"), "give one of them"),
        (("off",), "record.attribution: always"),
    ],
)
def test_what_is_wrong_is_one_line(results: Path, arguments: tuple[str, ...], message: str) -> None:
    done = _explain(str(results / arguments[0]), *arguments[1:])
    assert done.exit_code == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_large_runs_leave_it_out_and_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attribution, "MOST_REQUESTS", 59)
    (tmp_path / "where.yaml").write_text(CONFIG, encoding="utf-8")
    for said, kept in (({}, False), ({"record.attribution": "always"}, True)):
        one = phasewise.run(tmp_path / "where.yaml", **said).bundles[0]
        assert attribution.is_attributed(one.requests) == kept
        assert (attribution.NOT_ATTRIBUTED in one.notes) != kept


def test_worst_refuses_what_it_does_not_know() -> None:
    with pytest.raises(
        ConfigError, match="--worst x 1: no metric 'x'; choose one of e2e, itl, ttft"
    ):
        attribution.worst({}, "x", 1)


def test_the_sentence_says_what_failures_took() -> None:
    ns = {"decode_gpu": 700, "lost": 50, "reprefill_failure": 250}
    split = attribution.Split(3, "e2e", ns, 5000)
    failed = Setting(outages=(Outage(False, 4500, 4600),))
    said = attribution.sentence(split, failed)
    assert (
        "70% of it hangs on memory bandwidth. Failures of replicas took 300 ns of it (30%)." in said
    )
    assert split.resources(Setting()) == {"memory bandwidth": 700, "replicas": 300}
    later = Setting(outages=(Outage(False, 5000, 5100),))
    assert "Failures" not in attribution.sentence(split, later)
    given_up = attribution.Split(3, "e2e", {"decode_gpu": 700, "lost": 50}, 5000)
    assert "Failures" not in attribution.sentence(given_up, failed)


@pytest.mark.parametrize(
    ("what", "key"), [("ttft", "ttft"), ("itl", "largest_gap"), ("e2e", "e2e")]
)
def test_the_worst_are_told_by_what_they_are_worst_in(results: Path, what: str, key: str) -> None:
    folder = str(results / "v1")
    (told,) = json.loads(_explain(folder, "--worst", what, "1", "--json").output)
    text = _explain(folder, "--worst", what, "1").output
    assert told[key]["sentence"] in text
    assert not any(told[other]["sentence"] in text for other in {"ttft", "decode", "e2e"} - {key})
    after = told["e2e"]["total_ns"] - told["ttft"]["total_ns"]
    assert told["decode"]["total_ns"] == after == sum(told["decode_ns"].values())
    assert ("The gap between tokens" in text) == (what == "itl")


def test_fewer_than_asked_for_is_said(results: Path) -> None:
    done = _explain(str(results / "v1"), "--worst", "ttft", "100000", "--json")
    assert done.stderr == "--worst ttft 100000: 60 requests have ttft\n"
    assert len(json.loads(done.stdout)) == 60


def test_a_folder_of_several_variants_names_them(results: Path) -> None:
    done = _explain(str(results))
    assert done.exit_code == 2
    assert f"{results}: holds 3 variants: v0, v1, off; name one, such as {results / 'v0'}" in (
        done.stderr
    )


def test_phases_that_an_older_bundle_lacks_count_as_none(results: Path) -> None:
    table = bundle.read(results / "v1").requests
    older = {k: v for k, v in table.items() if not k.endswith("reprefill_failure_ns")}
    assert attribution.split_of(older, 3) == attribution.split_of(table, 3)


EARLY = """\
name: early
workload:
  preset: azure-conv-2023
  requests: 80
  arrivals: {process: poisson, rate_per_s: 60}
  cancel: {share: 0.7, after: {distribution: exponential, mean_s: 1}}
model: llama-3.1-8b
device: h100-sxm
policy: {name: vllm-v1, max_num_seqs: 8}
"""


@pytest.fixture(scope="module")
def early(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("early")
    (folder / "early.yaml").write_text(EARLY, encoding="utf-8")
    done = CliRunner().invoke(
        app, ["run", str(folder / "early.yaml"), "--out", str(folder / "out"), "--jobs", "1"]
    )
    assert done.exit_code == 0, done.output
    (results,) = bundle.find(folder / "out")
    return results


def test_percentiles_are_of_the_requests_that_the_table_counts(early: Path) -> None:
    found = bundle.read(early)
    table, known, told = found.requests, found.summary["overall"], found.summary["attribution"]
    assert ((table["first_token_ns"] >= 0) & (table["state"] == CANCELLED)).any()
    for whole in ("ttft", "e2e"):
        for rank, key in (("median", "p50"), ("p99", "p99")):
            split = told["overall"][whole][rank]
            assert split["total_ns"] == round(known[f"{whole}_s"][key] * 1e9)
            assert sum(split["phases_ns"].values()) == split["total_ns"]
        rows = attribution.worst(table, whole, 1000)
        assert len(rows) == known[f"{whole}_s"]["n"]
        values = PER_REQUEST[whole](table)[rows].tolist()
        assert values == sorted(values, reverse=True)


def test_ttft_is_told_where_nobody_finished(early: Path) -> None:
    table = bundle.read(early).requests
    cancelled = select(table, table["state"] == CANCELLED)
    assert list(attribution.summarize(cancelled, Setting())["overall"]) == ["ttft"]


def test_who_was_cancelled_without_a_token_is_said_to_be(early: Path) -> None:
    table = bundle.read(early).requests
    row = np.flatnonzero((table["state"] == CANCELLED) & (table["first_token_ns"] < 0))[0]
    index, took = int(table["index"][row]), int((table["end_ns"] - table["arrival_ns"])[row])
    text = _explain(str(early), str(index)).output
    assert f"Request {index} (cancelled after {attribution.seconds(took)} without a token)" in text
    assert "to its end" in text
    assert not any(words in text for words in ("to 1st token", "after it", "E2E"))
