"""The recorder of a run, the same for every engine and for the cloud: its tally, its journal and its clock.

The journal is events.jsonl: one JSON object a line. Never a gradient, a sample or a norm before noise: a log line is a
release too.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from common.errors import RecordsError
from common.messages import Fact, GradientApplied, GradientRefused
from common.quantities import EdgeId
from common.records.tally import Evaluation, Tally, record_of

MOST_REFUSALS = 100  # lines for refused gradients of one edge; further ones are counted, not written


class Lines(Protocol):
    """Where a journal writes: a text stream, or a file that keeps its lines whole."""

    def write(self, text: str, /) -> object: ...


class Journal:
    """Writes records to a text stream that it does not own."""

    def __init__(self, stream: Lines) -> None:
        self._stream = stream
        self._names: dict[EdgeId, str] = {}

    def updates(self, lines: Iterable[tuple[GradientApplied, float]]) -> None:
        """Write updates that follow each other, with their times, at once."""
        self._stream.write("".join([self._applied(fact, time) for fact, time in lines]))

    def fact(self, fact: Fact, time: float | None = None) -> None:
        """Write a fact; `time` is seconds since the run began, virtual in a simulation."""
        if type(fact) is GradientApplied:
            self._stream.write(self._applied(fact, time))
        else:
            self._record(record_of(fact), time)

    def write(self, event: str, fields: Mapping[str, object], time: float | None = None) -> None:
        self._record({"event": event, **fields}, time)

    def _record(self, record: dict[str, Any], time: float | None) -> None:
        if time is not None:
            record["time"] = round(time, 6)
        self._stream.write(json.dumps(record, ensure_ascii=False) + "\n")

    def _applied(self, fact: GradientApplied, time: float | None) -> str:
        """Format the one record of the hot path by hand: a fifth of json.dumps' cost."""
        edge, edge_id, sequence, version, t, staleness, stage, sensitivity = fact
        name = self._names.get(edge_id)
        if name is None:
            name = self._names[edge_id] = json.dumps(edge_id)
        when = "" if time is None else f', "time": {time:.6f}'
        return (
            f'{{"event": "gradient_applied", "edge": {edge}, "edge_id": {name}, '
            f'"sequence": {sequence}, "version": {version}, "t": {t}, '
            f'"staleness": {staleness}, "stage": {stage}, "sensitivity": {sensitivity!r}{when}}}\n'
        )


@dataclass(slots=True)
class Recorder:
    """Counts and writes what happens in one run.

    `now` is the time of the engine's clock, None where it has none; the journal's times count from `began`.
    """

    journal: Journal | None = None  # None: only the tally
    tally: Tally = field(default_factory=Tally)
    began: float = 0.0
    goes_on: bool = False  # with the tally alone, where a line cannot be written; else the error is raised
    facts: list[tuple[float, Fact]] = field(default_factory=list)  # kept by a hot path, not written yet
    seconds: list[float] = field(default_factory=list)  # since `began`, of each evaluation
    failure: RecordsError | None = None  # why the journal ended before the run
    ended: bool = False  # the summary is made from these counts: nothing is counted or written any more
    _refusals: Counter[str] = field(default_factory=Counter)  # lines by edge id
    _written: Counter[str] = field(default_factory=Counter)  # lines of a former process, that come again
    _again: bool = False  # facts of the log come, which may be among them

    def write(self) -> None:
        """Record the facts that were kept."""
        kept, self.facts = self.facts, []
        for kind, facts in itertools.groupby(kept, lambda pair: type(pair[1])):
            if kind is GradientApplied and not (self._again or self.ended):
                self._updates(list(facts))
            else:
                for now, fact in facts:
                    self.fact(fact, now)

    def _updates(self, facts: Sequence[tuple[float, Any]]) -> None:
        """Record updates that follow each other: a line at a time would cost as much as a small gradient."""
        for _, fact in facts:
            self.tally.observe(fact)
        if self.journal is None:
            return
        try:
            self.journal.updates((fact, now - self.began) for now, fact in facts)
        except RecordsError as error:
            self.fail(error)

    def end(self) -> None:
        """Record what was kept, and nothing after it: what still arrives while the connection ends is in no record."""
        self.write()
        self.ended = True

    def fact(self, fact: Fact, now: float | None = None) -> None:
        """Record a fact at once."""
        if self.ended:
            return
        self.tally.observe(fact)
        journal = self.journal
        if journal is None or (type(fact) is GradientRefused and not self._worth_a_line(fact)):
            return
        if self._again and self._is_written(fact):
            return
        try:
            journal.fact(fact, None if now is None else now - self.began)
        except RecordsError as error:
            self.fail(error)

    def counted(self, first: int, sequence: int, start: int, staleness: Sequence[int]) -> None:
        """Count updates start, start+1, … of edges first, first+1, … without a fact for each; not in a journal.

        For an engine that makes many updates at a time: a fact for each costs as much as its gradient.
        """
        assert self.journal is None
        self.tally.counted(first, sequence, start, staleness)

    def evaluated(self, evaluation: Evaluation, now: float | None = None) -> None:
        """Record an evaluation, after the facts before it."""
        self.write()
        self.tally.evaluated(evaluation)
        if now is not None:
            self.seconds.append(now - self.began)
        if self._written.pop(f"evaluated {evaluation.updates}", 0):
            return
        fields = {"t": evaluation.updates, "stage": evaluation.stage, **evaluation.named()}
        self._line("evaluated", fields, now)

    def is_evaluated(self, updates: int) -> bool:
        """Tell whether the last evaluation is that of the model after these updates."""
        evaluations = self.tally.evaluations
        return bool(evaluations) and evaluations[-1].updates == updates

    def diagnosed(self, edge: int, sequence: int, norm: float) -> None:
        """Record ‖g‖ before clipping and noise; only where the scenario asks for it."""
        fields = {"edge": edge, "sequence": sequence, "gradient_norm": norm}
        self._line("diagnostic", fields)

    def halted(self, updates: int, reason: str, now: float | None = None) -> None:
        """Record the end."""
        self.write()
        if self._written["halted"]:
            return
        self._written["halted"] = 1  # a resumed run does not record it again
        self._line("halted", {"t": updates, "reason": reason}, now)

    def plain(self) -> dict[str, Any]:
        """Return all that is counted, in plain values; the facts that were kept are recorded first."""
        self.write()
        return {
            "tally": self.tally.plain(),
            "seconds": list(self.seconds),
            "refusals": [list(pair) for pair in self._refusals.items()],
            "written": {key: count for key, count in self._written.items() if count},
        }

    def restore(self, plain: Mapping[str, Any]) -> None:
        """Go on counting from there."""
        self.tally = Tally.from_plain(plain["tally"])
        self.seconds = list(plain["seconds"])
        self._refusals = Counter(dict(plain["refusals"]))
        self._written = Counter(plain["written"])

    def leave_out(self, lines: Iterable[bytes]) -> float:
        """Do not write again what a former process wrote behind the restored state: it will be counted again.

        Return the latest of their times; 0 where there is none.
        """
        latest = 0.0
        for line in lines:
            record = json.loads(line)
            if isinstance(time := record.get("time"), float) and time < math.inf:
                latest = max(latest, time)
            match record["event"]:
                case "evaluated":
                    self._written[f"evaluated {record['t']}"] += 1
                case "halted":
                    self._written["halted"] += 1
                case "gradient_refused":
                    self._written[_refusal(record)] += 1
                case "resumed":
                    pass
                case _:
                    self._written["fact"] += 1
        self._again = True
        return latest

    @property
    def untold(self) -> int:
        """How many lines a former process wrote of events that have not come again: 0 once a whole log was taken."""
        return self._written["fact"] if self._again else 0

    def count_left_out(self) -> None:
        """Count what was written and did not come again: refusals that changed nothing are in no log."""
        self._again = False
        for key in [key for key in self._written if key.startswith("refused ")]:
            _, edge_id, _, _, reason = key.split(" ")
            count = self._written.pop(key)
            self.tally.refused[reason] += count
            self._refusals["" if reason == "after-halt" else edge_id] += count

    def _is_written(self, fact: Fact) -> bool:
        key = _refusal(asdict(fact)) if type(fact) is GradientRefused else "fact"
        if not self._written[key]:
            return False
        self._written[key] -= 1
        return True

    def resumed(self, updates: int, torn: int, now: float) -> None:
        """Record that another process goes on with the run."""
        self.write()
        self._line("resumed", {"t": updates, "torn_bytes": torn}, now)

    def fail(self, error: RecordsError) -> None:
        """End the journal; where the recorder goes on, the cloud's shell ends the run."""
        self.journal, self.failure = None, self.failure or error
        if not self.goes_on:
            raise error

    def _line(self, event: str, fields: Mapping[str, object], now: float | None = None) -> None:
        if self.journal is None:
            return
        try:
            self.journal.write(event, fields, None if now is None else now - self.began)
        except RecordsError as error:
            self.fail(error)

    def _worth_a_line(self, refused: GradientRefused) -> bool:
        """Tell what is written line by line, and not only counted: not what somebody can cause without end."""
        if refused.reason == "stranger":
            return False
        # after the halt the server does not tell strangers apart: all share one count
        whose = "" if refused.reason == "after-halt" else refused.edge_id
        self._refusals[whose] += 1
        return self._refusals[whose] <= MOST_REFUSALS


def _refusal(record: Mapping[str, Any]) -> str:
    return f"refused {record['edge_id']} {record['sequence']} {record['t']} {record['reason']}"
