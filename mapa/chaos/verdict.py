"""Whether a run under faults came through, judged by its records, its log, its ledgers, the wire and its processes.

Nothing here asks the cloud's own code: counts are taken from the evidence, so that a cloud which applies an update
twice, and records it everywhere alike, does not pass.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

from cloud.recovery_log import USED_UP
from common.errors import ConfigurationError, MapaError
from common.quantities import RunId
from common.records.gradient_log import Kind, LogReader
from common.records.reader import read_events, read_json
from common.transport.connection import BrokerAddress, MqttOptions
from common.transport.loop import SelectorLoop
from common.transport.mqtt import MqttChannel
from common.wire.codings.registry import CODINGS
from common.wire.topics import EdgeTopic, every_edge
from common.wire.v1 import HEADER, HEADER_BYTES, MODEL_MARK
from mapa.verification.untrusted_files import LedgerStatement, find_ledgers
from mapa.verification.verify import verify

# checks of `mapa verify` that must have passed: "not checked" is not enough
REQUIRED = {"scenario", "versions", "log", "replay", "continuity", "exactly once", "events", "end", "summary"}
REQUIRED |= {"evaluations", "ledgers", "releases", "ε", "model"}
_MODELS = {MODEL_MARK, *(coding.model_mark for coding in CODINGS.values())}


class Applied(NamedTuple):
    """One gradient_applied of events.jsonl."""

    t: int
    edge_id: str
    sequence: int


class Ended(NamedTuple):
    name: str
    code: int
    allowed: tuple[int, ...]
    last_lines: str = ""  # of its output


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    iterations: int  # T
    updates: int  # by summary.json
    reason: str
    applied: Sequence[Applied]
    received: Mapping[str, int]  # distinct gradients in the log, by edge
    released: Mapping[str, int]  # by the edges' ledgers
    used_up: int  # sequences that were refused and not applied
    verified: Sequence[tuple[str, str, str]]  # check, result, detail
    reworded: Sequence[int] = ()  # versions that were on the wire with different bytes
    newest: int = 0  # the highest version on the wire
    ended: Sequence[Ended] = ()
    tracebacks: Sequence[str] = ()  # names of logs that have one


# -- what must hold -----------------------------------------------------------------------------------------


def verdict(evidence: Evidence) -> list[str]:
    """Return everything that is wrong; empty: the run came through."""
    checks = (_reached, _once, _none_lost, _released, _wire, _verified, _ends)
    return [line for check in checks for line in check(evidence)]


def _reached(evidence: Evidence) -> Iterator[str]:
    if evidence.updates != evidence.iterations or evidence.reason != "finished":
        yield f"T = {evidence.iterations} not reached: {evidence.updates} updates, {evidence.reason!r}"


def _once(evidence: Evidence) -> Iterator[str]:
    """t = 1 … T, each once; applied = distinct (edge, sequence)."""
    times = [one.t for one in evidence.applied]
    if times != list(range(1, evidence.iterations + 1)):
        wrong = next((i for i, t in enumerate(times, 1) if t != i), len(times) + 1)
        yield f"events: {len(times)} updates of {evidence.iterations}; the first missing or doubled is t = {wrong}"
    counts = Counter((one.edge_id, one.sequence) for one in evidence.applied)
    if twice := [key for key, count in counts.items() if count > 1]:
        yield f"applied twice: {len(twice)} gradients, the first is {twice[0][0]}, sequence {twice[0][1]}"


def _none_lost(evidence: Evidence) -> Iterator[str]:
    """An edge counts its releases from 1 and sends each until it is answered: a gap is an update that was lost."""
    last: dict[str, int] = {}
    for one in evidence.applied:
        if one.sequence <= last.get(one.edge_id, 0):
            yield f"{one.edge_id}: sequence {one.sequence} was applied after {last[one.edge_id]}"
            return
        last[one.edge_id] = one.sequence
    gaps = sum(last.values()) - len(evidence.applied)
    if gaps != evidence.used_up:
        yield f"{gaps} sequences were never applied, {evidence.used_up} were refused: an answered update was lost"


def _released(evidence: Evidence) -> Iterator[str]:
    applied = Counter(one.edge_id for one in evidence.applied)
    for edge_id in sorted({*applied, *evidence.received}):
        released, received = evidence.released.get(edge_id), evidence.received.get(edge_id, 0)
        if released is None:
            yield f"{edge_id}: no ledger"
        elif not released >= received >= applied[edge_id]:
            yield f"{edge_id}: released {released}, received {received}, applied {applied[edge_id]}"


def _wire(evidence: Evidence) -> Iterator[str]:
    if evidence.reworded:
        yield f"x_{evidence.reworded[0]} was sent with different bytes: an answered update was lost or doubled"
    if evidence.newest > evidence.iterations:
        yield f"x_{evidence.newest} was sent, beyond T = {evidence.iterations}"


def _verified(evidence: Evidence) -> Iterator[str]:
    results: dict[str, set[str]] = {}
    for name, result, detail in evidence.verified:
        results.setdefault(name, set()).add(result)
        if result == "failed":
            yield f"mapa verify: {name}: {detail}"
    for name in sorted(REQUIRED):
        if results.get(name) != {"passed"} and "failed" not in results.get(name, ()):
            yield f"mapa verify: {name}: {'not checked' if name in results else 'missing'}"


def _ends(evidence: Evidence) -> Iterator[str]:
    for one in evidence.ended:
        if one.code not in one.allowed:
            allowed = ", ".join(map(str, one.allowed))
            yield f"{one.name} ended with {one.code}, allowed {allowed}: {one.last_lines}"
    for name in evidence.tracebacks:
        yield f"{name}: a traceback"


# -- from the wire ------------------------------------------------------------------------------------------


class ModelWatch:
    """A client that hears every model. A version that is sent again, also by a resumed cloud, must be the same.

    It speaks to the broker without a relay, so that no fault affects it.
    """

    def __init__(self, broker: BrokerAddress, run: RunId, max_packet: int) -> None:
        self._digests: dict[tuple[bytes, int], bytes] = {}
        self.newest = 0
        self.again = 0  # versions that were sent more than once
        self.reworded: list[int] = []  # and once with other bytes
        self._loop = SelectorLoop()
        options = MqttOptions(
            address=broker, client_id=f"{run}-watch", max_packet=max_packet, min_backoff=0.05, max_backoff=0.2
        )
        self._channel = MqttChannel(options, self._loop)
        self._channel.subscribe(every_edge(run, EdgeTopic.MODEL), self._on_model)
        self._thread = threading.Thread(target=self._loop.run, name="mapa-watch", daemon=True)

    def _on_model(self, topic: str, payload: bytes) -> None:  # noqa: ARG002
        mark = payload[: len(MODEL_MARK)]
        if len(payload) < HEADER_BYTES or mark not in _MODELS:
            return
        version = HEADER.unpack_from(payload)[2]
        digest = hashlib.sha256(memoryview(payload)[HEADER_BYTES:]).digest()
        former = self._digests.setdefault((mark, version), digest)
        self.again += former is not digest
        if former != digest:
            self.reworded.append(version)
        self.newest = max(self.newest, version)

    def __enter__(self) -> Self:
        self._channel.connect(60.0)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.stop()
        self._thread.join()
        self._channel.abort()
        self._loop.close()


# -- from the disk ------------------------------------------------------------------------------------------


def gather(
    run: Path,
    iterations: int,
    states: Sequence[Path],
    watch: ModelWatch,
    ended: Sequence[Ended],
    logs: Sequence[Path],
) -> Evidence:
    """Read everything; what is missing is missing in the evidence too, and the verdict says so."""
    summary: dict[str, Any] = {}
    applied: list[Applied] = []
    logged: set[tuple[str, int]] = set()
    verified: list[tuple[str, str, str]] = []
    with contextlib.suppress(MapaError):
        summary = read_json(run / "summary.json")
        applied.extend(
            Applied(event["t"], event["edge_id"], event["sequence"])
            for event in read_events(run)
            if event["event"] == "gradient_applied"
        )
    with contextlib.suppress(OSError, MapaError):
        for entry in LogReader(run):
            if entry.kind is Kind.GRADIENT:
                logged.add((str(entry.edge_id), HEADER.unpack_from(entry.body)[2]))
    accounts: dict[Path, list[LedgerStatement]] = {}
    for state in states:
        with contextlib.suppress(ConfigurationError):  # an edge that came too late has no account
            accounts[state] = find_ledgers(run, run.resolve().name, [state]).statements
    with contextlib.suppress(OSError, MapaError):  # without them every required check is missing
        checks = verify(run, (), [state for state in accounts if accounts[state]])
        verified = [(check.name, check.status.value, check.detail) for check in checks]
    return Evidence(
        iterations=iterations,
        updates=summary.get("updates", 0),
        reason=summary.get("reason", "no summary"),
        applied=applied,
        received=Counter(edge_id for edge_id, _ in logged),
        released={one.edge_id: one.releases for statements in accounts.values() for one in statements},
        used_up=sum(summary.get("refused", {}).get(reason, 0) for reason in USED_UP),
        verified=verified,
        reworded=tuple(watch.reworded),
        newest=watch.newest,
        ended=ended,
        tracebacks=[path.name for path in logs if path.exists() and b"Traceback (most" in path.read_bytes()],
    )
