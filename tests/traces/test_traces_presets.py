"""Synthetic presets: what they draw, and that the committed files are what the script makes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sim.errors import TraceError
from traces.info import describe
from traces.presets import FOLDER, PRESETS, Gaps, Table, draw_lengths, load_preset, synthesize
from traces.presets.fit import RECIPES, dump, fit


def test_every_preset_has_a_recipe_and_a_file() -> None:
    assert set(PRESETS) == set(RECIPES) == {path.stem for path in FOLDER.glob("*.yaml")}


@pytest.mark.parametrize("name", PRESETS)
def test_committed_file_is_what_the_script_makes(name: str, shared: Path) -> None:
    # Sums of floats may differ in the last digit from machine to machine; the figures are rounded.
    assert dump(fit(RECIPES[name], name, shared)) == (FOLDER / f"{name}.yaml").read_text()


@pytest.mark.parametrize("name", PRESETS)
def test_preset_is_close_to_its_source_and_says_how_close(name: str) -> None:
    preset = load_preset(name)

    assert preset.closeness["ks_prompt"] <= 0.025
    assert preset.closeness["ks_output"] <= 0.025
    assert abs(preset.closeness["rank_correlation_error"]) <= 0.01
    assert abs(preset.closeness["mean_output_error"]) <= 0.03
    assert preset.source
    assert preset.licence
    assert preset.citation
    said = synthesize(name, 1).notes[0]
    assert said.startswith(f"Synthetic preset {name}")
    assert "KS" in said


@pytest.mark.parametrize("name", PRESETS)
def test_drawn_lengths_follow_the_tables(name: str) -> None:
    preset = load_preset(name)

    trace = synthesize(name, 20_000, seed=7)

    for column, table in (
        (trace.prompt_tokens, preset.prompt_tokens),
        (trace.output_tokens, preset.output_tokens),
    ):
        assert column.min() >= 1
        assert column.max() <= table.tokens[-1]
        middle = table.tokens[table.probabilities.index(0.5)]
        # The share up to the median: a half, or more where many have just that length.
        assert (column <= middle).mean() >= 0.48
        assert (column < middle).mean() <= 0.52


def test_sharegpt_like_claims_nothing_beyond_p95() -> None:
    preset = load_preset("sharegpt-like")

    assert preset.rows == 300
    assert preset.claimed_up_to == 0.95
    assert preset.prompt_tokens.probabilities[-2:] == [0.95, 1.0]
    assert "no percentile beyond P95" in preset.said()


def test_azure_conv_outputs_fit_the_max_tokens_of_the_shipped_configs() -> None:
    assert load_preset("azure-conv-2023").output_tokens.tokens[-1] == 1000


def test_azure_code_keeps_the_bursts_and_silences_of_its_source() -> None:
    info = describe(synthesize("azure-code-2023", 20_000, seed=3))

    assert info.gap_cv == pytest.approx(13.15, rel=0.1)
    assert info.rate_per_s == pytest.approx(2.566, rel=0.3)
    assert info.silent_share == pytest.approx(0.73, abs=0.08)


def test_arrivals_of_azure_conv_have_its_rate_and_burstiness() -> None:
    info = describe(synthesize("azure-conv-2023", 20_000, seed=3))

    assert info.rate_per_s == pytest.approx(5.84, rel=0.03)
    assert info.gap_cv == pytest.approx(1.08, rel=0.05)


def test_same_seed_gives_the_same_requests_and_fewer_are_the_first_of_more() -> None:
    long, short = synthesize("reasoning", 500, seed=2), synthesize("reasoning", 50, seed=2)
    other = synthesize("reasoning", 50, seed=3)

    assert long.prompt_tokens[:50].tolist() == short.prompt_tokens.tolist()
    assert long.output_tokens[:50].tolist() == short.output_tokens.tolist()
    assert long.arrival_ns[:50].tolist() == short.arrival_ns.tolist()
    assert other.output_tokens.tolist() != short.output_tokens.tolist()


def test_rate_and_process_can_be_chosen_without_touching_lengths() -> None:
    own = synthesize("azure-conv-2023", 1000, seed=2)
    even = synthesize("azure-conv-2023", 1000, 2.0, 2, "constant")
    code = synthesize("azure-code-2023", 1000, 5.0, 2)
    double = synthesize("azure-code-2023", 1000, 10.0, 2)

    assert own.prompt_tokens.tolist() == even.prompt_tokens.tolist()
    assert set(np.diff(even.arrival_ns).tolist()) == {500_000_000}
    assert np.abs(code.arrival_ns - 2 * double.arrival_ns).max() <= 1


def test_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(TraceError, match="did you mean azure-conv-2023"):
        synthesize("azure_conv", 5)
    assert load_preset("azure_conv_2023").name == "azure-conv-2023"


def test_requests_below_one_and_rates_of_zero_are_refused() -> None:
    with pytest.raises(ValueError, match="n: 0"):
        synthesize("reasoning", 0)
    for name in ("reasoning", "azure-code-2023"):
        with pytest.raises(ValueError, match="rate_per_s"):
            synthesize(name, 5, 0.0)


def test_tables_keep_a_length_that_many_requests_share() -> None:
    table = Table([0.0, 0.4, 0.6, 1.0], [1, 50, 50, 60])

    drawn = table.at(np.linspace(0, 1, 1001))

    assert (drawn == 50).mean() == pytest.approx(0.2, abs=0.02)
    assert drawn.min() == 1
    assert drawn.max() == 60


def test_drawn_lengths_have_the_rank_correlation_asked_for() -> None:
    table = Table([0.0, 1.0], [1, 1_000_000])

    prompt, output = draw_lengths(table, table, -0.6, 50_000, np.random.default_rng(1))

    ranks = [np.argsort(np.argsort(column)) for column in (prompt, output)]
    assert np.corrcoef(ranks[0], ranks[1])[0, 1] == pytest.approx(-0.6, abs=0.01)


def test_gaps_have_mean_one() -> None:
    gaps = Gaps([0.0, 0.9, 1.0], [0.0, 1.0, 40.0])

    assert gaps.draw(100_000, np.random.default_rng(1)).mean() == pytest.approx(1, abs=0.02)
