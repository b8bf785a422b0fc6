"""Claims of iterations to convergence against K."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from experiments.reproduce.catalogue import catalogue
from experiments.reproduce.results import Results, mean
from experiments.reproduce.verdicts import Case, Judgement, Verdict, by_cases

FAR = 2.0  # "far fewer": at most half
COUNTS = 1.1  # counts of updates nearer than this factor are not told apart


def iterations_to(results: Results, panel: str, variant: str, edges: float, threshold: float) -> float | None:
    """Return the mean over seeds of the updates needed; inf where a seed did not get there; None: not run."""
    entries = results.of("convergence", panel=panel, variant=variant, x=edges)
    if not entries:
        return None
    reached = [entry.result.reached(threshold) for entry in entries]
    return math.inf if any(t is None for t in reached) else mean([float(t) for t in reached if t is not None])


def horizon(results: Results, panel: str) -> int:
    """Return the last update of the panel's longest run."""
    return max((entry.result.t[-1] for entry in results.of("convergence", panel=panel)), default=0)


def _taken(panel: str) -> float:
    return catalogue().thresholds()[panel].taken


def _thresholds(panel: str) -> list[tuple[float, str]]:
    """Return the threshold taken, and the caption's where it is another, with words for it."""
    known = catalogue().thresholds()[panel]
    return [(known.taken, "")] + [(known.paper, f" to {known.paper:g}")] * (known.paper != known.taken)


@dataclass(frozen=True, slots=True)
class Scale:
    """What counts of updates can be: windows of evaluations end at `floor` at the earliest, runs at `last`."""

    floor: float
    last: int

    def words(self, value: float) -> str:
        if math.isinf(value):
            return f"> {self.last:,}"
        return ("≤ " if value <= self.floor else "") + f"{value:,.0f}"


def scale(results: Results, panel: str) -> Scale:
    floors = [entry.result.floor for entry in results.of("convergence", panel=panel)]
    return Scale(min((floor for floor in floors if floor is not None), default=0), horizon(results, panel))


def iterations_rise_with_edges(results: Results) -> Judgement:
    cases = []
    for panel in results.panels("convergence"):
        xs, counted = results.xs("convergence", panel=panel), scale(results, panel)
        for variant in ("mapa", "audp", "asgd"):
            needed = [iterations_to(results, panel, variant, x, _taken(panel)) for x in xs]
            values = [value for value in needed if value is not None]
            if len(values) < 2 or all(map(math.isinf, values)):
                continue  # it never got there, whatever K
            rising = all(a <= b for a, b in pairwise(values)) and values[0] < values[-1]
            words = " → ".join(map(counted.words, values))
            cases.append(Case(f"{results.title(panel)} {variant.upper()}", rising, words))
    return by_cases(cases)


def csgd_needs_fewest(results: Results) -> Judgement:
    cases = []
    for panel in results.panels("convergence"):
        counted = scale(results, panel)
        for x in results.xs("convergence", panel=panel):
            alone = iterations_to(results, panel, "csgd", x, _taken(panel))
            others = [iterations_to(results, panel, v, x, _taken(panel)) for v in ("mapa", "audp", "asgd")]
            least = min((value for value in others if value is not None), default=None)
            if alone is not None and least is not None and not math.isinf(alone):
                words = f"{counted.words(alone)} against {counted.words(least)}"
                fewer = min(least, counted.last) >= FAR * alone
                # what T or a window cut off may yet be far enough away
                open_ = not fewer and (math.isinf(least) or alone <= counted.floor)
                cases.append(Case(f"{results.title(panel)} K={x:g}", None if open_ else fewer, words))
    return by_cases(cases, "Where both are fast, the first evaluations are too coarse to show it.")


def _faster(
    results: Results, than: str, why: str, *, factor: float = 1.0, at: Sequence[float] = ()
) -> Judgement:
    """Judge whether MAPA needs fewer updates at every K, and at K of `at` by the factor that is claimed.

    A rival that never got there counts with T, so that the factor is a lower bound; where neither did, T was
    too short to tell and the case is left out.
    """
    cases = []
    asked = shown = undecided = 0
    for panel in results.panels("convergence"):
        counted = scale(results, panel)
        for x in results.xs("convergence", panel=panel):
            for threshold, to in _thresholds(panel):
                ours, theirs = (
                    iterations_to(results, panel, variant, x, threshold) for variant in ("mapa", than)
                )
                if ours is None or theirs is None or (math.isinf(ours) and math.isinf(theirs)):
                    continue
                ratio = min(theirs, counted.last) / min(ours, counted.last)
                cut = math.isinf(ours) or math.isinf(theirs)
                sign = "" if not cut else ">" if math.isinf(theirs) else "<"
                words = f"{counted.words(ours)} against {counted.words(theirs)} ({sign}{ratio:.2g}×)"
                close = not cut and 1 / COUNTS < ratio < COUNTS
                cases.append(
                    Case(f"{results.title(panel)} K={x:g}{to}", None if close else ours < theirs, words)
                )
                if x in at:
                    asked += 1
                    shown += ratio >= factor
                    undecided += ratio < factor and math.isinf(theirs)
    found = by_cases(cases, why)
    if not asked:
        return found
    where = " and ".join(f"{x:g}" for x in at)
    summary = f"{found.summary}; at least {factor:g} times at K = {where}: shown in {shown} of {asked}"
    summary += f", undecided in {undecided}, where the rival did not converge within T" if undecided else ""
    verdict = found.verdict
    if verdict is Verdict.REPRODUCED and shown < asked:
        verdict = Verdict.PARTLY
    if shown == undecided == 0:
        verdict = Verdict.NOT
    return Judgement(verdict, summary, found.cases, "" if verdict is Verdict.REPRODUCED else why)


def mapa_is_faster_than_audp(results: Results) -> Judgement:
    return _faster(
        results,
        "audp",
        "How much faster depends on AUDP's bound alone, which the paper does not give; here it is as large as the "
        "largest gradient; the last claim of this figure has a bound chosen for AUDP.",
        factor=10,
        at=(10, 100),
    )


def mapa_is_faster_than_asgd(results: Results) -> Judgement:
    return _faster(
        results,
        "asgd",
        "γ of ASGD falls with (τ_max+1)², MAPA's with τ_max+1, so the lead grows with K; "
        "how large it is at K = 1000 takes more updates than T to see.",
        factor=30,
        at=(100, 1000),
    )


def mapa_is_faster_than_fair_audp(results: Results) -> Judgement:
    return _faster(
        results,
        "audp-fair",
        "γ_t⁻¹ of AUDP is L(τ_max+1) + √(Δ_b+1)√t: with a small bound Δ_b is small and γ_t above MAPA's.",
    )
