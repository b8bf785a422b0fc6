"""What events.jsonl says by itself: every line is one that a cloud or an engine writes, and follows from those before.

A run without a gradient log is counted from here; where there is a log, the lines are compared with it as well.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from common.messages import EdgeGone, EdgeJoined, Fact, GradientApplied, GradientRefused, StageOpened
from common.noise.law import NoiseLaw
from common.noise.registry import noise_law
from common.records.events import Journal
from common.records.recorder import MOST_REFUSALS
from common.records.tally import Tally
from common.scenario.scenario import Scenario
from mapa.recording import ENGINES
from mapa.verification.rerun import USED_UP

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
