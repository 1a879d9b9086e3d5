"""DistServe's fits: the numbers of its own formulas, and an error wherever it has none."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from experiments.cli import app
from kernels_profile import STEP_TIMES
from kernels_profile.distserve import FITS, DistServeStepTime
from sim.errors import ConfigError, ProfileError
from sim.step_time import StepTimeModel, StepWork


def decodes(rows: int, context: int) -> StepWork:
    return StepWork((), rows, context)


@pytest.mark.parametrize(
    ("engine", "model", "tp", "work", "ms"),
    [
        # a + b n + c sum(len^2), and a + b context + c batch, worked by hand from the source's
        # profiler-a100-80g.*.json.
        (
            "distserve", "opt-13b", 1, StepWork([(512, 0)]),
            18.102546 + 0.10191226 * 512 + 7.1222643e-06 * 512**2,
        ),
        (
            "distserve", "opt-66b", 4, StepWork([(128, 0), (2048, 0)]),
            29.441636 + 0.15135218 * 2176 + 8.3174508e-06 * (128**2 + 2048**2),
        ),
        (
            "distserve", "opt-13b", 1, decodes(94, 94 * 512),
            19.934703 + 0.00062693565 * 94 * 512 + 0.038506977 * 94,
        ),
        (
            "distserve", "opt-13b", 1, decodes(95, 95 * 512),
            7.1661889 + 0.00057980004 * 95 * 512 + 0.15831096 * 95,
        ),
        (
            "vllm", "opt-66b", 8, decodes(1, 512),
            31.176042 + 0.00027556544 * 512 + 0.06797704,
        ),
    ],
)  # fmt: skip
def test_it_gives_the_sources_formulas(
    engine: str, model: str, tp: int, work: StepWork, ms: float
) -> None:
    fitted = DistServeStepTime(model, engine, tp)
    assert fitted.step_ns(work, 0) == pytest.approx(ms * 1e6, abs=1)


def test_each_of_several_stages_takes_an_equal_part() -> None:
    whole = DistServeStepTime("opt-66b", tensor_parallel=2)
    stage = DistServeStepTime("opt-66b", tensor_parallel=2, pipeline_parallel=4)
    for work in (StepWork([(700, 0)]), decodes(30, 9000), decodes(120, 40_000)):
        assert 4 * stage.step_ns(work, 0) == pytest.approx(whole.step_ns(work, 0), abs=4)


def test_it_is_a_step_time_model_that_names_its_source() -> None:
    built = STEP_TIMES["distserve-fit"](model="opt-13b", tensor_parallel=2)
    assert isinstance(built, StepTimeModel)
    told = built.describe()
    assert told.model == "distserve-fit"
    assert "a100-sxm-80gb" in told.origin
    assert "82831f1604cc" in told.origin


@given(
    key=st.sampled_from(sorted(FITS)),
    rows=st.integers(1, 300),
    padding=st.integers(0, 20),
    mean=st.integers(1, 3000),
    n=st.integers(1, 100),
)
@settings(max_examples=100, deadline=None)
def test_a_run_equals_single_steps_bit_for_bit(
    key: tuple[str, str, int], rows: int, padding: int, mean: int, n: int
) -> None:
    engine, model, tp = key
    fitted = DistServeStepTime(model, engine, tp)

    def work(k: int) -> StepWork:
        return StepWork((), rows + padding, rows * (mean + k), attending_rows=rows)

    single = [fitted.step_ns(work(k), k) for k in range(n)]
    assert list(fitted.steps_ns(work(0), n, 0)) == single
    assert min(single) >= 1


def test_a_run_of_one_prefill_is_that_step() -> None:
    fitted, work = DistServeStepTime("opt-13b"), StepWork([(64, 0), (100, 0)])
    assert list(fitted.steps_ns(work, 1, 0)) == [fitted.step_ns(work, 0)]


def test_mixed_batches_and_parts_of_prompts_are_errors() -> None:
    fitted = DistServeStepTime("opt-13b")
    with pytest.raises(ProfileError, match="1 prefills and 3 decodes: mixed batches were not"):
        fitted.step_ns(StepWork([(64, 0)], 3, 900), 0)
    with pytest.raises(ProfileError, match="only whole prompts were fitted"):
        fitted.step_ns(StepWork([(64, 128)]), 0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"model": "opt-175b"}, "model opt-175b is not fitted; there are opt-13b, opt-66b"),
        ({"model": "opt-66b"}, "tensor_parallel 1 is not fitted .* choose one of 2, 3, 4, 8"),
        ({"model": "opt-13b", "engine": "vlm"}, "engine: vlm is not fitted; did you mean vllm"),
    ],
)
def test_what_was_not_fitted_is_named_with_what_was(options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        DistServeStepTime(**options)


def config(path: Path, **keys: object) -> Path:
    said = {
        "workload": {"preset": "azure-conv-2023", "requests": 30},
        "model": "opt-13b",
        "device": "a100-sxm-80gb",
        "policy": "vllm-v0",
        "step_time": {"model": "distserve-fit"},
        **keys,
    }
    path.write_text(yaml.safe_dump(said))
    return path


def test_a_config_may_choose_it(tmp_path: Path) -> None:
    path = config(tmp_path / "c.yaml", step_time={"model": "distserve_fit", "engine": "vllm"})
    arguments = ["--out", str(tmp_path / "o"), "--jobs", "1", "--figures", "none"]
    done = CliRunner().invoke(app, ["run", str(path), *arguments])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"device": "h100-sxm"}, "is of a100-sxm-80gb only, not of h100-sxm"),
        ({"tensor_parallel": 8}, "tensor_parallel 8 is not fitted"),
        ({"step_time": {"model": "distserve-fit", "engin": "vllm"}}, "try engine"),
        ({"precision": {"weights": "int8"}}, "16-bit weights"),
    ],
)
def test_a_config_that_it_does_not_fit_is_one_error(
    tmp_path: Path, keys: dict[str, object], said: str
) -> None:
    done = CliRunner().invoke(app, ["check", str(config(tmp_path / "c.yaml", **keys))])
    assert done.exit_code == 2, done.output
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_the_coefficients_are_those_of_the_source(shared: Path) -> None:
    import csv

    with (shared / "measured" / "distserve" / "fitted_step_times.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3 * len(FITS)
    parts = {"prefill": "prefill", "decoding_smallbs": "small", "decoding_largebs": "large"}
    for row in rows:
        fit = FITS[row["engine"], row["model"].removeprefix("facebook/"), int(row["tp"])]
        line = getattr(fit, parts[row["stage"]])
        assert (line.a_ms, line.b_ms, line.c_ms) == tuple(float(row[x]) for x in ("a_ms", "b", "c"))
        assert fit.large_batch == int(row["large_batch_threshold"])
