"""Landmarks: synthetic pictures, drawn from fixed public keys, so that every party draws the same ones.

- strokes: a public notion of handwriting
- blobs: textured ellipses and rectangles on black, of single things on a dark ground
- leaves: shapes in colour that hide one another, of a photograph. After Matheron's dead leaves: sizes follow a power
  law, so that there is an edge at every scale, as in natural images

A further set is a function that draws it, and a line in LANDMARKS.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Planes = npt.NDArray[np.float32]  # n × planes × height × width


_STROKES_KEY = 4_021  # one public choice for all runs: every party must draw the same strokes
_PEN = 1.1  # pixels: standard deviation of the pen's Gaussian tip
_POINTS = 24  # the pen is set down along a curve


def draw_strokes(count: int, shape: tuple[int, int]) -> npt.NDArray[np.float32]:
    """Return count × pixels: two to four curves each, within the middle that handwritten digits fill."""
    rng = np.random.Generator(np.random.Philox(key=_STROKES_KEY))
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


_BLOBS_KEY = 4_022  # one public choice for all runs: every party must draw the same blobs
_MOST_SHAPES = 4  # shapes of an image
_FADE = 0.7  # pixels over which a shape's edge fades

Plane = npt.NDArray[np.float64]


def draw_blobs(count: int, shape: tuple[int, int]) -> npt.NDArray[np.float32]:
    """Return count × pixels: one to four shapes each, one over the other, striped and shaded at random."""
    rng = np.random.Generator(np.random.Philox(key=_BLOBS_KEY))
    height, width = shape
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    y, x = (y + 0.5) / height - 0.5, (x + 0.5) / width - 0.5  # −½ … ½ on both sides
    images = np.empty((count, height * width), np.float32)
    for image in images:
        shapes, draws = 1 + int(_MOST_SHAPES * rng.random()), rng.random((_MOST_SHAPES, 12))
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
    cover = np.clip(0.5 + inside * pixels / _FADE, 0, 1)
    light, slope, stripes = 0.2 + 0.8 * drawn[6], drawn[7] - 0.5, 0.4 * drawn[8]
    waves, heading, phase = 2 + 10 * drawn[9], math.pi * drawn[10], 2 * math.pi * drawn[11]
    texture = np.sin(2 * math.pi * waves * (x * math.cos(heading) + y * math.sin(heading)) + phase)
    return cover, light + slope * across + stripes * texture


_LEAVES_KEY = 4_023  # one public choice for all runs: every party must draw the same leaves
_LEAVES = 30  # of an image, the first on top; behind all of them a ground
_LEAST_SIZE, _MOST_SIZE = 0.1, 0.8  # half a leaf's length, as a share of the image's side
_FINE = np.array([0.25, 0.5, 0.25])  # the lens: a blur over three pixels

Numbers = npt.NDArray[np.float64]


def draw_leaves(count: int, shape: tuple[int, int]) -> npt.NDArray[np.float32]:
    """Return count × 3 × height × width: red, green and blue in [0, 1]."""
    rng = np.random.Generator(np.random.Philox(key=_LEAVES_KEY))
    height, width = shape
    y, x = np.mgrid[0:height, 0:width].reshape(2, 1, -1).astype(np.float64)
    y, x = (y + 0.5) / height - 0.5, (x + 0.5) / width - 0.5
    images = np.empty((count, 3, height, width), np.float32)
    pixel = np.arange(height * width)
    for image in images:
        u = rng.random((_LEAVES + 1, 13))
        size = (u[:, 0] * _MOST_SIZE**-2 + (1 - u[:, 0]) * _LEAST_SIZE**-2) ** -0.5
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


@dataclass(frozen=True, slots=True)
class LandmarkSet:
    """How a set is drawn: (count, (height, width)) -> count × planes × height × width, or flat."""

    draw: Callable[[int, tuple[int, int]], npt.NDArray[Any]]
    planes: int  # 1: grey, 3: red, green and blue


LANDMARKS = {
    "strokes": LandmarkSet(draw_strokes, 1),
    "blobs": LandmarkSet(draw_blobs, 1),
    "leaves": LandmarkSet(draw_leaves, 3),
}


def draw_landmarks(name: str, count: int, shape: tuple[int, int]) -> Planes:
    """Return `count` pictures of the set; the first ones are the same whatever the count."""
    chosen = LANDMARKS[name]
    drawn: Planes = chosen.draw(count, shape).reshape(count, chosen.planes, *shape)
    return drawn
