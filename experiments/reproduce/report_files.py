"""One self-contained HTML page: verdicts, pictures, tables, and the command behind every number."""

from __future__ import annotations

import base64
import html
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from common.records.directory import versions
from experiments.reproduce.catalogue import Experiment
from experiments.reproduce.conventions import conventions, run_as
from experiments.reproduce.points import Point
from experiments.reproduce.result_tables import EXPLANATION, Row, as_csv, as_markdown, rows_of, verdict_rows
from experiments.reproduce.results import Results
from experiments.reproduce.verdicts import Judged, Judgement, Verdict

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 80rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a }
h1 { font-size: 1.6rem } h2 { margin-top: 2.5rem; border-bottom: 1px solid #ddd }
.wide { overflow-x: auto; margin: 1rem 0 } table { border-collapse: collapse; font-size: 13px }
th, td { border: 1px solid #ddd; padding: .25rem .5rem; text-align: left; vertical-align: top }
th { background: #f5f5f5 } .verdicts { table-layout: fixed; width: 100%; min-width: 64rem; overflow-wrap: break-word }
.reproduced { background: #d7efe5 } .partly { background: #fdf0cf } .not-reproduced { background: #f9dcd0 }
.undecided { background: #e2e6f5 } .not-run { background: #eee } img { max-width: 100%; height: auto }
code { font-size: 12px } td code { font-size: 11px } pre { overflow-x: auto } summary { cursor: pointer }
details { margin: .5rem 0 } td details { margin: 0 } td ul { margin: .25rem 0; padding-left: 1.1rem }
.note { color: #555 }
"""
_WIDTHS = {"Claim": 22, "Where": 14, "Verdict": 10, "Measured": 31, EXPLANATION: 23}  # percent
_ROOT = Path(__file__).resolve().parents[2]
_GIT_SECONDS = 20.0
_OPEN = 4  # cases that a reader sees without asking
_PLURAL = {"holds": "hold", "does not hold": "do not hold"}


def made_with(root: Path = _ROOT) -> str:
    """Return this package's version and, in a checkout, its commit; `changed` where the files are not those."""
    said = f"mapa {versions().get('mapa-testbed', '(not installed)')}"
    # another repository may lie around an installed package: only its own counts
    commit = _git(root, "rev-parse", "--short", "HEAD") if (root / ".git").exists() else None
    if not commit:
        return said
    changed = ", changed" if _git(root, "status", "--porcelain") else ""
    return f"{said}, commit {commit}{changed}"


def _git(root: Path, *words: str) -> str | None:
    """Return what git says, or None where there is none or it refuses."""
    command = ["git", "--no-optional-locks", "-C", str(root), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_GIT_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


@dataclass(slots=True)
class ReportContent:
    """Everything the report tells."""

    command: str
    size: str
    seconds: float
    machine: Mapping[str, str]
    experiments: Sequence[Experiment]
    results: Results
    judged: Sequence[Judged]
    pictures: Mapping[str, Sequence[Path]]
    failures: Mapping[str, str] = field(default_factory=dict)  # by label
    notes: Sequence[str] = ()
    made_with: str = field(default_factory=made_with)


def write_report(content: ReportContent, folder: Path) -> list[Path]:
    """Write report.html, report.md, and the tables as CSV."""
    folder.mkdir(parents=True, exist_ok=True)
    tables = {
        experiment.name: rows_of(content.results, experiment.name) for experiment in content.experiments
    }
    written = [folder / "report.html", folder / "report.md", folder / "tables" / "verdicts.csv"]
    (folder / "tables").mkdir(exist_ok=True)
    written[0].write_text(_page(content, tables), encoding="utf-8")
    written[1].write_text(_markdown(content, tables), encoding="utf-8")
    written[2].write_text(as_csv(verdict_rows(content.judged)), encoding="utf-8")
    for name, rows in tables.items():
        if rows:
            path = folder / "tables" / f"{name}.csv"
            path.write_text(as_csv(rows), encoding="utf-8")
            written.append(path)
    return written


def counted(judged: Sequence[Judged]) -> str:
    """Return how many claims came out how, the paper's and ours apart."""
    said = []
    for ours, whose in ((False, "The paper's claims"), (True, "Our own questions")):
        words = []
        for verdict in Verdict:
            some = [
                one.words for one in judged if one.claim.ours is ours and one.judgement.verdict is verdict
            ]
            if some:
                words.append(f"{len(some)} {_PLURAL.get(some[0], some[0]) if len(some) > 1 else some[0]}")
        said += [f"{whose}: {', '.join(words)}."] if words else []
    return " ".join(said)


def _page(content: ReportContent, tables: Mapping[str, Sequence[Row]]) -> str:
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        f"<title>Reproduction, {content.size}</title><style>{_STYLE}</style></head><body>",
        f"<h1>Reproduction of the paper's evaluation, size {html.escape(content.size)}</h1>",
        f"<p>Made by <code>{html.escape(content.command)}</code> ({html.escape(content.made_with)}) in "
        f"{content.seconds:,.0f} s on "
        f"{html.escape(', '.join(f'{key} {value}' for key, value in content.machine.items()))}.</p>",
        *(f"<p><b>{html.escape(note)}</b></p>" for note in content.notes),
        "<nav><ul><li><a href='#verdicts'>Verdicts</a></li><li><a href='#conventions'>Conventions</a></li>",
        *(
            f"<li><a href='#{experiment.name}'>{_heading(experiment)}</a></li>"
            for experiment in content.experiments
        ),
        "</ul></nav>",
        "<h2 id='verdicts'>Verdicts</h2>",
        f"<p>{html.escape(counted(content.judged))} <span class='note'>✗: fails there; ?: undecided by these seeds."
        "</span></p>",
        _verdict_table(content.judged),
        "<h2 id='conventions'>Conventions where the paper leaves it open</h2><ul>",
        *(f"<li>{_coded(line)}</li>" for line in conventions(content.results)),
        "</ul>",
    ]
    for experiment in content.experiments:
        parts.append(
            f"<h2 id='{experiment.name}'>{_heading(experiment)}</h2>"
            f"<p class='note'>The paper's <code>{html.escape(experiment.paper)}</code>. Run as: "
            f"{html.escape(run_as(content.results, experiment.name))}.{_claims(content.judged, experiment.name)}</p>"
        )
        for path in content.pictures.get(experiment.name, ()):
            if path.suffix == ".png":
                code = base64.b64encode(path.read_bytes()).decode()
                alt = html.escape(_alternative(experiment, path, content.results))
                parts.append(f"<p><img alt='{alt}' src='data:image/png;base64,{code}'></p>")
        rows = tables[experiment.name]
        if rows:
            parts.append(f"<details><summary>Numbers ({len(rows)} rows)</summary>{_table(rows)}</details>")
        else:
            parts.append("<p>No result.</p>")
        parts.append(_commands(content.results, experiment.name))
    parts.append("</body></html>")
    return "\n".join(parts)


def _heading(experiment: Experiment) -> str:
    return f"{experiment.number}. {html.escape(experiment.title)}"


def _coded(text: str) -> str:
    """Return text as HTML, what stands between backticks as code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", html.escape(text))


def _alternative(experiment: Experiment, path: Path, results: Results) -> str:
    """Return a picture in words, for who does not see it."""
    panel = path.stem.removeprefix(experiment.name).removeprefix("-")
    of = f", {results.title(panel)}" if panel else ""
    return f"Figure: {experiment.title}{of}. The table below has its numbers."


def _claims(judged: Sequence[Judged], experiment: str) -> str:
    """Return links to what was judged by an experiment."""
    links = [
        f"<a href='#claim-{place}'>{html.escape(one.claim.name)}</a> ({one.words})"
        for place, one in enumerate(judged)
        if one.claim.experiment == experiment
    ]
    return f" Claims: {', '.join(links)}." if links else ""


def _verdict_table(judged: Sequence[Judged]) -> str:
    columns = "".join(f"<col style='width: {width}%'>" for width in _WIDTHS.values())
    head = "".join(f"<th scope='col'>{name}</th>" for name in _WIDTHS)
    lines = [f"<div class='wide'><table class='verdicts'><colgroup>{columns}</colgroup><tr>{head}</tr>"]
    for place, one in enumerate(judged):
        claim, judgement = one.claim, one.judgement
        lines.append(
            f"<tr id='claim-{place}'><td><a href='#{claim.experiment}'>{html.escape(claim.text)}</a></td>"
            f"<td><code>{html.escape(claim.where)}</code></td>"
            f"<td class='{judgement.verdict.value.replace(' ', '-')}'>{one.words}</td>"
            f"<td>{_measured(judgement)}</td><td>{_coded(judgement.why)}</td></tr>"
        )
    return "\n".join([*lines, "</table></div>"])


def _measured(judgement: Judgement) -> str:
    """Return the summary, with the cases to unfold: those that failed first, then the undecided."""
    summary = html.escape(judgement.summary)
    if not judgement.cases:
        return summary
    cases = sorted(judgement.cases, key=lambda case: (case.holds is not False, case.holds is not None))
    items = "".join(f"<li>{html.escape(case.words)}</li>" for case in cases)
    unfolded = " open" if len(cases) <= _OPEN else ""
    return f"<details{unfolded}><summary>{summary}</summary><ul>{items}</ul></details>"


def _table(rows: Sequence[Row]) -> str:
    columns = list(dict.fromkeys(column for row in rows for column in row))
    head = "".join(f"<th scope='col'>{html.escape(column)}</th>" for column in columns)
    body = "\n".join(
        "<tr>" + "".join(f"<td>{html.escape(row.get(column, ''))}</td>" for column in columns) + "</tr>"
        for row in rows
    )
    return f"<div class='wide'><table><tr>{head}</tr>{body}</table></div>"


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


def _markdown(content: ReportContent, tables: Mapping[str, Sequence[Row]]) -> str:
    made = f"`{content.command}` ({content.made_with}), {content.seconds:,.0f} s.\n"
    parts = [f"# Reproduction, size {content.size}\n", made]
    parts += [f"{note}\n" for note in content.notes]
    parts += ["## Verdicts\n", f"{counted(content.judged)}\n", as_markdown(verdict_rows(content.judged))]
    for experiment in content.experiments:
        parts.append(f"## {experiment.number}. {experiment.title}\n")
        parts.append(f"Run as: {run_as(content.results, experiment.name)}.\n")
        rows = tables[experiment.name]
        parts.append(as_markdown(rows) if rows else "No result.\n")
    return "\n".join(parts)
