"""A key that is not known: what owns it, where it belongs, and no words of ours in its path."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from experiments.config import load
from experiments.places import as_written, members, model_in
from experiments.schema import Experiment
from sim.errors import ConfigError

BASE = """
workload: {preset: azure-conv-2023, requests: 10, max_tokens: 64}
model: llama-3.1-8b
policy: sarathi
"""
POOLS = """
pools:
  prefill: {replicas: 1}
  decode: {replicas: 1}
  transfer: {bandwidth_bytes_per_s: 5e10}
"""
TOPOLOGY = "topology: {gpus_per_node: 4, nics_per_node: 1, nic: {bytes_per_s: 1e10}}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def _refusal(folder: Path, text: str, *settings: str) -> str:
    path = folder / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        load(path, settings)
    return str(error.value).removeprefix("c.yaml: ").removeprefix("--set: ")


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ("[{at: 1, what: fail}]", "events[0].at: an event has no such option; try at_s"),
        ("[{at_s: 1, wath: fail}]", "events[0].wath: an event has no such option; try what"),
        ("[{at_s: 1, what: fail, pol: decode}]", "events[0].pol: an event has no such option; "
         "try pool"),
        ("[{at_s: 1, what: fail, mtbf_s: 3}]", "events[0].mtbf_s: an event has no such option; "
         "write failures.mtbf_s"),
    ],
)  # fmt: skip
def test_the_entries_of_a_list_have_their_own_name(folder: Path, events: str, said: str) -> None:
    assert _refusal(folder, f"{BASE}{POOLS}events: {events}\n") == said


def test_a_group_of_nodes_has_its_own_name(folder: Path) -> None:
    said = _refusal(folder, BASE + TOPOLOGY, "topology.nodes=1", "topology.more_nodes=[{node: 2}]")
    assert said == "topology.more_nodes[0].node: a group of nodes has no such option; try nodes"


@pytest.mark.parametrize("link", ["nvlink", "pcie"])
@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("{bytes_per_s: 0}", ".bytes_per_s: 0: expected at least 1000"),
        ("{efficiency: 2}", ".efficiency: 2: expected at most 1"),
        ("{speed: 2}", ".speed: {link} has no such option; choose one of bytes_per_s, efficiency, "
         "latency_s"),
        ("non", ": non: expected none, or a mapping such as {{efficiency: 0.8}}"),
    ],
)  # fmt: skip
def test_a_link_is_named_as_it_is_written(folder: Path, link: str, value: str, said: str) -> None:
    refused = _refusal(folder, BASE + TOPOLOGY, f"topology.{link}={value}")
    assert refused == f"topology.{link}{said.format(link=link)}"


def test_members_of_a_union_are_told_together(folder: Path) -> None:
    assert _refusal(folder, BASE + "record: {attribution: 3}\n") == (
        "record.attribution: 3: expected true or false or always"
    )


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("pools.decode.model=qwen3-8b", "pools.decode.model: decode has no such option; write "
         "model at the top level: it is of the whole variant"),
        ("pools.decode.router=least-kv", "pools.decode.router: decode has no such option; write "
         "decode_router at the top level"),
        ("pools.prefill.router=least-kv", "pools.prefill.router: prefill has no such option; "
         "write router at the top level: it is of the whole variant"),
        ("pools.decode.workload.requests=3", "pools.decode.workload: decode has no such option; "
         "write workload at the top level: it is of the whole variant"),
        ("pools.hold_timeout_s=5", "pools.hold_timeout_s: pools has no such option; "
         "write pools.transfer.hold_timeout_s"),
        ("pools.policy=orca", "pools.policy: pools has no such option; "
         "write pools.prefill.policy and pools.decode.policy"),
        ("hold_timeout_s=5", "hold_timeout_s: a config has no such key; "
         "write pools.transfer.hold_timeout_s"),
        ("role_switching.switcher=pressure", "role_switching: a config has no such key; "
         "write pools.role_switching"),
        ("mixed_pool.max_prompt_tokens=4", "mixed_pool: a config has no such key; "
         "write pools.mixed_pool"),
        ("rate_per_s=4", "rate_per_s: a config has no such key; "
         "write workload.arrivals.rate_per_s"),
        ("num_blocks=4", "num_blocks: a config has no such key; write kv.num_blocks"),
    ],
)  # fmt: skip
def test_a_key_that_stands_elsewhere_is_sent_there(folder: Path, setting: str, said: str) -> None:
    assert _refusal(folder, BASE + POOLS, setting) == said


@pytest.mark.parametrize("value", ["a", "true", "{from: 1}", "1.5"])
def test_nodes_may_be_a_number_or_a_list(folder: Path, value: str) -> None:
    said = _refusal(folder, BASE + TOPOLOGY, f"nodes={value}")
    assert said.startswith("nodes: ")
    assert said.endswith(": expected the number of a node, or a list of them")


def _paths(model: type[BaseModel], above: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """All keys of a config, entries of lists and mappings included."""
    for name, field in model.model_fields.items():
        path = (*above, name)
        yield path
        inner = model_in(field.annotation)
        if inner is BaseModel:
            continue
        kinds = {getattr(each, "__origin__", each) for each in members(field.annotation)}
        entry = (0,) if list in kinds else ("any",) if dict in kinds else ()
        yield from _paths(inner, (*path, *entry))


@pytest.mark.parametrize("value", ["zz", -1e300, {"zz": 1}, ["zz"], True])
def test_no_path_names_a_member_of_a_union(value: object) -> None:
    checked = 0
    for path in _paths(Experiment, ()):
        nested: Any = value
        for part in reversed(path):
            nested = [nested] if part == 0 else {part: nested}
        try:
            Experiment.model_validate(nested)
        except ValidationError as error:
            places = {as_written(e["loc"]) for e in error.errors() if e["type"] != "missing"}
        for place in places:
            below = place[len(path) :]
            assert place[: len(path)] == path[: len(place)], (place, path)
            assert below in ((), ("zz",), (0,)), (place, path)
            checked += 1
    assert checked > 200
