"""Who has another project's profile can simulate at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from experiments.cli import app
from kernels_profile.importers import import_profile

SYSTEMS = {"a100-sxm-80gb": "a100_sxm", "h100-sxm": "h100_sxm", "h200": "h200_sxm"}
OTHERS = ("b200_sxm", "l40s", "rtx_pro_6000_server", *SYSTEMS.values())


def run(folder: Path, device: str, data: list[Path], tp: int = 1, **more: Any) -> Result:
    """Simulate a few requests with the tables in `data`."""
    config = {
        "workload": {"preset": "azure-conv-2023", "requests": 20},
        "model": "llama-3.1-8b",
        "device": device,
        "tensor_parallel": tp,
        "policy": "vllm-v1",
        "step_time": {"model": "profile", "data": [str(path) for path in data], **more},
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    arguments = ["--out", str(folder / "results"), "--jobs", "1", "--figures", "none"]
    return CliRunner().invoke(app, ["run", str(path), *arguments])


def origin(folder: Path) -> str:
    """What the run says of its step times."""
    [summary] = (folder / "results").rglob("summary.json")
    return json.dumps(json.loads(summary.read_text()))


def test_llmservingsims_rtx_4090_is_complete(shared: Path, tmp_path: Path) -> None:
    out, source = tmp_path / "data", shared / "measured" / "llmservingsim"
    import_profile("llmservingsim", source, out, skip=["RTXPRO6000"])

    done = run(tmp_path, "rtx-4090", [out])

    assert done.exit_code == 0, done.output
    assert "measured tables of rtx-4090: LLMServingSim" in origin(tmp_path)


def test_a_link_that_was_not_measured_is_one_error(shared: Path, tmp_path: Path) -> None:
    out, source = tmp_path / "data", shared / "measured" / "llmservingsim"
    import_profile("llmservingsim", source, out, skip=["RTX4090", "Qwen3-32B"])

    done = run(tmp_path, "rtx-pro-6000", [out], tp=2)

    assert done.exit_code == 2
    assert "rtx-pro-6000 (tensor_parallel 2): no table has collective all_reduce" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("tp", [1, 2])
def test_two_imports_complete_each_other(shared: Path, tmp_path: Path, tp: int) -> None:
    layers, links = tmp_path / "layers", tmp_path / "links"
    measured = shared / "measured"
    import_profile("llmservingsim", measured / "llmservingsim", layers, skip=["RTX4090"])
    others = [name for name in OTHERS if name != "rtx_pro_6000_server"]
    import_profile("aiconfigurator", measured / "aiconfigurator", links, skip=others)

    done = run(tmp_path, "rtx-pro-6000", [layers, links], tp)

    assert done.exit_code == 0, done.output
    assert "LLMServingSim, RTXPRO6000" in origin(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("device", SYSTEMS)
def test_aiconfigurators_cards_run_on_one_to_eight_gpus(
    shared: Path, tmp_path: Path, device: str
) -> None:
    out, source = tmp_path / "data", shared / "measured" / "aiconfigurator"
    import_profile("aiconfigurator", source, out, skip=set(OTHERS) - {SYSTEMS[device]})
    for tp in (1, 2, 4, 8):
        folder = tmp_path / f"tp{tp}"
        folder.mkdir()
        done = run(folder, device, [out], tp, missing="roofline")
        assert done.exit_code == 0, done.output
        assert "filled from roofline: elementwise" in origin(folder)
