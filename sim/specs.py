"""Data sheets of models and devices, and what follows from them: bytes, FLOPs and KV blocks.

The sheets lie in `specs/models/*.yaml` and `specs/devices/*.yaml`; each names the publication of
its numbers, the date, and for devices a second source that they were compared with. Sizes are
bytes, rates are bytes or FLOPs per second, bandwidths of links are for one direction, and peaks are
dense (without sparsity).
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.architecture import ModelSpec as ModelSpec
from sim.errors import ConfigError, nearest

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from sim.model_part import ModelPart

GIB = 2**30

WEIGHT_BITS = {"bf16": 16.0, "fp16": 16.0, "fp8": 8.0, "int8": 8.0, "int4": 4.15625}
"""Bits of one weight of a linear layer. int4 is AWQ or GPTQ in groups of 128: 4 bits, and for each
group a 16-bit scale and a 4-bit zero point (Lin et al. 2023, Frantar et al. 2022)."""

KV_BYTES = {"bf16": 2, "fp16": 2, "fp8": 1}
"""Bytes of one element of a key or value."""

ACTIVATION_RESERVE_BYTES = round(3.05 * GIB)
"""Memory of one GPU that is neither weights nor KV cache: 1.26 GiB of activations at their peak and
1.79 GiB outside the allocator (context, workspaces), as vLLM printed at its start with
Meta-Llama-3-8B on one H100 (vllm-project/vllm pull request 10511, December 2024)."""

ACTIVATION_RESERVE_PARALLEL_BYTES = round(4.84 * GIB)
"""The same with tensor parallelism: 1.26 + 3.58 GiB, from the same report with ``-tp 2``."""


@dataclass(frozen=True)
class DeviceSpec:
    """One accelerator as its data sheet describes it.

    Attributes:
        name: Name in a config.
        title: The vendor's name.
        memory_bytes: Memory as the driver reports it.
        memory_bytes_per_s: Peak bandwidth of that memory.
        bf16_flops: Dense peak, FLOPs per second; likewise `fp16_flops` and `fp8_flops`.
        fp16_flops: Dense peak.
        fp8_flops: Dense peak, None without fp8 tensor cores (then fp8 weights save only bytes).
        int8_ops: Dense peak, operations per second, None without.
        nvlink_bytes_per_s: Link to the other GPUs of its node (NVLink, Infinity Fabric), one
            direction, all links together; None where peers are reached over PCIe.
        pcie_bytes_per_s: Host link, one direction.
        power_w: Board power limit, watts.
        note: What a user should know.
        efficiencies_of: Device whose measured efficiencies stand for this one's, of the same chip
            or architecture; None where its own were measured, or none come near.
    """

    name: str
    title: str
    memory_bytes: int
    memory_bytes_per_s: float
    bf16_flops: float
    fp16_flops: float
    fp8_flops: float | None
    int8_ops: float | None
    nvlink_bytes_per_s: float | None
    pcie_bytes_per_s: float
    power_w: float
    note: str = ""
    efficiencies_of: str | None = None

    def peak_flops(self, precision: str) -> float:
        """Dense peak of the linear layers at a weight precision, FLOPs per second.

        int4 weights are multiplied in 16 bits, and so are fp8 ones where there are no fp8 cores.
        """
        native = {"fp16": self.fp16_flops, "fp8": self.fp8_flops, "int8": self.int8_ops}
        return native.get(_known("precision", precision, WEIGHT_BITS)) or self.bf16_flops

    @property
    def peer_bytes_per_s(self) -> float:
        """Bandwidth to another GPU of the node, one direction."""
        return self.nvlink_bytes_per_s or self.pcie_bytes_per_s


def model_names() -> list[str]:
    """Names of the models that have a sheet, sorted."""
    return sheet_names("models")


def device_names() -> list[str]:
    """Names of the devices that have a sheet, sorted."""
    return sheet_names("devices")


def load_model(name_or_path: str | Path) -> ModelSpec:
    """A model by name, or from a local Hugging Face ``config.json`` (or the folder that holds it).

    Case, underscores and an organisation before a slash do not matter in a name.

    Raises:
        ConfigError: no such sheet or file, or an architecture that is not described here.
    """
    text = str(name_or_path)
    path = Path(text)
    path = path / "config.json" if path.is_dir() else path
    if path.suffix == ".json":
        from sim.hf_config import model_from_config  # not needed by runs that name a model

        return model_from_config(path)
    return ModelSpec(**_sheet_fields(ModelSpec, "models", text))


def load_device(name: str) -> DeviceSpec:
    """A device by name; case and underscores do not matter.

    Raises:
        ConfigError: no such sheet.
    """
    return DeviceSpec(**_sheet_fields(DeviceSpec, "devices", name))


def check_tensor_parallel(model: ModelSpec, tp: int, data_attention: int = 1) -> None:
    """Refuse GPUs, or groups of them that attend apart, that do not divide the model's heads.

    Args:
        model: Architecture.
        tp: GPUs of a replica.
        data_attention: Equal groups of them, each of which attends its own requests.

    Raises:
        ConfigError: with the sizes that would do.
    """
    if tp > 0 and tp % data_attention:
        raise ConfigError(
            f"data_parallel_attention: {data_attention} does not divide the {tp} GPUs of "
            f"tensor_parallel; choose one of {', '.join(map(str, _divisors(tp)))}"
        )
    if not _divides(model, tp // data_attention):
        fits = ", ".join(
            str(n * data_attention) for n in (1, 2, 4, 8, 16, 32, 64) if _divides(model, n)
        )
        group = f" on each of {data_attention} groups" if data_attention > 1 else ""
        heads = "" if model.latent else f" query and {model.kv_heads} KV"
        raise ConfigError(
            f"tensor_parallel: {tp} does not divide the {model.heads}{heads} "
            f"heads of {model.name}{group}; choose one of {fits}"
        )


def check_experts(model: ModelSpec, tp: int, expert: int, data_attention: int = 1) -> None:
    """Refuse a spread of experts over GPUs that does not come out even.

    Args:
        model: Architecture.
        tp: GPUs of a replica.
        expert: Of them, how many hold experts of their own; ``tp / expert`` share each expert.
        data_attention: Groups of GPUs that attend apart.

    Raises:
        ConfigError: with the sizes that would do.
    """
    for key, value in (("expert_parallel", expert), ("data_parallel_attention", data_attention)):
        if value > 1 and not model.experts:
            raise ConfigError(f"{key}: {value}: {model.name} has no experts; more replicas do that")
    if expert > 1 and (tp % expert or model.experts % expert):
        fits = [n for n in _divisors(tp) if model.experts % n == 0]
        raise ConfigError(
            f"expert_parallel: {expert} does not divide both the {tp} GPUs of tensor_parallel and "
            f"the {model.experts} experts of {model.name}; choose one of "
            f"{', '.join(map(str, fits))}"
        )
    if data_attention > 1 and expert != tp:
        raise ConfigError(
            f"data_parallel_attention: {data_attention} sends tokens to the GPUs that hold their "
            f"experts: set expert_parallel to the {tp} GPUs of tensor_parallel, not {expert}"
        )


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def _divides(model: ModelSpec, tp: int) -> bool:
    # More GPUs than KV heads is fine where each head is repeated equally often.
    if tp < 1 or model.heads % tp:
        return False
    return model.kv_heads % tp == 0 or tp % model.kv_heads == 0


def weight_bits(precision: str) -> float:
    """Bits of one weight of a linear layer.

    Raises:
        ConfigError: an unknown precision.
    """
    return WEIGHT_BITS[_known("precision", precision, WEIGHT_BITS)]


def kv_heads_per_gpu(model: ModelSpec, tp: int) -> int:
    """KV heads that one of `tp` GPUs holds: at least one, repeated where there are fewer heads."""
    return max(1, model.kv_heads // tp)


def kv_bytes_per_token(model: ModelSpec, kv_dtype: str = "bf16", tp: int = 1) -> int:
    """Bytes of keys and values of one token in all layers, on one of `tp` GPUs.

    With ``tp=1`` it is what the whole model keeps, and what a transfer between replicas moves. A
    latent (DeepSeek) serves all heads, so that every GPU keeps all of it.
    """
    check_tensor_parallel(model, tp)
    element = KV_BYTES[_known("kv_dtype", kv_dtype, KV_BYTES)]
    if model.latent:
        return model.layers * model.kv_width * element
    return 2 * model.layers * kv_heads_per_gpu(model, tp) * model.head_dim * element


def weight_bytes(
    model: ModelSpec,
    precision: str = "bf16",
    tp: int = 1,
    data_attention: int = 1,
    part: ModelPart | None = None,
) -> int:
    """Bytes of the weights that one of `tp` GPUs holds.

    Linear layers, embedding and LM head are cut; KV projections are repeated where `tp` exceeds the
    KV heads, and those to latents on every GPU; norms, biases and routers are on every GPU. With
    `data_attention` groups each of them holds all but the routed experts, which are spread over all
    GPUs. (Whether each GPU holds some experts, or a part of all, makes no difference.) Only linear
    layers are quantised. The copies of latent projections that an engine may keep in 16 bits beside
    quantised ones are not counted. With `part`, those of one pipeline stage (the last norm and
    learned positions, which are small, counted on every stage).
    """
    check_tensor_parallel(model, tp, data_attention)
    matrices = 1 if model.tied_embeddings else 2
    if part is not None:
        matrices, model = part.embeddings(model), part.of(model)
    group = tp // data_attention
    routed = model.routed_weights
    cut = model.linear_weights - routed + model.layers * repeated_weights(model, group)
    linear = (data_attention * cut + routed) / tp
    embeddings = data_attention * model.vocab * model.hidden * matrices
    return math.ceil(
        linear * weight_bits(precision) / 8 + 2 * (embeddings / tp + model.small_parameters)
    )


def repeated_weights(model: ModelSpec, tp: int) -> int:
    """Weights of one layer's attention that `tp` GPUs hold in all, beyond those of the model."""
    if model.latent:
        return (tp - 1) * model.latent_down_weights
    return 2 * (kv_heads_per_gpu(model, tp) * tp - model.kv_heads) * model.head_dim * model.hidden


def activation_reserve_bytes(tp: int) -> int:
    """The reserve that applies where a config states none (see the constants for its origin)."""
    return ACTIVATION_RESERVE_BYTES if tp == 1 else ACTIVATION_RESERVE_PARALLEL_BYTES


def kv_blocks(
    model: ModelSpec,
    device: DeviceSpec,
    *,
    precision: str = "bf16",
    kv_dtype: str = "bf16",
    tp: int = 1,
    gpu_memory_utilization: float = 0.9,
    block_tokens: int = 16,
    reserve_bytes: int | None = None,
    data_attention: int = 1,
    part: ModelPart | None = None,
) -> tuple[int, str]:
    """KV blocks that fit on one GPU of a replica, and one sentence that says how that was computed.

    As vLLM sizes its cache (`determine_available_memory`): a share of the memory, less the weights,
    less what activations need. `reserve_bytes` is the last; None takes `activation_reserve_bytes`.
    With `data_attention` groups of GPUs, each keeps the KV of its own requests: the blocks of all.
    With `part`, on a GPU of one pipeline stage: its weights, and the KV of its layers.

    Raises:
        ConfigError: the weights do not fit, with the number of GPUs on which they would.
    """
    if not 0 < gpu_memory_utilization <= 1:
        raise ConfigError(
            f"gpu_memory_utilization: {gpu_memory_utilization} is not a share above 0 and at most 1"
        )
    stated = reserve_bytes is not None
    reserve = reserve_bytes if reserve_bytes is not None else activation_reserve_bytes(tp)
    usable = gpu_memory_utilization * device.memory_bytes
    weights = weight_bytes(model, precision, tp, data_attention, part)
    held = model if part is None else part.of(model)
    per_token = kv_bytes_per_token(held, kv_dtype, tp // data_attention)
    room = usable - weights - reserve
    blocks = int(room // (per_token * block_tokens))
    groups = f" in {data_attention} groups" if data_attention > 1 else ""
    groups += "" if part is None else f", {part.layers} of {model.layers} layers"
    terms = (
        f"{gpu_memory_utilization:g} x {device.memory_bytes / GIB:.2f} GiB of {device.name} "
        f"- {weights / GIB:.2f} GiB weights "
        f"({model.name} {precision}, tensor_parallel {tp}{groups}) "
        f"- {reserve / GIB:.2f} GiB activation reserve ({'given' if stated else 'default'})"
    )
    if blocks < 1:
        others = (precision, kv_dtype, gpu_memory_utilization, block_tokens, reserve_bytes)
        raise ConfigError(
            f"kv: no room for KV blocks: {terms} leaves {room / GIB:.2f} GiB; "
            + _gpus_that_would_do(model, device, *others, data_attention, part)
        )
    each = f" ({blocks} on each group)" if data_attention > 1 else ""
    return data_attention * blocks, (
        f"{data_attention * blocks} blocks of {block_tokens} tokens{each}: {terms} "
        f"= {room / GIB:.2f} GiB, at {per_token} bytes a token ({kv_dtype} KV)"
    )


def _gpus_that_would_do(
    model: ModelSpec,
    device: DeviceSpec,
    precision: str,
    kv_dtype: str,
    utilization: float,
    block_tokens: int,
    reserve_bytes: int | None,
    data_attention: int,
    part: ModelPart | None,
) -> str:
    held = model if part is None else part.of(model)
    for group in (1, 2, 4, 8, 16, 32, 64):
        tp = group * data_attention
        if not _divides(model, group):
            continue
        reserve = reserve_bytes if reserve_bytes is not None else activation_reserve_bytes(tp)
        weights = weight_bytes(model, precision, tp, data_attention, part)
        room = utilization * device.memory_bytes - weights - reserve
        if room >= block_tokens * kv_bytes_per_token(held, kv_dtype, group):
            return f"it would fit on tensor_parallel: {tp}"
    return "it fits on no number of them"


def _known(key: str, value: str, choices: Mapping[str, object]) -> str:
    if value not in choices:
        raise ConfigError(f"{key}: {value} is not known{nearest(value, choices)}")
    return value


def _sheets(kind: str) -> Traversable:
    return files("sim").joinpath("specs", kind)


def sheet_names(kind: str) -> list[str]:
    """Names of the sheets of a kind (a folder of `specs`), sorted."""
    names = (entry.name for entry in _sheets(kind).iterdir())
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml"))


def read_sheet(kind: str, name: str) -> dict[str, Any]:
    """A sheet as it stands in its file."""
    text = _sheets(kind).joinpath(f"{name}.yaml").read_text(encoding="utf-8")
    return copy.deepcopy(_parsed(text))


@functools.cache
def _parsed(text: str) -> dict[str, Any]:
    """Each variant of a config asks for the same sheets several times."""
    # Imported here: a run that names no model or device must not pay for a YAML parser.
    import yaml

    sheet: dict[str, Any] = yaml.safe_load(text)
    return sheet


def _sheet_fields(cls: type, kind: str, name: str) -> dict[str, Any]:
    wanted = sheet_key(name).rsplit("/", 1)[-1]
    sheet = find_sheet(kind, wanted)
    if sheet is None:
        names = sheet_names(kind)
        what = kind.removesuffix("s")
        hint = " (or the path of a config.json)" if kind == "models" else ""
        raise ConfigError(f"{what}: {name} has no data sheet{hint}{nearest(wanted, names)}")
    known = {f.name for f in fields(cls)}
    return {key: value for key, value in sheet.items() if key in known}


def sheet_key(name: str) -> str:
    """A name as files of sheets are named: case and underscores do not matter."""
    return name.strip().lower().replace("_", "-")


def find_sheet(kind: str, wanted: str) -> dict[str, Any] | None:
    """The sheet with a name or an alias, as `sheet_key` has it; None if there is none."""
    names = sheet_names(kind)
    if wanted in names:
        return read_sheet(kind, wanted)
    for name in names:
        sheet = read_sheet(kind, name)
        if wanted in sheet.get("aliases", ()):
            return sheet
    return None
