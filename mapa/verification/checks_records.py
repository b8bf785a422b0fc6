"""Check manifest.json, events.jsonl, summary.json and the model against the documents that the real recorder makes.

The recorder gets the facts of the log; without one, what the lines of events.jsonl say, each of which must follow from
those before it. What only the run can state (times, evaluations, refusals that no log holds) is taken from the records
themselves. Keys are not listed here: a document is compared with the one that the recorder writes.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, cast

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from cloud.metrics import DROPPED, REFUSALS
from cloud.recovery_log import USED_UP
from common.datasets.dataset import Dataset
from common.messages import EdgeGone, EdgeJoined, Fact, GradientApplied, GradientRefused, StageOpened
from common.metrics import Metric
from common.models.model import Model
from common.noise.law import NoiseLaw
from common.noise.registry import noise_law
from common.quantities import is_finite
from common.records.directory import RunDirectory
from common.records.gradient_log import LARGEST_BODY
from common.records.recorder import MOST_REFUSALS, Journal, Recorder
from common.records.regular import number, rows
from common.records.tally import EdgeTally, Evaluation, Tally, event_name
from common.scenario.scenario import Scenario
from mapa.cloud_run import CloudRun
from mapa.recording import ENGINES, network, summarise, write_manifest
from mapa.run_parts import RunParts
from mapa.verification.check import Check, UnreadableError, claimed, failed, judged, passed, unlike
from mapa.verification.replay import LogReplay, difference
from mapa.verification.untrusted_files import EVENTS, MANIFEST, MODEL, SUMMARY, RunFiles

_FACTS: dict[object, TypeAdapter[Fact]] = {
    event_name(kind): TypeAdapter(kind)
    for kind in (GradientApplied, GradientRefused, StageOpened, EdgeJoined, EdgeGone)
}
_LATE = ("evaluated", "gradient_refused", "diagnostic")  # may be written later than their time
_LONG = 2**63  # sequences and versions lie below
_CLOSE, _MOMENT = 1e-6, 1e-3  # of seconds: a cloud that resumes moves its clock, and rounds it
_ANYBODY = ("stranger", "after-halt")  # refusals of who never joined
_UNWRITTEN = "stranger"  # refusals that never have a line
_SHOWN = 20  # unknown keys that are named
_OF_ORIGIN = ("versions", "machine", "started", "started_by", "samples", "data", "shard_sizes")
_Count = Annotated[int, Field(ge=0, lt=2**53)]
_Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Row(BaseModel, strict=True):
    """What is the same in a row for an edge and for an evaluation: numbers that are computed with."""

    updates: _Count = 0
    stage: _Count = 0
    edge: _Count = 0
    applied: _Count = 0
    last_sequence: Annotated[int, Field(ge=0, lt=_LONG)] = 0
    round_trip_ms: _Seconds | None = None


class _Stated(BaseModel, strict=True):
    """What summary.json alone can state, and what is computed with before it is compared."""

    updates: _Count
    seconds: _Seconds
    parameters: _Count
    virtual_seconds: _Seconds | None = None
    dropped: dict[str, _Count] = {}
    refused: dict[str, Annotated[int, Field(ge=1)]]
    edges: list[_Row]
    evaluations: list[_Row]
    network: list[_Row] = []


@dataclass
class CheckedRun:
    """A run, and what is known of it so far."""

    files: RunFiles
    scenario: Scenario
    model: Model | None = None
    replay: LogReplay | None = None
    events: RecordedEvents | None = None

    @property
    def engine(self) -> str:
        return str(self.files.manifest.get("engine"))

    @property
    def simulated(self) -> bool:
        return self.engine in ENGINES

    @property
    def metrics(self) -> Sequence[Metric]:
        """The model's metrics; where it cannot be made here, as the summary names them."""
        if self.model is not None:
            return self.model.metrics
        try:
            return [Metric.from_dict(row) for row in self.files.summary["metrics"]]
        except (KeyError, TypeError, ValueError) as error:
            raise UnreadableError(SUMMARY, f"metrics: {error!r:.100}") from error


class _Draft(RunDirectory):
    """A run's directory that keeps its documents instead of writing them."""

    def __init__(self, run: object) -> None:
        self.run, self.path = str(run), Path()
        self.documents: dict[str, dict[str, Any]] = {}

    def document(self, name: str, values: Mapping[str, Any]) -> None:
        self.documents[name] = json.loads(json.dumps(values))


def _differences(stated: Mapping[str, Any], expected: Mapping[str, Any]) -> dict[str, str]:
    """Return, for each key whose value is not the expected one, what is wrong."""
    wrong = {}
    if unknown := [key for key in stated if key not in expected]:
        wrong[unknown[0]] = f"{len(unknown)} unknown keys: {', '.join(map(repr, unknown[:_SHOWN])):.300}"
    for key, value in expected.items():
        if key not in stated:
            wrong[key] = f"{key} is missing; recomputed {value!r:.100}"
        elif differs := unlike(stated[key], value, key):
            wrong[key] = differs
    return wrong


def manifest_as_written(run: CheckedRun) -> Iterator[Check]:
    """Check that the manifest is the one that this version writes for the scenario, but for the run's origin."""
    stated = run.files.manifest
    draft = _Draft(stated.get("run"))
    unknown = cast(Dataset, SimpleNamespace(checksum="", shape=(), classes=0))
    parts = RunParts(run.scenario, unknown, cast(Model, None), [])
    write_manifest(draft, parts, name=str(stated.get("name")), engine=run.engine)
    origin = {key: stated[key] for key in _OF_ORIGIN if key in stated}
    wrong = _differences(stated, draft.documents[MANIFEST] | origin)
    yield from judged("fields", MANIFEST, wrong.values(), "as this version writes it for the scenario")
    told = "versions, machine, start, and the data set's checksum: nothing can show them"
    yield claimed("origin", MANIFEST, told)


# -- events.jsonl --------------------------------------------------------------------------------------------


class RecordedEvents:
    """The lines of a run, recorded again."""

    def __init__(self, run: CheckedRun) -> None:
        self.scenario, self.engine, self.simulated = run.scenario, run.engine, run.simulated
        self.metrics = run.metrics
        # facts that each have a line, in order; None: there is no log
        self.log = None if run.replay is None else filter(has_record, run.replay.facts)
        self.recorder = Recorder(Journal(self))
        self.tally = self.recorder.tally
        self.halts: list[tuple[object, object]] = []  # (t, reason)
        self.sequences: dict[str, int] = {}  # edge id → the last that was used up
        self.joined: dict[str, EdgeJoined] = {}  # edge id → how it said that it noises
        self.times: list[float] = []  # of the first and of the last update
        self.last_edge: int | None = None  # of the last update
        self.lines = 0
        self.refusals = Counter[str]()  # lines by edge, as the recorder counts them
        self.written = ""  # the last line of the recorder
        self._time = 0.0

    def write(self, text: str, /) -> None:
        self.written = text

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
        except (KeyError, TypeError, ValueError):
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
        recorder, time = self.recorder, line.get("time")
        match line.get("event"):
            case "evaluated":
                evaluation = _evaluation({**line, "updates": line["t"]}, self.metrics)
                if evaluation.stage not in _stages_after(evaluation.updates, self.tally):
                    return f"stage = {evaluation.stage!r:.40} after {evaluation.updates} updates"
                recorder.evaluated(evaluation, time)
            case "halted":
                self.halts.append((line["t"], line["reason"]))
                recorder.halted(line["t"], line["reason"], time)
            case "resumed" if not self.simulated:
                torn = line["torn_bytes"]
                if type(torn) is not int or not 0 <= torn < 2 * LARGEST_BODY:
                    return f"torn_bytes = {torn!r:.40}: not the bytes of a record that was cut off"
                recorder.resumed(self.tally.updates, torn, line["time"])
                self.tally.resumed += 1
            case "diagnostic" if self.simulated and self.scenario.records.diagnostics:
                recorder.diagnosed(line["edge"], line["sequence"], line["gradient_norm"])
            case event if event in _FACTS:
                return self._record_fact(_fact(line), time)
            case _:
                raise ValueError
        return ""

    def _record_fact(self, fact: Fact, time: float | None) -> str:
        if isinstance(fact, GradientRefused):
            self.refusals["" if fact.reason == "after-halt" else fact.edge_id] += 1
        if isinstance(fact, EdgeJoined):
            self.joined[fact.edge_id] = fact
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
        time = number(line.get("time"))
        if time is None or time < self._time:
            return f"time = {line.get('time')!r:.40} follows {self._time:g}"
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
            case GradientRefused(edge_id=edge_id, reason=reason):
                due, joined = self.tally.updates + 1, reason in _ANYBODY or edge_id in self.joined
                if reason not in REFUSALS or not joined or not 1 <= fact.t <= due:
                    return f"no cloud refuses {edge_id!r:.80} at t = {fact.t}, before update {due}: {reason!r:.40}"
                if reason in USED_UP:
                    self.sequences[edge_id] = max(self.sequences.get(edge_id, 0), fact.sequence)
        return ""

    def law(self, edge_id: str, index: int) -> NoiseLaw | None:
        """Return how an edge noises: as the scenario says, or as its own hello did."""
        own, joined = self.scenario.law(index), self.joined.get(edge_id)
        if joined is None or own is None:
            return own
        parts = {"epsilon": joined.epsilon, "noise_multiplier": joined.noise_multiplier, **joined.parameters}
        given = {key: value for key, value in parts.items() if value is not None}
        if (joined.noise, given) == (own.name, own.parameters):
            return own
        return noise_law(joined.noise, given)


def _stages_after(updates: int, tally: Tally) -> set[int]:
    """Return the stage of the last update, and that which was opened behind it; an algorithm may open none."""
    if not tally.stages:
        return {0, 1}
    of_updates = {0: 0} | {row["t"]: row["stage"] for row in tally.stages}
    return {of_updates[max(t for t in of_updates if t <= most)] for most in (updates, updates + 1)}


def has_record(fact: Fact) -> bool:
    """Tell whether a fact follows from the log: refusals that changed nothing are in no log."""
    return not isinstance(fact, GradientRefused) or fact.reason in USED_UP


def _fact(line: Mapping[str, Any]) -> Fact:
    """Return the fact that a line tells; ValueError if it tells none. A key too many the recorder does not write."""
    values = {key: value for key, value in line.items() if key not in ("event", "time")}
    if line["event"] == "edge_joined":  # keys beside its own are parameters of its law
        own = {key.name for key in fields(EdgeJoined)}
        values["parameters"] = {key: values.pop(key) for key in set(values) - own}
    return _FACTS[line["event"]].validate_json(json.dumps(values), strict=True)


def _evaluation(row: Mapping[str, Any], metrics: Sequence[Metric]) -> Evaluation:
    """Return what a row says; ValueError for a value that is none of its metric."""
    values = {}
    for metric in metrics:
        stated = row[metric.name]
        values[metric] = math.nan if stated is None else number(stated)
        if values[metric] is None or (metric.share and not (stated is None or 0 <= stated <= 1)):
            raise ValueError(f"{metric.name} = {stated!r:.40}")
    return Evaluation(row["updates"], row["stage"], cast(dict[Metric, float], values))


def check_events(run: CheckedRun) -> Iterator[Check]:
    """Check every line in order, and against the log where there is one."""
    files, events = run.files, RecordedEvents(run)
    if not run.scenario.records.events:
        wrong = ["has lines, but the scenario asks for none"] if files.contents.get(EVENTS) else []
        yield from judged("events", EVENTS, wrong, "the scenario asks for none, and there are none")
        return
    for line in files.lines():
        if differs := events.take(line):
            yield failed("events", EVENTS, f"line {events.lines}: {differs}")
            return
    if missing := events.left_in_log():
        yield failed("events", EVENTS, f"ends before {missing:.200}, which is in the log")
        return
    run.events = events
    resumed = f", resumed {events.tally.resumed} times" if events.tally.resumed else ""
    source = "follow from those before them" if events.log is None else "agree with the log"
    yield passed("events", EVENTS, f"{events.lines} lines {source}{resumed}; times in order")


# -- summary.json --------------------------------------------------------------------------------------------


def check_end(run: CheckedRun) -> Iterator[Check]:
    """Check that log, events and summary say the same of the end, and that a run can have ended so."""
    scenario, summary, events, replay = run.scenario, run.files.summary, run.events, run.replay
    engine, reason, updates = summary.get("engine"), summary.get("reason"), summary.get("updates")
    wrong = []
    if events is not None and events.halts != [(updates, reason)]:
        wrong.append(
            f"{updates!r:.40} updates, {reason!r:.40}; events.jsonl has the halts {events.halts!r:.120}"
        )
    last = (rows(summary, "evaluations") or [{}])[-1]
    useless = "loss" in last and last["loss"] is None
    if replay is not None:
        halted = None if replay.server.halted is None else replay.server.halted.reason
        if halted == "finished" and useless and engine not in ENGINES:
            halted = "diverged"  # x is finite, and its loss is not
        if halted != reason:
            wrong.append(f"reason = {reason!r:.40}; by the log {halted!r}")
    budget = [row.get("gone") == "budget" for row in rows(summary, "edges")]
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
    agree = f"{reason} after {updates} updates, told alike by all records"
    yield from judged("end", SUMMARY, wrong, agree)


def check_summary(run: CheckedRun) -> Iterator[Check]:
    """Check that summary.json is what the recorder makes of the log, of events.jsonl, or of its own counts."""
    manifest, stated, replay, events = run.files.manifest, run.files.summary, run.replay, run.events
    try:
        own = _Stated.model_validate(stated)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        told = f"{place} = {first['input']!r:.100}: {first['msg']}"
        raise UnreadableError(SUMMARY, told) from error
    tally = _tally_of(stated, run.metrics) if events is None else events.tally
    if events is None and replay is not None:
        replay.tally.evaluations = tally.evaluations
        tally = replay.tally
    alone = replay is None and events is None
    sized = SimpleNamespace(dimension=own.parameters, first_layer=slice(None), metrics=run.metrics)
    draft = _Draft(manifest.get("run"))
    recorded = summarise(
        RunParts(run.scenario, cast(Dataset, None), run.model or cast(Model, sized), []),
        draft,
        tally,
        own.seconds,
        name=str(manifest.get("name")),
        engine=run.engine,
        reason=str(stated.get("reason")),  # check_end judges it
    )
    recorded["releases"] = stated.get("releases")  # this and the statement the checks of privacy judge
    taken = ["privacy"] if run.model is not None else ["privacy", "rate"]
    recorded |= {key: stated[key] for key in taken if key in stated}
    if run.simulated:
        recorded["virtual_seconds"] = own.virtual_seconds
    else:
        recorded["dropped"] = own.dropped
        recorded["network"] = _network(own, run.scenario, tally, replay)
    recorded["refused"] = _refused(own.refused, tally, replay, events)
    if alone:
        recorded |= {key: stated.get(key) for key in ("staleness", "stages")}
    draft.summary(recorded)
    wrong = _impossible(run, own) | _differences(stated, draft.documents[SUMMARY])
    of_metrics = ("evaluations", "metrics", "final_", "best_")
    source = "themselves" if alone else "events.jsonl" if replay is None else "the log"
    for check, agree in (
        ("summary", "updates, staleness, stages, edges, refusals and what the scenario decides"),
        ("evaluations", f"{len(tally.evaluations)} evaluations, with the final and the best"),
    ):
        of_check = [wrong[key] for key in wrong if key.startswith(of_metrics) == (check == "evaluations")]
        yield from judged(check, SUMMARY, of_check, f"{agree}, agree with {source}")
    yield from _claims(run)


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
    own: _Stated, scenario: Scenario, tally: Tally, replay: LogReplay | None
) -> list[dict[str, Any]]:
    """Return the rows of the network with the round trips that are stated: nothing else shows them."""
    edges: dict[Any, Any] = {
        k: SimpleNamespace(index=k, edge_id=edge.edge_id, applied=edge.applied)
        for k, edge in tally.edges.items()
    }
    server = SimpleNamespace(edges=edges) if replay is None else replay.server
    service = SimpleNamespace(server=server, peers={}, tally=tally)
    cloud = SimpleNamespace(setting=SimpleNamespace(scenario=scenario), service=service)
    made = network(cast(CloudRun, cloud))
    for row, stated in zip(made, own.network, strict=False):
        row["round_trip_ms"] = stated.round_trip_ms
    return made


def _refused(
    refused: Mapping[str, int], tally: Tally, replay: LogReplay | None, events: RecordedEvents | None
) -> dict[str, int]:
    """Return the refusals as counted; as stated, where further ones have neither a record nor a line."""
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


def _impossible(run: CheckedRun, own: _Stated) -> dict[str, str]:
    """Return, by key, figures that the recorder writes as they come and that no run has."""
    wrong, scenario, shown = {}, run.scenario, run.replay or run.events
    if unknown := own.dropped.keys() - set(DROPPED):
        wrong["dropped"] = f"dropped = {unknown!r:.100}: no kinds of messages"
    if shown is not None and not run.simulated:
        elapsed = shown.times[-1] - shown.times[0] if shown.times else 0.0
        if not math.isclose(own.seconds, elapsed, rel_tol=_CLOSE, abs_tol=_MOMENT):
            wrong["seconds"] = f"seconds = {own.seconds}; by the records {elapsed:g}"
    edges, updates = own.edges, own.updates
    possible = all(row.applied <= row.last_sequence and row.edge < scenario.workers for row in edges)
    if shown is None and not (possible and sum(row.applied for row in edges) == updates):
        wrong["edges"] = f"updates = {updates!r:.40}: edges = {edges!r:.200} cannot have made them"
    every = 1 if run.engine == "synchronous" else scenario.evaluate_every  # at the end of a round
    at = [row.updates for row in own.evaluations]
    if at != sorted(set(at)) or at[-1:] > [updates]:
        wrong["evaluations"] = f"evaluations after {at!r:.80} updates of {updates!r:.40}"
    elif odd := [t for t in at if t != updates and (not every or t % every)]:
        wrong["evaluations"] = f"evaluations after {odd!r:.80} updates: by the scenario every {every}"
    elif run.replay is not None:
        of = [row for row in own.evaluations if row.stage not in _stages_after(row.updates, run.replay.tally)]
        if of:
            wrong["evaluations"] = f"stage = {of[0].stage} after {of[0].updates} updates"
    return wrong


def _claims(run: CheckedRun) -> Iterator[Check]:
    stated, events = run.files.summary, run.events
    told = []
    if run.model is None:
        told.append(("rate", "rate: the run's model cannot be made here"))
    if run.replay is None and not run.scenario.records.events:
        told.append(
            ("summary", "updates, staleness, stages and edges: there is neither log nor events.jsonl")
        )
    written = events is not None and not events.some_not_written
    shown = USED_UP if run.replay is not None else ()
    if rest := [key for key in stated["refused"] if (key == _UNWRITTEN or not written) and key not in shown]:
        told.append(("refusals", f"{', '.join(rest)}: refusals that changed nothing and have no line"))
    if count := len(stated["evaluations"]):
        why = "they need the data set; `mapa replay` has it"
        told.append(("metrics", f"values of {count} evaluations: {why}"))
    times = "when each event came, round_trip_ms and dropped messages"
    if run.simulated:
        times = "seconds that the simulation took, and its virtual seconds"
    yield from (claimed(name, SUMMARY, detail) for name, detail in (*told, ("times", times)))


# -- model.safetensors ---------------------------------------------------------------------------------------


def check_model(run: CheckedRun) -> Iterator[Check]:
    """Check that model.safetensors is what the log gives; without one, that it has the form of the run's."""
    replay, summary = run.replay, run.files.summary
    tensors, metadata = run.files.model()
    x, wrong = tensors.pop("x"), []
    if replay is not None and (unequal := difference(x, replay.server.result)):
        wrong.append(f"is not the replayed one: {unequal}")
    if replay is None and summary.get("reason") != "diverged" and not is_finite(x):
        wrong.append("numbers that are not finite")
    updates = summary.get("updates") if replay is None else replay.server.updates
    expected = {"scenario_sha256": run.scenario.digest, "updates": str(updates)}
    if metadata != expected:
        wrong.append(f"metadata {metadata!r:.200}; by the run {expected}")
    if summary.get("parameters") != x.size:
        wrong.append(f"{x.size} numbers; summary.json has parameters = {summary.get('parameters')!r:.40}")
    if run.model is None:
        yield claimed("blocks", MODEL, "names of the model's blocks: the run's model cannot be made here")
    elif {name: tensor.tobytes() for name, tensor in tensors.items()} != {
        block.name: x[block.slice].tobytes() for block in run.model.layout
    }:
        wrong.append("its blocks are not the vector x")
    if replay is not None:
        yield from judged("model", MODEL, wrong, f"the same {x.size} numbers as the replay's, bit for bit")
        return
    yield from (failed("model", MODEL, detail) for detail in wrong)
    yield claimed("model", MODEL, "every number of the final model: without a log nothing is replayed")
