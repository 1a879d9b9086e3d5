"""What every command of the command line shares: one line on stderr, and an exit code."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from experiments.blocked import blocking_file
from sim.errors import BeyondTablesError, PhasewiseError, ProfileError, StuckError

FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130


def guarded(function: Callable[..., None]) -> Callable[..., None]:
    """End with one line on stderr and an exit code instead of a traceback."""

    @functools.wraps(function)
    def with_exit_code(*args: Any, **kwargs: Any) -> None:
        try:
            function(*args, **kwargs)
        except PhasewiseError as error:
            typer.echo(f"phasewise: {' '.join(str(error).split())}", err=True)
            raise typer.Exit(_exit_code(error)) from None
        except KeyboardInterrupt:
            typer.echo("phasewise: interrupted", err=True)
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            # Whoever read our output has left, as `head` does; Python must not flush to it at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except OSError as error:
            typer.echo(f"phasewise: {_said(error)}", err=True)
            misplaced = isinstance(error, FileExistsError | NotADirectoryError)
            raise typer.Exit(BAD_INPUT if misplaced else FAILED) from None

    return with_exit_code


def _said(error: OSError) -> str:
    """What the system refused; of a file in the place of a folder, that it is one."""
    if error.filename is None:
        return str(error.strerror or error)
    blocked = blocking_file(Path(os.fsdecode(error.filename)), error)
    return blocked or f"{error.filename}: {error.strerror or error}"


def _exit_code(error: PhasewiseError) -> int:
    from experiments.extras import UndrawnError
    from experiments.run import FailedRunError, InterruptedRunError

    if isinstance(error, InterruptedRunError):
        return INTERRUPTED
    if isinstance(error, FailedRunError):
        return BAD_INPUT if error.bad_input else FAILED
    if isinstance(error, BeyondTablesError):
        return BAD_INPUT
    return FAILED if isinstance(error, StuckError | ProfileError | UndrawnError) else BAD_INPUT
