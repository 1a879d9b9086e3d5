"""Requests of stated lengths that share nothing: what papers print of their data sets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.errors import TraceError
from sim.request import Ints, Trace
from traces.chance import generator
from traces.generators.words import CHOICE, Generator, draw_tokens, option, trace_of

_SHAREGPT = "ShareGPT as in vLLM (Kwon et al., SOSP 2023), figure 11"
_ORCA = "Orca (Yu et al., OSDI 2022), section 6.2"
_MOST_ROUNDS = 1000


@dataclass(frozen=True)
class Lengths(Generator):
    """Lognormal prompts and outputs of given means and spreads, independent of each other.

    A request whose prompt and output are over `longest_total` together is drawn again, both
    lengths of it, as papers leave such requests out; the means are those before that.

    Attributes:
        prompt_tokens: Mean tokens of a prompt.
        prompt_cv: Coefficient of variation of these; 0 for all alike.
        output_tokens: Mean tokens of an output.
        output_cv: Coefficient of variation of these.
        longest_total: Most tokens of a prompt and its output together.
    """

    prompt_tokens: int = option(161, f"{_SHAREGPT}: mean input 161.31", maximum=10**7)
    prompt_cv: float = option(1.5, CHOICE, maximum=100)
    output_tokens: int = option(338, f"{_SHAREGPT}: mean output 337.99", maximum=10**7)
    output_cv: float = option(0.7, CHOICE, maximum=100)
    longest_total: int = option(2048, "context length of OPT (Zhang et al., 2022)", maximum=10**8)

    def make(self, n: int, seed: int, order: str = "stable-first") -> Trace:
        prompt, output = self._draw(n, seed, 0)
        for again in range(1, _MOST_ROUNDS):
            over = prompt + output > self.longest_total
            if not over.any():
                return trace_of("lengths", self, prompt, output)
            fresh_prompt, fresh_output = self._draw(n, seed, again)
            prompt = np.where(over, fresh_prompt, prompt)
            output = np.where(over, fresh_output, output)
        raise TraceError(
            f"preset lengths: longest_total {self.longest_total}: almost no prompt of about "
            f"{self.prompt_tokens} tokens and output of about {self.output_tokens} fits"
        )

    def _draw(self, n: int, seed: int, again: int) -> tuple[Ints, Ints]:
        # Each round has generators of its own, so that the first k requests are the same for any n.
        name = f" {again}" if again else ""
        prompt = draw_tokens(self.prompt_tokens, self.prompt_cv, n, seed, f"prompts{name}")
        return prompt, draw_tokens(self.output_tokens, self.output_cv, n, seed, f"outputs{name}")


@dataclass(frozen=True)
class UniformLengths(Generator):
    """Prompts and outputs that are uniform between bounds, independent of each other.

    Attributes:
        shortest_prompt: Fewest tokens of a prompt.
        longest_prompt: Most tokens of a prompt.
        shortest_output: Fewest tokens of an output.
        longest_output: Most tokens of an output.
    """

    shortest_prompt: int = option(32, _ORCA, maximum=10**7)
    longest_prompt: int = option(512, _ORCA, maximum=10**7)
    shortest_output: int = option(1, _ORCA, maximum=10**7)
    longest_output: int = option(128, _ORCA, maximum=10**7)

    def __post_init__(self) -> None:
        for what in ("prompt", "output"):
            low, high = getattr(self, f"shortest_{what}"), getattr(self, f"longest_{what}")
            if low > high:
                raise ValueError(f"shortest_{what} {low} is above longest_{what} {high}")

    def make(self, n: int, seed: int, order: str = "stable-first") -> Trace:
        prompt = _uniform(self.shortest_prompt, self.longest_prompt, n, seed, "prompts")
        output = _uniform(self.shortest_output, self.longest_output, n, seed, "outputs")
        return trace_of("uniform-lengths", self, prompt, output)


def _uniform(low: int, high: int, n: int, seed: int, purpose: str) -> Ints:
    return np.asarray(generator(seed, purpose).integers(low, high + 1, n), dtype=np.int64)
