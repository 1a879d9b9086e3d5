"""phasewise: replay a request trace through LLM-serving schedulers and compare their latencies.

In Python::

    import phasewise

    results = phasewise.run("quickstart", **{"workload.requests": 500})
    phasewise.metrics(results)["itl_s.p99"]     # a pandas data frame, one row per variant
    phasewise.figures(results)["itl"].show()    # plotly figures
    results.requests("sarathi")                 # a data frame, one row per request
"""

from __future__ import annotations

import gc
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from experiments.config import Plan
    from experiments.results import Results
    from experiments.validation.measured import Measurement
    from experiments.validation.own import ServerComparison

PACKAGES = ("sim", "policies", "traces", "kernels_profile", "experiments")
"""Our folders beside this file. Their names are common, so another package may stand before one."""
_OBJECTS_BETWEEN_COLLECTIONS = 300_000
"""In the command: more than it makes before it simulates, some 30 MB; Python's own are 700."""


def load(config: str | Path | Mapping[str, Any], **overrides: Any) -> Plan:
    """Read a config and resolve its variants, without running them.

    Args:
        config: A YAML file, the name of a shipped config, or the content as a mapping.
        **overrides: Keys set in every variant, nested (``policy={"budget_tokens": 256}``) or dotted
            (``**{"policy.budget_tokens": 256}``).

    Raises:
        sim.errors.ConfigError: One line with file, key, value and what would do.
    """
    check_shadowing()
    from experiments.config import load as resolve

    return resolve(config, overrides=overrides)


def run(
    config: str | Path | Mapping[str, Any] | Plan, *, shards: int = 1, **overrides: Any
) -> Results:
    """Run all variants of a config in this process; nothing is written.

    Args:
        config: As for `load`, or what it returned.
        shards: Processes that share the replicas of a variant, where replicas do not interact
            (`sim.shards`); the results are the same.
        **overrides: As for `load`; not with a plan that is resolved already.

    Raises:
        sim.errors.PhasewiseError: One line; the first variant that fails ends the run.
    """
    check_shadowing()
    from experiments.config import Plan
    from experiments.results import run_plan

    if not isinstance(config, Plan):
        config = load(config, **overrides)
    elif overrides:
        raise TypeError("overrides belong to load(): this plan is resolved already")
    return run_plan(config, shards)


def read(folder: str | Path) -> Results:
    """The results that ``phasewise run`` (or `Results.save`) left in a folder."""
    check_shadowing()
    from experiments.results import read as read_results

    return read_results(folder)


def compare_with_server(
    config: str | Path | Mapping[str, Any],
    measured: str | Path | Measurement,
    **options: Any,
) -> ServerComparison:
    """Simulate a config on the requests that a real server served, and compare the latencies.

    Args:
        config: As for `load`; its workload is replaced by the measured requests.
        measured: A file of ``vllm bench serve --save-result --save-detailed``, of SGLang or AIPerf,
            or a CSV.
        **options: ``fit_host=True`` fits the host's two constants; ``variant``, ``format``,
            ``columns``, ``run``, ``concurrency``: see
            `experiments.validation.own.compare_with_server`.

    Raises:
        sim.errors.ConfigError: One line: what is wrong with the config or the file.
    """
    check_shadowing()
    from experiments.validation.own import compare_with_server as compare

    return compare(config, measured, **options)


def metrics(results: Results) -> pd.DataFrame:
    """One row per variant: counts, verdict and every metric, named as in ``summary.json``."""
    return results.metrics()


def figures(results: Results, style: str = "slide", x_scale: str = "log") -> dict[str, go.Figure]:
    """CDFs of TTFT, TPOT, ITL, E2E and normalised latency, by metric, and the other figures."""
    return results.figures(style, x_scale)


def main() -> None:
    """Run the command ``phasewise``.

    Python would look for cycles among all objects a hundred times while modules are loaded, and
    again as it ends, which is a quarter of a second without a find.
    """
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    try:
        check_shadowing()
    except ImportError as error:
        sys.exit(f"phasewise: {error}")
    from experiments.cli import main as run_command

    try:
        run_command()
    finally:
        gc.freeze()


def __getattr__(name: str) -> Any:
    """``phasewise.__version__``, looked up when asked for: our packages may be shadowed."""
    if name != "__version__":
        raise AttributeError(f"module phasewise has no attribute {name}")
    check_shadowing()
    from experiments.version import __version__

    return __version__


def check_shadowing() -> None:
    """Make sure that each of `PACKAGES` would be imported from beside this file.

    Raises:
        ImportError: Another package of the same name comes first; one line that names both.
    """
    home = Path(__file__).resolve().parent
    for name in PACKAGES:
        found = _location(name)
        if found is None:
            raise ImportError(f"package {name} is missing: there is no {home / name}", name=name)
        if found != home / name:
            raise ImportError(
                f"package {name} is shadowed: Python finds {found} before {home / name}; "
                "run from another folder, or take that one off PYTHONPATH",
                name=name,
            )


def _location(name: str) -> Path | None:
    """Folder or file from which `import name` would take (or has taken) its module."""
    spec = importlib.util.find_spec(name)
    if spec is None:
        return None
    folders = list(spec.submodule_search_locations or ())
    place = folders[0] if folders else spec.origin
    return Path(place).resolve() if place else None
