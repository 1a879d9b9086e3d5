"""``phasewise profile ...``: measure kernels, import other projects' tables, look at what there is.

Heavy imports stay inside the commands.
"""

from __future__ import annotations

import typer

profile_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Measure kernels on a GPU, import measured tables, and look at them.",
)


@profile_app.callback()
def _group() -> None:
    """Commands about profiles."""
