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
    *("after-halt", "banned", "cap", "duplicate", "future", "incarnation"),
    *("no-such-model", "norm", "sensitivity", "sequence", "stranger"),
)
HELLO_REFUSALS = (
    "banned",
    "epsilon-floor",
    "fleet-full",
    "halted",
    "incarnation",
    "ledger-lost",
    "mechanism",
)
DROPPED = (
    *("forged", "gradient", "halt", "hello", "late-hello", "leave", "packet", "presence", "retained"),
    "too-often",
)
STATES = ("present", "away", "left")


def _counter(name: str, text: str, label: str | None = None, values: tuple[str, ...] | None = None) -> Family:
    return Family(f"mapa_cloud_{name}_total", MetricKind.COUNTER, text, label, values)


def _gauge(name: str, text: str, label: str | None = None, values: tuple[str, ...] | None = None) -> Family:
    return Family(f"mapa_cloud_{name}", MetricKind.GAUGE, text, label, values)


def _histogram(name: str, text: str) -> Family:
    return Family(f"mapa_cloud_{name}", MetricKind.HISTOGRAM, text)


_DROPPED = "Messages dropped because they break the protocol, came late or too often, by kind."
_EDGES = "Edges by state: present, away (lost or silent, may come back), left on purpose."
_REPLY = "Seconds from a message's arrival to the model that answers it, within this process."
FAMILIES = (
    Family("mapa_cloud_run_info", MetricKind.GAUGE, "1, with the run's name.", "run", most=1),
    _counter("updates", "Updates on record: gradients applied to the model."),
    _gauge("iterations", "T, the updates after which the run ends."),
    _gauge("model_version", "t, the version of the model that edges are sent now."),
    _histogram("staleness", "Staleness of the applied gradients, in updates: t minus version read."),
    _histogram("reply_seconds", _REPLY),
    _counter("refusals", "Gradients refused, by reason.", "reason", REFUSALS),
    _counter("hello_refusals", "Hellos refused, by reason.", "reason", HELLO_REFUSALS),
    _counter("dropped_messages", _DROPPED, "kind", DROPPED),
    _gauge("sensitivity", "Sensitivity ΔS that models are sent with."),
    _gauge("learning_rate", "Learning rate γ of the next update."),
    _gauge("stage", "Stage s; 1 for an algorithm without stages."),
    _gauge("edges", _EDGES, "state", STATES),
    _gauge("edges_expected", "K, the shards of the run."),
    _gauge("connected", "1 while the broker is connected, else 0."),
    _counter("reconnects", "Connections to the broker that were lost and had to be made again."),
    _gauge("halted", "1 once the run has ended, else 0."),
    _gauge("last_update_timestamp_seconds", "Unix time of the last update that this process applied."),
    _gauge("read_timestamp_seconds", "Unix time when these values were read."),
    _gauge("log_bytes", "Bytes of the gradient log since the last checkpoint: what a resume must read."),
    _gauge("log_timestamp_seconds", "Unix time of the last write to the gradient log."),
    _gauge("checkpoint_timestamp_seconds", "Unix time of the last checkpoint that this process wrote."),
    _gauge("evaluation", "Metrics of the last evaluation, on test data, by metric.", "metric"),
    _gauge("evaluation_updates", "Updates that the last evaluated model had had."),
)
_BY_NAME = {family.name.removeprefix("mapa_cloud_").removesuffix("_total"): family for family in FAMILIES}


def read_cloud(service: CloudService, clock: Callable[[], float] = time.time) -> Readings:
    """Return the values of this moment, in the loop's thread; what is not known is left out."""
    server, tally, traffic, now = service.server, service.tally, service.traffic, clock()
    values: dict[str, Reading | None] = {
        "run_info": {service.run: 1},
        "updates": tally.updates,
        "iterations": server.terms.iterations,
        "model_version": server.t,
        "staleness": _staleness(tally.staleness),
        "reply_seconds": None if traffic.replies is None else traffic.replies.copy(),
        "refusals": dict(tally.refused),
        "hello_refusals": dict(traffic.refused_hellos),
        "dropped_messages": dict(traffic.dropped),
        "stage": server.stage,
        "edges": Counter(_state(account.present, account.left) for account in server.edges.values()),
        "edges_expected": server.terms.edges,
        "connected": int(service.channel.connected),
        "reconnects": traffic.lost_connections,
        "halted": int(service.halted is not None),
        "read_timestamp_seconds": now,
        **_schedule(service),
    }
    if service.last_update is not None:
        values["last_update_timestamp_seconds"] = now - (service.loop.now() - service.last_update)
    if (history := service.history) is not None:
        values["log_bytes"] = history.log_bytes
        values["log_timestamp_seconds"] = history.log_written
        values["checkpoint_timestamp_seconds"] = history.checkpointed
    if tally.evaluations:
        last = tally.evaluations[-1]
        values["evaluation"] = {metric.name: value for metric, value in last.values.items()}
        values["evaluation_updates"] = last.updates
    return {family: value for name, family in _BY_NAME.items() if (value := values.get(name)) is not None}


def _state(present: bool, left: str) -> str:
    return "present" if present else "left" if left else "away"


def _staleness(counts: Counter[int]) -> Buckets:
    buckets = Buckets(tuple(map(float, STALENESS)))
    for staleness, times in counts.items():
        buckets.observe(staleness, times)
    return buckets


def _schedule(service: CloudService) -> dict[str, Reading | None]:
    """Return ΔS and γ; an algorithm that does not say one of them has none here."""
    schedule = service.server.schedule
    if schedule is None:
        return {}
    if (stage := schedule.opened()) is not None:
        return {"sensitivity": stage.sensitivity, "learning_rate": stage.learning_rate}
    rate = schedule.learning_rate(service.server.t) if isinstance(schedule, StepSchedule) else None
    return {"sensitivity": schedule.sensitivity, "learning_rate": rate}
