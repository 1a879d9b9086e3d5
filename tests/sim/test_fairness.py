"""Fairness between tenants, balance of replicas and length of sessions, worked by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim import fairness
from sim.records import FINISHED, REJECTED, UNFINISHED

S = 1_000_000_000


class Replica:
    joined_ns, left_ns = 0, -1

    def __init__(self, pool):
        self.pool = pool


def table(**columns):
    """Four requests: two tokens in 2 s, rejected, one in 1 s, cut off after four of ten."""
    base = {
        "arrival_ns": [0, 1 * S, 2 * S, 3 * S],
        "prompt_tokens": [100, 50, 20, 40],
        "emitted_tokens": [2, 0, 1, 4],
        "last_token_ns": [2 * S, -1, 3 * S, 9 * S],
        "state": [FINISHED, REJECTED, FINISHED, UNFINISHED],
        "replica": [0, -1, 1, 1],
        "decode_replica": [-1, -1, -1, -1],
    }
    return {name: np.asarray(column) for name, column in (base | columns).items()}


def test_jain_is_one_if_all_are_alike_and_one_in_n_if_one_has_all():
    assert fairness.jain(np.array([3.0, 3, 3])) == 1
    assert fairness.jain(np.array([0.0, 0, 0, 5])) == 1 / 4
    assert np.isnan(fairness.jain(np.zeros(2)))
    assert np.isnan(fairness.jain(np.zeros(0)))


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=20), st.floats(0.01, 100))
def test_jain_is_within_its_bounds_and_knows_no_unit(values, factor):
    index = fairness.jain(np.array(values))
    assert 1 / len(values) <= index * (1 + 1e-9)
    assert index <= 1 + 1e-9
    assert fairness.jain(factor * np.array(values)) == pytest.approx(index)


def test_service_counts_prompts_that_were_answered():
    tenants = np.array(["a", "b", "b", "b"])  # a: 102; b: 21 + 44, the rejected one nothing
    assert fairness.jain_served_tokens(table(), tenants) == 167**2 / (2 * (102**2 + 65**2))


def test_fairness_of_latency_is_of_tenants_with_finished_requests():
    tenants = np.array(["a", "c", "b", "b"])  # a: 1 s a token, b: 1, c: none
    assert fairness.jain_normalised_latency(table(), tenants) == 1
    one = table(last_token_ns=[6 * S, -1, 3 * S, 9 * S])  # a: 3
    assert fairness.jain_normalised_latency(one, tenants) == 16 / 20


def test_tokens_are_served_where_they_were_prefilled_and_decoded():
    replicas = [Replica("main")] * 2
    assert fairness.served_tokens(table(), replicas).tolist() == [102, 65]
    split = table(decode_replica=[2, -1, -1, 2])
    assert fairness.served_tokens(split, [Replica("p")] * 3).tolist() == [100, 61, 6]


def test_imbalance_is_of_the_worst_pool():
    replicas = [Replica(name) for name in ("p", "p", "d", "d", "single")]
    peak, cv = fairness.imbalance(np.array([1.0, 3, 5, 5, 99]), replicas)
    assert (peak, cv) == (1.5, 0.5)
    assert np.isnan(fairness.imbalance(np.array([1.0]), replicas[:1])).all()


def test_a_session_lasts_from_its_first_arrival_to_its_last_token():
    sessions = np.array(["x", None, "x", "y"], object)
    everyone = np.ones(4, bool)
    assert fairness.session_e2e_s(table(session=sessions), everyone).tolist() == [3.0]
    # Part of it is not measured.
    assert fairness.session_e2e_s(table(session=sessions), everyone & [1, 1, 0, 1]).tolist() == []
