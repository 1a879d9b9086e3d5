"""Fixtures for what a machine may lack, the floors of every run, and an account of both.

`PHASEWISE_REQUIRE=shared,chromium,kernels,cluster` makes skips for want of these failures (CI sets
it).
`PHASEWISE_SHARED` names the folder of shared data; without it, `shared` beside the checkout.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NoReturn

import pytest

if TYPE_CHECKING:
    from tests.held_floors import HeldFloors

ROOT = Path(__file__).resolve().parent.parent
BYTECODE = ROOT / ".pytest_cache" / "bytecode"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def pytest_configure() -> None:
    """Commands that tests start find modules compiled, whatever the environment says: it is most
    of the time that a short command takes."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ.setdefault("PYTHONPYCACHEPREFIX", str(BYTECODE))


def go_without(resource: str, reason: str) -> NoReturn:
    """Skip the test for want of a resource, or fail it where `PHASEWISE_REQUIRE` names that."""
    required = os.environ.get("PHASEWISE_REQUIRE", "").replace(",", " ").split()
    if resource in required:
        pytest.fail(f"{reason}; PHASEWISE_REQUIRE names {resource}", pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def repository() -> Path:
    """Root of the checkout."""
    return ROOT


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder with the shared traces, measurements and reference simulator."""
    named = os.environ.get("PHASEWISE_SHARED")
    folder = Path(named) if named else ROOT.parent / "shared"
    if folder.is_dir():
        return folder.resolve()
    if named:
        pytest.fail(f"PHASEWISE_SHARED names {named}, which is not a folder", pytrace=False)
    go_without("shared", "no shared data beside the checkout (PHASEWISE_SHARED can name it)")


@pytest.fixture(scope="session")
def kernels() -> None:
    """Makes sure that torch and triton are there."""
    for name in ("torch", "triton"):
        if importlib.util.find_spec(name) is None:
            go_without("kernels", f"{name} is not installed (`make kernels` installs it)")


@pytest.fixture(scope="session")
def ray() -> ModuleType:
    """Ray, for tests that start clusters of their own."""
    if importlib.util.find_spec("ray") is None:
        go_without("cluster", "ray is not installed (`make cluster` installs it)")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    return importlib.import_module("ray")


@pytest.fixture(scope="session")
def interpreted(kernels: None) -> None:
    """Triton's CPU interpreter in this process.

    The variable counts when Triton is first imported, and holds for the whole process; test files
    therefore import kernels in functions only, and what compiles runs in a process without it
    (`tests.kernels_profile.kernels.native`).
    """
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.fail("triton was imported before TRITON_INTERPRET was set", pytrace=False)
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(scope="session")
def chromium() -> Path:
    """Executable of a Chrome or Chromium."""
    for name in BROWSERS:
        if found := shutil.which(name):
            return Path(found)
    go_without("chromium", f"no browser on the path (looked for {', '.join(BROWSERS)})")


@pytest.fixture(scope="session", autouse=True)
def held_floors() -> Iterator[HeldFloors]:
    """Floors of every run with roofline step times, whichever test makes it."""
    from tests.held_floors import HeldFloors, watch

    held = HeldFloors()
    with pytest.MonkeyPatch.context() as patch:
        watch(held, patch)
        yield held


@pytest.fixture(autouse=True)
def _floors_hold(held_floors: HeldFloors, request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail the test in which a request of a roofline run beat its floor."""
    yield
    if held_floors.runs:
        counts = json.dumps([held_floors.runs, held_floors.requests])
        request.node.user_properties.append(("floors", counts))
    breaches = list(held_floors.breaches)
    held_floors.runs = held_floors.requests = 0
    held_floors.breaches.clear()
    if breaches:
        pytest.fail("; ".join(breaches), pytrace=False)


LONGEST = (
    *("test_readme.py", "test_in_browser.py", "test_second_failures.py", "test_conformance.py"),
    *("test_packaging.py", "test_contributing.py", "test_capacity.py", "test_second.py"),
    *("test_config_odd_values.py", "test_cli.py", "test_policies.py", "test_attribution.py"),
    *("test_run_process.py", "test_cancellations.py", "test_replications.py", "test_coverage.py"),
    *("test_second_cached.py", "test_run.py", "test_sweep.py", "test_new.py"),
)
"""Files of tests, quick or slow, that take long."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first: of several processes none shall be left with one at the end.

    (A file runs in one process, so that what its tests share is made once: ``--dist loadfile``.)
    """
    order = {name: at for at, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path.name, len(order)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what the random workloads of this run covered, and what was skipped."""
    _say_what_was_covered(terminalreporter)
    _say_what_floors_held(terminalreporter)
    _say_what_was_skipped(terminalreporter)


def _say_what_was_covered(terminal: pytest.TerminalReporter) -> None:
    """Add up the counts of all conformance tests, whichever process ran them."""
    from tests.conformance.coverage import REQUIRED, Coverage

    total = Coverage()
    for report in terminal.stats.get("passed", []):
        for name, value in report.user_properties:
            if name == "coverage":
                total.merge(Coverage.from_json(value))
    if total.workloads:
        whole = "PHASEWISE_CONFORMANCE_N" in os.environ  # as `make conformance` sets it
        lines = total.report().splitlines()
        terminal.write_line("\n".join(lines if whole else lines[: 1 + len(REQUIRED)]))


def _say_what_floors_held(terminal: pytest.TerminalReporter) -> None:
    """In how many runs no request beat its floor, whichever process ran them."""
    counts = [
        json.loads(str(value))
        for report in terminal.getreports("")
        if report.when == "teardown"
        for name, value in report.user_properties
        if name == "floors"
    ]
    if counts:
        runs, floors = (sum(column) for column in zip(*counts, strict=True))
        terminal.write_line(f"floors: {floors:,} in {runs:,} roofline runs, as no request beats it")


def _say_what_was_skipped(terminal: pytest.TerminalReporter) -> None:
    reasons = Counter(_reason(report) for report in terminal.stats.get("skipped", []))
    for reason, count in reasons.most_common():
        terminal.write_line(f"skipped {count}: {reason}")
    if not reasons:
        terminal.write_line("skipped 0")


def _reason(report: pytest.TestReport) -> str:
    if isinstance(report.longrepr, tuple):  # (file, line, "Skipped: reason")
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    return "no reason given"
