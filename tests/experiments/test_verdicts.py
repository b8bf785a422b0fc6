"""Verdicts of the paper's claims, from results that were made up."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from experiments.reproduce.catalogue import FigurePoint, Results, catalogue
from experiments.reproduce.claims import (
    TARGET,
    ClaimCase,
    Judgement,
    Verdict,
    ahead,
    alike,
    by_cases,
    claims,
    covered,
    judge_all,
    not_behind,
)
from tests.reproduce_support import ends_at, judged, made_up, points, result_of

pytestmark = pytest.mark.slow  # every claim of the catalogue: seconds

TIMES = list(range(100, 2100, 100))


# -- cases --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("holds", "verdict", "summary"),
    [
        ([True, True], Verdict.REPRODUCED, "holds in 2 of 2"),
        ([True, False], Verdict.PARTLY, "holds in 1 of 2"),
        ([True, None], Verdict.PARTLY, "holds in 1 of 2, undecided in 1"),
        ([False, None], Verdict.NOT, "holds in 0 of 2, undecided in 1"),
        ([None], Verdict.UNDECIDED, "holds in 0 of 1, undecided in 1"),
        ([], Verdict.NOT_RUN, "no run decides it"),
    ],
)
def test_a_verdict_counts_what_held_what_failed_and_what_cannot_be_told(
    holds: list[bool | None], verdict: Verdict, summary: str
) -> None:
    found = by_cases([ClaimCase("here", one, "1 : 2") for one in holds])
    assert (found.verdict, found.summary) == (verdict, summary)
    assert found.explain == (False in holds)
    assert (found.measured.count("✗"), found.measured.count("?")) == (holds.count(False), holds.count(None))


SHARP, BLUNT = [0.900, 0.901, 0.899], [0.90, 0.93, 0.87]


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (ahead([0.9], [0.88]), True),
        (ahead([0.9], [0.89]), None),  # one seed says nothing of a point
        (ahead([0.9], [0.91]), False),
        (ahead(SHARP, [0.89, 0.891, 0.889]), True),
        (ahead(BLUNT, [0.89, 0.92, 0.86]), None),
        (not_behind(SHARP, [0.91, 0.911, 0.909]), True),
        (not_behind(SHARP, [0.93, 0.931, 0.929]), False),
        (alike([SHARP, [0.95, 0.951, 0.949]], 0.03), False),
        (alike([[0.9], [0.87]], 0.03), None),
    ],
)
def test_seeds_decide_how_near_is_too_near(told: bool | None, expected: bool | None) -> None:
    assert told is expected


def test_a_claim_of_which_a_part_was_run_is_not_reproduced() -> None:
    (claim,) = (claim for claim in claims() if claim.name == "testbed: beats AUDP")
    two = [ClaimCase(f"K={k}", True, "90.0 : 80.0 %") for k in (5, 20)]
    found = covered(claim, by_cases(two))
    assert found.verdict is Verdict.PARTLY
    assert found.summary == "holds in 2 of 2 (the claim covers 4)"
    assert covered(claim, by_cases([*two, *two])).verdict is Verdict.REPRODUCED
    assert covered(claim, by_cases([ClaimCase("K=5", False, "")])).verdict is Verdict.NOT


def test_a_claim_speaks_of_as_many_cases_as_the_full_size_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made-up results of every point at full size: no claim of the paper asks for more than there can be."""
    here = [SimpleNamespace(name=name, present=True) for name in ("mnist", "usps")]
    monkeypatch.setattr("experiments.reproduce.catalogue.describe", lambda _: here)
    experiments = [e.name for e in catalogue().experiment if e.name not in ("attack", "heldout")]
    some = points("full", *experiments, most_seeds=1)
    t, falling = list(range(1000, 41000, 1000)), [2.0] * 20 + [0.0] * 20
    curve = {"t": t, "accuracy": [0.9] * 40, "loss": falling, "seconds": list(map(float, t))}
    found = {p.key: result_of(p, **curve) for p in some}
    for one in judge_all(Results(some, found), experiments):
        assert len(one.judgement.cases) >= max(1, one.claim.cases) or one.claim.name == "norms fall", (
            one.claim
        )


# -- accuracy -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mapa", "audp", "verdict"),
    [(0.9, 0.8, Verdict.REPRODUCED), (0.8, 0.9, Verdict.NOT), (0.8, 0.799, Verdict.UNDECIDED)],
)
def test_that_mapa_beats_audp_is_judged_by_the_numbers(mapa: float, audp: float, verdict: Verdict) -> None:
    results = made_up(lambda p: {"mapa": mapa, "audp": audp}.get(p.variant), points("tiny", "accuracy"))
    found = judged("beats AUDP", results)
    assert found.verdict is verdict
    assert f"{100 * mapa:.1f} : {100 * audp:.1f} %" in found.measured
    assert found.explain == (verdict is Verdict.NOT)


def test_a_lead_that_is_none_is_not_larger_at_small_epsilon() -> None:
    some = points("tiny", "accuracy")

    def behind_by(small: float, large: float) -> Verdict:
        found = {}
        for p in some:
            if p.panel == "lr-mnist" and p.variant in ("mapa", "audp"):
                lag = 0.0 if p.variant == "audp" else small if p.x == 0.1 else large
                found[p.key] = ends_at(0.9 - lag, p)
        return judged("more at small ε", Results(some, found)).verdict

    assert behind_by(-0.3, 0.0) is Verdict.REPRODUCED
    assert behind_by(0.05, 0.2) is Verdict.NOT


def test_nothing_run_is_nothing_judged() -> None:
    names = [experiment.name for experiment in catalogue().experiment]
    verdicts = [one.judgement.verdict for one in judge_all(Results(points("tiny", "norms"), {}), names)]
    assert len(verdicts) == len(claims())
    assert set(verdicts) == {Verdict.NOT_RUN}


def test_what_nobody_claimed_holds_or_does_not() -> None:
    some = points("tiny", "bounds")
    for worst, words in ((0.1, "holds"), (0.8, "does not hold")):
        found = {}
        for p in some:
            large = p.x == max(q.x or 0 for q in some if q.panel == p.panel)
            last = worst if p.variant == "audp" and large else 0.5 if large and worst == 0.8 else 0.9
            found[p.key] = ends_at(last, p)
        by_name = {one.claim.name: one.words for one in judge_all(Results(some, found), ["bounds"])}
        assert by_name["no tuning"] == words


def test_a_single_bound_is_no_choice_of_bounds() -> None:
    some = points("tiny", "bounds")
    large = max(p.x or 0 for p in some)
    found = {p.key: ends_at(0.5 if p.variant == "audp" else 0.9, p) for p in some if p.x == large}
    assert judged("a bound for AUDP", Results(some, found)).verdict is Verdict.NOT_RUN


# -- the attack ---------------------------------------------------------------------------------------


def test_some_images_are_restored_where_one_is_and_all_blurred_where_none_is() -> None:
    some = points("tiny", "attack")

    def seen(weak: list[float], strong: list[float]) -> Judgement:
        law = {"law": "exponential-norm"}
        cells = [{**law, "epsilon": e, "correlations": r} for e, r in ((1.0, weak), (0.01, strong))]
        return judged("blurred", Results(some, {p.key: result_of(p, cells=cells) for p in some}))

    assert seen([0.9, 0.1, 0.1], [0.1, 0.0, 0.1]).verdict is Verdict.REPRODUCED
    assert seen([0.4, 0.4, 0.4], [0.1, 0.0, 0.1]).verdict is Verdict.PARTLY
    found = seen([0.9, 0.1, 0.1], [0.6, 0.0, 0.1])
    assert found.verdict is Verdict.PARTLY
    assert "1 of 3 restored, largest |r| 0.60 ✗" in found.measured


# -- convergence --------------------------------------------------------------------------------------


def converging(reached: Callable[[FigurePoint], int | None], panel: str = "lr-mnist") -> Results:
    """Return results whose loss falls to 0 so that a window of five evaluations ends there."""
    some = points("quick", "convergence")
    found = {}
    for p in some:
        if p.panel == panel:
            at = reached(p)
            high = len(TIMES) if at is None else TIMES.index(at) - 4
            loss = [3.0] * high + [0.0] * (len(TIMES) - high)
            found[p.key] = result_of(p, t=TIMES, accuracy=[0.5] * len(TIMES), loss=loss)
    return Results(some, found)


def test_how_much_faster_is_a_lower_bound_where_the_rival_never_got_there() -> None:
    found = judged("faster than ASGD", converging(lambda p: 700 if p.variant == "mapa" else None))
    assert found.verdict is Verdict.PARTLY  # faster, but 2,000 / 700 is below 30
    assert "700 against > 2,000 (>2.9×)" in found.measured
    assert "shown in 0 of 2, undecided in 2" in found.summary


def test_a_factor_that_is_nowhere_near_is_not_reproduced() -> None:
    found = judged("faster than AUDP", converging(lambda p: 1000 if p.variant == "mapa" else 1200))
    assert all(case.holds for case in found.cases)
    assert found.verdict is Verdict.NOT
    assert found.explain


@pytest.mark.parametrize(
    ("claim", "mapa", "rival", "holds"),
    [
        ("faster than AUDP", lambda x: 2000 if x == 1000 else 600, 1500, [True, True, False]),
        ("faster than fair AUDP", lambda x: 1000, 1000, [None] * 3),  # noqa: ARG005 - not told apart
    ],
)
def test_every_number_of_edges_counts_and_near_counts_are_not_told_apart(
    claim: str, mapa: Callable[[float], int], rival: int, holds: list[bool | None]
) -> None:
    found = judged(claim, converging(lambda p: mapa(p.x or 0) if p.variant == "mapa" else rival))
    assert [case.holds for case in found.cases] == holds


def test_a_count_at_the_first_window_is_an_upper_bound() -> None:
    found = judged("CSGD needs fewest", converging(lambda p: 500 if p.variant == "csgd" else 700))
    assert {case.holds for case in found.cases} == {None}
    assert "≤ 500 against 700" in found.measured
    slow = judged("CSGD needs fewest", converging(lambda p: 600 if p.variant == "csgd" else 700))
    assert slow.verdict is Verdict.NOT


def test_a_line_that_converges_only_with_more_edges_contradicts() -> None:
    found = judged("K costs iterations", converging(lambda p: None if p.x == 10 else 900))
    assert found.verdict is Verdict.NOT


def test_the_caption_s_threshold_is_judged_where_it_is_reached() -> None:
    found = judged(
        "faster than AUDP", converging(lambda p: 700 if p.variant == "mapa" else 1500, panel="lr-usps")
    )
    labels = [case.label for case in found.cases]
    assert sum("to 0.2" in label for label in labels) == sum("to 0.2" not in label for label in labels) > 0


# -- the testbed, and stragglers ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("claim", "size", "experiment", "mapa", "verdict"),
    [
        ("robust", "tiny", "sensitivity", 0.1, Verdict.NOT_RUN),  # nothing learned is not called robust
        ("robust", "tiny", "sensitivity", 0.9, Verdict.REPRODUCED),
        ("testbed: above ASGD", "quick", "testbed", 0.2, Verdict.UNDECIDED),  # both guess
        ("testbed: above ASGD", "quick", "testbed", 0.8, Verdict.REPRODUCED),
    ],
)
def test_models_that_learned_nothing_decide_nothing(
    claim: str, size: str, experiment: str, mapa: float, verdict: Verdict
) -> None:
    results = made_up(lambda p: {"mapa": mapa, "asgd": 0.1}.get(p.variant), points(size, experiment))
    assert judged(claim, results).verdict is verdict


def test_a_synchronous_twin_that_never_gets_there_is_slower() -> None:
    some = points("tiny", "stragglers")
    last = {"events": TARGET, "synchronous": TARGET - 0.1}
    found = {p.key: result_of(p, accuracy=[last[p.engine]], seconds=[3.0]) for p in some}
    judgement = judged("stragglers", Results(some, found))
    assert judgement.verdict is Verdict.REPRODUCED
    assert "3.0 s against never within T" in judgement.measured
