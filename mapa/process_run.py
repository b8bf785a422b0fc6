"""A run in processes on this machine: a broker, the cloud in this process, edges as child processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, Self

from common.errors import MapaError
from common.own_code import code_folder, code_named_by
from common.quantities import RunId
from common.records.directory import new_run_id
from common.records.layout import LONGEST, STAMP
from common.scenario.scenario import Scenario
from common.transport.channel import Loop
from common.transport.connection import BrokerAddress, Credentials
from common.wire.topics import run_id
from edge.policy import is_owned
from mapa.brokers import private, resolve_broker
from mapa.cloud_run import Setting, open_cloud
from mapa.processes import await_children, last_lines, start_child, stop_children
from mapa.recording import open_records, record_cloud, write_manifest
from mapa.run_view import View

_LOOK_EVERY = 0.5  # seconds between two looks at the children
_GRACE = 20.0  # seconds for edges to end after the halt, all of them together
_PROCESSES = 8  # of edges, at most, unless the user says otherwise
_OWN_BROKER = 2.0  # seconds for the halt where the broker is ours: one that has died does not come back


class EdgesFailedError(MapaError):
    """Every edge process ended before the run did."""


def edge_counts(edges: int, processes: int | None = None) -> list[int]:
    """Spread edges over processes; by default over one a core: more would only take turns, and start later."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    processes = max(1, min(processes or min(cores, _PROCESSES), edges))
    share, rest = divmod(edges, processes)
    return [share + (i < rest) for i in range(processes)]


class EdgeProcesses:
    """The children of a run, each with its output in a file."""

    def __init__(self) -> None:
        self.children: dict[Path, subprocess.Popen[bytes]] = {}  # by the file
        self.failure = ""  # why they have ended before the run

    def start(self, command: Sequence[str], log: Path) -> None:
        with log.open("wb") as stream:
            self.children[log] = start_child(command, stdout=stream, stderr=stream)

    def watch(self, loop: Loop, halted: Callable[[], bool]) -> None:
        """Stop the loop once no edge is left to finish the run; after the halt it stops when x is evaluated."""
        if halted():
            return
        if any(child.poll() is None for child in self.children.values()):
            loop.call_later(_LOOK_EVERY, lambda: self.watch(loop, halted))
            return
        self.failure = "all edge processes have exited"
        for log, child in self.children.items():
            if child.returncode:
                self.failure = f"an edge process exited with code {child.returncode}: {last_lines(log, 5)}"
                break
        loop.stop()

    def wait(self) -> None:
        await_children(self.children.values(), _GRACE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        stop_children(*self.children.values())


def edge_arguments(
    scenario: Scenario, run: RunId, broker: BrokerAddress, state: Path, data_dir: Path, count: int
) -> list[str]:
    arguments = [sys.executable, "-P", "-m", "mapa.cli", "edge"]
    arguments += ["--broker", str(broker), "--run", run, "--count", str(count)]
    arguments += ["--state-dir", str(state), "--data-dir", str(data_dir)]
    for name in dotted_paths(scenario):
        arguments += ["--allow", name]
    return [*arguments, *permitted(scenario), *edge_code(scenario)]


def helper_arguments(run: RunId, broker: BrokerAddress, place: int, state: Path) -> list[str]:
    arguments = [sys.executable, "-P", "-m", "mapa.cli", "helper", "--broker", str(broker), "--run", run]
    return [*arguments, "--name", f"helper-{place}", "--place", str(place), "--state-dir", str(state)]


def permitted(scenario: Scenario) -> list[str]:
    """Return the options by which edges release their owner's records as the scenario says: one person starts both."""
    if not is_owned(scenario.data.set):
        return []
    return ["--allow-unprotected", *([] if scenario.seed is None else ["--allow-seed"])]


def dotted_paths(scenario: Scenario) -> list[str]:
    """Return the dotted paths that an edge of this scenario imports; one who starts both sides allows them."""
    named = code_named_by(scenario.model_dump(include={"model", "data", "privacy", "local"}, by_alias=True))
    return list(dict.fromkeys(path for _, path in named))


def edge_code(scenario: Scenario) -> list[str]:
    """Return the options by which edges find the user's own classes in the folders where this process found them."""
    folders = dict.fromkeys(code_folder(name) for name in dotted_paths(scenario))
    return [word for folder in folders if folder is not None for word in ("--code", str(folder))]


def run_in_processes(
    setting: Setting,
    view: View,
    *,
    name: str,
    runs: Path,
    data_dir: Path,
    broker: str = "auto",
    processes: int | None = None,
    say: IO[str] | None = None,
) -> dict[str, Any]:
    """Train with a broker, the cloud in this process, and edges in others; write the records, return the summary."""
    scenario, ours = setting.scenario, private(broker)
    run = run_id(new_run_id(name, most=LONGEST - STAMP))  # its name on the broker, too
    limit, under_way = setting.payload_bytes, scenario.workers * 4 * setting.model.dimension
    with (
        open_records(runs / run) as directory,
        resolve_broker(
            broker, directory.path / "broker", max_payload=limit, under_way=under_way, say=say
        ) as address,
        view,
        EdgeProcesses() as edges,
    ):
        state = directory.path / "state"
        for number, count in enumerate(edge_counts(scenario.workers, processes)):
            command = edge_arguments(scenario, run, address, state, data_dir, count)
            edges.start(command, directory.path / f"edges-{number}.log")
        for place in range(0 if scenario.secure is None else scenario.secure.helpers):
            command = helper_arguments(run, address, place, directory.path / "helpers")
            edges.start(command, directory.path / f"helper-{place}.log")
        with open_cloud(
            setting,
            run=run,
            broker=address,
            credentials=Credentials(),
            directory=directory,
            view=view,
            edges_at_least=scenario.workers,
        ) as cloud:
            write_manifest(directory, setting, name=name, engine="processes")
            cloud.patience = _OWN_BROKER if ours else cloud.patience
            edges.watch(cloud.loop, lambda: cloud.service.halted is not None)
            reason = cloud.serve()
            if not edges.failure or cloud.service.halted is not None:
                # the records first: edges take their time, and a second Ctrl-C takes it away
                summary = record_cloud(cloud, name=name, reason=reason, engine="processes", own_edges=True)
                if not cloud.channel.owing:  # else they will not hear of the halt
                    edges.wait()
                return summary
        raise EdgesFailedError(edges.failure)
