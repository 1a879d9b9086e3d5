"""Which GPU sends what to which: sizes worked by hand, and what must hold for all layouts."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.errors import ConfigError
from sim.kv_shards import KvShards, parts_between
from sim.specs import kv_bytes_per_token, load_model


def gqa(tp: int, layers: tuple[int, ...] = (36,), groups: int = 1) -> KvShards:
    """Qwen3-8B: 36 layers, 8 KV heads of 128, keys and values in 2 bytes: 512 bytes a cell."""
    return KvShards(layers, tp, groups, 8, 512)


def latent(tp: int, groups: int = 1) -> KvShards:
    """DeepSeek-V3: 61 layers, a latent of 512 + 64 in 2 bytes."""
    return KvShards((61,), tp, groups, 1, 1152)


def table(source: KvShards, target: KvShards, request: int = 0) -> dict[tuple[int, int], int]:
    return {(p.source, p.target): p.cells for p in parts_between(source, target, request)}


def test_bytes_of_a_token_are_those_of_the_model() -> None:
    assert gqa(8).bytes_per_token == kv_bytes_per_token(load_model("qwen3-8b")) == 147_456
    assert latent(8).bytes_per_token == kv_bytes_per_token(load_model("deepseek-v3")) == 70_272


def test_equal_degrees_send_rank_to_rank() -> None:
    # One head on each GPU, 36 layers: 36 cells each; 4 GPUs: 2 heads each, 72.
    assert table(gqa(8), gqa(8)) == {(r, r): 36 for r in range(8)}
    assert table(gqa(4), gqa(4)) == {(r, r): 72 for r in range(4)}


def test_more_gpus_on_the_target_split_and_fewer_merge() -> None:
    # Source GPU 0 has heads 0 to 3: target GPUs 0 and 1 have 0, 1 and 2, 3.
    assert table(gqa(2), gqa(4)) == {(0, 0): 72, (0, 1): 72, (1, 2): 72, (1, 3): 72}
    assert table(gqa(4), gqa(1)) == {(r, 0): 72 for r in range(4)}


def test_repeated_heads_go_to_every_gpu_that_holds_them() -> None:
    # 16 GPUs for 8 heads: GPUs 0 and 1 hold head 0. From 8 GPUs each is sent twice.
    assert table(gqa(8), gqa(16)) == {(r // 2, r): 36 for r in range(16)}
    # The other way only the first of two holders is read.
    assert table(gqa(16), gqa(8)) == {(2 * r, r): 36 for r in range(8)}
    # Between equals each copy is sent by its counterpart.
    assert table(gqa(16), gqa(16)) == {(r, r): 36 for r in range(16)}


def test_a_latent_goes_whole_to_every_rank() -> None:
    assert table(latent(8), latent(8)) == {(r, r): 61 for r in range(8)}
    assert table(latent(2), latent(4)) == {(0, 0): 61, (0, 1): 61, (1, 2): 61, (1, 3): 61}
    assert table(latent(4), latent(1)) == {(0, 0): 61}
    assert table(latent(8), latent(2)) == {(0, 0): 61, (4, 1): 61}


def test_groups_that_attend_apart_hold_their_own_requests() -> None:
    # 8 groups of one GPU: request 11 lies on GPU 3 of the target; the source has 2 groups of 2.
    assert table(latent(4, 2), latent(8, 8), request=11) == {(2, 3): 61}
    assert table(gqa(8, groups=2), gqa(8), request=1) == {(4 + r // 2, r): 36 for r in range(8)}


def test_layers_go_to_the_stage_that_has_them() -> None:
    # Stages of 18 and 18 layers to one GPU, and to stages of 12: 12 | 6 + 6 | 12 of 8 heads.
    assert table(gqa(1, (18, 18)), gqa(1)) == {(0, 0): 144, (1, 0): 144}
    got = table(gqa(1, (18, 18)), gqa(1, (12, 12, 12)))
    assert got == {(0, 0): 96, (0, 1): 48, (1, 1): 48, (1, 2): 96}
    # With 2 GPUs a stage: heads 0 to 3 on GPUs 0 and 2.
    assert table(gqa(2, (18, 18)), gqa(2)) == {(0, 0): 72, (2, 0): 72, (1, 1): 72, (3, 1): 72}


@st.composite
def layouts(draw: st.DrawFn, heads: int) -> KvShards:
    each = draw(st.sampled_from([1, 2, 4, 8, 16]))
    groups = draw(st.sampled_from([1, 2, 3]))
    cuts = sorted(draw(st.sets(st.integers(1, 11), max_size=3)))
    bounds = [0, *cuts, 12]
    layers = tuple(b - a for a, b in pairwise(bounds))
    return KvShards(layers, each * groups, groups, heads, 10)


@given(st.data(), st.sampled_from([1, 2, 4, 8]), st.integers(0, 40))
def test_every_gpu_gets_just_what_it_holds_from_one_that_holds_it(
    data: st.DataObject, heads: int, request: int
) -> None:
    source, target = data.draw(layouts(heads)), data.draw(layouts(heads))
    parts = parts_between(source, target, request)
    got = Counter[int]()
    held = {h.gpu: len(h.layers) * len(h.heads) for h in target.held(request)}
    of = {h.gpu: h for h in source.held(request)}
    to = {h.gpu: h for h in target.held(request)}
    for part in parts:
        got[part.target] += part.cells
        a, b = of[part.source], to[part.target]
        assert len(set(a.layers) & set(b.layers)) * len(set(a.heads) & set(b.heads)) >= part.cells
    assert got == held
    assert len({(p.source, p.target) for p in parts}) == len(parts)


def test_heads_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ConfigError, match="tensor_parallel 3 in 1 groups"):
        gqa(3)
