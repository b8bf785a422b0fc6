"""Memory of the cloud and of an edge at a million parameters: 4 MB messages through a real Mosquitto."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common.errors import MapaError
from common.own_code import code_folder
from experiments.bench.large_model import large_scenario
from experiments.bench.ratios import Ratio
from mapa.processes import ends_with_parent

_EDGES, _UPDATES = 5, 200
_CLOUD_MB, _EDGE_MB = 500, 150
_MEGA = 1e6
_LOOK_EVERY = 0.05  # seconds; the kernel keeps the highest mark, so only the last look counts


def large_model_ratios() -> Iterator[Ratio]:
    """Run the scenario as a user would, and read the highest memory of its processes while they live."""
    with tempfile.TemporaryDirectory() as text:
        summary, cloud, edges = trained(Path(text))
    rate = summary["iterations_per_second"]
    what = f"K = {_EDGES}, N = {summary['parameters']:,}"
    did = f"{summary['updates']} updates, {rate:.1f}/s, {summary['reason']}"
    yield Ratio(
        f"{what}: the cloud's memory / {_CLOUD_MB} MB",
        cloud / _MEGA / _CLOUD_MB,
        1.0,
        True,
        f"{cloud / _MEGA:.0f} MB at most; {did}",
    )
    most = max(edges) / _MEGA
    yield Ratio(
        f"{what}: an edge's memory / {_EDGE_MB} MB",
        most / _EDGE_MB,
        1.0,
        True,
        f"{most:.0f} MB at most, the largest of {len(edges)} edges",
    )


def trained(folder: Path) -> tuple[dict[str, Any], float, list[float]]:
    """Return the summary, and the most bytes that were resident in the cloud and in each edge's process."""
    scenario = folder / "large.toml"
    scenario.write_text(_toml(large_scenario(edges=_EDGES, iterations=_UPDATES)), encoding="utf-8")
    command = [sys.executable, "-m", "mapa.cli", "run", str(scenario), "--broker", "mosquitto"]
    command += ["--processes", str(_EDGES), "--runs-dir", str(folder / "runs"), "--json"]
    root = str(code_folder(f"{__name__}:trained"))
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        child = subprocess.Popen(
            ends_with_parent(command), stdout=out, stderr=err, env={**os.environ, "PYTHONPATH": root}
        )
        marks: dict[int, float] = {}
        edges: set[int] = set()
        while True:
            try:
                child.wait(_LOOK_EVERY)
                break
            except subprocess.TimeoutExpired:
                edges |= {pid for pid in _children(child.pid) if _is_edge(pid)}
                for pid in (child.pid, *edges):
                    marks[pid] = max(marks.get(pid, 0.0), _highest(pid))
    if child.returncode:
        raise MapaError(f"the run ended with code {child.returncode}: {(folder / 'err').read_text()[-500:]}")
    summary: dict[str, Any] = json.loads((folder / "out").read_text(encoding="utf-8"))
    return summary, marks[child.pid], [marks[pid] for pid in edges]


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):  # gone meanwhile
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _is_edge(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b"edge" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return False


def _highest(pid: int) -> float:
    try:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(encoding="ascii"))
    except OSError:
        return 0.0
    return 0.0 if found is None else 1024.0 * int(found[1])


def _toml(values: dict[str, object]) -> str:
    tables = {key: value for key, value in values.items() if isinstance(value, dict)}
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items() if key not in tables]
    for name, table in tables.items():
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items())]
    return "\n".join([*lines, ""])
