"""A claim of the paper, and what our results say of it. Verdicts are computed, never written down."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from experiments.reproduce.results import Results, mean

TIE = 0.005  # accuracies nearer than this are the same
NEAR = 0.02  # "nearly the same", "similar"
LEARNED = 0.3  # accuracy on ten classes below which a run has learned nothing that could be compared


class Claim(BaseModel):
    """What is said, and where; `ours` marks what the paper does not say and we asked all the same."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    experiment: str
    where: str
    text: str
    judge: str  # module of `judges`, and function
    ours: bool = False


class Verdict(Enum):
    REPRODUCED = "reproduced"
    PARTLY = "partly"
    NOT = "not reproduced"
    NOT_RUN = "not run"


_OURS = {Verdict.REPRODUCED: "holds", Verdict.NOT: "does not hold"}


@dataclass(frozen=True, slots=True)
class Judgement:
    verdict: Verdict
    measured: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Judged:
    """A claim with what became of it."""

    claim: Claim
    judgement: Judgement

    @property
    def words(self) -> str:
        """Return the verdict; nobody claimed what is ours, so it cannot be reproduced."""
        verdict = self.judgement.verdict
        return _OURS.get(verdict, verdict.value) if self.claim.ours else verdict.value


@dataclass(frozen=True, slots=True)
class Case:
    """One instance of a claim: where, whether it held there, and the numbers."""

    label: str
    holds: bool
    numbers: str


def by_cases(cases: Sequence[Case], why: Callable[[list[Case]], str] | str = "") -> Judgement:
    """All cases hold: reproduced; none: not; else partly. `why` speaks of those that failed."""
    if not cases:
        return Judgement(Verdict.NOT_RUN, "nothing was run that could tell")
    failed = [case for case in cases if not case.holds]
    held = len(cases) - len(failed)
    verdict = Verdict.REPRODUCED if not failed else Verdict.PARTLY if held else Verdict.NOT
    words = f"holds in {held} of {len(cases)}: " + "; ".join(
        f"{case.label} {case.numbers}{'' if case.holds else ' ✗'}" for case in cases
    )
    reason = (why(failed) if callable(why) else why) if failed else ""
    return Judgement(verdict, words, reason)


def percent(values: Sequence[float]) -> str:
    return f"{100 * mean(values):.1f} %"


def versus(a: Sequence[float], b: Sequence[float]) -> str:
    return f"{100 * mean(a):.1f} : {100 * mean(b):.1f} %"


def ahead(a: Sequence[float], b: Sequence[float]) -> bool:
    return mean(a) > mean(b) + TIE


def near(a: Sequence[float], b: Sequence[float]) -> bool:
    return abs(mean(a) - mean(b)) <= NEAR


def claims() -> list[Claim]:
    text = Path(__file__).with_name("claims.toml").read_text(encoding="utf-8")
    return [Claim.model_validate(fields) for fields in tomllib.loads(text)["claim"]]


def judge_of(claim: Claim) -> Callable[[Results], Judgement]:
    module, _, function = claim.judge.partition(".")
    found: Callable[[Results], Judgement] = getattr(
        import_module(f"experiments.reproduce.judges.{module}"), function
    )
    return found


def judge_all(results: Results, experiments: Sequence[str]) -> list[Judged]:
    """Judge every claim of the chosen experiments, in the paper's order."""
    return [Judged(claim, judge_of(claim)(results)) for claim in claims() if claim.experiment in experiments]
