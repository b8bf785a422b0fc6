"""The lines of the figures: patterns in one file give every name the values that its own file once had."""

from __future__ import annotations

import hashlib
import json
import tomllib
from pathlib import Path

import pytest

from common.errors import ConfigurationError
from common.scenario.scenario import parse_scenario
from mapa.commands.containers import for_a_container
from mapa.container import service
from mapa.scenario_files import data_set_of, load_scenario
from mapa.scenario_patterns import FOLDER, PREFIX, line_names, line_of, matching_lines, values_of

DIGESTS = json.loads(Path(__file__).with_name("figure_lines.json").read_text(encoding="utf-8"))


def digest(line: str) -> str:
    """Return the SHA-256 of a line's values as they are written: a new key of the schema does not change it."""
    return hashlib.sha256(json.dumps(values_of(line), sort_keys=True).encode()).hexdigest()


def test_every_line_has_the_values_that_the_results_were_made_with() -> None:
    assert {line: digest(line) for line in line_names()} == DIGESTS


def test_every_line_is_a_scenario_by_its_name_and_by_the_path_of_its_former_file() -> None:
    for line in line_names():
        name, scenario = load_scenario(f"{PREFIX}{line}")
        assert name == line
        assert scenario == load_scenario(str(FOLDER / f"{line}.toml"))[1] == parse_scenario(values_of(line))


def test_every_pattern_matches_a_line() -> None:
    patterns = tomllib.loads((FOLDER / "lines.toml").read_text(encoding="utf-8"))
    for pattern in [*patterns["values"], *patterns["variants"]]:
        assert matching_lines(pattern), pattern
    assert set(patterns["experiments"]) == {line.partition("-")[0] for line in line_names()}


def test_a_later_pattern_holds_and_tables_are_merged() -> None:
    values = values_of("convergence-lr-usps-audp-fair")
    assert (values["edges"], values["iterations"]) == (10, 200000)  # of all lines 5, of LR 15,000
    assert values["algorithm"] == {"name": "audp", "first_clip": 1.0}
    assert values["data"] == {"partition": "shared", "sampler": "with-replacement", "set": "usps"}


def test_a_change_of_one_scenario_leaves_the_line_as_it_was() -> None:
    load_scenario("figures/norms-lr-usps-asgd", ["records.diagnostics=false", "data.set=mnist", "edges=3"])
    assert digest("norms-lr-usps-asgd") == DIGESTS["norms-lr-usps-asgd"]


@pytest.mark.parametrize(
    "name", ["figures/accuracy-lr-mnist-fedavg", "figures/fig9.toml", "figures/../quickstart"]
)
def test_an_unknown_line_is_an_error_that_says_where_the_names_are(name: str) -> None:
    with pytest.raises(ConfigurationError, match="mapa scenario list --figures"):
        load_scenario(name)
    with pytest.raises(ConfigurationError, match="mapa scenario list --figures"):
        values_of(name)


def test_a_file_of_the_same_name_goes_before_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "figures" / "sound-lr-mnist-mapa.toml"
    own.parent.mkdir()
    own.write_text("edges = 7\niterations = 10\nbatch_size = 4\n")
    assert line_of("figures/sound-lr-mnist-mapa.toml") is None
    assert load_scenario("figures/sound-lr-mnist-mapa.toml")[1].edges == 7
    assert line_of("elsewhere/sound-lr-mnist-mapa.toml") is None


def test_a_container_takes_a_line_by_its_name() -> None:
    environ = {"SCENARIO": "figures/heldout-lr-usps-audp-0.1"}
    words, options = service("cloud", environ)
    assert words == ["cloud", "figures/heldout-lr-usps-audp-0.1"]
    assert options["MAPA_RUN"].startswith("heldout-lr-usps-audp-0.1-")
    assert service("data", environ)[0] == ["data", "get", "--scenario", "figures/heldout-lr-usps-audp-0.1"]
    assert data_set_of("figures/heldout-lr-usps-audp-0.1") == "usps"


def test_the_testbed_names_a_line_to_the_container_and_mounts_the_folder_of_a_file(tmp_path: Path) -> None:
    assert for_a_container("figures/norms-lr-usps-audp-0.2") == ("figures/norms-lr-usps-audp-0.2", None)
    (tmp_path / "own.toml").write_text("edges = 2\n")
    assert for_a_container(str(tmp_path / "own.toml")) == ("own", tmp_path.resolve())
