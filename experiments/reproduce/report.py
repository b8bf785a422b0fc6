"""Report of a reproduction: verdicts, pictures, tables, and the command behind each number, as HTML, Markdown, CSV."""

from __future__ import annotations

import base64
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from statistics import fmean as mean
from typing import Any

from common.records.directory import versions
from experiments.harness import csv_table, markdown_table, percent
from experiments.reproduce import claims
from experiments.reproduce.catalogue import (
    WINDOW,
    Experiment,
    FigurePoint,
    FinishedPoint,
    Result,
    Results,
    catalogue,
)

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
        return [_attack_row(e, cell) for e in results.of("attack") for cell in e.result.cells or []]
    groups: dict[tuple[object, ...], list[FinishedPoint]] = {}
    for entry in results.of(experiment):
        p = entry.point
        groups.setdefault((p.line, p.engine, p.sweep, p.x), []).append(entry)
    return [_row(experiment, entries[0].point, [e.result for e in entries]) for entries in groups.values()]


def _row(experiment: str, point: FigurePoint, results: Sequence[Result]) -> Row:
    row = {
        "line": point.line,
        "data": point.scenario.data.set,
        "x": "–" if point.x is None else f"{point.sweep} = {point.x:g}",
        "K": str(point.scenario.workers),
        "T": f"{point.scenario.iterations:,}",
        "seeds": str(len(results)),
        "accuracy %": percent([result.final for result in results]),
        "loss": _mean([result.loss[-1] for result in results], ".4f", "not finite"),
    }
    if experiment == "convergence":
        threshold = catalogue().thresholds()[point.panel]
        for name, value in (("taken", threshold.taken), ("paper", threshold.paper)):
            reached = [result.reached(value) for result in results]
            first = any(result.floor == t for t, result in zip(reached, results, strict=True))
            late = "≤ " if first and None not in reached else ""  # within the first window: it may be late
            row[f"updates to {name}"] = f"{late}{_mean(reached, ',.0f')} (loss ≤ {value:g})"
    if point.scenario.data.holdout:
        row["measured on"] = f"{point.scenario.data.holdout:,} held-out training records"
    if experiment in ("testbed", "sensitivity"):
        row["run as"] = point.run_as
    if experiment == "testbed":
        row |= _staleness(point, results)
        ends = [result.seconds[-1] for result in results if result.seconds]
        row |= {"seconds": f"{mean(ends):.1f}"} if ends else {}
    if experiment == "stragglers":
        row["engine"] = point.engine
        row[f"seconds to {claims.TARGET:.0%}"] = _mean(
            [result.seconds_to(claims.TARGET) for result in results], ".2f"
        )
    return row


def _mean(values: Sequence[float | None], form: str, otherwise: str = "not within T") -> str:
    """Return the mean, or other words where a seed has no value."""
    known = [value for value in values if value is not None]
    return format(mean(known), form) if len(known) == len(values) else otherwise


def _staleness(point: FigurePoint, results: Sequence[Result]) -> Row:
    """Return what was measured over all seeds, beside the τ_max of the schedule."""
    counts = sum((Counter(result.staleness) for result in results), Counter[int]())
    tau_max = 0 if point.scenario.centralised else point.scenario.problem.tau_max
    total = counts.total()
    if not total:
        return {}
    beyond = sum(n for staleness, n in counts.items() if staleness > tau_max)
    return {
        "τ_max": str(tau_max),
        "staleness mean": f"{sum(s * n for s, n in counts.items()) / total:.1f}",
        "staleness max": str(max(counts)),
        "above τ_max": f"{100 * beyond / total:.1f} %",
    }


def _attack_row(entry: FinishedPoint, cell: Mapping[str, Any]) -> Row:
    return {
        "line": entry.point.line,
        "data": entry.point.scenario.data.set,
        "law": cell["law"] + (" (as printed)" if cell["law"] == claims.PRINTED else ""),
        "ε": "–" if cell["epsilon"] is None else f"{cell['epsilon']:g}",
        "t": f"{cell['t']:,}",
        "|r|": f"{cell['correlation']:.3f}",
        "SSIM": "–" if cell["ssim"] is None else f"{cell['ssim']:.3f}",
        "PSNR dB": "–" if cell["psnr"] is None else f"{cell['psnr']:.1f}",
        "label right": f"{cell['label_accuracy']:.2f}",
    }


def verdict_rows(judged: Sequence[claims.Judged]) -> list[Row]:
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


def columns_of(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(column for row in rows for column in row))


def as_markdown(rows: Sequence[Row]) -> str:
    columns = columns_of(rows)
    return markdown_table(columns, [[row.get(column, "") for column in columns] for row in rows]) + "\n"


def run_as(results: Results, experiment: str) -> str:
    """Return how the runs of an experiment were made, e.g. `containers`."""
    return " and ".join(sorted({e.point.run_as for e in results.of(experiment)})) or "not run"


def conventions(results: Results) -> list[str]:
    """Return what was decided where the paper leaves it open."""
    sensitivity = run_as(results, "sensitivity")
    simulated = ", with delays drawn per edge in place of the testbed's links"
    text = Path(__file__).with_name("conventions.txt").read_text(encoding="utf-8")
    return text.format(
        tie=100 * claims.TIE,
        near=100 * claims.NEAR,
        errors=claims.ERRORS,
        one_seed=100 * claims.ONE_SEED,
        window=WINDOW,
        fair=", ".join(
            f"{m.upper()} {claims.bound_of(f'accuracy-{m}-mnist-audp-fair'):g}" for m in claims.MODELS
        ),
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
    command: str
    size: str
    seconds: float
    machine: Mapping[str, str]
    experiments: Sequence[Experiment]
    results: Results
    judged: Sequence[claims.Judged]
    pictures: Mapping[str, Sequence[Path]]
    notes: Sequence[str] = ()
    made_with: str = field(default_factory=made_with)


def write_report(content: ReportContent, folder: Path) -> list[Path]:
    (folder / "tables").mkdir(parents=True, exist_ok=True)
    tables = {one.name: rows_of(content.results, one.name) for one in content.experiments}
    texts = {"report.html": _page(content, tables), "report.md": _markdown(content, tables)}
    shown = {"verdicts": verdict_rows(content.judged), **{name: t for name, t in tables.items() if t}}
    texts |= {f"tables/{name}.csv": csv_table(columns_of(rows), rows) for name, rows in shown.items()}
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in texts]


def counted(judged: Sequence[claims.Judged]) -> str:
    """Return how many claims came out how, the paper's and ours apart."""
    sentences, order = [], list(claims.Verdict)
    for ours, whose in ((False, "The paper's claims"), (True, "Our own questions")):
        some = [one for one in judged if one.claim.ours is ours]
        some.sort(key=lambda one: order.index(one.judgement.verdict))
        counts = Counter(one.words for one in some)
        words = [f"{n} {_PLURAL.get(word, word) if n > 1 else word}" for word, n in counts.items()]
        sentences += [f"{whose}: {', '.join(words)}."] if words else []
    return " ".join(sentences)


def _page(content: ReportContent, tables: Mapping[str, Sequence[Row]]) -> str:
    made_on = ", ".join(f"{key} {value}" for key, value in content.machine.items())
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        f"<title>Reproduction, {content.size}</title><style>\n{_STYLE}</style></head><body>",
        f"<h1>Reproduction of the paper's evaluation, size {escape(content.size)}</h1>",
        f"<p>Made by <code>{escape(content.command)}</code> ({escape(content.made_with)}) in "
        f"{content.seconds:,.0f} s on {escape(made_on)}.</p>",
        *(f"<p><b>{escape(note)}</b></p>" for note in content.notes),
        "<nav><ul><li><a href='#verdicts'>Verdicts</a></li><li><a href='#conventions'>Conventions</a></li>",
        *(f"<li><a href='#{one.name}'>{_heading(one)}</a></li>" for one in content.experiments),
        "</ul></nav>",
        "<h2 id='verdicts'>Verdicts</h2>",
        f"<p>{escape(counted(content.judged))} <span class='note'>✗: fails there; ?: undecided by these seeds."
        "</span></p>",
        _verdict_table(content.judged),
        "<h2 id='conventions'>Conventions where the paper leaves it open</h2><ul>",
        *(f"<li>{_coded(line)}</li>" for line in conventions(content.results)),
        "</ul>",
    ]
    for experiment in content.experiments:
        parts += _section(content, experiment, tables[experiment.name])
    return "\n".join([*parts, "</body></html>"])


def _section(content: ReportContent, experiment: Experiment, rows: Sequence[Row]) -> Iterator[str]:
    name = experiment.name
    links = [
        f"<a href='#claim-{place}'>{escape(one.claim.name)}</a> ({one.words})"
        for place, one in enumerate(content.judged)
        if one.claim.experiment == name
    ]
    linked = f" Claims: {', '.join(links)}." if links else ""
    yield (
        f"<h2 id='{name}'>{_heading(experiment)}</h2>"
        f"<p class='note'>The paper's <code>{escape(experiment.paper)}</code>. Run as: "
        f"{escape(run_as(content.results, name))}.{linked}</p>"
    )
    for path in content.pictures.get(name, ()):
        if path.suffix == ".png":
            panel = path.stem.removeprefix(name).removeprefix("-")
            of = f", {content.results.title(panel)}" if panel else ""
            alt = escape(f"Figure: {experiment.title}{of}. The table below has its numbers.")
            code = base64.b64encode(path.read_bytes()).decode()
            yield f"<p><img alt='{alt}' src='data:image/png;base64,{code}'></p>"
    if rows:
        columns = columns_of(rows)
        lines = ([escape(row.get(column, "")) for column in columns] for row in rows)
        table = _table(map(escape, columns), "\n".join(f"<tr>{_cells(line)}</tr>" for line in lines))
        yield f"<details><summary>Numbers ({len(rows)} rows)</summary>{table}</details>"
    else:
        yield "<p>No result.</p>"
    yield _commands(content.results, name)


def _heading(experiment: Experiment) -> str:
    return f"{experiment.number}. {escape(experiment.title)}"


def _coded(text: str) -> str:
    """Return text as HTML, what stands between backticks as code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(text))


def _cells(cells: Iterable[str]) -> str:
    return "".join(f"<td>{cell}</td>" for cell in cells)


def _table(heads: Iterable[str], body: str, kind: str = "", columns: str = "") -> str:
    head = "".join(f"<th scope='col'>{name}</th>" for name in heads)
    return f"<div class='wide'><table{kind}>{columns}<tr>{head}</tr>{body}</table></div>"


def _verdict_table(judged: Sequence[claims.Judged]) -> str:
    widths = "".join(f"<col style='width: {width}%'>" for width in _WIDTHS.values())
    body = "\n".join(
        f"<tr id='claim-{place}'><td><a href='#{one.claim.experiment}'>{escape(one.claim.text)}</a></td>"
        f"<td><code>{escape(one.claim.where)}</code></td>"
        f"<td class='{one.judgement.verdict.value.replace(' ', '-')}'>{one.words}</td>"
        f"{_cells([_measured(one.judgement), _coded(one.why)])}</tr>"
        for place, one in enumerate(judged)
    )
    return _table(_WIDTHS, f"\n{body}\n", " class='verdicts'", f"<colgroup>{widths}</colgroup>")


def _measured(judgement: claims.Judgement) -> str:
    """Return the summary, with the cases to unfold: those that failed first, then the undecided."""
    summary = escape(judgement.summary)
    if not judgement.cases:
        return summary
    cases = sorted(judgement.cases, key=lambda case: (case.holds is not False, case.holds is not None))
    items = "".join(f"<li>{escape(case.words)}</li>" for case in cases)
    unfolded = " open" if len(cases) <= _OPEN else ""
    return f"<details{unfolded}><summary>{summary}</summary><ul>{items}</ul></details>"


def _commands(results: Results, experiment: str) -> str:
    done: dict[str, tuple[FigurePoint, str]] = {}
    for entry in results.entries:
        if entry.point.experiment == experiment:
            note = f"{entry.result.wall:.1f} s" + (f", {entry.result.run}" if entry.result.run else "")
            done.setdefault(entry.point.key, (entry.point, note))
    lines = "\n".join(
        f"{point.command}\n    # scenario {point.scenario.digest[:16]}, result {key[:16]}, {note}"
        for key, (point, note) in done.items()
    )
    summary = f"<summary>Commands and hashes ({len(done)} runs)</summary>"
    return f"<details>{summary}<pre><code>{escape(lines)}</code></pre></details>"


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
