"""The log against itself, and the records against the log."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from common.messages import EdgeGone, EdgeJoined, Fact, GradientApplied, StageOpened
from common.metrics import Metric
from common.records.journal import Journal
from common.records.log_format import Kind
from common.records.tally import Evaluation, Tally
from common.scenario.scenario import Scenario
from mapa.verification.check import Check, failed, passed
from mapa.verification.rerun import USED_UP, Rerun
from mapa.verification.run_files import EVENTS, SUMMARY, RunFiles, UnreadableError

_TOLD = ("gradient_applied", "stage_opened", "edge_joined", "edge_gone")  # lines that a log implies
_OTHER = ("gradient_refused", "evaluated", "halted", "resumed")  # all other lines that a cloud writes
_CLOSE, _MOMENT = 1e-6, 1e-3  # of seconds: a cloud that resumes moves its clock, and rounds it
_OF_FACTS = ("updates", "staleness", "stages", "edges")  # keys of summary.json that a log implies


def log_by_itself(files: RunFiles) -> Iterator[Check]:
    """Check that the records of the log are whole and in order, as far as that can be told without the algorithm."""
    t, seconds, kinds = 1, 0.0, Counter[Kind]()
    for segment, entry in files.entries():
        if not seconds <= entry.time < math.inf:
            raise UnreadableError(
                segment, f"a record of {entry.time:g} s follows one of {seconds:g} s: time never goes back"
            )
        seconds = entry.time
        if not t <= entry.t <= t + 1:
            raise UnreadableError(segment, f"a record of t = {entry.t} follows one of t = {t}")
        t = entry.t
        kinds[entry.kind] += 1
    counted = ", ".join(f"{kinds[kind]} {kind.name.lower()}" for kind in Kind if kinds[kind])
    yield passed(
        "log",
        "log",
        f"{len(files.segments)} segments, checksums right, t and times in order: {counted or 'empty'}",
    )


def continuity(rerun: Rerun) -> Iterator[Check]:
    """Check t = 1, 2, … and that each (edge, sequence) was applied once, in rising order."""
    applied = [fact for fact in rerun.facts if isinstance(fact, GradientApplied)]
    gaps = [place for place, fact in enumerate(applied, start=1) if fact.t != place]
    if gaps:
        yield failed("continuity", "log", f"update {gaps[0]} is missing or doubled")
    else:
        yield passed("continuity", "log", f"t = 1 … {len(applied)} without gap or double")
    last: dict[str, int] = {}
    for fact in applied:
        if fact.sequence <= last.get(fact.edge_id, 0):
            yield failed("exactly once", "log", f"{fact.edge_id}: sequence {fact.sequence} was applied again")
            return
        last[fact.edge_id] = fact.sequence
    distinct = len({(fact.edge_id, fact.sequence) for fact in applied})
    received = sum(rerun.received.values())
    if not received >= len(applied) == distinct:
        yield failed(
            "exactly once", "log", f"received {received}, applied {len(applied)}, distinct {distinct}"
        )
        return
    yield passed(
        "exactly once",
        "log",
        f"received {received} ≥ applied {len(applied)} = distinct; sequences rise on each of {len(last)} edges",
    )


def events_against_log(files: RunFiles, rerun: Rerun, scenario: Scenario) -> Iterator[Check]:
    """Check every line that follows from the log, in order."""
    if not scenario.records.events:
        if EVENTS in files and len(files.contents[EVENTS]):
            yield failed("events", EVENTS, "has lines, but the scenario asks for none")
        else:
            yield passed("events", EVENTS, "the scenario asks for none, and there are none")
        return
    expected = map(_line, filter(_is_told, rerun.facts))
    count, halts, refusals, sequel = 0, [], Counter[str](), _Sequel()
    for number, line in enumerate(files.lines(), start=1):
        event = line.get("event")
        if (wrong := sequel.wrong(line)) is not None:
            yield failed("events", EVENTS, f"line {number}: {wrong}")
            return
        if event == "halted":
            halts.append((line.get("t"), line.get("reason")))
        elif event == "gradient_refused" and line.get("reason") != "after-halt":  # those may come at any time
            refusals[str(line.get("reason"))] += 1
        elif event not in (*_TOLD, *_OTHER):
            yield failed("events", EVENTS, f"line {number}: {event!r:.80} is no event of a cloud")
            return
        if event not in _TOLD:
            continue
        line.pop("time", None)
        follows = next(expected, None)
        if line != follows:
            yield failed("events", EVENTS, f"line {number}: {line!r:.200}; by the log it is {follows!r:.200}")
            return
        count += 1
    if (rest := next(expected, None)) is not None:
        yield failed("events", EVENTS, f"ends before {rest!r:.200}, which is in the log")
        return
    if len(halts) > 1 or any(t != rerun.server.updates for t, _ in halts):
        yield failed("events", EVENTS, f"halts {halts!r:.200}; the log ends at t = {rerun.server.updates}")
        return
    refused = files.json(SUMMARY).get("refused")
    for reason, lines in refusals.items():
        stated = refused.get(reason, 0) if isinstance(refused, dict) else None
        if type(stated) is not int or stated < lines:  # not every refusal has a line
            yield failed(
                "events", EVENTS, f"{lines} refusals {reason!r:.40}; summary.json counts {stated!r:.40}"
            )
            return
    resumed = f", resumed {sequel.resumed} times" if sequel.resumed else ""
    yield passed("events", EVENTS, f"{count} lines agree with the log{resumed}; times in order")


def summary_against_log(
    files: RunFiles, rerun: Rerun, metrics: Sequence[Metric] | None = None
) -> Iterator[Check]:
    """Check what summary.json counts: updates, staleness, stages, edges, and refusals that used up a sequence.

    `metrics` are the model's; None: as the summary names them.
    """
    summary, counted = files.json(SUMMARY), _plain(rerun.tally.summary())
    wrong = [key for key in _OF_FACTS if summary.get(key) != counted[key]]
    for key in wrong:
        yield failed("summary", SUMMARY, f"{key} = {_difference(summary.get(key), counted[key])}")
    plain = {"edges_configured": rerun.server.terms.edges, "parameters": rerun.server.model.size}
    for key, value in plain.items():
        if summary.get(key) != value:
            wrong.append(key)
            yield failed("summary", SUMMARY, f"{key} = {summary.get(key)!r:.80}; by the log {value}")
    refused = summary.get("refused")
    for reason in USED_UP:
        stated = refused.get(reason, 0) if isinstance(refused, dict) else None
        if stated != rerun.tally.refused[reason]:
            wrong.append(reason)
            yield failed(
                "summary", SUMMARY, f"refused.{reason} = {stated}; by the log {rerun.tally.refused[reason]}"
            )
    halted, end = rerun.server.halted, summary.get("reason")
    fits = {"finished": ("finished", "diverged")}  # x may be finite, and its loss is not
    if halted is not None and end not in fits.get(halted.reason, (halted.reason,)):
        wrong.append("reason")
        yield failed("summary", SUMMARY, f"reason = {end!r:.40}; by the log {halted.reason!r}")
    for words in (*_network(summary, rerun), *_seconds(summary, rerun)):
        wrong.append(words)
        yield failed("summary", SUMMARY, words)
    yield from _evaluations(files, summary, metrics)
    if not wrong:
        yield passed("summary", SUMMARY, "updates, staleness, stages, edges and refusals agree with the log")


def _network(summary: Mapping[str, Any], rerun: Rerun) -> Iterator[str]:
    """Say where the rows of the network are of other edges, or count otherwise, than the log."""
    rows, keys = summary.get("network"), ("edge", "edge_id", "applied", "staleness_mean")
    told = {row["edge"]: row["staleness_mean"] for row in rerun.tally.summary()["edges"]}
    expected = [
        dict(zip(keys, (one.index, one.edge_id, one.applied, told.get(one.index)), strict=True))
        for one in sorted(rerun.server.edges.values(), key=lambda one: one.index)
    ]
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        yield "network: not a list of objects"
        return
    stated = [{key: row.get(key) for key in keys} for row in rows]
    if stated != expected:
        yield f"network = {_difference(stated, _plain(expected))}"


def _seconds(summary: Mapping[str, Any], rerun: Rerun) -> Iterator[str]:
    """Say where the run's seconds are not those from the first update to the last."""
    stated, elapsed = summary.get("seconds"), 0.0
    if rerun.times:
        elapsed = rerun.times[-1] - rerun.times[0]
    if not isinstance(stated, int | float) or not math.isclose(
        stated, elapsed, rel_tol=_CLOSE, abs_tol=_MOMENT
    ):
        yield f"seconds = {stated!r:.40}; by the log {elapsed:g}"


def _evaluations(
    files: RunFiles, summary: Mapping[str, Any], metrics: Sequence[Metric] | None
) -> Iterator[Check]:
    """Check that the evaluations in summary.json are those of events.jsonl, and its final and best figures theirs."""
    rows = summary.get("evaluations")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        yield failed("evaluations", SUMMARY, "evaluations: not a list of objects")
        return
    if EVENTS in files and len(files.contents[EVENTS]):
        ignored = ("event", "time", "t")
        told = [
            {"updates": line.get("t"), **{key: value for key, value in line.items() if key not in ignored}}
            for line in files.lines()
            if line.get("event") == "evaluated"
        ]
        if told != rows:
            yield failed("evaluations", SUMMARY, f"evaluations = {_difference(rows, told)} in events.jsonl")
            return
    try:
        figures = _figures(rows, metrics or [Metric.from_dict(one) for one in summary["metrics"]])
    except (KeyError, TypeError, ValueError, IndexError) as error:
        yield failed("evaluations", SUMMARY, f"metrics and evaluations do not fit: {error!r:.100}")
        return
    for key, value in figures.items():
        if summary.get(key) != value:
            yield failed("evaluations", SUMMARY, f"{key} = {summary.get(key)!r:.100}, not {value!r:.100}")
            return
    yield passed("evaluations", SUMMARY, f"{len(rows)} evaluations are told alike by all records")


def _figures(rows: Sequence[Mapping[str, Any]], metrics: Sequence[Metric]) -> dict[str, Any]:
    """Return what a summary says of these evaluations: its metrics, and the final and the best of them."""
    tally = Tally()
    for row in rows:
        values = {metric: math.nan if (one := row[metric.name]) is None else one for metric in metrics}
        tally.evaluated(Evaluation(row["updates"], row["stage"], values))
    told = _plain(tally.summary(metrics))
    return {key: told[key] for key in told if key == "metrics" or key.startswith(("final_", "best_"))}


class _Sequel:
    """What follows from the lines before: times never go back, and a cloud resumes at the t that was reached."""

    def __init__(self) -> None:
        self.resumed = 0
        self._updates, self._time = 0, 0.0

    def wrong(self, line: Mapping[str, Any]) -> str | None:
        """Take a line; return what is wrong with it."""
        event = line.get("event")
        if event in (
            *_TOLD,
            "halted",
            "resumed",
        ):  # an evaluation or a refusal may be written later than its time
            time = line.get("time")
            if (
                isinstance(time, bool)
                or not isinstance(time, int | float)
                or not self._time <= time < math.inf
            ):
                return f"time = {time!r:.40} follows {self._time:g}"
            if event != "resumed":  # a cloud that ends before it takes anything leaves no time to the next
                self._time = time
        if event == "gradient_applied":
            self._updates += 1
        elif event == "resumed":
            self.resumed += 1
            torn = line.get("torn_bytes")
            if set(line) != {"event", "t", "torn_bytes", "time"} or type(torn) is not int or torn < 0:
                return f"{dict(line)!r:.200} is not how a cloud says that it resumed"
            if line.get("t") != self._updates:
                return f"resumed at t = {line.get('t')!r:.40}, behind {self._updates} updates"
        return None


def _is_told(fact: Fact) -> bool:
    return isinstance(fact, GradientApplied | StageOpened | EdgeJoined | EdgeGone)


class _Sheet:
    """Takes one line of a journal."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str, /) -> None:
        self.text = text


_SHEET = _Sheet()
_JOURNAL = Journal(_SHEET)


def _line(fact: Fact) -> dict[str, Any]:
    """Return a fact as its line of events.jsonl says it."""
    _JOURNAL.fact(fact)
    line: dict[str, Any] = json.loads(_SHEET.text)
    return line


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _difference(stated: Any, expected: Any) -> str:
    """Say where two values differ first."""
    if isinstance(stated, dict) and isinstance(expected, dict):
        for key in (*expected, *stated):
            if stated.get(key) != expected.get(key):
                return f"{key}: {_difference(stated.get(key), expected.get(key))}"
    if isinstance(stated, list) and isinstance(expected, list) and len(stated) == len(expected):
        for place, (one, other) in enumerate(zip(stated, expected, strict=True)):
            if one != other:
                return f"[{place}] {_difference(one, other)}"
    return f"{stated!r:.100}; by the log {expected!r:.100}"
