"""Names of devices and models in other projects, and our sheets for them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from sim.errors import ConfigError, closest, nearest
from sim.specs import ModelSpec, device_names, load_device, load_model, model_names


@dataclass
class Naming:
    """Which sheet a name of the source stands for.

    Attributes:
        given: Sheets (or for models paths of a config.json) by the source's names.
        skip: The source's names of what is not wanted.
        of: Sheet of the device that all files are of, whatever they say; None for what they say.
        skipped: Names that were met and skipped.
        seen: All names that were met.
        sources: The source's devices whose rows are kept, by the sheet that they are taken for.
        own: Those of them that would be taken for it without a word of the user.
    """

    given: Mapping[str, str] = field(default_factory=dict)
    skip: Collection[str] = ()
    of: str | None = None
    skipped: set[str] = field(default_factory=set)
    seen: set[str] = field(default_factory=set)
    sources: dict[str, set[str]] = field(default_factory=dict)
    own: set[str] = field(default_factory=set)

    def device(self, name: str, known: Mapping[str, str] | None = None) -> str | None:
        """Name of the sheet of a device, None where it is to be skipped.

        Args:
            name: The source's name, "" where it says none.
            known: Sheets by the source's names, where the two are unlike.

        Raises:
            ConfigError: it has no sheet.
        """
        if self.skips(name):
            return None
        sheet = self._sheet(name, known)
        if name:
            self.sources.setdefault(sheet, set()).add(name)
        if (known or {}).get(name, name) == sheet:
            self.own.add(name)
        return sheet

    def pair(
        self,
        device: str,
        model: str,
        devices: Mapping[str, str] | None = None,
        models: Mapping[str, str] | None = None,
    ) -> tuple[str, ModelSpec] | None:
        """Sheets of a device and of the model profiled on it, None where either is skipped.

        Args:
            device: The source's name.
            model: Likewise.
            devices: Sheets by the source's names, where the two are unlike.
            models: Likewise.

        Raises:
            ConfigError: one has no sheet.
        """
        skipped = [self.skips(name) for name in (device, model)]
        if any(skipped):
            return None
        sheet, spec = self.device(device, devices), self.model(model, models)
        return None if sheet is None or spec is None else (sheet, spec)

    def check(self, path: object) -> None:
        """Refuse what was said in vain, and rows of several devices that would be one table.

        Args:
            path: Of the source, for messages.

        Raises:
            ConfigError: see above.
        """
        self._refuse_merged(path)
        short = {name.rsplit("/", 1)[-1] for name in self.seen}
        for option, names in (("--skip", self.skip), ("--name", self.given)):
            for name in names:
                if name not in self.seen | short:
                    hint = nearest(name, self.seen) if self.seen else "; its files name nothing"
                    raise ConfigError(f"{option} {name}: {path} has nothing of that name{hint}")

    def _refuse_merged(self, path: object) -> None:
        for sheet, names in self.sources.items():
            if len(names) < 2:
                continue
            kept = min(names & self.own or names)
            others = " ".join(f"--skip {name}" for name in sorted(names - {kept}))
            several = (
                "leave out --device for one data set each" if self.of else "do not name them alike"
            )
            raise ConfigError(
                f"{path}: has rows of several devices ({', '.join(sorted(names))}), and all would "
                f"be taken as {sheet}; {several}, or keep one of them, such as {kept}, by {others}"
            )

    def _sheet(self, name: str, known: Mapping[str, str] | None) -> str:
        if self.of is not None:
            return load_device(self.of).name
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
        if self.skips(name):
            return None
        short = name.rsplit("/", 1)[-1]
        sheet = self.given.get(name) or self.given.get(short) or (known or {}).get(short, name)
        try:
            return load_model(sheet)
        except ConfigError:
            raise ConfigError(self._unknown("model", name, sheet, model_names())) from None

    def skips(self, name: str) -> bool:
        """Whether something of the source is to be left out; its name counts as met."""
        if name:
            self.seen.add(name)
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
