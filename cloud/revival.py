"""A cloud brought back: its last checkpoint, and every event since through the very code that took them first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cloud.algorithm import Algorithm
from cloud.history import History
from cloud.peers import EdgeRestarts, Peer
from cloud.service import CloudService
from cloud.snapshot import restore_server, server_state
from common.errors import LocalProtocolError, RecordsError
from common.messages import EvaluationDue
from common.quantities import EdgeId
from common.records.log_format import Entry, Kind, LogDamagedError, segment_name
from common.records.log_reader import LogReader
from common.records.rundir import RunDirectory
from common.transport.channel import OnMessage
from common.wire.codec import decode_hello, decode_leave
from common.wire.topics import EdgeTopic, edge_topic


class Mute:
    """A channel for events that were answered before: nobody hears anything."""

    connected = True
    closed = False

    def publish(self, topic: str, payload: bytes, *, qos: int = 0, retain: bool = False) -> bool:  # noqa: ARG002
        return True

    def subscribe(
        self,
        topic_filter: str,
        callback: OnMessage,  # noqa: ARG002
        *,
        qos: int = 0,  # noqa: ARG002
        retained: bool = False,  # noqa: ARG002
    ) -> None:
        raise LocalProtocolError(f"a replay subscribes to nothing, not to {topic_filter!r}")

    def allow(self, max_packet: int) -> None: ...

    def hasten(self) -> None: ...

    def close(self, timeout: float = 5.0) -> None: ...


def service_state(service: CloudService, made: type[Algorithm], directory: RunDirectory) -> dict[str, Any]:
    """Return all that another process needs to go on, at a moment between two events; events.jsonl is written first."""
    service.release()
    records = service.records.plain()
    if service.scenario.records.durability == "power":
        directory.sync()
    else:
        directory.flush()
    began = service.records.began

    def since(moment: float | None) -> float | None:
        return None if moment is None else moment - began

    return {
        "run": service.run,
        "gather": service.gather,
        "time": service.loop.now() - began,
        "events_bytes": directory.events_bytes,
        "first_update": since(service.first_update),
        "last_update": since(service.last_update),
        "server": server_state(service.server, made),
        "lives": [
            [edge_id, life.nonce, sorted(life.begins), life.known]
            for edge_id, life in service.restarts.edges.items()
        ],
        "contacts": [
            [edge_id, contact.nonce, contact.turnarounds, contact.turnaround_sum]
            for edge_id, contact in service.peers.items()
        ],
        "dropped": dict(service.dropped),
        "records": records,
        "dues": [
            {"updates": due.updates, "stage": due.stage, "model": due.model}
            for due in service.evaluations.dues
        ],
    }


def restore_service(service: CloudService, state: Mapping[str, Any], made: type[Algorithm]) -> None:
    """Bring a service that has not started to a state; its clock is the run's own until `revive` ends."""
    restore_server(service.server, state["server"], made)
    service.records.restore(state["records"])
    service.records.began = 0.0
    service.first_update, service.last_update = state["first_update"], state["last_update"]
    for edge_id, nonce, begins, known in state["lives"]:
        service.restarts.edges[EdgeId(edge_id)] = EdgeRestarts(nonce, set(begins), known)
    for edge_id, nonce, turnarounds, seconds in state["contacts"]:
        topic = edge_topic(service.run, EdgeId(edge_id), EdgeTopic.MODEL)
        contact = Peer(nonce, state["time"], topic, 0.0, turnarounds, seconds)
        service.peers[EdgeId(edge_id)] = contact
    service.dropped.update(state["dropped"])
    for due in state["dues"]:
        service.evaluations.evaluate(EvaluationDue(**due))


def replay(service: CloudService, entry: Entry) -> None:
    """Let the service take an event of the log; nothing is sent."""
    server = service.server
    if entry.t != server.t:
        raise LogDamagedError(f"gradient log: a record of t = {entry.t} follows t = {server.t}")
    match entry.kind:
        case Kind.GRADIENT | Kind.REPEAT:
            service.take_gradient(server.judge_gradient(entry.arrived), entry.time)
        case Kind.HELLO:
            hello = decode_hello(entry.edge_id, entry.body)
            service.take_hello(hello, server.judge(hello), entry.time)
        case Kind.LEAVE:
            service.answer(server.receive(decode_leave(entry.edge_id, entry.body)), entry.time)
        case Kind.BEGIN:
            service.answer(server.begin_with_those_here(), entry.time)
        case Kind.HALT:
            service.answer(server.halt(entry.body.decode()), entry.time)


def begin_history(
    service: CloudService, history: History, made: type[Algorithm], directory: RunDirectory
) -> None:
    """Let a new run be remembered from its first event on."""
    history.state = lambda: service_state(service, made, directory)
    service.records.began = service.loop.now()
    service.history = history
    history.begin()


def revive(service: CloudService, history: History, made: type[Algorithm], directory: RunDirectory) -> None:
    """Bring the run to where it was, and go on remembering it. Before the service starts, which then serves it."""
    checkpoint, state = _to_begin_with(history, directory, service.say)
    channel, say, gather = service.channel, service.say, state["gather"]
    service.channel, service.say, service.gather, service.replaying = Mute(), _nothing, None, True
    reader = LogReader(history.run, first=checkpoint)
    try:
        restore_service(service, state, made)
        written = directory.events_bytes
        told = service.records.leave_out(directory.events_behind(state["events_bytes"]))
        if (cut := written - directory.events_bytes) > 0:
            say(
                f"{directory.path}/events.jsonl: {cut} bytes from a broken line on are written again from the log"
            )
        # evaluations and refusals are in no log, and may have come after its last record
        seconds, count = max(state["time"], told), 0
        for entry in reader:
            replay(service, entry)
            seconds, count = max(seconds, entry.time), count + 1
    finally:
        service.channel, service.say, service.gather, service.replaying = channel, say, gather, False
    if reader.head is not None and reader.head.incarnation != service.server.incarnation:
        raise RecordsError(f"{reader.folder}: the log of another life of the run")
    service.records.write()
    if untold := service.records.untold:  # a line is written behind its record: the log had them all
        raise LogDamagedError(
            f"{reader.folder}: ends at t = {service.server.t}, but events.jsonl has {untold} later events: updates that"
            " were answered would be missing; put the missing part of the log back"
        )
    if reader.torn is not None:
        say(f"{reader.torn}: a torn record, which was never answered, is cut off")
    _move_clock(service, seconds)
    torn = 0 if reader.torn is None else reader.torn.size - reader.torn.keep
    service.records.resumed(service.server.updates, torn, service.loop.now())
    history.state = lambda: service_state(service, made, directory)
    history.resume(reader, checkpoint)
    service.history = history
    service.revived = True
    service.go_on()
    say(f"resumed at t = {service.server.t}: checkpoint {checkpoint} and {count} events of the log")


def _to_begin_with(
    history: History, directory: RunDirectory, say: Callable[[str], None]
) -> tuple[int, dict[str, Any]]:
    """Return the newest checkpoint; the first, where events.jsonl has lost lines that only the whole log can tell."""
    checkpoint, state = history.checkpoints.newest(say)
    lost = state["events_bytes"] - directory.events_bytes
    if lost <= 0:
        return checkpoint, state
    events = directory.path / "events.jsonl"
    first = LogReader(history.run)
    if (
        1 not in history.checkpoints.numbers
        or not first.segments
        or first.segments[0].name != segment_name(1)
    ):
        raise RecordsError(
            f"{events}: missing or cut short, by {lost} bytes at least, and the run has not kept the log that would"
            " tell its lines again; put the file back, as it was"
        )
    try:
        state = history.checkpoints.read(1)
    except ValueError as error:
        raise RecordsError(
            f"{events}: missing or cut short, and the first checkpoint is damaged ({error}); put the file back"
        ) from error
    say(
        f"{events}: missing or cut short; written again from the log, without `resumed` lines and refusals that"
        " changed nothing"
    )
    return 1, state


def _move_clock(service: CloudService, seconds: float) -> None:
    """Let the run's clock go on at so many seconds: the time that no cloud was there does not count."""
    now = service.loop.now()
    service.records.write()
    service.records.count_left_out()
    service.records.began = began = now - seconds
    if service.first_update is not None:
        service.first_update += began
    if service.last_update is not None:
        service.last_update += began
    for contact in service.peers.values():
        contact.seen, contact.sent = now, 0.0


def _nothing(_text: str) -> None: ...
