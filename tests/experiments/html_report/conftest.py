"""Reports to look at, and a browser to look with."""

from __future__ import annotations

import importlib.util
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from experiments import bundle
from experiments.config import load
from experiments.html_report.command import report
from experiments.run import jobs_of, run_jobs
from tests.conftest import go_without


def run_of(config: Any, folder: Path, *settings: str) -> list[Path]:
    """Run a config in this process; the folders of its bundles."""
    plan = load(config, list(settings))
    jobs = jobs_of(plan, folder)
    bundle.write_index(folder, [job.folder.name for job in jobs])
    run_jobs(jobs, plan, 1)
    assert [job.error for job in jobs if job.error] == []
    return bundle.find(folder)


def page_of(folders: list[Path], out: Path) -> Path:
    report(folders, out)
    return out


@pytest.fixture(scope="session")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a short quickstart."""
    folder = tmp_path_factory.mktemp("quickstart")
    return page_of(run_of("quickstart", folder, "workload.requests=300"), folder / "report.html")


class Browser:
    """A headless Chromium, and short words for what tests ask of it."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, page: Path, width: int = 1280, scheme: str = "light", media: str = "") -> None:
        """Open a page of some width; it has to say within a minute that it is drawn."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.command("Emulation.setEmulatedMedia", media="", features=features)
        self.command(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=False,
        )
        self.driver.get_log("browser")  # what a page before this one said
        self.driver.get(page.as_uri())
        self.until("return document.documentElement.dataset.ready === 'yes'")
        if media:
            self.command("Emulation.setEmulatedMedia", media=media, features=features)
            self.until("return document.documentElement.classList.contains('printing')")

    def command(self, name: str, **arguments: Any) -> Any:
        """A command of the DevTools protocol."""
        return self.driver.execute_cdp_cmd(name, arguments)

    def js(self, script: str, *arguments: Any) -> Any:
        """What a script returns."""
        return self.driver.execute_script(script, *arguments)

    def until(self, script: str, *arguments: Any) -> Any:
        """What a script returns as soon as that is true, within a minute."""
        end = time.monotonic() + 60
        while not (value := self.js(script, *arguments)):
            assert time.monotonic() < end, f"never true: {script}"
            time.sleep(0.05)
        return value

    def click(self, selector: str) -> None:
        """Click as a pointer does, on what is scrolled to the middle first."""
        found = self.driver.find_element("css selector", selector)
        self.js("arguments[0].scrollIntoView({block: 'center'})", found)
        found.click()

    def point_at(self, x: float, y: float) -> None:
        """Move the pointer to a place in the window."""
        for step in (2, 0):
            self.command("Input.dispatchMouseEvent", type="mouseMoved", x=x + step, y=y + step)

    def press(self, key: str) -> None:
        """Press a key, such as ``ArrowDown``, where the focus is."""
        text = {"text": key} if len(key) == 1 else {}
        self.command("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.command("Input.dispatchKeyEvent", type="keyUp", key=key)

    def complaints(self) -> list[str]:
        """What the console has said since the page was opened."""
        return [entry["message"] for entry in self.driver.get_log("browser")]


@pytest.fixture(scope="module")
def browser(chromium: Path) -> Iterator[Browser]:
    """One Chromium for the tests of a file; nothing is downloaded for it."""
    driver_path = shutil.which("chromedriver")
    if driver_path is None:
        go_without("chromium", "no chromedriver on the path (Debian: apt install chromium-driver)")
    if importlib.util.find_spec("selenium") is None:
        go_without("chromium", "selenium is not installed (pip install -e '.[dev]')")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(chromium)
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.add_argument("--host-resolver-rules=MAP * ~NOTFOUND")
    options.add_argument("--force-device-scale-factor=1")
    options.add_argument("--hide-scrollbars")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(driver_path))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
