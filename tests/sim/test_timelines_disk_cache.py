"""A disk behind the host's tier of the prefix cache by hand (rules in `sim.disk_cache`).

A step takes 10 + prefill tokens + 2 x decodes microseconds. A block of 4 tokens takes 3 of them
over the host link, 6 from the disk and 12 to it. A request is (arrival, prompt, output, first token
of its content); A1 is the first block of the text that begins with token 0, B1 of that with 100.
"""

from __future__ import annotations

from typing import Any

import pytest

from sim.errors import ConfigError
from sim.event_loop import simulate
from sim.records import Record
from sim.tier import Tier
from tests.conformance import adapter
from tests.sim.test_timelines_host_cache import BLOCK_BYTES, spec_of

DISK = {"disk_read": 0.5e9, "disk_write": 0.25e9}
Row = tuple[int, int, int, int]

SHARED: list[Row] = [(0, 12, 1, 0), (30, 16, 1, 100)]


@pytest.fixture(params=[False, True], ids=["stepping", "fast-forward"])
def run(request: pytest.FixtureRequest) -> Any:
    def of(*requests: Row, **options: Any) -> tuple[Any, ...]:
        """Token times, us; found at each admission; blocks over the link, read and written."""
        spec = spec_of([*requests], host_cache_blocks=1, **DISK, **options)
        cluster, _ = adapter.build(spec)
        got = simulate(
            adapter.arrivals(spec),
            cluster,
            fast_forward=request.param,
            check=True,
            record=Record(decisions=True),
        )
        (info,) = got.replicas
        assert info.found_tokens >= info.host_found_tokens + info.disk_found_tokens
        assert info.disk_found_tokens * BLOCK_BYTES == info.disk_read_bytes * 4
        return (
            [(got.token_times_ns(i) // 1000).tolist() for i in range(len(requests))],
            [tokens for x in got.decisions for tokens in x.cached.values()],
            info.host_bytes // BLOCK_BYTES,
            info.disk_read_bytes // BLOCK_BYTES,
            info.disk_written_bytes // BLOCK_BYTES,
        )

    return of


def test_what_the_host_has_no_room_for_is_written_and_read_again(run: Any) -> None:
    # 0: P = 12: 22. The queue: an empty block, A3, A2, A1.
    # 30: all are taken. A3, A2 and A1 go to the host, which keeps A1: two blocks are written.
    #     26 + 3 x 3 + 2 x 12 = 59 -> 89.
    # 89: A1 is on the host and A2 on disk: one is read, two are loaded, P = 4. A2 has no place on
    #     the host, and the disk has it. B4, B3, B2 make room, and push A1, B4, B3 to the disk.
    #     14 + 5 x 3 + 6 + 3 x 12 = 71 -> 160.
    expected = ([[22], [89], [160]], [0, 0, 8], 8, 1, 5)

    assert run(*SHARED, (70, 12, 1, 0), disk_cache_blocks=10) == expected


def test_beside_the_step_the_longest_of_step_link_and_disk_counts(run: Any) -> None:
    # 30: 26, 9 and 24 -> 56. 70: 14, 15 and 6 + 36 -> 112.
    times, *_ = run(*SHARED, (70, 12, 1, 0), disk_cache_blocks=10, host_overlap=True)

    assert times == [[22], [56], [112]]


@pytest.mark.parametrize(
    ("disk_blocks", "expected"),
    [
        # 100: A1 on the host, A2 on disk, A3 pushed out by A2: P = 8, one read. B4 to B1 make room:
        #      A1, B4, B3, B2 are written. 18 + 6 x 3 + 6 + 4 x 12 = 90 -> 190.
        (1, ([[22], [89], [190]], [0, 0, 8], 9, 1, 6)),
        # A3 is there as well: P = 4, two read, A3 and A2 leave the host again for nothing.
        #      14 + 7 x 3 + 2 x 6 + 4 x 12 = 95 -> 195: longer, as the disk is slow.
        (10, ([[22], [89], [195]], [0, 0, 12], 10, 2, 6)),
    ],
)
def test_a_full_disk_loses_what_was_used_least_recently(
    disk_blocks: int, expected: Any, run: Any
) -> None:
    assert run(*SHARED, (100, 16, 1, 0), disk_cache_blocks=disk_blocks) == expected


def test_a_disk_needs_a_host_tier_and_a_bandwidth() -> None:
    spec = spec_of([(0, 8, 1, 0)], host_cache_blocks=2, disk_cache_blocks=2, **DISK)
    (made,) = spec["replicas"]
    for changed, message in (
        (made | {"host_cache_blocks": None}, "disk_cache_blocks: 2 needs host_cache_blocks"),
        (made | {"disk_read": None}, "keeps KV on a disk, and its replica has none"),
        (made | {"stages": [{"base_s": 1e-6}] * 2}, "not modelled on a pipeline"),
    ):
        cluster, _ = adapter.build({**spec, "replicas": [changed]})
        with pytest.raises(ConfigError, match=message):
            simulate(adapter.arrivals(spec), cluster)


@pytest.mark.parametrize("broken", ["count_written", "make_room"])
def test_a_disk_that_counts_or_forgets_nothing_is_caught(
    broken: str, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = getattr(Tier, broken)
    # The disk is the tier with nothing below it.
    monkeypatch.setattr(Tier, broken, lambda tier, *a: tier.below and whole(tier, *a))
    with pytest.raises(AssertionError):
        run(*SHARED, (100, 16, 1, 0), disk_cache_blocks=1)
