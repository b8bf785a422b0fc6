"""Colour images as planes that are scattered one by one."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

COLOURS = ("yuv", "rgb")
_LUMINANCE = (0.299, 0.587, 0.114)  # of red, green and blue, after ITU-R BT.601
_BLUE, _RED = 0.492, 0.877  # U = 0.492(B − Y), V = 0.877(R − Y)

Planes = npt.NDArray[np.float32]  # n × 3 × …


def in_colour(planes: Planes, colour: str) -> Planes:
    """Return red, green and blue planes as `colour` names them: lightness and two differences, or as they are."""
    if colour == "rgb":
        return planes
    light = sum(np.float32(part) * planes[:, i] for i, part in enumerate(_LUMINANCE))
    differences = (np.float32(_BLUE) * (planes[:, 2] - light), np.float32(_RED) * (planes[:, 0] - light))
    return np.stack([light, *differences], axis=1)
