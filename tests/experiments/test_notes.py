"""Notes of many variants stay few lines, and say whose they are."""

from __future__ import annotations

from pathlib import Path

from experiments.config import load
from experiments.notes import MOST_LINES, identical, lines_of, thrashing, with_warnings_first
from experiments.variant import run_variant


def test_a_note_of_all_variants_is_said_once_and_others_with_their_labels() -> None:
    notes = [("a", ["every", "own", "own"]), ("v1, big", ["every", "two"]), ("c", ["every", "two"])]

    assert lines_of(notes, "there") == ["every", "a: own", '"v1, big", c: two']


def test_dozens_of_notes_become_a_few_lines() -> None:
    notes = [(f"rate={n}", ["every", f"{n} a second"]) for n in range(40)]

    lines = lines_of(notes, "summary.json of each")

    assert len(lines) == MOST_LINES
    assert lines[:2] == ["every", "rate=0: 0 a second"]
    assert lines[-1] == "30 more notes: see summary.json of each"


def test_many_variants_with_the_same_note_are_counted() -> None:
    notes = [("other", []), *((str(n), ["same"]) for n in range(5))]

    assert lines_of(notes, "there") == ["0, 1, 2 and 2 more: same"]


def test_variants_with_the_same_results_are_named() -> None:
    told = identical([("a", {"x": 1.5}), ("b", {"x": 1.0}), ("c", {"x": 1.5})])

    assert told == ["a, c: identical results; what these variants differ in has no effect here."]


def test_preemptions_that_made_most_of_the_work_are_said() -> None:
    assert thrashing(100, 100) == []
    assert thrashing(5, 0) == []
    (note,) = thrashing(2500, 1000)
    assert note.startswith("thrashing: 2.5 times as many tokens were recomputed after preemptions")


def test_a_run_that_thrashes_says_so() -> None:
    config = {
        "workload": {
            "preset": "reasoning",
            "requests": 6,
            "arrivals": {"process": "burst"},
        },
        "model": "llama-3.1-8b",
        "policy": "vllm-v1",
        "order": {"name": "mlfq", "quantum_s": 0.05, "starvation_s": 0.2},
        "policy.max_num_seqs": 2,
        "kv.num_blocks": 3000,
        "step_time": {"model": "linear", "base_s": 0.01},
    }
    (experiment,) = load(config).variants
    made = run_variant(experiment, Path())

    assert made.summary["overall"]["recomputed_tokens"] > 0
    assert sum(note.startswith("thrashing: ") for note in made.notes) == 1


def warned(shares: dict[str, float]) -> list[str]:
    notes = [
        (label, ["every", *(f"{label} {n}" for n in range(5)), f"long {label}."])
        for label in shares
    ]
    return with_warnings_first(
        notes,
        {
            label: (share, f"{share:.0%} outside" if share else "")
            for label, share in shares.items()
        },
        {label: [f"long {label}."] for label in shares},
        "there",
    )


def test_warnings_come_first_the_worst_before_the_others() -> None:
    lines = warned({"a": 0.0, "b": 0.2, "c": 1.0, "d": 0.0})

    assert lines[:3] == ["c: 100% outside; see there", "b: 20% outside; see there", "every"]
    assert len(lines) == 2 + MOST_LINES
    assert not any("long b" in line or "long c" in line for line in lines)


def test_a_sweep_of_warnings_is_cut_and_counted() -> None:
    lines = warned({f"v{n}": 1.0 for n in range(40)})

    assert lines[MOST_LINES] == "28 more variants with such a warning: see there"


def test_the_warning_of_one_variant_is_its_note_at_length() -> None:
    assert warned({"a": 1.0})[:2] == ["long a.", "every"]
