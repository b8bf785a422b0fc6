"""The numbers behind the pictures: one row for each line and x, as Markdown and CSV."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.reproduce.catalogue import catalogue
from experiments.reproduce.judges.clipping import PRINTED
from experiments.reproduce.judges.ours import TARGET
from experiments.reproduce.results import Entry, Result, Results, mean, spread
from experiments.reproduce.verdicts import Judged

Row = dict[str, str]
EXPLANATION = "Our explanation (not tested by runs)"


def rows_of(results: Results, experiment: str) -> list[Row]:
    """Return one row for each line, engine and x, means over the seeds."""
    if experiment == "attack":
        return _attack_rows(results)
    groups: dict[tuple[object, ...], list[Entry]] = {}
    for entry in results.entries:
        p = entry.point
        if p.experiment == experiment:
            groups.setdefault((p.line, p.engine, p.sweep, p.x), []).append(entry)
    return [_row(experiment, entries) for entries in groups.values()]


def _row(experiment: str, entries: Sequence[Entry]) -> Row:
    point, results = entries[0].point, [entry.result for entry in entries]
    finals = [result.final for result in results]
    row = {
        "line": point.line,
        "data": point.scenario.data.set,
        "x": "–" if point.x is None else f"{point.sweep} = {point.x:g}",
        "K": str(point.scenario.workers),
        "T": f"{point.scenario.iterations:,}",
        "seeds": str(len(entries)),
        "accuracy %": f"{100 * mean(finals):.2f}"
        + (f" ± {100 * spread(finals):.2f}" if len(finals) > 1 else ""),
    }
    losses = [result.loss[-1] for result in results]
    finite = [loss for loss in losses if loss is not None]
    row["loss"] = f"{mean(finite):.4f}" if len(finite) == len(losses) else "not finite"
    if experiment == "convergence":
        threshold = catalogue().thresholds()[point.panel]
        for name, value in (("taken", threshold.taken), ("paper", threshold.paper)):
            row[f"updates to {name}"] = f"{_updates_to(value, results)} (loss ≤ {value:g})"
    if point.scenario.data.holdout:
        row["measured on"] = f"{point.scenario.data.holdout:,} held-out training records"
    if experiment in ("testbed", "sensitivity"):
        row["run as"] = point.run_as
    if experiment == "testbed":
        row |= _staleness(entries)
        ends = [result.seconds[-1] for result in results if result.seconds]
        if ends:
            row["seconds"] = f"{mean(ends):.1f}"
    if experiment == "stragglers":
        row["engine"] = point.engine
        times = [result.seconds_to(TARGET) for result in results]
        reached_at = [time for time in times if time is not None]
        row[f"seconds to {TARGET:.0%}"] = (
            f"{mean(reached_at):.2f}" if len(reached_at) == len(times) else "not within T"
        )
    return row


def _updates_to(threshold: float, results: Sequence[Result]) -> str:
    """Return the mean count; `≤` where a seed got there in the first window, which may be late."""
    reached = [result.reached(threshold) for result in results]
    known = [t for t in reached if t is not None]
    if len(known) < len(reached):
        return "not within T"
    first = any(t == result.floor for t, result in zip(known, results, strict=True))
    return f"{'≤ ' if first else ''}{mean(known):,.0f}"


def _staleness(entries: Sequence[Entry]) -> Row:
    """Return what was measured over all seeds, beside the τ_max of the schedule."""
    counts: Counter[int] = Counter()
    for entry in entries:
        counts.update(entry.result.staleness)
    scenario, total = entries[0].point.scenario, counts.total()
    tau_max = 0 if scenario.centralised else scenario.problem.tau_max
    if not total:
        return {}
    beyond = sum(n for staleness, n in counts.items() if staleness > tau_max)
    return {
        "τ_max": str(tau_max),
        "staleness mean": f"{sum(s * n for s, n in counts.items()) / total:.1f}",
        "staleness max": str(max(counts)),
        "above τ_max": f"{100 * beyond / total:.1f} %",
    }


def _attack_rows(results: Results) -> list[Row]:
    return [
        {
            "line": entry.point.line,
            "data": entry.point.scenario.data.set,
            "law": cell["law"] + (" (as printed)" if cell["law"] == PRINTED else ""),
            "ε": "–" if cell["epsilon"] is None else f"{cell['epsilon']:g}",
            "t": f"{cell['t']:,}",
            "|r|": f"{cell['correlation']:.3f}",
            "SSIM": "–" if cell["ssim"] is None else f"{cell['ssim']:.3f}",
            "PSNR dB": "–" if cell["psnr"] is None else f"{cell['psnr']:.1f}",
            "label right": f"{cell['label_accuracy']:.2f}",
        }
        for entry in results.of("attack")
        for cell in entry.result.cells or []
    ]


def verdict_rows(judged: Sequence[Judged]) -> list[Row]:
    return [
        {
            "claim": one.claim.text,
            "where": one.claim.where,
            "verdict": one.words,
            "measured": one.judgement.measured,
            EXPLANATION.lower(): one.judgement.why,
        }
        for one in judged
    ]


def as_markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a table; cells that some rows lack are empty."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    lines = [_line(columns), "|" + "---|" * len(columns)]
    lines += [_line([str(row.get(column, "")) for column in columns]) for row in rows]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    columns = list(dict.fromkeys(column for row in rows for column in row))
    stream = io.StringIO()
    writer = csv.DictWriter(stream, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()
