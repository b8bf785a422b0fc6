"""Claims of accuracy against ε."""

from __future__ import annotations

import math

from experiments.reproduce.results import Results, mean
from experiments.reproduce.verdicts import (
    LEARNED,
    TIE,
    Case,
    Judgement,
    above,
    ahead,
    by_cases,
    doubt,
    not_behind,
    percent,
    versus,
)


def _pairs(results: Results, a: str, b: str) -> list[tuple[str, float, list[float], list[float]]]:
    """Return (panel, ε, finals of a, finals of b) wherever both were run."""
    found = []
    for panel in results.panels("accuracy"):
        for x in results.xs("accuracy", panel=panel):
            ours = results.finals("accuracy", panel=panel, variant=a, x=x)
            theirs = results.finals("accuracy", panel=panel, variant=b, x=x)
            if ours and theirs:
                found.append((panel, x, ours, theirs))
    return found


def accuracy_rises_with_epsilon(results: Results) -> Judgement:
    cases = []
    for panel in results.panels("accuracy"):
        xs = results.xs("accuracy", panel=panel)
        for variant in ("mapa", "audp"):
            if len(xs) > 1:
                low, high = (
                    results.finals("accuracy", panel=panel, variant=variant, x=x) for x in (xs[0], xs[-1])
                )
                if low and high:
                    label = f"{results.title(panel)} {variant.upper()}"
                    cases.append(Case(label, ahead(high, low), f"{percent(low)} → {percent(high)}"))
    return by_cases(
        cases,
        "MAPA shrinks ΔS until the noise is negligible, so ε matters little to it; "
        "differences within half a percent count as ties.",
    )


def mapa_beats_audp(results: Results) -> Judgement:
    cases = [
        Case(f"{results.title(panel)} ε={x:g}", ahead(a, b), versus(a, b))
        for panel, x, a, b in _pairs(results, "mapa", "audp")
    ]
    return by_cases(cases, "At larger ε AUDP's noise is no longer the limit.")


def mapa_beats_fair_audp(results: Results) -> Judgement:
    cases = [
        Case(f"{results.title(panel)} ε={x:g}", ahead(a, b), versus(a, b))
        for panel, x, a, b in _pairs(results, "mapa", "audp-fair")
    ]
    return by_cases(
        cases,
        "MAPA's lead is over a bound as large as the largest gradient. With a bound chosen for it, AUDP has as "
        "little noise from the first update on, and its γ_t is larger than MAPA's 1/(2PL(τ_max+1)).",
    )


def lead_is_larger_at_small_epsilon(results: Results) -> Judgement:
    cases = []
    for panel in results.panels("accuracy"):
        leads = [
            (x, mean(a) - mean(b), doubt(a, b))
            for p, x, a, b in _pairs(results, "mapa", "audp")
            if p == panel
        ]
        if len(leads) > 1:
            (low, small, off), (high, large, off_too) = leads[0], leads[-1]
            words = f"{100 * small:+.1f} at ε={low:g}, {100 * large:+.1f} at {high:g}"
            larger = above(small - large, TIE, math.hypot(off, off_too))
            cases.append(Case(results.title(panel), False if small <= TIE else larger, words))
    return by_cases(
        cases, "At larger ε a slower schedule may still be far from convergence, and the lead grows with ε."
    )


def lead_is_as_large_as_said(results: Results) -> Judgement:
    cases = []
    for panel, said in (("cnn-mnist", 0.2), ("cnn-usps", 1.0)):
        gains = [mean(a) / mean(b) - 1 for p, _, a, b in _pairs(results, "mapa", "audp") if p == panel]
        if gains:
            words = f"at most {100 * max(gains):+.0f} %, said {100 * said:.0f} %"
            cases.append(Case(results.title(panel), max(gains) >= said, words))
    return by_cases(
        cases, "How large the lead is follows from AUDP's bound and from T, which the paper leaves open."
    )


def mapa_comes_near_asgd(results: Results) -> Judgement:
    cases = []
    for panel in results.panels("accuracy"):
        pairs = [(a, b) for p, _, a, b in _pairs(results, "mapa", "asgd") if p == panel]
        if pairs:
            a, b = pairs[-1]  # the largest ε
            if mean(b) < LEARNED:
                continue
            cases.append(Case(results.title(panel), not_behind(a, b), versus(a, b)))
    return by_cases(
        cases,
        "At K = 5 ASGD's γ is not yet limited by (τ_max+1)², and MAPA's smaller γ needs more updates than T.",
    )


def mapa_beats_asgd_on_lr(results: Results) -> Judgement:
    cases = [
        Case(f"{results.title(panel)} ε={x:g}", ahead(a, b), versus(a, b))
        for panel, x, a, b in _pairs(results, "mapa", "asgd")
        if panel.startswith("lr")
    ]
    return by_cases(
        cases,
        "With constants measured for the problem, ASGD's γ at K = 5 is not smaller than MAPA's; "
        "the paper's R, σ and L for LR are not given.",
    )
