"""``phasewise phases``: what prefill and decode cost on one device, and what bounds them."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from experiments.tables import three_digits
from sim.architecture import ModelSpec
from sim.errors import ConfigError
from sim.phases import MOST_ROWS, PhaseArithmetic, PhaseCost, attention_shares, token_rows
from sim.specs import kv_blocks, kv_bytes_per_token, load_device, load_model

if TYPE_CHECKING:
    from rich.console import Console

CONTEXTS = (128, 1024, 8192, 32768, 131072)
"""Contexts at which attention's share is shown, beside the one asked for."""


BLOCK_TOKENS = 16
"""Of a KV block (the default of vLLM on GPUs)."""


_WIDEST = 110
"""Columns of text that the widest table takes."""


@dataclass(frozen=True)
class Question:
    """What `phases` is asked.

    Attributes:
        model: Name, or a Hugging Face ``config.json``.
        device: Name of a data sheet.
        prompt: Tokens of a prompt.
        batch: Decodes of a step, and prompts of the batched prefill.
        context: Tokens that each of the decodes attends to.
        output: Tokens that a request emits, for its TPOT.
        precision: Of the weights.
        kv_dtype: Of the KV cache.
        tensor_parallel: GPUs of a replica.
    """

    model: str
    device: str
    prompt: int = 1024
    batch: int = 32
    context: int = 1024
    output: int = 128
    precision: str = "bf16"
    kv_dtype: str = "bf16"
    tensor_parallel: int = 1


@dataclass(frozen=True)
class Answer:
    """The arithmetic of one question.

    Attributes:
        question: As asked.
        arithmetic: Of its model on its device.
        steps: Names and costs of the steps shown.
        kv_bytes_per_token: On all GPUs of a replica together.
        kv_tokens: That fit beside the weights on one replica; None where the weights do not fit.
        kv_said: How that was computed, or why nothing fits.
    """

    question: Question
    arithmetic: PhaseArithmetic
    steps: tuple[tuple[str, PhaseCost], ...]
    kv_bytes_per_token: int
    kv_tokens: int | None
    kv_said: str

    @property
    def most_requests(self) -> int | None:
        """Requests of the context asked for whose KV fits at once, each in whole blocks."""
        if self.kv_tokens is None:
            return None
        return self.kv_tokens // BLOCK_TOKENS // -(-self.question.context // BLOCK_TOKENS)


def run(asked: Question, *, rows: bool, plot: Path | None, as_json: bool) -> None:
    """Print the answer, and draw it where `plot` says so.

    Raises:
        ConfigError: An unknown name, or a number that makes no sense.
    """
    from rich.console import Console

    console = Console(markup=False, emoji=False, highlight=False)
    if plot is not None:
        _check_page(plot)
    found = answer(asked)
    if as_json:
        extra: dict[str, Any] = {}
        if rows:
            lists = {
                name: token_rows(asked.prompt, asked.output, cache=cache)
                for name, cache in (("without_cache", False), ("with_cache", True))
            }
            extra = {"token_rows": lists}
        print(json.dumps(figures(found) | extra, indent=1))
    else:
        show(found, console)
        for line in rows_of(asked.prompt, asked.output) if rows else ():
            _say(console, line)
    if plot is not None:
        from experiments.phases_figure import write

        write(found, plot)
        print(f"wrote {plot}", file=sys.stderr)


def _check_page(path: Path) -> None:
    if path.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"phases: --plot {path}: expected a name that ends in .html")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"phases: --plot {path}: there is no folder {path.parent}")


def _check_lengths(asked: Question, model: ModelSpec) -> None:
    """Refuse requests that are longer than the model's context."""
    for name, tokens in (
        ("--prompt and --output", asked.prompt + asked.output),
        ("--context", asked.context),
    ):
        if tokens > model.max_positions:
            raise ConfigError(
                f"phases: {name}: {tokens:,} tokens: the context of {model.name} is "
                f"{model.max_positions:,}"
            )


def answer(asked: Question) -> Answer:
    """Compute.

    Raises:
        ConfigError: An unknown name, or a number that makes no sense.
    """
    model, device = load_model(asked.model), load_device(asked.device)
    _check_lengths(asked, model)
    tp = asked.tensor_parallel
    sums = PhaseArithmetic(model, device, asked.precision, asked.kv_dtype, tp)
    steps = [
        (f"prefill 1 x {asked.prompt}", sums.prefill(asked.prompt)),
        (f"prefill {asked.batch} x {asked.prompt}", sums.prefill(asked.prompt, asked.batch)),
        (f"decode 1 at {asked.context}", sums.decode(1, asked.context)),
        (f"decode {asked.batch} at {asked.context}", sums.decode(asked.batch, asked.context)),
    ]
    if asked.batch == 1:
        steps = [steps[0], steps[2]]
    per_token = tp * kv_bytes_per_token(model, asked.kv_dtype, tp)
    tokens: int | None = None
    try:
        blocks, said = kv_blocks(
            model,
            device,
            precision=asked.precision,
            kv_dtype=asked.kv_dtype,
            tp=tp,
            block_tokens=BLOCK_TOKENS,
        )
        tokens = BLOCK_TOKENS * blocks
    except ConfigError as error:
        said = str(error)
    return Answer(asked, sums, tuple(steps), per_token, tokens, said)


def figures(found: Answer) -> dict[str, Any]:
    """All numbers, for JSON."""
    asked, sums = found.question, found.arithmetic
    return {
        "question": asdict(asked),
        "ridge_flops_per_byte": sums.ridge,
        "peak_flops_per_s": sums.peak_flops,
        "memory_bytes_per_s": sums.device.memory_bytes_per_s,
        "steps": [_step(name, cost) for name, cost in found.steps],
        "prompt_tokens_at_ridge": sums.prompt_at_ridge(),
        "batch_at_ridge": sums.batch_at_ridge(asked.context),
        "batch_at_ridge_without_context": sums.batch_at_ridge(1),
        "kv_bytes_per_token": found.kv_bytes_per_token,
        "kv_tokens": found.kv_tokens,
        "most_requests": found.most_requests,
        "ttft_floor_s": sums.ttft_floor_s(asked.prompt),
        "tpot_floor_s": sums.tpot_floor_s(asked.prompt, asked.output) if asked.output > 1 else None,
        "attention": [
            {"context_tokens": context} | dict(zip(_SHARES, shares, strict=True))
            for context, *shares in attention(found)
        ],
    }


_SHARES = ("prefill_flops_share", "decode_flops_share", "decode_bytes_share")


def _step(name: str, cost: PhaseCost) -> dict[str, Any]:
    return {
        "step": name,
        "rows": cost.rows,
        "flops": cost.flops,
        "bytes": cost.num_bytes,
        "intensity_flops_per_byte": cost.intensity,
        "bound": "compute" if cost.compute_bound else "memory",
        "compute_s": cost.compute_s,
        "memory_s": cost.memory_s,
        "floor_s": cost.floor_s,
    }


def attention(found: Answer) -> list[tuple[int, float, float, float]]:
    """By context: attention's share of a prefill's FLOPs, of a decode's, and KV's of its bytes."""
    asked, sums = found.question, found.arithmetic
    most = sums.model.max_positions
    contexts = sorted({*(each for each in CONTEXTS if each <= most), asked.context})
    prefills = attention_shares([sums.prefill(context) for context in contexts])
    decodes = attention_shares([sums.decode(asked.batch, context) for context in contexts])
    return [
        (context, prefill[0], *decode)
        for context, prefill, decode in zip(contexts, prefills, decodes, strict=True)
    ]


def show(found: Answer, console: Console) -> None:
    """Print the tables and the sentences below them."""
    _say(console, heading(found))
    rows = [
        (
            name,
            f"{cost.rows}",
            three_digits(cost.flops / 1e12),
            three_digits(cost.num_bytes / 1e9),
            three_digits(cost.intensity),
            _bound(cost),
            _time(cost.floor_s),
        )
        for name, cost in found.steps
    ]
    _table(console, ("step", "rows", "TFLOP", "GB", "FLOP/byte", "bound", "floor"), rows)
    shares = [
        (f"{context}", f"{prefill:.1%}", f"{flops:.1%}", f"{num_bytes:.1%}")
        for context, prefill, flops, num_bytes in attention(found)
    ]
    heads = (
        "context",
        "attention in\nprefill FLOPs",
        "attention in\ndecode FLOPs",
        "KV in\ndecode bytes",
    )
    _table(console, heads, shares)
    for sentence in sentences(found):
        _say(console, sentence)


def heading(found: Answer) -> str:
    """The model, the device, its peaks and the ridge."""
    asked, sums = found.question, found.arithmetic
    device = sums.device
    gpus = "one GPU" if asked.tensor_parallel == 1 else f"each of {asked.tensor_parallel} GPUs"
    return (
        f"{sums.model.name} ({asked.precision} weights, {asked.kv_dtype} KV) on {device.name}, "
        f"{gpus}: {sums.peak_flops / 1e12:.4g} TFLOP/s, {device.memory_bytes_per_s / 1e12:.4g} "
        f"TB/s, ridge {sums.ridge:.0f} FLOP/byte. Peaks of the data sheet: times are floors."
    )


def sentences(found: Answer) -> list[str]:
    """Where each phase crosses the ridge, what fits, and the floors."""
    asked, sums = found.question, found.arithmetic
    said = [_crossing_of_prefill(sums.prompt_at_ridge()), _crossing_of_decode(found)]
    per_token = f"KV: {found.kv_bytes_per_token:,} bytes a token on all GPUs of a replica"
    if found.kv_tokens is None:
        said.append(f"{per_token}. {found.kv_said}")
    else:
        said.append(
            f"{per_token}; {found.kv_tokens:,} tokens fit, {found.most_requests} requests of "
            f"{asked.context} tokens at once ({found.kv_said})."
        )
    floors = f"TTFT {_time(sums.ttft_floor_s(asked.prompt))} for a prompt of {asked.prompt} tokens"
    if asked.output > 1:
        tpot = sums.tpot_floor_s(asked.prompt, asked.output)
        floors += f", TPOT {_time(tpot)} over {asked.output} outputs after it"
    said.append(f"Floors of a request alone: {floors}.")
    return said


def _crossing_of_prefill(prompt: int | None) -> str:
    if prompt is None:
        return f"A prefill is memory bound up to {MOST_ROWS:,} tokens."
    return f"A prefill alone is compute bound from {prompt:,} prompt tokens on."


def _crossing_of_decode(found: Answer) -> str:
    asked, sums = found.question, found.arithmetic
    batch, weights_only = sums.batch_at_ridge(asked.context), sums.batch_at_ridge(1)
    if batch is not None:
        fits = found.most_requests
        short = "" if fits is None or fits >= batch else f", of which {fits} fit"
        return f"Decodes at context {asked.context} are compute bound from {batch:,} on{short}."
    limit = sums.decode(MOST_ROWS, asked.context).intensity
    said = (
        f"Decodes at context {asked.context} are memory bound in any batch: each brings its own "
        f"KV, so that intensity stays below {limit:.0f} FLOP/byte"
    )
    if weights_only is not None:
        said += f" (without context, {weights_only:,} of them would be compute bound)"
    return said + "."


def rows_of(prompt: int, output: int) -> list[str]:
    """Rows pushed through the weights for one request, without and with a KV cache, in words."""
    said = []
    for cache in (False, True):
        rows = token_rows(prompt, output, cache=cache)
        how = "with" if cache else "without"
        total = f"{' + '.join(map(str, rows))} = {sum(rows)}" if len(rows) <= 24 else f"{sum(rows)}"
        said.append(f"token rows {how} a KV cache, {prompt} prompt + {output} output: {total}")
    return said


def _bound(cost: PhaseCost) -> str:
    over = cost.intensity / cost.ridge
    if cost.compute_bound:
        return f"compute, {three_digits(over)}x"
    return f"memory, {three_digits(1 / over)}x"


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{three_digits(seconds)} s"
    return f"{three_digits(1e3 * seconds)} ms"


def _table(console: Console, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for i, head in enumerate(heads):
        justify: Literal["left", "right"] = "left" if i == 0 else "right"
        table.add_column(Text(head), justify=justify, no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    # Wide numbers rather go over the edge of a narrow terminal than be cut.
    console.width = max(console.width, _WIDEST)
    console.print(table)


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)
