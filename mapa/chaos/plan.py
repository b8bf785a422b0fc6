"""What chaos runs, checked as a whole before anything starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common.datasets.source import LOCAL
from common.errors import ConfigurationError
from common.records.layout import keeps_gradients
from common.scenario.scenario import Scenario
from mapa.brokers import find_mosquitto
from mapa.chaos.programs import MAPA, check_platform
from mapa.chaos.schedule import Bounds
from mapa.cloud_run import Setting
from mapa.run_parts import NEEDS_FILES
from mapa.scenario_files import load_scenario


@dataclass(frozen=True, slots=True)
class Plan:
    """A scenario and how its cloud is started, for every run."""

    name: str  # of the scenario, or its file
    settings: tuple[str, ...]  # KEY=VALUE
    edges: int | None  # instead of the scenario's
    scenario: Scenario
    setting: Setting
    data_dir: Path
    program: Sequence[str] = MAPA  # of the cloud; tests have a broken one

    @property
    def words(self) -> list[str]:
        """Scenario and changes, as `mapa cloud` takes them."""
        words = [self.name, *([] if self.edges is None else ["--edges", str(self.edges)])]
        return words + [word for one in self.settings for word in ("--set", one)]

    @property
    def bounds(self) -> Bounds:
        scenario = self.scenario
        return Bounds(scenario.iterations, scenario.workers, scenario.testbed.silent_after)


def plan_of(
    name: str,
    changes: Sequence[str],
    edges: int | None,
    iterations: int | None,
    data_dir: Path,
    program: Sequence[str] = MAPA,
    *,
    containers: bool = False,
) -> Plan:
    """Return what is run; ConfigurationError where it cannot be run, or not be judged."""
    check_platform()
    if not containers and find_mosquitto() is None:
        raise ConfigurationError("mapa chaos: no mosquitto found on PATH (Debian: apt install mosquitto)")
    settings = [*changes, *([] if iterations is None else [f"iterations={iterations}"])]
    _, scenario = load_scenario(name, settings, edges=edges)
    if scenario.data.set == LOCAL:
        raise ConfigurationError(NEEDS_FILES)
    setting = Setting.of(scenario, data_dir)
    scenario = setting.scenario
    if not scenario.records.events:
        raise ConfigurationError("records.events = false: chaos judges a run by its events")
    if not keeps_gradients(scenario.records.keep_gradients, scenario.iterations, setting.model.dimension):
        raise ConfigurationError(
            "records.keep_gradients: must be true, since chaos replays the log; or choose fewer iterations"
        )
    return Plan(name, tuple(settings), edges, scenario, setting, data_dir, program)
