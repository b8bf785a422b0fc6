"""Softmax on fixed scattering features: closed form, numpy alone, the transform done once per shard.

Noise is spread evenly over the features, so it drowns first what all images have in common, and half of
a normalised scattering vector is that. Landmarks that are nobody's data tell what it is: an image is
seen from their mean, by its likeness to each of them, with the directions in which they vary most held down.
docs/features.md has the formulas and the options.
"""

from __future__ import annotations

import math

import numpy as np

from common.errors import ConfigurationError
from common.models.likeness import Matrix, Seeing, seen, view
from common.models.linear import Softmax
from common.models.model import Features, Images, cannot_take
from common.models.scattering import Scattering

VERSION = 1  # of the transform: a change of any feature of any image needs another one
LARGEST_BIAS = 10.0


class ScatteringSoftmax(Softmax):
    """F is softmax's. ξ is an image's likeness to `landmarks` pictures, √landmarks long, and the constant.

    With landmarks = 0 it is the normalised scattering vector itself: 81 channels of 7×7 for 28×28 images.
    """

    name = "scattering"

    def __init__(
        self,
        *,
        shape: tuple[int, ...],
        classes: int,
        landmarks: int = 1000,
        landmarks_of: str = "strokes",
        mirror: bool = False,
        colour: str | None = None,
        bias: float | None = None,
    ) -> None:
        coloured = len(shape) == 3 and shape[0] == 3
        if classes < 2 or not (len(shape) == 2 or coloured):
            takes = "images (height, width) or (3, height, width), at least 2 classes"
            raise cannot_take(self.name, shape, classes, takes)
        if coloured and colour is None:
            colour = "yuv"
        self._seeing = Seeing(shape, landmarks, landmarks_of, mirror, colour)
        self._scattering = Scattering(self._seeing.sides)
        self._pixels = math.prod(shape)
        # to a linear model these are what pixels are to softmax: a row of numbers
        inputs = landmarks or self._seeing.coefficients
        self._length = np.float32(math.sqrt(inputs))
        self.feature_length = math.sqrt(landmarks) if landmarks else None
        self._constant = np.float32(1 if bias is None else _checked(bias, landmarks) * math.sqrt(inputs))
        super().__init__(shape=(1, inputs), classes=classes)

    @property
    def feature_key(self) -> str:
        """What features follow from beside the images: their name in a cache."""
        return f"{self.name} {VERSION} {self._seeing.key} bias={float(self._constant)!r}"

    def features_bytes(self, rows: int) -> int:
        """Estimate the memory of the features of so many images, and of what it takes to make them."""
        seeing, scattering = self._seeing, self._scattering
        chunk = scattering.chunk_bytes + scattering.chunk * 12 * seeing.coefficients
        return rows * self.inputs * 4 + seeing.view_bytes + (chunk if rows else 0)

    def features(self, images: Images) -> Features:
        if images.shape[1:] != (self._pixels,):
            raise ConfigurationError(
                f"images of {images.shape[1:]} pixels: {self.name} was made for {self._pixels}"
            )
        features = np.empty((len(images), self.inputs), np.float32)
        features[:, -1] = self._constant
        for rows, found in seen(images, self._seeing, self._scattering):
            features[rows, :-1] = self._likeness(found) if self._seeing.landmarks else found
        return features

    def _likeness(self, found: Matrix) -> Matrix:
        """Return likeness to each landmark, √landmarks long; made when first asked for, for it takes its time."""
        centre, likeness = view(self._seeing)
        along: Matrix = np.matmul(found - centre, likeness)
        norms: Matrix = np.maximum(np.sqrt(np.vecdot(along, along)), np.finfo(np.float32).tiny)
        along *= (self._length / norms)[:, None]
        return along


def _checked(bias: object, landmarks: int) -> float:
    """Return the constant as a share of ℓ; only features of one length have such a share."""
    if not landmarks:
        raise ConfigurationError(
            f"model.options.bias = {bias!r}: must be absent with model.options.landmarks = 0, where the constant is 1"
        )
    if isinstance(bias, bool) or not isinstance(bias, int | float) or not 0 <= bias <= LARGEST_BIAS:
        raise ConfigurationError(
            f"model.options.bias = {bias!r}: must be a number from 0 to {LARGEST_BIAS:g}"
        )
    return float(bias)
