"""Which GPU of a replica holds which keys and values, and what moves between two replicas' GPUs.

The rules:

1. The layers of a model lie on the pipeline stages in order. The GPUs of a stage form equal groups
   (data-parallel attention; one group without it); request i lies on group i mod groups. GPU r of
   the t GPUs of a group holds KV heads [r h / t, (r + 1) h / t) of h heads where t divides h. With
   more GPUs than heads it holds head floor(r h / t), so that t / h GPUs hold the same one. A latent
   (DeepSeek) counts as one head: every GPU of the group holds all of it.
2. A transfer brings to each GPU of the target what that GPU will hold, each head of each layer as a
   cell of its own; what several GPUs of the target hold is sent to each of them. A cell comes from
   a GPU of the source that holds it: of m GPUs of the target that hold a head, the k-th (k from 0,
   in order of rank) takes it from holder floor(k n / m) of the n on the source.
3. All cells between one GPU of the source and one of the target are one part of the transfer. Its
   bytes are tokens x cells x bytes of a cell, in the number format of the source.

So equal layouts send rank to rank; fewer ranks on the target merge flows, more split them. The
heads by rank are those of vLLM (``vllm/model_executor/layers/linear.py``, ``QKVParallelLinear``:
divided, or repeated in runs). That each rank fetches all that it holds, a latent whole and from one
rank, is how vLLM's connector for NIXL reads; engines that send a copy once and then spread it over
NVLink are not described.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from sim.errors import ConfigError


class Held(NamedTuple):
    """What one GPU holds of a request: layers and heads, each from first to before last."""

    gpu: int
    layers: range
    heads: range


class Part(NamedTuple):
    """What one GPU sends to another in one transfer.

    Attributes:
        source: Position among the GPUs of the source.
        target: Position among those of the target.
        cells: Heads times layers.
    """

    source: int
    target: int
    cells: int


@dataclass(frozen=True)
class KvShards:
    """How the keys and values of a replica lie on its GPUs.

    Attributes:
        stage_layers: Layers of each pipeline stage.
        tensor_parallel: GPUs of one stage.
        groups: Groups of the GPUs of a stage, each of which attends its own requests.
        heads: KV heads of the model; 1 for a latent.
        bytes_per_cell: Of one token, one head and one layer, keys and values.
    """

    stage_layers: tuple[int, ...]
    tensor_parallel: int
    groups: int
    heads: int
    bytes_per_cell: int

    def __post_init__(self) -> None:
        each = self.tensor_parallel // self.groups
        if self.tensor_parallel % self.groups or (self.heads % each and each % self.heads):
            raise ConfigError(
                f"tensor_parallel {self.tensor_parallel} in {self.groups} groups: does not divide "
                f"{self.heads} KV heads, nor they it"
            )

    @property
    def copies(self) -> int:
        """GPUs of a group and stage that hold the same head."""
        return max(1, self.tensor_parallel // self.groups // self.heads)

    @property
    def gpus(self) -> int:
        """GPUs of the replica."""
        return self.tensor_parallel * len(self.stage_layers)

    @property
    def bytes_per_token(self) -> int:
        """Keys and values of one token, each counted once."""
        return sum(self.stage_layers) * self.heads * self.bytes_per_cell

    def held(self, request: int) -> Iterator[Held]:
        """What each GPU that has a part in a request holds of it, in order of GPU."""
        each = self.tensor_parallel // self.groups
        first_rank = request % self.groups * each
        first_layer = 0
        for stage, layers in enumerate(self.stage_layers):
            of_stage = range(first_layer, first_layer + layers)
            first_layer += layers
            for rank in range(each):
                head = rank * self.heads // each
                heads = range(head, max(head + 1, (rank + 1) * self.heads // each))
                yield Held(stage * self.tensor_parallel + first_rank + rank, of_stage, heads)


def whole(bytes_per_token: int) -> KvShards:
    """All on one GPU."""
    return KvShards((1,), 1, 1, 1, bytes_per_token)


def parts_between(source: KvShards, target: KvShards, request: int) -> list[Part]:
    """What moves between the GPUs of two replicas of one model (rules 2 and 3).

    Args:
        source: Layout of the replica that sends.
        target: Layout of the replica that receives.
        request: Index of the request, which says in which groups it lies.
    """
    cells: dict[tuple[int, int], int] = {}
    copies: dict[tuple[int, int], int] = {}
    senders = list(source.held(request))
    for receiver in target.held(request):
        for head in receiver.heads:
            # A stage of the target has one holder k of the head for each of its copies.
            key = receiver.layers.start, head
            copy = copies[key] = copies.get(key, -1) + 1
            for layers, holders in _holders(senders, head):
                common = min(layers.stop, receiver.layers.stop) - max(
                    layers.start, receiver.layers.start
                )
                if common > 0:
                    pair = holders[copy * len(holders) // target.copies], receiver.gpu
                    cells[pair] = cells.get(pair, 0) + common
    return [Part(*pair, count) for pair, count in cells.items()]


def _holders(senders: list[Held], head: int) -> list[tuple[range, list[int]]]:
    """For each stage of the source, its layers and the GPUs that hold the head."""
    found: dict[range, list[int]] = {}
    for sender in senders:
        if head in sender.heads:
            found.setdefault(sender.layers, []).append(sender.gpu)
    return list(found.items())
