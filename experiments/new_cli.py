"""The command ``phasewise new``: starting files of a policy or a router, which work as they are."""

from __future__ import annotations

import keyword
import re
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from experiments.guard import guarded
from sim.errors import ConfigError

new_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Write starting files: a policy or a router."
)

Name = Annotated[
    str,
    typer.Argument(
        help="Such as short_first: the module, and ShortFirst in it; hyphens become underscores."
    ),
]
Out = Annotated[Path, typer.Option(help="Folder to write to.")]

TEMPLATES = Path(__file__).with_name("templates")


@new_app.command()
@guarded
def policy(name: Name, out: Out = Path()) -> None:
    """Write a policy that works, its tests and a config that compares it.

    \b
    Examples:
      phasewise new policy short_first
      phasewise check-policy short_first:ShortFirst
    """
    _write("policy", name, out)


@new_app.command()
@guarded
def router(name: Name, out: Out = Path()) -> None:
    """Write a router that works, its tests and a config that compares it.

    \b
    Examples:
      phasewise new router near_cache
    """
    _write("router", name, out)


def _write(kind: str, name: str, out: Path) -> None:
    written = starting_files(kind, name, out)
    if (module := written[0].stem) != name:
        typer.echo(f"{name}: is {module} here, as modules of Python have no hyphens", err=True)
    for path in written:
        typer.echo(path)
    cls = class_name(module_name(kind, name))
    where = "" if out == Path() else f"cd {out}; "
    typer.echo(f"next: {where}phasewise check-policy {written[0].stem}:{cls}")
    typer.echo(f"      python -m pytest {written[1].name}")
    typer.echo(f"      phasewise run {written[2].name}")


def starting_files(kind: str, name: str, out: Path) -> list[Path]:
    """Write the module, its tests and a config.

    Args:
        kind: ``policy`` or ``router``.
        name: Of the module; hyphens become underscores.
        out: Folder, made if it is not there.

    Returns:
        The three files.

    Raises:
        ConfigError: The name is no name of a module, or is taken; a file is there already.
    """
    module = module_name(kind, name)
    values = {
        "name": module,
        "cls": class_name(module),
        "title": module.replace("_", " ").capitalize(),
    }
    files = {
        out / f"{module}.py": kind,
        out / f"test_{module}.py": f"{kind}_test",
        out / f"{module}.yaml": f"{kind}_config",
    }
    for path in files:
        if path.exists():
            raise ConfigError(f"{path}: is there already; give another name or --out")
    out.mkdir(parents=True, exist_ok=True)
    for path, template in files.items():
        text = (TEMPLATES / f"{template}.txt").read_text(encoding="utf-8")
        path.write_text(Template(text).substitute(values), encoding="utf-8")
    return list(files)


def module_name(kind: str, name: str) -> str:
    """The module of a name as the user wrote it.

    Raises:
        ConfigError: It cannot be one, or would hide another module.
    """
    import importlib.util

    module = name.replace("-", "_")
    if keyword.iskeyword(module) or keyword.iskeyword(class_name(module)):
        word = module if keyword.iskeyword(module) else class_name(module)
        raise ConfigError(
            f"new {kind}: {name!r}: {word} is a keyword of Python; try {module}_{kind}"
        )
    if not re.fullmatch(r"[a-z][a-z0-9_]*", module):
        raise ConfigError(
            f"new {kind}: {name!r}: expected small letters, digits and underscores, "
            "such as short_first"
        )
    if importlib.util.find_spec(module) is not None and not Path(f"{module}.py").exists():
        raise ConfigError(
            f"new {kind}: {name!r}: would hide the module of this name; try {module}_{kind}"
        )
    return module


def class_name(module: str) -> str:
    """``ShortFirst`` of ``short_first``."""
    return "".join(part.capitalize() for part in module.split("_"))
