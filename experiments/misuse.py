"""What the command line was given and cannot take: one line on stderr and exit code 2.

Typer tells usage, a hint and the error on lines of their own. Here it is one line, as everywhere
else, such as ``phasewise run: --jobs: x: expected a whole number``. Its errors are told apart by
what they carry, as their classes are public in some versions only.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from experiments.explain import explain
from experiments.guard import BAD_INPUT, INTERRUPTED
from experiments.names import suggestion

_UsageError: Any = typer.BadParameter.__mro__[1]


class OneLineErrors(TyperGroup):
    """The root of the commands: tells what it and those below it cannot take in one line."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """See `TyperGroup.main`."""
        words = list(sys.argv[1:] if args is None else args)
        try:
            code = super().main(words, prog_name, complete_var, False, windows_expand_args, **extra)
        except _UsageError as error:
            if not standalone_mode:
                raise
            if type(error).__name__ == "NoArgsIsHelpError":  # it carries the whole help
                error.show()
            else:
                typer.echo(_line(self, words, error), err=True)
            sys.exit(BAD_INPUT)
        except typer.Abort:
            if not standalone_mode:
                raise
            typer.echo("phasewise: interrupted", err=True)
            sys.exit(INTERRUPTED)
        if standalone_mode:
            sys.exit(code if isinstance(code, int) else 0)
        return code


def _line(root: Any, words: Sequence[str], error: Any) -> str:
    """The whole line: the command that was asked for, and what is wrong."""
    command, path = root, ["phasewise"]
    for word in words:
        below = getattr(command, "commands", {})
        if word not in below:
            break
        command = below[word]
        path.append(word)
    return f"{' '.join(path)}: {' '.join(_said(command, error).split())}"


def _said(command: Any, error: Any) -> str:
    message = str(error.message)
    if hasattr(error, "possibilities"):
        name = error.option_name
        return f"{name}: no such option; {suggestion(name, _options(command))}"
    if hasattr(error, "option_name"):  # no value, too few of them, or one where none is taken
        return re.sub(r"^Option '([^']*)' (.*)\.$", r"\1: \2", message)
    if hasattr(error, "param_type"):
        return f"{_named(error.param)}: is missing{_lacking(error)}"
    if hasattr(error, "param") and error.param is not None:
        return f"{_named(error.param)}: {_refused(error)}"
    return _of_words(command, message)


def _lacking(error: Any) -> str:
    told = getattr(error.param, "help", None)
    return f": {told[0].lower()}{told[1:].rstrip('.')}" if told else ""


def _refused(error: Any) -> str:
    """Of a value that is none: what pydantic found (newer versions of Typer), or Click."""
    found = getattr(error.__cause__, "errors", None)
    return explain(found()) if found is not None else str(error.message).rstrip(".")


def _of_words(command: Any, message: str) -> str:
    """Of words that are no options."""
    commands = getattr(command, "commands", {})
    if unknown := re.match(r"No such command '(.*?)'", message):
        return f"{unknown[1]}: no such command; {suggestion(unknown[1], commands)}"
    if extra := re.match(r"Got unexpected extra argument\S* \((.*)\)$", message):
        takes = [p.name.upper() for p in command.params if p.param_type_name == "argument"]
        return f"{extra[1]}: unexpected; it takes {' '.join(takes) or 'no arguments'}"
    if message.startswith("Missing command"):
        return f"no command; choose one of {', '.join(sorted(commands))}"
    return message[:1].lower() + message[1:].rstrip(".")


def _named(param: Any) -> str:
    """An option as it is written, of an argument its name in capitals."""
    if param.param_type_name == "option":
        return str(max(param.opts, key=len))
    return str(param.name).upper()


def _options(command: Any) -> list[str]:
    return [
        "--help",
        *(o for p in command.params for o in (*p.opts, *p.secondary_opts) if o[0] == "-"),
    ]
