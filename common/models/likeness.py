"""An image seen from landmarks: its likeness to each of them, with the directions in which they vary most held down."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from common.errors import ConfigurationError
from common.models.colour import COLOURS, in_colour
from common.models.landmarks import LANDMARKS, draw_landmarks
from common.models.model import Images
from common.models.scattering import CHANNELS, SCALES, STRIDE, Scattering, group_normalised, mirrored

GROUPS = 27  # of three channels each, in every plane, as in Tramèr and Boneh 2021
_POWER = 0.75  # ½ would keep all directions as they are, 1 make them equal
_FLOOR = 0.01  # of the mean eigenvalue: directions below it are mostly rounding
_COLUMNS = 4096  # of S that are multiplied at a time in float64

MOST_LANDMARKS = 2000  # their matrix takes the cube of their number: a peer may name it
LARGEST_VIEW = 1 << 28  # bytes that the landmarks may take while they are made

Matrix = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Seeing:
    """How images of one shape are brought into features: what a model's options say, checked."""

    shape: tuple[int, ...]  # (height, width), or (3, height, width)
    landmarks: int  # 0: none, φ itself
    landmarks_of: str
    mirror: bool
    colour: str | None  # None: grey

    def __post_init__(self) -> None:
        if type(self.landmarks) is not int or not 0 <= self.landmarks <= MOST_LANDMARKS:
            raise _wrong("landmarks", self.landmarks, f"from 0 to {MOST_LANDMARKS}")
        if type(self.landmarks_of) is not str or self.landmarks_of not in LANDMARKS:
            raise _wrong("landmarks_of", self.landmarks_of, f"one of {', '.join(map(repr, LANDMARKS))}")
        if type(self.mirror) is not bool:
            raise _wrong("mirror", self.mirror, "true or false")
        if self.mirror and not self.landmarks:
            raise _wrong("mirror", self.mirror, "false with model.options.landmarks = 0")
        if self.colour is not None and self.colour not in COLOURS:
            raise _wrong("colour", self.colour, f"one of {', '.join(map(repr, COLOURS))}")
        if self.colour is not None and len(self.shape) == 2:
            raise _wrong("colour", self.colour, f"absent with grey images of {self.shape}")
        if self.landmarks and LANDMARKS[self.landmarks_of].planes != self.planes:
            allowed = [repr(name) for name, one in LANDMARKS.items() if one.planes == self.planes]
            raise _wrong(
                "landmarks_of", self.landmarks_of, f"{' or '.join(allowed)} with images of {self.shape}"
            )
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

    @property
    def key(self) -> str:
        """What the features of an image follow from, beside the image."""
        return repr(self)


def seen(images: Images, seeing: Seeing, scattering: Scattering) -> Iterator[tuple[slice, Matrix]]:
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
    landmarks = _scattered(seeing)
    centre = landmarks.mean(axis=0)
    landmarks -= centre
    eigenvalues, vectors = np.linalg.eigh(_products(landmarks))
    powers = (np.maximum(eigenvalues, 0) + _FLOOR * eigenvalues.mean()) ** -_POWER
    likeness: Matrix = landmarks.T @ ((vectors * powers) @ vectors.T).astype(np.float32)
    return centre, likeness


def _scattered(seeing: Seeing) -> Matrix:
    """Return S, before its mean is taken off."""
    drawn = draw_landmarks(seeing.landmarks_of, seeing.landmarks, seeing.sides).reshape(seeing.landmarks, -1)
    landmarks = np.empty((seeing.landmarks, seeing.kept), np.float32)
    for rows, found in seen(drawn, seeing, Scattering(seeing.sides)):
        landmarks[rows] = found
    return landmarks


def _products(landmarks: Matrix) -> npt.NDArray[np.float64]:
    """Return SSᵀ in float64, of which S need not be a copy as a whole."""
    products: npt.NDArray[np.float64] | None = None
    for start in range(0, landmarks.shape[1], _COLUMNS):
        part = landmarks[:, start : start + _COLUMNS]
        product = part.astype(np.float64) @ part.T
        products = product if products is None else np.add(products, product, out=products)
    assert products is not None
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


def _wrong(option: str, value: object, allowed: str) -> ConfigurationError:
    return ConfigurationError(f"model.options.{option} = {value!r}: must be {allowed}")
