"""events.jsonl: one JSON object a line, with the keys that records are read by."""

from __future__ import annotations

import io
import json
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.messages import EdgeGone, EdgeJoined, Fact, GradientApplied, GradientRefused, StageOpened
from common.quantities import EdgeId
from common.records.events import Journal, event_name

FACTS: list[Fact] = [
    EdgeJoined(0, EdgeId("a"), 1, "gaussian", None, 2.0, False),
    EdgeJoined(1, EdgeId("b"), 1, "own.noise:Law", None, None, False, {"scale": 0.5}),
    EdgeJoined(2, EdgeId("c"), 1, "gaussian", None, 2.0, True, device="pi4"),
    StageOpened(1, 1, 0.5, 2.0, 1.0, 0.01, 30, 5, False),
    GradientApplied(0, EdgeId("a"), 1, 1, 1, 0, 1, 0.5),
    GradientRefused(EdgeId("b"), 3, 2, "stranger"),
    EdgeGone(0, EdgeId("a"), 2, "lost"),
]
floats = st.floats(allow_nan=False, allow_infinity=False)


def written(fact: Fact, time: float | None = None) -> str:
    stream = io.StringIO()
    Journal(stream).fact(fact, time)
    return stream.getvalue()


@pytest.mark.parametrize("fact", FACTS, ids=event_name)
@pytest.mark.parametrize("time", [None, 0.0, 12.3456789])
def test_a_record_is_the_facts_name_and_its_fields(fact: Fact, time: float | None) -> None:
    line = written(fact, time)
    assert line.endswith("\n")
    assert line.count("\n") == 1
    record = json.loads(line)
    fields = asdict(fact)
    wanted = {"event": event_name(fact), **fields, **fields.get("parameters", {})}
    wanted.pop("parameters", None)  # a law's other parameters stand beside the other keys
    if wanted.get("device", "") is None:  # a key that came later
        del wanted["device"]
    if time is not None:
        wanted["time"] = round(time, 6)
    assert record == wanted
    assert list(record) == list(wanted)  # the order too: records are compared byte by byte


def test_names_of_events() -> None:
    assert [event_name(fact) for fact in FACTS] == [
        "edge_joined",
        "edge_joined",
        "edge_joined",
        "stage_opened",
        "gradient_applied",
        "gradient_refused",
        "edge_gone",
    ]


@given(st.text(), st.integers(0), st.integers(1), floats, st.none() | st.floats(0, 1e9))
def test_the_quick_record_is_what_json_itself_would_write(
    edge_id: str, edge: int, sequence: int, sensitivity: float, time: float | None
) -> None:
    fact = GradientApplied(edge, EdgeId(edge_id), sequence, 1, sequence, sequence - 1, 2, sensitivity)
    line = written(fact, time)
    assert "\n" not in line[:-1]
    record = json.loads(line)
    if time is not None:
        assert record.pop("time") == pytest.approx(time, abs=1e-6)
    assert record == {"event": "gradient_applied", **asdict(fact)}


def test_nothing_that_is_not_a_number_gets_a_gradient_into_a_record() -> None:
    """No fact has a field that could hold a vector."""
    for fact in FACTS:
        fields = asdict(fact)
        for value in (*fields.pop("parameters", {}).values(), *fields.values()):
            assert value is None or isinstance(value, int | float | str)


def test_any_other_event_is_written_with_its_fields_in_order() -> None:
    stream = io.StringIO()
    journal = Journal(stream)
    journal.write("halted", {"t": 3, "reason": "finished"})
    journal.write("evaluated", {"t": 3, "loss": None, "note": "ΔS"}, time=1.5)
    assert stream.getvalue() == (
        '{"event": "halted", "t": 3, "reason": "finished"}\n'
        '{"event": "evaluated", "t": 3, "loss": null, "note": "ΔS", "time": 1.5}\n'
    )
