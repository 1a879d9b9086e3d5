"""Messages call what ships by its name in a config, and somebody's own by its class."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any, cast

import pytest

import policies
import sim
from policies.orca import Orca
from sim.errors import ConfigError, called
from sim.pool import Pool
from sim.replica_spec import ReplicaSpec, refuse_company
from sim.step_time import LinearStepTime

SCALES = ("AUTOSCALERS", "ROLE_SWITCHERS", "MIGRATORS")
DICTS = ("POLICIES", "ROUTERS", "ORDERS", "PREDICTORS", *SCALES)
SHIPPED = [(name, cls) for each in DICTS for name, cls in getattr(policies, each).items()]


@pytest.mark.parametrize(("name", "cls"), SHIPPED, ids=[name for name, _ in SHIPPED])
def test_what_ships_has_its_name_in_a_config(name: str, cls: type) -> None:
    assert called(object.__new__(cls)) == name


def test_every_dict_of_names_is_among_them() -> None:
    found = {name for name, x in vars(policies).items() if isinstance(x, dict) and name.isupper()}
    assert found == set(DICTS)


class Mine(Orca):
    """Somebody's own, made of one that ships."""


def test_ones_own_is_called_by_its_class() -> None:
    assert called(Mine()) == "Mine"


@pytest.mark.parametrize("name", policies.POLICIES)
def test_a_refused_policy_is_named(name: str) -> None:
    policy = policies.POLICIES[name]()
    spec = ReplicaSpec(policy, 9, LinearStepTime(1, 1, 1))
    with pytest.raises(ConfigError, match=f"^policy {name}: not modelled on a decode replica"):
        refuse_company(spec, "decode")


@pytest.mark.parametrize("name", policies.ROUTERS)
def test_a_router_at_fault_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cls = policies.ROUTERS[name]
    monkeypatch.setattr(cls, "pick", lambda self, request, replicas: None)
    pool = object.__new__(Pool)
    pool.router = object.__new__(cls)
    with pytest.raises(ConfigError, match=f"^router {name} returned None, not a replica$"):
        pool.route(cast(Any, None), cast(Any, [None]))


PLUG_INS = {"policy", "router", "order", "predictor", "migrator", "autoscaler"}


def test_no_message_of_the_core_says_the_class_of_what_has_a_name() -> None:
    for path in sorted(Path(sim.__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr == "__name__":
                inside = ast.unparse(node.value).removeprefix("type(").removesuffix(")")
                last = inside.rpartition(".")[2].lstrip("_")
                assert last not in PLUG_INS, f"{path.name}:{node.lineno}: use sim.errors.called"
