"""Softmax on fixed scattering features: closed form, numpy alone, the transform done once per shard.

Noise is spread evenly over the features, so it drowns first what all images have in common, and half of
a normalised scattering vector is that. Landmarks that are no one's data show what it is: an image is
seen from their mean, by its likeness to each of them, with the directions in which they vary most held down.
docs/features.md has the formulas and the options.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from common.errors import ConfigurationError, require
from common.models.landmarks import LANDMARKS, draw_landmarks
from common.models.linear import Softmax
from common.models.model import Features, Inputs, cannot_take, check_inputs
from common.models.scattering import CHANNELS, SCALES, STRIDE, Scattering, group_normalised, mirrored

VERSION = 1  # of the transform: a change of any feature of any image needs another one
LARGEST_BIAS = 10.0
GROUPS = 27  # of three channels each, in every plane, as in Tramèr and Boneh 2021
_POWER = 0.75  # ½ would keep all directions as they are, 1 make them equal
_FLOOR = 0.01  # of the mean eigenvalue: directions below it are mostly rounding
_COLUMNS = 4096  # of S that are multiplied at a time in float64
_TOGETHER = (
    8  # chunks in one product with the landmarks: BLAS's threads spin after each, three times what it takes
)

MOST_LANDMARKS = 2000  # their matrix takes the cube of their number: a peer may name it
LARGEST_VIEW = 1 << 28  # bytes that the landmarks may take while they are made
COLOURS = ("yuv", "rgb")
_LUMINANCE = (0.299, 0.587, 0.114)  # of red, green and blue, after ITU-R BT.601
_BLUE, _RED = 0.492, 0.877  # U = 0.492(B − Y), V = 0.877(R − Y)

Planes = npt.NDArray[np.float32]  # n × 3 × …
Matrix = npt.NDArray[np.float32]


def in_colour(planes: Planes, colour: str) -> Planes:
    """Return red, green and blue planes as `colour` names them: lightness and two differences, or as they are."""
    if colour == "rgb":
        return planes
    light = sum(np.float32(part) * planes[:, i] for i, part in enumerate(_LUMINANCE))
    differences = (np.float32(_BLUE) * (planes[:, 2] - light), np.float32(_RED) * (planes[:, 0] - light))
    return np.stack([light, *differences], axis=1)


@dataclass(frozen=True, slots=True)
class Seeing:
    """How images of one shape are brought into features: what a model's options say, checked."""

    shape: tuple[int, ...]  # (height, width), or (3, height, width)
    landmarks: int  # 0: none, φ itself
    landmarks_of: str
    mirror: bool
    colour: str | None  # None: grey

    def __post_init__(self) -> None:
        number, of, mirror, colour = self.landmarks, self.landmarks_of, self.mirror, self.colour
        in_range = type(number) is int and 0 <= number <= MOST_LANDMARKS
        _require(in_range, "landmarks", number, f"from 0 to {MOST_LANDMARKS}")
        known = type(of) is str and of in LANDMARKS
        _require(known, "landmarks_of", of, f"one of {', '.join(map(repr, LANDMARKS))}")
        _require(type(mirror) is bool, "mirror", mirror, "true or false")
        _require(bool(number) or not mirror, "mirror", mirror, "false with model.options.landmarks = 0")
        _require(
            colour is None or colour in COLOURS, "colour", colour, f"one of {', '.join(map(repr, COLOURS))}"
        )
        coloured = len(self.shape) == 3
        _require(colour is None or coloured, "colour", colour, f"absent with grey images of {self.shape}")
        fitting = [name for name, one in LANDMARKS.items() if one.planes == self.planes]
        wanted = f"{' or '.join(map(repr, fitting))} with images of {self.shape}"
        _require(not number or of in fitting, "landmarks_of", of, wanted)
        needed = self.view_bytes
        if needed > LARGEST_VIEW:
            height, width = self.sides
            raise ConfigurationError(
                f"model.options.landmarks = {self.landmarks}: takes about {needed >> 20} MB for images of"
                f" {height}×{width}; must be at most {LARGEST_VIEW >> 20} MB"
            )

    @property
    def planes(self) -> int:
        return 1 if len(self.shape) == 2 else self.shape[0]

    @property
    def sides(self) -> tuple[int, int]:
        return self.shape[-2], self.shape[-1]

    @property
    def coefficients(self) -> int:
        """How many numbers φ has."""
        count: int = self.planes * CHANNELS * (self.sides[0] // STRIDE) * (self.sides[1] // STRIDE)
        return count

    @property
    def kept(self) -> int:
        """How many numbers are left of φ: with the mirror one of two that change sides, and those that stay."""
        columns = self.sides[1] // STRIDE
        if not self.mirror:
            return self.coefficients
        staying = 1 + SCALES * 2 + 4  # channels of angles 0 and π/2 alone mirror themselves
        middle: int = self.planes * staying * (self.sides[0] // STRIDE) * (columns % 2)
        return (self.coefficients + middle) // 2

    @property
    def view_bytes(self) -> int:
        """Estimate the memory of `view` at its peak: S twice in float32, a part of it and four n × n in float64."""
        if not self.landmarks:
            return 0
        kept = self.kept
        product = 16 * min(kept, _COLUMNS) + 16 * self.landmarks
        powers = 4 * kept + 32 * self.landmarks
        return self.landmarks * (4 * kept + max(product, powers))


def seen(images: Inputs, seeing: Seeing, scattering: Scattering) -> Iterator[tuple[slice, Matrix]]:
    """Yield rows and their φ, normalised group by group and folded where the mirror counts, a chunk at a time."""
    fold = _fold(seeing) if seeing.mirror else None
    step = scattering.chunk
    for start in range(0, len(images), step):
        rows = slice(start, min(start + step, len(images)))
        planes = images[rows].reshape(-1, seeing.planes, *seeing.sides)
        if seeing.colour is not None:
            planes = in_colour(planes, seeing.colour)
        count = len(planes)
        coefficients = np.empty((count * seeing.planes, CHANNELS, *scattering.out), np.float32)
        for part, found in scattering(planes.reshape(count * seeing.planes, -1)):
            coefficients[part] = found
        grouped = group_normalised(
            coefficients.reshape(count, -1, *scattering.out), seeing.planes * GROUPS
        ).reshape(count, -1)
        if fold is not None:
            one, other, weight = fold
            grouped = (grouped[:, one] + grouped[:, other]) * weight
        yield rows, grouped


@functools.lru_cache(maxsize=2)
def view(seeing: Seeing) -> tuple[Matrix, Matrix]:
    """Return the landmarks' mean, and the matrix that takes a centred vector φ to (SSᵀ)^−¾ S φ.

    S has a landmark in each row. A power of a symmetric matrix is unique, which its eigenvectors are not:
    every party gets the same features.
    """
    drawn = draw_landmarks(seeing.landmarks_of, seeing.landmarks, seeing.sides).reshape(seeing.landmarks, -1)
    landmarks = np.empty((seeing.landmarks, seeing.kept), np.float32)
    for rows, found in seen(drawn, seeing, Scattering(seeing.sides)):
        landmarks[rows] = found
    centre = landmarks.mean(axis=0)
    landmarks -= centre
    eigenvalues, vectors = np.linalg.eigh(_products(landmarks))
    powers = (np.maximum(eigenvalues, 0) + _FLOOR * eigenvalues.mean()) ** -_POWER
    likeness: Matrix = landmarks.T @ ((vectors * powers) @ vectors.T).astype(np.float32)
    return centre, likeness


def _products(landmarks: Matrix) -> npt.NDArray[np.float64]:
    """Return SSᵀ in float64, of which S need not be a copy as a whole."""
    products = np.zeros((len(landmarks), len(landmarks)))
    for start in range(0, landmarks.shape[1], _COLUMNS):
        part = landmarks[:, start : start + _COLUMNS]
        products += part.astype(np.float64) @ part.T
    return products


@functools.lru_cache(maxsize=2)
def _fold(seeing: Seeing) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], Matrix]:
    """Return which pairs of coefficients the mirror exchanges, and by what their sum is weighted.

    (φ + Πφ)/2 has each pair twice; here it is once, times √2, so that products of two such vectors stay the same.
    """
    sides = seeing.sides[0] // STRIDE, seeing.sides[1] // STRIDE
    plane = mirrored(sides)
    other = np.concatenate([plane + i * len(plane) for i in range(seeing.planes)])
    one = np.flatnonzero(np.arange(len(other)) <= other)
    weight = np.where(other[one] == one, 0.5, math.sqrt(0.5)).astype(np.float32)
    return one, other[one], weight


def _require(condition: bool, option: str, value: object, allowed: str) -> None:
    require(condition, f"model.options.{option}", repr(value), allowed)


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
        # to a linear model these are what pixels are to softmax: a row of numbers
        inputs = landmarks or self._seeing.coefficients
        self._length = np.float32(math.sqrt(inputs))
        self.feature_length = math.sqrt(landmarks) if landmarks else None
        if bias is not None:  # a share of ℓ, which only features of one length have
            wanted = "absent with model.options.landmarks = 0, where the constant is 1"
            _require(bool(landmarks), "bias", bias, wanted)
            number = (
                isinstance(bias, int | float) and not isinstance(bias, bool) and 0 <= bias <= LARGEST_BIAS
            )
            _require(number, "bias", bias, f"a number from 0 to {LARGEST_BIAS:g}")
        self._constant = np.float32(1 if bias is None else bias * math.sqrt(inputs))
        super().__init__(shape=(1, inputs), classes=classes)

    @property
    def feature_key(self) -> str:
        """What features follow from beside the images: their name in a cache."""
        return f"{self.name} {VERSION} {self._seeing} bias={float(self._constant)!r}"

    def features_bytes(self, rows: int) -> int:
        """Estimate the memory of the features of this many images, and of what it takes to make them."""
        seeing, scattering = self._seeing, self._scattering
        waiting = 8 * _TOGETHER * seeing.kept if seeing.landmarks else 0  # in chunks, and joined
        chunk = scattering.chunk_bytes + scattering.chunk * (12 * seeing.coefficients + waiting)
        return rows * self.inputs * 4 + seeing.view_bytes + (chunk if rows else 0)

    def features(self, images: Inputs) -> Features:
        check_inputs(images, self.name, self._seeing.shape)
        features = np.empty((len(images), self.inputs), np.float32)
        features[:, -1] = self._constant
        waiting: list[Matrix] = []
        for rows, found in seen(images, self._seeing, self._scattering):
            if not self._seeing.landmarks:
                features[rows, :-1] = found
                continue
            waiting.append(found)
            if len(waiting) == _TOGETHER or rows.stop == len(images):
                together = np.concatenate(waiting)
                features[rows.stop - len(together) : rows.stop, :-1] = self._likeness(together)
                waiting.clear()
        return features

    def _likeness(self, found: Matrix) -> Matrix:
        """Return likeness to each landmark, √landmarks long; made when first asked for, for it takes its time."""
        centre, likeness = view(self._seeing)
        found -= centre
        along: Matrix = np.matmul(found, likeness)
        norms: Matrix = np.maximum(np.sqrt(np.vecdot(along, along)), np.finfo(np.float32).tiny)
        along *= (self._length / norms)[:, None]
        return along
