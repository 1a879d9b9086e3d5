"""Which card is which, and one clear line where there is none."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from kernels_profile.profiler import device
from kernels_profile.profiler.effort import Effort
from kernels_profile.profiler.request import Request, dtypes_of, lay_out, shards_of
from sim.errors import ConfigError, ProfileError
from sim.specs import load_device

H200 = 150_754_820_096


@pytest.mark.parametrize(
    ("driver", "sheet"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm-40gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm-80gb"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA RTX A6000", "a6000"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000"),
        ("AMD Instinct MI300X", "mi300x"),
    ],
)
def test_a_card_is_known_by_name_and_memory(driver: str, sheet: str) -> None:
    memory = load_device(sheet).memory_bytes
    found = device.sheet_of(driver, round(memory * 0.98))
    assert found is not None
    assert found.name == sheet
    assert device.sheet_of(driver, memory // 2) is None


@pytest.mark.parametrize(
    "driver",
    ["NVIDIA GH200 480GB", "NVIDIA GB200", "NVIDIA H20", "NVIDIA H200 MIG 3g.71gb", "NVIDIA L40"],
)
def test_its_cousins_are_not_it(driver: str) -> None:
    for memory in (H200, load_device("b200").memory_bytes, load_device("l40s").memory_bytes):
        assert device.sheet_of(driver, memory) is None


def gpu(name: str = "NVIDIA H200", memory: int = H200, capability: str = "9.0") -> dict[str, Any]:
    return {"name": name, "memory_bytes": memory, "capability": capability, "l2_bytes": 50 * 2**20}


def test_auto_takes_the_card_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "read_gpu", gpu)
    found = device.find("auto")
    assert (found.kind, found.spec.name, found.l2_bytes) == ("cuda", "h200", 50 * 2**20)
    assert device.find("h200-sxm").spec.name == "h200"


def test_another_card_than_named_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "read_gpu", gpu)
    with pytest.raises(
        ProfileError, match=r"h100-sxm was asked for, but the GPU here is NVIDIA H200"
    ):
        device.find("h100-sxm")


def test_a_card_without_a_sheet_is_profiled_under_its_own_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        device, "read_gpu", lambda: gpu("NVIDIA GeForce RTX 3090", 25_000_000_000, "8.6")
    )
    found = device.find("auto")
    assert found.spec.name == "nvidia-geforce-rtx-3090"
    assert found.spec.fp8_flops is None
    plan = lay_out(Request(["llama-3.1-8b"], Path("x")), found, Effort())
    assert len(plan.points) > 500
    with pytest.raises(ProfileError, match="which no data sheet of ours describes"):
        device.find("rtx-4090")


def test_a_plan_needs_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def never() -> dict[str, Any]:
        raise AssertionError

    monkeypatch.setattr(device, "read_gpu", never)
    assert device.find("h200", plan_only=True).spec.name == "h200"


def test_an_unknown_device_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="device: h20 has no data sheet; did you mean h200"):
        device.find("h20", plan_only=True)
    with pytest.raises(ProfileError, match="device: cuda"):
        device.find("cuda", plan_only=True)
    with pytest.raises(ProfileError, match="is written by --device cpu"):
        device.find("cpu-interpreter", plan_only=True)


def test_without_torch_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ProfileError, match=r"needs torch, which is not installed: pip install"):
        device.find("auto")


def test_the_driver_is_asked_and_nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def answer(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        values = ["570.1", "P0", "1980 MHz", *["x"] * (len(device.QUERIES) - 3)]
        return subprocess.CompletedProcess(command, 0, stdout=", ".join(values) + "\n")

    monkeypatch.setattr(device.shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    monkeypatch.setattr(device.subprocess, "run", answer)
    said = device.driver_says()
    assert said["driver"] == "570.1"
    assert said["clocks"]["clocks.sm"] == "1980 MHz"
    assert [word.split("=")[0] for word in asked[0][1:]] == ["--query-gpu", "--format", "--id"]


def test_a_driver_that_lacks_a_field_is_asked_for_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        if "mig.mode.current" in command[1]:
            raise subprocess.CalledProcessError(2, command)
        return subprocess.CompletedProcess(command, 0, stdout="999.1, 345 MHz, 3201 MHz, 700 W\n")

    monkeypatch.setattr(device.shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    monkeypatch.setattr(device.subprocess, "run", answer)
    assert device.driver_says() == {
        "driver": "999.1",
        "clocks": {"clocks.sm": "345 MHz", "clocks.mem": "3201 MHz", "power.limit": "700 W"},
    }


def test_a_driver_that_does_not_answer_leaves_clocks_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(command: list[str], **_: Any) -> None:
        raise subprocess.CalledProcessError(1, command)

    monkeypatch.setattr(device.shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    monkeypatch.setattr(device.subprocess, "run", fails)
    assert device.driver_says() == {"clocks": "not known: nvidia-smi: CalledProcessError"}


def request(**changes: Any) -> Request:
    return Request(**{"models": ["llama-3.1-8b"], "out": Path("x"), **changes})


def found(name: str) -> device.Found:
    return device.Found("cuda", load_device(name))


def test_bad_requests_are_refused_in_a_line() -> None:
    with pytest.raises(ConfigError, match="model: lama-3 has no data sheet"):
        shards_of(request(models=["lama-3"]), False)
    with pytest.raises(ConfigError, match="models: none named"):
        shards_of(request(models=[]), False)
    with pytest.raises(ConfigError, match="tensor_parallel: 3 does not divide"):
        shards_of(request(tensor_parallel=[3]), False)
    with pytest.raises(ConfigError, match="far too many for the interpreter"):
        shards_of(request(), True)
    with pytest.raises(ConfigError, match="tiny is no model"):
        shards_of(request(models=["tiny"]), False)
    with pytest.raises(ConfigError, match="dtype: fp4 is not profiled; did you mean fp8"):
        dtypes_of(request(dtypes=["fp4"]), found("h200"))
    with pytest.raises(ConfigError, match="a100-sxm-80gb has no fp8 tensor cores"):
        dtypes_of(request(dtypes=["fp8"]), found("a100-sxm-80gb"))
    with pytest.raises(ConfigError, match="tables: liner is not known; did you mean linear"):
        lay_out(request(tables=["liner"]), found("h200"), Effort())


def test_fp8_is_measured_where_there_is_fp8() -> None:
    assert dtypes_of(request(), found("h200")) == ["bf16", "fp8"]
    assert dtypes_of(request(), found("a100-sxm-80gb")) == ["bf16"]
    assert dtypes_of(request(dtypes=["fp8"]), found("h200")) == ["bf16", "fp8"]


def test_the_command_in_a_profile_names_no_folder_of_this_machine() -> None:
    said = request(out=Path("/home/somebody/x"), budget_s=300.0).command
    assert said.startswith("phasewise profile run --device auto --models llama-3.1-8b")
    assert "--budget-s 300" in said
    assert "somebody" not in said
