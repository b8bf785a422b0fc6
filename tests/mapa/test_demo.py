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


def test_make_run_shows_it_with_the_page() -> None:
    assert "$(BIN)/mapa run demo --dashboard" in (ROOT / "Makefile").read_text()
