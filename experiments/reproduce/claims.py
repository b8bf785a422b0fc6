"""Claims of the paper (claims.toml), and their verdicts, which are computed from results and never written down.

A judge yields the cases of a claim, and whether the results bear them out.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import fmean as mean
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from experiments.harness import deviation
from experiments.harness import percent as percent_of
from experiments.reproduce.catalogue import FinishedPoint, Results, Threshold, catalogue
from mapa.scenario_files import load_scenario
from mapa.scenario_patterns import PREFIX

TIE = 0.005  # accuracies nearer than this are the same
NEAR = 0.02  # "nearly the same", "similar"
LEARNED = 0.3  # accuracy on ten classes below which a run has learned nothing that could be compared
ERRORS = 2.0  # standard errors over seeds within which nothing is decided
ONE_SEED = 0.01  # the same where a single seed gives no such error
RESTORED = 0.5  # |r| between an image and its reconstruction from which on one recognizes it
PRINTED = "exponential-norm"  # the law as the paper prints it
FIRST_BOUNDS = (200.0, 100.0, 10.0)  # of MAPA, in the figure of norms
FAR = 2.0  # "far fewer": at most half
COUNTS = 1.1  # counts of updates nearer than this factor are not told apart
ROBUST = 0.03  # of accuracy, between the values of a parameter
TARGET = 0.85  # accuracy, for the time to it
MODELS = ("lr", "svm", "cnn")
SOUND = ("lr", "svm")  # models of the experiment `sound`


class FigureClaim(BaseModel):
    """What is claimed, and where; `ours` marks what the paper does not say and we asked all the same."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    experiment: str
    where: str
    text: str
    judge: str  # the function below
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
_MARKS = {True: "", False: " ✗", None: " ?"}


@dataclass(frozen=True, slots=True)
class ClaimCase:
    """One instance of a claim: where, whether it held there, and the numbers."""

    label: str
    holds: bool | None  # None: the seeds cannot tell
    numbers: str

    @property
    def words(self) -> str:
        return f"{self.label} {self.numbers}{_MARKS[self.holds]}"


@dataclass(frozen=True, slots=True)
class Judgement:
    verdict: Verdict
    summary: str
    cases: tuple[ClaimCase, ...] = ()
    explain: bool = False  # whether the report gives the claim's explanation

    @property
    def measured(self) -> str:
        """Return the summary and every case."""
        return ": ".join([self.summary, *(["; ".join(case.words for case in self.cases)] * bool(self.cases))])


@dataclass(frozen=True, slots=True)
class Judged:
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


def by_cases(cases: Sequence[ClaimCase]) -> Judgement:
    """All cases hold: reproduced; none: not; else partly. What failed is to be explained."""
    if not cases:
        return Judgement(Verdict.NOT_RUN, "no run decides it")
    held, failed, undecided = (sum(case.holds is kind for case in cases) for kind in (True, False, None))
    verdict = Verdict.PARTLY if held else Verdict.NOT if failed else Verdict.UNDECIDED
    if held == len(cases):
        verdict = Verdict.REPRODUCED
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
    said: Judgement | Iterable[ClaimCase] = globals()[claim.judge](results, **claim.given)
    return said if isinstance(said, Judgement) else by_cases(list(said))


def judge_all(results: Results, experiments: Sequence[str]) -> list[Judged]:
    """Judge every claim of the chosen experiments, in the paper's order."""
    chosen = [claim for claim in claims() if claim.experiment in experiments]
    return [Judged(claim, covered(claim, judge(claim, results))) for claim in chosen]


def covered(claim: FigureClaim, judgement: Judgement) -> Judgement:
    """Return the judgement, but a claim of which only a part was run is reproduced in part at most."""
    if not judgement.cases or len(judgement.cases) >= claim.cases:
        return judgement
    verdict = Verdict.PARTLY if judgement.verdict is Verdict.REPRODUCED else judgement.verdict
    summary = f"{judgement.summary} (the claim covers {claim.cases})"
    return replace(judgement, verdict=verdict, summary=summary)


def percent(values: Sequence[float]) -> str:
    return f"{percent_of(values, 1, '±')} %"


def versus(a: Sequence[float], b: Sequence[float]) -> str:
    return f"{percent_of(a, 1, '±')} : {percent(b)}"


def is_more_accurate(
    results: Results,
    *,
    experiment: str,
    than: Mapping[str, str],
    methods: Sequence[str] = ("mapa",),
    label: str = "{title} ε={x:g}",
    model: str = "",
    from_x: float = 0.0,
    within: float | None = None,
    if_learned: bool = False,
) -> Iterator[ClaimCase]:
    """Judge whether methods are ahead of each rival at every x where both were run.

    `than` maps each rival to what its label adds. With `within` a method need only be at most that far behind;
    `if_learned` leaves undecided where neither has learned anything.
    """
    for method in methods:
        for panel, x in _places(results, experiment):
            for rival, suffix in than.items():
                finals = partial(results.finals, experiment, panel=panel, x=x)
                a, b = finals(variant=method), finals(variant=rival)
                if not a or not b or x < from_x or not panel.startswith(model):
                    continue
                holds = ahead(a, b) if within is None else not_behind(a, b, within)
                if if_learned and max(mean(a), mean(b)) < LEARNED:
                    holds = None
                name = label.format(title=results.title(panel), x=x, method=method.upper())
                yield ClaimCase(name + suffix, holds, versus(a, b))


def _places(results: Results, experiment: str) -> list[tuple[str, float]]:
    return [(p, x) for p in results.panels(experiment) for x in results.xs(experiment, panel=p)]


def _curve(results: Results, experiment: str, panel: str, variant: str) -> dict[float, list[float]]:
    """Return the finals of a variant at every x of its panel where it was run."""
    return {
        x: finals
        for x in results.xs(experiment, panel=panel)
        if (finals := results.finals(experiment, panel=panel, variant=variant, x=x))
    }


# -- the attack and gradient norms -------------------------------------------------------------------


def attack_shows(
    results: Results, *, law: str, blurred: Sequence[float], restored: Sequence[float] = ()
) -> Iterator[ClaimCase]:
    """Judge whether all images are blurred at some ε, and some are restored at others."""
    for panel in results.panels("attack"):
        likenesses: dict[float, list[float]] = {epsilon: [] for epsilon in (*blurred, *restored)}
        for entry in results.of("attack", panel=panel):
            for cell in entry.result.cells or []:
                if cell["law"] == law and cell["epsilon"] in likenesses:
                    likenesses[cell["epsilon"]] += cell["correlations"]  # |r| of image and reconstruction
        for epsilon, values in likenesses.items() if all(likenesses.values()) else ():
            words = "all blurred" if epsilon in blurred else "some restored"
            seen = f"{sum(r > RESTORED for r in values)} of {len(values)} restored"
            holds = (max(values) <= RESTORED) == (epsilon in blurred)
            name = f"{results.title(panel)} ε={epsilon:g} {words}:"
            yield ClaimCase(name, holds, f"{seen}, largest |r| {max(values):.2f}")


def bounds_matter_to_audp(results: Results) -> Iterator[ClaimCase]:
    good = results.finals("norms", variant="audp-3")
    for bound in ("15", "0.2"):
        if good and (finals := results.finals("norms", variant=f"audp-{bound}")):
            yield ClaimCase(f"bound {bound} below 3", ahead(good, finals), versus(finals, good))


def _by_first_bound(results: Results) -> dict[float, list[float]]:
    finals = {bound: results.finals("norms", variant=f"mapa-{bound:g}") for bound in FIRST_BOUNDS}
    return {bound: values for bound, values in finals.items() if values}


def first_bound_does_not_matter_to_mapa(results: Results) -> Iterator[ClaimCase]:
    finals = _by_first_bound(results)
    if len(finals) == len(FIRST_BOUNDS):
        yield ClaimCase("first bounds", alike(list(finals.values()), NEAR), _each(finals))


def mapa_comes_near_audp(results: Results) -> Iterator[ClaimCase]:
    best = results.finals("norms", variant="audp-3")
    for bound, finals in _by_first_bound(results).items() if best else ():
        yield ClaimCase(f"from {bound:g}", not_behind(finals, best), versus(finals, best))


def gradient_norms_fall(results: Results) -> Iterator[ClaimCase]:
    for entry in results.of("norms", variant="asgd"):
        if norms := (entry.result.norms or {}).get("mean"):
            tenth = max(1, len(norms) // 10)
            first, last = mean(norms[:tenth]), mean(norms[-tenth:])
            yield ClaimCase(f"seed {entry.point.seed}", last < first, f"{first:.2f} → {last:.2f}")


# -- accuracy against ε ------------------------------------------------------------------------------


def _pairs(results: Results, panel: str, rival: str) -> list[tuple[float, list[float], list[float]]]:
    """Return (ε, finals of MAPA, finals of the rival) wherever both were run."""
    ours, theirs = (_curve(results, "accuracy", panel, variant) for variant in ("mapa", rival))
    return [(x, ours[x], theirs[x]) for x in ours if x in theirs]


def accuracy_rises_with_epsilon(results: Results) -> Iterator[ClaimCase]:
    for panel in results.panels("accuracy"):
        xs = results.xs("accuracy", panel=panel)
        for variant in ("mapa", "audp") if len(xs) > 1 else ():
            finals = partial(results.finals, "accuracy", panel=panel, variant=variant)
            low, high = finals(x=xs[0]), finals(x=xs[-1])
            if low and high:
                label = f"{results.title(panel)} {variant.upper()}"
                yield ClaimCase(label, ahead(high, low), f"{percent(low)} → {percent(high)}")


def lead_is_larger_at_small_epsilon(results: Results) -> Iterator[ClaimCase]:
    for panel in results.panels("accuracy"):
        leads = [(x, mean(a) - mean(b), doubt(a, b)) for x, a, b in _pairs(results, panel, "audp")]
        if len(leads) > 1:
            (low, small, off), (high, large, off_too) = leads[0], leads[-1]
            words = f"{100 * small:+.1f} at ε={low:g}, {100 * large:+.1f} at {high:g}"
            larger = small > TIE and above(small - large, TIE, math.hypot(off, off_too))
            yield ClaimCase(results.title(panel), larger, words)


def lead_is_as_large_as_said(results: Results) -> Iterator[ClaimCase]:
    for panel, said in (("cnn-mnist", 0.2), ("cnn-usps", 1.0)):
        gains = [mean(a) / mean(b) - 1 for _, a, b in _pairs(results, panel, "audp")]
        if gains and panel in results.panels("accuracy"):
            words = f"at most {100 * max(gains):+.0f} %, said {100 * said:.0f} %"
            yield ClaimCase(results.title(panel), max(gains) >= said, words)


def mapa_comes_near_asgd(results: Results) -> Iterator[ClaimCase]:
    """Compare at the largest ε, where ASGD has learned anything."""
    for panel in results.panels("accuracy"):
        for _, a, b in _pairs(results, panel, "asgd")[-1:]:
            if mean(b) >= LEARNED:
                yield ClaimCase(results.title(panel), not_behind(a, b), versus(a, b))


# -- iterations to convergence against K -------------------------------------------------------------


def horizon(results: Results, panel: str) -> int:
    """Return the last update of the panel's longest run."""
    return max((entry.result.t[-1] for entry in results.of("convergence", panel=panel)), default=0)


@dataclass(frozen=True, slots=True)
class UpdatesNeeded:
    """Updates that the lines of a panel need: windows of evaluations end at `floor` at the earliest, runs at `last`."""

    results: Results
    panel: str

    @property
    def last(self) -> int:
        return horizon(self.results, self.panel)

    @property
    def floor(self) -> float:
        floors = [entry.result.floor for entry in self.results.of("convergence", panel=self.panel)]
        return min((floor for floor in floors if floor is not None), default=0)

    @property
    def threshold(self) -> Threshold:
        return catalogue().thresholds()[self.panel]

    def needed(self, variant: str, edges: float, loss: float | None = None) -> float | None:
        """Return the mean over seeds; inf where a seed did not get there; None: not run."""
        entries = self.results.of("convergence", panel=self.panel, variant=variant, x=edges)
        reached = [entry.result.reached(self.threshold.taken if loss is None else loss) for entry in entries]
        return mean([math.inf if t is None else float(t) for t in reached]) if reached else None

    def words(self, value: float) -> str:
        if math.isinf(value):
            return f"> {self.last:,}"
        return ("≤ " if value <= self.floor else "") + f"{value:,.0f}"


def iterations_rise_with_edges(results: Results) -> Iterator[ClaimCase]:
    for panel in results.panels("convergence"):
        counts, xs = UpdatesNeeded(results, panel), results.xs("convergence", panel=panel)
        for variant in ("mapa", "audp", "asgd"):
            values = [value for x in xs if (value := counts.needed(variant, x)) is not None]
            if len(values) < 2 or all(map(math.isinf, values)):
                continue  # it never got there, whatever K
            rising = all(a <= b for a, b in pairwise(values)) and values[0] < values[-1]
            words = " → ".join(map(counts.words, values))
            yield ClaimCase(f"{results.title(panel)} {variant.upper()}", rising, words)


def csgd_needs_fewest(results: Results) -> Iterator[ClaimCase]:
    for panel, x in _places(results, "convergence"):
        counts = UpdatesNeeded(results, panel)
        alone, *others = (counts.needed(variant, x) for variant in ("csgd", "mapa", "audp", "asgd"))
        least = min((value for value in others if value is not None), default=None)
        if alone is not None and least is not None and not math.isinf(alone):
            words = f"{counts.words(alone)} against {counts.words(least)}"
            fewer = min(least, counts.last) >= FAR * alone
            # what T or a window cut off may yet be far enough away
            is_open = not fewer and (math.isinf(least) or alone <= counts.floor)
            yield ClaimCase(f"{results.title(panel)} K={x:g}", None if is_open else fewer, words)


def needs_fewer_updates(
    results: Results, *, than: str, factor: float = 1.0, at: Sequence[float] = ()
) -> Judgement:
    """Judge whether MAPA needs fewer updates at every K, and at K of `at` by the factor that is claimed.

    A rival that never got there counts with T, so that the factor is a lower bound; where neither did, T was
    too short to tell and the case is left out. Thresholds are the one taken, and the caption's where it differs.
    """
    cases = []
    asked = shown = undecided = 0
    for panel, x in _places(results, "convergence"):
        counts = UpdatesNeeded(results, panel)
        known = counts.threshold
        for threshold in dict.fromkeys((known.taken, known.paper)):
            ours, theirs = (counts.needed(variant, x, threshold) for variant in ("mapa", than))
            if ours is None or theirs is None or (math.isinf(ours) and math.isinf(theirs)):
                continue
            ratio = min(theirs, counts.last) / min(ours, counts.last)
            cut = math.isinf(ours) or math.isinf(theirs)
            sign = "" if not cut else ">" if math.isinf(theirs) else "<"
            words = f"{counts.words(ours)} against {counts.words(theirs)} ({sign}{ratio:.2g}×)"
            close = not cut and 1 / COUNTS < ratio < COUNTS
            label = f"{results.title(panel)} K={x:g}" + (f" to {threshold:g}" * (threshold != known.taken))
            cases.append(ClaimCase(label, None if close else ours < theirs, words))
            if x in at:
                asked += 1
                shown += ratio >= factor
                undecided += ratio < factor and math.isinf(theirs)
    judged = by_cases(cases)
    if not asked:
        return judged
    where = " and ".join(f"{x:g}" for x in at)
    summary = f"{judged.summary}; at least {factor:g} times at K = {where}: shown in {shown} of {asked}"
    summary += f", undecided in {undecided}, where the rival did not converge within T" if undecided else ""
    verdict = judged.verdict
    if shown == undecided == 0:
        verdict = Verdict.NOT
    elif verdict is Verdict.REPRODUCED and shown < asked:
        verdict = Verdict.PARTLY
    return Judgement(verdict, summary, judged.cases, explain=verdict is not Verdict.REPRODUCED)


# -- sensitivity to parameters -----------------------------------------------------------------------


def by_value(results: Results, key: str) -> dict[float, list[FinishedPoint]]:
    return {x: results.of("sensitivity", sweep=key, x=x) for x in results.xs("sensitivity", sweep=key)}


def _learned(results: Results, key: str) -> dict[float, list[float]]:
    """Return the finals by value; none where there is one value only, or no run learned anything."""
    finals = {x: [e.result.final for e in entries] for x, entries in by_value(results, key).items()}
    learned = any(final >= LEARNED for values in finals.values() for final in values)
    return finals if learned and len(finals) > 1 else {}


def _each(finals: Mapping[float, Sequence[float]]) -> str:
    return ", ".join(f"{x:g}: {percent(values)}" for x, values in finals.items())


def robust_to_sigma_and_delta(results: Results) -> Iterator[ClaimCase]:
    for symbol, key in (("σ", "algorithm.sigma"), ("δ", "algorithm.delta")):
        if finals := _learned(results, key):
            yield ClaimCase(symbol, alike(list(finals.values()), ROBUST), _each(finals))


def batch_and_smoothness_matter_little(results: Results) -> Iterator[ClaimCase]:
    for symbol, key, larger_is_faster in (("b", "batch_size", True), ("L", "algorithm.smoothness", False)):
        if finals := _learned(results, key):
            slow, fast = sorted((min(finals), max(finals)), reverse=not larger_is_faster)
            entries = by_value(results, key)
            early = {x: mean(entry.result.after_a_quarter for entry in entries[x]) for x in (fast, slow)}
            numbers = f"early {100 * early[fast]:.1f} : {100 * early[slow]:.1f} %"
            sooner = above(early[fast] - early[slow], TIE, ONE_SEED)
            yield ClaimCase(f"{symbol} {fast:g} faster than {slow:g}", sooner, numbers)
            yield ClaimCase(f"{symbol} ends alike", alike(list(finals.values()), ROBUST), _each(finals))


def sensitive_to_epsilon_and_theta(results: Results) -> Iterator[ClaimCase]:
    better = {"privacy.epsilon": ("ε raises it", max), "algorithm.theta": ("larger θ lowers it", min)}
    for key, (label, best) in better.items():
        if finals := _learned(results, key):
            worst = min if best is max else max
            yield ClaimCase(label, ahead(finals[best(finals)], finals[worst(finals)]), _each(finals))


# -- beyond the paper: bounds chosen for AUDP, synchronous rounds ------------------------------------


def _by_bound(results: Results) -> Iterator[tuple[str, dict[float, list[float]], dict[float, list[float]]]]:
    """Yield each panel's title with AUDP's and MAPA's finals by bound; a single bound of AUDP is no choice."""
    for panel in results.panels("bounds"):
        audp, mapa = (_curve(results, "bounds", panel, variant) for variant in ("audp", "mapa"))
        if len(audp) > 1 and mapa:
            yield results.title(panel), audp, mapa


def some_bound_of_audp_is_as_good(results: Results) -> Iterator[ClaimCase]:
    for title, audp, mapa in _by_bound(results):
        bound, best = max(audp.items(), key=lambda item: mean(item[1]))
        ours = max(mapa.values(), key=mean)
        words = f"AUDP at {bound:g} {percent(best)}, MAPA's best {percent(ours)}"
        yield ClaimCase(title, not_behind(best, ours, TIE), words)


def mapa_needs_no_tuning(results: Results) -> Iterator[ClaimCase]:
    """Compare from a bound that is right for AUDP upwards: the paper's case is a bound chosen too large."""
    for title, audp, mapa in _by_bound(results):
        right = max(audp, key=lambda x: mean(audp[x]))
        if len(mapa) > 1 and max(mapa) >= right:
            lost = {
                name: max(map(mean, curve.values())) - min(mean(v) for x, v in curve.items() if x >= right)
                for name, curve in (("AUDP", audp), ("MAPA", mapa))
            }
            words = ", ".join(f"{name} loses {100 * value:.1f}" for name, value in lost.items())
            yield ClaimCase(f"{title} above {right:g}", lost["MAPA"] < lost["AUDP"] - TIE, words)


def bound_of(line: str) -> float:
    _, scenario = load_scenario(f"{PREFIX}{line}")
    assert scenario.algorithm.first_clip is not None
    return scenario.algorithm.first_clip


def held_out(results: Results, model: str, variants: Sequence[str]) -> dict[float, float]:
    """Return accuracy on held-out records by bound: the mean over lines, of each the mean over its seeds.

    Only bounds that every line was run with are there, or a line would count for some of them alone.
    """
    points = [e.point for e in results.of("heldout")]
    lines = {p.line for p in points if p.panel.startswith(f"{model}-") and p.variant in variants}
    table = {
        x: [mean(finals) for line in lines if (finals := results.finals("heldout", line=line, x=x))]
        for x in results.xs("heldout")
    }
    return {x: mean(values) for x, values in table.items() if values and len(values) == len(lines)}


def bounds_are_those_of_held_out_records(results: Results, *, sound: bool) -> Iterator[ClaimCase]:
    """Judge whether the bounds that the figures use are the best ones on held-out records."""
    for model in SOUND if sound else MODELS:
        for name in ("audp", "mapa") if sound else ("audp",):
            curve = held_out(results, model, [f"{name}-sound"] if sound else ["audp-0.1", "audp-0.5"])
            line = f"sound-{model}-mnist-{name}" if sound else f"accuracy-{model}-mnist-audp-fair"
            taken = bound_of(line)
            if taken in curve and len(curve) > 1:
                best = max(curve, key=lambda x: curve[x])
                words = f"taken {taken:g}: {percent([curve[taken]])}, best {best:g}: {percent([curve[best]])}"
                label = f"{model.upper()} {name.upper()}" if sound else model.upper()
                yield ClaimCase(label, curve[taken] >= curve[best] - TIE, words)


def seconds_to_target(results: Results, variant: str, engine: str, x: float) -> list[float | None]:
    entries = results.of("stragglers", variant=variant, engine=engine, x=x)
    return [entry.result.seconds_to(TARGET) for entry in entries]


def asynchrony_pays_with_stragglers(results: Results) -> Iterator[ClaimCase]:
    for variant in ("asgd", "mapa"):
        for x in results.xs("stragglers"):
            quick, slow = (seconds_to_target(results, variant, e, x) for e in ("events", "synchronous"))
            if not quick or not slow:
                continue
            a, b = (mean([math.inf if s is None else s for s in times]) for times in (quick, slow))
            if math.isfinite(min(a, b)):
                ratio = f" ({b / a:.2g}×)" if math.isfinite(max(a, b)) else ""
                words = " against ".join(f"{s:.1f} s" if s < math.inf else "never within T" for s in (a, b))
                yield ClaimCase(f"{variant.upper()}, one edge {x:g}× slower,", a < b, words + ratio)
