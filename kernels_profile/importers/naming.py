"""Names of devices and models in other projects, and our sheets for them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from sim.errors import ConfigError, closest
from sim.specs import ModelSpec, device_names, load_device, load_model, model_names


@dataclass
class Naming:
    """Which sheet a name of the source stands for.

    Attributes:
        given: Sheets (or for models paths of a config.json) by the source's names.
        skip: The source's names of what is not wanted.
        of: Sheet of the device that all files are of, whatever they say; None for what they say.
        skipped: Names that were met and skipped.
    """

    given: Mapping[str, str] = field(default_factory=dict)
    skip: Collection[str] = ()
    of: str | None = None
    skipped: set[str] = field(default_factory=set)

    def device(self, name: str, known: Mapping[str, str] | None = None) -> str | None:
        """Name of the sheet of a device, None where it is to be skipped.

        Args:
            name: The source's name.
            known: Sheets by the source's names, where the two are unlike.

        Raises:
            ConfigError: it has no sheet.
        """
        if self.of is not None:
            return load_device(self.of).name
        if self._skipped(name):
            return None
        sheet = self.given.get(name, (known or {}).get(name, name))
        try:
            return load_device(sheet).name
        except ConfigError:
            raise ConfigError(self._unknown("device", name, sheet, device_names())) from None

    def model(self, name: str, known: Mapping[str, str] | None = None) -> ModelSpec | None:
        """Sheet of a model, None where it is to be skipped.

        Args:
            name: The source's name; an organisation before a slash does not matter.
            known: Sheets of equal shapes by the source's names, where the two are unlike.

        Raises:
            ConfigError: it has no sheet.
        """
        if self._skipped(name):
            return None
        short = name.rsplit("/", 1)[-1]
        sheet = self.given.get(name) or self.given.get(short) or (known or {}).get(short, name)
        try:
            return load_model(sheet)
        except ConfigError:
            raise ConfigError(self._unknown("model", name, sheet, model_names())) from None

    def _skipped(self, name: str) -> bool:
        skipped = name in self.skip or name.rsplit("/", 1)[-1] in self.skip
        if skipped:
            self.skipped.add(name)
        return skipped

    def _unknown(self, kind: str, name: str, sheet: str, sheets: Collection[str]) -> str:
        near = _nearest(sheet, sheets)
        hint = f"the nearest is {near}" if near else f"there are {', '.join(sorted(sheets))}"
        what = name if sheet == name else f"{name} (taken as {sheet})"
        other = "SHEET (or the path of its config.json)" if kind == "model" else "SHEET"
        return (
            f"{kind} {what} has no data sheet; {hint}. Say which it is by --name {name}={other}, "
            f"or leave it out by --skip {name}"
        )


def _nearest(name: str, sheets: Collection[str]) -> str | None:
    """The sheet of the most similar name; suffixes such as ``-instruct`` are tried without."""
    parts = name.lower().replace("_", "-").rsplit("/", 1)[-1].split("-")
    tried = ("-".join(parts[:size]) for size in range(len(parts), 0, -1))
    return next((near for part in tried if (near := closest(part, sheets))), None)
