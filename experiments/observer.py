"""An honest-but-curious observer: records gradients from the wire, and inverts them later."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from common.datasets.dataset import Dataset
from common.errors import ConfigurationError, RemoteProtocolError
from common.messages import GradientArrived
from common.models.model import Model
from common.quantities import EdgeId, RunId, Vector
from common.transport.channel import Channel
from common.wire import v1
from common.wire.codec import decode_gradient, decode_model
from common.wire.topics import EdgeTopic, every_edge, parse_edge_topic
from experiments.reconstruction import Picture, head_of, infer_target, invert


@dataclass(slots=True)
class PayloadRecorder:
    """Keeps gradients of a run as files, with the models that they answer."""

    directory: Path
    limit: int
    on_full: Callable[[], None] | None = None
    kept: set[str] = field(default_factory=set)
    _models: dict[EdgeId, bytes] = field(default_factory=dict)

    def model(self, topic: str, payload: bytes) -> None:
        self._models[parse_edge_topic(topic).edge_id] = payload

    def gradient(self, topic: str, payload: bytes) -> None:
        """Keep the payload, and the model that it answers where that was seen; a resent one only once."""
        if len(self.kept) >= self.limit:
            return
        edge_id = parse_edge_topic(topic).edge_id
        dimension = max(1, (len(payload) - v1.HEADER_BYTES) // 4)
        arrived = decode_gradient(edge_id, payload, dimension)  # what is no gradient is not kept
        stem = f"{edge_id}-{arrived.sequence:08d}"
        model = self._models.get(edge_id)
        if model is not None and decode_model(edge_id, model, dimension).version == arrived.version:
            (self.directory / f"{stem}.model").write_bytes(model)
        (self.directory / f"{stem}.gradient").write_bytes(payload)
        self.kept.add(stem)
        if len(self.kept) == self.limit and self.on_full is not None:
            self.on_full()


def record_payloads(
    channel: Channel, run: RunId, directory: Path, limit: int, on_full: Callable[[], None] | None = None
) -> PayloadRecorder:
    """Keep up to `limit` gradients of a run as `<edge>-<sequence>.gradient`, raw as they were on the wire.

    Needs a login that may read every edge's branch: the cloud's own, which is the adversary meant.
    """
    if limit < 1:
        raise ConfigurationError(f"limit = {limit}: must be at least 1")
    directory.mkdir(parents=True, exist_ok=True)
    recorder = PayloadRecorder(directory, limit, on_full)
    channel.subscribe(every_edge(run, EdgeTopic.MODEL), recorder.model)
    channel.subscribe(every_edge(run, EdgeTopic.GRADIENT), recorder.gradient)
    return recorder


@dataclass(frozen=True, slots=True)
class Sighting:
    """What one payload gave away."""

    arrived: GradientArrived
    picture: Picture
    target: int


def observe(
    model: Model, edge_id: EdgeId, payload: bytes, *, x: Vector | None = None, regularization: float = 0.0
) -> Sighting:
    """Invert one gradient as it was on the wire; with x_t, the regulariser's part is taken off first."""
    arrived = decode_gradient(edge_id, payload, model.dimension)
    gradient: Vector = arrived.gradient
    if x is not None:
        gradient = gradient - np.float32(regularization) * x
    head = head_of(model)
    return Sighting(arrived, invert(head, model, gradient), infer_target(head, model, gradient))


def observe_directory(model: Model, directory: Path, *, regularization: float = 0.0) -> list[Sighting]:
    """Invert every `*.gradient` of a directory, in the order of their names."""
    files = sorted(directory.glob("*.gradient"))
    if not files:
        raise ConfigurationError(f"from_payloads = {str(directory)!r}: contains no *.gradient files")
    sightings = []
    for path in files:
        edge_id = EdgeId(path.stem.rpartition("-")[0] or path.stem)
        beside = path.with_suffix(".model")
        try:
            x = decode_model(edge_id, beside.read_bytes(), model.dimension).model if beside.exists() else None
            payload = path.read_bytes()
            sightings.append(observe(model, edge_id, payload, x=x, regularization=regularization))
        except RemoteProtocolError as error:
            raise ConfigurationError(f"{path}: not a gradient of {model.name!r}: {error}") from error
    return sightings


def nearest_image(dataset: Dataset, picture: Picture) -> tuple[int, float]:
    """Return the training image that a reconstruction resembles most, and |r|."""
    best, best_r = 0, -1.0
    wanted = picture - picture.mean()
    norm = float(np.linalg.norm(wanted))
    if norm == 0:
        return 0, 0.0
    for start in range(0, len(dataset.train), 8192):
        pixels = dataset.train.values(np.arange(start, min(start + 8192, len(dataset.train))))
        centred = pixels - pixels.mean(axis=1, keepdims=True)
        r = np.abs(centred @ wanted) / (np.linalg.norm(centred, axis=1) * norm + 1e-12)
        if r.max() > best_r:
            best, best_r = start + int(r.argmax()), float(r.max())
    return best, best_r
