"""Floors in every run of this test suite whose step times are the roofline's.

`watch` sees every result where it is made, by whichever test, and looks at the floors of its
requests (`experiments.floors`). A request that beats its own fails the test during which the run
was made; ``make test`` prints how many runs were looked at. Of variants that run in several
processes it sees the bundles; what a test starts as a process of its own it does not see.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from experiments.floors import KEYS, Served, floors_of


@dataclass(frozen=True)
class Seen:
    """What floors are made from, before there is a bundle.

    Attributes:
        config: The resolved experiment.
        requests: One row per request.
        replicas: In the order of their indices.
    """

    config: Mapping[str, Any]
    requests: Any
    replicas: Any


@dataclass
class HeldFloors:
    """What was seen so far.

    Attributes:
        runs: Runs whose floors were looked at.
        requests: TTFTs and TPOTs that have a floor, in these runs.
        breaches: One line for each run with a request that beat its own.
    """

    runs: int = 0
    requests: int = 0
    breaches: list[str] = field(default_factory=list)
    _configs: dict[int, tuple[Any, Mapping[str, Any]]] = field(default_factory=dict)

    def built(self, cluster: Any, config: Mapping[str, Any]) -> None:
        """Remember what a cluster was built from; the cluster is kept, so that its id stays."""
        if _is_roofline(config):
            if len(self._configs) > 64:
                self._configs.clear()
            self._configs[id(cluster)] = cluster, config

    def simulated(self, cluster: Any, result: Any) -> None:
        """Look at a result of a cluster that was built from a config, or by hand."""
        config = self._configs.get(id(cluster), (None, None))[1] or _config_of(cluster)
        if config is not None:
            self.look(Seen(config, result.requests, result.replicas))

    def look(self, run: Served) -> None:
        """Look at one run."""
        found = floors_of(run)
        self.runs += bool(found.values)
        self.requests += sum(int((floors >= 0).sum()) for floors in found.values.values())
        for key in KEYS:
            if found.beaten.get(key):
                self.breaches.append(
                    f"{found.beaten[key]} of {len(run.requests['index'])} requests beat their "
                    f"floor of {key} in a roofline run: {dict(run.config)}"
                )


def _is_roofline(config: Mapping[str, Any]) -> bool:
    pools = [config["pools"].get(role) for role in ("colocated", "prefill", "decode")]
    return all(pool["step_time"]["model"] == "roofline" for pool in pools if pool)


def _config_of(cluster: Any) -> dict[str, Any] | None:
    """As much of a config as floors need, of a cluster made by hand; None if not all roofline."""
    from kernels_profile.roofline import RooflineStepTime

    pools, names = {}, set()
    roles = {"replica": "colocated", "prefill": "prefill", "decode": "decode"}
    for pool in filter(None, (cluster.entry, cluster.decode)):
        times = {id(spec.step_time): spec.step_time for spec in pool.replicas}
        (time, *others) = times.values()
        if others or not isinstance(time, RooflineStepTime) or pool.name not in roles:
            return None
        names.add(time.model.name)
        pools[roles[pool.name]] = {
            "step_time": {"model": "roofline"},
            "device": time.device.name,
            "precision": {"weights": time.precision, "kv": time.kv_dtype},
            "tensor_parallel": time.tensor_parallel,
            "pipeline_parallel": 1,
            "data_parallel_attention": time.layout.data_attention,
            "expert_imbalance": {"zipf": time.layout.imbalance},
        }
    return {"model": names.pop(), "pools": pools} if len(names) == 1 else None


def watch(held: HeldFloors, patch: pytest.MonkeyPatch) -> None:
    """Have `held` see every run of this process from now on."""
    from experiments import bundle, cluster, workers
    from sim import event_loop

    def around(module: Any, name: str, see: Callable[..., None]) -> None:
        inner = getattr(module, name)

        @functools.wraps(inner)
        def seen(*args: Any, **kwargs: Any) -> Any:
            made = inner(*args, **kwargs)
            see(made, *args)
            return made

        patch.setattr(module, name, seen)

    def built(made: Any, experiment: Any, *_: Any) -> None:
        held.built(made.cluster, experiment.model_dump(mode="json", exclude_none=True))

    def ran_apart(made: None, jobs: Any, *_: Any) -> None:
        for job in jobs:
            config = job.experiment.model_dump(mode="json", exclude_none=True)
            if job.state == "finished" and _is_roofline(config):
                held.look(bundle.read(job.folder, with_steps=False))

    around(cluster, "build", built)
    around(workers, "run_apart", ran_apart)
    around(event_loop, "_result", lambda made, live, *_: held.simulated(live.spec, made))
