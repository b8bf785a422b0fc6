"""The Python API: simulate, run, load_run, calibrate and Scenario, for scripts and notebooks.

The functions block until the run has ended, in the main thread or in another one, also inside a running asyncio loop.
Ctrl-C, or a notebook's stop button, ends the run early: its records are whole, and KeyboardInterrupt is raised.
"""

from __future__ import annotations

import copy
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from pydantic import PrivateAttr

from common.accounting.budget import calibrate as least_multiplier
from common.accounting.kept import kept_in
from common.accounting.releases import Budget
from common.algorithms import description_of
from common.datasets.catalogue import data_directory
from common.datasets.dataset import Dataset
from common.errors import ConfigurationError
from common.metrics import Metric
from common.models.features import user_cache
from common.own_code import CODE_KEYS, given_objects
from common.scenario.algorithm_table import AlgorithmTable
from common.scenario.scenario import Scenario as CheckedScenario
from mapa.budget import mechanism_asked_for
from mapa.cloud_run import Setting
from mapa.output import note
from mapa.process_run import run_in_processes
from mapa.recording import check_engine, record_simulation
from mapa.run_parts import OwnFiles
from mapa.run_result import Run, read_result
from mapa.run_view import Bar, BarView, OnProgress, bar_for, shown_on
from mapa.runs import find_run
from mapa.scenario_files import checked_scenario, read_scenario, table_in
from mapa.simulation.simulator import World, interrupt_between_events

Source = str | Path | Mapping[str, Any] | CheckedScenario
_TABLES = dict(CODE_KEYS)  # the key that an object alone stands for, by its table
_NOTEBOOK = "__main__"  # what no other process can import is recorded as if it were defined there


@dataclass(frozen=True, slots=True)
class Given:
    """A scenario's values as Python code gives them, and the objects that its dotted paths mean in this process."""

    name: str
    values: dict[str, Any]
    folder: Path
    changed: dict[str, Any] = field(default_factory=dict)
    objects: dict[str, object] = field(default_factory=dict)

    @classmethod
    def of(cls, source: Source) -> Given:
        if isinstance(source, Scenario):
            return source._given
        if isinstance(source, CheckedScenario | Mapping):
            values = source.canonical() if isinstance(source, CheckedScenario) else dict(source)
            return cls("scenario", values, Path.cwd())
        if not isinstance(source, str | Path):
            raise ConfigurationError(
                f"scenario = {source!r:.80}: must be the name of a scenario, the path of a TOML file, a dict or a"
                " Scenario"
            )
        path, values = read_scenario(str(source))
        return cls(path.stem, values, path.parent)

    def with_(self, changes: Mapping[str, Any]) -> Given:
        """Return it with changes: of a table its keys are changed one by one; None removes a key."""
        values, changed, objects = copy.deepcopy(self.values), dict(self.changed), dict(self.objects)
        for dotted, value in changes.items():
            key, dot, inner = dotted.partition(".")
            parts = {inner: value} if dot else _table(key, value)
            if parts is None:
                changed[key] = value
                _set(values, key, value)
                continue
            table = values.setdefault(key, {})
            if not isinstance(table, dict):
                table = values[key] = _table(key, table) or {}
            if key == "algorithm" and _is_made(parts.get("name")):  # its options replace the former's
                for option in table.keys() - AlgorithmTable.model_fields.keys():
                    del table[option]
            for part, one in parts.items():
                changed[f"{key}.{part}"] = one
                *tables, last = part.split(".")
                _set(table_in(table, tables, dotted), last, one)
        for name, key in CODE_KEYS:
            if name in values:
                values[name] = _named(name, key, _table(name, values[name]) or {}, objects)
        return Given(self.name, values, self.folder, changed, objects)

    def scenario(self) -> CheckedScenario:
        """Check it as a whole; inside `given_objects`, which makes the objects known."""
        return checked_scenario(copy.deepcopy(self.values), self.folder, self.changed)

    def require_importable(self) -> None:
        """Raise ConfigurationError for an object that edges' processes cannot import; the algorithm is the cloud's."""
        for table, key in CODE_KEYS:
            path = self.values.get(table, {}).get(key)
            thing = self.objects.get(path) if isinstance(path, str) else None
            if thing is None or table == "algorithm" or importable(thing) == path:
                continue
            what = "a Dataset" if isinstance(thing, Dataset) else f"a class of {_NOTEBOOK} or of a function"
            raise ConfigurationError(
                f"{table}.{key} = {thing!r:.80}: {what} exists in this process alone, and edges are processes of their"
                f" own that import what they need; put the class into a file, e.g. my_model.py, and name it as"
                f" {table}={{'{key}': 'my_model:{getattr(thing, '__name__', 'Data')}'}}; mapa.simulate takes objects"
            )


class Scenario(CheckedScenario):
    """A scenario with every value as an attribute, checked: `scenario.edges`, `scenario.privacy.noise`.

    `simulate` and `run` take it. It never changes; `with_` returns another one.
    """

    _given: Given = PrivateAttr()

    @classmethod
    def load(cls, source: Source, /) -> Self:
        """Return a shipped scenario by its name, one in a TOML file by its path, or one in a dict."""
        return cls._of(Given.of(source).with_({}))

    def with_(self, changes: Mapping[str, Any] | None = None, /, **more: Any) -> Self:
        """Return the scenario with changes: `with_(seed=1, privacy={"total_epsilon": 4.0})`, or dotted keys in a dict.

        Of a table only the given keys change; None removes a key; a class or an object may stand where a name does.
        """
        return self._of(self._given.with_({**(changes or {}), **more}))

    @classmethod
    def _of(cls, asked: Given) -> Self:
        with given_objects(asked.objects):
            made = cls.model_validate(asked.scenario().canonical())
        made._given = asked
        return made


def importable(thing: object) -> str | None:
    """Return the dotted path by which another process can import a class; None: there is none."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module == _NOTEBOOK:
        return None
    names = vars(sys.modules[module]) if module in sys.modules else {}
    if names.get(name) is not thing:  # a class that a function made may have another name there
        name = next((one for one, value in names.items() if value is thing), "")
    return f"{module}:{name}" if name else None


def _table(key: str, value: Any) -> dict[str, Any] | None:
    """Return what is set in a table: an object alone stands for the key that names it; None: it is no table."""
    if isinstance(value, Mapping):
        return dict(value)
    return {_TABLES[key]: value} if key in _TABLES and value is not None else None


def _set(table: dict[str, Any], key: str, value: Any) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value


def _named(table: str, key: str, values: dict[str, Any], objects: dict[str, object]) -> dict[str, Any]:
    """Put a dotted path in the place of an object; an algorithm that was made brings its options."""
    thing = values.get(key)
    if thing is None or isinstance(thing, str):
        return values
    if table == "algorithm" and _is_made(thing):
        values = {**values, **_options(thing, values)}
        thing = type(thing)
    if not isinstance(thing, type) and not (key == "set" and isinstance(thing, Dataset)):
        allowed = "a name, a class or a Dataset" if key == "set" else "a name or a class"
        raise ConfigurationError(f"{table}.{key} = {thing!r:.80}: must be {allowed}")
    path = importable(thing) or _invented(thing, objects)
    objects[path] = thing
    return {**values, key: path}


def _is_made(thing: object) -> bool:
    """Tell whether it is an algorithm itself, not its name or class."""
    return thing is not None and not isinstance(thing, str | type)


def _invented(thing: object, objects: Mapping[str, object]) -> str:
    name = thing.name if isinstance(thing, Dataset) else getattr(thing, "__name__", "")
    plain = re.sub(r"^(?=\d)", "_", re.sub(r"\W", "_", name) or "given")
    path, number = f"{_NOTEBOOK}:{plain}", 1
    while path in objects:
        number += 1
        path = f"{_NOTEBOOK}:{plain}_{number}"
    return path


def _options(made: Any, beside: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of an algorithm that was made, and has not begun."""
    described = description_of(type(made).__name__, type(made))
    options = {one.name: getattr(made, one.name) for one in described.options}
    for key in options.keys() & beside.keys():
        raise ConfigurationError(
            f"algorithm.{key} = {beside[key]!r}: {type(made).__name__} was made with its options; give them once"
        )
    if made != described.make(options):
        raise ConfigurationError(
            f"algorithm.name = {made!r:.80}: has begun already; give it as it is before its first update"
        )
    return options


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

    `scenario` is a name, the path of a TOML file, a dict or a `Scenario`. `changes` are its keys: `seed=1`; of a
    table those that are given, `privacy={"total_epsilon": 4.0}`; None removes a key. A class or an object may stand
    where a name does: `model=MyModel`, `algorithm=Damped(rate=0.3)`, `data=my_dataset`,
    `model={"name": MyModel, "options": {"width": 3}}`. With data.set = "local", `edge_data` are the edges' own files in
    their order, and `test_data` the file that the model is evaluated on.
    """
    asked = Given.of(scenario).with_(changes)
    own = None
    if edge_data or test_data is not None:
        own = OwnFiles(tuple(map(Path, edge_data)), None if test_data is None else Path(test_data))
    with given_objects(asked.objects):
        resolved, say = asked.scenario(), note if progress is True else None
        check_engine(resolved, engine)
        world = World.of(resolved, _data_dir(data_dir), own, say=say)
        with interrupt_between_events(), _bar(world.scenario, progress) as bar:
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
    processes: int | None = None,
    runs_dir: str | Path = "runs",
    data_dir: str | Path | None = None,
    progress: bool | OnProgress = True,
    **changes: Any,
) -> Run:
    """Train with a broker, a cloud and edge processes on this machine; return the run.

    As `simulate`, but a class of a model, data set or noise law must be in a file: the edges' processes import it.
    """
    if processes is not None and (not isinstance(processes, int) or processes < 1):
        raise ConfigurationError(f"processes = {processes!r}: must be a whole number of at least 1")
    asked = Given.of(scenario).with_(changes)
    asked.require_importable()
    folder = _data_dir(data_dir)
    with given_objects(asked.objects):
        setting = Setting.of(asked.scenario(), folder, say=note if progress is True else None)
        summary = run_in_processes(
            setting,
            BarView(_bar(setting.scenario, progress)),
            name=asked.name,
            runs=Path(runs_dir),
            data_dir=folder,
            broker=broker,
            processes=processes,
            say=sys.stderr if progress is True and sys.stderr.isatty() else None,
        )
    return _ended(summary)


def calibrate(
    total_epsilon: float,
    *,
    releases: int,
    batch_size: int,
    shard_size: int,
    total_delta: float = 1e-5,
    sampler: str = "poisson",
    clipping: str = "per-sample",
    largest_batch: int | None = None,
) -> float:
    """Return the smallest noise multiplier z of Gaussian noise that keeps the releases of an edge within (ε, δ).

    `releases` are the noised gradients of one edge (with local steps, messages × E), `shard_size` is its number of
    records, `largest_batch` goes with sampler = "truncated-poisson". As `mapa calibrate`.
    """
    mechanism = mechanism_asked_for(batch_size, sampler, clipping, largest_batch)
    budget = Budget(total_epsilon, total_delta)
    with kept_in(user_cache()):
        return least_multiplier(budget, mechanism, releases=releases, shard_size=shard_size)


def load_run(run: str | Path, *, runs_dir: str | Path = "runs") -> Run:
    """Return a run that is on disk, by the path of its folder or by its id in runs_dir; one that was cut off, too."""
    return read_result(find_run(str(run), Path(runs_dir)))


def _bar(scenario: CheckedScenario, progress: bool | OnProgress) -> Bar:
    return bar_for(f"{scenario.algorithm.name} {scenario.model.name}", scenario.iterations, progress)


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
