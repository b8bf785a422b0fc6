"""The sections of a run's page as plain values: from what was gathered, its manifest and its summary."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from cloud.stages import planned_stages
from common.errors import MapaError
from common.metrics import Metric
from common.problem import Problem, SensitivityRule
from common.records.tally import staleness_summary
from mapa.dashboard.page_tally import EDGES, METRICS, TEXT, Gathered, Lane, metric_named, number
from mapa.dashboard.series import Durations

LANES = 500  # edges shown one by one
_SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
_BINS = 200  # bars of the histogram
_HEAD = ("name", "engine", "algorithm", "model", "data", "seed", "batch_size", "parameters")


def metrics_of(gathered: Gathered, summary: Mapping[str, Any]) -> list[Metric]:
    """Return the metrics, the headline metric first."""
    try:
        given = ({**row, "name": str(row["name"])[:TEXT]} for row in rows(summary, "metrics")[:METRICS])
        declared = [Metric.from_dict(fields) for fields in given]
    except (KeyError, TypeError, ValueError):
        declared = []
    return declared or [metric_named(name) for name in gathered.latest.get("values", {})]


def head(
    run: str, state: str, gathered: Gathered, manifest: Mapping[str, Any], summary: Mapping[str, Any]
) -> dict[str, Any]:
    scenario = table(manifest, "scenario")
    names = {
        "name": manifest.get("name"),
        "engine": manifest.get("engine"),
        "algorithm": table(scenario, "algorithm").get("name"),
        "model": table(scenario, "model").get("name"),
        "data": table(scenario, "data").get("set"),
        "seed": scenario.get("seed"),
        "batch_size": scenario.get("batch_size"),
        "parameters": None,
    }
    metrics = metrics_of(gathered, summary)
    first = metrics[0].name if metrics else ""
    best = gathered.best if gathered.best is not None else (None, None)
    span = _span(gathered)
    return {
        "run": run,
        "state": state,
        **{key: plain(summary.get(key, names[key])) for key in _HEAD},
        "started": plain(manifest.get("started")),
        "reason": plain(summary.get("reason", gathered.halted or None)),
        "updates": number(summary.get("updates", gathered.updates)),
        "iterations": number(summary.get("iterations", scenario.get("iterations"))),
        "edges": number(scenario.get("edges")),
        "edges_seen": len(gathered.lanes),
        "stage": gathered.stages[-1]["stage"] if gathered.stages else None,
        "sensitivity": gathered.stages[-1]["sensitivity"] if gathered.stages else None,
        "learning_rate": gathered.stages[-1]["learning_rate"] if gathered.stages else None,
        "metrics": [metric.as_dict() for metric in metrics],
        "latest": gathered.latest,
        "best": number(summary.get(f"best_{first}", best[0])),
        "best_at": number(summary.get(f"best_{first}_at", best[1])),
        "seconds": number(summary.get("seconds", span)),
        "updates_per_second": number(
            summary.get("iterations_per_second", gathered.updates / span if span else None)
        ),
        "timed": gathered.first_time is not None,
        "resumed": gathered.resumed,
        "unreadable": gathered.unreadable,
        "warning": plain(summary.get("warning")),
    }


def fleet(
    live: bool, gathered: Gathered, manifest: Mapping[str, Any], summary: Mapping[str, Any]
) -> dict[str, Any]:
    links = table(manifest, "scenario").get("links")
    links = links if isinstance(links, list) else []
    network, counted = by_edge(summary, "network"), by_edge(summary, "edges")
    everyone = sorted({*gathered.lanes, *counted})
    lanes = []
    for k in everyone[:LANES]:
        lane = gathered.lanes.get(k)
        row = counted.get(k) or _counted(lane)
        measured = network.get(k, {})
        link = measured.get("link") or (links[k % len(links)] if links else None)
        lanes.append(
            {
                "edge": k,
                **{key: words(row.get(key)) for key in ("edge_id", "gone")},
                **{key: number(row.get(key)) for key in ("applied", "joins", "last_sequence")},
                "staleness_mean": number(row.get("staleness_mean")),
                "staleness_max": number(row.get("staleness_max")),
                "staleness_last": None if lane is None else lane.last_staleness,
                "share": (number(row.get("applied")) or 0) / gathered.updates if gathered.updates else None,
                "pace": None if lane is None else lane.pace,
                "silent": _silent(lane, gathered) if live else None,
                "link": plain(link),
                "device": _device(lane),
                "round_trip_ms": number(measured.get("round_trip_ms")),
                "strip": [] if lane is None else list(lane.strip.counts),
                "strip_width": 1.0 if lane is None else lane.strip.width,
            }
        )
    return {
        "edges": lanes,
        "hidden": max(0, len(everyone) - LANES),
        "budget": number(table(table(manifest, "scenario"), "privacy").get("total_epsilon")),
        "timed": gathered.first_time is not None,
    }


def training(gathered: Gathered, manifest: Mapping[str, Any], summary: Mapping[str, Any]) -> dict[str, Any]:
    names = [metric.name for metric in metrics_of(gathered, summary)]
    curves = {}
    for name in [*names, *(name for name in gathered.metrics if name not in names)]:
        points = gathered.metrics[name].points() if name in gathered.metrics else []
        curves[name] = {
            "t": [point[0] for point in points],
            "seconds": [point[2] for point in points],
            "value": [point[1] for point in points],
        }
    scenario = table(manifest, "scenario")
    return {"curves": curves, "stages": gathered.stages, "plan": planned(scenario, gathered.stages)}


def staleness(gathered: Gathered, summary: Mapping[str, Any]) -> dict[str, Any]:
    counts, heat = gathered.staleness, gathered.heat
    stated = table(summary, "staleness") or staleness_summary(counts)
    width = max(1, -(-(max(counts, default=0) + 1) // _BINS))
    bins = [0] * (max(counts, default=-1) // width + 1)
    for value, count in counts.items():
        bins[value // width] += count
    return {
        "summary": {key: number(value) for key, value in stated.items()},
        "bins": bins,
        "bin_width": width,
        "beyond": gathered.stale_beyond,
        "heat": {"width": heat.width, "height": heat.height, "cells": heat.cells},
    }


def traffic(gathered: Gathered, summary: Mapping[str, Any]) -> dict[str, Any]:
    network = by_edge(summary, "network")
    everyone = sorted({*gathered.lanes, *network})
    refused = table(summary, "refused") if "refused" in summary else dict(gathered.refused)
    return {
        "width": gathered.rate.width,
        "applied": list(gathered.rate.counts),
        "refused": {key: number(count) for key, count in refused.items()},
        "refused_exact": "refused" in summary,  # of one edge only the first hundred are written line by line
        "refused_over": {
            reason: {"width": counts.width, "counts": list(counts.counts)}
            for reason, counts in gathered.refused_over.items()
        },
        "dropped": {str(key): number(count) for key, count in table(summary, "dropped").items()},
        "turns": _turns(gathered.turns),
        "trips": [_trip(k, gathered.lanes.get(k), network.get(k, {})) for k in everyone[:LANES]],
        "hidden": max(0, len(everyone) - LANES),
    }


def _turns(turns: Durations) -> dict[str, float | None]:
    """Return percentiles in milliseconds of the time from one update of an edge to its next."""
    found = {name: turns.percentile(share) for name, share in _SHARES.items()}
    return {name: None if value is None else value * 1000 for name, value in found.items()}


def _trip(edge: int, lane: Lane | None, measured: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "edge": edge,
        "edge_id": words(measured.get("edge_id")) if lane is None else lane.tally.edge_id,
        "turns": _turns(Durations() if lane is None else lane.turns),
        "asked_delay_ms": number(measured.get("asked_delay_ms")),
        "round_trip_ms": number(measured.get("round_trip_ms")),
    }


def from_summary(gathered: Gathered, summary: Mapping[str, Any]) -> None:
    """Take evaluations and stages from the summary, of a run without events."""
    for row in rows(summary, "evaluations"):
        values = {key[:TEXT]: number(value) for key, value in row.items() if key not in ("updates", "stage")}
        at = row.get("updates")
        if type(at) is int and number(at) is not None:
            gathered.add_evaluation(at, values, None)
    gathered.take({**stage, "event": "stage_opened"} for stage in rows(summary, "stages"))
    updates = summary.get("updates")
    gathered.updates = updates if type(updates) is int and number(updates) is not None else 0


def table(values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return a table within a table; {} where there is none."""
    found = values.get(key)
    return found if isinstance(found, Mapping) else {}


def rows(values: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    found = values.get(key)
    return [row for row in found if isinstance(row, Mapping)] if isinstance(found, list) else []


def by_edge(values: Mapping[str, Any], key: str) -> dict[int, Mapping[str, Any]]:
    """Return rows by the index of their edge; one without an index is left out."""
    found = ((row.get("edge"), row) for row in rows(values, key))
    return {k: row for k, row in found if type(k) is int and 0 <= k < EDGES}


def words(value: object) -> str | None:
    """Return a text; None where it is none."""
    return value[:TEXT] if isinstance(value, str) else None


def plain(value: object) -> Any:
    """Return what JSON can hold: a number that is not finite is None."""
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [plain(one) for one in value]
    return value if value is None or isinstance(value, str | bool) else number(value)


def _device(lane: Lane | None) -> str | None:
    name = None if lane is None else lane.joined.get("device")
    return name[:64] if isinstance(name, str) else None


def _counted(lane: Lane | None) -> dict[str, Any]:
    if lane is None:
        return {}
    tally = lane.tally
    return {
        "edge_id": tally.edge_id,
        "applied": tally.applied,
        "last_sequence": tally.last_sequence,
        "staleness_mean": tally.staleness_sum / tally.applied if tally.applied else None,
        "staleness_max": tally.staleness_max,
        "joins": tally.joins,
        "gone": tally.gone,
    }


def _silent(lane: Lane | None, gathered: Gathered) -> float | None:
    """Return for how long an edge has sent nothing, where that is long for it; None: it speaks."""
    if lane is None or gathered.last_time is None or lane.tally.gone:
        return None
    heard = [*list(lane.recent)[-1:], *([lane.joined_at] if lane.joined_at is not None else [])]
    if not heard:
        return None
    quiet = gathered.last_time - max(heard)
    usual = 1 / lane.pace if lane.pace else 1.0
    return quiet if quiet > max(3.0, 10 * usual) else None


def _span(gathered: Gathered) -> float | None:
    if gathered.first_time is None or gathered.last_time is None:
        return None
    return gathered.last_time - gathered.first_time


_GAMES = 64  # games that are shown
_LONGEST = 120  # characters of a game's name


def audited(report: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the scenario's own games and the audit of a whole run; None: there is no report."""
    games = [row for row in rows(report, "games") if row.get("kind") == "scenario"]
    whole = table(report, "one_run")
    if not games and not whole:
        return None
    return {
        "edge": number(report.get("edge")),
        "confidence": number(report.get("confidence")),
        "delta": number(report.get("delta")),
        "refuted": any(row.get("violated") is True for row in (*games, whole)),
        "games": [
            {
                "name": str(row.get("name"))[:_LONGEST],
                "claimed": number(row.get("claimed_epsilon")),
                "least": number(row.get("lower_epsilon")),
                "refuted": row.get("violated") is True,
            }
            for row in games[:_GAMES]
        ],
        "whole": {
            "releases": number(whole.get("releases")),
            "canaries": number(whole.get("canaries")),
            "claimed": number(whole.get("claimed_epsilon")),
            "least": number(whole.get("lower_epsilon")),
            "refuted": whole.get("violated") is True,
        }
        if whole
        else None,
    }


_PLANNED = 200


def planned(scenario: Mapping[str, Any], stages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return (t, ΔS, γ, T_s) of every stage as if τ_max and the edges of the first stage stayed; []: not MAPA.

    The moment v of the noise follows from Δ_b = σ²/b + ΔS²·v, which the record of the first stage has.
    """
    algorithm = scenario.get("algorithm")
    if not isinstance(algorithm, Mapping) or algorithm.get("name") != "mapa" or not stages:
        return []
    first, batch = stages[0], scenario.get("batch_size")
    if type(batch) is not int:
        return []
    try:
        problem = Problem(
            batch_size=batch,
            smoothness=algorithm["smoothness"],
            sigma=algorithm["sigma"],
            tau_max=int(first["tau_max"]),
            iterations=scenario["iterations"],
            theta=algorithm["theta"],
            delta=algorithm["delta"],
            loss_gap=algorithm["loss_gap"],
            radius=algorithm["radius"],
            first_clip=first["sensitivity"] * batch / 2,
            rule=SensitivityRule(algorithm["rule"]),
        )
        spread = problem.sigma**2 / problem.batch_size
        moment = max(0.0, first["variance"] - spread) / first["sensitivity"] ** 2
        return [
            {
                "stage": stage.index,
                "t": start,
                "sensitivity": stage.sensitivity,
                "learning_rate": stage.learning_rate,
                "length": stage.length,
            }
            for start, stage in itertools.islice(planned_stages(moment, problem), _PLANNED)
        ]
    except (MapaError, KeyError, TypeError, ValueError, ArithmeticError):
        return []  # records of another version, or of somebody else
