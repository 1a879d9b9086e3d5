"""The published traces, against the figures that their README states."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

import traces
from traces.fetch import TRACES
from traces.info import describe

STATISTICS = {
    # file: requests, duration s, rate /s, IAT CV, prompt and output: mean, p50, p90, p99, max
    "azure_2023_code.csv": (
        (8819, 3435.9, 2.57, 13.2),
        (2048, 1469, 5188, 7436, 7437),
        (27.9, 13, 55, 251, 1899),
    ),
    "azure_2023_conv_head.csv": (
        (11997, 2053.2, 5.84, 1.08),
        (1255, 1025, 4077, 4123, 14050),
        (205, 116, 424, 603, 1000),
    ),
    "mooncake_conversation_head.jsonl.gz": (
        (7851, 2397.0, 3.27, 2.97),
        (12428, 7284, 27991, 89868, 124847),
        (347, 356, 606, 1168, 2000),
    ),
    "burstgpt_1_first400.csv": (
        (400, 37269, 0.0107, 4.56),
        (520, 314, 1418, 1958, 2126),
        (277, 230, 571, 1421, 2019),
    ),
}

FORMATS = {
    "azure_2023_code.csv": "azure",
    "azure_2023_conv_head.csv": "azure",
    "azure_2024_code_excerpt.csv": "azure",
    "burstgpt_1_first400.csv": "burstgpt",
    "lengths_arxiv_summarization_head.csv": "vidur-lengths",
    "mooncake_conversation_head.jsonl.gz": "mooncake",
    "servegen_deepseek-r1_chunk-17-trace.csv": "servegen",
    "weka_claudecode_open.jsonl.gz": "weka",
    "weka_trace_0026.json": "weka",
}


def lengths(column: np.ndarray) -> list[float]:
    return [column.mean(), *np.quantile(column, [0.5, 0.9, 0.99]), column.max()]


def agree(found: float, stated: float) -> bool:
    """Whether `found` is `stated`, which is printed with three digits or as a whole number."""
    return abs(found - stated) <= max(0.5, 0.005 * abs(stated)) and (
        stated > 100 or abs(found - stated) <= 0.006 * abs(stated)
    )


@pytest.mark.parametrize("name", STATISTICS)
def test_shared_trace_has_the_stated_statistics(shared: Path, name: str) -> None:
    (requests, duration_s, rate, cv), prompt, output = STATISTICS[name]

    trace = traces.load(shared / "traces" / name)
    info = describe(trace)

    assert len(trace) == requests
    assert info.duration_s == pytest.approx(duration_s, abs=0.05)
    assert info.rate_per_s is not None
    assert agree(info.rate_per_s, rate)
    assert info.gap_cv is not None
    assert agree(info.gap_cv, cv)
    for column, stated in ((trace.prompt_tokens, prompt), (trace.output_tokens, output)):
        for found, expected in zip(lengths(column), stated, strict=True):
            assert found == pytest.approx(expected, abs=0.5001, rel=0.0005)


@pytest.mark.parametrize("name", FORMATS)
def test_format_is_recognised_from_content(shared: Path, name: str, tmp_path: Path) -> None:
    disguised = tmp_path / "data.bin"
    disguised.write_bytes((shared / "traces" / name).read_bytes())

    source = traces.read_source(disguised)

    assert traces.recognise(source) == FORMATS[name]


def test_azure_2023_times_count_from_the_first_row(shared: Path) -> None:
    trace = traces.load(shared / "traces" / "azure_2023_code.csv")

    assert trace.arrival_ns[:3].tolist() == [0, 52_000_000, 98_189_000]
    assert trace.row[:2].tolist() == [2, 3]
    assert trace.row[-1] == 8820
    assert trace.notes == []


def test_azure_code_is_silent_in_most_of_its_seconds(shared: Path) -> None:
    info = describe(shared / "traces" / "azure_2023_code.csv")

    assert info.busiest_second == 67
    assert info.silent_share == pytest.approx(0.73, abs=0.005)


def test_azure_2024_rows_with_a_zone_are_read(shared: Path) -> None:
    trace = traces.load(shared / "traces" / "azure_2024_code_excerpt.csv")

    assert trace.arrival_ns[:3].tolist() == [0, 7_405_000, 12_384_000]
    assert trace.arrival_ns[-1] == 604_799_919_571_000


def test_mooncake_keeps_hash_ids_and_their_prefixes(shared: Path) -> None:
    trace = traces.load(shared / "traces" / "mooncake_conversation_head.jsonl.gz")

    assert trace.block_ids is not None
    assert trace.block_ids_tokens == 512
    assert trace.block_ids[0].tolist() == list(range(14))
    assert all(ids[0] == 0 for ids in trace.block_ids)
    # Whole blocks found from the start in an unlimited cache: 35.1 % of blocks, 35.8 % of tokens.
    seen: set[int] = set()
    blocks = hits = tokens = hit_tokens = 0
    for ids, prompt in zip(trace.block_ids, trace.prompt_tokens.tolist(), strict=True):
        whole = ids.tolist()[: prompt // 512]
        run = 0
        while run < len(whole) and whole[run] in seen:
            run += 1
        blocks, hits = blocks + len(ids), hits + run
        tokens, hit_tokens = tokens + prompt, hit_tokens + 512 * run
        seen.update(whole)
    assert hits / blocks == pytest.approx(0.351, abs=0.0006)
    assert hit_tokens / tokens == pytest.approx(0.358, abs=0.0006)


def test_mooncake_times_are_milliseconds_as_they_are(shared: Path) -> None:
    trace = traces.load(shared / "traces" / "mooncake_conversation_head.jsonl.gz")

    assert trace.arrival_ns[0] == 0
    assert set(np.unique(trace.arrival_ns).tolist()) >= {0, 3_000_000_000, 5_999_000_000}


def test_burstgpt_keeps_failed_requests_and_says_so(shared: Path) -> None:
    trace = traces.load(shared / "traces" / "burstgpt_1_first400.csv")

    assert trace.arrival_ns[0] == 5_000_000_000
    assert int((trace.output_tokens == 0).sum()) == 17
    assert any(note.startswith("17 rows have 0 output tokens") for note in trace.notes)


def test_weka_splits_conversations_and_sub_agents(shared: Path) -> None:
    trace = traces.load(shared / "traces" / "weka_claudecode_open.jsonl.gz")

    assert trace.session is not None
    agents = np.array(["/" in session for session in trace.session])
    main = trace.take(~agents)
    assert (int((~agents).sum()), int(agents.sum())) == (544, 56)
    assert len(set(trace.session[agents].tolist())) == 6
    assert len(set(trace.session[~agents].tolist())) == 20
    for column, stated in (
        (main.prompt_tokens, (114040, 83389, 240794, 484935, 520268)),
        (main.output_tokens, (602, 298, 1388, 4047, 12625)),
    ):
        for found, expected in zip(lengths(column), stated, strict=True):
            assert found == pytest.approx(expected, abs=0.5001, rel=0.0005)
    assert int((trace.output_tokens == 0).sum()) == 1


def test_weka_sub_agents_fork_from_a_turn_and_join_a_later_one(shared: Path) -> None:
    trace = traces.load(shared / "traces" / "weka_claudecode_open.jsonl.gz")

    assert trace.after is not None
    assert trace.request_id is not None
    assert trace.delay_ns is not None
    rows = {name: row for row, name in enumerate(trace.request_id.tolist())}
    agents = ["agent_001-1", "agent_002-2", "agent_003-3"]
    first = [rows[f"trace_0277/{name}#0"] for name in agents]
    # The parent's turn at 0 took 18.78 s. Results came at 79.224, 183.906 and 211.347 s, after
    # 59.75, 164.445 and 191.873 s of work; the parent's next turn was at 228 s.
    assert [trace.after[row] for row in first] == [("trace_0277#0",)] * 3
    assert trace.arrival_ns[first].tolist() == [19_474_000_000, 19_461_000_000, 19_474_000_000]
    assert trace.delay_ns[first].tolist() == [694_000_000, 681_000_000, 694_000_000]
    joined = rows["trace_0277#1"]
    lasts = zip(agents, (3, 11, 16), strict=True)
    assert trace.after[joined] == tuple(f"trace_0277/{name}#{turn}" for name, turn in lasts)
    assert trace.delay_ns[joined] == 16_653_000_000
    assert sum(map(bool, trace.after)) == 9  # six agents, three turns that wait for them


def test_weka_block_ids_do_not_meet_across_documents(shared: Path) -> None:
    trace = traces.load(shared / "traces" / "weka_claudecode_open.jsonl.gz")

    assert trace.block_ids is not None
    assert trace.block_ids_tokens == 64
    owner: dict[int, int] = {}
    for ids, line in zip(trace.block_ids, trace.row.tolist(), strict=True):
        for block in ids.tolist():
            assert owner.setdefault(block, line) == line


def test_one_weka_file_is_one_conversation(shared: Path) -> None:
    trace = traces.load(shared / "traces" / "weka_trace_0026.json")

    assert trace.arrival_ns.tolist() == [0, 94_000_000_000, 146_000_000_000]
    assert trace.prompt_tokens.tolist() == [15291, 17401, 20068]
    assert trace.delay_ns is not None
    assert trace.delay_ns.tolist() == [0, 48_000_000_000, 4_000_000_000]


def test_vidur_lengths_have_no_arrivals(shared: Path) -> None:
    trace = traces.load(shared / "traces" / "lengths_arxiv_summarization_head.csv")

    assert len(trace) == 5000
    assert (trace.arrival_ns == -1).all()
    for column, stated in (
        (trace.prompt_tokens, (2565, 2712, 3699, 3928, 4035)),
        (trace.output_tokens, (305, 165, 379, 3344, 4056)),
    ):
        for found, expected in zip(lengths(column), stated, strict=True):
            assert found == pytest.approx(expected, abs=0.5001, rel=0.0005)


def test_servegen_pair_is_drawn_at_its_rates(shared: Path) -> None:
    path = shared / "traces" / "servegen_deepseek-r1_chunk-17-trace.csv"
    windows = traces.servegen.read_windows(traces.read_source(path))
    expected = sum(window.rate_per_s * (window.end_s - window.start_s) for window in windows)

    sizes = [len(traces.load(path, seed=seed)) for seed in range(5)]
    first, again = traces.load(path, seed=3), traces.load(path, seed=3)

    # Gaps of CV about 1.25: the count's standard error over five days is about 0.6 %.
    assert np.mean(sizes) == pytest.approx(expected, rel=0.03)
    assert (first.arrival_ns == again.arrival_ns).all()
    assert (first.output_tokens == again.output_tokens).all()
    idle = [window for window in windows if not window.rate_per_s]
    for window in idle:
        inside = (first.arrival_ns >= window.start_s * 1e9) & (
            first.arrival_ns < window.end_s * 1e9
        )
        assert not inside.any()


def test_servegen_lengths_come_from_the_window_in_force(shared: Path) -> None:
    path = shared / "traces" / "servegen_deepseek-r1_chunk-17-trace.csv"
    dataset = path.with_name("servegen_deepseek-r1_chunk-17-dataset.json")
    laws = traces.servegen.read_lengths(traces.read_source(dataset))

    trace = traces.load(path, seed=1)

    late = trace.arrival_ns >= laws[-1].start_s * 1e9
    assert set(trace.output_tokens[late].tolist()) <= set(laws[-1].output[0].tolist())
    sizes, weights = laws[-1].output
    mean = float((sizes * weights).sum())
    assert trace.output_tokens[late].mean() == pytest.approx(mean, rel=0.05)


def test_digests_known_to_fetch_are_those_of_the_whole_shared_files(shared: Path) -> None:
    known = {file.sha256 for trace in TRACES.values() for file in trace.files}

    for name in (
        "azure_2023_code.csv",
        "weka_trace_0026.json",
        "servegen_deepseek-r1_chunk-17-trace.csv",
        "servegen_deepseek-r1_chunk-17-dataset.json",
    ):
        data = (shared / "traces" / name).read_bytes()
        assert hashlib.sha256(data).hexdigest() in known
