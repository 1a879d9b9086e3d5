"""The engine against a plain forward pass of the same weights: every token, under every policy."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from policies import POLICIES
from policies.routing import RoundRobin
from sim.cluster import Cluster
from sim.errors import ProfileError
from sim.event_loop import simulate
from sim.pool import PoolSpec
from sim.records import Record
from sim.replica_spec import ReplicaSpec
from sim.request import Arrival
from sim.specs import ModelSpec

if TYPE_CHECKING:
    import torch

    from kernels_profile.engine.model import RankModel

pytestmark = [pytest.mark.kernels, pytest.mark.usefixtures("kernels")]

TINY = ModelSpec(
    name="tiny", layers=1, hidden=48, heads=4, kv_heads=2, head_dim=16, intermediate=72,
    vocab=101, max_positions=256,
)  # fmt: skip
QK_NORM = replace(TINY, name="tiny-qk", qk_norm=True)
EXPERTS = replace(TINY, name="tiny-moe", experts=4, experts_per_token=2)
TWO_LAYERS = replace(TINY, name="tiny-two", layers=2)
BLOCK, BLOCKS = 4, 12
ARRIVALS = [Arrival(0, 7, 4, 6, 0), Arrival(0, 4, 5, 6, 1), Arrival(0, 9, 3, 6, 2)]
POLICY_OPTIONS = {
    "static": {"batch_size": 2, "pad_prompts": False, "keep_finished_slots": False},
    "orca": {"max_batch_size": 2},
    "vllm-v0": {"max_num_seqs": 3},
    "vllm-v1": {"max_num_batched_tokens": 7, "max_num_seqs": 3},
    "sarathi": {"budget_tokens": 7, "max_num_seqs": 3},
}


def rank(model: ModelSpec = TINY, **options: object) -> RankModel:
    import torch

    from kernels_profile.engine.model import RankModel

    settings = {"num_blocks": BLOCKS, "block_tokens": BLOCK, "max_positions": 64, "seed": 3}
    return RankModel(model, device="cpu", dtype=torch.float32, **{**settings, **options})  # type: ignore[arg-type]


def serve(  # type: ignore[no-untyped-def]
    model: RankModel,
    policy_name: str,
    blocks: int = BLOCKS,
    options: dict[str, object] | None = None,
):
    from kernels_profile.engine.realtime import (
        CardReplica,
        CardStepTime,
        WallClock,
        WallClockEnvironment,
    )
    from kernels_profile.engine.runner import Runner

    clock = WallClock()
    card = CardStepTime(Runner(model, blocks, seed=5), clock)
    policy = POLICIES[policy_name](**(options or POLICY_OPTIONS[policy_name]))
    link = {"host_bandwidth_bytes_per_s": 1e9}
    spec = ReplicaSpec(policy, blocks, card, block_tokens=BLOCK, kind=CardReplica, **link)
    environment = WallClockEnvironment(clock)
    clock.start()
    result = simulate(
        ARRIVALS,
        Cluster(PoolSpec("replica", [spec], RoundRobin())),
        fast_forward=False,
        check=True,
        record=Record(decisions=True),
        environment=environment,
    )
    return result, card


def plain_tokens(model: RankModel, prompt: list[int], outputs: int) -> list[int]:
    """Greedy continuation by full recomputation in float64, without cache, pages or kernels."""
    known = list(prompt)
    for _ in range(outputs):
        known.append(int(plain_logits(model, known).argmax()))
    return known


def plain_logits(model: RankModel, tokens: list[int]) -> torch.Tensor:
    """Logits after the last token, (vocab,)."""
    import torch

    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()

    def rotate(x: torch.Tensor) -> torch.Tensor:
        cos, sin = (t[: len(tokens), None].double() for t in (model.cos, model.sin))
        first, second = x.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

    def mlp(layer, x: torch.Tensor) -> torch.Tensor:  # type: ignore[no-untyped-def]
        def one(x, gate_up, down):  # type: ignore[no-untyped-def]
            gate, up = (x @ gate_up.double().T).chunk(2, dim=-1)
            return (torch.nn.functional.silu(gate) * up) @ down.double().T

        if layer.router is None:
            return one(x, layer.gate_up, layer.down)
        weights, ids = (x @ layer.router.double().T).softmax(-1).topk(2)
        weights = weights / weights.sum(-1, keepdim=True)
        rows = [
            sum(w * one(row, layer.gate_up[e], layer.down[e]) for w, e in zip(ws, es, strict=True))
            for row, ws, es in zip(x, weights, ids, strict=True)
        ]
        return torch.stack(rows)

    spec, dim = model.spec, model.spec.head_dim
    x = model.embedding.double()[torch.tensor(tokens)]
    mask = torch.full((len(tokens),) * 2, float("-inf")).triu(1).double()
    for layer in model.layers:
        qkv = norm(x, layer.attention_norm) @ layer.qkv.double().T
        heads = qkv.view(len(tokens), -1, dim)
        q, k, v = heads.split([spec.heads, spec.kv_heads, spec.kv_heads], dim=1)
        if layer.qk_norms is not None:
            q, k = norm(q, layer.qk_norms[0]), norm(k, layer.qk_norms[1])
        group = spec.heads // spec.kv_heads
        k, v = rotate(k).repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = torch.einsum("qhd,khd->hqk", rotate(q), k) * dim**-0.5 + mask
        attended = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).reshape(len(tokens), -1)
        x = x + attended @ layer.output.double().T
        x = x + mlp(layer, norm(x, layer.mlp_norm))
    return (norm(x, model.final_norm) @ model.head.double().T)[-1]


def assert_plain(model: RankModel, card) -> None:  # type: ignore[no-untyped-def]
    for arrival in ARRIVALS:
        got = card.runner.tokens[arrival.index]
        prompt = got[: arrival.prompt_tokens]
        assert got == plain_tokens(model, prompt, arrival.output_tokens), arrival


@pytest.mark.parametrize("name", sorted(POLICY_OPTIONS))
def test_every_policy_gives_the_tokens_of_a_plain_forward_pass(name: str) -> None:
    model = rank()
    result, card = serve(model, name)
    assert result.requests["emitted_tokens"].tolist() == [4, 5, 3]
    assert_plain(model, card)


def test_tokens_survive_preemption_and_recomputation() -> None:
    model = rank(num_blocks=5)
    result, card = serve(model, "vllm-v1", blocks=5)
    assert result.requests["preemptions"].sum() > 0
    assert_plain(model, card)


@pytest.mark.parametrize("spec", [QK_NORM, EXPERTS, TWO_LAYERS], ids=lambda spec: spec.name)
def test_norms_of_queries_and_keys_experts_and_several_layers(spec: ModelSpec) -> None:
    model = rank(spec)
    _, card = serve(model, "sarathi")
    assert_plain(model, card)


def test_a_wrong_page_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    from kernels_profile.engine import runner

    slots = runner._slots

    def shifted(model: RankModel, piece: tuple[list[int], int, list[int]]) -> object:
        return np.where(slots(model, piece) % BLOCK == 1, -1, slots(model, piece))

    monkeypatch.setattr(runner, "_slots", shifted)
    model = rank()
    _, card = serve(model, "vllm-v1")
    with pytest.raises(AssertionError):
        assert_plain(model, card)


def test_layers_can_share_their_weights_but_not_their_caches() -> None:
    model = rank(TWO_LAYERS, share_layers=True)
    first, second = model.layers
    assert first.qkv is second.qkv
    assert first.k_cache is not second.k_cache
    _, card = serve(model, "sarathi")
    assert_plain(model, card)


def test_a_padded_graph_batch_gives_the_same_tokens() -> None:
    import torch

    from kernels_profile.engine.runner import fill, idle_rows, make_rows

    model = rank()
    serve(model, "vllm-v0")
    pieces = [([7], 5, [0, 1]), ([9], 2, [2])]
    rows = make_rows(model, [], [], pieces)
    padded = idle_rows(model, 4, 6)
    fill(padded, make_rows(model, [], [], [([1], 8, [3, 4, 5])] * 4))  # what an earlier step left
    fill(padded, rows)
    before = model.layers[0].k_cache.clone()
    assert torch.equal(model.forward(padded)[:2], model.forward(rows))
    changed = (model.layers[0].k_cache != before).flatten(2).any(-1).nonzero().tolist()
    assert changed == [[1, 1], [2, 2]]


def test_times_are_wall_time_and_steps_are_logged() -> None:
    result, card = serve(rank(), "sarathi")
    assert [step.end_ns for step in card.log] == sorted(step.end_ns for step in card.log)
    assert all(step.gpu_ns > 0 and step.host_ns >= 0 for step in card.log)
    assert sum(step.prefill_tokens for step in card.log) == sum(a.prompt_tokens for a in ARRIVALS)
    assert result.end_ns == card.log[-1].end_ns


def test_nothing_happens_before_its_time() -> None:
    from kernels_profile.engine.realtime import WallClock, WallClockEnvironment

    clock = WallClock()
    environment = WallClockEnvironment(clock)
    seen: list[tuple[int, int]] = []

    def process():  # type: ignore[no-untyped-def]
        for delay in (3_000_000, 0, 500_000):
            yield environment.timeout(delay)
            seen.append((int(environment.now), clock.now_ns()))

    environment.process(process())
    clock.start()
    environment.run()
    assert [at for at, _ in seen] == [3_000_000, 3_000_000, 3_500_000]
    assert all(wall >= at for at, wall in seen)


def test_nobody_waits_for_what_was_called_off() -> None:
    from kernels_profile.engine.realtime import WallClock, WallClockEnvironment
    from sim.clock import Instant, Phase

    clock = WallClock()
    environment = WallClockEnvironment(clock)
    Instant(environment, 60_000_000_000, Phase.CANCEL).call_off()
    clock.start()
    environment.run()
    assert environment.now == 0
    assert clock.now_ns() < 10_000_000_000


@pytest.mark.parametrize("pad", [True, "attention"])
def test_padded_batches_are_refused(pad: object) -> None:
    options = {**POLICY_OPTIONS["static"], "pad_prompts": pad}
    with pytest.raises(ProfileError, match="policy static pads its batches"):
        serve(rank(), "static", options=options)


def test_shared_kv_is_refused() -> None:
    with pytest.raises(ProfileError, match="prefix_cache: the engine shares no KV"):
        serve(rank(), "vllm-v1", options={"prefix_cache": True})


def test_swapping_is_refused() -> None:
    options: dict[str, object] = {"preemption": "swap", "host_blocks": 9}
    with pytest.raises(ProfileError, match="moves no KV to the host"):
        serve(rank(), "vllm-v0", options=options)


def test_block_tables_follow_the_pool() -> None:
    from kernels_profile.engine.memory import BlockTables
    from sim.kvcache import BlockPool
    from sim.request import Request

    pool, tables = BlockPool(6, 4), BlockTables(6)
    requests = [Request(i, 8, 8) for i in range(3)]
    rng = np.random.default_rng(0)
    for _ in range(200):
        request = requests[rng.integers(3)]
        if rng.random() < 0.3:
            pool.release(request)
        else:
            pool.allocate(request, int(rng.integers(1, 16)))
        tables.follow(pool, requests)
        owned = [i for r in requests if pool.held(r) for i in tables[r]]
        assert len(owned) == len(set(owned)) == 6 - pool.free_blocks
