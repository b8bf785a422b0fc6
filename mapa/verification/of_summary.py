"""What manifest.json and summary.json say by themselves: no key that no cloud writes, and figures that agree."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

from cloud.assembly import explained
from common.models.model import Model
from common.scenario.scenario import Scenario
from mapa.recording import ENGINES, noise_of, random_stream, warnings_of
from mapa.verification.check import Check, claimed, failed, passed
from mapa.verification.run_files import MANIFEST, SUMMARY, RunFiles

# Every key that any version has written; whoever adds one to the records adds it here.
OF_MANIFEST = frozenset(
    (
        *(
            "format",
            "run",
            "name",
            "engine",
            "scenario",
            "scenario_sha256",
            "seed",
            "data",
            "versions",
            "started",
        ),
        *("samples", "machine", "random_stream", "shard_sizes", "started_by"),
    )
)
OF_SUMMARY = frozenset(
    (
        *("run", "path", "name", "engine", "algorithm", "model", "data", "edges_configured", "iterations"),
        *("batch_size", "parameters", "seed", "scenario_sha256", "reason", "updates", "metrics", "staleness"),
        *("stages", "refused", "edges", "evaluations", "seconds", "iterations_per_second", "diagnostics"),
        *("rate", "warning", "releases", "privacy", "noise"),
    )
)
OF_SIMULATION = frozenset(("virtual_seconds",))  # beside those of every summary
OF_NETWORK = frozenset(("dropped", "network"))
OF_NETWORK_ROW = frozenset(
    (
        *("edge", "edge_id", "link", "device", "asked_delay_ms", "round_trip_ms"),
        *("staleness_mean", "applied"),
    )
)
DROPPED = frozenset(
    ("gradient", "hello", "late-hello", "leave", "halt", "presence", "retained", "packet", "too-often")
)  # kinds of messages
_CLOSE = 1e-9  # relative, of a quotient that JSON has kept to the last digit


def records_by_themselves(files: RunFiles) -> Iterator[Check]:
    """Check what needs no log: the keys of both files, and what repeats or follows from another figure."""
    manifest, summary = files.json(MANIFEST), files.json(SUMMARY)
    wrong = 0
    for part, words in (
        *((MANIFEST, words) for words in _unknown("", manifest, OF_MANIFEST)),
        *((SUMMARY, words) for words in (*_keys(manifest, summary), *_figures(summary))),
    ):
        wrong += 1
        yield failed("fields", part, words)
    if not wrong:
        yield passed("fields", SUMMARY, "no unknown key; speed and dropped messages as they can be")


def _keys(manifest: Mapping[str, Any], summary: Mapping[str, Any]) -> Iterator[str]:
    known = OF_SUMMARY | (OF_SIMULATION if manifest.get("engine") in ENGINES else OF_NETWORK)
    yield from _unknown("", summary, known | _of_metrics(summary))
    rows = summary.get("network", [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        yield "network: not a list of objects"
        return
    for place, row in enumerate(rows):
        yield from _unknown(f"network[{place}]", row, OF_NETWORK_ROW)
    dropped = summary.get("dropped", {})
    if not isinstance(dropped, dict) or any(type(one) is not int or one < 0 for one in dropped.values()):
        yield f"dropped = {dropped!r:.100}: not a count for each kind of message"
        return
    yield from _unknown("dropped", dropped, DROPPED)


def _of_metrics(summary: Mapping[str, Any]) -> set[str]:
    rows = summary.get("metrics")
    names = [row.get("name") for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return {
        *(f"final_{name}" for name in names),
        *(f"best_{name}{end}" for name in names[:1] for end in ("", "_at")),
    }


def _unknown(place: str, values: Mapping[str, Any], known: frozenset[str] | set[str]) -> Iterator[str]:
    if odd := sorted(values.keys() - known):
        yield f"{place}{': ' if place else ''}unknown keys {odd!r:.200}"


def _figures(summary: Mapping[str, Any]) -> Iterator[str]:
    seconds, speed = summary.get("seconds"), summary.get("iterations_per_second")
    updates = summary.get("updates")
    if not _is_number(seconds) or not 0 <= seconds < math.inf or type(updates) is not int:
        yield f"seconds = {seconds!r:.40}, updates = {updates!r:.40}: not a time and a count"
    elif seconds == 0:
        if speed is not None:
            yield f"iterations_per_second = {speed!r:.40} in 0 seconds"
    elif not _is_number(speed) or not math.isclose(speed, updates / seconds, rel_tol=_CLOSE):
        yield f"iterations_per_second = {speed!r:.40}; {updates} updates in {seconds:g} s are {updates / seconds:g}"
    virtual = summary.get("virtual_seconds")
    if virtual is not None and not (_is_number(virtual) and 0 <= virtual < math.inf):
        yield f"virtual_seconds = {virtual!r:.40}: not a time"


def words_of_scenario(files: RunFiles, scenario: Scenario, model: Model | None) -> Iterator[Check]:
    """Check what manifest and summary say in words and the scenario decides: stream, diagnostics, warning, rate."""
    manifest, summary = files.json(MANIFEST), files.json(SUMMARY)
    engine, updates = str(manifest.get("engine")), summary.get("updates")
    warning = "; ".join(warnings_of(scenario, updates if type(updates) is int else 0, engine))
    expected: list[tuple[str, str, object, object]] = [
        (MANIFEST, "random_stream", manifest.get("random_stream"), random_stream(scenario, engine)),
        (SUMMARY, "diagnostics", summary.get("diagnostics"), scenario.records.diagnostics),
        (SUMMARY, "warning", summary.get("warning", ""), warning),
        (SUMMARY, "path", summary.get("path"), "."),
        (SUMMARY, "noise", summary.get("noise"), noise_of(scenario)),
    ]
    if model is not None:
        expected += [
            (SUMMARY, "rate", summary.get("rate", ""), explained(scenario, model)),
            (SUMMARY, "parameters", summary.get("parameters"), model.dimension),
        ]
    elif "rate" in summary:
        yield claimed("rate", SUMMARY, "rate: the run's model cannot be made here")
    wrong = [
        (part, f"{key} = {stated!r:.100}; by the scenario {value!r:.100}")
        for part, key, stated, value in expected
        if stated != value
    ]
    for part, words in wrong:
        yield failed("words", part, words)
    if not wrong:
        keys = ", ".join(key for _, key, _, _ in expected)
        yield passed("words", SUMMARY, f"{keys}: as the scenario has them")
    yield claimed(
        "origin", MANIFEST, "versions, machine, start, and the data set's checksum: nothing can show them"
    )


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
