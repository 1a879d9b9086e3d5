"""Parts of a model on pipeline stages: their operators, weights and KV add up to the whole's."""

from __future__ import annotations

import random

import pytest

from kernels_profile.part import ModelPart, split_layers, whole
from kernels_profile.roofline import RooflineStepTime
from sim.errors import ConfigError
from sim.specs import kv_blocks, kv_bytes_per_token, load_device, load_model, weight_bytes
from sim.step_time import StepWork

H100 = load_device("h100-sxm")
MODELS = ["llama-3.1-8b", "qwen2.5-7b", "mixtral-8x7b", "deepseek-v2-lite"]


def _works(seed: int) -> list[StepWork]:
    rng = random.Random(seed)
    works = [StepWork(), StepWork([(1, 0)]), StepWork([], 1, 1), StepWork([], 64, 64_000)]
    for _ in range(20):
        chunks = [(rng.randint(1, 2048), rng.randint(0, 8192)) for _ in range(rng.randint(0, 3))]
        decodes = rng.randint(0, 200)
        works.append(StepWork(chunks, decodes, decodes * rng.randint(1, 4000)))
    return works


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("stages", [1, 2, 3])
def test_times_of_the_stages_add_up_to_that_of_the_model(name: str, stages: int) -> None:
    model = load_model(name)
    parts = split_layers(model, stages)
    whole_time = RooflineStepTime(model, H100, tensor_parallel=2)
    times = [RooflineStepTime(model, H100, tensor_parallel=2, part=part) for part in parts]
    for work in _works(stages):
        together = sum(time.step_ns(work, 0) for time in times)
        # Each is rounded, and lasts at least 1 ns.
        assert abs(together - whole_time.step_ns(work, 0)) <= stages
        flops = sum(time.flops_and_bytes(work)[0] for time in times)
        assert flops == pytest.approx(whole_time.flops_and_bytes(work)[0])


def test_only_the_first_stage_has_the_host_and_only_the_last_the_head() -> None:
    model = load_model("llama-3.1-8b")
    first, middle, last = (
        RooflineStepTime(model, H100, part=part) for part in split_layers(model, 3, [10, 10, 12])
    )
    one, more = StepWork([], 8, 8), StepWork([], 8, 8, sampled_rows=1)
    host_ns = (first.host.step_us + 8 * first.host.request_us) * 1e3
    assert first.step_ns(one, 0) - middle.step_ns(one, 0) >= host_ns
    assert first.step_ns(one, 0) == first.step_ns(more, 0)
    assert middle.step_ns(one, 0) == middle.step_ns(more, 0)
    assert last.step_ns(one, 0) > last.step_ns(more, 0)


@pytest.mark.parametrize("part", [None, 1])
def test_all_layers_as_a_part_are_the_whole_bit_for_bit(part: int | None) -> None:
    model = load_model("llama-3.1-70b")
    plain = RooflineStepTime(model, H100, tensor_parallel=4)
    as_part = RooflineStepTime(
        model, H100, tensor_parallel=4, part=None if part is None else whole(model)
    )
    for work in _works(9):
        assert plain.step_ns(work, 0) == as_part.step_ns(work, 0)


@pytest.mark.parametrize("name", [*MODELS, "llama-3.1-70b", "opt-13b"])
@pytest.mark.parametrize("stages", [1, 2, 5])
def test_weights_and_kv_of_the_stages_add_up(name: str, stages: int) -> None:
    model = load_model(name)
    parts = split_layers(model, stages)
    assert sum(kv_bytes_per_token(part.of(model)) for part in parts) == kv_bytes_per_token(model)
    together = sum(weight_bytes(model, part=part) for part in parts)
    matrix = 2 * model.vocab * model.hidden
    copies = matrix if model.tied_embeddings and stages > 1 else 0
    # The last norm and learned positions are counted on every stage.
    small = (stages - 1) * 2 * model.hidden * (2 + model.position_rows) + stages
    assert 0 <= together - copies - weight_bytes(model) <= small


def test_embedding_and_head_take_room_where_they_are() -> None:
    model = load_model("llama-3.1-8b")
    first, middle, last = split_layers(model, 3, [11, 10, 11])
    matrix = 2 * model.vocab * model.hidden
    bare = weight_bytes(model, part=ModelPart(11, embedding=False, head=False, first=1))
    assert weight_bytes(model, part=first) - bare == matrix
    assert weight_bytes(model, part=last) - bare == matrix
    assert weight_bytes(model, part=middle) < bare
    assert kv_blocks(model, H100, part=middle)[0] > kv_blocks(model, H100, part=first)[0]


def test_the_blocks_of_a_stage_say_its_layers_and_what_would_do() -> None:
    model = load_model("llama-3.1-405b")
    part = split_layers(model, 2)[0]
    with pytest.raises(ConfigError, match=r"63 of 126 layers.* it would fit on tensor_parallel: 8"):
        kv_blocks(model, H100, tp=2, part=part)


@pytest.mark.parametrize(
    ("layers", "stages", "split"),
    [
        # vLLM: left-over layers go to the stages before the last one, from the back.
        (32, 2, [16, 16]),
        (32, 3, [11, 11, 10]),
        (61, 8, [7, 7, 8, 8, 8, 8, 8, 7]),
        (6, 4, [1, 2, 2, 1]),
    ],
)
def test_an_even_split_is_that_of_vllm(layers: int, stages: int, split: list[int]) -> None:
    from dataclasses import replace

    model = replace(load_model("llama-3.1-8b"), layers=layers)
    parts = split_layers(model, stages)
    assert [part.layers for part in parts] == split
    assert [part.first for part in parts] == [sum(split[:stage]) for stage in range(stages)]
    assert [part.embedding for part in parts] == [True] + [False] * (stages - 1)
    assert [part.head for part in parts] == [False] * (stages - 1) + [True]


def test_dense_first_layers_are_those_of_the_first_stage() -> None:
    model = load_model("deepseek-v3")
    assert model.dense_layers == 3
    parts = split_layers(model, 3, [2, 2, 57])
    assert [part.of(model).dense_layers for part in parts] == [2, 1, 0]


@pytest.mark.parametrize(
    ("stages", "layers", "message"),
    [
        (33, None, "pipeline_parallel: 33: llama-3.1-8b has 32 layers; give 1 to 32 stages"),
        (2, [16, 15], r"stage_layers: \[16, 15\]: expected 2 numbers .* such as \[16, 16\]"),
        (2, [32, 0], "add up to the 32 layers of llama-3.1-8b"),
        (2, [10, 11, 11], "expected 2 numbers"),
    ],
)
def test_a_split_that_does_not_come_out_is_refused(
    stages: int, layers: list[int] | None, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        split_layers(load_model("llama-3.1-8b"), stages, layers)
