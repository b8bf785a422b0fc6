"""Whether a run came through: what its records, its log, its ledgers, the wire and its processes say. Pure.

Nothing here asks the cloud's own code: counts are taken from the evidence, so that a cloud which applies an update
twice, and says so everywhere alike, does not pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

REQUIRED = frozenset(  # checks of `mapa verify` that must have passed: "not checked" is not enough
    {
        "scenario",
        "versions",
        "log",
        "replay",
        "continuity",
        "exactly once",
        "events",
        "end",
        "summary",
        "evaluations",
        "ledgers",
        "releases",
        "ε",
        "model",
    }
)


@dataclass(frozen=True, slots=True)
class Applied:
    """One gradient_applied of events.jsonl."""

    t: int
    edge_id: str
    sequence: int


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended."""

    name: str
    code: int
    allowed: tuple[int, ...]
    words: str = ""  # its last ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is left of a run."""

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
    tracebacks: Sequence[str] = field(default=())  # names of logs that have one


def verdict(evidence: Evidence) -> list[str]:
    """Return everything that is wrong; none: the run came through."""
    return [
        *_reached(evidence),
        *_once(evidence),
        *_none_lost(evidence),
        *_released(evidence),
        *_wire(evidence),
        *_verified(evidence),
        *_ends(evidence),
    ]


def _reached(evidence: Evidence) -> Iterator[str]:
    if evidence.updates != evidence.iterations or evidence.reason != "finished":
        yield f"T = {evidence.iterations} not reached: {evidence.updates} updates, {evidence.reason!r}"


def _once(evidence: Evidence) -> Iterator[str]:
    """t = 1 … T, each once; applied = distinct (edge, sequence)."""
    times = [one.t for one in evidence.applied]
    if times != list(range(1, evidence.iterations + 1)):
        wrong = next((i for i, t in enumerate(times, 1) if t != i), len(times) + 1)
        yield f"events: {len(times)} updates of {evidence.iterations}; the first missing or doubled is t = {wrong}"
    twice = [
        key
        for key, count in Counter((one.edge_id, one.sequence) for one in evidence.applied).items()
        if count > 1
    ]
    if twice:
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
            yield f"{one.name} ended with {one.code}, allowed {', '.join(map(str, one.allowed))}: {one.words}"
    for name in evidence.tracebacks:
        yield f"{name}: a traceback"
