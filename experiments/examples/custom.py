"""A model and a data set of one's own, named by dotted path in `custom.toml` beside this file.

A data set is a class made without arguments, with `load`: see common/datasets/dataset.py.
A model is a class made with `shape`, `classes` and what `[model.options]` holds: see
common/models/model.py. One that is linear in its scores need only say what its targets, losses and
dloss/dscore are, as here; common/models/cnn.py shows one that is not.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from common.datasets.dataset import Dataset, Samples
from common.errors import ConfigurationError
from common.models.linear import Losses, Scores, TwoWayModel
from common.models.model import Targets


class HuberHinge(TwoWayModel):
    """The hinge with its corner rounded to a parabola of width h, so that the loss is smooth (L = ‖ξ‖²/h).

    With the margin m = y s: F = 0 for m ≥ 1, (1 − m)²/(2h) for 1 − h < m < 1, else 1 − m − h/2.
    """

    name = "huber-hinge"

    def __init__(self, *, shape: tuple[int, ...], classes: int, width: float = 0.5) -> None:
        super().__init__(shape=shape, classes=classes)
        if not width > 0:
            raise ConfigurationError(f"model.options.width = {width!r}: must be greater than 0")
        self._width = np.float32(width)

    def losses(self, scores: Scores, targets: Targets) -> Losses:
        missing = np.maximum(1 - targets.astype(np.float32) * scores[..., 0], 0)
        curved = np.minimum(missing, self._width)
        losses: Losses = curved * curved / (2 * self._width) + (missing - curved)
        return losses

    def score_gradient(self, scores: Scores, targets: Targets) -> Scores:
        y = targets.astype(np.float32)[..., None]
        slope: Scores = np.clip((1 - y * scores) / self._width, 0, 1)
        return -y * slope


class TwoBlobs:
    """Two Gaussian clouds of 8×8 images, always the same ones: 2,000 to train on and 500 to test."""

    _SHAPE = (8, 8)

    def load(self, data_dir: Path) -> Dataset:  # noqa: ARG002 - nothing is stored
        rng = np.random.default_rng(20)
        centres = rng.uniform(0.35, 0.65, size=(2, 64))
        train, test = (_draw(centres, count, rng) for count in (2000, 500))
        content = hashlib.sha256()
        for samples in (train, test):
            content.update(samples.inputs.tobytes())
            content.update(samples.labels.tobytes())
        return Dataset("two-blobs", self._SHAPE, 2, train, test, content.hexdigest())


def _draw(
    centres: np.ndarray[tuple[int, int], np.dtype[np.float64]], count: int, rng: np.random.Generator
) -> Samples:
    labels = rng.integers(0, 2, count)
    images = rng.normal(centres[labels], 0.15).clip(0, 1)
    return Samples(np.rint(255 * images).astype(np.uint8), labels)
