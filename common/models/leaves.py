"""Random dead leaves in colour: shapes that hide one another, as a public notion of a photograph.

After Matheron's model: sizes follow a power law, so that there is an edge at every scale, as in natural images.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

_KEY = 4_023  # one public choice for all runs: every party must draw the same leaves
_LEAVES = 30  # of an image, the first on top; behind all of them a ground
_LEAST, _MOST = 0.1, 0.8  # half a leaf's length, as a share of the image's side
_FINE = np.array([0.25, 0.5, 0.25])  # the lens: a blur over three pixels

Numbers = npt.NDArray[np.float64]


def draw_leaves(count: int, shape: tuple[int, int]) -> npt.NDArray[np.float32]:
    """Return count × 3 × height × width: red, green and blue in [0, 1]."""
    rng = np.random.Generator(np.random.Philox(key=_KEY))
    height, width = shape
    y, x = np.mgrid[0:height, 0:width].reshape(2, 1, -1).astype(np.float64)
    y, x = (y + 0.5) / height - 0.5, (x + 0.5) / width - 0.5
    images = np.empty((count, 3, height, width), np.float32)
    pixel = np.arange(height * width)
    for image in images:
        u = rng.random((_LEAVES + 1, 13))
        size = (u[:, 0] * _MOST**-2 + (1 - u[:, 0]) * _LEAST**-2) ** -0.5
        turn, flat = math.pi * u[:, 1], 0.3 + 0.7 * u[:, 2]
        dy, dx = y - 1.4 * (u[:, 3:4] - 0.5), x - 1.4 * (u[:, 4:5] - 0.5)
        sine, cosine = (np.sin(turn) / size)[:, None], (np.cos(turn) / size)[:, None]
        along = dx * cosine + dy * sine
        across = (dy * cosine - dx * sine) / flat[:, None]
        round_, square = along**2 + across**2, np.maximum(along**2, across**2)
        hides = np.where(u[:, 5:6] < 0.6, round_, square) < 1
        hides[-1] = True
        top = hides.argmax(axis=0)  # the first that is there
        image[:] = _lens(_painted(u[top], along[top, pixel], size[top]).reshape(3, height, width))
    return images


def _painted(u: Numbers, along: Numbers, size: Numbers) -> Numbers:
    """Return red, green and blue of each pixel, by its leaf's numbers and where it lies along the leaf."""
    stripes = np.sin(2 * math.pi * ((1 + 9 * u[:, 8]) * along * size + u[:, 9]))
    light = u[:, 6] + 0.5 * (u[:, 7] - 0.5) * np.clip(along, -1, 1) + 0.25 * u[:, 10] ** 2 * stripes
    hue, strength = 2 * math.pi * u[:, 11], 0.3 * u[:, 12] ** 1.5
    blue, red = strength * np.sin(hue), strength * np.cos(hue)
    green = -(0.299 * red + 0.114 * blue) / 0.587  # so that a leaf is as light as its light says
    return np.stack([light + red, light + green, light + blue])


def _lens(planes: Numbers) -> Numbers:
    """Blur both ways, and cut what no pixel can show."""
    return np.clip(_blurred(_blurred(planes).swapaxes(1, 2)).swapaxes(1, 2), 0, 1)


def _blurred(planes: Numbers) -> Numbers:
    """Blur rows; at the border the last pixel counts again."""
    padded = np.pad(planes, ((0, 0), (0, 0), (1, 1)), mode="edge")
    blurred: Numbers = _FINE[0] * padded[..., :-2] + _FINE[1] * padded[..., 1:-1] + _FINE[2] * padded[..., 2:]
    return blurred
