"""How a router spreads tokens over experts, and experts over GPUs: expectations in closed form.

A router takes the `k` highest of `n` noisy scores. How popular experts are is stated: evenly, or by
Zipf's law (the i-th most popular has weight ``i ** -s``); which experts lie on the same GPU is
unrelated to that, as without a balancer of experts. An expert is among the k of a token with
probability ``a_i = 1 - exp(-t w_i)``, where t makes them add up to k (successive sampling: Rosén,
Annals of Mathematical Statistics 43, 1972); evenly it is k / n.

Of e GPUs with m = n / e experts each the busiest one sets the pace. Loads of GPUs are alike in
distribution and add up to a fixed sum, so that with ``c_e``, the expected maximum of e independent
standard normal variables (Teichroew, Annals of Mathematical Statistics 27, 1956)::

    pairs of token and expert  = r k / e + c_e sqrt(m (r^2 var(a) + r n / (n - 1) mean(a (1 - a))))
    distinct experts           = m q + c_e sqrt(m q (1 - q)),    q = mean(1 - (1 - a) ** r)

for r tokens; the first variance is of where popular experts lie, the second of what tokens pick.
The pairs are at least those of the GPU that has the most popular expert, which matters where few
are popular. Against a simulated router of 8 to 256 experts both are within 12 %, the pairs rather
low (`tests/sim/test_experts.py`). That a model may limit the groups of experts of one token
(DeepSeek-V3: 4 of 8), and that an engine may move or copy popular experts, is left out.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from sim.architecture import ModelSpec
from sim.errors import ConfigError

Floats = npt.NDArray[np.float64]

MOST_ZIPF = 2.0
"""Largest exponent: there the most popular of many experts has three fifths of the weight."""


def expected_experts(model: ModelSpec, rows: int) -> float:
    """Distinct experts of a layer that `rows` tokens touch, if each picks its own at random.

    ``n * (1 - (1 - k / n) ** rows)``; 1 for a dense model. Real routers are less even: they touch
    fewer.
    """
    if not model.experts:
        return 1.0
    n, k = model.experts, model.experts_per_token
    return n * (1.0 - (1.0 - k / n) ** rows)


class ExpertLoad:
    """Expected load of the experts of one layer, and of the busiest of `gpus` that hold them.

    Args:
        model: Architecture; without experts all of its MLP counts as one.
        gpus: GPUs that hold different experts; it divides their number.
        zipf: Exponent of Zipf's law of their popularity; 0 for even.

    Raises:
        ConfigError: an exponent below 0 or above `MOST_ZIPF`.
    """

    def __init__(self, model: ModelSpec, gpus: int = 1, zipf: float = 0.0) -> None:
        if not 0 <= zipf <= MOST_ZIPF:
            raise ConfigError(f"imbalance: {zipf:g} is no exponent from 0 (even) to {MOST_ZIPF:g}")
        self.model = model
        self.gpus = gpus
        self.zipf = zipf
        self._max_of_normals = expected_maximum_of_normals(gpus)
        self._chosen = _chance_to_be_chosen(model.experts, model.experts_per_token, zipf)

    def touched(self, rows: int) -> float:
        """Distinct experts of a layer that `rows` tokens use, on all GPUs together."""
        if not self.zipf or not self.model.experts:
            return expected_experts(self.model, rows)
        return float(np.sum(1.0 - (1.0 - self._chosen) ** rows))

    def touched_on_busiest(self, rows: int) -> float:
        """Distinct experts of a layer on the GPU where they are most."""
        touched = self.touched(rows)
        if self.gpus == 1:
            return touched
        held, q = self.model.experts / self.gpus, touched / self.model.experts
        spread = math.sqrt(max(0.0, held * q * (1.0 - q)))
        return min(held, touched / self.gpus + self._max_of_normals * spread)

    def pairs_on_busiest(self, rows: int) -> float:
        """Pairs of a token and an expert that the GPU with most of them computes."""
        n, k = self.model.experts, max(1, self.model.experts_per_token)
        if self.gpus == 1:
            return rows * k
        held, chosen = n / self.gpus, self._chosen
        placed = float(chosen.var(ddof=1)) if self.zipf else 0.0
        picked = n / (n - 1) * float(np.mean(chosen * (1.0 - chosen)))
        spread = math.sqrt(held * (rows * rows * placed + rows * picked))
        most = rows * k / self.gpus + self._max_of_normals * spread
        first = float(chosen[0])
        with_first = rows * (first + (held - 1) / (n - 1) * (k - first))
        return min(rows * min(k, held), max(most, with_first))

    def gpus_of_a_token(self) -> float:
        """Expected GPUs that hold at least one of a token's experts, if all are as popular."""
        n, k = self.model.experts, self.model.experts_per_token
        elsewhere = n - n // self.gpus
        return self.gpus * (1.0 - math.comb(elsewhere, k) / math.comb(n, k))


def expected_maximum_of_normals(count: int) -> float:
    """Expected maximum of `count` independent standard normal variables; 0 for one."""
    if count == 1:
        return 0.0
    x = np.linspace(-9.0, 9.0, 3601)
    below = np.array([0.5 * math.erfc(-each / math.sqrt(2.0)) for each in x.tolist()])
    density = count * np.exp(-x * x / 2.0) / math.sqrt(2.0 * math.pi) * below ** (count - 1)
    return float(np.sum(x * density) * (x[1] - x[0]))


def _chance_to_be_chosen(experts: int, per_token: int, zipf: float) -> Floats:
    """Probability that each expert is among those of a token, shape (experts,)."""
    if not zipf or per_token >= experts:
        return np.full(experts, min(per_token / max(experts, 1), 1.0))
    weights = np.arange(1, experts + 1, dtype=np.float64) ** -zipf
    low, high = 0.0, 1.0
    while _chosen_in_all(weights, high) < per_token:
        high *= 2.0
    for _ in range(100):  # to the last bit
        middle = (low + high) / 2.0
        if _chosen_in_all(weights, middle) < per_token:
            low = middle
        else:
            high = middle
    chosen: Floats = -np.expm1(-high * weights)
    return chosen


def _chosen_in_all(weights: Floats, t: float) -> float:
    return float(-np.expm1(-t * weights).sum())
