"""Chromium for each file of tests, and visits that end with: nothing left this host, the console is empty."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.visit import Opens, Visit, visiting
from tests.dashboard_support import serving, some_run

HERE = Path(__file__).parent
NAMES = ("chromium", "chromium-browser", "google-chrome")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """The browser of this machine; none is downloaded.

    Playwright keeps an event loop running in this thread: it must end before a test elsewhere starts one.
    """
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip("no Chromium on PATH (Debian: apt install chromium)")
    api = pytest.importorskip(
        "playwright.sync_api", reason="no playwright (pip install 'mapa-testbed[browser]')"
    )
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program)
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium: Any, address: str) -> Iterator[Opens]:
    """Open an address in a window of its own; what went wrong in it fails the test at its end.

    After `address`, so that windows are closed before the server is.
    """
    assert address
    with visiting(chromium) as open_one:
        yield open_one


@pytest.fixture
def first(visit: Opens, address: str, runs: Path) -> Opens:
    """Open a place of the page when a run, `first`, is there that has not ended."""

    def open_first(place: str, updates: int = 40, **looks: Any) -> Visit:
        some_run(runs, updates=updates)
        return visit(address, place, **looks)

    return open_first


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    folder.mkdir()
    return folder


@pytest.fixture
def address(runs: Path) -> Iterator[str]:
    with serving(runs) as found:
        yield found


@pytest.fixture(scope="session")
def screenshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pictures of every view go: MAPA_SCREENSHOTS, to look at them, or a folder that pytest clears away."""
    asked = os.environ.get("MAPA_SCREENSHOTS")
    folder = Path(asked) if asked else tmp_path_factory.mktemp("screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
