"""Random strokes: images that are nobody's data, as a public notion of what handwriting looks like."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_KEY = 4_021  # one public choice for all runs: every party must draw the same strokes
_PEN = 1.1  # pixels: standard deviation of the pen's Gaussian tip
_POINTS = 24  # the pen is set down along a curve


def draw_strokes(count: int, shape: tuple[int, int]) -> npt.NDArray[np.float32]:
    """Return count × pixels: two to four curves each, within the middle that handwritten digits fill."""
    rng = np.random.Generator(np.random.Philox(key=_KEY))
    height, width = shape
    margin = np.array([height // 7, width // 7])  # MNIST's digits have 4 of 28 pixels free all around
    room = np.array([height, width]) - 2 * margin
    along = np.linspace(0, 1, _POINTS)[:, None, None]
    images = np.empty((count, height * width), np.float32)
    for image in images:
        curves = 2 + int(3 * rng.random())
        start, bend, end = margin - 0.5 + room * rng.random((3, curves, 2))
        points = (1 - along) ** 2 * start + 2 * along * (1 - along) * bend + along**2 * end
        y, x = points.reshape(-1, 2).T
        down = np.exp(-((np.arange(height) - y[:, None]) ** 2) / (2 * _PEN**2))
        across = np.exp(-((np.arange(width) - x[:, None]) ** 2) / (2 * _PEN**2))
        ink = (down[:, :, None] * across[:, None, :]).max(axis=0)
        image[:] = np.minimum(1, 1.5 * ink).ravel()
    return images
