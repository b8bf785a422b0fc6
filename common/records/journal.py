"""events.jsonl: one JSON object a line, the same from simulator and testbed.

Never a gradient, a sample or a norm before noise: a log line is a release too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Protocol

from common.messages import Fact, GradientApplied
from common.quantities import EdgeId
from common.records.tally import Evaluation


def event_name(fact: object) -> str:
    """Return `gradient_applied` for a GradientApplied, and so on."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(fact).__name__).lower()


class Lines(Protocol):
    """Where a journal writes: a text stream, or a file that keeps its lines whole."""

    def write(self, text: str, /) -> object: ...


class Journal:
    """Writes records to a text stream that it does not own."""

    def __init__(self, stream: Lines) -> None:
        self._stream = stream
        self._names: dict[EdgeId, str] = {}

    def fact(self, fact: Fact, time: float | None = None) -> None:
        """Write a fact; `time` is seconds since the run began, virtual in a simulation."""
        if type(fact) is GradientApplied:
            self._stream.write(self._applied(fact, time))
        else:
            fields = asdict(fact)
            if fields.get("device", "") is None:
                del fields["device"]  # a key that came later: only where it says something
            self.write(event_name(fact), fields | fields.pop("parameters", {}), time)

    def evaluated(self, evaluation: Evaluation, time: float | None = None) -> None:
        """Write an evaluation; a value that is not finite is null."""
        fields = {"t": evaluation.updates, "stage": evaluation.stage, **evaluation.named()}
        self.write("evaluated", fields, time)

    def write(self, event: str, fields: Mapping[str, object], time: float | None = None) -> None:
        record: dict[str, object] = {"event": event, **fields}
        if time is not None:
            record["time"] = round(time, 6)
        self._stream.write(json.dumps(record, ensure_ascii=False) + "\n")

    def _applied(self, fact: GradientApplied, time: float | None) -> str:
        """Format the one record of the hot path by hand: a fifth of json.dumps' cost."""
        edge_id = self._names.get(fact.edge_id)
        if edge_id is None:
            edge_id = self._names[fact.edge_id] = json.dumps(fact.edge_id)
        when = "" if time is None else f', "time": {time:.6f}'
        return (
            f'{{"event": "gradient_applied", "edge": {fact.edge}, "edge_id": {edge_id}, '
            f'"sequence": {fact.sequence}, "version": {fact.version}, "t": {fact.t}, '
            f'"staleness": {fact.staleness}, "stage": {fact.stage}, "sensitivity": {fact.sensitivity!r}{when}}}\n'
        )
