"""Claims of iterations to convergence against K."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from experiments.reproduce.catalogue import catalogue
from experiments.reproduce.results import Results, mean
from experiments.reproduce.verdicts import Case, Judgement, Verdict, by_cases


def iterations_to(results: Results, panel: str, variant: str, edges: float, threshold: float) -> float | None:
    """Return the mean over seeds of the updates needed; inf where a seed did not get there; None: not run."""
    entries = results.of("convergence", panel=panel, variant=variant, x=edges)
    if not entries:
        return None
    reached = [entry.result.reached(threshold) for entry in entries]
    return math.inf if any(t is None for t in reached) else mean([float(t) for t in reached if t is not None])


def horizon(results: Results, panel: str) -> int:
    return max((entry.result.t[-1] for entry in results.of("convergence", panel=panel)), default=0)


def _taken(panel: str) -> float:
    return catalogue().thresholds()[panel].taken


def count(value: float, last: int) -> str:
    return f"> {last:,}" if math.isinf(value) else f"{value:,.0f}"


def iterations_rise_with_edges(results: Results) -> Judgement:
    cases = []
    for panel in results.panels("convergence"):
        xs, last = results.xs("convergence", panel=panel), horizon(results, panel)
        for variant in ("mapa", "audp", "asgd"):
            needed = [iterations_to(results, panel, variant, x, _taken(panel)) for x in xs]
            values = [value for value in needed if value is not None]
            if len(values) < 2 or math.isinf(values[0]):
                continue  # it never got there, whatever K
            rising = all(a <= b for a, b in pairwise(values)) and values[0] < values[-1]
            words = " → ".join(count(value, last) for value in values)
            cases.append(Case(f"{results.title(panel)} {variant.upper()}", rising, words))
    return by_cases(cases)


def csgd_needs_fewest(results: Results) -> Judgement:
    cases = []
    for panel in results.panels("convergence"):
        last = horizon(results, panel)
        for x in results.xs("convergence", panel=panel):
            alone = iterations_to(results, panel, "csgd", x, _taken(panel))
            others = [iterations_to(results, panel, v, x, _taken(panel)) for v in ("mapa", "audp", "asgd")]
            least = min((value for value in others if value is not None), default=None)
            if alone is not None and least is not None and not math.isinf(alone):
                words = f"{count(alone, last)} against {count(least, last)}"
                cases.append(Case(f"{results.title(panel)} K={x:g}", alone < least, words))
    return by_cases(cases)


def _faster(results: Results, than: str, edges: Sequence[float], factor: float, why: str) -> Judgement:
    """Judge whether MAPA needs fewer updates everywhere, and by the factor that is claimed.

    A rival that never got there counts with T, so that the factor is a lower bound; where neither did, T was
    too short to tell and the case is left out.
    """
    cases, shown, undecided = [], 0, 0
    for panel in results.panels("convergence"):
        last = horizon(results, panel)
        for x in edges:
            ours = iterations_to(results, panel, "mapa", x, _taken(panel))
            theirs = iterations_to(results, panel, than, x, _taken(panel))
            if ours is None or theirs is None or (math.isinf(ours) and math.isinf(theirs)):
                continue
            ratio = min(theirs, float(last)) / min(ours, float(last))
            sign = ">" if math.isinf(theirs) else "<" if math.isinf(ours) else ""
            words = f"{count(ours, last)} against {count(theirs, last)} ({sign}{ratio:.2g}×)"
            cases.append(Case(f"{results.title(panel)} K={x:g}", ours < theirs, words))
            shown += ratio >= factor
            undecided += ratio < factor and math.isinf(theirs)
    found = by_cases(cases, why)
    if factor <= 1 or found.verdict is Verdict.NOT_RUN:
        return found
    words = f"{found.measured}. At least {factor:g} times: shown in {shown} of {len(cases)}"
    words += f", open in {undecided}, where T ended before the rival got there" if undecided else ""
    verdict = found.verdict
    if verdict is Verdict.REPRODUCED and shown < len(cases):
        verdict = Verdict.PARTLY
    return Judgement(verdict, words, why if verdict is not Verdict.REPRODUCED else "")


def mapa_is_faster_than_audp(results: Results) -> Judgement:
    return _faster(
        results,
        "audp",
        (10, 100),
        10,
        "How much faster depends on AUDP's bound alone, which the paper does not give; here it is as large as the "
        "largest gradient. With a bound chosen for AUDP the lead is gone (the last claim of this figure).",
    )


def mapa_is_faster_than_asgd(results: Results) -> Judgement:
    return _faster(
        results,
        "asgd",
        (100, 1000),
        30,
        "γ of ASGD falls with (τ_max+1)², MAPA's with τ_max+1, so the lead grows with K; "
        "how large it is at K = 1000 takes more updates than T to see.",
    )


def mapa_is_faster_than_fair_audp(results: Results) -> Judgement:
    return _faster(
        results,
        "audp-fair",
        (10, 100),
        1.0,
        "γ_t⁻¹ of AUDP is L(τ_max+1) + √(Δ_b+1)√t: with a small bound Δ_b is small and γ_t above MAPA's.",
    )
