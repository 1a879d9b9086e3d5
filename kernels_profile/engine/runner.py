"""From a policy's batch to a step on the card and the tokens that come out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from kernels_profile.engine.memory import BlockTables
from kernels_profile.engine.model import RankModel, Rows

if TYPE_CHECKING:
    import torch

    from sim.kvcache import KVCache
    from sim.request import Request

Piece = tuple[list[int], int, list[int]]
"""Input tokens of one sequence in a step, tokens before them, and its block ids."""


class Runner:
    """Runs batches of requests on one card.

    Args:
        model: What runs.
        num_blocks: Blocks of KV memory that requests can have.
        graph_sizes: Batches of decodes that are captured as CUDA graphs; a batch is padded up to
            the next of them, a larger one and any batch with a prefill is launched kernel by
            kernel. Empty: no graphs, as on a CPU.
        max_blocks: Most blocks of one sequence, for the graphs' tables.
        seed: Of the prompts' tokens.
    """

    def __init__(
        self,
        model: RankModel,
        num_blocks: int,
        *,
        graph_sizes: Sequence[int] = (),
        max_blocks: int = 1,
        seed: int = 0,
    ) -> None:
        self.model = model
        self.tables = BlockTables(num_blocks)
        self.device_name = _device_name(model.device)
        self.tokens: dict[int, list[int]] = {}
        self._seed = seed
        self._graphs = [DecodeGraph(model, size, max_blocks) for size in sorted(graph_sizes)]

    def run(
        self,
        kv: KVCache,
        requests: Sequence[Request],
        chunks: Sequence[tuple[Request, int]],
        decoding: Sequence[Request],
    ) -> int:
        """Run one step; returns the time on the card, ns.

        Args:
            kv: Memory of the replica, the step's blocks allocated.
            requests: All requests of the replica.
            chunks: Prefill pieces.
            decoding: Requests that decode.
        """
        self.tables.follow(kv, requests)
        prefills = [self._prefill(request, tokens) for request, tokens in chunks]
        ends = [(request, request.computed_then + tokens) for request, tokens in chunks]
        sampled = [end == request.target_tokens for request, end in ends]
        decodes = [self._decode(request) for request in decoding]
        emitted, gpu_ns = self._forward(prefills, sampled, decodes)
        emitting = [request for (request, _), wanted in zip(ends, sampled, strict=True) if wanted]
        for request, token in zip([*emitting, *decoding], emitted, strict=True):
            self.known(request).append(token)
        return gpu_ns

    def warm_up(self, longest: int, most_sequences: int) -> float:
        """Run steps of every kind and size, so that none compiles or loads a kernel while serving.

        What it writes to the KV memory is nobody's.

        Args:
            longest: Tokens of the longest chunk; the KV memory holds as many.
            most_sequences: Of a step.

        Returns:
            Host time of launching one layer without a graph, us.
        """
        for rows in warm_rows(self.model, longest, most_sequences):
            timed(self.model, partial(self.model.forward, rows))
        one = make_rows(self.model, [([0], 0, [0])], [True], [])
        launches_us = []
        for _ in range(LAUNCHES_TIMED):
            begin = time.perf_counter_ns()
            out = self.model.forward(one)
            launches_us.append((time.perf_counter_ns() - begin) / 1e3)
            out.tolist()  # wait: a full queue would hold up the next
        return float(np.median(launches_us)) / len(self.model.layers)

    def known(self, request: Request) -> list[int]:
        """Token ids of a request: its prompt, drawn at random, and what came out so far."""
        found = self.tokens.get(request.index)
        if found is None:
            random = np.random.default_rng([self._seed, request.index])
            found = random.integers(self.model.vocab, size=request.prompt_tokens).tolist()
            self.tokens[request.index] = found
        return found

    def _prefill(self, request: Request, tokens: int) -> Piece:
        before = request.computed_then
        return self.known(request)[before : before + tokens], before, self.tables[request]

    def _decode(self, request: Request) -> Piece:
        computed = request.computed_tokens
        return [self.known(request)[computed]], computed, self.tables[request]

    def _forward(
        self, prefills: list[Piece], sampled: list[bool], decodes: list[Piece]
    ) -> tuple[list[int], int]:
        if not prefills:
            for graph in self._graphs:
                if len(decodes) <= graph.size:
                    return graph.run(decodes)
        rows = make_rows(self.model, prefills, sampled, decodes)
        return timed(self.model, lambda: self.model.forward(rows))


CHUNKS = (1, 4, 16, 17, 64, 65, 256, 257, 512, 513, 1024, 2048, 4096, 8192)
"""Tokens of chunks to warm up with: on both sides of where kernels change their configuration."""
SEQUENCES = (1, 16, 17, 64, 65, 128)
"""Likewise of sequences that give a token."""
LAUNCHES_TIMED = 5


def warm_rows(model: RankModel, longest: int, most_sequences: int) -> Iterator[Rows]:
    """Chunks of all sizes, each beside some decodes, and decodes alone."""
    for tokens in (*(size for size in CHUNKS if size < longest), longest):
        blocks = list(range(-(-tokens // model.block_tokens)))
        yield make_rows(model, [([0] * tokens, 0, blocks)], [True], [])
    for count in (*(size for size in SEQUENCES if size < most_sequences), most_sequences):
        decodes: list[Piece] = [([0], 0, [0])] * count
        yield make_rows(model, [([0], 0, [0])], [True], decodes)
        yield make_rows(model, [], [], decodes)


def make_rows(
    model: RankModel, prefills: Sequence[Piece], sampled: Sequence[bool], decodes: Sequence[Piece]
) -> Rows:
    """The tensors of a step, on the model's device; beside prefills, decodes are chunks too.

    Args:
        model: Whose step it is.
        prefills: Chunks of prompts.
        sampled: For each chunk, whether its last row gives a token.
        decodes: One token of each decoding sequence.
    """
    import torch

    pieces = [*prefills, *decodes]
    lengths = [len(tokens) for tokens, _, _ in pieces]
    starts = np.concatenate([[0], np.cumsum(lengths)])
    positions = np.concatenate([np.arange(b, b + len(t)) for t, b, _ in pieces])
    slots = [_slots(model, piece) for piece in pieces]
    last = [starts[i + 1] - 1 for i, wanted in enumerate(sampled) if wanted]
    last += [starts[i] for i in range(len(prefills), len(pieces))]
    chunks = pieces if prefills else []
    alone = [] if prefills else decodes

    def whole(values: Any, dtype: torch.dtype) -> torch.Tensor:
        return torch.as_tensor(np.asarray(values), dtype=dtype).to(model.device)

    return Rows(
        tokens=whole(np.concatenate([tokens for tokens, _, _ in pieces]), torch.int64),
        positions=whole(positions, torch.int64),
        slots=whole(np.concatenate(slots), torch.int64),
        chunk_starts=whole(starts[: len(chunks) + 1], torch.int32),
        chunk_contexts=whole([b + len(t) for t, b, _ in chunks], torch.int32),
        chunk_tables=whole(_padded([ids for _, _, ids in chunks]), torch.int32),
        decode_contexts=whole([b + 1 for _, b, _ in alone], torch.int32),
        decode_tables=whole(_padded([ids for _, _, ids in alone]), torch.int32),
        sampled=whole(np.array(last, np.int64), torch.int64),
        longest_chunk=max(lengths[: len(prefills)], default=0),
    )


def timed(model: RankModel, forward: Callable[[], torch.Tensor]) -> tuple[list[int], int]:
    """Run, wait for the tokens; returns them and the time on the card, ns."""
    import torch

    if model.device == "cpu":
        begin = time.perf_counter_ns()
        tokens: list[int] = forward().tolist()
        return tokens, time.perf_counter_ns() - begin
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begun.record()
    out = forward()
    ended.record()
    tokens = out.tolist()
    return tokens, round(begun.elapsed_time(ended) * 1e6)


class DecodeGraph:
    """A step of decodes, captured once as a CUDA graph for a number of rows.

    Args:
        model: What runs.
        size: Rows; a smaller batch is padded with rows that attend to nothing and write nowhere.
        max_blocks: Width of the table of block ids.
    """

    def __init__(self, model: RankModel, size: int, max_blocks: int) -> None:
        import torch

        self.size = size
        self._model = model
        self._rows = idle_rows(model, size, max_blocks)
        model.forward(self._rows)  # compiles what is not yet compiled
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._out = model.forward(self._rows)

    def run(self, decodes: list[Piece]) -> tuple[list[int], int]:
        """Tokens of the decodes, and the time on the card, ns."""
        fill(self._rows, make_rows(self._model, [], [], decodes))
        tokens, gpu_ns = timed(self._model, self._replay)
        return tokens[: len(decodes)], gpu_ns

    def _replay(self) -> torch.Tensor:
        self._graph.replay()
        return self._out


def idle_rows(model: RankModel, size: int, max_blocks: int) -> Rows:
    """A step of `size` rows that only pad, with room for tables of `max_blocks`."""
    import torch

    rows = make_rows(model, [], [], [([0], 0, [0])] * size)
    rows.slots.fill_(-1)
    rows.decode_contexts.fill_(0)
    tables = torch.zeros((size, max_blocks), dtype=torch.int32, device=model.device)
    return replace(rows, decode_tables=tables)


def fill(padded: Rows, rows: Rows) -> None:
    """Put the decodes of `rows` into the first rows of `padded`; the others only pad."""
    count = rows.decode_contexts.shape[0]
    padded.slots.fill_(-1)
    padded.decode_contexts.fill_(0)
    for name in ("tokens", "positions", "slots", "decode_contexts"):
        getattr(padded, name)[:count].copy_(getattr(rows, name))
    padded.decode_tables[:count, : rows.decode_tables.shape[1]].copy_(rows.decode_tables)


def _slots(model: RankModel, piece: Piece) -> np.ndarray[Any, np.dtype[np.int64]]:
    tokens, before, ids = piece
    at = np.arange(before, before + len(tokens))
    blocks = np.asarray(ids, np.int64)[at // model.block_tokens]
    return blocks * model.block_tokens + at % model.block_tokens


def _padded(tables: Sequence[Sequence[int]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Tables of one width; what is beyond a sequence's blocks is never read."""
    wide = max((len(ids) for ids in tables), default=0)
    out = np.zeros((len(tables), wide), np.int64)
    for row, ids in zip(out, tables, strict=True):
        row[: len(ids)] = ids
    return out


def _device_name(device: str) -> str:
    import torch

    return str(torch.cuda.get_device_name()) if device == "cuda" else "the CPU"
