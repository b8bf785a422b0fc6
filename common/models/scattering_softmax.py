"""Softmax on fixed scattering features: closed form, numpy alone, the transform done once per shard.

Noise is spread evenly over the features, so it drowns first what all images have in common, and half of
a normalised scattering vector is that. Strokes that are nobody's data tell what it is: an image is
seen from their mean, by its likeness to each of them, with the directions in which they vary most held down.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import numpy.typing as npt

from common.errors import ConfigurationError
from common.models.linear import Softmax
from common.models.model import Features, Images, cannot_take
from common.models.scattering import CHANNELS, STRIDE, Scattering, group_normalised
from common.models.strokes import draw_strokes

GROUPS = 27  # of three channels each, as in Tramèr and Boneh 2021
_POWER = 0.75  # ½ would keep all directions as they are, 1 make them equal
_FLOOR = 0.01  # of the mean eigenvalue: directions below it are mostly rounding

MOST_LANDMARKS = 2000  # their matrix takes the cube of their number: a peer may name it
LARGEST_VIEW = 1 << 28  # bytes that the landmarks may take while they are made

Matrix = npt.NDArray[np.float32]


def view_bytes(shape: tuple[int, int], landmarks: int) -> int:
    """Estimate the memory of `_view` at its peak: S in float32 and float64, and four n × n matrices in float64."""
    coefficients: int = CHANNELS * (shape[0] // STRIDE) * (shape[1] // STRIDE)
    return landmarks * (12 * coefficients + 32 * landmarks)


class ScatteringSoftmax(Softmax):
    """F is softmax's. ξ is an image's likeness to `landmarks` strokes, √landmarks long, and the constant.

    With landmarks = 0 it is the normalised scattering vector itself: 81 channels of 7×7 for 28×28 images.
    """

    name = "scattering"

    def __init__(self, *, shape: tuple[int, ...], classes: int, landmarks: int = 1000) -> None:
        if type(landmarks) is not int or not 0 <= landmarks <= MOST_LANDMARKS:
            raise ConfigurationError(
                f"model.options.landmarks = {landmarks!r}: must be from 0 to {MOST_LANDMARKS}"
            )
        if classes < 2 or len(shape) != 2:
            raise cannot_take(self.name, shape, classes, "grey images (height, width), at least 2 classes")
        image = (shape[0], shape[1])
        self._scattering = Scattering(image)
        needed = view_bytes(image, landmarks)
        if needed > LARGEST_VIEW:
            raise ConfigurationError(
                f"model.options.landmarks = {landmarks}: takes about {needed >> 20} MB for images of"
                f" {shape[0]}×{shape[1]}; must be at most {LARGEST_VIEW >> 20} MB"
            )
        self._pixels = math.prod(image)
        self._view = _view(image, landmarks) if landmarks else None
        # to a linear model these are what pixels are to softmax: a row of numbers
        inputs = landmarks or CHANNELS * math.prod(self._scattering.out)
        self._length = np.float32(math.sqrt(inputs))
        self.feature_length = math.sqrt(landmarks) if landmarks else None
        super().__init__(shape=(1, inputs), classes=classes)

    def features(self, images: Images) -> Features:
        if images.shape[1:] != (self._pixels,):
            raise ConfigurationError(
                f"images of {images.shape[1:]} pixels: {self.name} was made for {self._pixels}"
            )
        features = np.empty((len(images), self.inputs), np.float32)
        features[:, -1] = 1
        for rows, coefficients in self._scattering(images):
            seen: Matrix = group_normalised(coefficients, GROUPS).reshape(len(coefficients), -1)
            if self._view is not None:
                centre, likeness = self._view
                seen = np.matmul(seen - centre, likeness)
                norms: Matrix = np.sqrt(np.vecdot(seen, seen))
                seen *= (self._length / norms)[:, None]
            features[rows, :-1] = seen
        return features


@functools.lru_cache(maxsize=4)
def _view(shape: tuple[int, int], landmarks: int) -> tuple[Matrix, Matrix]:
    """Return the strokes' mean, and the matrix that takes a centred vector φ to (SSᵀ)^−¾ S φ.

    S has a stroke in each row. A power of a symmetric matrix is unique, which its eigenvectors are not:
    every party gets the same features.
    """
    chunks = Scattering(shape)(draw_strokes(landmarks, shape))
    strokes = np.concatenate([group_normalised(c, GROUPS).reshape(len(c), -1) for _, c in chunks])
    centre = strokes.mean(axis=0)
    strokes -= centre
    eigenvalues, vectors = np.linalg.eigh(strokes.astype(np.float64) @ strokes.T)
    powers = (np.maximum(eigenvalues, 0) + _FLOOR * eigenvalues.mean()) ** -_POWER
    likeness: Matrix = strokes.T @ ((vectors * powers) @ vectors.T).astype(np.float32)
    return centre, likeness
