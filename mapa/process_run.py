"""A run in processes on this machine: a broker, the cloud in this process, edges as child processes."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

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
PROCESSES = 8  # of edges, at most, unless the user says otherwise
_OWN_BROKER = 2.0  # seconds for the halt where the broker is ours: one that has died does not come back


class EdgesFailedError(MapaError):
    """Every edge process ended before the run did."""


def edge_counts(edges: int, processes: int) -> list[int]:
    """Spread the edges over processes, as evenly as can be."""
    processes = max(1, min(processes, edges))
    share, rest = divmod(edges, processes)
    return [share + (i < rest) for i in range(processes)]


@dataclass(slots=True)
class EdgeProcesses:
    """The children, and what they said."""

    children: list[subprocess.Popen[bytes]] = field(default_factory=list)
    logs: list[Path] = field(default_factory=list)
    patience: float = _GRACE  # seconds to wait for them at the end; 0: no halt can reach them

    def watch(self, loop: Loop, over: list[str], halted: Callable[[], bool]) -> None:
        """Stop the loop once no edge is left to finish the run; after the halt it stops when x is evaluated."""
        if halted():
            return
        if all(child.poll() is not None for child in self.children):
            over.append(self._complaint())
            loop.stop()
        else:
            loop.call_later(_LOOK_EVERY, lambda: self.watch(loop, over, halted))

    def _complaint(self) -> str:
        """Return the last words of the first child that failed."""
        for child, log in zip(self.children, self.logs, strict=True):
            if child.poll():
                return f"an edge process exited with code {child.returncode}: {last_lines(log, 5)}"
        return "all edge processes have exited"

    def end(self) -> None:
        """Wait for all together; then stop those that are left, at once where the wait itself is interrupted."""
        try:
            await_children(self.children, self.patience)
        finally:
            stop_children(*self.children)


@contextlib.contextmanager
def edge_processes(
    scenario: Scenario,
    *,
    run: RunId,
    broker: BrokerAddress,
    directory: Path,
    data_dir: Path,
    counts: Sequence[int],
    extra: Sequence[str] = (),
) -> Iterator[EdgeProcesses]:
    running = EdgeProcesses()
    try:
        for number, count in enumerate(counts):
            log = directory / f"edges-{number}.log"
            arguments = edge_arguments(scenario, run, broker, directory / "state", data_dir, count)
            with log.open("wb") as stream:
                running.children.append(start_child([*arguments, *extra], stdout=stream, stderr=stream))
            running.logs.append(log)
        yield running
    except BaseException:
        running.patience = 0.0
        raise
    finally:
        running.end()


def edge_arguments(
    scenario: Scenario, run: RunId, broker: BrokerAddress, state: Path, data_dir: Path, count: int
) -> list[str]:
    arguments = [sys.executable, "-P", "-m", "mapa.cli", "edge"]
    arguments += ["--broker", str(broker), "--run", run, "--count", str(count)]
    arguments += ["--state-dir", str(state), "--data-dir", str(data_dir)]
    for name in dotted_paths(scenario):
        arguments += ["--allow", name]
    return [*arguments, *permitted(scenario)]


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
    processes: int = PROCESSES,
    say: IO[str] | None = None,
) -> dict[str, Any]:
    """Train with a broker, the cloud in this process, and edges in others; write the records, return the summary."""
    scenario, ours = setting.scenario, private(broker)
    run = run_id(new_run_id(name, most=LONGEST - STAMP))  # its name on the broker, too
    over: list[str] = []
    limit = setting.payload_bytes
    with (
        open_records(runs / run) as directory,
        resolve_broker(broker, directory.path / "broker", max_payload=limit, say=say) as address,
        view,
    ):
        with (
            open_cloud(
                setting,
                run=run,
                broker=address,
                credentials=Credentials(),
                directory=directory,
                view=view,
                edges_at_least=scenario.workers,
            ) as cloud,
            edge_processes(
                scenario,
                run=run,
                broker=address,
                directory=directory.path,
                data_dir=data_dir,
                counts=edge_counts(scenario.workers, processes),
                extra=edge_code(scenario),
            ) as children,
        ):
            write_manifest(directory, setting, name=name, engine="processes")
            cloud.patience = _OWN_BROKER if ours else cloud.patience
            children.watch(cloud.loop, over, lambda: cloud.service.halted is not None)
            reason = cloud.serve()
            failed = bool(over) and cloud.service.halted is None
            if cloud.channel.owing:
                children.patience = 0.0  # they will not hear of the halt
            if not failed:  # the records first: edges take their time, and a second Ctrl-C takes it away
                return record_cloud(cloud, name=name, reason=reason, engine="processes", own_edges=True)
        raise EdgesFailedError(over[0])
