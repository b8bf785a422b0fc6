"""The sections of a run's page as plain values: from what was gathered, its manifest and its summary."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from cloud.stages import planned_stages
from common.errors import MapaError
from common.metrics import Metric
from common.problem import Problem, SensitivityRule
from common.records.regular import count, number, rows, table, text
from common.records.tally import Evaluation, metric_named, staleness_summary
from mapa.dashboard.page_tally import EDGES, METRICS, PageTally, small
from mapa.dashboard.series import Durations

LANES = 500  # edges shown one by one
_SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
_BINS = 200  # bars of the histogram
_HEAD = ("name", "engine", "algorithm", "model", "data", "seed", "batch_size", "parameters")


def metrics_of(gathered: PageTally, summary: Mapping[str, Any]) -> list[Metric]:
    """Return the metrics, the headline metric first."""
    try:
        declared = [Metric.from_dict(small(row)) for row in rows(summary, "metrics")[:METRICS]]
    except (KeyError, TypeError, ValueError):
        declared = []
    return declared or [metric_named(name) for name in gathered.latest.get("values", {})]


def head(
    run: str, state: str, gathered: PageTally, manifest: Mapping[str, Any], summary: Mapping[str, Any]
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
    stage = gathered.tally.stages[-1] if gathered.tally.stages else {}
    return {
        "run": run,
        "state": state,
        **{key: plain(summary.get(key, names[key])) for key in _HEAD},
        "started": plain(manifest.get("started")),
        "reason": plain(summary.get("reason", gathered.tally.halted or None)),
        "updates": number(summary.get("updates", gathered.tally.updates)),
        "iterations": number(summary.get("iterations", scenario.get("iterations"))),
        "edges": number(scenario.get("edges")),
        "edges_seen": len(gathered.lanes),
        **{key: number(stage.get(key)) for key in ("stage", "sensitivity", "learning_rate")},
        "metrics": [metric.as_dict() for metric in metrics],
        "latest": gathered.latest,
        "best": number(summary.get(f"best_{first}", best[0])),
        "best_at": number(summary.get(f"best_{first}_at", best[1])),
        "seconds": number(summary.get("seconds", span)),
        "updates_per_second": number(
            summary.get("iterations_per_second", gathered.tally.updates / span if span else None)
        ),
        "timed": gathered.tally.times.first is not None,
        "resumed": gathered.tally.resumed,
        "unreadable": gathered.unreadable,
        "warning": plain(summary.get("warning")),
    }


def fleet(
    live: bool, gathered: PageTally, manifest: Mapping[str, Any], summary: Mapping[str, Any]
) -> dict[str, Any]:
    links = table(manifest, "scenario").get("links")
    links = links if isinstance(links, list) else []
    network, counted = by_edge(summary, "network"), by_edge(summary, "edges")
    everyone = sorted({*gathered.lanes, *counted})
    lanes = []
    for k in everyone[:LANES]:
        lane, tally = gathered.lanes.get(k), gathered.tally.edges.get(k)
        row = counted.get(k) or ({} if tally is None else tally.row(k))
        measured = network.get(k, {})
        link = measured.get("link") or (links[k % len(links)] if links else None)
        lanes.append(
            {
                "edge": k,
                **{key: text(row.get(key)) for key in ("edge_id", "gone")},
                **{key: number(row.get(key)) for key in ("applied", "joins", "last_sequence")},
                "staleness_mean": number(row.get("staleness_mean")),
                "staleness_max": number(row.get("staleness_max")),
                "staleness_last": None if lane is None else lane.last_staleness,
                "share": (number(row.get("applied")) or 0) / gathered.tally.updates
                if gathered.tally.updates
                else None,
                "pace": None if lane is None else lane.pace,
                "silent": _silent(k, gathered) if live else None,
                "link": plain(link),
                "device": None if lane is None else text(lane.joined.get("device"), 64),
                "round_trip_ms": number(measured.get("round_trip_ms")),
                "strip": [] if lane is None else list(lane.strip.counts),
                "strip_width": 1.0 if lane is None else lane.strip.width,
            }
        )
    return {
        "edges": lanes,
        "hidden": max(0, len(everyone) - LANES),
        "budget": number(table(table(manifest, "scenario"), "privacy").get("total_epsilon")),
        "timed": gathered.tally.times.first is not None,
    }


def training(gathered: PageTally, manifest: Mapping[str, Any], summary: Mapping[str, Any]) -> dict[str, Any]:
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
    stages = gathered.tally.stages
    return {"curves": curves, "stages": plain(stages), "plan": planned(scenario, stages)}


def staleness(gathered: PageTally, summary: Mapping[str, Any]) -> dict[str, Any]:
    counts, heat = gathered.tally.staleness, gathered.heat
    stated = table(summary, "staleness") or staleness_summary(counts)
    width = max(1, -(-(max(counts, default=0) + 1) // _BINS))
    bins = [0] * (max(counts, default=-1) // width + 1)
    for value, updates in counts.items():
        bins[value // width] += updates
    return {
        "summary": {key: number(value) for key, value in stated.items()},
        "bins": bins,
        "bin_width": width,
        "beyond": gathered.stale_beyond,
        "heat": {"width": heat.width, "height": heat.height, "cells": heat.cells},
    }


def traffic(gathered: PageTally, summary: Mapping[str, Any]) -> dict[str, Any]:
    network = by_edge(summary, "network")
    everyone = sorted({*gathered.lanes, *network})
    refused = table(summary, "refused") if "refused" in summary else dict(gathered.tally.refused)
    return {
        "width": gathered.rate.width,
        "applied": list(gathered.rate.counts),
        "refused": {key: number(value) for key, value in refused.items()},
        "refused_exact": "refused" in summary,  # of one edge only the first hundred are written line by line
        "refused_over": {
            reason: {"width": counts.width, "counts": list(counts.counts)}
            for reason, counts in gathered.refused_over.items()
        },
        "dropped": {str(key): number(value) for key, value in table(summary, "dropped").items()},
        "turns": _turns(gathered.turns),
        "trips": [_trip(k, gathered, network.get(k, {})) for k in everyone[:LANES]],
        "hidden": max(0, len(everyone) - LANES),
    }


def _turns(turns: Durations) -> dict[str, float | None]:
    """Return percentiles in milliseconds of the time from one update of an edge to its next."""
    found = {name: turns.percentile(share) for name, share in _SHARES.items()}
    return {name: None if value is None else value * 1000 for name, value in found.items()}


def _trip(edge: int, gathered: PageTally, measured: Mapping[str, Any]) -> dict[str, Any]:
    lane, tally = gathered.lanes.get(edge), gathered.tally.edges.get(edge)
    return {
        "edge": edge,
        "edge_id": text(measured.get("edge_id")) if tally is None else tally.edge_id,
        "turns": _turns(Durations() if lane is None else lane.turns),
        "asked_delay_ms": number(measured.get("asked_delay_ms")),
        "round_trip_ms": number(measured.get("round_trip_ms")),
    }


def from_summary(gathered: PageTally, summary: Mapping[str, Any]) -> None:
    """Take evaluations and stages from the summary, of a run without events."""
    for row in rows(summary, "evaluations"):
        if count(row.get("updates")) is not None:
            gathered.evaluated(Evaluation.of(small(row)), None)
    gathered.take({**stage, "event": "stage_opened"} for stage in rows(summary, "stages"))
    gathered.tally.updates = count(summary.get("updates")) or 0


def by_edge(values: Mapping[str, Any], key: str) -> dict[int, Mapping[str, Any]]:
    """Return rows by the index of their edge; one without an index is left out."""
    found = ((row.get("edge"), row) for row in rows(values, key))
    return {k: row for k, row in found if type(k) is int and 0 <= k < EDGES}


def plain(value: object) -> Any:
    """Return what JSON can hold: a number that is not finite is None."""
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [plain(one) for one in value]
    return value if value is None or isinstance(value, str | bool) else number(value)


def _silent(edge: int, gathered: PageTally) -> float | None:
    """Return for how long an edge has sent nothing, where that is long for it; None: it speaks."""
    lane, tally, now = gathered.lanes.get(edge), gathered.tally.edges.get(edge), gathered.tally.times.last
    if lane is None or tally is None or now is None or tally.gone:
        return None
    heard = [time for time in (*list(lane.recent)[-1:], lane.joined.get("time")) if time is not None]
    if not heard:
        return None
    quiet = now - max(heard)
    usual = 1 / lane.pace if lane.pace else 1.0
    return quiet if quiet > max(3.0, 10 * usual) else None


def _span(gathered: PageTally) -> float | None:
    if gathered.tally.times.first is None or gathered.tally.times.last is None:
        return None
    return gathered.tally.times.last - gathered.tally.times.first


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
