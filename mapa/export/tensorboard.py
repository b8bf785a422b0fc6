"""TensorBoard's event files. The one place that knows tensorboard; TensorFlow is not needed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from common.errors import ConfigurationError
from common.records.reader import EventTail, JsonFile, read_manifest
from mapa.export.tables import CurvePoint, Curves, Parameter, parameters_of, started
from mapa.runs import statement_of

try:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams import summary_v2 as hparams
    from tensorboard.plugins.text import metadata as text
    from tensorboard.summary.writer.event_file_writer import EventFileWriter
    from tensorboard.util.tensor_util import make_tensor_proto
except ImportError as error:
    raise ConfigurationError(
        "--to tensorboard: tensorboard is not installed: pip install 'mapa-testbed[tensorboard]'"
    ) from error


class EventFiles(AbstractContextManager["EventFiles"]):
    """One run of TensorBoard: a folder with an event file. Values are float32, as its scalars are."""

    def __init__(self, folder: Path, began: float) -> None:
        self._began = began  # Unix time of the first update, about
        self._writer = EventFileWriter(str(folder))
        self.points = 0

    def __exit__(self, *_: object) -> None:
        self._writer.close()

    def add(self, points: Iterable[CurvePoint]) -> None:
        for point in points:
            value = Summary.Value(tag=point.curve, simple_value=point.value)
            self._add(Summary(value=[value]), point.t, point.seconds)
            self.points += 1

    def parameters(self, name: str, values: Mapping[str, Parameter]) -> None:
        """Write a scenario, as a table to read and as TensorBoard's hyper-parameters."""
        rows = [f"| {key} | {_plain(str(value))} |" for key, value in values.items()]
        self._text("scenario", "\n".join(["| key | value |", "|---|---|", *rows]))
        self._add(hparams.hparams_pb(dict(values), trial_id=name), 0, None)

    def statement(self, words: Iterable[str]) -> None:
        self._text("privacy", "\n\n".join(_plain(word) for word in words))

    def flush(self) -> None:
        """Put on disk what was added: a TensorBoard that looks on sees it."""
        self._writer.flush()

    def _text(self, tag: str, content: str) -> None:
        tensor = make_tensor_proto([content.encode()])
        value = Summary.Value(tag=tag, metadata=text.create_summary_metadata(tag, "markdown"), tensor=tensor)
        self._add(Summary(value=[value]), 0, None)

    def _add(self, summary: Any, t: int, seconds: float | None) -> None:
        self._writer.add_event(Event(wall_time=self._began + (seconds or 0.0), step=t, summary=summary))


def _plain(word: str) -> str:
    return word.replace("|", "\\|").replace("\n", " ")


EVERY = 0.5  # seconds between two looks at a run that is being written
SUMMARY = 600.0  # seconds after the halt for the statement: the accountant may take minutes


def write_events(
    run: Path, folder: Path, *, follow: bool, wait: Callable[[float], None] = time.sleep
) -> tuple[int, bool]:
    """Write what there is, or go on until the run's end; return how many points, and whether with a statement."""
    manifest = read_manifest(run)
    tail, summary, curves = EventTail(run / "events.jsonl"), JsonFile(run / "summary.json"), Curves()
    with EventFiles(folder, started(manifest)) as files:
        files.parameters(run.resolve().name, parameters_of(manifest.get("scenario")))
        waited = 0.0
        while True:
            ended = "privacy" in summary.look()  # it comes last: a summary without it is written first
            files.add(curves.take(tail.look()[1]))
            if tail.behind:
                continue
            over = curves.halted or bool(summary.value)
            if not follow or ended or (over and waited >= SUMMARY):
                break
            files.flush()
            wait(EVERY)
            waited = waited + EVERY if over else 0.0
        files.add(curves.at_end(summary.look()))
        files.statement(statement_of(summary.value) or ["no statement was written"])
        return files.points, "privacy" in summary.value
