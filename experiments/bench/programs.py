"""Whole programs: `mapa run` from end to end, how long a command takes to begin, and the memory of cloud and edges."""

from __future__ import annotations

import functools
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from common.errors import MapaError
from common.quantities import RunId
from common.transport.connection import MqttOptions
from common.transport.loop import SelectorLoop
from common.transport.mqtt import MqttChannel
from common.wire.topics import EdgeTopic, every_edge
from experiments.bench.bed import MEGA, ROOT, RUN, cloud_bed, held_by, peak, python
from experiments.bench.edges import clock_of
from experiments.bench.large_model import Bilinear, Quadrants, large_scenario
from experiments.bench.rounds import Case, Figures, Ratio, Turn

_PATIENCE = 60.0
_MEMORY_EDGES, _MEMORY_UPDATES = 3, 60  # edges, and updates of each before anything is measured
_LARGE_EDGES, _LARGE_UPDATES = 5, 200
_LOOK_EVERY = 0.05  # seconds; the kernel keeps the highest mark, so only the last look counts


def trees(against: Path | None) -> dict[str, Path]:
    return {"ours": ROOT} if against is None else {"ours": ROOT, "against": against.resolve()}


def finished(*words: str, tree: Path = ROOT, folder: str | None = None) -> tuple[dict[str, float], str]:
    """Run `mapa …` to its end; return its seconds, those of processors with all that it started, and its words."""
    began = time.monotonic()
    command = python("-m", "mapa.cli", *words, tree=tree)
    with subprocess.Popen(**command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        out, complaint = child.stdout.read(), child.stderr.read()
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise MapaError(f"bench: mapa {' '.join(words)} ended with {child.returncode}: {complaint[-800:]}")
    return {"cpu": used.ru_utime + used.ru_stime, "wall": time.monotonic() - began}, out


# -- end to end -------------------------------------------------------------------------------------------------------


def run_cases(data_dir: Path, against: Path | None, updates: int) -> Iterator[Case]:
    """Yield quickstart on a Mosquitto, records and ledgers on disk with full sync, against another tree's."""

    def turn(tree: Path, edges: int, processes: int) -> Figures:
        with tempfile.TemporaryDirectory() as folder:
            words = ["run", "quickstart", "--broker", "mosquitto", "--json", "--iterations", str(updates)]
            words += ["--edges", str(edges), "--processes", str(processes), "--data-dir", str(data_dir)]
            used, out = finished(*words, "--runs-dir", folder, tree=tree, folder=folder)
        return {"rate": json.loads(out)["iterations_per_second"], "cpu": 1e6 * used["cpu"] / updates}

    for edges, processes, bar in ((20, 2, 2.5), (5, 1, 2.0)):
        turns = {
            name: functools.partial(turn, tree, edges, processes) for name, tree in trees(against).items()
        }
        name = f"mapa run quickstart, K = {edges} in {processes} process(es), T = {updates:,}"
        yield Case(name, turns, [Ratio("rate", "ours", "against", at_least=bar)], rounds=5)


# -- start-up ---------------------------------------------------------------------------------------------------------


def start_cases(data_dir: Path, against: Path | None) -> Iterator[Case]:
    """Yield the seconds of processor time until commands have done something."""
    commands: dict[str, tuple[float, Sequence[str]]] = {
        "mapa --help": (0.3, ["--help"]),
        "mapa simulate --help": (0.6, ["simulate", "--help"]),
        "mapa edge --help": (0.6, ["edge", "--help"]),
        "mapa simulate quickstart": (1.5, ["simulate", "quickstart", "--data-dir", str(data_dir)]),
    }

    def command(words: Sequence[str], tree: Path) -> Figures:
        with tempfile.TemporaryDirectory() as folder:
            return finished(*words, tree=tree, folder=folder)[0]

    bars = {what: bar for what, (bar, _) in commands.items()}
    bars |= {"first hello of an LR edge": 0.5, "first release with a budget": 1.0}
    for name, tree in trees(against).items():
        turns: dict[str, Turn] = {
            what: functools.partial(command, words, tree) for what, (_, words) in commands.items()
        }
        turns["first hello of an LR edge"] = functools.partial(_until_said, EdgeTopic.HELLO, tree)
        budget = ("--total-epsilon", "3")
        turns["first release with a budget"] = functools.partial(
            _until_said, EdgeTopic.GRADIENT, tree, *budget
        )
        ratios = [Ratio("cpu", what, at_most=bar) for what, bar in bars.items()] if name == "ours" else []
        yield Case(f"start-up, seconds: {name}", turns, ratios, rounds=5, warm=True)


def _until_said(leaf: EdgeTopic, tree: Path, *options: str) -> Figures:
    """Return what an edge takes until it says this for the first time."""
    heard: list[float] = []
    with cloud_bed("quickstart", 1, ["iterations=1000000"], tree) as bed, SelectorLoop() as loop:
        channel = MqttChannel(MqttOptions(address=bed.broker.address, client_id="bench"), loop)
        pids: list[int] = []

        def on_said(topic: str, payload: bytes) -> None:  # noqa: ARG001
            heard.append(time.clock_gettime(clock_of(pids[0])))

        channel.subscribe(every_edge(RunId(RUN), leaf), on_said, qos=1)
        channel.open()
        loop.serve(lambda: channel.connected and not channel.owing, until=loop.now() + _PATIENCE)
        pids.append(bed.edge(*options).pid)
        loop.serve(lambda: bool(heard), until=loop.now() + _PATIENCE)
        bed.check()
        channel.close()
    if not heard:
        raise MapaError(f"bench: no {leaf} within {_PATIENCE:g} s")
    return {"cpu": heard[0]}


# -- memory -----------------------------------------------------------------------------------------------------------

# name: bar in MB, scenario, settings, options of the edges
_EDGES_HELD: Mapping[str, tuple[float, str, Sequence[str], Sequence[str]]] = {
    "LR edge with a budget": (60, "quickstart", (), ("--total-epsilon", "3")),  # its accountant must not stay
    "CNN edge": (260, "cnn-mnist", ("data.set=mnist-5k",), ()),  # batches of other sizes leave holes
}


def memory_cases() -> Iterator[Case]:
    turns = {
        name: functools.partial(_edge_memory, scenario, settings, options)
        for name, (_, scenario, settings, options) in _EDGES_HELD.items()
    }
    ratios = [Ratio("own MB", name, at_most=bar) for name, (bar, *_) in _EDGES_HELD.items()]
    yield Case(f"memory: median of {_MEMORY_EDGES} edges", turns, ratios, rounds=1)


def large_cases() -> Iterator[Case]:
    bars = [Ratio("cloud MB", "ours", at_most=500), Ratio("edge MB", "ours", at_most=150)]
    yield Case(f"K = {_LARGE_EDGES}, N = 1,000,000: most memory", {"ours": _large}, bars, rounds=1)


def _edge_memory(scenario: str, settings: Sequence[str], options: Sequence[str]) -> Figures:
    with cloud_bed(scenario, _MEMORY_EDGES, [*settings, "iterations=1000000"]) as bed:
        edges = [bed.edge(*options) for _ in range(_MEMORY_EDGES)]
        bed.until(lambda: bed.updates >= _MEMORY_UPDATES * _MEMORY_EDGES, "updates")
        own, resident = zip(*(held_by(edge.pid) for edge in edges), strict=True)
        bed.end()
    return {"own MB": statistics.median(own) / MEGA, "resident MB": statistics.median(resident) / MEGA}


def _large() -> Figures:
    """Read the highest memory of a run's processes while they live."""
    parts = [f"{part.__module__}:{part.__name__}" for part in (Quadrants, Bilinear)]
    with tempfile.TemporaryDirectory() as folder:
        scenario = Path(folder) / "large.toml"
        scenario.write_text(_toml(large_scenario(edges=_LARGE_EDGES, iterations=_LARGE_UPDATES)))
        with cloud_bed(str(scenario), _LARGE_EDGES) as bed:
            allowed = [word for part in parts for word in ("--allow", part)]
            pids = [bed.cloud.pid, *(bed.edge(*allowed).pid for _ in range(_LARGE_EDGES))]
            marks = dict.fromkeys(pids, 0.0)
            while bed.cloud.poll() is None:
                marks = {pid: max(mark, peak(pid)) for pid, mark in marks.items()}
                time.sleep(_LOOK_EVERY)
            summary = bed.summary()
    cloud, *edges = marks.values()
    return {"cloud MB": cloud / MEGA, "edge MB": max(edges) / MEGA, "rate": summary["iterations_per_second"]}


def _toml(values: dict[str, object]) -> str:
    tables = {key: value for key, value in values.items() if isinstance(value, dict)}
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items() if key not in tables]
    for name, table in tables.items():
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items())]
    return "\n".join([*lines, ""])
