"""mapa devices, and --devices of the commands that train."""

from __future__ import annotations

import json
import tomllib

import pytest

from common.devices import PRESETS, device_profile
from mapa.commands.devices import reference_worker
from mapa.commands.options import ScenarioOptions
from mapa.scenario_files import load_scenario
from tests.program_support import run_mapa

pytestmark = pytest.mark.slow  # measures gradients


def test_the_presets_are_listed_and_named_by_an_option() -> None:
    listed = json.loads(run_mapa("devices", "list", "--json").stdout)
    assert [row["name"] for row in listed] == list(PRESETS)
    _, scenario = ScenarioOptions(devices="pi4, laptop").load("quickstart")
    assert [device.name for device in scenario.devices] == ["pi4", "laptop"]
    assert load_scenario("quickstart")[1].devices == []


@pytest.mark.slow
def test_a_machine_is_measured_without_any_data_and_makes_a_profile() -> None:
    done = run_mapa("devices", "measure", "--name", "attic", "--against", "1e-6", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["slowdown"] == 1000  # the most there is: no machine is a million times that fast
    profile = device_profile({key: found[key] for key in ("name", "slowdown", "jitter")})
    assert profile.name == "attic"
    assert found["gradient_ms"] > 0
    assert reference_worker().model.dimension == 7850


def test_a_profile_can_be_copied_into_a_scenario_whatever_its_name_is() -> None:
    done = run_mapa("devices", "measure", "--name", 'an "old" \\ box', "--against", "1e-320")
    (table,) = tomllib.loads(done.stdout.splitlines()[-1])["devices"]
    assert (table["name"], table["slowdown"]) == ('an "old" \\ box', 1000.0)
    assert "a device has 1 to 1000" in done.stderr
    for name in ("a\n[x]", "x" * 65, ""):
        done = run_mapa("devices", "measure", "--name", name)
        assert done.returncode == 2
        assert "must be 1 to 64 printable characters" in done.stderr


@pytest.mark.parametrize("against", ["0", "-1", "nan", "inf"])
def test_a_figure_that_nothing_can_be_compared_with_is_refused(against: str) -> None:
    done = run_mapa("devices", "measure", "--against", against)
    assert done.returncode == 2
    assert f"--against {float(against)}: must be milliseconds above 0" in done.stderr
