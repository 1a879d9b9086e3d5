"""The command ``phasewise explain``: where the time of requests went, phase by phase."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.guard import guarded

if TYPE_CHECKING:
    from experiments.bundle import Bundle


@guarded
def explain(
    folder: Annotated[Path, typer.Argument(help="Results of one variant (a bundle).")],
    request: Annotated[
        int | None,
        typer.Argument(help="Index of a request in the trace, from 0. Default: the whole variant."),
    ] = None,
    worst: Annotated[
        tuple[str, int] | None,
        typer.Option(
            metavar="WHAT N", help="The N requests with the largest WHAT: ttft, itl or e2e."
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say where the time of a request went, to the nanosecond; or of the median and the P99.

    In a timeline each letter is a phase of the table; they stand in the order of the table, not in
    that in which they came.

    \b
    Examples:
      phasewise explain results/quickstart/vllm-v0
      phasewise explain results/quickstart/vllm-v0 17
      phasewise explain results/quickstart/vllm-v0 --worst ttft 3
      phasewise explain results/quickstart/vllm-v0 --worst itl 1 --json
    """
    from json import dumps

    from experiments import advice, attribution, story
    from sim.errors import ConfigError

    if request is not None and worst is not None:
        raise ConfigError(f"explain: request {request} and --worst {worst[0]}: give one of them")
    (found, folder), what = _only(folder), worst[0] if worst else "e2e"
    if not attribution.is_attributed(found.requests):
        raise ConfigError(
            f"{folder}: it was not recorded where time went; run it again with "
            "record.attribution: always"
        )
    if request is None and worst is None:
        blocks = found.summary.get("attribution", {})
        typer.echo(dumps(blocks, indent=1) if json else story.render_summary(blocks, found.label))
        return
    if request is not None:
        rows = [attribution.row_of(found.requests, request)]
    else:
        assert worst is not None
        rows = attribution.worst(found.requests, *worst)
        if 0 < len(rows) < worst[1]:
            requests = "request has" if len(rows) == 1 else "requests have"
            typer.echo(f"--worst {what} {worst[1]}: {len(rows)} {requests} {what}", err=True)
    setting = advice.setting_of(
        found.config, attribution.first_failure_ns(found.changes), found.summary.get("arithmetic")
    )
    if json:
        typer.echo(dumps([story.values_of(found.requests, row, setting) for row in rows], indent=1))
    else:
        texts = [story.render(found.requests, row, found.label, setting, what) for row in rows]
        typer.echo("\n\n".join(texts) or f"{found.label}: no request has {worst and worst[0]}")


def _only(folder: Path) -> tuple[Bundle, Path]:
    """The one variant in a folder, and where it is.

    Raises:
        ConfigError: There are several; they are named.
        BundleError: There is none, or it cannot be read.
    """
    from experiments import bundle
    from sim.errors import ConfigError

    found = bundle.find(folder)
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise ConfigError(
            f"{folder}: holds {len(found)} variants: {names}; name one, such as {found[0]}"
        )
    return bundle.read(found[0], with_steps=False), found[0]
