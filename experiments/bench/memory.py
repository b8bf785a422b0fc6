"""Memory of edges that train on a real Mosquitto, and of cloud and edges at a million parameters."""

from __future__ import annotations

import contextlib
import json
import re
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from experiments.bench.bed import cloud_bed
from experiments.bench.large_model import Bilinear, Quadrants, large_scenario
from experiments.bench.ratios import Ratio
from mapa.runs import NewRun

_EDGES = 3
_UPDATES = 60  # of each edge, before anything is measured
_LARGE_EDGES, _LARGE_UPDATES = 5, 200
_CLOUD_MB, _EDGE_MB = 500, 150  # at a million parameters
_LOOK_EVERY = 0.05  # seconds; the kernel keeps the highest mark, so only the last look counts
_MEGA = 1e6

# name, bar in MB, scenario, settings, options of the edges
CASES: Sequence[tuple[str, float, str, Sequence[str], Sequence[str]]] = (
    ("LR edge with a budget", 60, "quickstart", (), ("--total-epsilon", "3")),  # its accountant must not stay
    ("CNN edge", 260, "cnn-mnist", ("data.set=mnist-5k",), ()),  # batches of other sizes leave holes
)


def memory_ratios() -> Iterator[Ratio]:
    for name, bar, scenario, settings, options in CASES:
        with cloud_bed(scenario, _EDGES, [*settings, "iterations=1000000"]) as bed:
            edges, tail = [bed.edge(*options) for _ in range(_EDGES)], NewRun(bed.runs)
            bed.until(lambda tail=tail: tail.updates >= _UPDATES * _EDGES, "updates")  # type: ignore[misc]
            held = [held_by(edge.pid) for edge in edges]
            bed.end()
        own, resident = (statistics.median(column) / _MEGA for column in zip(*held, strict=True))
        detail = f"{own:.1f} MB its own, {resident:.1f} MB resident; median of {len(held)} edges"
        yield Ratio(f"{name}: its own memory / {bar:g} MB", own / bar, 1.0, True, detail)


def large_model_ratios() -> Iterator[Ratio]:
    """Read the highest memory of a run's processes while they live."""
    own = [
        word for part in (Quadrants, Bilinear) for word in ("--allow", f"{part.__module__}:{part.__name__}")
    ]
    with tempfile.TemporaryDirectory() as folder:
        scenario = Path(folder) / "large.toml"
        scenario.write_text(_toml(large_scenario(edges=_LARGE_EDGES, iterations=_LARGE_UPDATES)))
        with cloud_bed(str(scenario), _LARGE_EDGES) as bed:
            edges = [bed.edge(*own) for _ in range(_LARGE_EDGES)]
            marks = dict.fromkeys((child.pid for child in (bed.cloud, *edges)), 0.0)
            while bed.cloud.poll() is None:
                marks = {pid: max(mark, _highest(pid)) for pid, mark in marks.items()}
                time.sleep(_LOOK_EVERY)
            summary = bed.summary()
    cloud, *edge_marks = (mark / _MEGA for mark in marks.values())
    what = f"K = {_LARGE_EDGES}, N = {summary['parameters']:,}"
    did = f"{summary['updates']} updates, {summary['iterations_per_second']:.1f}/s, {summary['reason']}"
    detail = f"{cloud:.0f} MB at most; {did}"
    yield Ratio(f"{what}: the cloud's memory / {_CLOUD_MB} MB", cloud / _CLOUD_MB, 1.0, True, detail)
    most = max(edge_marks)
    detail = f"{most:.0f} MB at most, the largest of {len(edge_marks)} edges"
    yield Ratio(f"{what}: an edge's memory / {_EDGE_MB} MB", most / _EDGE_MB, 1.0, True, detail)


def held_by(pid: int) -> tuple[float, float]:
    """Return anonymous and resident bytes of a process, as Linux counts them."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    kilobytes = {key: int(value) for key, value in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)}
    return 1024.0 * kilobytes["Anonymous"], 1024.0 * kilobytes["Rss"]


def _highest(pid: int) -> float:
    with contextlib.suppress(OSError):  # it has ended meanwhile
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(encoding="ascii"))
        return 0.0 if found is None else 1024.0 * int(found[1])
    return 0.0


def _toml(values: dict[str, object]) -> str:
    tables = {key: value for key, value in values.items() if isinstance(value, dict)}
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items() if key not in tables]
    for name, table in tables.items():
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items())]
    return "\n".join([*lines, ""])
