"""What a run amounts to: one count of its facts and of its records, and the recorder that writes both."""

from __future__ import annotations

import io
import json
import math
from collections import Counter
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import RecordsError
from common.messages import EdgeGone, EdgeJoined, Fact, GradientApplied, GradientRefused, StageOpened
from common.metrics import ACCURACY, CLASSIFICATION, LOSS
from common.quantities import EdgeId
from common.records.recorder import Journal, Recorder
from common.records.tally import Evaluation, Tally, check_record, staleness_summary


def joined(edge: int) -> EdgeJoined:
    return EdgeJoined(edge, EdgeId(f"edge-{edge}"), 1, "gaussian", None, 1.0, False)


def applied(edge: int, sequence: int, t: int, staleness: int) -> GradientApplied:
    return GradientApplied(edge, EdgeId(f"edge-{edge}"), sequence, t - staleness, t, staleness, 1, 0.5)


def counted(*facts: Fact, from_records: bool = False) -> dict[str, Any]:
    """Return the summary of facts, or of the lines that a journal writes of them."""
    tally, stream = Tally(), io.StringIO()
    for fact in facts:
        Journal(stream).fact(fact, 1.5)
        if not from_records:
            tally.observe(fact)
    for record in lines(stream) if from_records else ():
        check_record(record)
        tally.take(record)
    return tally.summary()


@pytest.mark.parametrize("from_records", [False, True])
def test_a_run_is_counted_edge_by_edge_from_facts_as_from_records(from_records: bool) -> None:
    summary = counted(
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
        EdgeGone(0, EdgeId("edge-0"), 4, "lost"),
        joined(0),
        from_records=from_records,
    )
    assert summary["updates"] == 3
    assert summary["refused"] == {"duplicate": 2, "stranger": 1}
    assert [stage["stage"] for stage in summary["stages"]] == [1]
    assert summary["staleness"] == {"mean": 2 / 3, "p50": 0, "p90": 2, "p99": 2, "max": 2}
    zero, one = summary["edges"]
    assert (zero["edge"], zero["applied"], zero["last_sequence"], zero["joins"]) == (0, 1, 1, 2)
    assert (zero["staleness_mean"], zero["staleness_max"], zero["gone"]) == (2, 2, "")
    assert (one["edge"], one["applied"], one["last_sequence"], one["gone"]) == (1, 2, 2, "lost")


def test_records_out_of_order_tell_of_no_fewer_releases() -> None:
    summary = counted(joined(0), applied(0, 5, 1, 0), applied(0, 2, 2, 0), from_records=True)
    assert summary["edges"][0]["last_sequence"] == 5


def test_a_shard_that_was_dealt_anew_counts_for_whom_it_was_dealt_to() -> None:
    a, b = EdgeId("a"), EdgeId("b")
    summary = counted(
        EdgeJoined(0, a, 1, "gaussian", None, 1.0, False),
        EdgeGone(0, a, 1, "lost"),
        EdgeJoined(3, a, 1, "gaussian", None, 1.0, True),  # its ledger is of shard 3
        EdgeJoined(0, b, 1, "gaussian", None, 1.0, False),
        GradientApplied(0, b, 1, 1, 1, 0, 1, 0.5),
        GradientApplied(3, a, 1, 1, 2, 1, 1, 0.5),
        EdgeJoined(0, b, 3, "gaussian", None, 1.0, True),
    )
    rows = [(row["edge"], row["edge_id"], row["applied"], row["joins"]) for row in summary["edges"]]
    assert rows == [(0, "b", 1, 2), (3, "a", 1, 1)]


def test_a_shard_that_no_edge_took_after_its_edge_moved_is_no_row() -> None:
    moved = (
        EdgeJoined(0, EdgeId("a"), 1, "gaussian", None, 1.0, False),
        EdgeJoined(3, EdgeId("a"), 1, "gaussian", None, 1.0, True),
    )
    taken = EdgeJoined(3, EdgeId("b"), 1, "gaussian", None, 1.0, False)
    assert [(row["edge"], row["edge_id"]) for row in counted(*moved)["edges"]] == [(3, "a")]
    assert [(row["edge"], row["edge_id"]) for row in counted(*moved, taken)["edges"]] == [(3, "b")]


@pytest.mark.parametrize(
    "record",
    [
        {"t": 1},
        {"event": "gradient_applied", "edge": 0, "t": True, "staleness": 0, "sequence": 1},
        {"event": "gradient_applied", "edge": 0, "t": 1, "staleness": -1, "sequence": 1},
        {"event": "gradient_applied", "edge": 2**70, "t": 1, "staleness": 0, "sequence": 1},
        {"event": "edge_joined", "edge": 0, "edge_id": 5},
        {"event": "evaluated", "t": 1.5},
        {"event": "halted", "time": "soon"},
    ],
)
def test_a_record_that_cannot_be_counted_is_named(record: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        check_record(record)


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


EVALUATION = Evaluation(3, 1, dict.fromkeys(CLASSIFICATION, 0.5))


class FullDisk:
    """A file that takes so many lines."""

    def __init__(self, lines: int) -> None:
        self.left = lines

    def write(self, text: str, /) -> object:
        if not self.left:
            raise RecordsError("events.jsonl: cannot be written: No space left on device")
        self.left -= 1
        return len(text)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


@given(st.lists(st.lists(st.integers(0, 5), max_size=4), max_size=6))
def test_counting_many_updates_at_once_gives_the_tally_of_their_facts(blocks: list[list[int]]) -> None:
    one, two = Recorder(), Recorder()
    for k in range(6):
        one.fact(joined(k))
        two.fact(joined(k))
    t = 1
    for n, block in enumerate(blocks, 1):
        one.counted(1, n, t, block)
        for i, staleness in enumerate(block):
            two.fact(applied(1 + i, n, t + i, staleness))
        t += len(block)
    assert one.tally.summary() == two.tally.summary()


def test_what_a_hot_path_kept_is_written_before_what_follows_and_at_its_own_time() -> None:
    stream = io.StringIO()
    records = Recorder(Journal(stream), began=100.0)
    records.facts.append((101.0, joined(0)))
    records.facts.append((102.5, applied(0, 1, 1, 0)))
    assert not records.is_evaluated(3)
    records.evaluated(EVALUATION, 103.0)
    records.halted(3, "finished", 104.0)
    assert [(line["event"], line["time"]) for line in lines(stream)] == [
        ("edge_joined", 1.0),
        ("gradient_applied", 2.5),
        ("evaluated", 3.0),
        ("halted", 4.0),
    ]
    assert records.seconds == [3.0]
    assert records.is_evaluated(3)


def test_an_engine_without_a_clock_writes_no_times() -> None:
    stream = io.StringIO()
    records = Recorder(Journal(stream))
    records.fact(joined(0))
    records.evaluated(EVALUATION)
    records.diagnosed(0, 1, 2.0)
    records.halted(3, "finished")
    assert all("time" not in line for line in lines(stream))
    assert records.seconds == []


def test_a_simulation_ends_where_its_journal_cannot_be_written() -> None:
    records = Recorder(Journal(FullDisk(1)))
    records.fact(joined(0))
    with pytest.raises(RecordsError, match="No space left"):
        records.evaluated(EVALUATION)


def test_a_cloud_goes_on_with_its_tally_and_keeps_why() -> None:
    records = Recorder(Journal(FullDisk(1)), goes_on=True)
    records.fact(joined(0))
    records.fact(joined(1))
    records.evaluated(EVALUATION)
    records.halted(3, "failed")
    assert records.journal is None
    assert "No space left" in str(records.failure)
    assert len(records.tally.edges) == 2
    assert records.is_evaluated(3)


def test_refusals_that_anybody_can_cause_get_a_bounded_number_of_lines() -> None:
    stream = io.StringIO()
    records = Recorder(Journal(stream))
    for n in range(250):
        records.fact(GradientRefused(EdgeId("edge-0"), n, 1, "duplicate"))
        records.fact(GradientRefused(EdgeId(f"stranger-{n}"), n, 1, "stranger"))
        records.fact(GradientRefused(EdgeId(f"late-{n}"), n, 1, "after-halt"))
    assert len(lines(stream)) == 200
    assert records.tally.refused == {"duplicate": 250, "stranger": 250, "after-halt": 250}
