"""What events.jsonl says by itself: every line is one that a cloud or an engine writes, and follows from those before.

A run without a gradient log is counted from here; where there is a log, the lines are compared with it as well.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, TypeGuard

from cloud.assembly import explained
from common.messages import EdgeGone, EdgeJoined, Fact, GradientApplied, GradientRefused, StageOpened
from common.metrics import Metric
from common.models.model import Model
from common.noise.law import NoiseLaw
from common.noise.registry import noise_law
from common.records.journal import Journal
from common.records.log_format import Kind
from common.records.recorder import MOST_REFUSALS
from common.records.tally import Evaluation, Tally
from common.scenario.scenario import Scenario
from mapa.recording import ENGINES, asked_of, noise_of, random_stream, warnings_of
from mapa.verification.check import Check, claimed, failed, passed
from mapa.verification.log_replay import USED_UP, Rerun
from mapa.verification.untrusted_files import EVENTS, MANIFEST, SUMMARY, RunFiles, UnreadableError

_FACTS: dict[object, type[Fact]] = {
    "gradient_applied": GradientApplied,
    "stage_opened": StageOpened,
    "edge_joined": EdgeJoined,
    "edge_gone": EdgeGone,
}  # lines that a log implies
_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "EdgeId": (str,),
    "bool": (bool,),
    "float | None": (int, float, type(None)),
    "str | None": (str, type(None)),
}
_CLOCK = ("halted", "resumed", *_FACTS)  # an evaluation or a refusal may be written later than its time
_LONG = 2**63  # sequences and versions lie below


@dataclass(slots=True)
class Told:
    """The lines of a run, counted; `take` says what is wrong with a line."""

    scenario: Scenario
    engine: str
    tally: Tally = field(default_factory=Tally)
    halts: list[tuple[object, object]] = field(default_factory=list)  # (t, reason)
    evaluations: list[dict[str, Any]] = field(default_factory=list)  # as summary.json has them
    sequences: dict[str, int] = field(default_factory=dict)  # edge id → the last that was used up
    laws: dict[str, EdgeJoined] = field(default_factory=dict)  # edge id → how it said that it noises
    times: list[float] = field(default_factory=list)  # of the first and of the last update
    last_edge: int | None = None  # of the last update
    resumed: int = 0
    lines: int = 0
    refusals: Counter[str] = field(default_factory=Counter)  # lines by edge, as the recorder counts them
    _time: float = 0.0

    @property
    def simulated(self) -> bool:
        return self.engine in ENGINES

    def take(self, line: dict[str, Any]) -> tuple[str, Fact | None]:
        """Count a line; return what is wrong with it, '' where nothing is, and the fact that it tells."""
        self.lines += 1
        event = line.get("event")
        if event in _CLOCK and (wrong := self._clock(line)):
            return wrong, None
        match event:
            case "evaluated":
                ignored = ("event", "time", "t")
                rest = {key: value for key, value in line.items() if key not in ignored}
                self.evaluations.append({"updates": line.get("t"), **rest})
            case "halted":
                self.halts.append((line.get("t"), line.get("reason")))
                if line.keys() - {"time"} != {"event", "t", "reason"}:
                    return f"{line!r:.200} is not how a run says that it has ended", None
            case "resumed":
                return self._resumes(line), None
            case "diagnostic" if self.simulated and self.scenario.records.diagnostics:
                pass
            case "gradient_refused":
                refused = _fact(GradientRefused, line)
                if refused is None:
                    return f"{line!r:.200} is no refused gradient", None
                self._refuse(refused)
            case _ if event in _FACTS:
                fact = _fact(_FACTS[event], line)
                if fact is None:
                    return f"{line!r:.200} is no {event}", None
                wrong = self._follows(fact)
                if not wrong:
                    self.tally.observe(fact)
                return wrong, fact
            case _:
                return f"{event!r:.80} is no event of a {'simulation' if self.simulated else 'cloud'}", None
        return "", None

    def _refuse(self, refused: GradientRefused) -> None:
        self.tally.observe(refused)
        self.refusals["" if refused.reason == "after-halt" else refused.edge_id] += 1
        if refused.reason in USED_UP:
            known = self.sequences.get(refused.edge_id, 0)
            self.sequences[refused.edge_id] = max(known, refused.sequence)

    @property
    def some_not_written(self) -> bool:
        """Whether refusals may be missing: of one edge only the first are written line by line."""
        return any(count >= MOST_REFUSALS for count in self.refusals.values())

    def _clock(self, line: Mapping[str, Any]) -> str:
        """Take a line's time, which never goes back; a simulation may have none."""
        time = line.get("time")
        if time is None and self.simulated and "time" not in line:
            return ""
        if isinstance(time, bool) or not isinstance(time, int | float) or not self._time <= time < math.inf:
            return f"time = {time!r:.40} follows {self._time:g}"
        if (
            line.get("event") != "resumed"
        ):  # a cloud that ends before it takes anything leaves no time to the next
            self._time = time
        if line.get("event") == "gradient_applied":
            self.times = [*self.times[:1], time]
        return ""

    def _resumes(self, line: Mapping[str, Any]) -> str:
        """Take a `resumed`: a cloud goes on at the t that was reached."""
        self.resumed += 1
        torn = line.get("torn_bytes")
        if (
            self.simulated
            or set(line) != {"event", "t", "torn_bytes", "time"}
            or type(torn) is not int
            or torn < 0
        ):
            return f"{dict(line)!r:.200} is not how a cloud says that it resumed"
        if line.get("t") != self.tally.updates:
            return f"resumed at t = {line.get('t')!r:.40}, behind {self.tally.updates} updates"
        return ""

    def _follows(self, fact: Fact) -> str:
        """Say where a fact contradicts those before it."""
        tally = self.tally
        match fact:
            case GradientApplied():
                edge, due = tally.edges.get(fact.edge), tally.updates + 1
                if fact.t != due:
                    return f"t = {fact.t} in the place of update {due}"
                if edge is None or edge.edge_id != fact.edge_id:
                    return f"edge {fact.edge}, {fact.edge_id!r:.80}, never joined"
                if not self.sequences.get(fact.edge_id, 0) < fact.sequence < _LONG:
                    return f"{fact.edge_id}: sequence {fact.sequence} was used before"
                stale = 0 if self.engine == "synchronous" else fact.t - fact.version
                if fact.staleness != stale or not 1 <= fact.version <= fact.t:
                    return f"staleness = {fact.staleness} of version {fact.version} at t = {fact.t}"
                if self.simulated and fact.sequence != self.sequences.get(fact.edge_id, 0) + 1:
                    return f"{fact.edge_id}: sequence {fact.sequence} leaves one out"
                self.sequences[fact.edge_id] = fact.sequence
                self.last_edge = fact.edge
            case EdgeJoined():
                if not 0 <= fact.edge < self.scenario.workers:
                    return f"edge {fact.edge} of {self.scenario.workers}"
                if self.simulated and fact.edge_id != f"edge-{fact.edge}":
                    return f"{fact.edge_id!r:.80} is no edge of a simulation"
                self.laws[fact.edge_id] = fact
            case EdgeGone():
                edge = tally.edges.get(fact.edge)
                if edge is None or edge.edge_id != fact.edge_id:
                    return f"edge {fact.edge}, {fact.edge_id!r:.80}, never joined"
            case _:
                pass
        return ""

    def law(self, edge_id: str, index: int) -> NoiseLaw | None:
        """Return how an edge noises: as the scenario says, or as its own hello did."""
        own, joined = self.scenario.law(index), self.laws.get(edge_id)
        if joined is None or own is None:
            return own
        parts = {"epsilon": joined.epsilon, "noise_multiplier": joined.noise_multiplier, **joined.parameters}
        given = {key: value for key, value in parts.items() if value is not None}
        if (joined.noise, given) == (own.name, own.parameters):
            return own
        return noise_law(joined.noise, given)


def _fact(made: type[Any], line: Mapping[str, Any]) -> Any:
    """Return the fact that a line tells; None where it tells none of this kind."""
    values = {key: value for key, value in line.items() if key not in ("event", "time")}
    known: dict[str, Any] = {}
    for one in fields(made):
        if one.name == "parameters":
            continue
        if one.name not in values:
            if one.default is MISSING:
                return None
            continue
        value = values.pop(one.name)
        allowed = _TYPES[str(one.type)]
        if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
            return None
        known[one.name] = value
    if made is EdgeJoined:
        if not all(type(value) in (int, float) for value in values.values()):
            return None
        return EdgeJoined(**known, parameters=values)
    return None if values else made(**known)


class _Sheet:
    """Takes one line of a journal."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str, /) -> None:
        self.text = text


_SHEET = _Sheet()
_JOURNAL = Journal(_SHEET)


def line_of(fact: Fact) -> dict[str, Any]:
    """Return a fact as its line of events.jsonl says it."""
    _JOURNAL.fact(fact)
    line: dict[str, Any] = json.loads(_SHEET.text)
    return line


def told_by(facts: list[Fact]) -> Iterator[dict[str, Any]]:
    """Yield the lines that a log implies."""
    return map(line_of, (fact for fact in facts if type(fact) in _FACTS.values()))


_CLOSE, _MOMENT = 1e-6, 1e-3  # of seconds: a cloud that resumes moves its clock, and rounds it
_OF_FACTS = ("updates", "staleness", "stages", "edges")  # keys of summary.json that facts decide
_UNWRITTEN = "stranger"  # refusals that never have a line


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


def events_by_themselves(
    files: RunFiles, scenario: Scenario, engine: str, rerun: Rerun | None, found: list[Told]
) -> Iterator[Check]:
    """Check every line in order, and against the log where there is one; `found` gets what the lines amount to."""
    if not scenario.records.events:
        if EVENTS in files and len(files.contents[EVENTS]):
            yield failed("events", EVENTS, "has lines, but the scenario asks for none")
        else:
            yield passed("events", EVENTS, "the scenario asks for none, and there are none")
        return
    expected = None if rerun is None else told_by(rerun.facts)
    told = Told(scenario, engine)
    for number, line in enumerate(files.lines(), start=1):
        wrong, fact = told.take(line)
        if fact is not None and expected is not None and not wrong:
            line.pop("time", None)
            follows = next(expected, None)
            if line != follows:
                wrong = f"{line!r:.200}; by the log it is {follows!r:.200}"
        if wrong:
            yield failed("events", EVENTS, f"line {number}: {wrong}")
            return
    if expected is not None and (rest := next(expected, None)) is not None:
        yield failed("events", EVENTS, f"ends before {rest!r:.200}, which is in the log")
        return
    found.append(told)
    resumed = f", resumed {told.resumed} times" if told.resumed else ""
    source = "follow from those before them" if rerun is None else "agree with the log"
    yield passed("events", EVENTS, f"{told.lines} lines {source}{resumed}; times in order")


def end_of(
    files: RunFiles, scenario: Scenario, engine: str, rerun: Rerun | None, told: Told | None
) -> Iterator[Check]:
    """Check that log, events and summary say the same of the end, and that a run can have ended so."""
    summary = files.json(SUMMARY)
    reason, updates = summary.get("reason"), summary.get("updates")
    wrong = []
    if told is not None and told.halts != [(updates, reason)]:
        wrong.append(
            f"{updates!r:.40} updates, {reason!r:.40}; events.jsonl has the halts {told.halts!r:.120}"
        )
    rows = summary.get("evaluations")
    last = rows[-1] if isinstance(rows, list) and rows and isinstance(rows[-1], dict) else {}
    useless = "loss" in last and last["loss"] is None
    if rerun is not None:
        halted = None if rerun.server.halted is None else rerun.server.halted.reason
        if halted == "finished" and useless and engine not in ENGINES:
            halted = "diverged"  # x is finite, and its loss is not
        if halted != reason:
            wrong.append(f"reason = {reason!r:.40}; by the log {halted!r}")
    budget = [row.get("gone") == "budget" for row in _rows(summary.get("edges"))]
    whole = scenario.iterations
    if engine == "synchronous":
        whole = max(1, whole // scenario.workers) * scenario.workers
    planned = scenario.privacy.release_caps is not None and len(budget) == scenario.workers and all(budget)
    possible = {
        "finished": updates == whole or planned,
        "diverged": useless or not last,
        "time-limit": scenario.time_limit is not None,
        "no-budget": any(budget),
        "interrupted": updates != whole,
        "no-gradients": engine in ENGINES and updates != whole,
    }
    if not isinstance(reason, str) or not possible.get(reason, False):
        wrong.append(f"reason = {reason!r:.40} after {updates!r:.40} of {whole} updates: no run ends so")
    for words in wrong:
        yield failed("end", SUMMARY, words)
    if not wrong:
        yield passed("end", SUMMARY, f"{reason} after {updates} updates, told alike by all records")


def summary_by_counts(
    files: RunFiles,
    scenario: Scenario,
    rerun: Rerun | None,
    told: Told | None,
    metrics: Sequence[Metric] | None = None,
) -> Iterator[Check]:
    """Check what summary.json counts, by the log, by events.jsonl, or where neither is there by itself.

    `metrics` are the model's; None: as the summary names them.
    """
    summary = files.json(SUMMARY)
    simulated = summary.get("engine") in ENGINES
    in_rounds = summary.get("engine") == "synchronous"  # whose evaluations are due at the end of a round
    tally = rerun.tally if rerun is not None else told.tally if told is not None else None
    source = "the log" if rerun is not None else "events.jsonl"
    wrong = [] if tally is None else list(_counts(summary, tally, source))
    wrong += _refusals(summary, rerun, told)
    if summary.get("edges_configured") != scenario.workers:
        wrong.append(
            f"edges_configured = {summary.get('edges_configured')!r:.80}; by the scenario {scenario.workers}"
        )
    wrong += _network(summary, scenario, rerun)
    times = rerun.times if rerun is not None else told.times if told is not None else None
    if times is not None and not simulated:
        wrong += _seconds(summary, times, source)
    if tally is None:
        wrong += _alone(summary, scenario)
    for words in wrong:
        yield failed("summary", SUMMARY, words)
    if not wrong:
        words = "agree among themselves" if tally is None else f"agree with {source}"
        yield passed("summary", SUMMARY, f"updates, staleness, stages, edges and refusals {words}")
    yield from _evaluations(summary, told, metrics, 1 if in_rounds else scenario.evaluate_every)
    if tally is None and not scenario.records.events:
        yield claimed(
            "summary", SUMMARY, "updates, staleness, stages and edges: there is neither log nor events.jsonl"
        )
    yield from _claims(summary, told, rerun, simulated=simulated)


def _claims(
    summary: Mapping[str, Any], told: Told | None, rerun: Rerun | None, *, simulated: bool
) -> Iterator[Check]:
    refused = summary.get("refused")
    counts = refused if isinstance(refused, dict) else {}
    written = told is not None and not told.some_not_written
    logged = USED_UP if rerun is not None else ()
    if rest := [key for key in counts if (key == _UNWRITTEN or not written) and key not in logged]:
        yield claimed(
            "refusals", SUMMARY, f"{', '.join(rest)}: refusals that changed nothing and have no line"
        )
    if rows := summary.get("evaluations"):
        yield claimed(
            "metrics",
            SUMMARY,
            f"values of {len(rows)} evaluations: they need the data set; `mapa replay` has it",
        )
    if simulated:
        yield claimed("times", SUMMARY, "seconds that the simulation took, and its virtual seconds")
    else:
        yield claimed("times", SUMMARY, "when each event came, round_trip_ms and dropped messages")


def _rows(value: object) -> list[dict[str, Any]]:
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def _counts(summary: Mapping[str, Any], tally: Tally, source: str) -> Iterator[str]:
    counted = _plain(tally.summary())
    for key in _OF_FACTS:
        if summary.get(key) != counted[key]:
            yield f"{key} = {_difference(summary.get(key), counted[key], source)}"


def _alone(summary: Mapping[str, Any], scenario: Scenario) -> Iterator[str]:
    """Say where counts that nothing else can show contradict each other."""
    rows, updates = _rows(summary.get("edges")), summary.get("updates")
    counts: list[tuple[Any, Any]] = [(row.get("applied"), row.get("last_sequence")) for row in rows]
    if not all(type(one) is int for pair in (*counts, (updates,)) for one in pair):
        yield "updates, edges: not counts"
    elif sum(one for one, _ in counts) != updates or any(not 0 <= one <= last for one, last in counts):
        yield f"updates = {updates}; its edges have {counts!r:.100} applied and as last sequence"
    ids: list[Any] = [row.get("edge") for row in rows]
    known = all(type(one) is int and 0 <= one < scenario.workers for one in ids)
    if not known or ids != sorted(set(ids)):
        yield f"edges = {ids!r:.100}: not the edges of {scenario.workers}"


def _refusals(summary: Mapping[str, Any], rerun: Rerun | None, told: Told | None) -> Iterator[str]:
    """Say which refusals are not as many as the log or the lines of events.jsonl."""
    refused = summary.get("refused")
    if not isinstance(refused, dict) or any(type(one) is not int or one < 1 for one in refused.values()):
        yield f"refused = {refused!r:.100}: not a count for each reason"
        return
    if rerun is not None:
        for reason in USED_UP:
            if refused.get(reason, 0) != rerun.tally.refused[reason]:
                yield f"refused.{reason} = {refused.get(reason, 0)}; by the log {rerun.tally.refused[reason]}"
    if told is None:
        return
    lines = told.tally.refused
    for reason in sorted({*refused, *lines} - {_UNWRITTEN}):
        stated = refused.get(reason, 0)
        if stated < lines[reason] or (stated > lines[reason] and not told.some_not_written):
            yield f"refused.{reason} = {stated}; events.jsonl has {lines[reason]} of them"


def _network(summary: Mapping[str, Any], scenario: Scenario, rerun: Rerun | None) -> Iterator[str]:
    """Say where the rows of the network are of other edges, links or counts than the scenario and the edges' rows."""
    rows = summary.get("network")
    if summary.get("engine") in ENGINES:
        return
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        yield "network: not a list of objects"
        return
    edges = {row.get("edge"): row for row in _rows(summary.get("edges"))}
    known: list[tuple[int, Any, Any]]
    if rerun is not None:
        known = [(one.index, one.edge_id, one.applied) for one in rerun.server.edges.values()]
    else:
        known = [(k, row.get("edge_id"), row.get("applied")) for k, row in edges.items() if type(k) is int]
    expected = [
        {
            "edge": index,
            "edge_id": edge_id,
            **asked_of(scenario, index),
            "staleness_mean": edges.get(index, {}).get("staleness_mean"),
            "applied": applied,
        }
        for index, edge_id, applied in sorted(known)
    ]
    stated = [{key: value for key, value in row.items() if key != "round_trip_ms"} for row in rows]
    if stated != _plain(expected):
        yield f"network = {_difference(stated, _plain(expected), 'the edges')}"


def _seconds(summary: Mapping[str, Any], times: Sequence[float], source: str) -> Iterator[str]:
    """Say where the run's seconds are not those from the first update to the last."""
    stated, elapsed = summary.get("seconds"), times[-1] - times[0] if times else 0.0
    if not isinstance(stated, int | float) or not math.isclose(
        stated, elapsed, rel_tol=_CLOSE, abs_tol=_MOMENT
    ):
        yield f"seconds = {stated!r:.40}; by {source} {elapsed:g}"


def _evaluations(
    summary: Mapping[str, Any], told: Told | None, metrics: Sequence[Metric] | None, every: int
) -> Iterator[Check]:
    """Check that the evaluations in summary.json are those of events.jsonl, and its final and best figures theirs.

    Each is due by the scenario: every `every` updates from x₁ on, or at the end. One may be left out by a busy cloud.
    """
    rows = summary.get("evaluations")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        yield failed("evaluations", SUMMARY, "evaluations: not a list of objects")
        return
    if told is not None and told.evaluations != rows:
        yield failed(
            "evaluations", SUMMARY, f"evaluations = {_difference(rows, told.evaluations, 'events.jsonl')}"
        )
        return
    at, updates = [row.get("updates") for row in rows], summary.get("updates")
    rising = all(type(one) is int for one in (*at, updates)) and at == sorted(set(at))
    if not rising or (at and not 0 <= at[0] <= at[-1] <= updates):
        yield failed("evaluations", SUMMARY, f"after {at!r:.80} updates of {updates!r:.40}")
        return
    if odd := [one for one in at if one != updates and (not every or one % every)]:
        yield failed("evaluations", SUMMARY, f"after {odd!r:.80} updates: by the scenario every {every}")
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


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _difference(stated: Any, expected: Any, source: str) -> str:
    """Say where two values differ first."""
    if isinstance(stated, dict) and isinstance(expected, dict):
        for key in (*expected, *stated):
            if stated.get(key) != expected.get(key):
                return f"{key}: {_difference(stated.get(key), expected.get(key), source)}"
    if isinstance(stated, list) and isinstance(expected, list) and len(stated) == len(expected):
        for place, (one, other) in enumerate(zip(stated, expected, strict=True)):
            if one != other:
                return f"[{place}] {_difference(one, other, source)}"
    return f"{stated!r:.100}; by {source} {expected!r:.100}"


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
        *((SUMMARY, words) for words in (*_keys(manifest, summary), *_speed(summary))),
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


def _speed(summary: Mapping[str, Any]) -> Iterator[str]:
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
