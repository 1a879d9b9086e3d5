"""The plug-ins that a config names, built with checked options: policies, orders, routers, ..."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from experiments import options
from experiments.explain import placed
from experiments.names import canonical, suggestion, unknown
from experiments.schema import Named, Pool
from sim.autoscale import Autoscaler
from sim.cluster import Predictor
from sim.errors import ConfigError, PhasewiseError
from sim.migrator import Migrator
from sim.model_part import ModelPart, whole
from sim.policy import Policy, Router
from sim.queue import QueueOrder
from sim.roles import RoleSwitcher
from sim.specs import DeviceSpec, ModelSpec
from sim.step_time import LinearStepTime, StepTimeModel

if TYPE_CHECKING:
    from kernels_profile.host import HostOverhead

NEED_PREDICTOR = ("sjf", "srtf")
"""Orders that sort by predicted output."""


def policy(pool: Pool, where: str, folder: Path) -> Policy:
    """The policy of a pool's replicas.

    Args:
        pool: The pool.
        where: File and key, for messages.
        folder: Where a user's own module is looked for first.
    """
    from policies import POLICIES

    made = _named("policy", POLICIES, pool.policy, where, folder)
    if not isinstance(made, Policy):
        raise ConfigError(f"{where}: {pool.policy['name']} is no sim.policy.Policy; subclass that")
    return made


def order(pool: Pool, where: str, folder: Path) -> QueueOrder:
    """The order of the waiting queues of a pool."""
    from policies import ORDERS

    made: QueueOrder = _named("order", ORDERS, pool.order, where, folder)
    return made


def router(named: Named, where: str, folder: Path) -> Router:
    """A router, a new one for each pool: it may keep counts."""
    from policies import ROUTERS

    cls = options.find("router", _name("router", ROUTERS, named, where), ROUTERS, where, folder)
    chosen = {key: value for key, value in named.items() if key != "name"}
    for key in options.nested(cls):
        if key in chosen:
            chosen[key] = router(_as_named(chosen[key]), f"{where}.{key}", folder)
    made = options.build(cls, chosen, str(named["name"]), where)
    if not isinstance(made, Router):
        raise ConfigError(f"{where}: {named['name']} is no sim.policy.Router; subclass that")
    return made


def autoscaler(named: Named, where: str, folder: Path) -> Autoscaler:
    """What says how many replicas a pool should have."""
    from policies import AUTOSCALERS

    made = _named("autoscaler", AUTOSCALERS, named, where, folder)
    if not isinstance(made, Autoscaler):
        raise ConfigError(f"{where}: {named['name']} is no sim.autoscale.Autoscaler; subclass that")
    return made


def predictor(named: Named, where: str, folder: Path) -> Predictor:
    """The predictor of output lengths."""
    from policies import PREDICTORS

    made: Predictor = _named("predictor", PREDICTORS, named, where, folder)
    return made


def migrator(named: Named, where: str, folder: Path) -> Migrator:
    """What says which requests move."""
    from policies import MIGRATORS

    made = _named("migrator", MIGRATORS, named, where, folder)
    if not isinstance(made, Migrator):
        raise ConfigError(f"{where}: {named['name']} is no sim.migrator.Migrator; subclass that")
    return made


def role_switcher(named: Named, where: str, folder: Path) -> RoleSwitcher:
    """What says which pool needs a replica of the other."""
    from policies import ROLE_SWITCHERS

    made = _named("switcher", ROLE_SWITCHERS, named, where, folder)
    if not isinstance(made, RoleSwitcher):
        raise ConfigError(f"{where}: {named['name']} is no sim.roles.RoleSwitcher; subclass that")
    return made


def _named(kind: str, registry: Mapping[str, Any], named: Named, where: str, folder: Path) -> Any:
    name = _name(kind, registry, named, where)
    cls = options.find(kind, name, registry, where, folder)
    chosen = {key: value for key, value in named.items() if key != "name"}
    return options.build(cls, chosen, str(name), where)


def _name(kind: str, registry: Mapping[str, Any], named: Named, where: str) -> Any:
    name = named.get("name")
    if name is None:
        choices = ", ".join(sorted(registry))
        raise ConfigError(f"{where}.name: is required: which {kind}, one of {choices}")
    return name


def _as_named(said: Any) -> Named:
    """A name alone, or a name with options."""
    return said if isinstance(said, dict) else {"name": said}


# --- step times

_Maker = Callable[[Pool, ModelSpec, DeviceSpec, Named, str, ModelPart], StepTimeModel]


def step_time(
    pool: Pool,
    model: ModelSpec,
    device: DeviceSpec,
    where: str,
    folder: Path,
    part: ModelPart | None = None,
) -> StepTimeModel:
    """How long iterations of a pool's replicas take, or of one stage of them.

    Args:
        pool: The pool.
        model: Architecture.
        device: Data sheet.
        where: File and key, for messages.
        folder: Where tables are looked for first.
        part: The layers of the stage; None for all.
    """
    part = part or whole(model)
    name = pool.step_time.get("model")
    if not isinstance(name, str) or canonical(name) not in (*STEP_TIMES, "profile"):
        choices = (*STEP_TIMES, "profile")
        raise ConfigError(f"{where}.model: {unknown('step-time model', name, choices)}")
    chosen = {key: value for key, value in pool.step_time.items() if key != "model"}
    if canonical(name) == "profile":
        from experiments.step_times import profile

        return profile(pool, model, device, chosen, where, folder, part)
    return STEP_TIMES[canonical(name)](pool, model, device, chosen, where, part)


def _linear(
    pool: Pool, model: ModelSpec, device: DeviceSpec, chosen: Named, where: str, part: ModelPart
) -> StepTimeModel:
    """Coefficients are those of all layers: a stage has its layers' share of each, base_s too."""
    if not chosen:
        terms = ", ".join(options.names(LinearStepTime))
        raise ConfigError(f"{where}: linear needs coefficients in seconds: some of {terms}")
    linear: LinearStepTime = options.build(LinearStepTime, chosen, "linear", where)
    if not any(chosen.values()):
        given = ", ".join(f"{term}: {value:g}" for term, value in chosen.items())
        raise ConfigError(f"{where}: {given}: steps would take no time; give one of more than 0")
    if part.layers == model.layers:
        return linear
    share = part.layers / model.layers
    return replace(linear, **{term: getattr(linear, term) * share for term in chosen})


def _roofline(
    pool: Pool, model: ModelSpec, device: DeviceSpec, chosen: Named, where: str, part: ModelPart
) -> StepTimeModel:
    from kernels_profile.roofline import RooflineStepTime

    known = ["host", "efficiencies"]
    for key in chosen:
        if key not in known:
            hint = suggestion(key, known)
            raise ConfigError(f"{where}.{key}: roofline has no such option; {hint}")
    more: dict[str, Any] = {}
    if "host" in chosen:
        more["host"] = host(chosen["host"], f"{where}.host")
    if "efficiencies" in chosen:
        more["efficiencies"] = str(chosen["efficiencies"])
    try:
        return RooflineStepTime(
            model,
            device,
            precision=pool.precision.weights,
            kv_dtype=pool.precision.kv,
            tensor_parallel=pool.tensor_parallel,
            expert_parallel=pool.expert_parallel,
            data_parallel_attention=pool.data_parallel_attention,
            imbalance=pool.expert_imbalance.zipf,
            part=part,
            **more,
        )
    except PhasewiseError as error:
        raise ConfigError(placed(where, error)) from None


def _distserve_fit(
    pool: Pool, model: ModelSpec, device: DeviceSpec, chosen: Named, where: str, part: ModelPart
) -> StepTimeModel:
    from kernels_profile.distserve import DEVICE, DistServeStepTime

    if part.layers != model.layers:
        raise ConfigError(f"{where}: distserve-fit is of whole models; try pipeline_parallel: 1")

    for key in chosen:
        if key != "engine":
            raise ConfigError(
                f"{where}.{key}: distserve-fit has no such option; {suggestion(key, ['engine'])}"
            )
    if device.name != DEVICE:
        raise ConfigError(f"{where}: distserve-fit is of {DEVICE} only, not of {device.name}")
    if pool.precision.weights not in ("fp16", "bf16") or pool.precision.kv not in ("fp16", "bf16"):
        raise ConfigError(f"{where}: distserve-fit is of 16-bit weights and KV only")
    try:
        return DistServeStepTime(
            model.name, str(chosen.get("engine", "distserve")), pool.tensor_parallel
        )
    except PhasewiseError as error:
        raise ConfigError(placed(where, error)) from None


def host(said: object, where: str) -> HostOverhead:
    """Host time of each step: the name of a preset, or its terms."""
    from kernels_profile.host import HOSTS, HostOverhead

    if isinstance(said, Mapping):
        terms = {key: value for key, value in said.items() if key != "source"}
        given: HostOverhead = options.build(HostOverhead, terms, "host", where)
        return given
    if not isinstance(said, str) or canonical(said) not in HOSTS:
        raise ConfigError(f"{where}: {unknown('host preset', said, HOSTS)}")
    return HOSTS[canonical(said)]


STEP_TIMES: Mapping[str, _Maker] = MappingProxyType(
    {"linear": _linear, "roofline": _roofline, "distserve-fit": _distserve_fit}
)
"""Step-time models by name, `profile` aside, which needs a folder for its tables too."""
