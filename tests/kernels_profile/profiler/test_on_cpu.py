"""The whole path on a CPU: plan, inputs, kernels under the interpreter, tables, resumption."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernels_profile.profiler.device import INTERPRETER, Found
from kernels_profile.profiler.effort import Effort
from kernels_profile.profiler.grids import TINY
from kernels_profile.profiler.plan import make_plan
from kernels_profile.profiler.points import Point
from kernels_profile.profiler.progress import Lines
from kernels_profile.profiler.request import TINY_MODEL, Request, effort_on, lay_out
from kernels_profile.profiler.run import profile
from kernels_profile.profiler.shapes import Shard
from kernels_profile.table import DataSet, find_data_sets, read_table
from sim.errors import ConfigError, ProfileError
from sim.specs import ModelSpec

pytestmark = [pytest.mark.kernels, pytest.mark.usefixtures("interpreted")]

MIXTURE = replace(TINY_MODEL, name="tiny-mixture", experts=4, experts_per_token=2, qk_norm=True)
LATENT = replace(
    TINY_MODEL, name="tiny-latent", kv_heads=4, head_dim=32, kv_lora_rank=32, q_lora_rank=24,
    qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=16,
)  # fmt: skip
ONE_SET = replace(Effort(), max_launches=2)


def request(out: Path, **changes: Any) -> Request:
    return Request(**{"models": ["tiny"], "out": out, "device": "cpu", **changes})


def points(model: ModelSpec, *tables: str) -> list[Point]:
    shards = [Shard(model, 1)]
    plan = make_plan(shards, INTERPRETER, ["fp16"], TINY, ONE_SET, tables or None, graphs=False)
    return [point for point in plan.points if point.tier <= 1]


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory, interpreted: None) -> Path:
    folder = tmp_path_factory.mktemp("profile")
    outcome = profile(request(folder), progress=Lines(lambda text: None))
    assert not outcome.failed
    return folder


def test_every_planned_point_is_in_a_table(profiled: Path) -> None:
    found = Found("cpu", INTERPRETER)
    plan = lay_out(request(profiled), found, effort_on(found))
    data = DataSet(profiled)
    for name in {point.table for point in plan.points}:
        table = data.table(name)
        assert table is not None
        assert len(table) == sum(point.table == name for point in plan.points)


def test_it_is_marked_as_no_profile_of_any_device(profiled: Path) -> None:
    meta = DataSet(profiled).meta
    assert (meta.device, meta.measured) == ("cpu-interpreter", "own")
    assert any("not a profile" in note for note in meta.more["notes"])
    assert meta.more["versions"]["torch"] != "not installed"
    assert str(profiled) not in (profiled / "meta.yaml").read_text()
    with pytest.raises(ProfileError, match="was measured on cpu-interpreter, not on h200"):
        find_data_sets([profiled], "h200")


def test_a_second_run_measures_nothing_and_changes_nothing(profiled: Path) -> None:
    before = {path.name: path.read_bytes() for path in profiled.iterdir()}
    outcome = profile(request(profiled), progress=Lines(lambda text: None))
    assert outcome.measured == 0
    assert outcome.known == sum(len(DataSet(profiled).table(n) or ()) for n in names(profiled))
    assert {path.name: path.read_bytes() for path in profiled.iterdir()} == before


def names(folder: Path) -> list[str]:
    return [path.stem for path in DataSet(folder).files()]


def test_a_cut_line_is_measured_again(profiled: Path) -> None:
    path = profiled / "elementwise.csv"
    whole = path.read_text()
    path.write_text(whole[:-9])
    said: list[str] = []
    outcome = profile(request(profiled), said.append, Lines(lambda text: None))
    assert outcome.measured == 1
    assert any("dropped a last line" in line for line in said)
    assert len(read_table(path, "elementwise")) == len(whole.splitlines()) - 1


def test_a_budget_leaves_a_part_for_the_next_run(tmp_path: Path) -> None:
    some = request(tmp_path, tables=["elementwise"], budget_s=0.5)
    first = profile(some, progress=Lines(lambda text: None))
    assert first.postponed > 0
    second = profile(replace(some, budget_s=None), progress=Lines(lambda text: None))
    assert first.measured + second.measured == first.measured + first.postponed
    assert second.known == first.measured


def test_a_real_model_is_refused_under_the_interpreter(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="far too many for the interpreter"):
        profile(request(tmp_path, models=["llama-3.1-8b"]))
    assert not (tmp_path / "meta.yaml").exists()


@pytest.mark.parametrize("model", [MIXTURE, LATENT], ids=lambda model: str(model.name))
def test_mixtures_and_latents_are_measured(model: ModelSpec, tmp_path: Path) -> None:
    from kernels_profile.profiler.measure import Choices, Measurer

    wanted = ("moe",) if model.experts else ("mla_prefill", "mla_decode")
    measurer = Measurer("cpu", ONE_SET, Choices(tmp_path / "configs.csv"))
    todo = points(model, *wanted, "elementwise")
    assert {point.table for point in todo} == {*wanted, "elementwise"}
    for point in todo:
        assert measurer.measure(point)["time_us"] > 0, point


def work_of(point: Point) -> tuple[Any, Any]:
    """A bench, and the first set's result."""
    import torch

    from kernels_profile.profiler.arena import Arena
    from kernels_profile.profiler.bench import Bench
    from kernels_profile.profiler.workloads import build, taken

    bench = Bench(Arena("cpu", torch.float32), ONE_SET, "cpu")
    for dtype, elements in taken(point, bench).items():
        bench.arena.reserve(elements, dtype)
    return bench, build(point, bench)


def called(point: Point, kernel: str) -> tuple[tuple[Any, ...], Any]:
    """What a point's launch gives to a kernel, and what it gets back."""
    module = importlib.import_module(f"kernels_profile.kernels.{kernel}")
    ours, calls = getattr(module, kernel), list[tuple[Any, ...]]()

    def spy(*given: Any, **options: Any) -> Any:
        calls.append(given)
        return ours(*given, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, kernel, spy)
        _, work = work_of(point)
        result = work.run(0)
    assert len(calls) == 1
    return calls[0], result


def widened(given: tuple[Any, ...]) -> list[Any]:
    return [x.double() if hasattr(x, "is_floating_point") and x.is_floating_point() else x
            for x in given]  # fmt: skip


def test_decodes_are_given_the_contexts_of_their_point() -> None:
    from kernels_profile.kernels import reference

    for point in points(TINY_MODEL, "attention_decode"):
        given, result = called(point, "decode_attention")
        expected = reference.decode_attention(*widened(given)[:6])
        assert (result.double() - expected).norm() < 1e-5 * expected.norm(), point
        contexts = given[4].tolist()
        assert len(contexts) == point["batch"]
        assert np.mean(contexts) == pytest.approx(point["context"], rel=0.05)
        assert np.std(contexts) == pytest.approx(point["skew"] * point["context"], rel=0.05)


@pytest.mark.parametrize("table", ["attention_prefill", "attention_mixed"])
def test_chunks_are_given_the_history_of_their_point(table: str) -> None:
    from kernels_profile.kernels import reference

    for point in points(TINY_MODEL, table):
        given, result = called(point, "prefill_attention")
        expected = reference.prefill_attention(*widened(given)[:7])
        assert (result.double() - expected).norm() < 1e-5 * expected.norm(), point
        sequences = point["decodes"] + 1 if table == "attention_mixed" else point["batch"]
        contexts, starts = given[5].tolist(), given[4].tolist()
        assert contexts[0] == point["history"] + point["tokens"]
        assert len(contexts) == sequences
        assert starts[1] - starts[0] == point["tokens"]


def test_chunks_of_latents_are_attended_to_as_the_whole_kernel_does() -> None:
    """Gather and attention around keys and values that are in fact the projected latents."""
    import torch

    from kernels_profile.kernels import mla_prefill as module
    from kernels_profile.kernels.mla_prefill import mla_prefill

    for point in points(LATENT, "mla_prefill"):
        heads, nope, value = point["heads"], point["nope_dim"], point["v_dim"]
        up = torch.randn(heads * (nope + value), point["kv_lora_rank"]) * 0.1
        seen: dict[str, Any] = {}
        gather, attend = module.plan_gather, module.plan_mla_attention

        def spy_gather(*given: Any, gather: Any = gather, seen: Any = seen, up: Any = up) -> Any:
            launch = gather(*given)
            launch.run()
            seen["cache"], seen["table"] = given[:2]
            seen["kv"] = given[3] @ up.T
            return launch

        def spy_attend(*given: Any, attend: Any = attend, seen: Any = seen) -> Any:
            seen["q"], seen["starts"], seen["scale"] = given[0], given[3], given[5]
            kv = seen["kv"].view(given[1].shape)
            return attend(given[0], kv, *given[2:])

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "plan_gather", spy_gather)
            patch.setattr(module, "plan_mla_attention", spy_attend)
            _, work = work_of(point)
            result = work.run(0)
        contexts = torch.full((point["batch"],), point["history"] + point["tokens"])
        expected = mla_prefill(
            seen["q"], seen["cache"], seen["table"], seen["starts"], contexts.to(torch.int32),
            up, seen["scale"], nope,
        )  # fmt: skip
        assert (result - expected).norm() < 1e-4 * expected.norm(), point


def test_experts_are_touched_as_the_point_says() -> None:
    import torch

    from kernels_profile.kernels import moe

    for point in points(MIXTURE, "moe"):
        seen: list[Any] = []

        def spy(x: Any, router: Any, *rest: Any, seen: list[Any] = seen, **options: Any) -> Any:
            seen.append((x, router))
            return x

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(moe, "expert_block", spy)
            _, work = work_of(point)
            work.run(0)
        ((x, router),) = seen
        chosen = torch.topk(x.float() @ router.float().T, point["top_k"]).indices
        assert chosen.unique().numel() == point["touched"], point


def test_sets_of_inputs_share_no_memory() -> None:
    import torch

    from kernels_profile.profiler.arena import Arena

    arena = Arena("cpu", torch.float16)
    arena.reserve(4 * 256)
    first, second = arena.take(100), arena.take(3, 50)
    first.fill_(1)
    second.fill_(2)
    assert first.eq(1).all()
    assert first.data_ptr() % 16 == second.data_ptr() % 16 == 0
    with pytest.raises(ValueError, match="512 used"):
        arena.take(600)
    arena.reset()
    assert arena.take(100).data_ptr() == first.data_ptr()


def test_a_larger_arena_is_filled_with_numbers() -> None:
    import torch

    from kernels_profile.profiler import arena as module

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "RANDOM_BYTES", 4000)
        arena = module.Arena("cpu", torch.float32)
        arena.reserve(100)
        arena.reserve(2500)
        values = arena.take(2500)
    assert float(values.std()) == pytest.approx(1, rel=0.1)
    assert torch.equal(values[:1000], values[1000:2000])


def test_the_quickest_configuration_is_chosen_once_a_class(tmp_path: Path) -> None:
    from kernels_profile.profiler.choosers import candidates
    from kernels_profile.profiler.measure import Choices, Measurer
    from kernels_profile.profiler.timing import Timing, Work

    class Fake:
        def __init__(self) -> None:
            self.times = iter([30.0, 10.0, 20.0])

        def time(self, work: Work, estimate_us: float) -> Timing:
            return Timing.of([next(self.times, 15.0)])

    point = points(TINY_MODEL, "linear")[0]
    configs = candidates(point)
    assert len(configs) == 3
    path = tmp_path / "configs.csv"
    measurer = Measurer("cpu", ONE_SET, Choices(path), Fake())  # type: ignore[arg-type]
    assert measurer.measure(point)["time_us"] == 15.0
    assert measurer.measure(point)["time_us"] == 15.0
    written = path.read_text().splitlines()
    assert len(written) == 2
    assert f",{configs[1]},10.0000," in written[1]
    again = Measurer("cpu", ONE_SET, Choices(path), Fake())  # type: ignore[arg-type]
    assert again.measure(point)["time_us"] == 30.0  # no candidate was timed anew


def test_a_choice_that_was_cut_off_is_made_again(tmp_path: Path) -> None:
    from kernels_profile.profiler.choosers import candidates
    from kernels_profile.profiler.measure import Choices

    path, (first, second) = tmp_path / "configs.csv", points(TINY_MODEL, "linear")[:2]
    configs = candidates(first)
    times = {str(config): float(i) for i, config in enumerate(configs, start=1)}
    Choices(path).add(first, configs, times)
    assert str(Choices(path).of(first)) == str(configs[0])
    path.write_text(path.read_text()[:-5])
    again = Choices(path)
    assert again.of(first) is None
    again.add(second, candidates(second), times)
    assert str(Choices(path).of(second)) == str(configs[0])


CLEAN = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}

COMPILE = """
from kernels_profile.profiler.effort import Effort
from kernels_profile.profiler.grids import TINY
from kernels_profile.profiler.plan import make_plan
from kernels_profile.profiler.precompile import compile_ahead, tasks
from kernels_profile.profiler.shapes import Shard
from sim.specs import load_device, load_model
if __name__ == "__main__":
    shards = [Shard(load_model("llama-3.1-8b"), 1)]
    tables = ["elementwise", "linear"]
    plan = make_plan(shards, load_device("h200"), ["bf16", "fp8"], TINY, Effort(), tables)
    some = [p for p in plan.points if p.tier == 1][:8]
    found = tasks(some, "cpu")
    assert len({(t.point.identity, t.config) for t in found}) == len(found)
    assert not tasks([*some, *some], "cpu")[len(found):], "a variant is compiled twice"
    done = compile_ahead(some, "cpu", 2, 300.0, capability=90)
    print(done.variants, done.wanted, len(found), *done.problems)
    assert compile_ahead(some, "cpu", 1, 0.0, capability=90).variants == 0
"""


def test_variants_are_compiled_in_processes_without_a_gpu(repository: Path, tmp_path: Path) -> None:
    script = tmp_path / "compile_some.py"
    script.write_text(COMPILE)
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**CLEAN, "PYTHONPATH": str(repository)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    compiled, wanted, _, *problems = done.stdout.split(maxsplit=3)
    assert int(compiled) == int(wanted) >= 5
    assert not problems


def test_a_configuration_that_cannot_run_is_passed_over(tmp_path: Path) -> None:
    from kernels_profile.kernels.linear import choose
    from kernels_profile.profiler.measure import Choices, Measurer

    point = next(p for p in points(TINY_MODEL, "linear") if p["tokens"] == 1)
    configs = choose(1, point["n"], point["k"])
    choices = Choices(tmp_path / "launch_configs.csv")
    measurer = Measurer("cpu", effort_on(Found("cpu", INTERPRETER)), choices)
    work = measurer._work

    def too_large(point: Point, config: Any) -> Any:
        if config in failing:
            raise RuntimeError("out of resource: shared memory")
        return work(point, config)

    measurer._work = too_large  # type: ignore[method-assign]
    failing = list(configs)
    with pytest.raises(RuntimeError, match="out of resource"):
        measurer.measure(point)
    failing.pop()
    assert measurer.measure(point)["time_us"] > 0
    assert choices.of(point) == configs[-1]
    assert "RuntimeError" in (tmp_path / "launch_configs.csv").read_text()
