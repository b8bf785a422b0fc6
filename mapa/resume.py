"""Which run a restarted cloud goes on with, whether it can, and with what.

Every container begins here: what takes long to load is loaded where a run is resumed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.errors import ConfigurationError
from common.records.layout import HALT_OWED, RESUME, keeps_gradients, name_before_stamp
from mapa.runs import read_object

if TYPE_CHECKING:
    from common.quantities import RunId
    from common.scenario.scenario import Scenario
    from mapa.cloud_run import Setting

_AS_WANTED = ("finished", "interrupted")  # ends after which no policy starts a container again
_AT_ONCE = 120.0  # seconds within which a policy does


def ended_with(path: Path) -> str | None:
    """Return the reason for which a run has ended; None: it has not, or its last records or its halt are owed."""
    summary = read_object(path / "summary.json")
    return None if summary is None or _owes(path, summary) else str(summary.get("reason"))


def _owes(path: Path, summary: dict[str, Any]) -> bool:
    """Tell whether a resumed cloud has yet to tell the halt, state the privacy, or remove a log that is not kept."""
    if not any(path.glob("checkpoints/[0-9]*")):
        return False  # no cloud can go on with it
    if (read_object(path / RESUME) or {}).get(HALT_OWED) is True:
        return True
    scenario = (read_object(path / "manifest.json") or {}).get("scenario") or {}
    asked = scenario.get("records", {}).get("keep_gradients")
    kept = keeps_gradients(asked, summary.get("iterations", 0), summary.get("parameters", 0))
    return "privacy" not in summary or (not kept and (path / "log").exists())


def to_go_on_with(
    runs: Path, *, run: str | None, started_by: str, now: float, once: bool = False
) -> Path | None:
    """Return the run that a container goes on with, or that it must not begin again; None: it begins a new one.

    The newest run that this very container began, where it has not ended; else, where the run has a name, the newest
    of that name likewise. A restart policy starts a container again at once when its run has ended badly (no budget,
    divergence): such a run is returned too, so that the container ends as it did. A later start, or one after a run
    that was finished or interrupted, is a person's, who wants a new run; with `once` no run of a name is
    begun again.
    """
    begun = sorted(_begun(path) for path in runs.iterdir()) if runs.is_dir() else []
    own = [path for started, path, starter in begun if started and starter and starter == started_by]
    if own and _is_left(own[-1], now):
        return own[-1]
    named = [path for started, path, _ in begun if started and run and name_before_stamp(path.name) == run]
    return named[-1] if named and (once or ended_with(named[-1]) is None) else None


def _is_left(path: Path, now: float) -> bool:
    ended = ended_with(path)
    if ended is None:
        return True
    return ended not in _AS_WANTED and now - (path / "summary.json").stat().st_mtime < _AT_ONCE


def _begun(path: Path) -> tuple[str, Path, str]:
    """Return when a run began, and by whom; "" where it never did, or no cloud can go on with it."""
    manifest = read_object(path / "manifest.json")
    whole = manifest is not None and (ended_with(path) is not None or any(path.glob("checkpoints/[0-9]*")))
    if manifest is None or not whole:
        return "", path, ""
    return str(manifest.get("started")), path, str(manifest.get("started_by") or "")


def _refused(path: Path, why: str) -> ConfigurationError:
    return ConfigurationError(f"--resume {path}: {why}")


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
        from common.records import checkpoint, gradient_log
        from common.records.reader import read_json, read_manifest
        from common.scenario.scenario import parse_scenario
        from common.wire.topics import run_id
        from mapa.recording import NETWORKED

        manifest = read_manifest(path)
        if not manifest:
            raise _refused(path, "no manifest.json: the run never began")
        if manifest.get("engine") not in NETWORKED:
            raise _refused(path, "a simulated run has no cloud to go on")
        for name in (gradient_log.FOLDER, checkpoint.FOLDER):
            if (path / name).is_symlink():  # the cloud writes and removes files there
                raise _refused(path, f"{name} is a symbolic link, and none is followed")
        checkpoints = checkpoint.Checkpoints(path)
        if not checkpoints.numbers:
            raise _refused(path, "no checkpoints: its cloud wrote none")
        _, state = checkpoints.newest(lambda _: None)
        scenario = parse_scenario(manifest["scenario"])
        if scenario.digest != manifest["scenario_sha256"]:
            version = manifest.get("versions", {}).get("mapa-testbed", "unknown")
            raise _refused(
                path,
                "this version reads the scenario of the manifest in another way; use the version that began the run:"
                f" {version}",
            )
        kept = read_json(path / RESUME)
        places = {key: kept.get(key) for key in ("data_dir", "test_data")}
        return cls(
            path,
            run_id(state["run"]),
            state["server"]["incarnation"],
            manifest["name"],
            manifest["engine"],
            scenario,
            manifest["data"],
            {key: Path(place) for key, place in places.items() if isinstance(place, str)},
        )

    def setting(self, data_dir: Path | None = None, test_data: Path | None = None) -> Setting:
        """Return the parts of the run, which must be those that it began with; from where they were, unless given."""
        from common.datasets.catalogue import data_directory
        from common.datasets.source import LOCAL
        from mapa.cloud_run import Setting
        from mapa.run_parts import OwnFiles

        data_dir = data_dir or self.places.get("data_dir") or data_directory(os.environ)
        before, name = self.places.get("test_data"), self.scenario.data.set
        if test_data is None and before is not None and not (before.is_file() or before.is_dir()):
            raise _refused(self.path, f"its test data are no longer in {before}; say where with --test-data")
        test_data = test_data or before
        local = name == LOCAL
        own = OwnFiles(test=test_data) if local or test_data is not None else None
        setting = Setting.of(self.scenario, data_dir, own)
        if {name: setting.dataset.checksum} != self.checksums:
            place, option = (test_data, "--test-data") if local else (data_dir, "--data-dir")
            raise _refused(
                self.path,
                f"data.set = {name!r} is not what the run began with, in {place}; say where it is with {option}",
            )
        if setting.scenario.digest != self.scenario.digest:
            raise _refused(self.path, "the budget gives another noise than at the beginning")
        return setting
