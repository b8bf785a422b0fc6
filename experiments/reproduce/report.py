"""One self-contained HTML page: verdicts, pictures, tables, and the command behind every number."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from experiments.reproduce.catalogue import Experiment
from experiments.reproduce.judges.ours import MODELS, bound_of
from experiments.reproduce.points import Point
from experiments.reproduce.results import WINDOW, Results
from experiments.reproduce.tables import Row, as_csv, as_markdown, rows_of, verdict_rows
from experiments.reproduce.verdicts import NEAR, TIE, Judged

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a }
h1 { font-size: 1.6rem } h2 { margin-top: 2.5rem; border-bottom: 1px solid #ddd }
table { border-collapse: collapse; font-size: 13px; margin: 1rem 0 } th, td { border: 1px solid #ddd;
padding: .25rem .5rem; text-align: left; vertical-align: top } th { background: #f5f5f5 }
.reproduced { background: #d7efe5 } .partly { background: #fdf0cf } .not-reproduced { background: #f9dcd0 }
.not-run { background: #eee } img { max-width: 100%; height: auto } code { font-size: 12px }
details { margin: .5rem 0 } summary { cursor: pointer } .note { color: #555 }
"""


@dataclass(slots=True)
class Story:
    """Everything the report tells."""

    command: str
    size: str
    seconds: float
    machine: Mapping[str, str]
    experiments: Sequence[Experiment]
    results: Results
    judged: Sequence[Judged]
    pictures: Mapping[str, Sequence[Path]]
    failures: Mapping[str, str] = field(default_factory=dict)  # by line
    notes: Sequence[str] = ()


def write_report(story: Story, folder: Path) -> list[Path]:
    """Write report.html, report.md, and the tables as CSV."""
    folder.mkdir(parents=True, exist_ok=True)
    tables = {experiment.name: rows_of(story.results, experiment.name) for experiment in story.experiments}
    written = [folder / "report.html", folder / "report.md", folder / "tables" / "verdicts.csv"]
    (folder / "tables").mkdir(exist_ok=True)
    written[0].write_text(_page(story, tables), encoding="utf-8")
    written[1].write_text(_markdown(story, tables), encoding="utf-8")
    written[2].write_text(as_csv(verdict_rows(story.judged)), encoding="utf-8")
    for name, rows in tables.items():
        if rows:
            path = folder / "tables" / f"{name}.csv"
            path.write_text(as_csv(rows), encoding="utf-8")
            written.append(path)
    return written


def run_as(results: Results, experiment: str) -> str:
    """Return how the runs of an experiment were made, e.g. `containers`."""
    kinds = {e.point.run_as for e in results.entries if e.point.experiment == experiment}
    return " and ".join(sorted(kinds)) or "not run"


def conventions(results: Results) -> list[str]:
    """Return what was decided where the paper leaves it open."""
    fair = ", ".join(f"{m.upper()} {bound_of(f'accuracy-{m}-mnist-audp-fair'):g}" for m in MODELS)
    sensitivity = run_as(results, "sensitivity")
    drawn = (
        ", with delays drawn per edge in place of the testbed's links" if sensitivity == "simulation" else ""
    )
    return [
        f"Accuracies nearer than {100 * TIE:g} points count as equal; “nearly the same” means within {100 * NEAR:g} "
        "points.",
        "Loss and accuracy are those of the last model on the test set (`heldout`: on training records kept apart); "
        "a band is one standard deviation over seeds.",
        f"Convergence: the mean test loss of {WINDOW} successive evaluations is at most the panel's threshold. "
        "The tables give the count for the caption's threshold, too.",
        "AUDP's bound: “bound G” is as large as the largest gradient's norm, from which MAPA starts, too. “Fair "
        f"bound” is one constant for each model ({fair}), chosen on held-out training records with other seeds "
        "(experiment `heldout`), never on a test set: what tuning can do for AUDP, which a user with private data "
        "could not do for free. Neither is in the paper, which says “determined by actual model”.",
        "Noise, clipping and the CNN's scope are as printed (exponential-norm, batch-mean, first-conv; not DP), "
        "but for `sound`, where they are the defaults of this project.",
        "L, σ, R and f(x₁) of LR and SVM are those measured on the public data (docs/paper.md); "
        "MAPA on the testbed has the paper's σ = 30, L = 10, δ = 1e-3 and Theorem 3's first bound.",
        f"Sensitivity: {sensitivity}{drawn}.",
        "The synchronous twin averages K gradients a round, waits for the slowest edge, and has the algorithm's own "
        "schedule with τ_max = 0, σ/√K and v/K.",
    ]


def _page(story: Story, tables: Mapping[str, Sequence[Row]]) -> str:
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        f"<title>Reproduction, {story.size}</title><style>{_STYLE}</style></head><body>",
        f"<h1>Reproduction of the paper's evaluation, size {html.escape(story.size)}</h1>",
        f"<p>Made by <code>{html.escape(story.command)}</code> in {story.seconds:,.0f} s on "
        f"{html.escape(', '.join(f'{key} {value}' for key, value in story.machine.items()))}.</p>",
        *(f"<p><b>{html.escape(note)}</b></p>" for note in story.notes),
        "<h2>Verdicts</h2>",
        _verdict_table(story.judged),
        "<h2>What was decided where the paper leaves it open</h2><ul>",
        *(f"<li>{html.escape(line)}</li>" for line in conventions(story.results)),
        "</ul>",
    ]
    for experiment in story.experiments:
        parts.append(
            f"<h2 id='{experiment.name}'>{experiment.number}. {html.escape(experiment.title)}</h2>"
            f"<p class='note'>The paper's <code>{html.escape(experiment.paper)}</code>. Run as: "
            f"{html.escape(run_as(story.results, experiment.name))}.</p>"
        )
        for path in story.pictures.get(experiment.name, ()):
            if path.suffix == ".png":
                code = base64.b64encode(path.read_bytes()).decode()
                parts.append(f"<p><img alt='{path.stem}' src='data:image/png;base64,{code}'></p>")
        rows = tables[experiment.name]
        if rows:
            parts.append(f"<details><summary>Numbers ({len(rows)} rows)</summary>{_table(rows)}</details>")
        else:
            parts.append("<p>No result.</p>")
        parts.append(_commands(story.results, experiment.name))
    parts.append("</body></html>")
    return "\n".join(parts)


def _verdict_table(judged: Sequence[Judged]) -> str:
    lines = ["<table><tr><th>Claim</th><th>Where</th><th>Verdict</th><th>Measured</th><th>Why</th></tr>"]
    for one in judged:
        verdict = one.judgement.verdict.value
        cells = (one.judgement.measured, one.judgement.why)
        lines.append(
            f"<tr><td>{html.escape(one.claim.text)}</td><td><code>{html.escape(one.claim.where)}</code></td>"
            f"<td class='{verdict.replace(' ', '-')}'>{one.words}</td>"
            + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
            + "</tr>"
        )
    return "\n".join([*lines, "</table>"])


def _table(rows: Sequence[Row]) -> str:
    columns = list(dict.fromkeys(column for row in rows for column in row))
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    body = "\n".join(
        "<tr>" + "".join(f"<td>{html.escape(row.get(column, ''))}</td>" for column in columns) + "</tr>"
        for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def _commands(results: Results, experiment: str) -> str:
    done: dict[str, tuple[Point, str]] = {}
    for entry in results.entries:
        if entry.point.experiment == experiment:
            note = f"{entry.result.wall:.1f} s" + (f", {entry.result.run}" if entry.result.run else "")
            done.setdefault(entry.point.key, (entry.point, note))
    lines = "\n".join(
        f"{point.command}\n    # scenario {point.scenario.digest[:16]}, result {key[:16]}, {note}"
        for key, (point, note) in done.items()
    )
    summary = f"<summary>Commands and hashes ({len(done)} runs)</summary>"
    return f"<details>{summary}<pre><code>{html.escape(lines)}</code></pre></details>"


def _markdown(story: Story, tables: Mapping[str, Sequence[Row]]) -> str:
    parts = [f"# Reproduction, size {story.size}\n", f"`{story.command}`, {story.seconds:,.0f} s.\n"]
    parts += [f"{note}\n" for note in story.notes]
    parts += ["## Verdicts\n", as_markdown(verdict_rows(story.judged))]
    for experiment in story.experiments:
        parts.append(f"## {experiment.number}. {experiment.title}\n")
        parts.append(f"Run as: {run_as(story.results, experiment.name)}.\n")
        rows = tables[experiment.name]
        parts.append(as_markdown(rows) if rows else "No result.\n")
    return "\n".join(parts)
