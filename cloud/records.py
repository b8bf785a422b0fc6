"""The records of a run as it goes: the hot path keeps facts, and they are written in batches."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from common.errors import RecordsError
from common.messages import Fact, GradientRefused, Halt
from common.records.journal import Journal
from common.records.tally import Evaluation, Tally

_REFUSALS = 100  # lines for refused gradients of one edge; further ones are counted, not written


@dataclass(slots=True)
class Records:
    """Tally and journal of one run. Times are the loop's; the journal's count from `began`."""

    journal: Journal | None = None  # None: only the tally
    tally: Tally = field(default_factory=Tally)
    began: float = 0.0
    facts: list[tuple[float, Fact]] = field(default_factory=list)  # not written yet
    failure: RecordsError | None = None  # why the journal ended before the run
    _refusals: Counter[str] = field(default_factory=Counter)  # lines by edge id

    def write(self) -> None:
        """Write the facts that have gathered."""
        facts, self.facts = self.facts, []
        for now, fact in facts:
            self.tally.observe(fact)
            if self.journal is not None and self._worth_a_line(fact):
                try:
                    self.journal.fact(fact, now - self.began)
                except RecordsError as error:
                    self.fail(error)

    def fail(self, error: RecordsError) -> None:
        """Go on with the tally alone; whoever runs the cloud ends the run."""
        self.journal, self.failure = None, self.failure or error

    def evaluated(self, evaluation: Evaluation, now: float) -> None:
        """Write an evaluation, after the facts before it."""
        self.write()
        self.tally.evaluated(evaluation)
        if self.journal is not None:
            try:
                self.journal.evaluated(evaluation, now - self.began)
            except RecordsError as error:
                self.fail(error)

    def halted(self, halt: Halt, now: float) -> None:
        """Write the end."""
        self.write()
        if self.journal is not None:
            try:
                self.journal.write("halted", {"t": halt.updates, "reason": halt.reason}, now - self.began)
            except RecordsError as error:
                self.fail(error)

    def _worth_a_line(self, fact: Fact) -> bool:
        """Tell what is written line by line, and not only counted: not what somebody can cause without end."""
        if type(fact) is not GradientRefused:
            return True
        if fact.reason == "stranger":
            return False
        # after the halt the server does not tell strangers apart: all share one count
        whose = "" if fact.reason == "after-halt" else fact.edge_id
        self._refusals[whose] += 1
        return self._refusals[whose] <= _REFUSALS
