"""What a run amounts to, counted from its facts."""

from __future__ import annotations

import json
import math
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.messages import EdgeGone, EdgeJoined, GradientApplied, GradientRefused, StageOpened
from common.metrics import ACCURACY, LOSS
from common.quantities import EdgeId
from common.records.tally import Evaluation, Tally, staleness_summary


def joined(edge: int) -> EdgeJoined:
    return EdgeJoined(edge, EdgeId(f"edge-{edge}"), 1, "gaussian", None, 1.0, False)


def applied(edge: int, sequence: int, t: int, staleness: int) -> GradientApplied:
    return GradientApplied(edge, EdgeId(f"edge-{edge}"), sequence, t - staleness, t, staleness, 1, 0.5)


def test_a_run_is_counted_edge_by_edge() -> None:
    tally = Tally()
    for fact in [
        joined(0),
        joined(1),
        StageOpened(1, 1, 0.5, 2.0, 1.0, 0.01, 30, 5, False),
        applied(1, 1, 1, 0),
        applied(1, 2, 2, 0),
        applied(0, 1, 3, 2),
        GradientRefused(EdgeId("edge-0"), 1, 4, "duplicate"),
        GradientRefused(EdgeId("edge-0"), 1, 4, "duplicate"),
        GradientRefused(EdgeId("x"), 1, 4, "stranger"),
        EdgeGone(1, EdgeId("edge-1"), 4, "lost"),
        joined(0),
    ]:
        tally.observe(fact)
    summary = tally.summary()
    assert summary["updates"] == 3
    assert summary["refused"] == {"duplicate": 2, "stranger": 1}
    assert [stage["stage"] for stage in summary["stages"]] == [1]
    assert summary["staleness"] == {"mean": 2 / 3, "p50": 0, "p90": 2, "p99": 2, "max": 2}
    zero, one = summary["edges"]
    assert (zero["edge"], zero["applied"], zero["last_sequence"], zero["joins"]) == (0, 1, 1, 2)
    assert (zero["staleness_mean"], zero["staleness_max"], zero["gone"]) == (2, 2, "")
    assert (one["edge"], one["applied"], one["last_sequence"], one["gone"]) == (1, 2, 2, "lost")


def test_an_edge_that_returned_is_no_longer_gone() -> None:
    tally = Tally()
    for fact in (joined(0), EdgeGone(0, EdgeId("edge-0"), 1, "lost"), joined(0)):
        tally.observe(fact)
    (edge,) = tally.summary()["edges"]
    assert (edge["gone"], edge["joins"]) == ("", 2)


def test_a_shard_that_was_dealt_anew_counts_for_whom_it_was_dealt_to() -> None:
    tally = Tally()
    a, b = EdgeId("a"), EdgeId("b")
    for fact in (
        EdgeJoined(0, a, 1, "gaussian", None, 1.0, False),
        EdgeGone(0, a, 1, "lost"),
        EdgeJoined(3, a, 1, "gaussian", None, 1.0, True),  # its ledger is of shard 3
        EdgeJoined(0, b, 1, "gaussian", None, 1.0, False),
        GradientApplied(0, b, 1, 1, 1, 0, 1, 0.5),
        GradientApplied(3, a, 1, 1, 2, 1, 1, 0.5),
        EdgeJoined(0, b, 3, "gaussian", None, 1.0, True),
    ):
        tally.observe(fact)
    rows = [(row["edge"], row["edge_id"], row["applied"], row["joins"]) for row in tally.summary()["edges"]]
    assert rows == [(0, "b", 1, 2), (3, "a", 1, 1)]


def test_a_shard_that_nobody_took_after_its_edge_moved_is_no_row() -> None:
    tally = Tally()
    for fact in (
        EdgeJoined(0, EdgeId("a"), 1, "gaussian", None, 1.0, False),
        EdgeJoined(3, EdgeId("a"), 1, "gaussian", None, 1.0, True),
    ):
        tally.observe(fact)
    assert [(row["edge"], row["edge_id"]) for row in tally.summary()["edges"]] == [(3, "a")]
    tally.observe(EdgeJoined(3, EdgeId("b"), 1, "gaussian", None, 1.0, False))
    assert [(row["edge"], row["edge_id"]) for row in tally.summary()["edges"]] == [(3, "b")]


def test_the_best_accuracy_is_the_first_largest_one() -> None:
    tally = Tally()
    for updates, accuracy in ((10, 0.5), (20, 0.9), (30, 0.9), (40, 0.7)):
        tally.evaluated(Evaluation(updates, 1, {ACCURACY: accuracy, LOSS: 0.1}))
    summary = tally.summary()
    assert (summary["final_accuracy"], summary["best_accuracy"], summary["best_accuracy_at"]) == (
        0.7,
        0.9,
        20,
    )


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_no_number_is_null_in_json(loss: float) -> None:
    tally = Tally()
    tally.evaluated(Evaluation(10, 1, {ACCURACY: 0.1, LOSS: loss}))
    text = json.dumps(tally.summary(), allow_nan=False)
    assert json.loads(text)["final_loss"] is None
    assert json.loads(text)["evaluations"][0]["loss"] is None


def test_a_run_without_updates_has_a_summary_all_the_same() -> None:
    summary = Tally().summary()
    assert summary["updates"] == 0
    assert summary["final_accuracy"] is None
    assert set(summary["staleness"].values()) == {None}


@given(st.lists(st.integers(0, 20), min_size=1, max_size=300))
def test_a_quantile_is_the_smallest_staleness_that_reaches_its_share(values: list[int]) -> None:
    summary = staleness_summary(Counter(values))
    assert summary["max"] == max(values)
    assert summary["mean"] == pytest.approx(sum(values) / len(values))
    for name, share in (("p50", Fraction(50, 100)), ("p90", Fraction(90, 100)), ("p99", Fraction(99, 100))):
        reached = [v for v in sorted(values) if Fraction(sum(w <= v for w in values), len(values)) >= share]
        assert summary[name] == reached[0]
