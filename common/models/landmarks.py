"""Sets of landmarks by name: pictures that are nobody's data, drawn from fixed numbers, alike for every party.

A further set is one file with a function that draws it, and a line in LANDMARKS.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from common.models.blobs import draw_blobs
from common.models.leaves import draw_leaves
from common.models.strokes import draw_strokes

Planes = npt.NDArray[np.float32]  # n × planes × height × width


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
