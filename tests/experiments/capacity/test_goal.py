"""What a goal may say, and what counts for it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from experiments.capacity.goal import read_goal
from experiments.quantity import Sample, read_quantity
from experiments.statistics.intervals import Interval, Refusal
from sim.errors import ConfigError


def test_a_goal_has_terms_joined_by_and() -> None:
    goal = read_goal("ttft_s.p99.9 <= 0.5 and classes.my chat.v2.tpot_s.mean < 3e-2")

    first, second = goal.terms
    assert first.quantity.percentile == pytest.approx(0.999)
    assert first.holds(0.5)
    assert not first.holds(math.inf)
    assert second.quantity.request_class == "my chat.v2"
    assert (second.quantity.metric.key, second.quantity.statistic) == ("tpot", "mean")
    assert not second.holds(0.03)
    assert not second.holds(math.nan)
    assert str(goal) == "ttft_s.p99.9 <= 0.5 and classes.my chat.v2.tpot_s.mean < 0.03"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("ttft_s.p99", "goal: ttft_s.p99: cannot read 'ttft_s.p99'; expected such as"),
        ("tft_s.p99 <= 1", "goal: tft_s.p99: no metric 'tft_s'; try ttft_s"),
        ("ttft_s <= 1", "goal: ttft_s: of what? add .mean, .max or a percentile such as .p99"),
        ("ttft_s.p0 <= 1", "goal: ttft_s.p0: no statistic 'p0'"),
        ("ttft_s.men <= 1", "goal: ttft_s.men: no statistic 'men'; try mean"),
        ("kv_use.p99.9 <= 1", "goal: kv_use.p99.9: no statistic 'p99.9'; try p99"),
        ("slo_attainment.mean >= 1", "goal: slo_attainment.mean: slo_attainment is one number"),
        ("ttft_s.p99 <= soon", "goal: ttft_s.p99 <= soon: soon is no number"),
        ("classes.chat.mfu > 0.4", "goal: classes.chat.mfu: mfu is of the whole run"),
    ],
)
def test_a_wrong_goal_is_one_line(text: str, line: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_goal(text)

    assert str(error.value).startswith(line)


def test_requests_never_served_are_infinitely_late() -> None:
    quantity = read_quantity("ttft_s.p99", "goal")
    rng = np.random.default_rng(0)
    served = [rng.exponential(size=4000) for _ in range(3)]
    some_lost = [np.where(rng.random(4000) < 0.02, np.inf, values) for values in served]

    found = quantity.interval([Sample(values, math.nan) for values in served])
    lost = quantity.interval([Sample(values, math.nan) for values in some_lost])

    assert isinstance(found, Interval)
    assert found.contains(math.log(100))
    assert isinstance(lost, Refusal)
    assert quantity.value([Sample(values, math.nan) for values in some_lost]) == math.inf
    # One percentile lower, the 2 % that were lost do not matter.
    lower = read_quantity("ttft_s.p90", "goal")
    assert isinstance(lower.interval([Sample(v, math.nan) for v in some_lost]), Interval)
