"""Progress is told in lines, now and then."""

from __future__ import annotations

from kernels_profile.profiler.progress import Lines, span


def test_lines_come_now_and_then_and_at_the_end() -> None:
    said: list[str] = []
    now = [0.0]
    lines = Lines(said.append, every_s=5.0, clock=lambda: now[0])
    lines.begin(100, 300.0)
    for done in range(1, 101):
        now[0] += 1.0
        lines.point(done, "linear", 100.0 - done)
    lines.end()
    assert said[0] == "measuring 100 points, about 5 min 0 s"
    assert said[1] == "1/100 points, linear, about 99 s left"
    assert said[-1] == "100/100 points, linear, about 0 s left"
    assert 20 <= len(said) <= 23


def test_spans() -> None:
    assert span(0.4) == "0 s"
    assert span(99) == "99 s"
    assert span(200) == "3 min 20 s"
    assert span(-1) == "0 s"
