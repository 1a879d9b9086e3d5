"""A launch specialises as Triton's own launcher does, and every choice is one that is compiled."""

from __future__ import annotations

import pytest

from tests.kernels_profile.kernels.native import run_native

pytestmark = [pytest.mark.kernels, pytest.mark.usefixtures("interpreted")]


CACHED = """
import os, pathlib, tempfile
os.environ["TRITON_CACHE_DIR"] = folder = tempfile.mkdtemp()
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from kernels_profile.kernels.activation import CONFIGS, plan_silu_mul
from kernels_profile.kernels.compiling import TARGETS, build
from kernels_profile.kernels.launch import meta
from kernels_profile.kernels.linear import LinearConfig, plan_linear

class Hopper:
    def get_current_device(self): return 0
    def get_current_stream(self, device): return 0
    def get_current_target(self): return GPUTarget("cuda", 90, 32)

def compiled(): return {path.parent.name for path in pathlib.Path(folder).rglob("*.cubin")}

small = LinearConfig(4, 2, 16, 16, 32, split_k=2)
launches = plan_linear(meta(1, 64), meta(32, 64), meta(1, 32), small)
launches += [plan_silu_mul(meta(3, 2 * n), meta(3, n), CONFIGS[0]) for n in (64, 35)]
for launch in launches:
    build(launch, TARGETS[1])
ahead = compiled()
driver.set_active(Hopper())
for launch in launches:
    launch.warm_up()
print(len(launches), len(ahead), len(compiled() - ahead))
"""


def test_what_is_compiled_ahead_is_what_a_launch_looks_for() -> None:
    done = run_native("-W", "ignore", "-c", CACHED)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["4", "4", "0"]


SPECIALISED = """
from kernels_profile.kernels.launch import meta
from kernels_profile.kernels.linear import CONFIGS, plan_linear
launch = plan_linear(meta(17, 4096), meta(4097, 4096), meta(17, 4097), CONFIGS[0])[0]
signature, constants, attributes = launch.specialisation()
names = list(signature)
print({key: value for key, value in signature.items() if value != "constexpr"})
print({names[index]: value for (index,), value in constants.items()})
print([names[index] for (index,) in attributes])
"""


def test_a_launch_marks_what_is_constant_and_what_is_a_multiple_of_16() -> None:
    done = run_native("-W", "ignore", "-c", SPECIALISED)
    assert done.returncode == 0, done.stderr
    types, constants, aligned = map(eval, done.stdout.splitlines())
    assert types == {
        "x": "*bf16", "w": "*bf16", "out": "*bf16", "m": "i32", "n": "i32", "k": "i32",
        "x_stride": "i32", "w_stride": "i32",
    }  # fmt: skip
    assert constants == {
        "x_scale": None, "w_scale": None, "EVEN_K": True, "X_ROWS": False, "W_ROWS": False,
        "UPCAST": False, "BLOCK_M": 16, "BLOCK_N": 64, "BLOCK_K": 128, "GROUP_M": 8, "SPLIT_K": 1,
    }  # fmt: skip
    assert aligned == ["x", "w", "out", "k", "x_stride", "w_stride"]


def test_choices_are_among_the_configurations_that_are_compiled() -> None:
    from kernels_profile.kernels import (
        activation,
        decode_attention,
        linear,
        norm,
        prefill_attention,
        rotary,
        sampling,
    )

    for tokens in (1, 16, 17, 64, 65, 512, 513, 8192):
        assert set(linear.choose(tokens, 4096, 4096)) <= set(linear.CONFIGS)
        assert set(linear.choose(tokens, 4096, 4096, fp8=True)) <= set(linear.CONFIGS_FP8)
        assert set(prefill_attention.choose(tokens)) <= set(prefill_attention.CONFIGS)
        assert set(decode_attention.choose(tokens)) <= set(decode_attention.CONFIGS)
        assert set(sampling.choose(tokens)) <= set(sampling.CONFIGS)
        assert set(rotary.choose(tokens)) == set(rotary.CONFIGS)
        assert set(activation.choose(tokens)) == set(activation.CONFIGS)
        assert set(norm.choose(tokens)) <= set(norm.CONFIGS)


def test_every_configuration_is_in_the_list_of_what_is_compiled() -> None:
    from kernels_profile.kernels import decode_attention, linear, norm, prefill_attention, sampling

    for module in (decode_attention, linear, norm, prefill_attention, sampling):
        compiled = {case.launch.config for case in module.compile_cases()}
        assert set(module.CONFIGS) <= compiled
    assert set(linear.CONFIGS_FP8) <= {case.launch.config for case in linear.compile_cases()}


def test_contexts_are_split_so_far_that_the_gpu_is_full_and_parts_are_not_tiny() -> None:
    from kernels_profile.kernels.decode_attention import MAX_SPLITS, choose_splits

    assert choose_splits(batch=1, kv_heads=8, max_context=200, sms=132) == 1
    assert choose_splits(batch=1, kv_heads=8, max_context=4096, sms=132) == 16
    assert choose_splits(batch=1, kv_heads=8, max_context=131_072, sms=132) == MAX_SPLITS
    assert choose_splits(batch=256, kv_heads=8, max_context=131_072, sms=132) == 1


def test_wrong_arguments_are_one_line() -> None:
    import torch

    from kernels_profile.kernels import decode_attention, linear, norm
    from sim.errors import ProfileError

    with pytest.raises(ProfileError, match="x has 4 inputs and w 5"):
        linear.linear(torch.zeros(2, 4), torch.zeros(3, 5))
    with pytest.raises(ProfileError, match=r"x is torch.float32 and w torch.float16"):
        linear.linear(torch.zeros(2, 4), torch.zeros(3, 4).half())
    with pytest.raises(ProfileError, match=r"width 40000 is not in 1..32768"):
        norm.choose(40_000)
    cache, table = torch.zeros(2, 16, 3, 8), torch.zeros(1, 2, dtype=torch.int32)
    with pytest.raises(ProfileError, match="4 heads are no multiple of 3 KV heads"):
        decode_attention.decode_attention(
            torch.zeros(1, 4, 8), cache, cache, table, table[0, :1], 1.0
        )


def test_fp8_is_refused_by_a_gpu_that_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from kernels_profile.kernels import linear
    from sim.errors import ProfileError

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100")
    with pytest.raises(ProfileError, match=r"NVIDIA A100 \(sm_80\) has no fp8 .* profile bf16"):
        linear.need_fp8(torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    linear.need_fp8(torch.device("cuda"))
