"""Random blobs: textured ellipses and rectangles on black, as a public notion of single things on a dark ground."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

_KEY = 4_022  # one public choice for all runs: every party must draw the same blobs
_MOST = 4  # shapes of an image
_EDGE = 0.7  # pixels over which a shape's edge fades

Plane = npt.NDArray[np.float64]


def draw_blobs(count: int, shape: tuple[int, int]) -> npt.NDArray[np.float32]:
    """Return count × pixels: one to four shapes each, one over the other, striped and shaded at random."""
    rng = np.random.Generator(np.random.Philox(key=_KEY))
    height, width = shape
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    y, x = (y + 0.5) / height - 0.5, (x + 0.5) / width - 0.5  # −½ … ½ on both sides
    images = np.empty((count, height * width), np.float32)
    for image in images:
        shapes, draws = 1 + int(_MOST * rng.random()), rng.random((_MOST, 12))
        canvas = np.zeros(shape)
        for drawn in draws[:shapes]:
            cover, paint = _blob(drawn, y, x, math.sqrt(height * width))
            canvas += cover * (paint - canvas)
        image[:] = np.clip(canvas, 0, 1).ravel()
    return images


def _blob(drawn: npt.NDArray[np.float64], y: Plane, x: Plane, pixels: float) -> tuple[Plane, Plane]:
    """Return how far a shape covers each pixel, and its paint, both from twelve numbers in [0, 1)."""
    middle_y, middle_x = 0.5 * (drawn[0] - 0.5), 0.5 * (drawn[1] - 0.5)
    tall, wide = 0.05 + 0.4 * drawn[2], 0.05 + 0.4 * drawn[3]
    turn = (drawn[4] - 0.5) * math.pi / 2
    along = (x - middle_x) * math.cos(turn) + (y - middle_y) * math.sin(turn)
    across = (y - middle_y) * math.cos(turn) - (x - middle_x) * math.sin(turn)
    if drawn[5] < 0.5:
        inside = (1 - np.sqrt((along / wide) ** 2 + (across / tall) ** 2)) * min(wide, tall)
    else:
        inside = np.minimum(wide - np.abs(along), tall - np.abs(across))
    cover = np.clip(0.5 + inside * pixels / _EDGE, 0, 1)
    light, slope, stripes = 0.2 + 0.8 * drawn[6], drawn[7] - 0.5, 0.4 * drawn[8]
    waves, heading, phase = 2 + 10 * drawn[9], math.pi * drawn[10], 2 * math.pi * drawn[11]
    texture = np.sin(2 * math.pi * waves * (x * math.cos(heading) + y * math.sin(heading)) + phase)
    return cover, light + slope * across + stripes * texture
