"""Prometheus metrics of the cloud: read once a second from counts that it keeps anyway."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from cloud.algorithm import StepSchedule
from cloud.service import CloudService
from common.telemetry.family import Buckets, Family, MetricKind, Reading, Readings

EVERY = 1.0  # seconds between two readings
STALENESS = (0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377)
SECONDS = (1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
REFUSALS = (
    *("after-halt", "cap", "duplicate", "future", "incarnation"),
    *("no-such-model", "norm", "sensitivity", "sequence", "stranger"),
)
HELLO_REFUSALS = ("epsilon-floor", "fleet-full", "halted", "incarnation", "ledger-lost", "mechanism")
DROPPED = ("gradient", "halt", "hello", "late-hello", "leave", "packet", "presence", "retained", "too-often")
STATES = ("present", "away", "left")


def _counter(name: str, text: str, label: str | None = None, values: tuple[str, ...] | None = None) -> Family:
    return Family(f"mapa_cloud_{name}_total", MetricKind.COUNTER, text, label, values)


def _gauge(name: str, text: str, label: str | None = None, values: tuple[str, ...] | None = None) -> Family:
    return Family(f"mapa_cloud_{name}", MetricKind.GAUGE, text, label, values)


def _histogram(name: str, text: str) -> Family:
    return Family(f"mapa_cloud_{name}", MetricKind.HISTOGRAM, text)


RUN_INFO = Family("mapa_cloud_run_info", MetricKind.GAUGE, "1, with the run's name.", "run", most=1)
UPDATES = _counter("updates", "Updates on record: gradients applied to the model.")
ITERATIONS = _gauge("iterations", "T, the updates after which the run ends.")
VERSION = _gauge("model_version", "t, the version of the model that edges are sent now.")
STALE = _histogram("staleness", "Staleness of the applied gradients, in updates: t minus version read.")
REPLY = _histogram(
    "reply_seconds", "Seconds from a message's arrival to the model that answers it, within this process."
)
REFUSED = _counter("refusals", "Gradients refused, by reason.", "reason", REFUSALS)
REFUSED_HELLOS = _counter("hello_refusals", "Hellos refused, by reason.", "reason", HELLO_REFUSALS)
_DROPPED = "Messages dropped because they break the protocol, came late or too often, by kind."
DROPS = _counter("dropped_messages", _DROPPED, "kind", DROPPED)
SENSITIVITY = _gauge("sensitivity", "Sensitivity ΔS that models are sent with.")
RATE = _gauge("learning_rate", "Learning rate γ of the next update.")
STAGE = _gauge("stage", "Stage s; 1 for an algorithm without stages.")
_EDGES = "Edges by state: present, away (lost or silent, may come back), left on purpose."
EDGES = _gauge("edges", _EDGES, "state", STATES)
EXPECTED = _gauge("edges_expected", "K, the shards of the run.")
CONNECTED = _gauge("connected", "1 while the broker is connected, else 0.")
RECONNECTS = _counter("reconnects", "Connections to the broker that were lost and had to be made anew.")
HALTED = _gauge("halted", "1 once the run has ended, else 0.")
LAST_UPDATE = _gauge(
    "last_update_timestamp_seconds", "Unix time of the last update that this process applied."
)
READ_AT = _gauge("read_timestamp_seconds", "Unix time when these values were read.")
LOG = _gauge("log_bytes", "Bytes of the gradient log since the last checkpoint: what a resume must read.")
LOG_AT = _gauge("log_timestamp_seconds", "Unix time of the last write to the gradient log.")
CHECKPOINT = _gauge(
    "checkpoint_timestamp_seconds", "Unix time of the last checkpoint that this process wrote."
)
EVALUATION = _gauge("evaluation", "Metrics of the last evaluation, on test data, by metric.", "metric")
EVALUATED = _gauge("evaluation_updates", "Updates that the last evaluated model had had.")

FAMILIES = (
    *(RUN_INFO, UPDATES, ITERATIONS, VERSION, STALE, REPLY, REFUSED, REFUSED_HELLOS, DROPS),
    *(SENSITIVITY, RATE, STAGE, EDGES, EXPECTED, CONNECTED, RECONNECTS, HALTED),
    *(LAST_UPDATE, READ_AT, LOG, LOG_AT, CHECKPOINT, EVALUATION, EVALUATED),
)


def read_cloud(service: CloudService, clock: Callable[[], float] = time.time) -> Readings:
    """Return the values of this moment, in the loop's thread."""
    server, tally, now = service.server, service.tally, clock()
    values: dict[Family, Reading] = {
        RUN_INFO: {service.run: 1},
        UPDATES: tally.updates,
        ITERATIONS: server.terms.iterations,
        VERSION: server.t,
        STALE: _staleness(tally.staleness),
        REFUSED: dict(tally.refused),
        REFUSED_HELLOS: dict(service.traffic.refused_hellos),
        DROPS: dict(service.dropped),
        STAGE: server.stage,
        EDGES: Counter(_state(account.present, account.left) for account in server.edges.values()),
        EXPECTED: server.terms.edges,
        CONNECTED: int(service.channel.connected),
        RECONNECTS: service.traffic.lost_connections,
        HALTED: int(service.halted is not None),
        READ_AT: now,
    }
    if service.traffic.replies is not None:
        values[REPLY] = service.traffic.replies.copy()
    if service.last_update is not None:
        values[LAST_UPDATE] = now - (service.loop.now() - service.last_update)
    if service.history is not None:
        values[LOG] = service.history.log_bytes
        if (written := service.history.log_written) is not None:
            values[LOG_AT] = written
        if service.history.checkpointed is not None:
            values[CHECKPOINT] = service.history.checkpointed
    values |= _schedule(service)
    if tally.evaluations:
        last = tally.evaluations[-1]
        values[EVALUATION] = {metric.name: value for metric, value in last.values.items()}
        values[EVALUATED] = last.updates
    return {family: values[family] for family in FAMILIES if family in values}


def _state(present: bool, left: str) -> str:
    return "present" if present else "left" if left else "away"


def _staleness(counts: Counter[int]) -> Buckets:
    buckets = Buckets(tuple(map(float, STALENESS)))
    for staleness, times in counts.items():
        buckets.observe(staleness, times)
    return buckets


def _schedule(service: CloudService) -> dict[Family, Reading]:
    """Return ΔS and γ; an algorithm that does not say one of them has none here."""
    schedule = service.server.schedule
    if schedule is None:
        return {}
    stage = schedule.opened()
    values: dict[Family, Reading] = {
        SENSITIVITY: schedule.sensitivity if stage is None else stage.sensitivity
    }
    if stage is not None:
        values[RATE] = stage.learning_rate
    elif isinstance(schedule, StepSchedule):
        values[RATE] = schedule.learning_rate(service.server.t)
    return values
