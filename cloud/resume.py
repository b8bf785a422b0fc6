"""Resume a killed cloud: restore its last checkpoint and replay every event logged since."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, assert_never

from cloud.algorithm import Algorithm
from cloud.peers import EdgeRestarts, Peer
from cloud.recovery_log import History, Replayer
from cloud.service import CloudService
from cloud.snapshot import restore_server, server_state
from common.errors import RecordsError
from common.messages import (
    EdgeGone,
    EdgeJoined,
    Effect,
    EvaluationDue,
    Event,
    GradientApplied,
    GradientArrived,
    GradientRefused,
    Halt,
    Hello,
    Refuse,
    SendModel,
    StageOpened,
    Welcome,
)
from common.quantities import EdgeId
from common.records.directory import RunDirectory
from common.records.gradient_log import LogDamagedError, LogReader, segment_name
from common.wire.topics import EdgeTopic, edge_topic


def service_state(service: CloudService, made: type[Algorithm], directory: RunDirectory) -> dict[str, Any]:
    """Return all that another process needs to resume, between two events; events.jsonl is written first."""
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


def _restore(service: CloudService, state: Mapping[str, Any], made: type[Algorithm]) -> None:
    """Bring a service that has not started to a state; its clock is the run's own until it has resumed."""
    service.gather = state["gather"]
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


def _recount(service: CloudService, now: float, event: Event | None, effects: list[Effect]) -> None:
    """Count and record what a replayed event did at `now`, as the process that took it first did; send nothing."""
    records, contacts = service.records, service.peers
    if isinstance(event, GradientArrived) and (contact := contacts.get(event.edge_id)) is not None:
        contact.seen = now
        if contact.sent:
            contact.turnarounds += 1
            contact.turnaround_sum += now - contact.sent
            contact.sent = 0.0
    for effect in effects:
        match effect:
            case SendModel():
                if (contact := contacts.get(effect.edge_id)) is not None:
                    contact.sent = now
            case GradientApplied() | StageOpened() | EdgeJoined() | EdgeGone() | GradientRefused():
                records.facts.append((now, effect))
                if isinstance(effect, GradientApplied):
                    service.last_update = now
                    service.first_update = now if service.first_update is None else service.first_update
            case EvaluationDue():
                service.evaluations.evaluate_in_time(effect)
            case Welcome():
                assert isinstance(event, Hello)
                topic = edge_topic(service.run, effect.edge_id, EdgeTopic.MODEL)
                contacts.welcomed(effect.edge_id, event.nonce, now, topic)
            case Refuse() | Halt():
                pass  # an end that came before is told by `go_on`
            case _:
                assert_never(effect)


def begin_history(
    service: CloudService, history: History, made: type[Algorithm], directory: RunDirectory
) -> None:
    """Start the recovery log of a new run, before its first event."""
    history.state = lambda: service_state(service, made, directory)
    service.records.began = service.loop.now()
    service.history = history
    history.begin()


def resume_service(
    service: CloudService, history: History, made: type[Algorithm], directory: RunDirectory
) -> None:
    """Bring a service that has not started to where the run was, and continue the run's recovery log."""
    say = service.say
    checkpoint, state = _checkpoint_to_restore(history, directory, say)
    reader = LogReader(history.run, first=checkpoint)
    _restore(service, state, made)
    written = directory.events_bytes
    latest = service.records.leave_out(directory.events_behind(state["events_bytes"]))
    if (cut := written - directory.events_bytes) > 0:
        say(
            f"{directory.path}/events.jsonl: {cut} bytes from a broken line on are written again from the log"
        )
    # evaluations and refusals are in no log, and may have come after its last record
    seconds, count = max(state["time"], latest), 0
    replayer = Replayer(service.server, service.restarts)
    for entry in reader:
        _recount(service, entry.time, *replayer.take(entry))
        seconds, count = max(seconds, entry.time), count + 1
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


def _checkpoint_to_restore(
    history: History, directory: RunDirectory, say: Callable[[str], None]
) -> tuple[int, dict[str, Any]]:
    """Return the newest checkpoint; the first, where only the whole log can restore lost lines of events.jsonl."""
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
