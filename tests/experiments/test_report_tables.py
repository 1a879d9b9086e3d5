"""The comparison table and its four ways of being written."""

import csv
import io

import numpy as np
import pytest
from rich.console import Console

from experiments.bundle import Head
from experiments.report import unique_labels
from experiments.summary import summarize
from experiments.tables import (
    compare,
    escape_latex,
    show,
    table_text,
    three_digits,
    to_csv,
    to_latex,
    to_markdown,
)
from sim.errors import ConfigError
from sim.metrics import distribution
from sim.records import SERIES_COLUMNS
from sim.slo import SLO, Windows

S = 1_000_000_000


class Replica:
    joined_ns, left_ns = 0, -1
    name, pool, gpus, total_blocks, busy_ns, iterations = "main-0", "main", 2, 10, S, 50
    block_tokens, lost_blocks = 16, None


class Run:
    """A bundle with 300 requests whose latencies all scale with `slowness`."""

    def __init__(self, label, slowness=1, classes=None, **options):
        n = 300
        arrival_ns = np.arange(n) * S
        first_ns = arrival_ns + slowness * S // 10
        self.label, self.policy = label, "orca"
        self.requests = {
            "arrival_ns": arrival_ns,
            "prompt_tokens": np.full(n, 10),
            "emitted_tokens": np.full(n, 11),
            "state": np.zeros(n, np.int8),
            "reason": np.zeros(n, np.int16),
            "first_scheduled_ns": arrival_ns,
            "prefill_end_ns": first_ns,
            "first_token_ns": first_ns,
            "last_token_ns": first_ns + slowness * S // 10,
            "end_ns": first_ns + slowness * S // 10,
            "largest_itl_ns": np.full(n, slowness * S // 100),
            "preemptions": np.zeros(n, np.int64),
            "recomputed_tokens": np.zeros(n, np.int64),
            "cached_tokens": np.zeros(n, np.int64),
        }
        gaps = np.array([slowness * S // 100]), np.array([n * 10])
        self.itl = {"(none)": gaps}
        if classes:
            self.requests["request_class"] = np.resize(np.array(classes, object), n)
            self.itl = dict.fromkeys(classes, gaps)
        names = SERIES_COLUMNS
        self.workload = ""
        self.summary = summarize(
            self.requests,
            itl=self.itl,
            series={name: np.zeros(0, np.int64) for name in names},
            replicas=[Replica()],
            reasons=[""],
            run_end_ns=400 * S,
            **options,
        )


def cells(comparison, key):
    i = [column.key for column in comparison.columns].index(key)
    return [row[i] for row in comparison.shown()]


def test_the_table_has_a_row_per_variant_and_the_columns_asked_for():
    comparison = compare([Run("a"), Run("b", 2)])
    assert cells(comparison, "variant") == ["a", "b"]
    assert cells(comparison, "ttft_s_p99") == ["0.100", "0.200"]
    assert cells(comparison, "tpot_s_p50") == ["10.0", "20.0"]
    assert cells(comparison, "verdict") == ["stable", "stable"]
    assert cells(comparison, "slo_attainment") == ["-", "-"]


def test_a_column_that_some_variants_have_stands_where_it_says_something():
    runs = [Run("a"), Run("b"), Run("c")]
    keys = [column.key for column in compare(runs).columns]
    assert not {"prefix_hit_rate_tokens", "jain_served_tokens", "imbalance_served_tokens"} & {*keys}
    runs[0].summary["overall"]["prefix_hit_rate_tokens"] = 0.0
    runs[1].summary["overall"]["prefix_hit_rate_tokens"] = 0.94
    runs[1].summary["overall"]["imbalance_served_tokens"] = 1.1
    comparison = compare(runs)
    assert cells(comparison, "prefix_hit_rate_tokens") == ["0", "94.0", "-"]
    assert [column.key for column in comparison.columns] == [*keys, "prefix_hit_rate_tokens"]
    runs[2].summary["overall"]["swap_outs"] = 7
    assert cells(compare(runs), "swap_outs") == ["-", "-", "7"]
    runs[2].summary["overall"]["imbalance_served_tokens"] = 1.5
    assert cells(compare(runs), "imbalance_served_tokens") == ["-", "1.10", "1.50"]


def test_the_best_value_is_marked_and_ties_at_large_are_not():
    comparison = compare([Run("a", 2), Run("b"), Run("c")])
    best = dict(zip([c.key for c in comparison.columns], comparison.best(), strict=True))
    assert best["ttft_s_mean"] == {1, 2}
    assert best["preemptions"] == frozenset()
    assert best["gpus"] == frozenset()


def test_a_value_is_best_among_runs_of_the_same_workload_only():
    runs = [Run("a", 4), Run("b", 8), Run("light", 2), Run("light too"), Run("alone")]
    runs[2].workload = runs[3].workload = "light"
    runs[4].workload = "other"
    comparison = compare(runs)
    best = dict(zip([c.key for c in comparison.columns], comparison.best(), strict=True))
    assert best["ttft_s_mean"] == {0, 3}
    assert comparison.notes[0].startswith(
        "Best values are marked among variants of the same requests, window and SLO (there are 3)"
    )
    assert compare(runs[:2]).notes[0].startswith("Best values are marked (*, or bold);")
    for run in runs[:2]:
        run.summary["requests"] |= {"rejected": 30}  # more than the others: still best of its own
    assert compare(runs).unranked == frozenset()


def test_requests_window_and_targets_make_a_workload():
    def head(trace="", **config):
        told = {"workload": {"preset": "p"}, "seed": 0, "warm_up_s": 0, "drain_s": 0, "slo": {}}
        environment = {"trace_sha256": trace}
        return Head(
            config={**told, **config}, environment=environment, reasons=[], replicas=[], end_ns=0
        )

    plain = head(label="a", model="m", pools={"colocated": {"policy": {"name": "orca"}}})
    assert plain.workload == head(label="b", model="other").workload
    for other in ({"seed": 1}, {"warm_up_s": 5}, {"slo": {"ttft_s": 1}}, {"trace": "f00"}):
        assert head(**other).workload != plain.workload


def test_values_that_look_alike_are_marked_alike():
    runs = [Run("a"), Run("b"), Run("c", 2)]
    runs[0].summary["overall"]["ttft_s"]["mean"] = 0.100001
    comparison = compare(runs)
    best = dict(zip([c.key for c in comparison.columns], comparison.best(), strict=True))
    assert best["ttft_s_mean"] == {0, 1}


def test_labels_are_text_and_not_markup():
    label = "<b>a</b> | [red]x[/red] & 50% $x_1^2$ \\ {~}\nnext"
    comparison = compare([Run(label), Run("other", 2)])
    assert "&lt;b&gt;a&lt;/b&gt; \\| \\[red\\]x" in to_markdown(comparison)
    assert r"\textless{}b\textgreater{}a" in to_latex(comparison)
    assert (
        r"\& 50\% \$x\_1\textasciicircum{}2\$ \textbackslash{} \{\textasciitilde{}\}"
        in to_latex(comparison)
    )
    read = next(csv.DictReader(io.StringIO(to_csv(comparison))))
    assert read["variant"] == " ".join(label.split())
    console = Console(width=300, record=True, file=io.StringIO())
    show(comparison, console)
    assert "[red]x[/red]" in console.export_text()


def test_markdown_rows_have_as_many_cells_as_the_heading():
    lines = to_markdown(compare([Run("a|b"), Run("c")])).split("\n\n")[0].splitlines()
    assert {line.replace("\\|", "").count("|") for line in lines} == {18}


def test_csv_holds_raw_values_and_leaves_the_undefined_empty():
    rows = list(csv.DictReader(io.StringIO(to_csv(compare([Run("a")])))))
    assert float(rows[0]["itl_s_p99"]) == 0.01
    assert rows[0]["slo_attainment"] == ""


def test_a_narrow_terminal_gets_several_tables_with_every_column_once():
    comparison = compare([Run("a rather long label of a variant"), Run("b", 2)])
    console = Console(width=80, record=True, file=io.StringIO())
    show(comparison, console)
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("Variant") >= 2
    assert text.count("Preemptions") == 1
    assert "0.100*" in text


def with_rejections(run, **reasons):
    lost = sum(reasons.values())
    counts = run.summary["requests"] | {"rejected": lost, "finished": 300 - lost}
    run.summary = run.summary | {"reasons": reasons, "requests": counts}
    return run


def test_a_note_says_how_many_were_not_served_and_why():
    run = with_rejections(Run("a"), empty=1, over_pool=120, mine=4)

    assert (
        "a: 1 rejected: empty (no prompt or no output); 120 rejected: over_pool (prompt + "
        "max_tokens over the KV pool of 160 tokens); 4 rejected: mine."
    ) in compare([Run("b"), run]).notes


def test_what_served_less_than_others_is_never_best_and_a_note_says_so():
    fast, slow, slower = (
        with_rejections(Run("fast"), over_pool=60),
        Run("slow", 2),
        Run("slower", 3),
    )
    comparison = compare([fast, slow, slower])

    assert set().union(*comparison.best()) == {1}
    assert comparison.notes[1] == (
        "Not marked as best, since more of their requests than of others were not served: "
        "fast (20.0%)."
    )
    assert set().union(*compare([Run("fast"), slow]).best()) == {0}


def test_where_all_serve_equally_little_the_best_is_marked():
    runs = [with_rejections(Run(str(n), n), over_pool=60) for n in (1, 2)]

    assert set().union(*compare(runs).best()) == {0}


def test_notes_name_windows_and_targets():
    slo = SLO(ttft_s=1, classes={"chat": SLO(tpot_s=0.05)})
    notes = compare([Run("a", slo=slo, windows=Windows(5, 2))]).notes
    assert "Not measured: requests arriving in the first 5 s and last 2 s" in " ".join(notes)
    assert "SLO: ttft 1 s, chat (tpot 0.05 s)." in notes


def test_windows_and_targets_that_differ_are_told_with_their_runs():
    runs = [
        Run("a", slo=SLO(ttft_s=1), windows=Windows(5, 2)),
        Run("b", slo=SLO(ttft_s=2)),
        Run("c", slo=SLO(ttft_s=2)),
    ]
    notes = compare(runs).notes
    assert "SLO: ttft 1 s (a); ttft 2 s (b, c)." in notes
    assert (
        "Not measured: requests arriving in the first 5 s and last 2 s (a); none (b, c) "
        "(counts include them)."
    ) in notes


def test_no_gap_between_tokens_is_no_merit():
    runs = [Run("a"), Run("b", 2), Run("c", 3)]
    for name in ("tpot_s", "itl_s"):
        block = runs[2].summary["overall"]
        block[name] = dict.fromkeys(block[name], 0.0)
    comparison = compare(runs)
    best = dict(zip([c.key for c in comparison.columns], comparison.best(), strict=True))
    assert best["tpot_s_p99"] == best["itl_s_p99"] == {0}
    assert any(note.startswith("TPOT and ITL of 0") for note in comparison.notes)


def test_codes_of_emoji_stay_as_written():
    console = Console(width=300, record=True, file=io.StringIO())
    show(compare([Run("a:smile:b", slo=SLO(ttft_s=1)), Run("b", 2)]), console)
    text = console.export_text()
    assert "a:smile:b" in text
    assert "SLO: ttft 1 s (a:smile:b); none (b)." in text


def test_one_class_can_be_compared_and_an_unknown_one_is_refused():
    runs = [Run("a", classes=["chat", "batch"])]
    assert cells(compare(runs, "chat"), "finished_requests") == ["150"]
    with pytest.raises(ConfigError, match=r"a: no request class 'caht'; did you mean chat\?"):
        compare(runs, "caht")


def test_an_unknown_format_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match=r"did you mean latex\?"):
        table_text(compare([Run("a")]), "latx")


def test_labels_that_occur_twice_are_numbered():
    assert unique_labels([Run("a"), Run("a"), Run("a (2)"), Run(" ")]) == [
        "a",
        "a (2)",
        "a (2) (2)",
        "(no label)",
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.01234, "0.0123"),
        (0.9996, "1.00"),
        (12.345, "12.3"),
        (999.6, "1,000"),
        (123456.0, "123,000"),
        (1e-5, "1.00e-05"),
        (2.5e7, "2.50e+07"),
    ],
)
def test_numbers_are_shown_to_three_digits(value, text):
    assert three_digits(value) == text


def test_latex_escapes_every_special_character():
    assert escape_latex("#") == r"\#"
    assert "\\textbackslash{}" in escape_latex("\\")


def test_where_kv_moves_the_wait_for_it_has_columns() -> None:
    plain, moved = Run("colocated"), Run("two pools")
    keys = [column.key for column in compare([plain]).columns]
    assert not any(key.startswith("decode_wait") for key in keys)

    wait_s = np.full(300, 0.002)
    wait_s[-10:] = 0.5
    moved.summary = {
        **moved.summary,
        "overall": moved.summary["overall"] | {"decode_wait_s": distribution(wait_s)},
    }
    both = compare([plain, moved])
    assert cells(both, "decode_wait_s_mean") == ["-", "0.0186"]
    assert cells(both, "decode_wait_s_p99") == ["-", "0.500"]
    heading = [column.heading for column in both.columns if "decode_wait" in column.key]
    assert heading == ["Decode-side wait mean (s)", "Decode-side wait P99 (s)"]
    assert "decode_wait_s_mean,decode_wait_s_p99" in to_csv(both)
