"""The answer of a config: what a template may say, what it says, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import phasewise
from experiments import bundle, outcome
from experiments.answer import read_answer
from experiments.config import load
from experiments.expression import parse
from experiments.json_schema import json_schema
from sim.errors import ConfigError

LABELS = ["cache", "no cache", "4 colocated (sarathi)", "rate=0.5"]


def summary(ttft: float | None, attainment: float = 0.5) -> dict[str, Any]:
    block = {
        "ttft_s": {"mean": ttft, "p99": 2.0, "n": 1234},
        "slo_attainment": attainment,
        "cached_tokens": 123_456,
    }
    counts = {"requests": {"arrived": 10, "finished": 9}}
    return {
        "overall": block,
        "measured_requests": counts["requests"],
        "classes": {"tab-completion": block | counts, "v1.5": block | counts},
        "tenants": {},
    }


SUMMARIES = {
    "cache": summary(0.25, 0.75) | {"sessions": {"skipped": 3}},
    "no cache": summary(1.0),
    "4 colocated (sarathi)": summary(3.0),
    "rate=0.5": summary(None),
}


def said(template: object) -> str:
    return read_answer(template, LABELS, "a.yaml: answer").said(SUMMARIES)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{cache}", "cache needs a metric, such as {cache.ttft_s.mean}"),
        ("{4 colocated (sarathi)}", "4 colocated (sarathi) needs a metric, such as {4 colo"),
        ("{cache.ttft_s.mean / 0}", "has no value: it divides by 0"),
        ("{1 / (2 - 2)}", "has no value: it divides by 0"),
        ("{1e300 * 1e300}", "has no value: it is beyond all numbers"),
    ],
)
def test_what_has_no_value_in_any_run_is_refused_when_read(template: str, reason: str) -> None:
    with pytest.raises(ConfigError) as error:
        said(template)

    assert reason in str(error.value)


@pytest.mark.parametrize("metric", ["prefix_hit_rate_tokens", "session_e2e_s.mean"])
def test_no_answer_says_when_the_metric_has_no_value(metric: str) -> None:
    sentence = said(f"{{cache.{metric}}}")

    assert sentence.startswith(f"No answer: cache.{metric} has no value (Absent without ")


@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        ("no numbers", "no numbers"),
        ("{cache.ttft_s.mean:.2f} s", "0.25 s"),
        ("{no cache.ttft_s.mean} s", "1.00 s"),
        ("{cache.slo_attainment:.0%}", "75%"),
        ("{cache.cached_tokens}", "123,456"),
        ("{cache.cached_tokens / 1000:,.1f}k", "123.5k"),
        ("{cache.requests.finished} of {cache.requests.arrived}", "9 of 10"),
        ("{cache.sessions.skipped} turns", "3 turns"),
        ("{4 colocated (sarathi).ttft_s.mean:.0f}", "3"),
        ("{cache.classes.tab-completion.ttft_s.p99:.1f}", "2.0"),
        ("{cache.classes.v1.5.requests.finished}", "9"),
        ("{no cache.ttft_s.mean / cache.ttft_s.mean:.1f} times", "4.0 times"),
        ("{1 - cache.ttft_s.mean / no cache.ttft_s.mean:.0%} less", "75% less"),
        ("{2 * (cache.ttft_s.mean + 1) - 1:.2f}", "1.50"),
        ("{2 - 1 - 1 + 8 / 2 / 2:.0f}", "2"),
        ("{-cache.ttft_s.mean:.2f}", "-0.25"),
        ("{'less' if cache.ttft_s.mean < no cache.ttft_s.mean else 'more'}", "less"),
        ("{'less' if cache.ttft_s.mean >= 0.3 else \"more {or} so: \"}", "more {or} so:"),
        ("{'a' if 1 > 2 else 'b' if 2 <= 1 else 'c'}", "c"),
        ("{'a' if not (1 > 2 or 2 > 3) and 1 != 2 else 'b'}", "a"),
        ("{{braces}} and   line\n breaks", "{braces} and line breaks"),
    ],
)
def test_what_a_template_says(template: str, sentence: str) -> None:
    assert said(template) == sentence


def test_of_a_list_the_first_is_said_that_holds() -> None:
    entries: list[object] = [
        {"when": "cache.ttft_s.mean > no cache.ttft_s.mean", "say": "more"},
        {"when": "cache.ttft_s.mean < no cache.ttft_s.mean", "say": "less"},
        "the same",
    ]
    assert said(entries) == "less"
    assert said([entries[0], entries[2]]) == "the same"


@pytest.mark.parametrize(
    ("template", "why"),
    [
        (
            "{no cache.sessions.skipped}",
            "No answer: no cache.sessions.skipped has no value (no sessions in closed loop).",
        ),
        ("{rate=0.5.ttft_s.mean}", "No answer: rate=0.5.ttft_s.mean has no value."),
        ("{1e300 * cache.ttft_s.mean * 1e300}", "No answer: it is beyond all numbers."),
        ("{1 / (cache.ttft_s.mean - 0.25)}", "No answer: it divides by 0."),
    ],
)
def test_without_a_value_there_is_no_answer(template: str, why: str) -> None:
    assert said(template) == why


def test_a_variant_that_failed_is_named() -> None:
    answer = read_answer("{cache.ttft_s.mean}", LABELS, "answer")
    assert answer.said({}) == "No answer: cache has no results."


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{cach.ttft_s.mean:.2f}", r"no variant 'cach'; did you mean cache\?"),
        ("{no  cache.ttft_s.mean}", r"no variant 'no  cache'; did you mean no cache\?"),
        ("{rate=0.6.ttft_s.mean}", r"no variant 'rate=0.6'; did you mean rate=0.5\?"),
        ("{ttft}", r"no variant 'ttft'.*written cache.ttft_s.mean"),
        ("{}", "expected a number, or one of a variant such as label.ttft_s.mean at the end"),
        ("{cache.ttft.mean}", r"no metric 'ttft'; did you mean ttft_s\?"),
        ("{cache.ttft_s.p98}", r"no statistic 'p98'; did you mean p99\?"),
        ("{cache.ttft_s}", "ttft_s has several numbers; choose one of max, mean"),
        ("{cache.slo_attainment.mean}", "slo_attainment is one number and has no mean"),
        ("{cache.classes.chat.mfu}", "mfu is of the whole run, and not of one of its classes"),
        ("{cache.classes.chat}", "no metric 'classes'"),
        ("{cache.requests.lost}", "no statistic 'lost'"),
        ("{cache.requests}", "requests has several numbers; choose one of arrived"),
        ("{cache.classes.chat.sessions.turns}", "sessions is of the whole run"),
        ("{cache.ttft_s.mean:.2q}", "no format '.2q'; try one such as .2f"),
        ("{cache.ttft_s.mean:9999999d}", "no format '9999999d'"),
        ("{cache.ttft_s.mean no cache.ttft_s.mean}", "cannot be read from 'no cache"),
        ("{cache.ttft_s.mean < 1}", "is true or false; write {'this' if ... else 'that'}"),
        ("{'a' + 1}", r"\+ needs a number, not a text"),
        ("{'a':.2f}", ".2f is a format of numbers, and this is text"),
        ("{'a' if 1 else 'b'}", "if needs a comparison, such as a.x < b.x, not a number"),
        ("{'a' if 1 < 2}", "else is missing after if at the end"),
        ("{'a' if 1 < 2 else 3}", "if gives a text, else a number"),
        ("{" + "(" * 400 + "}", "has too many parentheses"),
        ("{" + "1 + " * 200 + "1}", "has 801 characters; expected at most 500"),
        ("{1e999}", "1e999 is beyond all numbers"),
        ("{(1 + 2}", r"\) is missing at the end"),
        ("{1 + }", "expected a number"),
        ("a } b", "} stands alone before ' b'; a brace of the text is written }}"),
        ("a {b", "{ stands alone before 'b'"),
        ("", "expected a sentence"),
        (7, "7: expected a sentence"),
        ({"cache.ttft_s.mean": None}, "expected a sentence; put it in quotes"),
        ([], r"\[\]: expected a sentence"),
        (["a", "b"], r"answer\[0\]: has no when"),
        ([{"when": "1 < 2", "say": "a"}], r"answer\[0\]: has a when.*add a sentence without"),
        ([{"when": "1 < 2"}, "b"], r"answer\[0\].say: is required"),
        ([{"when": "1", "say": "a"}, "b"], r"answer\[0\].when: 1: expected a comparison"),
        ([{"when": 1, "say": "a"}, "b"], r"answer\[0\].when: 1: expected a comparison"),
        ([{"when": "1 < 2 3", "say": "a"}, "b"], "cannot be read from '3' on"),
        ([{"wenn": "1 < 2", "say": "a"}, "b"], r"answer\[0\].wenn: .*did you mean when\?"),
    ],
)
def test_what_is_wrong_is_one_line(template: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        read_answer(template, LABELS, "a.yaml: answer")
    assert str(refused.value).startswith("a.yaml: answer")
    assert "\n" not in str(refused.value)


_NUMBERS = st.integers(0, 50).map(str)


@given(
    st.recursive(
        _NUMBERS,
        lambda inner: (
            st.tuples(inner, st.sampled_from("+-*"), inner).map(
                lambda each: f"({each[0]} {each[1]} {each[2]})"
            )
            | st.tuples(inner, st.sampled_from("+-*"), inner).map(" ".join)
        ),
    )
)
def test_arithmetic_is_that_of_python(text: str) -> None:
    node, rest = parse(text, LABELS)
    assert rest == ""
    assert node.value({}) == eval(text)


# --- in a config


CONFIG: dict[str, Any] = {
    "workload": {"preset": "azure-conv-2023", "requests": 12, "max_tokens": 1024},
    "model": "llama-3.1-8b",
    "step_time": {"model": "linear", "base_s": 0.005, "prefill_token_s": 3e-5},
    "compare": [
        {"label": "whole", "policy": "orca"},
        {"label": "in chunks", "policy": "sarathi"},
    ],
    "answer": "Chunks: {in chunks.itl_s.max:.3f} s, whole: {whole.itl_s.max:.3f} s.",
}


def test_results_in_python_have_the_answer_and_keep_it(tmp_path: Path) -> None:
    results = phasewise.run(CONFIG)
    frame = phasewise.metrics(results)["itl_s.max"]
    assert results.answer == f"Chunks: {frame['in chunks']:.3f} s, whole: {frame['whole']:.3f} s."
    results.save(tmp_path)
    assert phasewise.read(tmp_path).answer == results.answer


def test_a_run_prints_the_answer_and_stores_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = load(CONFIG)
    outcome.run(plan, tmp_path, processes=1, formats=["html"])
    printed = " ".join(capsys.readouterr().out.split())
    stored = bundle.answer_of(tmp_path)
    assert stored.startswith("Chunks: 0.")
    assert stored in printed
    assert stored in (tmp_path / "figures.html").read_text(encoding="utf-8")
    assert "answer" not in json.loads((tmp_path / "whole" / "summary.json").read_text())
    outcome.run(plan, tmp_path, processes=1, formats=[])
    assert bundle.answer_of(tmp_path) == stored


def test_the_answer_belongs_to_the_file_and_not_to_a_variant() -> None:
    compare = [{"label": "a", "policy": "orca", "answer": "b"}]
    with pytest.raises(ConfigError, match=r"compare\[0\].answer: belongs to the whole file"):
        load({**CONFIG, "answer": None, "compare": compare})


def test_a_resolved_variant_has_no_answer_and_runs_again(tmp_path: Path) -> None:
    phasewise.run(CONFIG).save(tmp_path)
    assert load(tmp_path / "whole" / "config.yaml").answer is None


def test_an_answer_can_be_set_and_is_checked() -> None:
    assert load(CONFIG, ["answer=none needed"]).answer is not None
    with pytest.raises(ConfigError, match=r"answer.*no variant 'wole'; did you mean whole"):
        load({**CONFIG, "answer": "{wole.mfu}"})


def trace(folder: Path, classes: str) -> dict[str, Any]:
    path = folder / "t.csv"
    rows = [f"{i},50,4,{name}" for i, name in enumerate(classes.split())]
    path.write_text("arrival_s,prompt_tokens,output_tokens,request_class\n" + "\n".join(rows))
    return {**CONFIG, "workload": {"trace": str(path), "max_tokens": 8}}


def test_a_class_is_checked_before_the_run(tmp_path: Path) -> None:
    config = trace(tmp_path, "tab agent")
    good = {**config, "answer": "{whole.classes.tab.ttft_s.mean:.4f}"}
    bad = {**config, "answer": "{whole.classes.tap.ttft_s.mean}"}
    alone = trace(tmp_path, "tab tab") | {"answer": good["answer"]}
    with pytest.raises(ConfigError, match="no request class 'tap'; did you mean tab"):
        outcome.check(load(bad))
    with pytest.raises(ConfigError, match="has this request class only"):
        phasewise.run(alone)
    trace(tmp_path, "tab agent")
    assert phasewise.run(good).answer == "0.0065"


def test_a_tenant_of_a_workload_without_tenants_is_refused(tmp_path: Path) -> None:
    config = trace(tmp_path, "tab agent") | {"answer": "{whole.tenants.a.ttft_s.mean}"}
    with pytest.raises(ConfigError, match=r"no tenant 'a'"):
        phasewise.run(config)


def test_editors_know_the_key() -> None:
    schema = json_schema()
    entry = schema["$defs"]["Saying"]["properties"]
    assert set(entry) == {"when", "say"}
    assert all(each["description"] for each in entry.values())
    assert "answer" in schema["properties"]
    assert "answer" not in schema["$defs"]["Variant"]["properties"]
