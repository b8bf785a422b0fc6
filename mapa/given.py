"""A scenario as Python code gives it: a name, a file, a dict or a Scenario, with objects in the place of names."""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.algorithms import description_of
from common.datasets.dataset import Dataset
from common.errors import ConfigurationError
from common.own_code import CODE_KEYS
from common.scenario.algorithm_table import AlgorithmTable
from common.scenario.scenario import Scenario
from mapa.scenario_files import checked_scenario, read_scenario

Source = str | Path | Mapping[str, Any] | Scenario
_TABLES = dict(CODE_KEYS)
_NOTEBOOK = "__main__"  # whatever no other process can import is recorded as if it were defined there


@dataclass(frozen=True, slots=True)
class Given:
    """A scenario's values, and the objects that its dotted paths mean in this process."""

    name: str
    values: dict[str, Any]
    folder: Path
    changed: dict[str, Any]
    objects: dict[str, object] = field(default_factory=dict)

    def scenario(self) -> Scenario:
        """Check it as a whole; where `given_objects` makes the objects known."""
        return checked_scenario(copy.deepcopy(self.values), self.folder, self.changed)


def given(source: Source, changes: Mapping[str, Any]) -> Given:
    """Return a scenario with changes: of a table its keys are changed one by one; None removes a key."""
    name, values, folder = _read(source)
    changed: dict[str, Any] = {}
    for key, value in changes.items():
        parts = _table(key, value)
        if parts is None:
            changed[key] = value
            _set(values, key, value)
            continue
        table = values.setdefault(key, {})
        if not isinstance(table, dict):
            table = values[key] = _table(key, table) or {}
        if key == "algorithm" and _is_made(
            parts.get("name")
        ):  # it brings its options: the former's are not meant
            for option in [one for one in table if one not in AlgorithmTable.model_fields]:
                del table[option]
        for part, one in parts.items():
            changed[f"{key}.{part}"] = one
            _set(table, part, one)
    objects: dict[str, object] = {}
    for table_name, key in CODE_KEYS:
        if table_name in values:
            values[table_name] = _named(table_name, key, _table(table_name, values[table_name]), objects)
    return Given(name, values, folder, changed, objects)


def importable(thing: object) -> str | None:
    """Return the dotted path by which another process can import a class; None: there is none."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module == _NOTEBOOK:
        return None
    names = vars(sys.modules[module]) if module in sys.modules else {}
    if names.get(name) is not thing:  # a class that a function made may have another name there
        name = next((one for one, value in names.items() if value is thing), "")
    return f"{module}:{name}" if name else None


def require_importable(asked: Given) -> None:
    """Refuse objects that the edges' processes must import for themselves, and cannot; the algorithm is the cloud's."""
    for table, key in CODE_KEYS:
        path = asked.values.get(table, {}).get(key)
        thing = asked.objects.get(path) if isinstance(path, str) else None
        if thing is None or table == "algorithm" or importable(thing) == path:
            continue
        what = "a Dataset" if isinstance(thing, Dataset) else f"a class of {_NOTEBOOK} or of a function"
        raise ConfigurationError(
            f"{table}.{key} = {thing!r:.80}: {what} exists in this process alone, and edges are processes of their"
            f" own that import what they need; put the class into a file, e.g. my_model.py, and name it as"
            f" {table}={{'{key}': 'my_model:{getattr(thing, '__name__', 'Data')}'}}; mapa.simulate takes objects"
        )


def _read(source: Source) -> tuple[str, dict[str, Any], Path]:
    if isinstance(source, Scenario):
        return "scenario", source.canonical(), Path.cwd()
    if isinstance(source, Mapping):
        values = {key: dict(v) if isinstance(v, Mapping) else v for key, v in source.items()}
        return "scenario", values, Path.cwd()
    if not isinstance(source, str | Path):
        raise ConfigurationError(
            f"scenario = {source!r:.80}: must be the name of a scenario, the path of a TOML file, a dict or a Scenario"
        )
    path, values = read_scenario(str(source))
    return path.stem, values, path.parent


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


def _named(table: str, key: str, values: dict[str, Any] | None, objects: dict[str, object]) -> dict[str, Any]:
    """Put a dotted path in the place of an object; an algorithm that was made brings its options."""
    values = values or {}
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
    plain = re.sub(r"\W", "_", name) or "given"
    plain = plain if not plain[0].isdigit() else f"_{plain}"
    path, number = f"{_NOTEBOOK}:{plain}", 1
    while path in objects:
        number += 1
        path = f"{_NOTEBOOK}:{plain}_{number}"
    return path


def _options(made: Any, beside: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of an algorithm that was made, and has not begun."""
    described = description_of(type(made).__name__, type(made))
    options = {one.name: getattr(made, one.name) for one in described.options}
    for key in options:
        if key in beside:
            raise ConfigurationError(
                f"algorithm.{key} = {beside[key]!r}: {type(made).__name__} was made with its options; give them once"
            )
    if made != described.make(options):
        raise ConfigurationError(
            f"algorithm.name = {made!r:.80}: has begun already; give it as it is before its first update"
        )
    return options
