"""The site: built with warnings as errors, every page within reach, nothing loaded from elsewhere, no old page."""

from __future__ import annotations

import re
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

import mapa
from cloud.stages import planned_stages
from experiments.reproduce.results_page import pages as result_pages
from experiments.reproduce.results_page import renewed, verdicts
from mapa.reference import scenario_page
from mapa.scenario_files import load_scenario
from tests.pages_support import ROOT
from tests.program_support import run_program

DOCS = ROOT / "docs"
PAGES = sorted(str(path.relative_to(DOCS).with_suffix("")) for path in DOCS.rglob("*.md"))
LOADED = {
    *((tag, "src") for tag in ("script", "img", "source", "iframe")),
    *((tag, "href") for tag in ("link", "use")),
}
# links that no browser follows
NOT_LOADED = {"canonical", "next", "prev", "search", "index", "author", "license"}
FROM_ELSEWHERE = re.compile(r"""(?:@import\s+|url\()["']?(?:https?:)?//[^"')\s]+""")


class Page(HTMLParser):
    """What a page links to, and what a browser loads for it."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.assets: list[str] = []
        self.ids: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {key: value or "" for key, value in attrs}
        self.ids.add(given.get("id", ""))
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if not (tag == "link" and set(given.get("rel", "").split()) <= NOT_LOADED):
            self.assets += [value for key, value in given.items() if (tag, key) in LOADED]


@cache
def read(path: Path) -> Page:
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("furo", reason="needs mapa-testbed[docs]")
    pytest.importorskip("myst_parser", reason="needs mapa-testbed[docs]")
    folder = tmp_path_factory.mktemp("site")
    built = folder / "html"
    options = ("-W", "--keep-going", "-n", "-q", "-d", folder / "trees")
    done = run_program(sys.executable, "-m", "sphinx", *options, DOCS, built)
    assert done.returncode == 0, done.stderr[-4000:]
    assert not done.stderr.strip()
    return built


@pytest.mark.slow
@pytest.mark.xdist_group("docs-site")
def test_every_page_is_reached_from_the_first_by_the_navigation(site: Path) -> None:
    found, waiting = set[str](), ["index"]
    while waiting:
        name = waiting.pop()
        found.add(name)
        for link in read(site / f"{name}.html").links:
            target = urlsplit(link)
            if target.scheme or target.netloc or not target.path.endswith(".html"):
                continue
            path = (site / name).parent.joinpath(unquote(target.path)).resolve()
            linked = str(path.relative_to(site.resolve()).with_suffix(""))
            if linked not in found and linked not in waiting:
                waiting.append(linked)
    assert set(PAGES) <= found
    sidebar = (site / "index.html").read_text(encoding="utf-8")
    listed = {name for name in PAGES if f'href="{name}.html"' in sidebar}
    assert set(PAGES) - listed <= {"index"}, "not in the navigation of the first page"


@pytest.mark.slow
@pytest.mark.xdist_group("docs-site")
def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > len(PAGES)
    for path in pages:
        for asset in read(path).assets:
            target = urlsplit(asset)
            assert not target.netloc, f"{path.name} loads {asset}"
            if target.path and target.scheme != "data":
                assert (path.parent / unquote(target.path)).exists(), f"{path.name}: {asset} is missing"
    for path in [*site.rglob("*.html"), *site.rglob("*.css"), *site.rglob("*.svg")]:
        assert not FROM_ELSEWHERE.search(path.read_text(encoding="utf-8")), path


@pytest.mark.slow
@pytest.mark.xdist_group("docs-site")
def test_every_link_within_the_site_has_its_target_and_its_heading(site: Path) -> None:
    for path in (site / f"{name}.html" for name in PAGES):
        for link in read(path).links:
            target = urlsplit(link)
            if target.scheme or target.netloc:
                continue
            there = path.parent.joinpath(unquote(target.path)).resolve() if target.path else path
            assert there.exists(), f"{path.name}: {link}"
            if target.fragment and there.suffix == ".html":
                assert unquote(target.fragment) in read(there).ids, f"{path.name}: {link}"


@pytest.mark.slow
@pytest.mark.xdist_group("docs-site")
def test_the_python_reference_has_every_public_name_with_words(site: Path) -> None:
    ids = read(site / "api.html").ids
    assert {f"mapa.{name}" for name in mapa.__all__} <= ids


def test_the_scenario_page_is_that_of_the_schema_and_says_what_every_key_means() -> None:
    page = (DOCS / "scenario.md").read_text(encoding="utf-8")
    assert page == scenario_page(), "run: python -m mapa.reference docs"
    assert "|  |\n" not in page, "a key without a description"


def test_the_results_are_those_of_their_files() -> None:
    for page in result_pages(DOCS):
        text = page.read_text(encoding="utf-8")
        assert text == renewed(text, DOCS), "run: python -m experiments.reproduce.results_page docs"
    assert len(verdicts(DOCS)) == 33


def words_of(figure: str) -> list[str]:
    """Return the texts of a drawn figure, in order."""
    return re.findall(r">([^<]+)</text>", (DOCS / "figures" / figure).read_text(encoding="utf-8"))


def test_the_drawn_stages_are_those_of_the_schedule() -> None:
    _, scenario = load_scenario("quickstart")
    law = scenario.law(0)
    assert law is not None
    planned = planned_stages(law.relative_second_moment(785), scenario.problem)  # 28 × 28 weights and a bias
    titles = [
        f"Stage {stage.index}: updates {start} to {min(start + stage.length - 1, scenario.iterations):,},"
        f" C = {stage.clip:g}, γ = {stage.learning_rate:.4f}"
        for start, stage in planned
    ]
    assert [words for words in words_of("stages.svg") if words.startswith("Stage")] == titles


def test_the_drawn_asynchrony_is_that_of_a_simulation(tmp_path: Path) -> None:
    delays = {
        "kind": "lognormal",
        "compute": 0.02,
        "network": 0.004,
        "spread": 0.2,
        "speeds": [1.8, 1.3, 0.55],
    }
    changed: dict[str, Any] = {
        "edges": 3,
        "iterations": 9,
        "delays": delays,
        "evaluation": {"every": 0},
        "seed": 11,
    }
    updates = mapa.simulate("quickstart", runs_dir=tmp_path, progress=False, **changed).updates
    small = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
    bars = [
        f"on x{str(version).translate(small)}, τ = {t - version}"
        for version, t in zip(updates["version"].tolist(), updates["t"].tolist(), strict=True)
    ]
    assert [words for words in words_of("asynchrony.svg") if words.startswith("on ")][-len(bars) :] == bars
