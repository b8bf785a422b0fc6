"""SIGKILLs of a cloud at random instants: python -m experiments.recovery --kills 200

Real processes on a real Mosquitto. Each cloud but the first is `mapa cloud --resume`. Watched are the models on the
wire: a version that is sent again must have the same bytes, so no answered update is lost and none is applied twice.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cloud import history, service
from common.errors import MapaError
from common.quantities import RunId
from common.records.log_format import Entry, Kind, pack_record
from common.records.log_writer import LogWriter
from common.transport.connection import BrokerAddress, MqttOptions
from common.transport.loop import SelectorLoop
from common.transport.mqtt import MqttChannel
from common.wire.topics import EdgeTopic, every_edge
from common.wire.v1 import HEADER, HEADER_BYTES
from edge.sqlite_ledger import ledger_snapshot
from mapa.brokers import private_mosquitto
from mapa.verification.check import Status
from mapa.verification.verify import Verification

_PATIENCE = 600.0  # seconds; reached only where something hangs
_RUN = RunId("killed")
_LATEST = 0.02  # seconds between the version that is waited for and the kill, at most
_EARLY = 0.15  # share of the kills that come while a cloud starts


class RecoveryFailedError(MapaError):
    """A run did not survive."""


def check(holds: bool, what: str) -> None:
    if not holds:
        raise RecoveryFailedError(what)


@dataclass(slots=True)
class Watch:
    """Every model on the wire: version → digest of its bytes."""

    versions: dict[int, bytes] = field(default_factory=dict)
    newest: int = 0
    again: int = 0  # versions that were sent more than once
    wrong: list[int] = field(default_factory=list)  # and once with other bytes

    def on_model(self, _topic: str, payload: bytes) -> None:
        version = HEADER.unpack_from(payload)[2]
        digest = hashlib.sha256(memoryview(payload)[HEADER_BYTES:]).digest()
        former = self.versions.setdefault(version, digest)
        self.again += former is not digest
        if former != digest:
            self.wrong.append(version)
        self.newest = max(self.newest, version)


@dataclass(slots=True)
class Fault:
    """Where a cloud kills itself: at which point, and when it comes there for the how-manieth time."""

    point: str  # one of cloud/history.py's, or `torn`: in the midst of a record
    nth: int

    def set(self) -> None:
        """Put the fault into this process; checkpoints come often, lest one waits for them."""
        history.EVERY_SECONDS = history._SHARE = 0
        service._RECORD_EVERY = 0.02
        append = LogWriter.append

        def reached(point: str) -> None:
            self.nth -= point == self.point
            if self.nth == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        def torn(log: LogWriter, entry: Entry) -> None:
            if entry.kind is Kind.GRADIENT:
                self.nth -= 1
            if self.nth == 0:
                part = b"".join(pack_record(entry))
                with log.path.open("ab") as stream:
                    stream.write(part[: len(part) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            append(log, entry)

        if self.point == "torn":
            LogWriter.append = torn  # type: ignore[method-assign,assignment]
        else:
            history.History.at = staticmethod(reached)


class Programs:
    """The edges and one cloud after another, forked from a process that has imported everything."""

    def __init__(self, directory: Path, broker: BrokerAddress) -> None:
        self._directory, self._broker = directory, broker
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["mapa.cli", "mapa.commands.cloud", "mapa.commands.edge"])
        self._cloud: Any = None
        self._edges: Any = None
        self._clouds = 0

    @property
    def run(self) -> Path | None:
        """The directory of the run, once it has begun."""
        found = list((self._directory / "runs").glob("*/manifest.json"))
        return found[0].parent if found else None

    def edges(self, count: int) -> None:
        words = ["edge", "--run", _RUN, "--count", str(count), "--state-dir", str(self._directory / "state")]
        self._edges = self._start([*words, "--connect-timeout", "600"], "edges.log")

    def cloud(self, *words: str, fault: Fault | None = None) -> None:
        self._clouds += 1
        runs = ["--runs-dir", str(self._directory / "runs")]
        self._cloud = self._start(["cloud", *words, *runs], f"cloud-{self._clouds}.log", fault)

    def resume_or(self, words: list[str]) -> list[str]:
        """Return how the next cloud is to start: as a new one where nothing has begun."""
        return words if self.run is None else ["--resume", str(self.run)]

    def kill_cloud(self) -> None:
        self._cloud.kill()
        self._cloud.join()

    def wait(self, condition: Callable[[], bool]) -> None:
        until = time.monotonic() + _PATIENCE
        while not condition():
            check(self._cloud.is_alive(), f"the cloud ended with {self._cloud.exitcode}: {self.words()}")
            check(time.monotonic() < until, f"in vain after {_PATIENCE:g} s: {self.words()}")
            time.sleep(0.001)

    def cloud_ends(self) -> int | None:
        self._cloud.join(_PATIENCE)
        code: int | None = self._cloud.exitcode
        return code

    def edges_end(self) -> int | None:
        self._edges.join(_PATIENCE)
        code: int | None = self._edges.exitcode
        return code

    def words(self) -> str:
        """Return what the last cloud said."""
        log = self._directory / f"cloud-{self._clouds}.log"
        return log.read_text()[-2000:] if log.exists() else "nothing was said"

    def end(self) -> None:
        for program in (self._cloud, self._edges):
            if program is not None and program.is_alive():
                program.kill()
                program.join()

    def _start(self, words: list[str], log: str, fault: Fault | None = None) -> Any:
        arguments = [*words, "--broker", str(self._broker)]
        program = self._context.Process(target=_program, args=(arguments, str(self._directory / log), fault))
        program.start()
        return program


def _program(arguments: list[str], log: str, fault: Fault | None) -> None:
    """Be `mapa` with these arguments, up to the fault."""
    if fault is not None:
        fault.set()
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.argv = ["mapa", *arguments]
    from mapa.cli import main as mapa

    mapa()


@dataclass(slots=True)
class Outcome:
    """What is left of a run."""

    kills: int
    summary: dict[str, Any]
    again: int
    resumed: list[int]  # updates at each resume

    def __str__(self) -> str:
        updates, accuracy = self.summary["updates"], self.summary["final_accuracy"]
        return (
            f"{self.kills} kills, resumed at {self.resumed}: {updates} updates,"
            f" {self.again} models sent again, accuracy {accuracy:.4f}"
        )


def killed_run(
    directory: Path,
    *,
    kills: int = 0,
    faults: Sequence[Fault] = (),
    seed: int,
    edges: int = 3,
    updates: int = 600,
    settings: tuple[str, ...] = (),
    say: Callable[[str], None] = print,
) -> Outcome:
    """Train once with so many SIGKILLs of the cloud; raise RecoveryFailedError where anything is lost or doubled.

    First it is killed at each of the `faults`, then at random instants.
    """
    rng = random.Random(seed)
    directory.mkdir(parents=True, exist_ok=True)
    with private_mosquitto(directory / "broker") as broker:
        watch = Watch()
        loop = SelectorLoop()
        options = MqttOptions(address=broker.address, client_id="watch")
        channel = MqttChannel(options, loop)
        channel.subscribe(every_edge(_RUN, EdgeTopic.MODEL), watch.on_model)
        channel.connect(60.0)
        watching = threading.Thread(target=loop.run, daemon=True)
        watching.start()
        programs = Programs(directory, broker.address)
        try:
            programs.edges(edges)
            words = ["quickstart", "--run", _RUN, "--edges-at-least", str(edges), "--edges", str(edges)]
            words += ["--seed", str(seed), "--set", f"iterations={updates}"]
            for setting in settings:
                words += ["--set", setting]
            for fault in faults:
                programs.cloud(*programs.resume_or(words), fault=fault)
                check(programs.cloud_ends() == -signal.SIGKILL, f"no end at {fault}: {programs.words()}")
            programs.cloud(*programs.resume_or(words))
            for number in range(kills):
                target = 1 + int(updates * (number + rng.random()) / (kills + 1))
                if rng.random() < _EARLY and programs.run is not None:
                    time.sleep(rng.uniform(0, 1.0))
                else:
                    programs.wait(lambda at=target: watch.newest >= at)  # type: ignore[misc]
                    time.sleep(rng.uniform(0, _LATEST))
                programs.kill_cloud()
                programs.cloud(*programs.resume_or(words))
            check(programs.cloud_ends() == 0, f"the last cloud failed: {programs.words()}")
            check(programs.edges_end() == 0, "an edge failed")
        finally:
            programs.end()
            loop.stop()
            watching.join()
            channel.abort()
            loop.close()
    check(not watch.wrong, f"versions {watch.wrong[:5]} were sent with different bytes")
    run = programs.run
    assert run is not None
    resumed = check_records(run, updates, watch.newest)
    check_ledgers(directory / "state", run)
    check_verified(run, directory / "state")
    outcome = Outcome(
        kills + len(faults), json.loads((run / "summary.json").read_text()), watch.again, resumed
    )
    say(str(outcome))
    return outcome


def check_records(run: Path, updates: int, newest: int) -> list[int]:
    """Check that every update is on record once, and return where the run was resumed."""
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    applied = [event for event in events if event["event"] == "gradient_applied"]
    check([event["t"] for event in applied] == list(range(1, updates + 1)), "updates are missing or doubled")
    pairs = {(event["edge_id"], event["sequence"]) for event in applied}
    check(len(pairs) == updates, "a gradient was applied twice")
    check(newest <= updates, "a version beyond the last update was sent")
    times = [event["time"] for event in applied]
    check(times == sorted(times), "the run's clock went back")
    stages = [event["stage"] for event in events if event["event"] == "stage_opened"]
    check(stages == sorted(set(stages)), "a stage was opened twice")
    summary = json.loads((run / "summary.json").read_text())
    check(summary["updates"] == updates and summary["reason"] == "finished", "the run did not finish")
    check(sum(edge["applied"] for edge in summary["edges"]) == updates, "the tally lost an update")
    evaluated = [event["t"] for event in events if event["event"] == "evaluated"]
    check(evaluated == sorted(set(evaluated)), "an evaluation is missing its place")
    return [event["t"] for event in events if event["event"] == "resumed"]


def check_ledgers(state: Path, run: Path) -> None:
    """Check that every edge has debited what was applied of it: released ≥ applied."""
    summary = json.loads((run / "summary.json").read_text())
    released: dict[str, int] = {}
    for path in sorted(state.glob("*/ledger.sqlite3")):
        with ledger_snapshot(path.parent) as ledger:
            released.update({one.edge_id: one.releases for one in ledger.standings()})
    for edge in summary["edges"]:
        debited = released.get(edge["edge_id"], 0)
        check(debited >= edge["last_sequence"] == edge["applied"], f"{edge['edge_id']}: ledger {debited}")


def check_verified(run: Path, state: Path) -> None:
    """Check all that `mapa verify` does: log, exactly-once, ledgers, ε, and that the log makes the run's very model."""
    slots = [path.parent for path in sorted(state.glob("*/ledger.sqlite3"))]
    for one in Verification.of(run, frozenset(), slots).checks():
        check(one.status is not Status.FAILED, f"mapa verify: {one.name} of {one.part}: {one.detail}")
        unasked = one.name in ("log", "exactly once", "model") and one.status is not Status.PASSED
        check(not unasked, f"mapa verify: {one.name} was not checked: {one.detail}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--runs", type=int, default=0, help="default: one for every 20 kills")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    runs = given.runs or math.ceil(given.kills / 20)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        undisturbed = killed_run(Path(folder) / "quiet", kills=0, seed=given.seed)
        shares = [given.kills // runs + (number < given.kills % runs) for number in range(runs)]
        outcomes = [
            killed_run(Path(folder) / f"run-{number}", kills=share, seed=given.seed + number)
            for number, share in enumerate(shares)
        ]
    accuracies = [outcome.summary["final_accuracy"] for outcome in outcomes]
    print(
        f"{sum(outcome.kills for outcome in outcomes)} SIGKILLs in {len(outcomes)} runs and"
        f" {time.monotonic() - began:.0f} s: nothing lost, nothing twice; accuracy {min(accuracies):.4f} …"
        f" {max(accuracies):.4f}, undisturbed {undisturbed.summary['final_accuracy']:.4f}"
    )


if __name__ == "__main__":
    main()
