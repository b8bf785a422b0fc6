"""What the cloud tells an operator's Prometheus: read now and then from counts that it keeps anyway."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from cloud.algorithm import StepSchedule
from cloud.service import CloudService
from common.telemetry.family import Buckets, Family, Kind, Reading, Readings

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

_COUNTER, _GAUGE, _HISTOGRAM = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM

RUN_INFO = Family("mapa_cloud_run_info", _GAUGE, "1, with the run's name.", "run", most=1)
UPDATES = Family("mapa_cloud_updates_total", _COUNTER, "Updates on record: gradients applied to the model.")
ITERATIONS = Family("mapa_cloud_iterations", _GAUGE, "T, the updates after which the run ends.")
VERSION = Family("mapa_cloud_model_version", _GAUGE, "t, the version of the model that edges are sent now.")
STALE = Family(
    "mapa_cloud_staleness",
    _HISTOGRAM,
    "Staleness of the applied gradients, in updates: t minus version read.",
)
REPLY = Family(
    "mapa_cloud_reply_seconds",
    _HISTOGRAM,
    "Seconds from a message's arrival to the model that answers it, within this process.",
)
REFUSED = Family("mapa_cloud_refusals_total", _COUNTER, "Gradients refused, by reason.", "reason", REFUSALS)
REFUSED_HELLOS = Family(
    "mapa_cloud_hello_refusals_total", _COUNTER, "Hellos refused, by reason.", "reason", HELLO_REFUSALS
)
DROPS = Family(
    "mapa_cloud_dropped_messages_total",
    _COUNTER,
    "Messages dropped because they break the protocol, came late or too often, by kind.",
    "kind",
    DROPPED,
)
SENSITIVITY = Family("mapa_cloud_sensitivity", _GAUGE, "Sensitivity ΔS that models are sent with.")
RATE = Family("mapa_cloud_learning_rate", _GAUGE, "Learning rate γ of the next update.")
STAGE = Family("mapa_cloud_stage", _GAUGE, "Stage s; 1 for an algorithm without stages.")
EDGES = Family(
    "mapa_cloud_edges",
    _GAUGE,
    "Edges by state: present, away (lost or silent, may come back), left on purpose.",
    "state",
    STATES,
)
EXPECTED = Family("mapa_cloud_edges_expected", _GAUGE, "K, the shards of the run.")
CONNECTED = Family("mapa_cloud_connected", _GAUGE, "1 while the broker is connected, else 0.")
RECONNECTS = Family(
    "mapa_cloud_reconnects_total",
    _COUNTER,
    "Connections to the broker that were lost and had to be made anew.",
)
HALTED = Family("mapa_cloud_halted", _GAUGE, "1 once the run has ended, else 0.")
LAST_UPDATE = Family(
    "mapa_cloud_last_update_timestamp_seconds",
    _GAUGE,
    "Unix time of the last update that this process applied.",
)
READ_AT = Family("mapa_cloud_read_timestamp_seconds", _GAUGE, "Unix time when these values were read.")
LOG = Family(
    "mapa_cloud_log_bytes",
    _GAUGE,
    "Bytes of the gradient log since the last checkpoint: what a resume must read.",
)
LOG_AT = Family(
    "mapa_cloud_log_timestamp_seconds", _GAUGE, "Unix time of the last write to the gradient log."
)
CHECKPOINT = Family(
    "mapa_cloud_checkpoint_timestamp_seconds",
    _GAUGE,
    "Unix time of the last checkpoint that this process wrote.",
)
EVALUATION = Family(
    "mapa_cloud_evaluation",
    _GAUGE,
    "Metrics of the last evaluation, on test data, by metric.",
    "metric",
)
EVALUATED = Family("mapa_cloud_evaluation_updates", _GAUGE, "Updates that the last evaluated model had had.")

FAMILIES = (
    *(RUN_INFO, UPDATES, ITERATIONS, VERSION, STALE, REPLY, REFUSED, REFUSED_HELLOS, DROPS),
    *(SENSITIVITY, RATE, STAGE, EDGES, EXPECTED, CONNECTED, RECONNECTS, HALTED),
    *(LAST_UPDATE, READ_AT, LOG, LOG_AT, CHECKPOINT, EVALUATION, EVALUATED),
)


def read_cloud(service: CloudService, clock: Callable[[], float] = time.time) -> Readings:
    """Return the values of this moment, in the loop's thread."""
    server, tally, now = service.server, service.tally, clock()
    found: dict[Family, Reading] = {
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
        found[REPLY] = service.traffic.replies.copy()
    if service.last_update is not None:
        found[LAST_UPDATE] = now - (service.loop.now() - service.last_update)
    if service.history is not None:
        found[LOG] = service.history.log_bytes
        if (written := service.history.log_written) is not None:
            found[LOG_AT] = written
        if service.history.checkpointed is not None:
            found[CHECKPOINT] = service.history.checkpointed
    found |= _schedule(service)
    if tally.evaluations:
        last = tally.evaluations[-1]
        found[EVALUATION] = {metric.name: value for metric, value in last.values.items()}
        found[EVALUATED] = last.updates
    return {family: found[family] for family in FAMILIES if family in found}


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
    found: dict[Family, Reading] = {SENSITIVITY: schedule.sensitivity if stage is None else stage.sensitivity}
    if stage is not None:
        found[RATE] = stage.learning_rate
    elif isinstance(schedule, StepSchedule):
        found[RATE] = schedule.learning_rate(service.server.t)
    return found
