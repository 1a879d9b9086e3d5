"""What holds for any step-time model, for property tests of several of them."""

from __future__ import annotations

from sim.step_time import StepTimeModel, StepWork


def assert_a_run_is_its_steps(
    model: StepTimeModel, rows: int, padding: int, mean_context: int, n: int
) -> None:
    """`n` decode steps at once are the single steps, bit for bit."""
    context = rows * mean_context
    run = model.steps_ns(StepWork((), rows + padding, context, attending_rows=rows), n, 0)
    assert list(run) == [
        model.step_ns(StepWork((), rows + padding, context + k * rows, attending_rows=rows), k)
        for k in range(n)
    ]


def assert_more_work_takes_no_less(
    model: StepTimeModel, chunk: int, before: int, rows: int, mean_context: int, more: int
) -> None:
    """A step is no shorter for a longer chunk, more history, longer contexts or more decodes."""

    def ns(chunk: int, before: int, rows: int, mean: int) -> int:
        return model.step_ns(StepWork([(chunk, before)], rows, rows * mean), 0)

    base = ns(chunk, before, rows, mean_context)
    assert ns(chunk + more, before, rows, mean_context) >= base
    assert ns(chunk, before + more, rows, mean_context) >= base
    assert ns(chunk, before, rows, mean_context + more) >= base
    assert ns(chunk, before, rows + more, mean_context) >= base
