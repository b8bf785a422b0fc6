"""simulate, run and load_run for Python code and notebooks: the commands of the same names, with objects for answers.

They block until the run has ended, in the main thread or in another one, also inside a running asyncio loop.
Ctrl-C, or a notebook's stop button, ends the run early: its records are whole, and KeyboardInterrupt is raised.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.datasets.catalogue import data_directory
from common.errors import ConfigurationError
from common.metrics import Metric
from common.own_code import given_objects
from mapa.cloud_run import Setting
from mapa.given import Source, given, require_importable
from mapa.output import note
from mapa.process_run import PROCESSES, run_in_processes
from mapa.progress import BarView, OnProgress, bar_for, shown_on
from mapa.recording import check_engine, record_simulation
from mapa.run_parts import OwnFiles
from mapa.run_result import Run, read_result
from mapa.runs import find_run
from mapa.simulation.simulator import interrupt_between_events
from mapa.simulation.world import World


def simulate(
    scenario: Source,
    /,
    *,
    engine: str = "events",
    runs_dir: str | Path = "runs",
    data_dir: str | Path | None = None,
    edge_data: Sequence[str | Path] = (),
    test_data: str | Path | None = None,
    progress: bool | OnProgress = True,
    **changes: Any,
) -> Run:
    """Simulate a scenario without a network; return the run, whose records are in runs_dir.

    `scenario` is a name, the path of a TOML file, or a dict. `changes` are its keys: `seed=1, iterations=500`;
    of a table those that are given, `privacy={"total_epsilon": 4.0}`; None removes a key. A class or an object may
    stand where a name does: `model=MyModel`, `algorithm=Damped(rate=0.3)`, `data=my_dataset`,
    `model={"name": MyModel, "options": {"width": 3}}`. With data.set = "local", `edge_data` are the edges' own files in
    their order, and `test_data` the file that the model is evaluated on.
    """
    asked = given(scenario, changes)
    own = None
    if edge_data or test_data is not None:
        own = OwnFiles(tuple(map(Path, edge_data)), None if test_data is None else Path(test_data))
    with given_objects(asked.objects):
        scenario_asked = asked.scenario()
        check_engine(scenario_asked, engine)
        say = note if progress is True else None
        world = World.of(scenario_asked, _data_dir(data_dir), own, say=say)
        resolved = world.scenario
        title = f"{resolved.algorithm.name} {resolved.model.name}"
        with interrupt_between_events(), bar_for(title, resolved.iterations, progress) as bar:
            summary = record_simulation(
                world, name=asked.name, runs=Path(runs_dir), engine=engine, progress=shown_on(bar), say=say
            )
            bar.show(summary["updates"], _last(summary))
    return _ended(summary)


def run(
    scenario: Source = "quickstart",
    /,
    *,
    broker: str = "auto",
    processes: int = PROCESSES,
    runs_dir: str | Path = "runs",
    data_dir: str | Path | None = None,
    progress: bool | OnProgress = True,
    **changes: Any,
) -> Run:
    """Train with a broker, a cloud and edge processes on this machine; return the run.

    As `simulate`, but a class of a model, data set or noise law must be in a file: the edges' processes import it.
    """
    if not isinstance(processes, int) or processes < 1:
        raise ConfigurationError(f"processes = {processes!r}: must be a whole number of at least 1")
    asked = given(scenario, changes)
    require_importable(asked)
    folder = _data_dir(data_dir)
    with given_objects(asked.objects):
        setting = Setting.of(asked.scenario(), folder, say=note if progress is True else None)
        title = f"{setting.scenario.algorithm.name} {setting.scenario.model.name}"
        summary = run_in_processes(
            setting,
            BarView(setting.scenario, bar_for(title, setting.scenario.iterations, progress)),
            name=asked.name,
            runs=Path(runs_dir),
            data_dir=folder,
            broker=broker,
            processes=processes,
            say=sys.stderr if progress is True and sys.stderr.isatty() else None,
        )
    return _ended(summary)


def load_run(run: str | Path, *, runs_dir: str | Path = "runs") -> Run:
    """Return a run that is on disk, by the path of its folder or by its id in runs_dir; one that was cut off, too."""
    return read_result(find_run(str(run), Path(runs_dir)))


def _ended(summary: dict[str, Any]) -> Run:
    if summary["reason"] == "interrupted":
        raise KeyboardInterrupt(
            f"interrupted after {summary['updates']} updates; mapa.load_run({summary['path']!r}) has the records"
        )
    return read_result(Path(summary["path"]))


def _last(summary: dict[str, Any]) -> str:
    first = Metric.from_dict(summary["metrics"][0])
    value = summary[f"final_{first.name}"]
    return "" if value is None else f"{first.name} {first.text(value)}"


def _data_dir(given_dir: str | Path | None) -> Path:
    return data_directory(os.environ) if given_dir is None else Path(given_dir)
