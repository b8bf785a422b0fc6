"""A run whose cloud was killed: whether it can go on, and with what."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from common.datasets.catalogue import data_directory
from common.datasets.source import LOCAL
from common.errors import ConfigurationError
from common.quantities import RunId
from common.records.checkpoint import FOLDER as CHECKPOINTS
from common.records.checkpoint import Checkpoints
from common.records.log_format import FOLDER as LOG
from common.records.naming import RESUME
from common.records.regular import regular_object
from common.scenario.scenario import Scenario, parse_scenario
from common.wire.topics import run_id
from mapa.cloud_run import Setting
from mapa.recording import NETWORKED
from mapa.run_parts import OwnFiles
from mapa.run_reader import read_manifest


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
    places: dict[str, Path]  # where its cloud found data_dir and test_data

    @classmethod
    def of(cls, path: Path) -> Resumable:
        """Read a run's directory; ConfigurationError where no cloud can go on with it."""
        manifest = read_manifest(path)
        if not manifest:
            raise ConfigurationError(f"--resume {path}: no manifest.json: the run never began")
        if manifest.get("engine") not in NETWORKED:
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
            _places(path),
        )

    def setting(self, data_dir: Path | None = None, test_data: Path | None = None) -> Setting:
        """Return the parts of the run, which must be those that it began with; from where they were, unless given."""
        data_dir = data_dir or self.places.get("data_dir") or data_directory(os.environ)
        test_data, given = test_data or self.places.get("test_data"), test_data is not None
        local = self.scenario.data.set == LOCAL
        if test_data is not None and not given and not (test_data.is_file() or test_data.is_dir()):
            raise ConfigurationError(
                f"--resume {self.path}: its test data are no longer in {test_data}; say where with --test-data"
            )
        own = OwnFiles(test=test_data) if local or test_data is not None else None
        setting = Setting.of(self.scenario, data_dir, own)
        found = {self.scenario.data.set: setting.dataset.checksum}
        if found != self.checksums:
            raise ConfigurationError(
                f"--resume {self.path}: data.set = {self.scenario.data.set!r} is not what the run began with, in"
                f" {test_data if local else data_dir}; say where it is with {'--test-data' if local else '--data-dir'}"
            )
        if setting.scenario.digest != self.scenario.digest:
            raise ConfigurationError(
                f"--resume {self.path}: the budget gives another noise than at the beginning"
            )
        return setting


def _places(path: Path) -> dict[str, Path]:
    """Return where the run's cloud found its data; empty where its directory does not say."""
    try:
        values = regular_object(path / RESUME)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path / RESUME}: cannot be read: {error}") from error
    names = ("data_dir", "test_data")
    return {name: Path(value) for name in names if isinstance(value := values.get(name), str)}
