"""Resume a killed cloud: restore its last checkpoint and replay every event logged since."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from cloud.admission import EdgeRestarts
from cloud.recovery_log import History, take_again
from cloud.service import CloudService, Peer
from cloud.snapshot import restore_server, server_state
from common.errors import RecordsError
from common.messages import EvaluationDue
from common.quantities import EdgeId
from common.records.directory import RunDirectory
from common.records.gradient_log import Kind, LogDamagedError, LogReader, segment_name
from common.wire.topics import EdgeTopic, edge_topic


def service_state(service: CloudService, directory: RunDirectory) -> dict[str, Any]:
    """Return all that another process needs to resume, between two events; events.jsonl is written first."""
    service.release()
    records = service.records.plain()
    if service.scenario.records.durability == "power":
        directory.events.sync()
    else:
        directory.events.flush()
    began, first, last = service.records.began, service.first_update, service.last_update
    return {
        "run": service.run,
        "gather": service.gather,
        "time": service.loop.now() - began,
        "events_bytes": directory.events.size,
        "first_update": None if first is None else first - began,
        "last_update": None if last is None else last - began,
        "server": server_state(service.server, service.scenario.described.made),
        "lives": [
            [edge_id, life.nonce, sorted(life.begins), life.known]
            for edge_id, life in service.server.restarts.edges.items()
        ],
        "contacts": [
            [edge_id, peer.nonce, peer.turnarounds, peer.turnaround_sum]
            for edge_id, peer in service.peers.items()
        ],
        "dropped": dict(service.dropped),
        "records": records,
        "dues": [
            {"updates": due.updates, "stage": due.stage, "model": due.model}
            for due in service.evaluations.dues
        ],
    }


def _restore(service: CloudService, state: Mapping[str, Any]) -> None:
    """Bring a service that has not started to a state; its clock is the run's own until it has resumed."""
    service.gather = state["gather"]
    restore_server(service.server, state["server"], service.scenario.described.made)
    service.records.restore(state["records"])
    service.records.began = 0.0
    service.first_update, service.last_update = state["first_update"], state["last_update"]
    for edge_id, nonce, begins, known in state["lives"]:
        service.server.restarts.edges[EdgeId(edge_id)] = EdgeRestarts(nonce, set(begins), known)
    for edge_id, nonce, turnarounds, seconds in state["contacts"]:
        topic = edge_topic(service.run, EdgeId(edge_id), EdgeTopic.MODEL)
        peer = Peer(nonce, state["time"], topic, turnarounds=turnarounds, turnaround_sum=seconds)
        service.peers[EdgeId(edge_id)] = peer
    service.dropped.update(state["dropped"])
    for due in state["dues"]:
        service.evaluations.evaluate(EvaluationDue(**due))


def begin_history(service: CloudService, history: History, directory: RunDirectory) -> None:
    """Start the recovery log of a new run, before its first event."""
    service.records.began = service.loop.now()
    service.history = history
    history.begin(partial(service_state, service, directory))


def resume_service(service: CloudService, history: History, directory: RunDirectory) -> None:
    """Bring a service that has not started to where the run was, and continue the run's recovery log."""
    say, server, records = service.say, service.server, service.records
    checkpoint, state = _checkpoint_to_restore(history, directory, say)
    reader = LogReader(history.run, first=checkpoint)
    _restore(service, state)
    written = directory.events.size
    latest = records.leave_out(directory.events.lines_behind(state["events_bytes"]))
    if (cut := written - directory.events.size) > 0:
        say(
            f"{directory.path}/events.jsonl: {cut} bytes from a broken line on are written again from the log"
        )
    # evaluations and refusals are in no log, and may have come after its last record
    seconds, count = max(state["time"], latest), 0
    for entry in reader:
        _, effects = take_again(entry, server)
        if entry.kind in (Kind.GRADIENT, Kind.REPEAT):
            service.peers.heard(entry.edge_id, entry.time)
        for effect in effects:
            service.note(effect, entry.time)
        seconds, count = max(seconds, entry.time), count + 1
    if reader.head is not None and reader.head.incarnation != server.incarnation:
        raise RecordsError(f"{reader.folder}: the log of another life of the run")
    records.write()
    if untold := records.untold:  # a line is written behind its record: the log had them all
        raise LogDamagedError(
            f"{reader.folder}: ends at t = {server.t}, but events.jsonl has {untold} later events: updates that"
            " were answered would be missing; put the missing part of the log back"
        )
    if reader.torn is not None:
        say(f"{reader.torn}: a torn record, which was never answered, is cut off")
    _move_clock(service, seconds)
    torn = 0 if reader.torn is None else reader.torn.size - reader.torn.keep
    records.resumed(server.updates, torn, service.loop.now())
    history.resume(reader, checkpoint, partial(service_state, service, directory))
    service.history = history
    service.go_on()
    say(f"resumed at t = {server.t}: checkpoint {checkpoint} and {count} events of the log")


def _checkpoint_to_restore(
    history: History, directory: RunDirectory, say: Callable[[str], None]
) -> tuple[int, dict[str, Any]]:
    """Return the newest checkpoint; the first, where only the whole log can restore lost lines of events.jsonl."""
    checkpoint, state = history.checkpoints.newest(say)
    lost = state["events_bytes"] - directory.events.size
    if lost <= 0:
        return checkpoint, state
    events = directory.path / "events.jsonl"
    first = LogReader(history.run)
    begins = first.segments and first.segments[0].name == segment_name(1)
    if 1 not in history.checkpoints.numbers or not begins:
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
    """Continue the run's clock at this many seconds: the time without a cloud does not count."""
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
