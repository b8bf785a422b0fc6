"""Claims of the attack's pictures and of the gradient norms."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.reproduce.results import Results, mean
from experiments.reproduce.verdicts import (
    NEAR,
    Case,
    Judgement,
    ahead,
    alike,
    by_cases,
    not_behind,
    percent,
    versus,
)

RESTORED = 0.5  # |r| between an image and its reconstruction from which on one recognizes it
PRINTED, NEEDED = "exponential-norm", "gamma-norm"  # the law as printed, and that of the proof


def likenesses(results: Results, panel: str, law: str, epsilon: float) -> list[float]:
    """Return |r| between image and reconstruction, of each release at each update."""
    return [
        r
        for entry in results.of("attack", panel=panel)
        for cell in entry.result.cells or []
        if cell["law"] == law and cell["epsilon"] == epsilon
        for r in cell["correlations"]
    ]


def _seen(values: Sequence[float]) -> str:
    restored = sum(r > RESTORED for r in values)
    return f"{restored} of {len(values)} restored, largest |r| {max(values):.2f}"


def attack_is_blurred(results: Results) -> Judgement:
    cases = []
    for panel in results.panels("attack"):
        strong, weak = (likenesses(results, panel, PRINTED, epsilon) for epsilon in (0.01, 1.0))
        if not strong or not weak:
            continue
        title = results.title(panel)
        cases.append(Case(f"{title} ε=0.01 all blurred:", max(strong) <= RESTORED, _seen(strong)))
        cases.append(Case(f"{title} ε=1 some restored:", max(weak) > RESTORED, _seen(weak)))
    return by_cases(
        cases,
        "The printed law draws the noise's norm from an exponential: a share of the releases has almost no "
        "noise at any ε, and what is left depends on ‖g‖ against ΔS/ε.",
    )


def the_sound_law_hides(results: Results) -> Judgement:
    cases = [
        Case(f"{results.title(panel)} ε=1 all blurred:", max(found) <= RESTORED, _seen(found))
        for panel in results.panels("attack")
        if (found := likenesses(results, panel, NEEDED, 1.0))
    ]
    return by_cases(cases)


def _norm_finals(results: Results, variant: str) -> list[float]:
    return results.finals("norms", variant=variant)


def bounds_matter_to_audp(results: Results) -> Judgement:
    good = _norm_finals(results, "audp-3")
    cases = [
        Case(f"bound {other} below 3", ahead(good, finals), versus(finals, good))
        for other in ("15", "0.2")
        if good and (finals := _norm_finals(results, f"audp-{other}"))
    ]
    return by_cases(
        cases,
        "With the learning rate of the parameter table a low bound also means little noise and a larger γ, "
        "which compensates for the clipping.",
    )


def first_bound_does_not_matter_to_mapa(results: Results) -> Judgement:
    finals = {bound: _norm_finals(results, f"mapa-{bound}") for bound in (200, 100, 10)}
    if not all(finals.values()):
        return by_cases([])
    numbers = ", ".join(f"{bound}: {percent(values)}" for bound, values in finals.items())
    return by_cases([Case("first bounds", alike(list(finals.values()), NEAR), numbers)], _long_first_stages)


def _long_first_stages(failed: Sequence[Case]) -> str:  # noqa: ARG001
    return "The stages with a large ΔS come first and have small γ and T_s; at this T they still matter."


def mapa_comes_near_audp(results: Results) -> Judgement:
    best = _norm_finals(results, "audp-3")
    cases = [
        Case(f"from {bound}", not_behind(finals, best), versus(finals, best))
        for bound in (200, 100, 10)
        if best and (finals := _norm_finals(results, f"mapa-{bound}"))
    ]
    return by_cases(cases, _long_first_stages)


def gradient_norms_fall(results: Results) -> Judgement:
    cases = []
    for entry in results.of("norms", variant="asgd"):
        norms = (entry.result.norms or {}).get("mean", [])
        tenth = max(1, len(norms) // 10)
        if norms:
            first, last = mean(norms[:tenth]), mean(norms[-tenth:])
            cases.append(Case(f"seed {entry.point.seed}", last < first, f"{first:.2f} → {last:.2f}"))
    return by_cases(cases)
