"""Check manifest.json, events.jsonl and summary.json against the documents that the real recorder makes.

The recorder gets the facts of the log; without one, what the lines of events.jsonl say, each of which must follow from
those before it. What only the run can state (times, evaluations, refusals that no log holds) is taken from the records
themselves. Keys are not listed here: a document is compared with the one that the recorder writes.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeGuard, cast

from pydantic import TypeAdapter, ValidationError

from cloud.recovery_log import USED_UP
from common.datasets.dataset import Dataset
from common.messages import EdgeGone, EdgeJoined, Fact, GradientApplied, GradientRefused, StageOpened
from common.metrics import Metric
from common.models.model import Model
from common.noise.law import NoiseLaw
from common.noise.registry import noise_law
from common.records.directory import RunDirectory
from common.records.events import Journal
from common.records.recorder import MOST_REFUSALS, Recorder
from common.records.tally import EdgeTally, Evaluation, Tally
from common.scenario.scenario import Scenario
from mapa.cloud_run import CloudRun
from mapa.recording import ENGINES, network, summarise, write_manifest
from mapa.run_parts import RunParts
from mapa.verification.check import Check, claimed, failed, passed, unlike
from mapa.verification.log_replay import LogReplay
from mapa.verification.untrusted_files import EVENTS, MANIFEST, SUMMARY, RunFiles, UnreadableError

_KINDS = (GradientApplied, GradientRefused, StageOpened, EdgeJoined, EdgeGone)
_NAMES = ("gradient_applied", "gradient_refused", "stage_opened", "edge_joined", "edge_gone")
_FACTS: dict[object, TypeAdapter[Fact]] = {
    name: TypeAdapter(kind) for name, kind in zip(_NAMES, _KINDS, strict=True)
}
_LATE = ("evaluated", "gradient_refused", "diagnostic")  # may be written later than their time
_LONG = 2**63  # sequences and versions lie below
_CLOSE, _MOMENT = 1e-6, 1e-3  # of seconds: a cloud that resumes moves its clock, and rounds it
_UNWRITTEN = "stranger"  # refusals that never have a line
_SHOWN = 20  # unknown keys that have a row each
_OF_ORIGIN = ("versions", "machine", "started", "started_by", "samples", "data", "shard_sizes")
DROPPED = frozenset(
    ("gradient", "hello", "late-hello", "leave", "halt", "presence", "retained", "packet", "too-often")
)  # kinds of messages


class _Draft(RunDirectory):
    """A run's directory that keeps its documents instead of writing them."""

    def __init__(self, run: str) -> None:
        self.run, self.path = run, Path()
        self.documents: dict[str, dict[str, Any]] = {}

    def _json(self, name: str, value: Mapping[str, Any]) -> None:
        self.documents[name] = json.loads(json.dumps(value))


def _differences(stated: Mapping[str, Any], expected: Mapping[str, Any]) -> dict[str, str]:
    """Return, for each key whose value is not the expected one, what is wrong."""
    unknown = [key for key in stated if key not in expected]
    wrong = {key: f"unknown key {key!r:.200}" for key in unknown[:_SHOWN]}
    if len(unknown) > _SHOWN:
        wrong[unknown[_SHOWN]] = f"and {len(unknown) - _SHOWN} more unknown keys"
    for key, value in expected.items():
        if key not in stated:
            wrong[key] = f"{key} is missing; recomputed {value!r:.100}"
        elif difference := unlike(stated[key], value, key):
            wrong[key] = difference
    return wrong


# -- manifest.json -------------------------------------------------------------------------------------------


def manifest_as_written(files: RunFiles, scenario: Scenario) -> Iterator[Check]:
    """Check that the manifest is the one that this version writes for the scenario, but for the run's origin."""
    stated = files.json(MANIFEST)
    draft = _Draft(str(stated.get("run")))
    unknown = cast(Dataset, SimpleNamespace(checksum="", shape=(), classes=0))
    name, engine = str(stated.get("name")), str(stated.get("engine"))
    parts = RunParts(scenario, unknown, cast(Model, None), [])
    write_manifest(draft, parts, name=name, engine=engine)
    origin = {key: stated[key] for key in _OF_ORIGIN if key in stated}
    wrong = _differences(stated, draft.documents[MANIFEST] | origin)
    yield from (failed("fields", MANIFEST, detail) for detail in wrong.values())
    if not wrong:
        yield passed("fields", MANIFEST, "as this version writes it for the scenario")
    yield claimed(
        "origin", MANIFEST, "versions, machine, start, and the data set's checksum: nothing can show them"
    )


# -- events.jsonl --------------------------------------------------------------------------------------------


@dataclass(slots=True)
class RecordedEvents:
    """The lines of a run, recorded again by a real recorder."""

    scenario: Scenario
    engine: str
    metrics: Sequence[Metric]
    log: Iterator[Fact] | None = None  # facts that each have a line, in order; None: there is no log
    recorder: Recorder = field(init=False)
    halts: list[tuple[object, object]] = field(default_factory=list)  # (t, reason)
    sequences: dict[str, int] = field(default_factory=dict)  # edge id → the last that was used up
    laws: dict[str, EdgeJoined] = field(default_factory=dict)  # edge id → how it said that it noises
    times: list[float] = field(default_factory=list)  # of the first and of the last update
    last_edge: int | None = None  # of the last update
    resumed: int = 0
    lines: int = 0
    refusals: Counter[str] = field(default_factory=Counter)  # lines by edge, as the recorder counts them
    written: str = ""  # the last line of the recorder
    _time: float = 0.0

    def __post_init__(self) -> None:
        self.recorder = Recorder(Journal(self))

    def write(self, text: str, /) -> None:
        """Take a line of the recorder."""
        self.written = text

    @property
    def tally(self) -> Tally:
        return self.recorder.tally

    @property
    def simulated(self) -> bool:
        return self.engine in ENGINES

    @property
    def some_not_written(self) -> bool:
        """Whether refusals may be missing: of one edge only the first are written line by line."""
        return any(count >= MOST_REFUSALS for count in self.refusals.values())

    def take(self, line: dict[str, Any]) -> str:
        """Record what a line says, or the log in its place; say how the line differs from the recorder's, '' if not."""
        self.lines += 1
        self.written = ""
        try:
            wrong = self._clock(line) or self._record(line)
        except (KeyError, TypeError):
            wrong = f"{line!r:.200} is no line of a {'simulation' if self.simulated else 'cloud'}"
        if wrong:
            return wrong
        expected = json.loads(self.written) if self.written else "no line"
        source = "the lines before" if self.log is None else "the log"
        return "" if line == expected else f"{line!r:.200}; by {source} {expected!r:.200}"

    def left_in_log(self) -> str:
        """Record the facts of the log that are left; return the first line that is missing, '' if none is."""
        self.written = ""
        for fact in self.log or ():
            self.recorder.fact(fact)
            if self.written:
                return self.written.strip()
        return ""

    def _record(self, line: dict[str, Any]) -> str:
        recorder, event, time = self.recorder, line.get("event"), line.get("time")
        match event:
            case "evaluated":
                recorder.evaluated(_evaluation({**line, "updates": line["t"]}, self.metrics), time)
            case "halted":
                self.halts.append((line["t"], line["reason"]))
                recorder.halted(line["t"], line["reason"], time)
            case "resumed" if not self.simulated:
                self.resumed += 1
                torn = line["torn_bytes"]
                if type(torn) is not int or torn < 0:
                    return f"torn_bytes = {torn!r:.40}: not a count"
                recorder.resumed(self.tally.updates, torn, line["time"])
            case "diagnostic" if self.simulated and self.scenario.records.diagnostics:
                recorder.diagnosed(line["edge"], line["sequence"], line["gradient_norm"])
            case _ if event in _FACTS:
                return self._record_fact(line, time)
            case _:
                return f"{event!r:.80} is no event of a {'simulation' if self.simulated else 'cloud'}"
        return ""

    def _record_fact(self, line: dict[str, Any], time: float | None) -> str:
        fact = _fact(line)
        if fact is None:
            return f"{line!r:.200} is no {line['event']}"
        if isinstance(fact, GradientRefused):
            self.refusals["" if fact.reason == "after-halt" else fact.edge_id] += 1
        if self.log is not None and has_record(fact):
            for logged in self.log:
                self.recorder.fact(logged, time)
                if self.written:  # only the first refusals of an edge are
                    break
        elif wrong := self._follows(fact):
            return wrong
        else:
            self.recorder.fact(fact, time)
        return ""

    def _clock(self, line: Mapping[str, Any]) -> str:
        """Take a line's time, which never goes back; a simulation may have none."""
        event = line.get("event")
        if event in _LATE or (self.simulated and "time" not in line):
            return ""
        time = line.get("time")
        if not _is_number(time) or not self._time <= time < math.inf:
            return f"time = {time!r:.40} follows {self._time:g}"
        if event != "resumed":  # a cloud that ends before it takes anything leaves no time to the next
            self._time = time
        if event == "gradient_applied":
            self.times = [*self.times[:1], time]
        return ""

    def _follows(self, fact: Fact) -> str:
        """Say where a fact that no log shows contradicts those before it."""
        known = self.tally.edges.get(fact.edge) if isinstance(fact, GradientApplied | EdgeGone) else None
        match fact:
            case GradientApplied() | EdgeGone() if known is None or known.edge_id != fact.edge_id:
                return f"edge {fact.edge}, {fact.edge_id!r:.80}, never joined"
            case GradientApplied():
                due, last = self.tally.updates + 1, self.sequences.get(fact.edge_id, 0)
                if fact.t != due:
                    return f"t = {fact.t} in the place of update {due}"
                if not last < fact.sequence < _LONG:
                    return f"{fact.edge_id}: sequence {fact.sequence} was used before"
                stale = 0 if self.engine == "synchronous" else fact.t - fact.version
                if fact.staleness != stale or not 1 <= fact.version <= fact.t:
                    return f"staleness = {fact.staleness} of version {fact.version} at t = {fact.t}"
                if self.simulated and fact.sequence != last + 1:
                    return f"{fact.edge_id}: sequence {fact.sequence} leaves one out"
                self.sequences[fact.edge_id] = fact.sequence
                self.last_edge = fact.edge
            case EdgeJoined():
                if not 0 <= fact.edge < self.scenario.workers:
                    return f"edge {fact.edge} of {self.scenario.workers}"
                if self.simulated and fact.edge_id != f"edge-{fact.edge}":
                    return f"{fact.edge_id!r:.80} is no edge of a simulation"
                self.laws[fact.edge_id] = fact
            case GradientRefused() if fact.reason in USED_UP:
                last = self.sequences.get(fact.edge_id, 0)
                self.sequences[fact.edge_id] = max(last, fact.sequence)
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


def has_record(fact: Fact) -> bool:
    """Tell whether a fact follows from the log: refusals that changed nothing are in no log."""
    return not isinstance(fact, GradientRefused) or fact.reason in USED_UP


def _fact(line: Mapping[str, Any]) -> Fact | None:
    """Return the fact that a line tells; None if it tells none. A key too many the recorder does not write."""
    values = {key: value for key, value in line.items() if key not in ("event", "time")}
    if line["event"] == "edge_joined":  # keys beside its own are parameters of its law
        own = {key.name for key in fields(EdgeJoined)}
        values["parameters"] = {key: values.pop(key) for key in set(values) - own}
    try:
        return _FACTS[line["event"]].validate_json(json.dumps(values), strict=True)
    except ValidationError:
        return None


def _evaluation(row: Mapping[str, Any], metrics: Sequence[Metric]) -> Evaluation:
    values = {metric: math.nan if row[metric.name] is None else row[metric.name] for metric in metrics}
    return Evaluation(row["updates"], row["stage"], values)


def metrics_of(model: Model | None, summary: Mapping[str, Any]) -> Sequence[Metric]:
    """Return the model's metrics; where it cannot be made here, as the summary names them."""
    if model is not None:
        return model.metrics
    try:
        return [Metric.from_dict(row) for row in summary["metrics"]]
    except (KeyError, TypeError, ValueError) as error:
        raise UnreadableError(SUMMARY, f"metrics: {error!r:.100}") from error


def check_events(files: RunFiles, events: RecordedEvents) -> Iterator[Check]:
    """Check every line in order, and against the log where there is one."""
    for line in files.lines():
        if wrong := events.take(line):
            yield failed("events", EVENTS, f"line {events.lines}: {wrong}")
            return
    if missing := events.left_in_log():
        yield failed("events", EVENTS, f"ends before {missing:.200}, which is in the log")
        return
    resumed = f", resumed {events.resumed} times" if events.resumed else ""
    source = "follow from those before them" if events.log is None else "agree with the log"
    yield passed("events", EVENTS, f"{events.lines} lines {source}{resumed}; times in order")


# -- summary.json --------------------------------------------------------------------------------------------


def check_end(
    files: RunFiles, scenario: Scenario, replay: LogReplay | None, events: RecordedEvents | None
) -> Iterator[Check]:
    """Check that log, events and summary say the same of the end, and that a run can have ended so."""
    summary = files.json(SUMMARY)
    engine, reason, updates = summary.get("engine"), summary.get("reason"), summary.get("updates")
    wrong = []
    if events is not None and events.halts != [(updates, reason)]:
        wrong.append(
            f"{updates!r:.40} updates, {reason!r:.40}; events.jsonl has the halts {events.halts!r:.120}"
        )
    last = (_rows(summary.get("evaluations")) or [{}])[-1]
    useless = "loss" in last and last["loss"] is None
    if replay is not None:
        halted = None if replay.server.halted is None else replay.server.halted.reason
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
    yield from (failed("end", SUMMARY, detail) for detail in wrong)
    if not wrong:
        yield passed("end", SUMMARY, f"{reason} after {updates} updates, told alike by all records")


def check_summary(
    files: RunFiles,
    scenario: Scenario,
    model: Model | None,
    replay: LogReplay | None,
    events: RecordedEvents | None,
) -> Iterator[Check]:
    """Check that summary.json is what the recorder makes of the log, of events.jsonl, or of its own counts."""
    manifest, stated = files.json(MANIFEST), files.json(SUMMARY)
    engine, metrics = str(manifest.get("engine")), metrics_of(model, stated)
    tally = _tally_of(stated, metrics) if events is None else events.tally
    if events is None and replay is not None:
        replay.tally.evaluations = tally.evaluations
        tally = replay.tally
    alone = replay is None and events is None
    seconds, parameters = stated.get("seconds"), stated.get("parameters")
    if not _is_number(seconds) or not 0 <= seconds < math.inf or not _is_number(parameters):
        raise UnreadableError(SUMMARY, f"seconds = {seconds!r:.40}, parameters = {parameters!r:.40}")
    sized = SimpleNamespace(dimension=parameters, first_layer=slice(None), metrics=metrics)
    draft = _Draft(str(manifest.get("run")))
    recorded = summarise(
        RunParts(scenario, cast(Dataset, None), model or cast(Model, sized), []),
        draft,
        tally,
        seconds,
        name=str(manifest.get("name")),
        engine=engine,
        reason=str(stated.get("reason")),  # check_end judges it
    )
    recorded["releases"] = stated.get("releases")  # these two the checks of privacy judge
    recorded |= {key: stated[key] for key in ("privacy",) if key in stated}
    if model is None:
        recorded |= {key: stated[key] for key in ("rate",) if key in stated}
        yield claimed("rate", SUMMARY, "rate: the run's model cannot be made here")
    if engine in ENGINES:
        recorded["virtual_seconds"] = stated.get("virtual_seconds")
    else:
        recorded["dropped"] = stated.get("dropped")
        recorded["network"] = _network(stated, scenario, tally, replay)
    recorded["refused"] = _refused(stated, tally, replay, events)
    if alone:
        recorded |= {key: stated.get(key) for key in ("staleness", "stages")}
    draft.summary(recorded)
    wrong = _differences(stated, draft.documents[SUMMARY])
    times = replay.times if replay is not None else events.times if events is not None else None
    wrong |= _impossible(stated, scenario, None if engine in ENGINES else times, alone=alone)
    of_metrics = ("evaluations", "metrics", "final_", "best_")
    for check, agree in (
        ("summary", "updates, staleness, stages, edges, refusals and what the scenario decides"),
        ("evaluations", f"{len(tally.evaluations)} evaluations, with the final and the best"),
    ):
        of_check = {key for key in wrong if key.startswith(of_metrics) == (check == "evaluations")}
        yield from (failed(check, SUMMARY, wrong[key]) for key in of_check)
        if not of_check:
            source = "themselves" if alone else "events.jsonl" if replay is None else "the log"
            yield passed(check, SUMMARY, f"{agree}, agree with {source}")
    yield from _claims(stated, scenario, replay, events)


def _tally_of(summary: Mapping[str, Any], metrics: Sequence[Metric]) -> Tally:
    """Return what the summary itself counts; its staleness and stages nothing repeats."""
    tally = Tally(updates=summary["updates"])
    for row in summary["edges"]:
        of_edge = {key: value for key, value in row.items() if key not in ("edge", "staleness_mean")}
        sum_of_staleness = round((row["staleness_mean"] or 0) * row["applied"])
        tally.edges[row["edge"]] = EdgeTally(**of_edge, staleness_sum=sum_of_staleness)
    for row in summary["evaluations"]:
        tally.evaluated(_evaluation(row, metrics))
    return tally


def _network(
    stated: Mapping[str, Any], scenario: Scenario, tally: Tally, replay: LogReplay | None
) -> list[dict[str, Any]]:
    """Return the rows of the network with the round trips that are stated: nothing else shows them."""
    edges: dict[Any, Any] = {
        k: SimpleNamespace(index=k, edge_id=edge.edge_id, applied=edge.applied)
        for k, edge in tally.edges.items()
    }
    server = SimpleNamespace(edges=edges) if replay is None else replay.server
    service = SimpleNamespace(server=server, peers={}, tally=tally)
    rows = network(
        cast(CloudRun, SimpleNamespace(setting=SimpleNamespace(scenario=scenario), service=service))
    )
    for row, of_run in zip(rows, _rows(stated.get("network")), strict=False):
        row["round_trip_ms"] = of_run.get("round_trip_ms")
    return rows


def _refused(
    stated: Mapping[str, Any], tally: Tally, replay: LogReplay | None, events: RecordedEvents | None
) -> dict[str, int]:
    """Return the refusals as counted; as stated, where further ones have neither a record nor a line."""
    refused = stated.get("refused")
    if not isinstance(refused, dict) or any(
        type(count) is not int or count < 1 for count in refused.values()
    ):
        raise UnreadableError(SUMMARY, f"refused = {refused!r:.100}: not a count for each reason")
    counted = {}
    for reason in sorted({*refused, *tally.refused}):
        least, count = tally.refused[reason], refused.get(reason, 0)
        if replay is not None and reason in USED_UP:
            count = least
        elif reason != _UNWRITTEN and events is not None:
            count = max(least, count) if events.some_not_written else least
        if count:
            counted[reason] = count
    return counted


def _impossible(
    stated: Mapping[str, Any], scenario: Scenario, times: Sequence[float] | None, *, alone: bool
) -> dict[str, str]:
    """Return, by key, figures that the recorder writes as they come and that no run has."""
    wrong = {}
    dropped, virtual = stated.get("dropped", {}), stated.get("virtual_seconds")
    if not isinstance(dropped, dict) or any(
        key not in DROPPED or type(count) is not int or count < 0 for key, count in dropped.items()
    ):
        wrong["dropped"] = f"dropped = {dropped!r:.100}: not a count for each kind of message"
    if virtual is not None and not (_is_number(virtual) and 0 <= virtual < math.inf):
        wrong["virtual_seconds"] = f"virtual_seconds = {virtual!r:.40}: not a time"
    if times is not None:
        elapsed = times[-1] - times[0] if times else 0.0
        if not math.isclose(stated["seconds"], elapsed, rel_tol=_CLOSE, abs_tol=_MOMENT):
            wrong["seconds"] = f"seconds = {stated['seconds']!r:.40}; by the records {elapsed:g}"
    edges, updates = _rows(stated.get("edges")), stated.get("updates")
    if alone and not (
        all(type(row[key]) is int for row in edges for key in ("edge", "applied", "last_sequence"))
        and sum(row["applied"] for row in edges) == updates
        and all(0 <= row["applied"] <= row["last_sequence"] for row in edges)
        and all(0 <= row["edge"] < scenario.workers for row in edges)
    ):
        wrong["edges"] = f"updates = {updates!r:.40}: edges = {edges!r:.200} cannot have made them"
    every = 1 if stated.get("engine") == "synchronous" else scenario.evaluate_every  # at the end of a round
    at: list[Any] = [row.get("updates") for row in _rows(stated.get("evaluations"))]
    rising = all(type(t) is int for t in (*at, updates)) and at == sorted(set(at))
    if not rising or (at and not 0 <= at[0] <= at[-1] <= updates):
        wrong["evaluations"] = f"evaluations after {at!r:.80} updates of {updates!r:.40}"
    elif odd := [t for t in at if t != updates and (not every or t % every)]:
        wrong["evaluations"] = f"evaluations after {odd!r:.80} updates: by the scenario every {every}"
    return wrong


def _claims(
    stated: Mapping[str, Any], scenario: Scenario, replay: LogReplay | None, events: RecordedEvents | None
) -> Iterator[Check]:
    if replay is None and not scenario.records.events:
        yield claimed(
            "summary", SUMMARY, "updates, staleness, stages and edges: there is neither log nor events.jsonl"
        )
    written = events is not None and not events.some_not_written
    logged = USED_UP if replay is not None else ()
    if rest := [key for key in stated["refused"] if (key == _UNWRITTEN or not written) and key not in logged]:
        yield claimed(
            "refusals", SUMMARY, f"{', '.join(rest)}: refusals that changed nothing and have no line"
        )
    if rows := stated.get("evaluations"):
        yield claimed(
            "metrics",
            SUMMARY,
            f"values of {len(rows)} evaluations: they need the data set; `mapa replay` has it",
        )
    if stated.get("engine") in ENGINES:
        yield claimed("times", SUMMARY, "seconds that the simulation took, and its virtual seconds")
    else:
        yield claimed("times", SUMMARY, "when each event came, round_trip_ms and dropped messages")


def _rows(value: object) -> list[dict[str, Any]]:
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
