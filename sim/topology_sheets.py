"""Topology sheets: nodes as they are sold or were measured, for a config to name.

The sheets lie in `specs/topologies/*.yaml`, each number with its source. A latency or an
efficiency for which we have no source is not in a sheet: then bytes move at line rate, at once.
NVLink and PCIe are those of the device, unless a sheet says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sim.errors import ConfigError, nearest
from sim.specs import find_sheet, sheet_key, sheet_names


@dataclass(frozen=True)
class TopologySheet:
    """One kind of node with its NICs.

    Attributes:
        name: Name in a config.
        title: What it is, in one line.
        gpus_per_node: GPUs in a node.
        nics_per_node: NICs for transfers.
        nic: Keys ``bytes_per_s`` and, where known, ``latency_s`` and ``efficiency``.
        nvlink: The same of a GPU's NVLink port, what differs from its device's sheet.
        pcie: The same of its PCIe port.
        note: What a user should know.
        sources: Where each of these comes from.
    """

    name: str
    title: str
    gpus_per_node: int
    nics_per_node: int
    nic: Mapping[str, float]
    nvlink: Mapping[str, float]
    pcie: Mapping[str, float]
    note: str
    sources: Mapping[str, str]


def topology_names() -> list[str]:
    """Names of the topology sheets, sorted."""
    return sheet_names("topologies")


def load_topology(name: str) -> TopologySheet:
    """A sheet by name or alias; case and underscores do not matter.

    Raises:
        ConfigError: No such sheet.
    """
    wanted = sheet_key(name)
    sheet = find_sheet("topologies", wanted)
    if sheet is None:
        raise ConfigError(f"{name} is no topology sheet{nearest(wanted, topology_names())}")
    return _made(sheet)


def _made(sheet: Mapping[str, Any]) -> TopologySheet:
    return TopologySheet(
        name=sheet["name"],
        title=sheet["title"],
        gpus_per_node=sheet["gpus_per_node"],
        nics_per_node=sheet["nics_per_node"],
        nic=sheet["nic"],
        nvlink=sheet.get("nvlink", {}),
        pcie=sheet.get("pcie", {}),
        note=sheet.get("note", ""),
        sources=sheet["sources"],
    )
