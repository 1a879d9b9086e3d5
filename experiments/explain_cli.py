"""The command ``phasewise explain``: where the time of requests went, phase by phase."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.guard import guarded

if TYPE_CHECKING:
    from experiments.advice import Setting
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
    token: Annotated[
        int | None,
        typer.Option(
            min=2, help="The gap before this token of the request, from 2. Simulates again."
        ),
    ] = None,
    gaps: Annotated[
        int | None,
        typer.Option(min=1, help="The longest gaps of the request, so many. Simulates again."),
    ] = None,
    timeline: Annotated[
        bool,
        typer.Option(
            "--timeline", help="The life of the request in the order of time. Simulates again."
        ),
    ] = False,
    files: Annotated[
        Path | None,
        typer.Option(
            help="To simulate again: where relative paths and modules of the config start. "
            "Default: the results' own folder; in any case then the working folder."
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say where the time of a request went, to the nanosecond; or of the median and the P99.

    In a bar each letter is a group of phases of the table; they stand in the order of the table,
    but with --timeline in that in which they came.

    Of single gaps between tokens the results keep the largest of each request. For others (--token,
    --gaps), and for --timeline, the run is simulated again, which takes as long as it took, and
    held against the results: it has to be the same run.

    \b
    Examples:
      phasewise explain results/quickstart/vllm-v0
      phasewise explain results/quickstart/vllm-v0 17
      phasewise explain results/quickstart/vllm-v0 --worst ttft 3
      phasewise explain results/quickstart/vllm-v0 --worst itl 1 --json
      phasewise explain results/quickstart/vllm-v0 17 --token 40
      phasewise explain results/quickstart/vllm-v0 17 --gaps 5
      phasewise explain results/quickstart/vllm-v0 17 --timeline
    """
    from json import dumps

    from experiments import advice, attribution, outages, story
    from sim.errors import ConfigError

    asked = {"--token": token, "--gaps": gaps, "--timeline": timeline or None}
    _check_asked(request, asked, files)
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
    down = outages.outages_of(found.config, found.changes, found.replicas)
    setting = advice.setting_of(found.config, down, found.summary.get("arithmetic"))
    if timeline:
        assert request is not None
        _life(found, folder, request, files, json=json)
        return
    if token is not None or gaps is not None:
        assert request is not None
        _single_gaps(found, folder, request, token, gaps, files, setting, json=json)
        return
    if json:
        typer.echo(dumps([story.values_of(found.requests, row, setting) for row in rows], indent=1))
    else:
        texts = [story.render(found.requests, row, found.label, setting, what) for row in rows]
        typer.echo("\n\n".join(texts) or f"{found.label}: no request has {worst and worst[0]}")


def _check_asked(request: int | None, asked: Mapping[str, int | None], files: Path | None) -> None:
    """Refuse options that need others, or stand for something else."""
    from sim.errors import ConfigError

    given = [name for name, value in asked.items() if value is not None]
    if len(given) > 1:
        raise ConfigError(f"explain: {' and '.join(given)}: give one of them")
    if given and request is None:
        raise ConfigError(f"explain: {given[0]}: of which request? Give its index")
    if files is not None and not given:
        raise ConfigError(f"explain: --files: only {', '.join(asked)} simulate again")
    if files is not None and not files.is_dir():
        raise ConfigError(f"explain: --files {files}: no such folder")


def _life(found: Bundle, folder: Path, request: int, files: Path | None, *, json: bool) -> None:
    from json import dumps

    from experiments import again, life
    from experiments.attribution import row_of

    row_of(found.requests, request)
    stretches = again.simulated_again(found, folder, files, follow=(request,)).lives[request]
    if json:
        typer.echo(dumps(life.values_of(stretches), indent=1))
    else:
        typer.echo(life.render(stretches, found.label, request))


def _single_gaps(
    found: Bundle,
    folder: Path,
    request: int,
    token: int | None,
    count: int | None,
    files: Path | None,
    setting: Setting,
    *,
    json: bool,
) -> None:
    from json import dumps

    from experiments import again
    from experiments.attribution import row_of

    row = row_of(found.requests, request)
    result = again.simulated_again(found, folder, files)
    if token is not None:
        split = again.gap_before(result, request, token)
        arrival_ns = int(found.requests["arrival_ns"][row])
        text = again.render_gap(split, arrival_ns, setting)
        typer.echo(dumps(again.values_of(split, setting), indent=1) if json else text)
        return
    assert count is not None
    every = again.gaps_of(result, request)
    those = again.longest(every, count)
    if json:
        typer.echo(dumps([again.values_of(split, setting) for split in those], indent=1))
    else:
        typer.echo(again.render_gaps(those, len(every), found, setting))


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
