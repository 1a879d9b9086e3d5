"""Data sheets of models and devices, and what follows from them: bytes, FLOPs and KV blocks.

The sheets lie in `specs/models/*.yaml` and `specs/devices/*.yaml`; each names the publication of
its numbers, the date, and for devices a second source that they were compared with. Sizes are
bytes, rates are bytes or FLOPs per second, bandwidths of links are for one direction, and peaks are
dense (without sparsity).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.errors import ConfigError, nearest

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

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
class ModelSpec:
    """Architecture of a decoder-only transformer; everything else is derived from it.

    Attributes:
        name: Name in a config.
        layers: Decoder layers.
        hidden: Width of the residual stream.
        heads: Query heads.
        kv_heads: Key-value heads (fewer than `heads` with grouped queries).
        head_dim: Width of one head.
        intermediate: Width of the MLP, of one expert where there are experts.
        vocab: Rows of the embedding, padding of the checkpoint included.
        max_positions: Longest context that the checkpoint allows, tokens.
        gated_mlp: Gate, up and down projections (Llama), or only up and down (OPT, BLOOM).
        experts: Experts of each MLP; 0 for a dense model.
        experts_per_token: Experts that one token is sent to.
        tied_embeddings: The LM head is the embedding.
        attention_bias: Biases of the attention: ``none``, ``qkv`` or ``all``.
        mlp_bias: The MLP has biases.
        norm_bias: Norms have a bias (LayerNorm) or none (RMSNorm).
        qk_norm: Queries and keys are normed per head (Qwen3).
        embedding_norm: The embedding is normed (BLOOM).
        position_rows: Rows of a learned position embedding (OPT), 0 for none.
        published_parameters: Total that the publisher states, 0 where unknown.
        published_exactly: That total is a count, not a rounded name.
        note: What a user should know.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    max_positions: int
    gated_mlp: bool = True
    experts: int = 0
    experts_per_token: int = 0
    tied_embeddings: bool = False
    attention_bias: str = "none"
    mlp_bias: bool = False
    norm_bias: bool = False
    qk_norm: bool = False
    embedding_norm: bool = False
    position_rows: int = 0
    published_parameters: int = 0
    published_exactly: bool = False
    note: str = ""

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ConfigError(
                f"{self.name}: heads {self.heads} is not a multiple of kv_heads {self.kv_heads}"
            )

    @property
    def mlp_matrices(self) -> int:
        """Matrices of one MLP or expert: 3 with a gate, else 2."""
        return 3 if self.gated_mlp else 2

    @property
    def attention_weights(self) -> int:
        """Weights of one layer's QKV and output projections, biases not counted."""
        return self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)

    @property
    def expert_weights(self) -> int:
        """Weights of one layer's MLP, or of one of its experts, biases not counted."""
        return self.mlp_matrices * self.hidden * self.intermediate

    @property
    def linear_weights(self) -> int:
        """Weights of all layers' linear projections: what quantisation makes smaller."""
        mlp = max(1, self.experts) * self.expert_weights
        return self.layers * (self.attention_weights + mlp)

    @property
    def parameters(self) -> int:
        """All parameters of the checkpoint."""
        embeddings = self.vocab * self.hidden * (1 if self.tied_embeddings else 2)
        return self.linear_weights + self.small_parameters + embeddings

    @property
    def active_parameters(self) -> int:
        """Parameters that one token is multiplied with (all but the unused experts)."""
        unused = max(0, self.experts - self.experts_per_token)
        return self.parameters - self.layers * unused * self.expert_weights

    @property
    def small_parameters(self) -> int:
        """Norms, biases, routers and learned positions: never cut or quantised here."""
        norm = self.hidden * (2 if self.norm_bias else 1)
        qkv = self.head_dim * (self.heads + 2 * self.kv_heads)
        layer = 2 * norm + self.hidden * self.experts
        layer += {"none": 0, "qkv": qkv, "all": qkv + self.hidden}[self.attention_bias]
        layer += (self.intermediate * (self.mlp_matrices - 1) + self.hidden) * self.mlp_bias
        layer += 2 * self.head_dim * self.qk_norm
        once = norm * (2 if self.embedding_norm else 1) + self.position_rows * self.hidden
        return self.layers * layer + once


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
    return _sheet_names("models")


def device_names() -> list[str]:
    """Names of the devices that have a sheet, sorted."""
    return _sheet_names("devices")


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


def check_tensor_parallel(model: ModelSpec, tp: int) -> None:
    """Refuse a tensor parallelism that does not divide the model's heads.

    Raises:
        ConfigError: with the sizes that would do.
    """
    if not _divides(model, tp):
        fits = ", ".join(str(n) for n in (1, 2, 4, 8, 16, 32, 64) if _divides(model, n))
        raise ConfigError(
            f"tensor_parallel: {tp} does not divide the {model.heads} query and {model.kv_heads} "
            f"KV heads of {model.name}; choose one of {fits}"
        )


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

    With ``tp=1`` it is what the whole model keeps, and what a transfer between replicas moves.
    """
    check_tensor_parallel(model, tp)
    element = KV_BYTES[_known("kv_dtype", kv_dtype, KV_BYTES)]
    return 2 * model.layers * kv_heads_per_gpu(model, tp) * model.head_dim * element


def weight_bytes(model: ModelSpec, precision: str = "bf16", tp: int = 1) -> int:
    """Bytes of the weights that one of `tp` GPUs holds.

    Linear layers, embedding and LM head are cut; KV projections are repeated where `tp` exceeds the
    KV heads; norms, biases and routers are on every GPU. Only linear layers are quantised.
    """
    check_tensor_parallel(model, tp)
    repeated = kv_heads_per_gpu(model, tp) * tp - model.kv_heads
    repeated_weights = model.layers * 2 * repeated * model.head_dim * model.hidden
    linear = (model.linear_weights + repeated_weights) / tp
    embeddings = model.vocab * model.hidden * (1 if model.tied_embeddings else 2) / tp
    return math.ceil(
        linear * weight_bits(precision) / 8 + 2 * (embeddings + model.small_parameters)
    )


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
) -> tuple[int, str]:
    """KV blocks that fit on one GPU of a replica, and one sentence that says how that was computed.

    As vLLM sizes its cache (`determine_available_memory`): a share of the memory, less the weights,
    less what activations need. `reserve_bytes` is the last; None takes `activation_reserve_bytes`.

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
    weights = weight_bytes(model, precision, tp)
    per_token = kv_bytes_per_token(model, kv_dtype, tp)
    room = usable - weights - reserve
    blocks = int(room // (per_token * block_tokens))
    terms = (
        f"{gpu_memory_utilization:g} x {device.memory_bytes / GIB:.2f} GiB of {device.name} "
        f"- {weights / GIB:.2f} GiB weights ({model.name} {precision}, tensor_parallel {tp}) "
        f"- {reserve / GIB:.2f} GiB activation reserve ({'given' if stated else 'default'})"
    )
    if blocks < 1:
        others = (precision, kv_dtype, gpu_memory_utilization, block_tokens, reserve_bytes)
        raise ConfigError(
            f"kv: no room for KV blocks: {terms} leaves {room / GIB:.2f} GiB; "
            + _gpus_that_would_do(model, device, *others)
        )
    return blocks, (
        f"{blocks} blocks of {block_tokens} tokens: {terms} = {room / GIB:.2f} GiB, "
        f"at {per_token} bytes a token ({kv_dtype} KV)"
    )


def _gpus_that_would_do(
    model: ModelSpec,
    device: DeviceSpec,
    precision: str,
    kv_dtype: str,
    utilization: float,
    block_tokens: int,
    reserve_bytes: int | None,
) -> str:
    for tp in (1, 2, 4, 8, 16, 32, 64):
        if not _divides(model, tp):
            continue
        reserve = reserve_bytes if reserve_bytes is not None else activation_reserve_bytes(tp)
        room = utilization * device.memory_bytes - weight_bytes(model, precision, tp) - reserve
        if room >= block_tokens * kv_bytes_per_token(model, kv_dtype, tp):
            return f"it would fit on tensor_parallel: {tp}"
    return "it fits on no number of them"


def _known(key: str, value: str, choices: Mapping[str, object]) -> str:
    if value not in choices:
        raise ConfigError(f"{key}: {value} is not known{nearest(value, choices)}")
    return value


def _sheets(kind: str) -> Traversable:
    return files("sim").joinpath("specs", kind)


def _sheet_names(kind: str) -> list[str]:
    names = (entry.name for entry in _sheets(kind).iterdir())
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml"))


def _read_sheet(kind: str, name: str) -> dict[str, Any]:
    # Imported here: a run that names no model or device must not pay for a YAML parser.
    import yaml

    text = _sheets(kind).joinpath(f"{name}.yaml").read_text(encoding="utf-8")
    sheet: dict[str, Any] = yaml.safe_load(text)
    return sheet


def _sheet_fields(cls: type, kind: str, name: str) -> dict[str, Any]:
    wanted = name.strip().lower().replace("_", "-").rsplit("/", 1)[-1]
    names = _sheet_names(kind)
    sheet = _read_sheet(kind, wanted) if wanted in names else _by_alias(kind, names, wanted)
    if sheet is None:
        what = kind.removesuffix("s")
        hint = " (or the path of a config.json)" if kind == "models" else ""
        raise ConfigError(f"{what}: {name} has no data sheet{hint}{nearest(wanted, names)}")
    known = {f.name for f in fields(cls)}
    return {key: value for key, value in sheet.items() if key in known}


def _by_alias(kind: str, names: list[str], wanted: str) -> dict[str, Any] | None:
    for name in names:
        sheet = _read_sheet(kind, name)
        if wanted in sheet.get("aliases", ()):
            return sheet
    return None
