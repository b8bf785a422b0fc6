"""A run whose cloud was killed: whether it can go on, and with what."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from common.errors import ConfigurationError
from common.quantities import RunId
from common.records.checkpoint import FOLDER as CHECKPOINTS
from common.records.checkpoint import Checkpoints
from common.records.log_format import FOLDER as LOG
from common.scenario.scenario import Scenario, parse_scenario
from common.wire.topics import run_id
from mapa.cloud_run import Setting
from mapa.run_parts import OwnFiles
from mapa.run_reader import read_manifest

_ENGINES = ("network", "processes")


@dataclass(frozen=True, slots=True)
class Resumable:
    """What a run's directory says of itself."""

    path: Path
    run: RunId  # its name on the broker
    incarnation: int
    name: str  # of its scenario
    engine: str
    scenario: Scenario
    checksums: dict[str, str]  # of its data

    @classmethod
    def of(cls, path: Path) -> Resumable:
        """Read a run's directory; ConfigurationError where no cloud can go on with it."""
        manifest = read_manifest(path)
        if not manifest:
            raise ConfigurationError(f"--resume {path}: no manifest.json: the run never began")
        if manifest.get("engine") not in _ENGINES:
            raise ConfigurationError(f"--resume {path}: a simulated run has no cloud to go on")
        for name in (LOG, CHECKPOINTS):
            if (path / name).is_symlink():  # the cloud writes and removes files there
                raise ConfigurationError(f"--resume {path}: {name} is a symbolic link, and none is followed")
        checkpoints = Checkpoints(path)
        if not checkpoints.numbers:
            raise ConfigurationError(f"--resume {path}: no checkpoints: its cloud wrote none")
        _, state = checkpoints.newest(lambda _: None)
        scenario = parse_scenario(manifest["scenario"])
        if scenario.digest != manifest["scenario_sha256"]:
            raise ConfigurationError(
                f"--resume {path}: this version reads the scenario of the manifest in another way; use the version"
                f" that began the run: {manifest.get('versions', {}).get('mapa-testbed', 'unknown')}"
            )
        return cls(
            path,
            run_id(state["run"]),
            state["server"]["incarnation"],
            manifest["name"],
            manifest["engine"],
            scenario,
            manifest["data"],
        )

    def setting(self, data_dir: Path, own: OwnFiles | None = None) -> Setting:
        """Return the parts of the run, which must be those that it began with."""
        setting = Setting.of(self.scenario, data_dir, own)
        found = {self.scenario.data.set: setting.dataset.checksum}
        if found != self.checksums:
            raise ConfigurationError(
                f"--resume {self.path}: data.set = {self.scenario.data.set!r} is not what the run began with"
            )
        if setting.scenario.digest != self.scenario.digest:
            raise ConfigurationError(
                f"--resume {self.path}: the budget gives another noise than at the beginning"
            )
        return setting
