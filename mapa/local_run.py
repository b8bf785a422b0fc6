"""One scenario in processes on this machine: a broker, the cloud in this process, edges as child processes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from common.errors import MapaError
from common.own_code import code_named_by
from common.quantities import RunId
from common.scenario.scenario import Scenario
from common.transport.connection import BrokerAddress
from common.transport.loop import SelectorLoop
from edge.policy import is_owned
from mapa.children import ends_with_parent
from mapa.environment import without_options
from mapa.threads import one_thread

_LOOK_EVERY = 0.5  # seconds between two looks at the children
_GRACE = 20.0  # seconds for edges to end after the halt, all of them together
_LAST = 5.0  # seconds for those that were told to go


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

    @property
    def all_ended(self) -> bool:
        return all(child.poll() is not None for child in self.children)

    def complaint(self) -> str:
        """Return the last words of the first child that failed."""
        for child, log in zip(self.children, self.logs, strict=True):
            if child.poll():
                words = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-5:]
                return f"an edge process exited with code {child.returncode}: " + " | ".join(words)
        return "all edge processes have exited"

    def watch(self, loop: SelectorLoop, over: list[str], halted: Callable[[], bool]) -> None:
        """Stop the loop once no edge is left to finish the run; after the halt it stops when x is evaluated."""
        if halted():
            return
        if self.all_ended:
            over.append(self.complaint())
            loop.stop()
        else:
            loop.call_later(_LOOK_EVERY, lambda: self.watch(loop, over, halted))


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
    """Start the edges; at the end wait for them, and stop by its id whoever does not go."""
    running = EdgeProcesses()
    with contextlib.ExitStack() as files:
        try:
            for number, count in enumerate(counts):
                log = directory / f"edges-{number}.log"
                stream: IO[bytes] = files.enter_context(log.open("wb"))
                arguments = edge_arguments(scenario, run, broker, directory / "state", data_dir, count)
                running.children.append(
                    subprocess.Popen(
                        ends_with_parent([*arguments, *extra]),
                        stdin=subprocess.DEVNULL,
                        stdout=stream,
                        stderr=stream,
                        env=without_options(one_thread_each()),  # its arguments say all
                        start_new_session=True,  # Ctrl-C is the cloud's to pass on
                    )
                )
                running.logs.append(log)
            yield running
        except BaseException:
            running.patience = 0.0
            raise
        finally:
            _end(running.children, running.patience)


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
    """Return the dotted paths that an edge of this scenario imports; who starts both sides allows them."""
    named = code_named_by(scenario.model_dump(include={"model", "data", "privacy", "local"}, by_alias=True))
    return list(dict.fromkeys(path for _, path in named))


def one_thread_each() -> dict[str, str]:
    """Return an environment in which numpy and torch keep to one core, unless the user's own says otherwise."""
    environ = dict(os.environ)
    one_thread(environ)
    return environ


def _end(children: Sequence[subprocess.Popen[bytes]], patience: float) -> None:
    """Wait for all together; stop whoever is left, at once where the wait itself is interrupted."""
    try:
        _await(children, patience)
    finally:
        for child in children:
            if child.poll() is None:
                child.terminate()
        _await(children, _LAST)
        for child in children:
            if child.poll() is None:
                child.kill()
                child.wait()


def _await(children: Sequence[subprocess.Popen[bytes]], seconds: float) -> None:
    until = time.monotonic() + seconds
    for child in children:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(max(0.0, until - time.monotonic()))
