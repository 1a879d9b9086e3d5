"""What a goal may say, and what counts for it."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from experiments.capacity.goal import read_goal
from experiments.cli import app
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
        ("ttft_s.p99 >= 0.5", "goal: ttft_s.p99 >= 0.5: less of ttft_s is better, so that a goal"),
        ("mfu > 0.1 and cost_usd > 3", "goal: cost_usd > 3: less of cost_usd is better"),
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


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--attainment", "0.9", "--goal", "ttft_s.p99 < 1"], "--attainment 0.9: not with --goal"),
        (["--attainment", "0"], "expected a share above 0"),
        (["--best", "policy.batch_size", "--values", "64..8"], "expected the smaller first"),
        (["--lowest", "device"], "is 'h100-sxm'; expected a key of whole numbers"),
        (["--goal", "cost_usd < 1"], "has no prices; give the config cost"),
        (["--goal", "energy_kWh < 1"], "has no power; give the config cost"),
    ],
)
def test_options_that_cannot_work_are_refused_before_anything_runs(
    options: list[str], said: str, tmp_path: Path
) -> None:
    config = {
        "workload": {"preset": "azure-conv-2023", "requests": 300, "max_tokens": 1024},
        "model": "llama-3.1-8b",
        "policy": {"name": "static", "batch_size": 4},
        "slo": {"ttft_s": 1},
    }
    (tmp_path / "one.yaml").write_text(yaml.safe_dump(config))
    out = tmp_path / "out"
    asked = ["capacity", str(tmp_path / "one.yaml"), "--out", str(out), *options]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 2
    assert said in result.stderr
    assert not out.exists()
