"""Scenarios: a shipped name, a line of a figure or a file; changed by --set, checked as a whole."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from common.devices import MOST_ROWS, PRESETS, Span, windows_from_csv
from common.errors import ConfigurationError, nearest
from common.noise.registry import describe_law, laws_with
from common.own_code import code_named_by, use_code_beside
from common.records.regular import regular_bytes
from common.scenario.scenario import Scenario, parse_scenario
from common.transport.link import links_from_csv
from mapa.scenario_patterns import FOLDER, PREFIX, RECIPES, line_of, recipe_names, values_of

_MOST = 1 << 20  # bytes of a scenario
SHIPPED = Path(__file__).parent / "scenarios"


def shipped_names() -> list[str]:
    """Return the names of all scenarios that come with mapa, but for the figures' lines."""
    return sorted([*(path.stem for path in SHIPPED.glob("*.toml")), *recipe_names()])


def find_scenario(name: str) -> Path:
    """Return the file of a shipped scenario's name, or of a path."""
    path = Path(name)
    if path.suffix == ".toml" or len(path.parts) > 1:
        if path.is_file():
            return path
        raise ConfigurationError(f"scenario = {name!r}: no such file")
    shipped = SHIPPED / f"{name}.toml"
    if shipped.is_file():
        return shipped
    near = nearest(name, shipped_names())
    raise ConfigurationError(
        f"scenario = {name!r}: no such file, and no shipped scenario (as quickstart is; see `mapa scenarios`){near}"
    )


def read_scenario(name: str) -> tuple[Path, dict[str, Any]]:
    """Return a scenario's file and its unchecked values; what patterns give has the file that it would be."""
    line = line_of(name)
    if line is not None:
        return FOLDER / f"{line}.toml", values_of(line)
    if name in recipe_names():
        return RECIPES / f"{name}.toml", values_of(name)
    if name.startswith(PREFIX) and not Path(name).is_file():
        raise ConfigurationError(
            f"scenario = {name!r}: no such file, and no line of a figure; `mapa scenario list --figures` lists them"
        )
    path = find_scenario(name)
    try:
        content = regular_bytes(path.resolve(), _MOST)  # a link that the caller names may lead to it
        values = tomllib.loads(content.decode("utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigurationError(f"{path}: not valid TOML: {error}") from error
    _find_code(values, path.parent)
    return path, values


def load_scenario(
    name: str, changes: Sequence[str] = (), *, seed: int | None = None, edges: int | None = None
) -> tuple[str, Scenario]:
    """Return (short name, checked scenario) with every --set KEY=VALUE applied."""
    path, values = read_scenario(name)
    changed = {key: _apply(values, key, text) for key, text in map(_split, changes)}
    if seed is not None:
        values["seed"] = seed
    if edges is not None:
        values["edges"] = edges
    return path.stem, checked_scenario(values, path.parent, changed)


def checked_scenario(values: dict[str, Any], folder: Path, changed: Mapping[str, Any]) -> Scenario:
    """Check a scenario's values as a whole. `folder` is its file's; `changed` are the keys that the user set.

    What the scenario names is looked for in that folder: its code, after all that is installed, and its files;
    a file that the user set, where the user is.
    """
    _find_code(values, folder)
    _drop_the_other_parameter(values, changed)
    delays, links = values.get("delays"), values.get("links")
    if isinstance(delays, dict) and isinstance(delays.get("file"), str) and "delays.file" not in changed:
        delays["file"] = str(folder / delays["file"])
    if isinstance(links, str):
        values["links"] = _link_tables(Path(links) if "links" in changed else folder / links)
    _read_traces(values, folder, changed)
    return parse_scenario(values)


def _read_traces(values: dict[str, Any], folder: Path, changed: Mapping[str, Any]) -> None:
    """Put the windows of a CSV into the scenario's own tables, a device for each edge: edges never see the file.

    An edge that the file does not name takes the windows of one that it does, in turn.
    """
    devices, edges = values.get("devices"), values.get("edges", 5)
    if not isinstance(devices, list) or type(edges) is not int or not 0 < edges <= 100_000:
        return  # whatever is wrong with them the scenario says
    if not any("file" in _availability(device) for device in devices):
        return
    known: dict[str, dict[int, list[Span]]] = {}
    expanded, total = [], 0
    for k in range(edges):
        device = devices[k % len(devices)]
        given = dict(_availability(device))
        name = given.pop("file", None)
        if isinstance(name, str):
            path = Path(name) if "devices" in changed else folder / name
            windows = known.get(name) or known.setdefault(name, windows_from_csv(path))
            own = windows.get(k) or windows[list(windows)[k % len(windows)]]
            total += len(own)
            if total > MOST_ROWS:
                raise ConfigurationError(
                    f"devices.availability.file = {name!r}: makes more than {MOST_ROWS} windows for {edges} edges"
                )
            last = max(end for spans in windows.values() for _, end in spans)
            given = {"period": last, **given, "windows": [list(span) for span in own]}
            always = own == [(0.0, given["period"])]
            device = _always_there(device) if always else {**device, "availability": given}
        expanded.append(device)
    values["devices"] = expanded


def _always_there(device: Mapping[str, Any]) -> dict[str, Any]:
    """Return the device without its times; one that was given nothing else is an ordinary one."""
    rest = {key: value for key, value in device.items() if key != "availability"}
    return rest if set(rest) - {"name"} or rest.get("name") in PRESETS else {**rest, "slowdown": 1.0}


def _availability(device: object) -> Mapping[str, Any]:
    given = device.get("availability") if isinstance(device, Mapping) else None
    return given if isinstance(given, Mapping) else {}


def _find_code(values: Mapping[str, Any], folder: Path) -> None:
    """Let the classes of the user's own be found beside the scenario that names them."""
    for key, path in code_named_by(values):
        use_code_beside(path, folder, key)


def changed_by(values: dict[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    """Return unchecked values with every --set KEY=VALUE applied."""
    for key, text in map(_split, changes):
        _apply(values, key, text)
    return values


def data_set_of(name: str, changes: Sequence[str] = ()) -> str:
    """Return the data set that a scenario names; the rest of it is not checked, as it may lack other changes."""
    named = [change for change in changes if _split(change)[0] == "data.set"]
    data = changed_by(read_scenario(name)[1], named).get("data", {})
    return str(data.get("set", "mnist-5k")) if isinstance(data, dict) else "mnist-5k"


def _link_tables(path: Path) -> list[dict[str, Any]]:
    """Return the links of a CSV as the scenario's own tables: edges never see the file."""
    return [
        {**asdict(link), "distribution": link.distribution.value, "partitions": list(link.partitions)}
        for link in links_from_csv(path)
    ]


def _split(change: str) -> tuple[str, str]:
    key, equals, text = change.partition("=")
    if not equals or not key.strip():
        raise ConfigurationError(f"--set {change!r}: must be KEY=VALUE, e.g. algorithm.theta=0.5")
    return key.strip(), text.strip()


def _apply(values: dict[str, Any], key: str, text: str) -> Any:
    """Set one dotted key; the value is TOML where it parses as such, else a string; empty removes the key."""
    *tables, last = key.split(".")
    table = table_in(values, tables, f"--set {key}")
    if not text:
        table.pop(last, None)
        return None
    try:
        table[last] = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        table[last] = text
    return table[last]


def table_in(values: dict[str, Any], tables: Sequence[str], key: str) -> dict[str, Any]:
    """Return an inner table, made where it is missing; `key` is named where something else is there."""
    for part in tables:
        values = values.setdefault(part, {})
        if not isinstance(values, dict):
            raise ConfigurationError(f"{key}: {part} is not a table")
    return values


def _drop_the_other_parameter(values: dict[str, Any], changed: Mapping[str, Any]) -> None:
    """Changing the noise law leaves the file's parameter of the old law without meaning: drop it."""
    privacy = values.get("privacy")
    if not isinstance(privacy, dict) or not any(key.startswith("privacy.") for key in changed):
        return
    name = privacy.get("noise", "gaussian")
    if not isinstance(name, str):
        return
    law = describe_law(name, "privacy.noise")
    own, calibrated = {*law.names, *law.limits}, law.made.calibrated
    others = [key for key in privacy if laws_with(key) and key not in own]
    if calibrated is None or f"privacy.{calibrated}" in changed:
        others.append("releases")
    for key in others:
        if f"privacy.{key}" not in changed:
            privacy.pop(key, None)
