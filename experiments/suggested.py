"""Targets that presets suggest: what ``slo: preset`` stands for."""

from __future__ import annotations

from typing import Any

from sim.errors import ConfigError


def suggested_slo(workload: Any, where: str) -> dict[str, Any]:
    """The targets of the presets of a workload, class by class, as a config says them.

    Args:
        workload: As written, shorthand written out.
        where: File and key of ``slo``, for messages.

    Raises:
        ConfigError: None of its presets suggests any, or two suggest different ones for one class.
    """
    from traces.generators import GENERATORS

    sources = workload.get("mix") if isinstance(workload, dict) else None
    if not isinstance(sources, list):
        sources = [workload]
    classes: dict[str, dict[str, float]] = {}
    for source in sources:
        preset = source.get("preset") if isinstance(source, dict) else None
        name = preset.get("name") if isinstance(preset, dict) else None
        made = GENERATORS.get(name) if isinstance(name, str) else None
        if made is None or not made.slo:
            continue
        request_class = str(source.get("request_class") or made.request_class)
        targets = dict(made.slo)
        if classes.setdefault(request_class, targets) != targets:
            raise ConfigError(
                f"{where}: preset: two presets suggest different targets for class "
                f"{request_class}; give them classes of their own, or write the targets out"
            )
    if not classes:
        known = ", ".join(name for name, each in GENERATORS.items() if each.slo)
        raise ConfigError(
            f"{where}: preset: no preset of the workload suggests targets; those that do: {known}"
        )
    return {"classes": classes}
