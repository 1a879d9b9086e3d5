"""What a prefix cache saved, worked by hand."""

import numpy as np
import pytest

from sim import cache_metrics
from sim.errors import ProfileError
from sim.step_time import LinearStepTime, StepWork

# 1 s + 1 ms a token + 1 us a pair of tokens that attend.
MODEL = LinearStepTime(base_s=1, prefill_token_s=1e-3, prefill_pair_s=1e-6)


def table(prompt, cached, scheduled=None):
    n = len(prompt)
    return {
        "prompt_tokens": np.array(prompt),
        "cached_tokens": np.array(cached),
        "replica": np.zeros(n, np.int32),
        "first_scheduled_ns": np.zeros(n, int) if scheduled is None else np.array(scheduled),
    }


def total(requests, models=(MODEL,)):
    saved = cache_metrics.saved_prefill_each_s(requests, models)
    return cache_metrics.saved_prefill_s(requests | {"saved_prefill_s": saved})


def test_saved_is_the_whole_prompt_alone_less_what_was_computed_after_the_rest():
    saved = cache_metrics.saved_prefill_each_s(table([100, 100], [60, 0]), [MODEL])
    # 60 tokens, and the 60 * 61 / 2 pairs among them: the other 40 attend to them either way.
    assert saved.tolist() == [pytest.approx(0.06 + 1830e-6), 0]


def test_without_hits_nothing_is_saved():
    assert total(table([100], [0])) == 0
    assert total(table([100], [50], [-1])) == 0


def test_each_request_is_timed_on_the_replica_that_prefilled_it():
    requests = table([100, 100], [60, 60]) | {"replica": np.array([0, 1])}
    quick = LinearStepTime(base_s=1, prefill_token_s=1e-6)
    saved = cache_metrics.saved_prefill_each_s(requests, [MODEL, quick])
    assert saved[1] == pytest.approx(60e-6)


def test_of_very_many_hits_every_kth_is_calculated_and_scaled_up(monkeypatch):
    monkeypatch.setattr(cache_metrics, "MOST_EVALUATED", 4)
    saved = cache_metrics.saved_prefill_each_s(table([100] * 9, [50] * 9), [MODEL])
    assert np.isnan(saved).tolist() == [False, True, True] * 3
    assert total(table([100] * 9, [50] * 9)) == pytest.approx(9 * saved[0])


def test_where_the_model_refuses_nothing_is_said():
    class Refusing(LinearStepTime):
        def step_ns(self, work: StepWork, iteration: int) -> int:
            raise ProfileError("beyond the tables")

    assert np.isnan(total(table([100, 100], [50, 0]), [Refusing()]))
