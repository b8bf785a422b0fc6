"""One recorder for the cloud and for every engine: what it counts, writes, and does where it cannot write."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import RecordsError
from common.messages import EdgeJoined, GradientApplied, GradientRefused
from common.metrics import CLASSIFICATION
from common.quantities import EdgeId
from common.records.events import Journal
from common.records.recorder import Recorder
from common.records.tally import Evaluation

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


def joined(k: int) -> EdgeJoined:
    return EdgeJoined(k, EdgeId(f"edge-{k}"), 1, "none", None, None, False)


def applied(k: int, n: int, t: int, staleness: int) -> GradientApplied:
    return GradientApplied(k, EdgeId(f"edge-{k}"), n, t - staleness, t, staleness, 1, 0.5)


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
