"""What is said of a run that rests on times beyond what was measured."""

from __future__ import annotations

from kernels_profile.grid import Outside
from kernels_profile.usage import Usage, sentence, warning


def test_a_large_share_beyond_the_tables_is_warned_of_in_a_line() -> None:
    usage = Usage(steps=10, ns=1000, outside_steps=10, outside_ns=1000, filled_ns=80.0)

    assert warning(usage) == (
        "100.0% of steps and 100.0% of simulated time are outside the measured grid; "
        "8.0% of simulated time is the roofline's"
    )


def test_time_filled_by_the_roofline_alone_is_warned_of() -> None:
    assert warning(Usage(steps=10, ns=1000, filled_ns=80.0)) == (
        "8.0% of simulated time is the roofline's"
    )


def test_a_small_share_or_none_is_not_warned_of() -> None:
    assert warning(Usage()) == ""
    assert warning(Usage(steps=10, ns=1000)) == ""
    assert warning(Usage(steps=10, ns=1000, outside_steps=1, outside_ns=50)) == ""


def test_how_far_beyond_is_said_without_an_exponent() -> None:
    usage = Usage(steps=1, ns=1, outside_steps=1, outside_ns=1)
    usage.add("attention_prefill", Outside("history", 4066.0, 1.0), 1, 1.0)
    usage.add("linear", Outside("tokens", 30.0, 20.0), 1, 1.0)
    usage.add("moe", Outside("history", 4066.0, 0.0), 1, 1.0)
    said = sentence(usage)
    assert "4,066 where the nearest measured is 1 (4,066x at most" in said
    assert "30 where the nearest measured is 20 (1.5x at most" in said
    assert "4,066 where the nearest measured is 0 (100.0% of steps" in said
