"""How every view looks: accessible by axe in both colour schemes, whole on a narrow screen, and a picture of each.

MAPA_SCREENSHOTS=folder keeps the pictures.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.visit import VIEWS, Visit, visiting
from tests.dashboard_support import serving, simulated, some_run

LOOKS: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light"},
    "dark": {"color_scheme": "dark"},
    "narrow": {"viewport": {"width": 360, "height": 740}},
}
PLACES = ["runs", "compare", "help", *(f"{run}/{view}" for run in ("ended", "live") for view in VIEWS)]


@pytest.fixture(scope="module", params=list(LOOKS))
def window(
    chromium: Any, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[tuple[str, Visit]]:
    """A window of each look on a folder with a run that has ended, and one that has not."""
    runs = tmp_path_factory.mktemp("runs")
    simulated(runs, iterations=300).rename(runs / "ended")
    some_run(runs, "live")
    with serving(runs) as address, visiting(chromium) as visit:
        yield request.param, visit(address, **LOOKS[request.param])


@pytest.mark.parametrize("place", PLACES)
def test_a_view(window: tuple[str, Visit], place: str, screenshots: Path) -> None:
    look, visit = window
    visit.go(
        f"run/{place}" if "/" in place else "compare?run=ended&run=live" if place == "compare" else "runs"
    )
    if place == "help":
        visit.page.keyboard.press("?")
        visit.page.get_by_role("dialog").wait_for()
    else:
        visit.page.locator("main .view > *").last.wait_for(state="attached")
    try:
        assert visit.width <= visit.page.viewport_size["width"]
        visit.page.screenshot(path=screenshots / f"{place.replace('/', '-')}-{look}.png", full_page=True)
        assert look == "narrow" or serious(visit.page) == []
    finally:
        visit.page.keyboard.press("Escape")


def serious(page: Any) -> list[str]:
    """Return what axe finds to be serious or critical, and where."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="no axe (the extra `browser`)")
    found = axe.Axe().run(page).response
    assert found["passes"]  # axe has looked
    return [
        f"{finding['id']}: {[node['target'] for node in finding['nodes']][:5]}"
        for finding in found["violations"]
        if finding["impact"] in ("serious", "critical")
    ]


def test_axe_would_find_something(window: tuple[str, Visit]) -> None:
    _, visit = window
    visit.go("runs")
    visit.page.evaluate("() => { document.querySelector('main').append(document.createElement('button')); }")
    assert any(finding.startswith("button-name") for finding in serious(visit.page))
