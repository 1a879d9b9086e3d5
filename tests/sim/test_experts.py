import itertools

import numpy as np
import pytest

from sim.errors import ConfigError
from sim.experts import ExpertLoad, expected_experts, expected_maximum_of_normals
from sim.specs import load_model

MIXTURES = {name: load_model(name) for name in ("mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v3")}


def simulated(model, gpus: int, zipf: float, rows: int, times: int, seed: int):
    """Means of (pairs on the busiest GPU, distinct experts there, distinct experts in all).

    A router that takes the highest of noisy scores (Gumbel noise: successive sampling), experts
    placed at random.
    """
    rng = np.random.default_rng(seed)
    n, k = model.experts, model.experts_per_token
    scores = -zipf * np.log(np.arange(1, n + 1))
    seen = []
    for _ in range(times):
        noisy = scores + rng.gumbel(size=(rows, n))
        chosen = np.argpartition(-noisy, k, axis=1)[:, :k] if k < n else np.tile(range(n), rows)
        count = np.bincount(chosen.ravel(), minlength=n)
        held = count[rng.permutation(n)].reshape(gpus, n // gpus)
        seen.append((held.sum(1).max(), (held > 0).sum(1).max(), (count > 0).sum()))
    return np.mean(seen, axis=0)


@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.parametrize("gpus", [2, 8])
@pytest.mark.parametrize("zipf", [0.0, 0.5, 1.0, 1.5])
def test_loads_are_those_of_a_simulated_router(name, gpus, zipf):
    model = MIXTURES[name]
    load = ExpertLoad(model, gpus, zipf)
    for rows, times in ((8, 150), (256, 40)):
        pairs, most, all_touched = simulated(model, gpus, zipf, rows, times, seed=rows + gpus)
        assert load.pairs_on_busiest(rows) == pytest.approx(pairs, rel=0.12)
        assert load.touched_on_busiest(rows) == pytest.approx(most, rel=0.12)
        assert load.touched(rows) == pytest.approx(all_touched, rel=0.07)


def test_an_even_router_touches_what_the_closed_form_says_bit_for_bit():
    model = MIXTURES["deepseek-v3"]
    load = ExpertLoad(model)
    for rows in (1, 7, 64, 5000):
        assert load.touched_on_busiest(rows) == load.touched(rows) == expected_experts(model, rows)
        assert load.pairs_on_busiest(rows) == rows * 8


@pytest.mark.parametrize("zipf", [0.1, 0.7, 2.0])
def test_the_chances_of_all_experts_add_up_to_those_of_a_token(zipf):
    for model in MIXTURES.values():
        chosen = ExpertLoad(model, 2, zipf)._chosen
        assert chosen.sum() == pytest.approx(model.experts_per_token, rel=1e-12)
        assert np.all(np.diff(chosen) < 0)
        assert np.all(chosen < 1)


def test_a_slightly_uneven_router_is_nearly_even():
    model = MIXTURES["qwen3-30b-a3b"]
    even, nearly = (ExpertLoad(model, 4, zipf) for zipf in (0.0, 1e-6))
    for rows in (1, 30, 1000):
        assert nearly.touched(rows) == pytest.approx(even.touched(rows), rel=1e-5)
        assert nearly.pairs_on_busiest(rows) == pytest.approx(even.pairs_on_busiest(rows), rel=1e-4)


@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_a_less_even_router_loads_the_busiest_gpu_more_and_touches_fewer_experts(gpus):
    for model in MIXTURES.values():
        for rows in (1, 10, 200, 4000):
            loads = [ExpertLoad(model, gpus, zipf) for zipf in np.linspace(0, 2, 21)]
            pairs = [load.pairs_on_busiest(rows) for load in loads]
            touched = [load.touched(rows) for load in loads]
            assert all(b >= a * (1 - 1e-12) for a, b in itertools.pairwise(pairs))
            assert all(b <= a * (1 + 1e-12) for a, b in itertools.pairwise(touched))


@pytest.mark.parametrize("zipf", [0.0, 0.6, 2.0])
def test_the_busiest_gpu_has_its_share_at_least_and_what_it_can_hold_at_most(zipf):
    for model, gpus, rows in itertools.product(MIXTURES.values(), (2, 8), (1, 3, 50, 10_000)):
        load = ExpertLoad(model, gpus, zipf)
        k, held = model.experts_per_token, model.experts // gpus
        assert rows * k / gpus <= load.pairs_on_busiest(rows) <= rows * min(k, held)
        assert load.touched(rows) / gpus <= load.touched_on_busiest(rows) <= held


def test_more_rows_never_load_less():
    for model, zipf in itertools.product(MIXTURES.values(), (0.0, 0.8)):
        load = ExpertLoad(model, 8, zipf)
        for of in (load.pairs_on_busiest, load.touched_on_busiest, load.touched):
            values = [of(rows) for rows in range(1, 300)]
            assert all(b >= a * (1 - 1e-12) for a, b in itertools.pairwise(values))


def test_the_maximum_of_normals_is_the_tabled_one():
    """Harter, Biometrika 48 (1961), table 1."""
    assert expected_maximum_of_normals(1) == 0
    for count, tabled in ((2, 0.56419), (4, 1.02938), (8, 1.42360), (16, 1.76599)):
        assert expected_maximum_of_normals(count) == pytest.approx(tabled, abs=1e-5)


def test_a_token_reaches_fewer_gpus_than_it_has_experts():
    """Counted: two of eight experts lie on the same of four GPUs in 1 of 7 cases."""
    assert ExpertLoad(MIXTURES["mixtral-8x7b"], 4).gpus_of_a_token() == pytest.approx(2 - 1 / 7)
    assert ExpertLoad(MIXTURES["deepseek-v3"], 1).gpus_of_a_token() == 1
    assert 5 < ExpertLoad(MIXTURES["deepseek-v3"], 8).gpus_of_a_token() < 8


@pytest.mark.parametrize("zipf", [-0.1, 2.5, float("nan")])
def test_an_exponent_out_of_range_is_refused(zipf):
    with pytest.raises(ConfigError, match=r"imbalance: .* is no exponent from 0 \(even\) to 2"):
        ExpertLoad(MIXTURES["mixtral-8x7b"], 2, zipf)
