"""The sections of a run's page as plain values: from its counts, its manifest and its summary."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cloud.stages import planned_stages
from common.errors import MapaError
from common.metrics import Metric
from common.problem import Problem, SensitivityRule
from common.records.regular import count, number, rows, table, text
from common.records.tally import Evaluation, metric_named, staleness_summary
from mapa.dashboard.page_tally import EDGES, METRICS, Lane, PageTally, small
from mapa.dashboard.series import Durations
from mapa.runs import shown_of_manifest

LANES = 500  # edges shown one by one
_GAMES, _LONGEST = 64, 120  # games of an audit that are shown, characters of a game's name
_PLANNED = 200  # stages
_SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
_BINS = 200  # bars of the histogram
_COUNTED = ("applied", "joins", "last_sequence", "staleness_mean", "staleness_max")
_HEAD = ("name", "engine", "algorithm", "model", "data", "seed", "batch_size", "parameters")
_CONSTANTS = ("smoothness", "sigma", "theta", "delta", "loss_gap", "radius")  # of [algorithm], MAPA's


@dataclass(frozen=True, slots=True)
class Page:
    """What is known of a run at one moment; without records, an empty page."""

    run: str
    state: str = "quiet"  # live, ending, ended, quiet
    counted: PageTally = field(default_factory=PageTally)
    manifest: Mapping[str, Any] = field(default_factory=dict)
    summary: Mapping[str, Any] = field(default_factory=dict)

    @property
    def scenario(self) -> Mapping[str, Any]:
        return table(self.manifest, "scenario")

    @property
    def privacy(self) -> Mapping[str, Any]:
        """The scenario's table."""
        return table(self.scenario, "privacy")

    @property
    def budget(self) -> float | None:
        return number(self.privacy.get("total_epsilon"))

    @property
    def local(self) -> bool:
        """Whether edges bring records of their own, whose number only their ledgers know."""
        return table(self.scenario, "data").get("set") == "local"

    @property
    def metrics(self) -> list[Metric]:
        """The headline metric first."""
        try:
            declared = [Metric.from_dict(small(row)) for row in rows(self.summary, "metrics")[:METRICS]]
        except (KeyError, TypeError, ValueError):
            declared = []
        return declared or [metric_named(name) for name in self.counted.latest.get("values", {})]


def head(page: Page) -> dict[str, Any]:
    counted, summary, scenario = page.counted, page.summary, page.scenario
    tally, metrics, times = counted.tally, page.metrics, counted.tally.times
    names = {
        **shown_of_manifest(page.manifest),
        **{key: scenario.get(key) for key in ("seed", "batch_size")},
    }
    first = metrics[0].name if metrics else ""
    best, best_at = counted.best or (None, None)
    span = None if times.first is None or times.last is None else times.last - times.first
    stage = tally.stages[-1] if tally.stages else {}
    numbers = {  # those of the summary, once it is there
        "updates": tally.updates,
        "iterations": names["iterations"],
        "seconds": span,
        "iterations_per_second": tally.updates / span if span else None,
        f"best_{first}": best,
        f"best_{first}_at": best_at,
    }
    stated = {key: number(summary.get(key, value)) for key, value in numbers.items()}
    return {
        "run": page.run,
        "state": page.state,
        **{key: plain(summary.get(key, names.get(key))) for key in _HEAD},
        "started": names["started"],
        "reason": plain(summary.get("reason", tally.halted or None)),
        "updates": stated["updates"],
        "iterations": stated["iterations"],
        "edges": names["edges"],
        "edges_seen": len(counted.lanes),
        **{key: number(stage.get(key)) for key in ("stage", "sensitivity", "learning_rate")},
        "metrics": [metric.as_dict() for metric in metrics],
        "latest": counted.latest,
        "best": stated[f"best_{first}"],
        "best_at": stated[f"best_{first}_at"],
        "seconds": stated["seconds"],
        "updates_per_second": stated["iterations_per_second"],
        "timed": times.first is not None,
        "resumed": tally.resumed,
        "unreadable": counted.unreadable,
        "warning": plain(summary.get("warning")),
    }


def fleet(page: Page) -> dict[str, Any]:
    counts, links = page.counted, page.scenario.get("links")
    links = links if isinstance(links, list) else []
    network, counted = by_edge(page.summary, "network"), by_edge(page.summary, "edges")
    everyone, updates = sorted({*counts.lanes, *counted}), counts.tally.updates
    lanes = []
    for k in everyone[:LANES]:
        lane, tally = counts.lanes.get(k, Lane()), counts.tally.edges.get(k)
        row = counted.get(k) or ({} if tally is None else tally.row(k))
        measured = network.get(k, {})
        link = measured.get("link") or (links[k % len(links)] if links else None)
        lanes.append(
            {
                "edge": k,
                **{key: text(row.get(key)) for key in ("edge_id", "gone")},
                **{key: number(row.get(key)) for key in _COUNTED},
                "staleness_last": lane.last_staleness,
                "share": (number(row.get("applied")) or 0) / updates if updates else None,
                "pace": lane.pace,
                "silent": _silent(k, counts) if page.state == "live" else None,
                "link": plain(link),
                "device": text(lane.joined.get("device"), 64),
                "round_trip_ms": number(measured.get("round_trip_ms")),
                "strip": lane.strip.counts,
                "strip_width": lane.strip.width if k in counts.lanes else 1.0,
            }
        )
    return {
        "edges": lanes,
        "hidden": max(0, len(everyone) - LANES),
        "budget": page.budget,
        "timed": counts.tally.times.first is not None,
    }


def _silent(edge: int, counted: PageTally) -> float | None:
    """Return for how long an edge has sent nothing, where that is long for it; None: it speaks."""
    lane, tally, now = counted.lanes.get(edge), counted.tally.edges.get(edge), counted.tally.times.last
    if lane is None or tally is None or now is None or tally.gone:
        return None
    heard = [time for time in (*list(lane.recent)[-1:], lane.joined.get("time")) if time is not None]
    if not heard:
        return None
    quiet, usual = now - max(heard), 1 / lane.pace if lane.pace else 1.0
    return quiet if quiet > max(3.0, 10 * usual) else None


def training(page: Page) -> dict[str, Any]:
    envelopes, curves = page.counted.metrics, {}
    for name in dict.fromkeys([*(metric.name for metric in page.metrics), *envelopes]):
        points = envelopes[name].points() if name in envelopes else []
        places = {"t": 0, "seconds": 2, "value": 1}
        curves[name] = {key: [point[place] for point in points] for key, place in places.items()}
    stages = page.counted.tally.stages
    return {"curves": curves, "stages": plain(stages), "plan": planned(page.scenario, stages)}


def staleness(page: Page) -> dict[str, Any]:
    counts, heat = page.counted.tally.staleness, page.counted.heat
    stated = table(page.summary, "staleness") or staleness_summary(counts)
    width = max(1, -(-(max(counts, default=0) + 1) // _BINS))
    bins = [0] * (max(counts, default=-1) // width + 1)
    for value, updates in counts.items():
        bins[value // width] += updates
    return {
        "summary": {key: number(value) for key, value in stated.items()},
        "bins": bins,
        "bin_width": width,
        "beyond": page.counted.stale_beyond,
        "heat": {"width": heat.width, "height": heat.height, "cells": heat.cells},
    }


def traffic(page: Page) -> dict[str, Any]:
    counted, summary = page.counted, page.summary
    network = by_edge(summary, "network")
    everyone = sorted({*counted.lanes, *network})
    refused = table(summary, "refused") if "refused" in summary else dict(counted.tally.refused)
    trips = []
    for k in everyone[:LANES]:
        tally, measured = counted.tally.edges.get(k), network.get(k, {})
        trips.append(
            {
                "edge": k,
                "edge_id": text(measured.get("edge_id")) if tally is None else tally.edge_id,
                "turns": _turns(counted.lanes.get(k, Lane()).turns),
                "asked_delay_ms": number(measured.get("asked_delay_ms")),
                "round_trip_ms": number(measured.get("round_trip_ms")),
            }
        )
    return {
        "width": counted.rate.width,
        "applied": counted.rate.counts,
        "refused": {key: number(value) for key, value in refused.items()},
        "refused_exact": "refused" in summary,  # of one edge only the first hundred are written line by line
        "refused_over": {
            reason: {"width": counts.width, "counts": counts.counts}
            for reason, counts in counted.refused_over.items()
        },
        "dropped": {str(key): number(value) for key, value in table(summary, "dropped").items()},
        "turns": _turns(counted.turns),
        "trips": trips,
        "hidden": max(0, len(everyone) - LANES),
    }


def _turns(turns: Durations) -> dict[str, float | None]:
    seconds = {name: turns.percentile(share) for name, share in _SHARES.items()}
    return {name: None if value is None else value * 1000 for name, value in seconds.items()}


def from_summary(counted: PageTally, summary: Mapping[str, Any]) -> None:
    """Take evaluations and stages from the summary, of a run without events."""
    for row in rows(summary, "evaluations"):
        if count(row.get("updates")) is not None:
            counted.evaluated(Evaluation.of(small(row)), None)
    counted.take({**stage, "event": "stage_opened"} for stage in rows(summary, "stages"))
    counted.tally.updates = count(summary.get("updates")) or 0


def by_edge(values: Mapping[str, Any], key: str) -> dict[int, Mapping[str, Any]]:
    """Return rows by the index of their edge; one without an index is left out."""
    indexed = ((row.get("edge"), row) for row in rows(values, key))
    return {k: row for k, row in indexed if type(k) is int and 0 <= k < EDGES}


def plain(value: object) -> Any:
    """Return what JSON can hold: a number that is not finite is None."""
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [plain(one) for one in value]
    return value if value is None or isinstance(value, str | bool) else number(value)


def audited(report: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the scenario's own games and the audit of a whole run; None: there is no report."""
    games = [row for row in rows(report, "games") if row.get("kind") == "scenario"]
    whole = table(report, "one_run")
    if not games and not whole:
        return None
    return {
        **{key: number(report.get(key)) for key in ("edge", "confidence", "delta")},
        "refuted": any(row.get("violated") is True for row in (*games, whole)),
        "games": [{"name": str(row.get("name"))[:_LONGEST], **_found(row)} for row in games[:_GAMES]],
        "whole": {**{key: number(whole.get(key)) for key in ("releases", "canaries")}, **_found(whole)}
        if whole
        else None,
    }


def _found(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ε that is claimed, the least that an attack shows, and whether that refutes the claim."""
    claimed, least = number(row.get("claimed_epsilon")), number(row.get("lower_epsilon"))
    return {"claimed": claimed, "least": least, "refuted": row.get("violated") is True}


def planned(scenario: Mapping[str, Any], stages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return (t, ΔS, γ, T_s) of every stage as if τ_max and the edges of the first stage stayed; []: not MAPA.

    The moment v of the noise follows from Δ_b = σ²/b + ΔS²·v, which the record of the first stage has.
    """
    algorithm, batch = table(scenario, "algorithm"), scenario.get("batch_size")
    if algorithm.get("name") != "mapa" or not stages or type(batch) is not int:
        return []
    first = stages[0]
    try:
        problem = Problem(
            batch_size=batch,
            **{key: algorithm[key] for key in _CONSTANTS},
            tau_max=int(first["tau_max"]),
            iterations=scenario["iterations"],
            first_clip=first["sensitivity"] * batch / 2,
            rule=SensitivityRule(algorithm["rule"]),
        )
        spread = problem.sigma**2 / problem.batch_size
        moment = max(0.0, first["variance"] - spread) / first["sensitivity"] ** 2
        shown = ("sensitivity", "learning_rate", "length")
        return [
            {"stage": stage.index, "t": start, **{key: getattr(stage, key) for key in shown}}
            for start, stage in itertools.islice(planned_stages(moment, problem), _PLANNED)
        ]
    except (MapaError, KeyError, TypeError, ValueError, ArithmeticError):
        return []  # records of another version, or untrusted ones
