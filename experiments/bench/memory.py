"""Memory of an edge's process while it trains on a real Mosquitto, over what a small board can spare."""

from __future__ import annotations

import re
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from common.errors import MapaError
from common.records.directory import RunDirectory
from common.transport.connection import Credentials
from common.wire.topics import run_id
from experiments.bench.ratios import Ratio
from mapa.brokers import private_mosquitto
from mapa.cloud_run import Setting, open_cloud
from mapa.process_run import edge_processes
from mapa.run_view import PlainView
from mapa.scenario_files import load_scenario

_EDGES = 3
_UPDATES = 60  # of each edge, before anybody looks
_MEGA = 1e6

# name, bar in MB, scenario, changes, options of the edges
CASES: Sequence[tuple[str, float, str, Sequence[str], Sequence[str]]] = (
    ("LR edge with a budget", 60, "quickstart", (), ("--total-epsilon", "3")),  # its accountant must not stay
    ("CNN edge", 260, "cnn-mnist", ("data.set=mnist-5k",), ()),  # batches of other sizes leave holes
)


def memory_ratios(data_dir: Path) -> Iterator[Ratio]:
    for name, bar, scenario, changes, extra in CASES:
        found = measure(scenario, [*changes, "iterations=1000000"], extra, data_dir)
        own, resident = (statistics.median(column) / _MEGA for column in zip(*found, strict=True))
        detail = f"{own:.1f} MB its own, {resident:.1f} MB resident; median of {len(found)} edges"
        yield Ratio(f"{name}: its own memory / {bar:g} MB", own / bar, 1.0, True, detail)


def measure(
    name: str, changes: Sequence[str], extra: Sequence[str], data_dir: Path
) -> list[tuple[float, float]]:
    """Return the bytes that each edge process holds itself, and those resident, once all of them train."""
    _, scenario = load_scenario(name, list(changes), edges=_EDGES)
    setting = Setting.of(scenario, data_dir)
    run, found = run_id("memory"), list[tuple[float, float]]()
    with (
        tempfile.TemporaryDirectory() as text,
        private_mosquitto(Path(text) / "broker") as broker,
        RunDirectory(Path(text) / "records") as directory,
        open_cloud(
            setting,
            run=run,
            broker=broker.address,
            credentials=Credentials(),
            directory=directory,
            view=PlainView(setting.scenario, Console(quiet=True)),
            edges_at_least=_EDGES,
        ) as cloud,
        edge_processes(
            setting.scenario,
            run=run,
            broker=broker.address,
            directory=directory.path,
            data_dir=data_dir,
            counts=[1] * _EDGES,
            extra=extra,
        ) as children,
    ):
        former, over = cloud.service.on_records, list[str]()

        def look() -> None:
            former()
            if not found and cloud.service.server.updates >= _UPDATES * _EDGES:
                found.extend(held_by(child.pid) for child in children.children)
                cloud.service.halt("interrupted")

        cloud.service.on_records = look
        children.watch(cloud.loop, over, lambda: cloud.service.halted is not None)
        cloud.serve()
        if not found:
            raise MapaError(f"{name}: no memory was measured: {' '.join(over)}")
    return found


def held_by(pid: int) -> tuple[float, float]:
    """Return anonymous and resident bytes of a process, as Linux counts them."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    kilobytes = {key: int(value) for key, value in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)}
    return 1024.0 * kilobytes["Anonymous"], 1024.0 * kilobytes["Rss"]
