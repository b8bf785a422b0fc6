"""Claims of the paper and their verdicts, which are computed from results and never written down."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from importlib import import_module
from pathlib import Path
from statistics import fmean as mean
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from experiments.harness import deviation
from experiments.reproduce.results import Results

TIE = 0.005  # accuracies nearer than this are the same
NEAR = 0.02  # "nearly the same", "similar"
LEARNED = 0.3  # accuracy on ten classes below which a run has learned nothing that could be compared
ERRORS = 2.0  # standard errors over seeds within which nothing is decided
ONE_SEED = 0.01  # the same where a single seed gives no such error


class FigureClaim(BaseModel):
    """What is claimed, and where; `ours` marks what the paper does not say and we asked all the same."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    experiment: str
    where: str
    text: str
    judge: str  # function of judges.py
    given: dict[str, Any] = Field(default_factory=dict)  # what else the judge is asked
    why: str = ""  # our explanation where it fails
    ours: bool = False
    cases: int = 0  # that it speaks of: with fewer run, it cannot be reproduced; 0: any number will do


class Verdict(Enum):
    REPRODUCED = "reproduced"
    PARTLY = "partly"
    NOT = "not reproduced"
    UNDECIDED = "undecided"
    NOT_RUN = "not run"


_OURS = {Verdict.REPRODUCED: "holds", Verdict.NOT: "does not hold"}


@dataclass(frozen=True, slots=True)
class Case:
    """One instance of a claim: where, whether it held there, and the numbers."""

    label: str
    holds: bool | None  # None: the seeds cannot tell
    numbers: str

    @property
    def words(self) -> str:
        return f"{self.label} {self.numbers}{_MARKS[self.holds]}"


_MARKS = {True: "", False: " ✗", None: " ?"}


@dataclass(frozen=True, slots=True)
class Judgement:
    verdict: Verdict
    summary: str
    cases: tuple[Case, ...] = ()
    explain: bool = False  # whether the report gives the claim's explanation

    @property
    def measured(self) -> str:
        """Return the summary and every case."""
        return ": ".join([self.summary, *(["; ".join(case.words for case in self.cases)] * bool(self.cases))])


@dataclass(frozen=True, slots=True)
class Judged:
    """A claim with what became of it."""

    claim: FigureClaim
    judgement: Judgement

    @property
    def words(self) -> str:
        """Return the verdict; what is ours was never claimed, so it cannot be reproduced."""
        verdict = self.judgement.verdict
        return _OURS.get(verdict, verdict.value) if self.claim.ours else verdict.value

    @property
    def why(self) -> str:
        """Return our explanation of what failed; empty where nothing did."""
        return self.claim.why if self.judgement.explain else ""


def by_cases(cases: Sequence[Case]) -> Judgement:
    """All cases hold: reproduced; none: not; else partly. What failed is to be explained."""
    if not cases:
        return Judgement(Verdict.NOT_RUN, "no run decides it")
    failed = [case for case in cases if case.holds is False]
    held = sum(case.holds is True for case in cases)
    undecided = len(cases) - held - len(failed)
    if held == len(cases):
        verdict = Verdict.REPRODUCED
    elif held:
        verdict = Verdict.PARTLY
    else:
        verdict = Verdict.NOT if failed else Verdict.UNDECIDED
    summary = f"holds in {held} of {len(cases)}" + (f", undecided in {undecided}" if undecided else "")
    return Judgement(verdict, summary, tuple(cases), explain=bool(failed))


def doubt(a: Sequence[float], b: Sequence[float]) -> float:
    """Return how far the difference of two accuracies may be off: two standard errors."""
    if len(a) < 2 or len(b) < 2:
        return ONE_SEED
    return ERRORS * math.hypot(deviation(a) / math.sqrt(len(a)), deviation(b) / math.sqrt(len(b)))


def above(value: float, margin: float, uncertain: float) -> bool | None:
    """Tell whether a value lies above a margin; None: nearer to it than can be told."""
    return None if abs(value - margin) <= uncertain else value > margin


def ahead(a: Sequence[float], b: Sequence[float]) -> bool | None:
    """Tell whether a is more accurate than b."""
    return above(mean(a) - mean(b), TIE, doubt(a, b))


def not_behind(a: Sequence[float], b: Sequence[float], margin: float = NEAR) -> bool | None:
    """Tell whether a is at most so much less accurate than b."""
    return above(mean(a) - mean(b), -margin, doubt(a, b))


def alike(finals: Sequence[Sequence[float]], margin: float) -> bool | None:
    """Tell whether the largest and the smallest mean are at most so far apart."""
    least, most = min(finals, key=mean), max(finals, key=mean)
    apart = above(mean(most) - mean(least), margin, doubt(most, least))
    return None if apart is None else not apart


def claims() -> list[FigureClaim]:
    text = Path(__file__).with_name("claims.toml").read_text(encoding="utf-8")
    return [FigureClaim.model_validate(fields) for fields in tomllib.loads(text)["claim"]]


def judge(claim: FigureClaim, results: Results) -> Judgement:
    """Call the claim's judge, which yields cases, or judges them itself."""
    judges = import_module("experiments.reproduce.judges")
    judged: Judgement | Iterable[Case] = getattr(judges, claim.judge)(results, **claim.given)
    return judged if isinstance(judged, Judgement) else by_cases(list(judged))


def judge_all(results: Results, experiments: Sequence[str]) -> list[Judged]:
    """Judge every claim of the chosen experiments, in the paper's order."""
    chosen = [claim for claim in claims() if claim.experiment in experiments]
    return [Judged(claim, covered(claim, judge(claim, results))) for claim in chosen]


def covered(claim: FigureClaim, judgement: Judgement) -> Judgement:
    """Return the judgement, but a claim of which only a part was run is reproduced in part at most."""
    if not judgement.cases or len(judgement.cases) >= claim.cases:
        return judgement
    verdict = Verdict.PARTLY if judgement.verdict is Verdict.REPRODUCED else judgement.verdict
    return replace(
        judgement, verdict=verdict, summary=f"{judgement.summary} (the claim covers {claim.cases})"
    )
