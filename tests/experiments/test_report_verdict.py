"""The verdict on a queue whose load is known: M/D/1, and a burst."""

import numpy as np
import pytest

from experiments.verdict import fit_trend, judge
from sim.records import FINISHED, REJECTED, UNFINISHED

SERVICE_NS = 1_000_000_000
SEEDS = 20


def served_in_turn(arrival_ns):
    """The requests table of one server with a fixed service time, first come first served."""
    n = len(arrival_ns)
    # Lindley: start[k] = max(arrival[k], start[k - 1] + service), as a running maximum.
    head_start = np.arange(n) * SERVICE_NS
    start = np.maximum.accumulate(arrival_ns - head_start) + head_start
    return {
        "arrival_ns": arrival_ns,
        "first_scheduled_ns": start,
        "last_token_ns": start + SERVICE_NS,
        "end_ns": start + SERVICE_NS,
        "state": np.full(n, FINISHED),
    }


def poisson_ns(load, n, seed):
    gaps = np.random.default_rng(seed).exponential(SERVICE_NS / load, n)
    return np.cumsum(gaps).astype(np.int64)


def share_right(make, expected):
    verdicts = [judge(served_in_turn(make(seed))).name for seed in range(SEEDS)]
    return sum(name == expected for name in verdicts)


@pytest.mark.parametrize(
    ("load", "n", "expected"),
    [
        (0.5, 1_000, "stable"),
        (0.5, 5_000, "stable"),
        (0.8, 1_000, "stable"),
        (0.8, 5_000, "stable"),
        (1.1, 5_000, "overloaded"),
        (1.5, 1_000, "overloaded"),
        (1.5, 5_000, "overloaded"),
    ],
)
def test_verdict_on_md1_is_right_in_19_of_20_seeds(load, n, expected):
    assert share_right(lambda seed: poisson_ns(load, n, seed), expected) >= 19


def test_many_requests_running_at_once_without_a_queue_are_stable():
    """As in a batching server: some fifty requests in flight, each for seconds."""

    def verdict(seed):
        rng = np.random.default_rng(seed)
        arrival_ns = poisson_ns(10, 2_000, seed)
        stay_ns = (rng.lognormal(1.2, 0.8, 2_000) * 1e9).astype(np.int64)
        requests = served_in_turn(arrival_ns) | {"first_scheduled_ns": arrival_ns}
        requests |= {"last_token_ns": arrival_ns + stay_ns, "end_ns": arrival_ns + stay_ns}
        return judge(requests).name

    assert sum(verdict(seed) == "stable" for seed in range(SEEDS)) >= 19


def running_at_once(arrival_ns, stay_ns):
    """The requests table of a server that starts whoever comes."""
    requests = served_in_turn(arrival_ns) | {"first_scheduled_ns": arrival_ns}
    return requests | {"last_token_ns": arrival_ns + stay_ns, "end_ns": arrival_ns + stay_ns}


def test_requests_that_gather_for_less_than_they_take_tell_nothing():
    """300 come within 10 s and stay for 1 to 3 s: those of the second half come twice as fast."""
    slow, fast = np.arange(100) * 50_000_000, 5_000_000_000 + np.arange(200) * 25_000_000
    arrival_ns = np.concatenate((slow, fast))
    stay_ns = np.linspace(1e9, 3e9, 300).astype(np.int64)

    verdict = judge(running_at_once(arrival_ns, stay_ns))

    assert verdict.name == "too short to tell"
    assert "in half a window of 4.99 s; needs 20 s, as serving takes 2 s" in verdict.reason
    # Over ten times the time it tells: requests that stay ever longer gather for ever.
    longer = running_at_once(10 * arrival_ns, np.linspace(0.5e9, 7e9, 300).astype(np.int64))
    assert judge(longer).name == "overloaded"


def test_a_queue_that_grows_is_an_overload_however_short_the_window():
    assert judge(served_in_turn(np.arange(200) * 1_000_000)).name == "overloaded"


def test_one_early_burst_that_is_still_waiting_is_a_backlog():
    def arrivals(seed):
        steady = poisson_ns(0.8, 1_000, seed)
        return np.sort(np.concatenate((steady, np.full(600, steady[20]))))

    assert share_right(arrivals, "backlogged") >= 19


def test_one_early_burst_that_was_cleared_is_stable_again():
    def arrivals(seed):
        steady = poisson_ns(0.5, 2_000, seed)
        return np.sort(np.concatenate((steady, np.full(100, steady[20]))))

    assert share_right(arrivals, "stable") >= 19


def test_all_at_once_is_a_backlog():
    assert judge(served_in_turn(np.zeros(500, np.int64))).name == "backlogged"


def test_a_late_burst_is_a_backlog():
    steady = poisson_ns(0.3, 2_000, 1)
    late = np.concatenate((steady, np.full(40, steady[-1])))
    assert judge(served_in_turn(late)).name == "backlogged"


def test_under_200_requests_is_too_short_to_tell():
    verdict = judge(served_in_turn(poisson_ns(1.5, 199, 1)))
    assert verdict.name == "too short to tell"
    assert "199" in verdict.reason


def test_rejected_requests_are_no_load():
    requests = served_in_turn(poisson_ns(0.5, 250, 1))
    requests["state"][:100] = REJECTED
    assert judge(requests).name == "too short to tell"


def test_the_reason_names_the_share_that_was_rejected():
    requests = served_in_turn(poisson_ns(0.5, 1_000, 1))
    assert "rejected" not in judge(requests).reason
    requests["state"][::4] = REJECTED
    assert judge(requests).reason.endswith("; 250 of 1,000 requests rejected (25.0%)")


def test_requests_that_never_start_are_counted():
    requests = served_in_turn(poisson_ns(0.5, 1_000, 1))
    requests["state"][500:] = UNFINISHED
    for column in ("first_scheduled_ns", "last_token_ns", "end_ns"):
        requests[column][500:] = -1
    assert judge(requests).name == "overloaded"


def test_the_trend_is_that_of_the_exact_number_in_system():
    arrival_ns = np.arange(1_000) * SERVICE_NS
    never = {"arrival_ns": arrival_ns, "end_ns": np.full(1_000, -1)}
    trend = fit_trend(never, 0, int(arrival_ns[-1]))
    assert trend.slope_per_s == pytest.approx(1.0, rel=1e-3)
    assert trend.at_end == pytest.approx(1_000, rel=1e-2)


def test_the_constant_is_the_quantile_it_stands_for() -> None:
    from scipy import stats

    from experiments.verdict import BATCHES, CONFIDENCE, STUDENT_T

    assert stats.t.ppf(CONFIDENCE, BATCHES - 2) == pytest.approx(STUDENT_T, rel=1e-12)
