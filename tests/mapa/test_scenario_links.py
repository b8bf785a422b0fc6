"""Links of a CSV, named by a scenario or by --set."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.errors import ConfigurationError
from common.scenario.scenario import parse_welcome
from common.transport.link import PRESETS, link_profile
from mapa.scenario_files import load_scenario

CSV = (
    "name,delay_ms,jitter_ms,distribution,rate_kbps,partitions\nlan,,,,,\nattic,12,3,normal,2000,10+5;60+30\n"
)


def test_a_scenario_names_a_csv_beside_it(tmp_path: Path) -> None:
    (tmp_path / "links.csv").write_text(CSV)
    (tmp_path / "lab.toml").write_text('iterations = 10\nlinks = "links.csv"\n')
    _, scenario = load_scenario(str(tmp_path / "lab.toml"))
    profiles = [link_profile(link.model_dump()) for link in scenario.links]
    assert profiles[0] == PRESETS["lan"]
    assert (profiles[1].delay_ms, profiles[1].partitions) == (12.0, ((10.0, 5.0), (60.0, 30.0)))
    for index, profile in ((0, profiles[0]), (3, profiles[1])):  # cycled, and whole in the welcome
        [sent] = parse_welcome(scenario.for_edge(index)).links
        assert link_profile(sent.model_dump()) == profile


def test_a_csv_of_the_command_line_lies_where_the_user_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.csv").write_text(CSV)
    monkeypatch.chdir(tmp_path)
    _, scenario = load_scenario("quickstart", ["links=mine.csv"])
    assert [link.name for link in scenario.links] == ["lan", "attic"]
    with pytest.raises(ConfigurationError, match=r"links = 'absent\.csv'"):
        load_scenario("quickstart", ["links=absent.csv"])
