"""Coding assistants: completion at each keystroke, edits in place, chat beside the code, agents.

Turn k of a session holds all of turn k - 1, prompt and answer, and new tokens; a keystroke holds
all that was there before it. What each default is taken from stands beside it. ``WEKA`` are the 20
conversations of ``weka_claudecode_open`` (C. Fox, kv-cache-tester, Apache-2.0), their 524 pairs of
consecutive prompts and 544 requests without sub-agents, counted for this file; ``as specified``
means what a preset of its kind is asked to be, not a measurement.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from sim.content import LONGEST, Content
from sim.request import NEVER, Ints, Trace
from traces.chance import generator
from traces.generators.words import CHOICE, Generator, draw, draw_tokens, option, trace_of
from traces.turns import in_order

_SPECIFIED = "as specified for this preset"
_KEYS = "Dhakal et al., Observations on Typing from 136 Million Keystrokes, CHI 2018"
_AZURE_CODE = "Azure code trace 2023 (Patel et al., Splitwise, ISCA 2024)"
_LMSYS = "LMSYS-Chat-1M (Zheng et al., ICLR 2024), table 1"
_NIELSEN = "Nielsen, Usability Engineering, 1993, ch. 5: limits of 0.1, 1 and 10 s"


@dataclass(frozen=True)
class _Turns(Generator):
    """Sessions of turns, each of which holds the one before.

    Attributes:
        system_tokens: Tokens that the prompts of all sessions begin with.
        context_tokens: Mean tokens of what a first prompt has beside them.
        context_cv: Coefficient of variation of these.
        turns: Mean turns of a session.
        turns_cv: Coefficient of variation of these; 0 for all alike.
        new_tokens: Mean tokens that a turn adds to what was said before.
        new_cv: Coefficient of variation of these.
        output_tokens: Mean tokens of an answer.
        output_cv: Coefficient of variation of these.
        delay_s: Mean time from an answer's end to the next turn.
        delay_cv: Coefficient of variation of these.
    """

    name: ClassVar[str]
    sessions: ClassVar[Literal["none", "closed", "typed"]] = "closed"

    system_tokens: int = option(0, CHOICE, minimum=0, maximum=10**7)
    context_tokens: int = option(1, CHOICE, maximum=10**7)
    context_cv: float = option(0.0, CHOICE, maximum=100)
    turns: int = option(1, CHOICE, maximum=10**5)
    turns_cv: float = option(0.0, CHOICE, maximum=100)
    new_tokens: int = option(1, CHOICE, maximum=10**7)
    new_cv: float = option(0.0, CHOICE, maximum=100)
    output_tokens: int = option(1, CHOICE, maximum=10**7)
    output_cv: float = option(0.0, CHOICE, maximum=100)
    delay_s: float = option(0.0, CHOICE, maximum=10**6)
    delay_cv: float = option(0.0, CHOICE, maximum=100)

    def make(self, n: int, seed: int, order: str = "stable-first") -> Trace:
        session, turn = self._numbered(n, seed)
        first = turn == 0
        new = draw_tokens(self.new_tokens, self.new_cv, n, seed, "new tokens")
        output = draw_tokens(self.output_tokens, self.output_cv, n, seed, "outputs")
        begun = self.system_tokens + self._contexts(int(session[-1]) + 1, seed)[session]
        held = np.where(first, 0, new) + np.where(first, 0, np.roll(output, 1))
        prompt = begun + _since_start(held, first)
        trace = trace_of(self.name, self, prompt, output)
        trace.session = np.array([f"{self.name}-{k}" for k in session.tolist()], dtype=object)
        trace.turn = turn
        trace.delay_ns = self._delays(first, seed)
        trace.prompts_are_whole = True
        return trace

    def _numbered(self, n: int, seed: int) -> tuple[Ints, Ints]:
        """(n,) session and turn of each request, session by session; the last may be cut."""
        lengths = draw_tokens(self.turns, self.turns_cv, n, seed, "turns")
        ends = np.cumsum(lengths)
        session = np.searchsorted(ends, np.arange(n), side="right")
        return session, np.arange(n) - (ends - lengths)[session]

    def _contexts(self, sessions: int, seed: int) -> Ints:
        return draw_tokens(self.context_tokens, self.context_cv, sessions, seed, "contexts")

    def _delays(self, first: np.ndarray[tuple[int], np.dtype[np.bool_]], seed: int) -> Ints:
        drawn = draw(self.delay_s, self.delay_cv, len(first), seed, "delays")
        return np.where(first, 0, np.rint(drawn * 1e9).astype(np.int64))


def _since_start(added: Ints, first: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Ints:
    """(n,) sums of `added` within each session, up to and with each row."""
    total = np.cumsum(added)
    begin = np.flatnonzero(first)
    base = (total - added)[begin]
    return total - np.repeat(base, np.diff(np.concatenate((begin, [len(added)]))))


@dataclass(frozen=True)
class TabCompletion(_Turns):
    """Completion at each keystroke: short prompts that differ in their last tokens, given up soon.

    A session is a burst of typing. Its requests come at its keystrokes, whatever becomes of those
    before: at the next one a completion still under way is stale, and is cancelled. Completions are
    not accepted, so that prompts hold what was typed only. The text after the cursor is not part of
    the prompt, or stands in front of the rest.

    Attributes:
        system_tokens: Tokens that the prompts of all sessions begin with.
        shortest_tokens: Shortest first prompt of a burst; they are uniform up to `context_tokens`.
        context_tokens: Longest first prompt of a burst.
        turns: Mean keystrokes of a burst.
        new_tokens: Mean tokens that a keystroke adds.
        output_tokens: Mean tokens of a completion.
        delay_s: Mean time between keystrokes.
    """

    name = "tab-completion"
    request_class = "tab-completion"
    sessions = "typed"
    slo: ClassVar = {"ttft_s": 0.1}
    slo_source = f"{_SPECIFIED}: under 100 ms; {_NIELSEN}"

    shortest_tokens: int = option(1000, f"{_SPECIFIED}: prompts of 1,000 to 2,000 tokens")
    context_tokens: int = option(2000, f"{_SPECIFIED}: prompts of 1,000 to 2,000 tokens")
    turns: int = option(20, CHOICE, maximum=10**5)
    new_tokens: int = option(1, f"{_SPECIFIED}: the next keystroke shares nearly all")
    output_tokens: int = option(10, f"{_SPECIFIED}: about 10")
    delay_s: float = option(0.239, f"{_KEYS}: mean inter-key interval, 238.656 ms")
    delay_cv: float = option(0.47, f"{_KEYS}: its standard deviation, 111.6 ms", maximum=100)

    def __post_init__(self) -> None:
        if self.shortest_tokens > self.context_tokens:
            raise ValueError(
                f"shortest_tokens {self.shortest_tokens} is above context_tokens"
                f" {self.context_tokens}"
            )

    def _contexts(self, sessions: int, seed: int) -> Ints:
        low, high = self.shortest_tokens, self.context_tokens
        return generator(seed, "contexts").integers(low, high + 1, sessions)

    def make(self, n: int, seed: int, order: str = "stable-first") -> Trace:
        session, turn = self._numbered(n, seed)
        first = turn == 0
        new = np.where(first, 0, draw_tokens(self.new_tokens, self.new_cv, n, seed, "new tokens"))
        begun = self.system_tokens + self._contexts(int(session[-1]) + 1, seed)[session]
        prompt = begun + _since_start(new, first)
        output = draw_tokens(self.output_tokens, self.output_cv, n, seed, "outputs")
        trace = trace_of(self.name, self, prompt, output)
        trace.session = np.array([f"{self.name}-{k}" for k in session.tolist()], dtype=object)
        trace.turn = turn
        trace.delay_ns = self._delays(first, seed)
        stale = np.full(n, NEVER, dtype=np.int64)
        stale[:-1] = np.where(first[1:], NEVER, trace.delay_ns[1:])
        trace.cancel_after_ns = stale
        trace.prompts_are_whole = True
        held = np.where(first, self.system_tokens, prompt - new)
        rows = zip(session.tolist(), prompt.tolist(), held.tolist(), strict=True)
        trace.content = [
            in_order(_text(number, self.system_tokens, tokens), before, tokens, order)
            for number, tokens, before in rows
        ]
        return trace


def _text(session: int, system_tokens: int, tokens: int) -> Content:
    """What is there at a keystroke: what all have, then the text of the burst."""
    return Content([(0, system_tokens), ((session + 1) * LONGEST, tokens - system_tokens)])


@dataclass(frozen=True)
class InlineEdit(_Turns):
    """Edits in place: code and an instruction go in, the changed lines come out, a few times."""

    name = "inline-edit"
    request_class = "inline-edit"
    slo: ClassVar = {"ttft_s": 1.0}
    slo_source = _NIELSEN

    context_tokens: int = option(2048, f"{_AZURE_CODE}: mean prompt", maximum=10**7)
    context_cv: float = option(0.96, f"{_AZURE_CODE}: of prompts", maximum=100)
    turns: int = option(3, CHOICE, maximum=10**5)
    new_tokens: int = option(70, f"{_LMSYS}: tokens per prompt, 69.5", maximum=10**7)
    new_cv: float = option(1.0, CHOICE, maximum=100)
    output_tokens: int = option(100, CHOICE, maximum=10**7)
    output_cv: float = option(1.0, CHOICE, maximum=100)
    delay_s: float = option(20.0, CHOICE, maximum=10**6)
    delay_cv: float = option(1.0, CHOICE, maximum=100)


@dataclass(frozen=True)
class EditorChat(_Turns):
    """Chat beside the code: a first prompt with code, then questions and answers."""

    name = "editor-chat"
    request_class = "editor-chat"
    slo: ClassVar = {"ttft_s": 2.0, "tpot_s": 0.2}
    slo_source = "MLPerf Inference, Llama 2 70B, server scenario: TTFT 2 s, TPOT 200 ms"

    context_tokens: int = option(2048, f"{_AZURE_CODE}: mean prompt", maximum=10**7)
    context_cv: float = option(0.96, f"{_AZURE_CODE}: of prompts", maximum=100)
    turns: int = option(2, f"{_LMSYS}: turns, 2.0", maximum=10**5)
    turns_cv: float = option(1.0, CHOICE, maximum=100)
    new_tokens: int = option(70, f"{_LMSYS}: tokens per prompt, 69.5", maximum=10**7)
    new_cv: float = option(1.0, CHOICE, maximum=100)
    output_tokens: int = option(215, f"{_LMSYS}: tokens per response, 214.5", maximum=10**7)
    output_cv: float = option(1.0, CHOICE, maximum=100)
    delay_s: float = option(
        415.0, "WEKA: mean think_time of the 149 turns that a person began", maximum=10**6
    )
    delay_cv: float = option(1.13, "WEKA: of the same", maximum=100)


@dataclass(frozen=True)
class Agent(_Turns):
    """A coding agent: steps of a long context to which the results of tools are added.

    45 steps that begin at 34,000 tokens and add 3,000 each have a mean prompt of 100,000 tokens, of
    which 97 % are the prompt before. In WEKA: 27 steps in the mean, mean prompt 114,040, 97.3 % of
    the tokens of later prompts in the leading blocks of the prompt before.
    """

    name = "agent"
    request_class = "agent"
    slo: ClassVar = {"ttft_s": 10.0}
    slo_source = _NIELSEN

    system_tokens: int = option(
        15145, "WEKA: mean of tool_tokens + system_tokens", minimum=0, maximum=10**7
    )
    context_tokens: int = option(
        18855, f"{_SPECIFIED}: contexts of 100,000 tokens in the mean over 45 steps", maximum=10**7
    )
    turns: int = option(45, f"{_SPECIFIED}: 45 steps", maximum=10**5)
    new_tokens: int = option(
        2398, f"{_SPECIFIED}: 97 % shared, 3,000 more a step with the answer", maximum=10**7
    )
    new_cv: float = option(2.26, "WEKA: of the new tokens of turns that add any", maximum=100)
    output_tokens: int = option(602, "WEKA: mean of out", maximum=10**7)
    output_cv: float = option(1.62, "WEKA: of out", maximum=100)
    delay_s: float = option(
        55.0, "WEKA: mean think_time of the 372 turns that bring tool results", maximum=10**6
    )
    delay_cv: float = option(4.26, "WEKA: of the same", maximum=100)
