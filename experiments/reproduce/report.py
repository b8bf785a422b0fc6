"""Report of a reproduction: verdicts, pictures, tables, and the command behind each number, as HTML, Markdown, CSV."""

from __future__ import annotations

import base64
import csv
import html
import io
import re
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean as mean

from common.records.directory import versions
from experiments.harness import markdown_table, percent
from experiments.reproduce.catalogue import Experiment, Point, catalogue
from experiments.reproduce.judges import MODELS, PRINTED, TARGET, bound_of
from experiments.reproduce.results import WINDOW, FinishedPoint, Result, Results
from experiments.reproduce.verdicts import ERRORS, NEAR, ONE_SEED, TIE, Judged, Judgement, Verdict

_STYLE = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
Row = dict[str, str]
EXPLANATION = "Our explanation (not tested by runs)"
_WIDTHS = {"Claim": 22, "Where": 14, "Verdict": 10, "Measured": 31, EXPLANATION: 23}  # percent
_ROOT = Path(__file__).resolve().parents[2]
_GIT_SECONDS = 20.0
_OPEN = 4  # cases that a reader sees without asking
_PLURAL = {"holds": "hold", "does not hold": "do not hold"}


def rows_of(results: Results, experiment: str) -> list[Row]:
    """Return one row for each line, engine and x, means over the seeds."""
    if experiment == "attack":
        return _attack_rows(results)
    groups: dict[tuple[object, ...], list[FinishedPoint]] = {}
    for entry in results.entries:
        p = entry.point
        if p.experiment == experiment:
            groups.setdefault((p.line, p.engine, p.sweep, p.x), []).append(entry)
    return [_row(experiment, entries) for entries in groups.values()]


def _row(experiment: str, entries: Sequence[FinishedPoint]) -> Row:
    point, results = entries[0].point, [entry.result for entry in entries]
    row = {
        "line": point.line,
        "data": point.scenario.data.set,
        "x": "–" if point.x is None else f"{point.sweep} = {point.x:g}",
        "K": str(point.scenario.workers),
        "T": f"{point.scenario.iterations:,}",
        "seeds": str(len(entries)),
        "accuracy %": percent([result.final for result in results]),
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


def _staleness(entries: Sequence[FinishedPoint]) -> Row:
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
            EXPLANATION.lower(): one.why,
        }
        for one in judged
    ]


def as_markdown(rows: Sequence[Row]) -> str:
    """Return a table; cells that some rows lack are empty."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    return markdown_table(columns, [[row.get(column, "") for column in columns] for row in rows]) + "\n"


def as_csv(rows: Sequence[Row]) -> str:
    columns = list(dict.fromkeys(column for row in rows for column in row))
    stream = io.StringIO()
    writer = csv.DictWriter(stream, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def run_as(results: Results, experiment: str) -> str:
    """Return how the runs of an experiment were made, e.g. `containers`."""
    kinds = {e.point.run_as for e in results.entries if e.point.experiment == experiment}
    return " and ".join(sorted(kinds)) or "not run"


def conventions(results: Results) -> list[str]:
    """Return what was decided where the paper leaves it open."""
    sensitivity = run_as(results, "sensitivity")
    simulated = ", with delays drawn per edge in place of the testbed's links"
    text = Path(__file__).with_name("conventions.txt").read_text(encoding="utf-8")
    return text.format(
        tie=100 * TIE,
        near=100 * NEAR,
        errors=ERRORS,
        one_seed=100 * ONE_SEED,
        window=WINDOW,
        fair=", ".join(f"{m.upper()} {bound_of(f'accuracy-{m}-mnist-audp-fair'):g}" for m in MODELS),
        sensitivity=sensitivity,
        drawn=simulated if sensitivity == "simulation" else "",
    ).splitlines()


def made_with(root: Path = _ROOT) -> str:
    """Return this package's version and, in a checkout, its commit; `changed` where the files are not those."""
    version = f"mapa {versions().get('mapa-testbed', '(not installed)')}"
    # another repository may lie around an installed package: only its own counts
    commit = _git(root, "rev-parse", "--short", "HEAD") if (root / ".git").exists() else None
    if not commit:
        return version
    changed = ", changed" if _git(root, "status", "--porcelain") else ""
    return f"{version}, commit {commit}{changed}"


def _git(root: Path, *words: str) -> str | None:
    """Return git's output; None where there is no git, or it refuses."""
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
    sentences = []
    for ours, whose in ((False, "The paper's claims"), (True, "Our own questions")):
        words = []
        for verdict in Verdict:
            some = [
                one.words for one in judged if one.claim.ours is ours and one.judgement.verdict is verdict
            ]
            if some:
                words.append(f"{len(some)} {_PLURAL.get(some[0], some[0]) if len(some) > 1 else some[0]}")
        sentences += [f"{whose}: {', '.join(words)}."] if words else []
    return " ".join(sentences)


def _page(content: ReportContent, tables: Mapping[str, Sequence[Row]]) -> str:
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        f"<title>Reproduction, {content.size}</title><style>\n{_STYLE}</style></head><body>",
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
    """Return a picture in words, for readers who cannot see it."""
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
            f"<td>{_measured(judgement)}</td><td>{_coded(one.why)}</td></tr>"
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
