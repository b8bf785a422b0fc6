"""Claims of the attack's pictures and of the gradient norms."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.reproduce.results import Results, mean
from experiments.reproduce.verdicts import NEAR, Case, Judgement, ahead, by_cases, percent, versus

_BLURRED, _RESTORED = 0.3, 0.5  # mean |r| between an image and its reconstruction
PRINTED, NEEDED = "exponential-norm", "gamma-norm"  # the law as printed, and that of the proof


def likeness(results: Results, panel: str, law: str, epsilon: float) -> float | None:
    """Return |r| between images and reconstructions, mean over releases, at the update where it is largest."""
    values = [
        cell["correlation"]
        for entry in results.of("attack", panel=panel)
        for cell in entry.result.cells or []
        if cell["law"] == law and cell["epsilon"] == epsilon
    ]
    return max(values, default=None)


def attack_is_blurred(results: Results) -> Judgement:
    cases = []
    for panel in results.panels("attack"):
        strong, weak = (likeness(results, panel, PRINTED, epsilon) for epsilon in (0.01, 1.0))
        if strong is None or weak is None:
            continue
        cases.append(Case(f"{results.title(panel)} ε=0.01 blurred", strong < _BLURRED, f"|r| {strong:.2f}"))
        cases.append(Case(f"{results.title(panel)} ε=1 restored", weak > _RESTORED, f"|r| {weak:.2f}"))
    return by_cases(
        cases,
        "The printed law draws the noise's norm from an exponential: a share of the releases has next to no "
        "noise at any ε, and what is left depends on ‖g‖ against ΔS/ε.",
    )


def the_sound_law_hides(results: Results) -> Judgement:
    cases = [
        Case(f"{results.title(panel)} ε=1 blurred", found < _BLURRED, f"|r| {found:.2f}")
        for panel in results.panels("attack")
        if (found := likeness(results, panel, NEEDED, 1.0)) is not None
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
        "which makes up for the clipping.",
    )


def first_bound_does_not_matter_to_mapa(results: Results) -> Judgement:
    finals = {bound: _norm_finals(results, f"mapa-{bound}") for bound in (200, 100, 10)}
    if not all(finals.values()):
        return by_cases([])
    middle = [mean(values) for values in finals.values()]
    numbers = ", ".join(f"{bound}: {percent(values)}" for bound, values in finals.items())
    return by_cases([Case("first bounds", max(middle) - min(middle) <= NEAR, numbers)], _long_first_stages)


def _long_first_stages(failed: Sequence[Case]) -> str:  # noqa: ARG001
    return (
        "The stages with a large ΔS come first and have small γ and T_s; at this T they are not yet outrun."
    )


def mapa_comes_near_audp(results: Results) -> Judgement:
    best = _norm_finals(results, "audp-3")
    cases = [
        Case(f"from {bound}", mean(finals) >= mean(best) - NEAR, versus(finals, best))
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
