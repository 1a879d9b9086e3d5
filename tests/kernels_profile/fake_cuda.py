"""A CUDA device that is none: what only a GPU executes runs on CPU tensors, kernels interpreted.

Tensors that are asked for on ``cuda`` come to lie on the CPU. A graph records what is launched
between the begin and the end of its capture, kernels and torch's operators alike, and a replay does
that again on the very same memory: so a value that was read while capturing is an old one in every
replay, as on a GPU. What a GPU refuses while capturing is refused here: waiting for the device, and
copying to or from the host.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

GIB = 2**30


class Device:
    """Its state.

    Attributes:
        capturing: The graph that records, if one does.
        launching: Within a kernel, whose own operators are not recorded.
        replays: Of all graphs.
        synchronized: How often the host waited.
    """

    def __init__(self) -> None:
        self.capturing: Graph | None = None
        self.launching = False
        self.replays = 0
        self.synchronized = 0

    def refuse_in_capture(self, what: str) -> None:
        """As CUDA does: the operation is not permitted when stream is capturing."""
        if self.capturing is not None and not self.launching:
            raise RuntimeError(f"CUDA error: {what} is not permitted when stream is capturing")


class Graph:
    """What was launched between `capture_begin` and `capture_end`."""

    device: Device

    def __init__(self) -> None:
        self.launched: list[Callable[[], object]] = []

    def capture_begin(self, pool: object = None, capture_error_mode: str = "global") -> None:
        """Record from now on."""
        assert self.device.capturing is None
        assert self.device.synchronized, "a capture is begun on an idle device"
        self.device.capturing = self

    def capture_end(self) -> None:
        """Record no more."""
        assert self.device.capturing is self
        self.device.capturing = None

    def replay(self) -> None:
        """Do again what was recorded."""
        self.device.refuse_in_capture("a replay")
        self.device.replays += 1
        for launch in self.launched:
            launch()


class Event:
    """The host's clock when it is recorded: nothing is queued here."""

    device: Device

    def __init__(self, enable_timing: bool = False) -> None:
        assert enable_timing
        self.at_s = 0.0

    def record(self, stream: object = None) -> None:
        """Now."""
        self.device.refuse_in_capture("an event with a time")
        self.at_s = time.perf_counter()

    def elapsed_time(self, other: Event) -> float:
        """Milliseconds."""
        return (other.at_s - self.at_s) * 1e3


class Stream:
    """Everything is in order on a CPU."""

    def wait_stream(self, other: object) -> None:
        """Nothing to wait for."""


@contextmanager
def fake_cuda(monkeypatch: pytest.MonkeyPatch, name: str = "NVIDIA H200") -> Iterator[Device]:
    """Within it torch has such a device, with the memory of an H200."""
    import torch

    from kernels_profile.kernels.launch import Launch

    device = Device()
    kinds = {kind: type(kind.__name__, (kind,), {"device": device}) for kind in (Graph, Event)}
    properties = SimpleNamespace(
        name=name, major=9, minor=0, total_memory=150_109_880_320, L2_cache_size=2**14,
        multi_processor_count=2,
    )  # fmt: skip

    def synchronize() -> None:
        device.refuse_in_capture("waiting for the device")
        device.synchronized += 1

    @contextmanager
    def capture(graph: Graph) -> Iterator[None]:
        synchronize()
        graph.capture_begin()
        try:
            yield
        finally:
            graph.capture_end()

    @contextmanager
    def on(stream: object) -> Iterator[None]:
        yield

    faked: dict[str, Any] = {
        "is_available": lambda: True,
        "get_device_properties": lambda device=0: properties,
        "get_device_name": lambda device=0: name,
        "get_device_capability": lambda device=0: (9, 0),
        "mem_get_info": lambda device=0: (139 * GIB, 140 * GIB),
        "memory_reserved": lambda: 0,
        "memory_allocated": lambda: 0,
        "empty_cache": lambda: None,
        "synchronize": synchronize,
        "current_stream": lambda: Stream(),
        "Stream": Stream,
        "stream": on,
        "Event": kinds[Event],
        "CUDAGraph": kinds[Graph],
        "graph": capture,
    }
    for attribute, value in faked.items():
        monkeypatch.setattr(torch.cuda, attribute, value)
    real = torch.Generator

    class Generator:  # a class, as torch has types of it
        def __new__(cls, where: str = "cpu") -> Any:
            return real("cpu")

    monkeypatch.setattr(torch, "Generator", Generator)
    for method in ("tolist", "item", "cpu", "numpy"):
        monkeypatch.setattr(torch.Tensor, method, _refused(device, method))
    run = Launch.run

    def launch(self: Launch) -> None:
        if device.capturing is not None:
            device.capturing.launched.append(lambda: launch(self))
        before, device.launching = device.launching, True
        try:
            run(self)
        finally:
            device.launching = before

    monkeypatch.setattr(Launch, "run", launch)
    with _moved(device), _recorded(device):
        yield device


def _refused(device: Device, method: str) -> Callable[..., Any]:
    import torch

    real = getattr(torch.Tensor, method)

    def called(self: torch.Tensor, *given: Any, **named: Any) -> Any:
        device.refuse_in_capture(f"Tensor.{method}")
        return real(self, *given, **named)

    return called


def _moved(device: Device) -> Any:
    """A mode in which ``cuda`` is the CPU."""
    import torch
    from torch.overrides import TorchFunctionMode

    class Moved(TorchFunctionMode):
        def __torch_function__(
            self, function: Any, types: Any, given: Any = (), named: Any = None
        ) -> Any:
            def here(value: Any) -> Any:
                if isinstance(value, str | torch.device) and str(value).startswith("cuda"):
                    device.refuse_in_capture("a copy from the host")
                    return "cpu"
                return value

            named = {name: here(value) for name, value in (named or {}).items()}
            return function(*map(here, given), **named)

    return Moved()


def _recorded(device: Device) -> Any:
    """A mode in which torch's own operators are recorded while a graph is captured."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Recorded(TorchDispatchMode):
        def __torch_dispatch__(
            self, operator: Any, types: Any, given: Any = (), named: Any = None
        ) -> Any:
            named = named or {}
            out = operator(*given, **named)
            if device.capturing is not None and not device.launching and not _only_memory(operator):
                device.capturing.launched.append(lambda: _again(operator, given, named, out))
            return out

    return Recorded()


def _only_memory(operator: Any) -> bool:
    """Whether it computes nothing: new memory, and views of what is there."""
    name = str(operator)
    return operator.is_view or "empty" in name or name in ("aten.detach.default",)


def _again(operator: Any, given: Any, named: Any, out: Any) -> None:
    result = operator(*given, **named)
    if result is not out:
        out.copy_(result)
