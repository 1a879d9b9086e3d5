"""Times of whole steps of the real model's shape, to hold the sum of its operators against.

A profile's step time is a sum over operators that were each timed alone. Here the whole step is
timed, in one CUDA graph and with random weights, and written beside that sum (`step.csv`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kernels_profile.host import HostOverhead
from kernels_profile.table import append_rows, find_data_sets, read_table
from sim.errors import ProfileError
from sim.specs import ModelSpec
from sim.step_time import StepWork

if TYPE_CHECKING:
    from kernels_profile.engine.model import RankModel, Rows
    from kernels_profile.engine.runner import Piece
    from kernels_profile.profiler.timing import Timer

BLOCK_TOKENS = 16
MEMORY_SHARE = 0.9
"""Of what is free once the weights are there; the rest is for activations and graphs."""
_INFINITE = 1e30
"""Bandwidth of links that are not there."""


@dataclass(frozen=True)
class StepPoint:
    """One whole step.

    Attributes:
        prefill_tokens: Rows of its chunk, 0 without one.
        history: Tokens before the chunk.
        decodes: Decodes.
        context: Context of each, the new token included.
    """

    prefill_tokens: int = 0
    history: int = 0
    decodes: int = 0
    context: int = 0

    @property
    def kind(self) -> str:
        """``prefill``, ``decode`` or ``mixed``."""
        if not self.decodes:
            return "prefill"
        return "mixed" if self.prefill_tokens else "decode"

    @property
    def work(self) -> StepWork:
        """As a step-time model sees it; a chunk ends its prompt here, so that it is sampled."""
        chunks = [(self.prefill_tokens, self.history)] if self.prefill_tokens else []
        return StepWork(chunks, self.decodes, self.decodes * self.context)

    @property
    def stored_tokens(self) -> int:
        """Tokens of KV that it takes, in whole blocks."""
        sequences = [self.context] * self.decodes
        sequences += [self.history + self.prefill_tokens] if self.prefill_tokens else []
        return sum(-(-tokens // BLOCK_TOKENS) * BLOCK_TOKENS for tokens in sequences)


POINTS = (
    *(StepPoint(decodes=batch, context=1024) for batch in (1, 32, 128)),
    *(StepPoint(prefill_tokens=tokens) for tokens in (512, 2048)),
    StepPoint(512, 0, 32, 1024),
    *(StepPoint(decodes=batch, context=1024) for batch in (8, 64, 256)),
    *(StepPoint(decodes=batch, context=8192) for batch in (1, 16, 64)),
    *(StepPoint(prefill_tokens=tokens) for tokens in (128, 8192)),
    *(StepPoint(tokens, 4096) for tokens in (512, 2048)),
    *(StepPoint(tokens, 0, batch, 1024) for tokens, batch in ((256, 128), (2048, 64))),
)
"""The most telling first: each kind at a usual size, then the ends of the ranges."""


def measure(
    out: Path, model: ModelSpec, tensor_parallel: int, budget_s: float, device: str = "auto"
) -> list[StepPoint]:
    """Time whole steps on the card here and append those that it lacks to the data set at `out`.

    A step that fails is said on stderr and left out.

    Args:
        out: A data set of this card with the operators of this model: see `profile run`.
        model: What to run; one rank of it.
        tensor_parallel: Ranks.
        budget_s: No new point is begun once so many seconds are over.
        device: As for `profile run`.

    Returns:
        The points that the table has now.

    Raises:
        ProfileError: no such data set, an operator missing in it, or a model that does not run.
    """
    import torch

    from kernels_profile.profiler.device import find
    from kernels_profile.profiler.effort import Effort
    from kernels_profile.profiler.loop import said
    from kernels_profile.profiler.progress import to_stderr
    from kernels_profile.profiler.timing import CudaTimer

    until = time.monotonic() + budget_s
    done = known(out, model, tensor_parallel)
    if set(POINTS) <= set(done):
        return done
    found = find(device)
    if found.kind != "cuda":
        raise ProfileError("steps: whole steps are timed on a GPU only")
    operators = operator_sum(out, model, tensor_parallel, found.spec.name)
    rank, blocks = _rank(model, tensor_parallel, out)
    points = [point for point in POINTS if fits(point, model, blocks) and point not in done]
    timer = CudaTimer(Effort())
    with torch.inference_mode():
        for point in points:
            if time.monotonic() > until:
                break
            try:
                made = row(rank, tensor_parallel, point, timer, operators)
            except Exception as error:  # what one step says must not end the others
                to_stderr(f"step {point}: {said(error)}")
                continue
            append_rows(out, "step", [made])
            done.append(point)
    return done


def known(out: Path, model: ModelSpec, tensor_parallel: int) -> list[StepPoint]:
    """Steps of the model that an earlier run has measured."""
    path = out / "step.csv"
    if not path.is_file():
        return []
    rows = read_table(path, "step").where(model=model.name, tp=tensor_parallel)
    columns = (rows[name].tolist() for name in StepPoint.__dataclass_fields__)
    return [StepPoint(*map(int, values)) for values in zip(*columns, strict=True)]


def fits(point: StepPoint, model: ModelSpec, num_blocks: int) -> bool:
    """Whether the card's KV memory holds the point, and the model's positions its contexts."""
    longest = max(point.context, point.history + point.prefill_tokens)
    enough = point.stored_tokens <= num_blocks * BLOCK_TOKENS
    return enough and longest <= model.max_positions


def operator_sum(
    out: Path, model: ModelSpec, tensor_parallel: int, device: str
) -> Callable[[StepWork], float]:
    """Gives the sum of a step's operators from the tables at `out`, us, without any host time.

    All-reduces are not in it: one rank runs alone here.
    """
    from kernels_profile.graphs import GRAPHS
    from kernels_profile.links import Collectives
    from kernels_profile.step_time import ProfiledStepTime
    from sim.specs import load_device

    profile = ProfiledStepTime(
        model,
        load_device(device),
        find_data_sets([out], device),
        tensor_parallel=tensor_parallel,
        host=HostOverhead(1e-9, 0.0, "none: only the card is timed"),
        cuda_graphs=GRAPHS["none"],
        noise_cv=0.0,
        collectives=Collectives(bandwidth_bytes_per_s=_INFINITE),
    )
    return lambda work: profile.exact_ns(work) / 1e3


def row(
    rank: RankModel,
    tensor_parallel: int,
    point: StepPoint,
    timer: Timer,
    operators: Callable[[StepWork], float],
) -> dict[str, object]:
    """One row of `step.csv`."""
    from kernels_profile.profiler.timing import Work

    rows, estimate = make_step(rank, point), operators(point.work)
    timing = timer.time(Work(lambda _: rank.forward(rows)), estimate)
    return {
        "model": rank.spec.name,
        "kind": point.kind,
        "tp": tensor_parallel,
        "prefill_tokens": point.prefill_tokens,
        "history": point.history,
        "decodes": point.decodes,
        "context": point.context,
        **timing.columns(),
        "operators_us": round(estimate, 4),
    }


def make_step(rank: RankModel, point: StepPoint) -> Rows:
    """Inputs of a step: random tokens, blocks one after the other."""
    from kernels_profile.engine.runner import make_rows

    blocks = _blocks()
    chunks: list[Piece] = []
    if point.prefill_tokens:
        tokens = [i % rank.vocab for i in range(point.prefill_tokens)]
        chunks.append((tokens, point.history, blocks(point.history + point.prefill_tokens)))
    decodes: list[Piece] = [
        ([i % rank.vocab], point.context - 1, blocks(point.context)) for i in range(point.decodes)
    ]
    return make_rows(rank, chunks, [True] * len(chunks), decodes)


def _blocks() -> Callable[[int], list[int]]:
    """Hands out block ids that nobody else has."""
    ids = iter(range(2**31))

    def take(tokens: int) -> list[int]:
        return [next(ids) for _ in range(-(-tokens // BLOCK_TOKENS))]

    return take


def _rank(model: ModelSpec, tensor_parallel: int, tables: Path) -> tuple[RankModel, int]:
    """The model on the card, and how many blocks its memory holds."""
    import torch

    from kernels_profile.engine.model import RankModel, layer_block_bytes, weight_bytes

    free, _ = torch.cuda.mem_get_info()
    shared = weight_bytes(model, tensor_parallel) > free / 2
    weights = weight_bytes(model, tensor_parallel, layers=1 if shared else model.layers)
    block = layer_block_bytes(model, tensor_parallel, BLOCK_TOKENS) * model.layers
    most = max(_wanted(POINTS))
    blocks = min(int((free - weights) * MEMORY_SHARE / block), most)
    if blocks < 1:
        raise ProfileError(
            f"steps: {model.name} at tp {tensor_parallel} leaves no room for KV on this card"
        )
    longest = max(max(point.context, point.history + point.prefill_tokens) for point in POINTS)
    rank = RankModel(
        model,
        tensor_parallel=tensor_parallel,
        num_blocks=blocks,
        block_tokens=BLOCK_TOKENS,
        max_positions=longest,
        device="cuda",
        dtype=torch.bfloat16,
        share_layers=shared,
        tables=tables,
    )
    return rank, blocks


def _wanted(points: Iterable[StepPoint]) -> Iterator[int]:
    return (point.stored_tokens // BLOCK_TOKENS for point in points)
