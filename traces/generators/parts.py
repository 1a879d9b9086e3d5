"""Requests of one turn whose prompts are made of parts: some shared with others, one their own."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from sim.content import LONGEST, Content
from sim.request import Ints, Trace
from traces.chance import generator
from traces.generators.words import CHOICE, Generator, draw_tokens, option, trace_of

_VLLM = "vLLM, benchmarks/datasets, PrefixRepetitionRandomDataset"


@dataclass(frozen=True)
class Part:
    """A stable part of prompts.

    Attributes:
        text: (n,) number of the text in each prompt, from 0 up; equal ones are the same tokens.
        tokens: (n,) how much of it each prompt has, from its start.
        texts: Different texts that there may be.
    """

    text: Ints
    tokens: Ints
    texts: int = 1


class _OfParts(Generator):
    """Puts prompts together from stable parts, in order, and a variable one."""

    name: str

    @abstractmethod
    def parts(self, n: int, seed: int) -> list[Part]:
        """The stable parts. A text belongs to one part only."""

    @abstractmethod
    def own(self, n: int, seed: int) -> tuple[Ints, Ints]:
        """(n,) tokens that only this prompt has, at least 1, and (n,) output tokens."""

    def make(self, n: int, seed: int, order: str = "stable-first") -> Trace:
        parts = self.parts(n, seed)
        own, output = self.own(n, seed)
        stable = sum((part.tokens for part in parts), np.zeros(n, dtype=np.int64))
        trace = trace_of(self.name, self, stable + own, output)
        firsts, texts = [], 0
        for part in parts:
            firsts.append(((part.text + texts) * LONGEST).tolist())
            texts += part.texts
        lengths = [part.tokens.tolist() for part in parts]
        trace.content = [
            Content(_runs(first, many, (texts + i) * LONGEST, mine, order))
            for i, (first, many, mine) in enumerate(
                zip(
                    zip(*firsts, strict=True), zip(*lengths, strict=True), own.tolist(), strict=True
                )
            )
        ]
        return trace


def _runs(
    firsts: Iterable[int],
    lengths: Iterable[int],
    own_first: int,
    own: int,
    order: str,
) -> list[tuple[int, int]]:
    stable = list(zip(firsts, lengths, strict=True))
    return [(own_first, own), *stable] if order == "variable-first" else [*stable, (own_first, own)]


class _Answered(_OfParts):
    """Of those whose questions and answers are both drawn, by options of these names."""

    question_tokens: int
    question_cv: float
    output_tokens: int
    output_cv: float

    def own(self, n: int, seed: int) -> tuple[Ints, Ints]:
        asked = _asked(self.question_tokens, self.question_cv, n, seed)
        return asked, draw_tokens(self.output_tokens, self.output_cv, n, seed, "outputs")


@dataclass(frozen=True)
class PrefixRepetition(_OfParts):
    """As vLLM's benchmark of that name: few prefixes, each in front of many different suffixes.

    As `vllm bench serve --dataset-name prefix_repetition`; each prefix is in as many prompts, and
    the order is drawn. There the rest of requests / prefixes is dropped, here it is shared out.

    Attributes:
        prefix_tokens: Tokens of each prefix.
        suffix_tokens: Tokens that only one prompt has.
        num_prefixes: Different prefixes.
        output_tokens: Tokens of each answer.
    """

    name = "prefix-repetition"

    prefix_tokens: int = option(256, f"{_VLLM}, DEFAULT_PREFIX_LEN", maximum=10**7)
    suffix_tokens: int = option(256, f"{_VLLM}, DEFAULT_SUFFIX_LEN", maximum=10**7)
    num_prefixes: int = option(10, f"{_VLLM}, DEFAULT_NUM_PREFIXES")
    output_tokens: int = option(128, f"{_VLLM}, DEFAULT_OUTPUT_LEN", maximum=10**7)

    def parts(self, n: int, seed: int) -> list[Part]:
        # Rounds in each of which every prefix has its turn: the same counts, and the first k
        # requests are the same whatever n is.
        rounds = -(-n // self.num_prefixes)
        drawn = generator(seed, "prefixes").random((rounds, self.num_prefixes))
        chosen = np.argsort(drawn, axis=1).ravel()[:n]
        return [Part(chosen, np.full(n, self.prefix_tokens), self.num_prefixes)]

    def own(self, n: int, seed: int) -> tuple[Ints, Ints]:
        return np.full(n, self.suffix_tokens), np.full(n, self.output_tokens)


@dataclass(frozen=True)
class SystemPrompts(_Answered):
    """Applications, each with a system prompt of its own in front of what users ask.

    Attributes:
        system_tokens: Mean tokens of a system prompt.
        system_cv: Coefficient of variation of their lengths, 0 for all alike.
        applications: Different system prompts.
        zipf: The i-th most popular application has weight ``i ** -zipf``.
        question_tokens: Mean tokens of what only one prompt has.
        question_cv: Coefficient of variation of these.
        output_tokens: Mean tokens of an answer.
        output_cv: Coefficient of variation of these.
    """

    name = "system-prompts"

    system_tokens: int = option(
        2765, "WEKA trace_0026 (C. Fox, kv-cache-tester): system_tokens", maximum=10**7
    )
    system_cv: float = option(0.0, CHOICE, maximum=100)
    applications: int = option(1, CHOICE, maximum=10**6)
    zipf: float = option(1.0, CHOICE, maximum=10)
    question_tokens: int = option(
        70, "LMSYS-Chat-1M (Zheng et al., ICLR 2024), table 1: tokens per prompt", maximum=10**7
    )
    question_cv: float = option(1.0, CHOICE, maximum=100)
    output_tokens: int = option(
        215, "LMSYS-Chat-1M (Zheng et al., ICLR 2024), table 1: tokens per response", maximum=10**7
    )
    output_cv: float = option(1.0, CHOICE, maximum=100)

    def parts(self, n: int, seed: int) -> list[Part]:
        chosen = popular(self.applications, self.zipf, n, seed, "applications")
        of_each = draw_tokens(
            self.system_tokens, self.system_cv, self.applications, seed, "system prompts"
        )
        return [Part(chosen, of_each[chosen], self.applications)]


@dataclass(frozen=True)
class FewShot(_OfParts):
    """Tasks, each with the same examples in front of every question, below one instruction.

    Attributes:
        instruction_tokens: Tokens that all prompts begin with.
        examples: Examples of a task.
        example_tokens: Mean tokens of an example.
        example_cv: Coefficient of variation of their lengths.
        tasks: Different tasks, equally frequent.
        question_tokens: Mean tokens of what only one prompt has.
        question_cv: Coefficient of variation of these.
        output_tokens: Tokens of each answer.
    """

    name = "few-shot"

    instruction_tokens: int = option(0, CHOICE, minimum=0, maximum=10**7)
    examples: int = option(5, "5-shot MMLU (Hendrycks et al., ICLR 2021)", maximum=10**4)
    example_tokens: int = option(100, CHOICE, maximum=10**6)
    example_cv: float = option(0.0, CHOICE, maximum=100)
    tasks: int = option(57, "subjects of MMLU (Hendrycks et al., ICLR 2021)", maximum=10**6)
    question_tokens: int = option(100, CHOICE, maximum=10**7)
    question_cv: float = option(0.0, CHOICE, maximum=100)
    output_tokens: int = option(1, "MMLU: one letter", maximum=10**7)

    def parts(self, n: int, seed: int) -> list[Part]:
        task = generator(seed, "tasks").integers(0, self.tasks, n)
        each = draw_tokens(
            self.example_tokens, self.example_cv, self.tasks * self.examples, seed, "examples"
        )
        shown = each.reshape(self.tasks, self.examples).sum(axis=1)
        shared = Part(np.zeros(n, dtype=np.int64), np.full(n, self.instruction_tokens))
        return [shared, Part(task, shown[task], self.tasks)]

    def own(self, n: int, seed: int) -> tuple[Ints, Ints]:
        asked = _asked(self.question_tokens, self.question_cv, n, seed)
        return asked, np.full(n, self.output_tokens)


@dataclass(frozen=True)
class Documents(_Answered):
    """Questions about documents, some of which are asked about again and again.

    Attributes:
        system_tokens: Tokens that all prompts begin with.
        documents: Different documents.
        document_tokens: Mean tokens of a document.
        document_cv: Coefficient of variation of their lengths.
        zipf: The i-th most popular document has weight ``i ** -zipf``; 0 for all alike.
        question_tokens: Mean tokens of a question.
        question_cv: Coefficient of variation of these.
        output_tokens: Mean tokens of an answer.
        output_cv: Coefficient of variation of these.
    """

    name = "documents"

    system_tokens: int = option(0, CHOICE, minimum=0, maximum=10**7)
    documents: int = option(100, CHOICE, maximum=10**7)
    document_tokens: int = option(
        2565, "arXiv papers for summaries (Vidur): mean prompt of 5,000 rows", maximum=10**7
    )
    document_cv: float = option(0.0, CHOICE, maximum=100)
    zipf: float = option(1.0, CHOICE, maximum=10)
    question_tokens: int = option(
        70, "LMSYS-Chat-1M (Zheng et al., ICLR 2024), table 1: tokens per prompt", maximum=10**7
    )
    question_cv: float = option(1.0, CHOICE, maximum=100)
    output_tokens: int = option(
        215, "LMSYS-Chat-1M (Zheng et al., ICLR 2024), table 1: tokens per response", maximum=10**7
    )
    output_cv: float = option(1.0, CHOICE, maximum=100)

    def parts(self, n: int, seed: int) -> list[Part]:
        chosen = popular(self.documents, self.zipf, n, seed, "documents")
        each = draw_tokens(
            self.document_tokens, self.document_cv, self.documents, seed, "document lengths"
        )
        shared = Part(np.zeros(n, dtype=np.int64), np.full(n, self.system_tokens))
        return [shared, Part(chosen, each[chosen], self.documents)]


def popular(many: int, zipf: float, n: int, seed: int, purpose: str) -> Ints:
    """(n,) draws of 0 to `many` - 1, the i-th (from 1) with weight ``i ** -zipf``."""
    shares = np.cumsum(np.arange(1, many + 1, dtype=np.float64) ** -zipf)
    drawn = generator(seed, purpose).random(n) * shares[-1]
    return np.minimum(np.searchsorted(shares, drawn, side="right"), many - 1).astype(np.int64)


def _asked(mean: int, cv: float, n: int, seed: int) -> Ints:
    return draw_tokens(mean, cv, n, seed, "questions")
