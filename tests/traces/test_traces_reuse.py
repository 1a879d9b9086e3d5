"""The count of prefix reuse over a trace (rules 40 to 43)."""

from __future__ import annotations

import json
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import traces
from experiments.cli import app
from sim.content import Content, token_runs
from sim.errors import TraceError
from sim.request import Trace
from tests.conformance.reference import load_reference
from traces.eviction import EVICTIONS, hits_under
from traces.generators import GENERATORS
from traces.reuse import PrefixReuse, prefix_reuse
from traces.reuse_table import capacity_of

MOONCAKE = "mooncake_conversation_head.jsonl.gz"
WEKA = "weka_claudecode_open.jsonl.gz"
SHARES = (0.01, 0.05, 0.10, 0.25, 0.50)


@pytest.fixture(scope="module")
def mooncake(shared: Path) -> Trace:
    return traces.load(shared / "traces" / MOONCAKE)


@pytest.fixture(scope="module")
def reuse(mooncake: Trace) -> PrefixReuse:
    return prefix_reuse(mooncake)


def blocks_of(trace: Trace, size: int) -> list[list[tuple[int, ...]]]:
    """The full blocks of each prompt, each as the tokens in it: slow and plain."""
    told = []
    for i, prompt in enumerate(trace.prompt_tokens.tolist()):
        tokens = [
            first + at
            for first, many in token_runs(i, trace.content_of(i), 0, prompt)
            for at in range(many)
        ]
        told.append([tuple(tokens[j : j + size]) for j in range(0, prompt - size + 1, size)])
    return told


def brute_force(chains: list[list[tuple]], most: list[int], capacity: int) -> list[int]:
    """LRU over chains of blocks, each block known by all that comes before it."""
    cache: OrderedDict[tuple, None] = OrderedDict()
    hits = []
    for chain, cap in zip(chains, most, strict=True):
        names = [tuple(chain[: j + 1]) for j in range(len(chain))]
        found = 0
        while found < min(cap, len(names)) and names[found] in cache:
            found += 1
        hits.append(found)
        for name in names:
            cache.pop(name, None)
        for name in reversed(names):
            cache[name] = None
        while len(cache) > capacity:
            cache.popitem(last=False)
    return hits


def brute_force_of_ids(trace: Trace, capacity: int) -> list[int]:
    """LRU over a trace whose ids are chained already, so that an id is a name."""
    assert trace.block_ids is not None
    assert trace.block_ids_tokens is not None
    size = trace.block_ids_tokens
    cache: OrderedDict[int, None] = OrderedDict()
    hits = []
    for ids, prompt in zip(trace.block_ids, trace.prompt_tokens.tolist(), strict=True):
        held = ids.tolist()[: prompt // size]
        found = 0
        while found < (prompt - 1) // size and held[found] in cache:
            found += 1
        hits.append(found)
        for name in held:
            cache.pop(name, None)
        cache.update(dict.fromkeys(reversed(held)))
        while len(cache) > capacity:
            cache.popitem(last=False)
    return hits


def of_blocks(prompts: list[list[int]], size: int = 4) -> Trace:
    """Prompts of whole blocks and one token more, which is in no full block."""
    n = len(prompts)
    ones = np.ones(n, dtype=np.int64)
    return Trace(
        0 * ones,
        np.array([size * len(ids) + 1 for ids in prompts], dtype=np.int64),
        ones,
        ones,
        np.arange(n),
        block_ids=[np.array(ids, dtype=np.int64) for ids in prompts],
        block_ids_tokens=size,
    )


def test_an_unlimited_cache_over_mooncake(reuse: PrefixReuse) -> None:
    assert reuse.block_tokens == 512
    assert (reuse.hit_blocks(), reuse.full_blocks, reuse.unique_blocks) == (
        68_125,
        186_449,
        118_324,
    )
    assert (reuse.hit_blocks() * 512, reuse.prompt_tokens) == (34_880_000, 97_571_920)


def test_an_unlimited_cache_over_agents_with_sub_agents_and_without(shared: Path) -> None:
    trace = traces.load(shared / "traces" / WEKA)
    assert trace.session is not None
    parents = np.array(["/" not in name for name in trace.session])
    with_agents, without = prefix_reuse(trace), prefix_reuse(trace.take(parents))

    assert (with_agents.prompt_tokens, without.prompt_tokens) == (64_700_408, 62_037_581)
    assert with_agents.hit_blocks() * 64 / with_agents.prompt_tokens == pytest.approx(
        0.944, abs=5e-4
    )
    assert without.hit_blocks() * 64 / without.prompt_tokens == pytest.approx(0.948, abs=5e-4)


@pytest.mark.parametrize("share", SHARES)
def test_the_curve_is_that_of_a_brute_force_and_of_the_reference(
    mooncake: Trace, reuse: PrefixReuse, shared: Path, share: float
) -> None:
    reference = load_reference(shared)
    capacity = int(share * reuse.unique_blocks)
    assert mooncake.block_ids is not None
    ids = [row.tolist() for row in mooncake.block_ids]
    prompts = mooncake.prompt_tokens.tolist()

    hits = reuse.hits(capacity).tolist()

    assert hits == brute_force_of_ids(mooncake, capacity)
    assert hits == reference.prefix_hits(ids, capacity, prompts, 512)
    assert reuse.curve[capacity] == sum(hits)
    assert hits == hits_under(reuse, "lru", capacity).tolist()


def test_under_lru_a_larger_cache_never_finds_less(reuse: PrefixReuse) -> None:
    assert (np.diff(reuse.curve) >= 0).all()
    assert reuse.curve[0] == 0
    assert reuse.curve[-1] == reuse.hit_blocks()


@pytest.mark.parametrize("size", [16, 500, 4096])
def test_a_block_of_another_size_is_cut_from_the_same_tokens(mooncake: Trace, size: int) -> None:
    few = mooncake.take(np.arange(150))
    reuse = prefix_reuse(few, size)
    found = []
    for i, prompt in enumerate(few.prompt_tokens.tolist()):
        best = 0
        for j in range(i):
            mine, theirs = few.content_of(i), few.content_of(j)
            assert mine is not None
            assert theirs is not None
            best = max(best, min(mine.shared(theirs), prompt - 1) // size)
        found.append(best)
    assert reuse.hits().tolist() == found
    assert sum(found) > 0


RUNS = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 9)), max_size=4)


@settings(max_examples=200, deadline=None)
@given(
    prompts=st.lists(st.tuples(RUNS, st.integers(0, 7)), min_size=1, max_size=12),
    size=st.integers(1, 5),
    capacity=st.integers(0, 12),
)
def test_any_runs_of_tokens_are_counted_as_a_brute_force_counts(
    prompts: list[tuple[list[tuple[int, int]], int]], size: int, capacity: int
) -> None:
    content = [Content(runs) for runs, _ in prompts]
    ones = np.ones(len(prompts), dtype=np.int64)
    lengths = [told.tokens + own for told, (_, own) in zip(content, prompts, strict=True)]
    trace = Trace(
        0 * ones, np.array(lengths, dtype=np.int64), ones, ones, 0 * ones, content=content
    )
    most = [max(0, p - 1) // size for p in lengths]
    chains = blocks_of(trace, size)

    reuse = prefix_reuse(trace, size)

    assert reuse.hits(capacity).tolist() == brute_force(chains, most, capacity)
    assert reuse.hits().tolist() == brute_force(chains, most, 10**6)
    assert reuse.unique_blocks == len({tuple(c[: j + 1]) for c in chains for j in range(len(c))})
    assert hits_under(reuse, "lru", capacity).tolist() == reuse.hits(capacity).tolist()


def by_keys(chains: list[list[tuple]], most: list[int], capacity: int, order: str) -> list[int]:
    """Hits where the block with the lowest key leaves, found by looking at all of them."""
    cache: dict[tuple, dict[str, int]] = {}
    hits = []
    for request, (chain, cap) in enumerate(zip(chains, most, strict=True)):
        names = [tuple(chain[: j + 1]) for j in range(len(chain))]
        found = 0
        while found < min(cap, len(names)) and names[found] in cache:
            found += 1
        hits.append(found)
        held = names[:capacity]
        if len(names) > capacity:
            cache = {name: notes for name, notes in cache.items() if name in held}
        for position, name in enumerate(held):
            fresh = {"entered": request, "uses": 0, "back": -position}
            notes = cache.setdefault(name, fresh)
            notes.update(last=request, uses=notes["uses"] + 1)
        keys = {"lru": ("last",), "fifo": ("entered",), "lfu": ("uses", "last")}[order]
        while len(cache) > capacity:
            free = [name for name in cache if name not in held]
            del cache[min(free, key=lambda name: [cache[name][k] for k in (*keys, "back")])]
    return hits


@settings(max_examples=150, deadline=None)
@given(
    prompts=st.lists(st.lists(st.integers(0, 2), max_size=6), min_size=1, max_size=16),
    capacity=st.integers(0, 9),
)
@pytest.mark.parametrize("order", EVICTIONS)
def test_what_leaves_is_what_has_the_lowest_key(
    order: str, prompts: list[list[int]], capacity: int
) -> None:
    trace = of_blocks(prompts)
    chains = [[(each,) for each in ids] for ids in prompts]
    most = [len(ids) for ids in prompts]

    hits = hits_under(prefix_reuse(trace), order, capacity).tolist()

    assert hits == by_keys(chains, most, capacity, order)


def test_a_request_longer_than_the_cache_leaves_its_first_blocks() -> None:
    # Two blocks fit: of 1 2 3 the first two stay, so that 1 2 9 finds both and 7 sweeps 2 out.
    trace = of_blocks([[1, 2, 3], [1, 2, 9], [7], [1, 2]])

    for order in EVICTIONS:
        hits = hits_under(prefix_reuse(trace), order, 2).tolist()
        assert hits == [0, 2, 0, 1], order
    assert prefix_reuse(trace).hits(2).tolist() == [0, 2, 0, 1]


def test_a_prompt_of_whole_blocks_computes_its_last_block_again() -> None:
    trace = of_blocks([[1, 2], [1, 2]])
    trace.prompt_tokens = trace.prompt_tokens - 1  # 8 tokens: at most 7 // 4 blocks are found

    assert prefix_reuse(trace).hits().tolist() == [0, 1]


def test_the_oldest_block_leaves_under_fifo_though_it_was_used_a_moment_ago() -> None:
    trace = of_blocks([[1], [2], [1], [3], [1]])
    reuse = prefix_reuse(trace)

    assert hits_under(reuse, "lru", 2).tolist() == [0, 0, 1, 0, 1]
    assert hits_under(reuse, "fifo", 2).tolist() == [0, 0, 1, 0, 0]
    assert hits_under(reuse, "lfu", 2).tolist() == [0, 0, 1, 0, 1]


def test_fifo_may_find_less_in_a_larger_cache() -> None:
    # Belady, Nelson and Shedler, CACM 1969: nine misses with three blocks, ten with four.
    trace = of_blocks([[x] for x in (1, 2, 3, 4, 1, 2, 5, 1, 2, 3, 4, 5)])
    reuse = prefix_reuse(trace)

    assert [int(hits_under(reuse, "fifo", c).sum()) for c in (3, 4)] == [3, 2]


def test_lfu_may_find_less_in_a_larger_cache() -> None:
    sequence = (3, 1, 2, 3, 1, 0, 2, 0, 2, 0)
    reuse = prefix_reuse(of_blocks([[x] for x in sequence]))

    assert [int(hits_under(reuse, "lfu", c).sum()) for c in (1, 2, 3, 4)] == [0, 3, 2, 6]


def test_a_trace_that_says_nothing_of_its_prompts_is_refused(shared: Path) -> None:
    with pytest.raises(TraceError, match="no block ids"):
        prefix_reuse(traces.load(shared / "traces" / "azure_2023_code.csv"))


@pytest.mark.parametrize(("text", "blocks"), [("7", 7), ("1_000", 1000), ("5%", 5), ("12.5 %", 12)])
def test_a_capacity_is_blocks_or_a_share(text: str, blocks: int) -> None:
    assert capacity_of(text, 100) == blocks


@pytest.mark.parametrize("text", ["", "x", "-1", "101%", "1.5", "nan%"])
def test_any_other_capacity_is_refused(text: str) -> None:
    with pytest.raises(TraceError, match="--capacity"):
        capacity_of(text, 100)


def test_the_command_prints_the_count_and_the_curve(shared: Path) -> None:
    file = str(shared / "traces" / MOONCAKE)
    said = CliRunner().invoke(app, ["trace", "prefix", file])

    assert said.exit_code == 0, said.output
    assert "186,449 full ones in prompts, 118,324 different" in said.stdout
    assert "34,880,000 of 97,571,920 prompt tokens (35.7%)" in said.stdout
    assert "62,451" in said.stdout  # 25 % of the different blocks

    told = CliRunner().invoke(app, ["trace", "prefix", file, "--json", "--capacity", "1183"])
    assert json.loads(told.stdout)["curve"][0]["hit_blocks"] == 8812


def test_the_command_takes_sessions_of_plain_rows(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text(
        "arrival_s,prompt_tokens,output_tokens,session\n0,32,16,a\n5,64,1,a\n6,64,1,b\n"
    )
    said = CliRunner().invoke(app, ["trace", "prefix", str(file), "--json"])

    # Turn 2 of a holds turn 1, prompt and output; its prompt alone was held before: 32 tokens.
    assert json.loads(said.stdout)["unlimited"]["hit_blocks"] == 2


@pytest.mark.parametrize(
    "arguments", [("--eviction", "arc"), ("--capacity", "much"), ("--prompts", "odd")]
)
def test_what_the_command_cannot_do_is_one_line(shared: Path, arguments: tuple[str, ...]) -> None:
    file = str(shared / "traces" / MOONCAKE)
    said = CliRunner().invoke(app, ["trace", "prefix", file, *arguments])

    assert said.exit_code == 2
    assert said.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["documents", "tab-completion", "agent"])
def test_a_generated_trace_can_be_written_and_read_with_what_is_shared(
    tmp_path: Path, name: str
) -> None:
    file = tmp_path / "t.jsonl"
    arguments = ["trace", "synth", name, "-n", "60", "--rate", "3", "-o", str(file)]
    said = CliRunner().invoke(app, arguments)
    assert said.exit_code == 0, said.output
    trace = traces.load(file)

    made = GENERATORS[name]()
    if name == "agent":
        assert trace.block_ids is None
        assert len(set(trace.session.tolist())) == 2
        assert trace.delay_ns.max() > 0
        return
    found = prefix_reuse(made.make(60, 0), 16).hit_blocks()
    assert prefix_reuse(trace).hit_blocks() == found > 60


def test_a_generated_trace_needs_a_rate() -> None:
    said = CliRunner().invoke(app, ["trace", "synth", "agent", "-n", "6", "-o", "t.csv"])

    assert said.exit_code == 2
    assert "--rate: is required" in said.stderr


def test_the_figures_of_a_trace_say_what_could_be_found(shared: Path) -> None:
    said = CliRunner().invoke(app, ["trace", "info", str(shared / "traces" / MOONCAKE)])

    assert "an unlimited prefix cache finds 35.7% of prompt tokens" in said.stdout
