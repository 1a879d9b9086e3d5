"""Files as people really have them: read right, or refused in one line that says where and what."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

import traces
from sim.errors import TraceError
from sim.request import Trace

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
PLAIN = "arrival_s,prompt_tokens,output_tokens\n"


def load(tmp_path: Path, content: str | bytes, name: str = "t.csv", **options: object) -> Trace:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return traces.load(path, **options)  # type: ignore[arg-type]


def refusal(tmp_path: Path, content: str | bytes, name: str = "t.csv", **options: object) -> str:
    with pytest.raises(TraceError) as caught:
        load(tmp_path, content, name, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert name in message
    assert "expected" in message
    return message


def mooncake(
    timestamp: object = 0, prompt: int = 513, output: int = 1, ids: object = (0, 1)
) -> str:
    row = {
        "timestamp": timestamp,
        "input_length": prompt,
        "output_length": output,
        "hash_ids": list(ids) if isinstance(ids, tuple) else ids,
    }
    return json.dumps(row) + "\n"


# Bytes


def test_byte_order_mark_and_crlf_change_nothing(tmp_path: Path) -> None:
    text = "\ufeff" + (AZURE + "2023-11-16 18:17:03.9799600,5,6").replace("\n", "\r\n")

    trace = load(tmp_path, text)

    assert trace.prompt_tokens.tolist() == [5]
    assert "byte-order mark" in trace.notes[0]


def test_utf_16_from_a_spreadsheet_is_read(tmp_path: Path) -> None:
    trace = load(tmp_path, (PLAIN + "0,1,2\n").replace(",", "\t").encode("utf-16"))

    assert trace.output_tokens.tolist() == [2]


def test_gzip_is_known_by_content_not_by_name(tmp_path: Path) -> None:
    assert len(load(tmp_path, gzip.compress((PLAIN + "0,1,2\n").encode()), "t.csv")) == 1
    assert len(load(tmp_path, (PLAIN + "0,1,2\n").encode(), "t.csv.gz")) == 1


def test_gzip_members_put_together_are_read_in_full(tmp_path: Path) -> None:
    parts = [gzip.compress(text.encode()) for text in (PLAIN, "0,1,2\n", "1,3,4\n")]

    assert load(tmp_path, b"".join(parts)).prompt_tokens.tolist() == [1, 3]


def test_truncated_gzip_is_refused(tmp_path: Path) -> None:
    rows = "".join(f"{i},{i % 97},{i % 89}\n" for i in range(2000))

    assert "ends early" in refusal(tmp_path, gzip.compress((PLAIN + rows).encode())[:-200])


def test_corrupt_gzip_is_refused(tmp_path: Path) -> None:
    data = bytearray(gzip.compress((PLAIN + "0,1,2\n" * 100).encode()))
    data[-6] ^= 0xFF

    assert "corrupt gzip" in refusal(tmp_path, bytes(data))


def test_bytes_after_gzip_are_refused(tmp_path: Path) -> None:
    assert "follow" in refusal(tmp_path, gzip.compress(PLAIN.encode()) + b"more")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty"),
        (b"\n \n", "empty"),
        (b"PK\x03\x04rest", "zip archive"),
        (b"PAR1rest", "Parquet"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n", "Git LFS pointer"),
        (b"<!DOCTYPE html><html>404</html>", "HTML"),
        (b"\n\n  <html><body>Not found</body>", "HTML"),
        (b"a,b\n1,\x00\n", "binary data"),
        (b"arrival_s,prompt_tokens,output_tokens\n0,1,\xe92\n", "0xe9 is not UTF-8"),
        (b"arrival_s,prompt_tokens,output_tokens\n", "no rows"),
        (b"2023-11-16 18:17:03.97,1,2\n", "names of the columns"),
        (b"[1, 2]", "JSON list"),
        (b"hello\n1\n", "no column for prompt_tokens"),
        (b"hello", "no rows"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, content: bytes, says: str) -> None:
    assert says in refusal(tmp_path, content)


def test_missing_file_and_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.csv", tmp_path):
        with pytest.raises(TraceError, match="expected a trace file"):
            traces.load(path)


# Rows and columns


@pytest.mark.parametrize(
    ("row", "fields"), [("2023-11-16 18:17:04,5", 2), ("2023-11-16 18:17:04,5,6,7", 4)]
)
def test_short_and_long_rows_are_refused_with_their_line(
    tmp_path: Path, row: str, fields: int
) -> None:
    text = AZURE + "2023-11-16 18:17:03,1,1\n" + row + "\n2023-11-16 18:17:05,1,1\n"

    assert f"t.csv:3: {fields} fields" in refusal(tmp_path, text)


def test_partial_last_line_is_said_to_be_cut(tmp_path: Path) -> None:
    assert "cut short" in refusal(tmp_path, AZURE + "2023-11-16 18:17:03,1,1\n2023-11-16 18:1")
    assert "cut short" in refusal(tmp_path, mooncake() + mooncake()[:30], "t.jsonl")


def test_last_row_without_newline_is_a_row(tmp_path: Path) -> None:
    assert len(load(tmp_path, PLAIN + "0,1,2\n1,3,4")) == 2


def test_blank_lines_are_left_out_and_lines_still_right(tmp_path: Path) -> None:
    trace = load(tmp_path, PLAIN + "0,1,2\n\n  \n1,3,4\n\n")

    assert trace.row.tolist() == [2, 5]
    assert any(note.startswith("3 blank lines") for note in trace.notes)
    assert ":5: prompt_tokens: 'x'" in refusal(tmp_path, PLAIN + "0,1,2\n\n\n1,x,4\n")


def test_columns_may_be_reordered_and_extra_ones_are_named(tmp_path: Path) -> None:
    text = "GeneratedTokens,note,TIMESTAMP,ContextTokens\n7,hi,2023-11-16 18:17:03,5\n"

    trace = load(tmp_path, text)

    assert (trace.prompt_tokens[0], trace.output_tokens[0]) == (5, 7)
    assert "Columns not used: note." in trace.notes


def test_missing_column_is_named_with_those_found(tmp_path: Path) -> None:
    message = refusal(tmp_path, "arrival_s,prompt_token,output_tokens\n0,1,2\n")

    assert "prompt_tokens" in message
    assert "found arrival_s, prompt_token, output_tokens" in message


def test_renamed_columns_are_read_through_a_map(tmp_path: Path) -> None:
    text = "when,ctx,gen\n1500,5,6\n"
    columns = {"arrival_ms": "when", "prompt_tokens": "ctx", "output_tokens": "gen"}

    trace = load(tmp_path, text, columns=columns)

    assert trace.arrival_ns.tolist() == [1_500_000_000]
    assert "did you mean prompt_tokens" in refusal(tmp_path, text, columns={"prompt_token": "ctx"})
    assert "found when, ctx, gen" in refusal(tmp_path, text, columns={"prompt_tokens": "nope"})


def test_column_map_works_on_a_publishers_format(tmp_path: Path) -> None:
    text = AZURE.replace("ContextTokens", "Ctx") + "2023-11-16 18:17:03,5,6\n"

    trace = load(tmp_path, text, format="azure", columns={"prompt_tokens": "Ctx"})

    assert trace.prompt_tokens.tolist() == [5]


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    assert "two columns named a" in refusal(tmp_path, "a,a,b\n1,2,3\n")


def test_unclosed_quote_is_refused(tmp_path: Path) -> None:
    assert "quotes to be closed" in refusal(tmp_path, PLAIN + '0,1,"2\n1,2,3\n')


def test_semicolons_and_quotes_are_read(tmp_path: Path) -> None:
    trace = load(tmp_path, PLAIN.replace(",", ";") + '"0";"1";"2"\n')

    assert trace.prompt_tokens.tolist() == [1]


def test_quoted_line_breaks_keep_lines_right(tmp_path: Path) -> None:
    text = 'arrival_s,prompt_tokens,output_tokens,session\n0,1,2,"a\nb"\n1,2,3,c\n'

    trace = load(tmp_path, text)

    assert trace.row.tolist() == [2, 4]
    assert trace.session is not None
    assert trace.session.tolist() == ["a\nb", "c"]


# Numbers


@pytest.mark.parametrize("value", ["nan", "NaN", "-1", "1.5", "true", "", "inf", "1e400", "0x10",
                                   "1,5", "twelve", "9" * 30, "1_0", "²"])  # fmt: skip
def test_what_is_no_number_of_tokens_is_refused(tmp_path: Path, value: str) -> None:
    message = refusal(tmp_path, PLAIN + f'0,1,2\n1,"{value}",2\n')

    assert "t.csv:3: prompt_tokens:" in message
    assert "a whole number from 0" in message


@pytest.mark.parametrize(
    ("value", "number"),
    [("12", 12), (" 12 ", 12), ("12.0", 12), ("1,234", 1234), ("1e3", 1000), ("+7", 7), ("007", 7)],
)
def test_numbers_written_otherwise_are_read_exactly(
    tmp_path: Path, value: str, number: int
) -> None:
    trace = load(tmp_path, PLAIN + f'0,"{value}",2\n')

    assert trace.prompt_tokens.tolist() == [number]


def test_odd_numbers_are_noted(tmp_path: Path) -> None:
    trace = load(tmp_path, PLAIN + '0,"1,234",2\n1,5,2\n')

    assert any("1 values of prompt_tokens" in note and "line 2" in note for note in trace.notes)


@pytest.mark.parametrize("value", [True, None, 1.5, "x", [1], float("nan"), -3, 10**12])
def test_json_values_that_are_no_count_are_refused(tmp_path: Path, value: object) -> None:
    rows = json.dumps({"arrival_s": 0, "prompt_tokens": 1, "output_tokens": 1}) + "\n"
    rows += json.dumps({"arrival_s": 0, "prompt_tokens": value, "output_tokens": 1}) + "\n"

    assert "t.jsonl:2: prompt_tokens:" in refusal(tmp_path, rows, "t.jsonl")


def test_json_key_missing_in_one_row_is_refused(tmp_path: Path) -> None:
    rows = '{"prompt_tokens": 1, "output_tokens": 1}\n{"prompt_tokens": 1}\n'

    assert "t.jsonl:2: output_tokens: None" in refusal(tmp_path, rows, "t.jsonl")


@pytest.mark.parametrize("line", ["{", "nonsense", '{"a": 1, "a": 2}', '{"a": 1} x', "3"])
def test_json_line_that_is_no_object_is_refused(tmp_path: Path, line: str) -> None:
    rows = '{"prompt_tokens": 1, "output_tokens": 1}\n' + line + "\n"

    assert "t.jsonl:2:" in refusal(tmp_path, rows, "t.jsonl")


# Times


@pytest.mark.parametrize(
    ("stamp", "ns"),
    [
        ("2023-11-16 18:17:04", 1_000_000_000),
        ("2023-11-16T18:17:04.5", 1_500_000_000),
        ("2023-11-16 18:17:03.0000001", 100),
        ("2023-11-16 18:17:03.000000001", 1),
        ("2023-11-16 18:17:03.0000000005", 0),
        ("2023-11-16 18:17:03.0000000015", 2),
        ("2023-11-16 18:17:04+00:00", 1_000_000_000),
        ("2023-11-16 18:17:04Z", 1_000_000_000),
        ("2023-11-16 20:17:04+02:00", 1_000_000_000),
        ("2023-11-16 16:47:04-0130", 1_000_000_000),
    ],
)
def test_timestamps_with_and_without_fraction_or_zone_are_exact(
    tmp_path: Path, stamp: str, ns: int
) -> None:
    trace = load(tmp_path, AZURE + f"2023-11-16 18:17:03,1,1\n{stamp},1,1\n")

    assert trace.arrival_ns.tolist() == [0, ns]


def test_a_mix_of_zones_is_noted(tmp_path: Path) -> None:
    trace = load(tmp_path, AZURE + "2023-11-16 18:17:03,1,1\n2023-11-16 18:17:04Z,1,1\n")

    assert any("have a time zone" in note for note in trace.notes)


@pytest.mark.parametrize(
    "stamp",
    [
        "",
        "nan",
        "12",
        "2023-02-30 00:00:00",
        "2023-11-16 24:00:00",
        "16/11/2023 18:17",
        "2023-11-16",
        "2023-11-16 18:17:03+99:00",
        "0001-01-01 00:00:00",
    ],
)
def test_what_is_no_timestamp_is_refused(tmp_path: Path, stamp: str) -> None:
    message = refusal(tmp_path, AZURE + f"2023-11-16 18:17:03,1,1\n{stamp},1,1\n")

    assert "t.csv:3: TIMESTAMP:" in message


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("5", 5_000_000_000),
        ("5.0", 5_000_000_000),
        ("0.1", 100_000_000),
        ("0.0000000005", 0),
        ("0.0000000015", 2),
        ("1e-3", 1_000_000),
        ("1234567890.123456789123", 1_234_567_890_123_456_789),
        ("0.30000000000000004", 300_000_000),
    ],
)
def test_relative_times_are_exact_and_round_half_to_even(
    tmp_path: Path, text: str, ns: int
) -> None:
    csv = load(tmp_path, PLAIN + f"{text},1,1\n", columns={"arrival_s": "arrival_s"})
    row = f'{{"arrival_s": {text}, "prompt_tokens": 1, "output_tokens": 1}}\n'
    jsonl = load(tmp_path, row, "t.jsonl")

    expected = 0 if ns >= 10**18 else ns  # counts from 1970: from the first row on
    assert csv.arrival_ns.tolist() == jsonl.arrival_ns.tolist() == [expected]


@pytest.mark.parametrize("text", ["-1", "nan", "", "inf", "1e300", "9999999999999", "true"])
def test_what_is_no_time_is_refused(tmp_path: Path, text: str) -> None:
    assert "t.csv:2: arrival_s:" in refusal(tmp_path, PLAIN + f"{text},1,1\n")


def test_unix_times_count_from_the_first_row(tmp_path: Path) -> None:
    trace = load(tmp_path, PLAIN + "1700000000.25,1,1\n1700000001.5,1,1\n")

    assert trace.arrival_ns.tolist() == [0, 1_250_000_000]
    assert any("count from 1970" in note for note in trace.notes)


def test_unix_milliseconds_are_plain_times(tmp_path: Path) -> None:
    text = "arrival_ms,prompt_tokens,output_tokens\n1700000000000,1,1\n1700000000500.5,1,1\n"

    trace = load(tmp_path, text)

    assert trace.arrival_ns.tolist() == [0, 500_500_000]
    assert not any("plainly" in note for note in trace.notes)


def test_unsorted_rows_are_sorted_stably_and_noted(tmp_path: Path) -> None:
    trace = load(tmp_path, PLAIN + "3,1,1\n1,2,1\n1,3,1\n2,4,1\n")

    assert trace.prompt_tokens.tolist() == [2, 3, 4, 1]
    assert trace.row.tolist() == [3, 4, 5, 2]
    assert any("sorted by arrival" in note for note in trace.notes)


def test_a_clock_that_starts_again_is_refused(tmp_path: Path) -> None:
    day = "".join(f"{10 * i},1,1\n" for i in range(50))

    message = refusal(tmp_path, PLAIN + day + day)

    assert "t.csv:52: arrival time" in message
    assert "start again" in message


def test_milliseconds_taken_for_seconds_give_a_warning_with_both_rates(tmp_path: Path) -> None:
    trace = load(tmp_path, PLAIN + "".join(f"{400 * i},1,1\n" for i in range(100)))

    warning = next(note for note in trace.notes if note.startswith("Warning"))
    assert "0.0025 requests a second" in warning
    assert "it is 2.5" in warning


def test_seconds_taken_for_milliseconds_give_a_warning_then_a_refusal(tmp_path: Path) -> None:
    text = "arrival_ms,prompt_tokens,output_tokens\n"

    fast = load(tmp_path, text + "".join(f"{i / 5},1,1\n" for i in range(100)))

    assert any("5,000 requests a second" in note for note in fast.notes)
    rows = "".join(f"{i / 50},1,1\n" for i in range(100))
    assert "50,000 requests a second" in refusal(tmp_path, text + rows)


def test_all_requests_at_one_instant_are_a_burst_not_an_error(tmp_path: Path) -> None:
    assert load(tmp_path, PLAIN + "0,1,1\n" * 50).arrival_ns.tolist() == [0] * 50


# Formats


@pytest.mark.parametrize(("prompt", "ids"), [(513, (0,)), (513, (0, 1, 2)), (512, (0, 1)), (1, ())])
def test_hash_ids_of_the_wrong_length_are_refused(
    tmp_path: Path, prompt: int, ids: tuple[int, ...]
) -> None:
    message = refusal(tmp_path, mooncake() + mooncake(prompt=prompt, ids=ids), "t.jsonl")

    assert "t.jsonl:2: hash_ids:" in message
    assert f"{len(ids)} ids for a prompt of {prompt} tokens" in message


@pytest.mark.parametrize("ids", ["0 x", [0, "a"], [0, 1.5], [0, True], None, 3])
def test_hash_ids_that_are_no_list_of_numbers_are_refused(tmp_path: Path, ids: object) -> None:
    assert "t.jsonl:1: hash_ids:" in refusal(tmp_path, mooncake(ids=ids), "t.jsonl")


def test_burstgpt_release_3_is_read_by_schema(tmp_path: Path) -> None:
    header = BURST.replace("Timestamp,", "Timestamp,Session ID,Elapsed time,")
    rows = "5.0,s1,1.5,GPT-4,10,20,30,Conversation log\n6.25,,0.5,ChatGPT,3,0,3,API log\n"

    trace = load(tmp_path, header + rows)

    assert trace.arrival_ns.tolist() == [5_000_000_000, 6_250_000_000]
    assert trace.session is not None
    assert trace.session.tolist() == ["s1", None]
    assert trace.request_class is not None
    assert trace.request_class.tolist() == ["Conversation log", "API log"]
    assert any("Read by schema" in note for note in trace.notes)


def test_burstgpt_totals_that_do_not_add_up_are_noted(tmp_path: Path) -> None:
    trace = load(tmp_path, BURST + "5,GPT-4,10,20,31,API log\n")

    assert any("line 2" in note and "Total tokens" in note for note in trace.notes)


def test_plain_tables_carry_every_optional_column(tmp_path: Path) -> None:
    text = (
        "arrival_s,prompt_tokens,output_tokens,max_tokens,session_id,turn,class,tenant,priority,"
        "deadline_s,delay_s,cancel_after_s\n"
        "0,1,2,3,s,0,chat,acme,-2,0.5,1.5,9\n"
        "1,1,2,,,,,,,,,\n"
    )

    trace = load(tmp_path, text)

    assert trace.max_tokens.tolist() == [3, 0]
    assert trace.session is not None
    assert trace.session.tolist() == ["s", None]
    assert trace.turn is not None
    assert trace.turn.tolist() == [0, -1]
    assert trace.priority is not None
    assert trace.priority.tolist() == [-2, 0]
    assert trace.deadline_ns is not None
    assert trace.deadline_ns.tolist() == [500_000_000, -1]
    assert trace.delay_ns is not None
    assert trace.delay_ns.tolist() == [1_500_000_000, 0]
    assert trace.cancel_after_ns is not None
    assert trace.cancel_after_ns.tolist() == [9_000_000_000, -1]


def test_unknown_format_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="did you mean mooncake"):
        load(tmp_path, PLAIN + "0,1,1\n", format="moonkake")


def test_underscores_stand_for_hyphens_in_format_names(tmp_path: Path) -> None:
    text = "num_prefill_tokens,num_decode_tokens\n5,6\n"

    assert len(load(tmp_path, text, format="vidur_lengths")) == 1


def test_servegen_without_its_lengths_is_refused(tmp_path: Path) -> None:
    text = "0,0.5,1.0,Gamma,1.0,2.0\n"

    assert "c-dataset.json beside" in refusal(tmp_path, text, "c-trace.csv")


@pytest.mark.parametrize(
    ("rates", "lengths", "says"),
    [
        ("0,-1,1,Gamma,1,1\n", "{1: 1.0}", "rate_per_s"),
        ("0,1,1,Gamma,0,1\n", "{1: 1.0}", "distribution"),
        ("600,1,1,Gamma,1,1\n0,1,1,Gamma,1,1\n", "{1: 1.0}", "window start"),
        ("0,0,0,,0,0\n", "{1: 1.0}", "all rates are 0"),
        ("0,1,1,Gamma,1,1\n", "{1: 0.5}", "adding up to 1"),
        ("0,1,1,Gamma,1,1\n", "__import__('os')", "{length: probability"),
    ],
)
def test_servegen_values_that_are_no_law_are_refused(
    tmp_path: Path, rates: str, lengths: str, says: str
) -> None:
    entry = {"0": {"input_tokens": lengths, "output_tokens": lengths}}
    (tmp_path / "c-dataset.json").write_text(json.dumps(entry))
    (tmp_path / "c-trace.csv").write_text(rates)

    with pytest.raises(TraceError, match="expected") as caught:
        traces.load(tmp_path / "c-trace.csv")
    assert says in str(caught.value)


def weka(**changes: object) -> str:
    request = {"t": 0.0, "type": "n", "in": 65, "out": 2, "hash_ids": [1]} | changes
    document = {"id": "a", "block_size": 64, "hash_id_scope": "local", "requests": [request]}
    return json.dumps(document) + "\n"


@pytest.mark.parametrize(
    "changes",
    [
        {"t": -1},
        {"t": None},
        {"in": 1.5},
        {"out": True},
        {"hash_ids": [1, 2]},
        {"hash_ids": []},
        {"hash_ids": None},
        {"think_time": "x"},
        {"requests": 3},
    ],
)
def test_weka_values_that_cannot_be_read_are_refused(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    message = refusal(tmp_path, weka() + weka(**changes), "t.jsonl")

    assert f"t.jsonl:2: {next(iter(changes))}:" in message


def test_weka_document_over_many_lines_is_read(tmp_path: Path) -> None:
    text = json.dumps(json.loads(weka()), indent=2)

    assert load(tmp_path, text, "t.json").prompt_tokens.tolist() == [65]


THREADS = """
import os, sys
from pathlib import Path
import numpy, pyarrow.compute, pyarrow.csv
import traces
before = os.listdir("/proc/self/task")
traces.load(Path(sys.argv[1]))
sys.exit(len(os.listdir("/proc/self/task")) > len(before) + 1)  # one of Arrow's waits for signals
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are listed on Linux only")
def test_reading_leaves_no_thread_that_can_abort_the_process_at_its_end(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(PLAIN + "".join(f"{i},{i + 1},2\n" for i in range(500)))
    done = subprocess.run([sys.executable, "-c", THREADS, str(path)], check=False)
    assert done.returncode == 0
