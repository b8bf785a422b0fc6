"""The demonstration of `make run`: a stated budget, unlike links, and no number that was tuned on records."""

from __future__ import annotations

from mapa.scenario_files import load_scenario
from tests.program_support import ROOT


def test_it_has_a_stated_budget_and_five_edges_on_unlike_links() -> None:
    _, scenario = load_scenario("demo")
    privacy = scenario.privacy
    assert scenario.seed is None  # secure noise
    assert (privacy.noise, privacy.scope, privacy.total_epsilon, privacy.total_delta) == (
        "gaussian",
        "all",
        3.0,
        1e-5,
    )
    assert len({link.name for link in scenario.links}) == scenario.edges == 5
    assert privacy.releases is not None
    assert scenario.iterations == scenario.edges * (privacy.releases - 1) + 1
    assert scenario.algorithm.name == "tuning-free"
    assert not scenario.algorithm.rate  # 0 or none: by the rule
    assert scenario.model.options == {"bias": 0.1}  # as new scenarios have it


def test_its_first_line_says_what_it_is_and_is_the_only_one() -> None:
    """`mapa scenarios` shows the first line of a scenario's comment."""
    first, second = (ROOT / "mapa" / "scenarios" / "demo.toml").read_text(encoding="utf-8").splitlines()[:2]
    assert first.startswith("# ")
    assert "ε = 3" in first
    assert not second.startswith("#")


def test_make_run_shows_it_with_the_page() -> None:
    assert "$(BIN)/mapa run demo --dashboard" in (ROOT / "Makefile").read_text()
