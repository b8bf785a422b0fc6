"""The judge of chaos sees what is doctored: an update doubled, lost, not accounted for, or sent with other bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapa.chaos.verdict import REQUIRED, Applied, Ended, Evidence, verdict

T = 40


def sound() -> Evidence:
    """Two edges in turns, everything in order."""
    applied = [Applied(t, f"edge-{t % 2}", (t + 1) // 2) for t in range(1, T + 1)]
    return Evidence(
        iterations=T,
        updates=T,
        reason="finished",
        applied=applied,
        received={"edge-0": 20, "edge-1": 20},
        released={"edge-0": 21, "edge-1": 20},
        used_up=0,
        verified=[(name, "passed", "") for name in sorted(REQUIRED)] + [("metrics", "not checked", "")],
        newest=T,
        ended=[Ended("cloud", -9, (-9, 0)), Ended("cloud", 0, (0,)), Ended("edge-1", 0, (0,))],
    )


def test_a_sound_run_passes() -> None:
    assert verdict(sound()) == []


@given(st.integers(0, T - 1), st.integers(0, T - 1))
def test_a_gradient_applied_twice_is_seen_wherever_it_is(which: int, where: int) -> None:
    """The times are put right: a cloud that doubles counts on."""
    found = sound()
    order = list(found.applied)
    order.insert(where, order[which])
    doubled = [one._replace(t=t) for t, one in enumerate(order[:T], start=1)]
    if len({(one.edge_id, one.sequence) for one in doubled}) == T:
        return  # the copy fell off the end
    assert any("applied twice" in line for line in verdict(replace(found, applied=doubled)))


@given(st.integers(0, T - 1))
def test_a_lost_update_is_seen_wherever_it_is(which: int) -> None:
    found = sound()
    left = [*found.applied[:which], *found.applied[which + 1 :]]
    lost = [one._replace(t=t) for t, one in enumerate(left, start=1)]
    wrong = verdict(replace(found, applied=lost, iterations=T - 1, updates=T - 1, newest=T - 1))
    last = which >= T - 2  # nothing of its edge follows: by the records it was never released
    assert bool(wrong) != last, wrong
    assert last or any("was lost" in line for line in wrong)


DOCTORED: dict[str, tuple[Callable[[Evidence], Evidence], str]] = {
    "not finished": (lambda e: replace(e, reason="interrupted"), "not reached"),
    "too few updates": (lambda e: replace(e, updates=T - 1), "not reached"),
    "no events": (lambda e: replace(e, applied=[]), "events: 0 updates"),
    "a time twice": (lambda e: replace(e, applied=[*e.applied[:-1], e.applied[0]]), "events:"),
    "sequences fall": (
        lambda e: replace(
            e, applied=[e.applied[2]._replace(t=1), *e.applied[1:2], e.applied[0]._replace(t=3)]
        ),
        "was applied after",
    ),
    "less released than received": (lambda e: replace(e, released={"edge-0": 19, "edge-1": 20}), "edge-0"),
    "less received than applied": (lambda e: replace(e, received={"edge-0": 20, "edge-1": 19}), "edge-1"),
    "no ledger": (lambda e: replace(e, released={"edge-0": 21}), "edge-1: no ledger"),
    "other bytes": (lambda e: replace(e, reworded=[17]), "x_17"),
    "beyond T": (lambda e: replace(e, newest=T + 1), "beyond T"),
    "verify fails": (lambda e: replace(e, verified=[*e.verified, ("model", "failed", "why")]), "model: why"),
    "verify does not check": (
        lambda e: replace(e, verified=[*e.verified[1:], (e.verified[0][0], "not checked", "")]),
        "not checked",
    ),
    "verify is silent": (lambda e: replace(e, verified=e.verified[1:]), "missing"),
    "checked of some edges only": (
        lambda e: replace(e, verified=[*e.verified, ("ledgers", "not checked", "of 1 edges")]),
        "ledgers: not checked",
    ),
    "a crash": (lambda e: replace(e, ended=[Ended("edge-1", -11, (0,), "words")]), "edge-1 ended with -11"),
    "a traceback": (lambda e: replace(e, tracebacks=["cloud.log"]), "cloud.log: a traceback"),
}


@pytest.mark.parametrize("name", DOCTORED)
def test_the_judge_sees_what_is_doctored(name: str) -> None:
    doctor, words = DOCTORED[name]
    wrong = verdict(doctor(sound()))
    assert any(words in line for line in wrong), wrong


def test_a_sequence_that_was_refused_for_good_is_not_lost() -> None:
    found = sound()
    applied = [
        one._replace(sequence=one.sequence + (one.edge_id == "edge-0" and one.sequence > 5))
        for one in found.applied
    ]
    assert any("was lost" in line for line in verdict(replace(found, applied=applied)))
    assert verdict(replace(found, applied=applied, used_up=1)) == []
