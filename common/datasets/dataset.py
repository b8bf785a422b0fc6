"""What a data set is to the testbed. A custom one is a class with `load`, named by a dotted path."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from common.errors import ConfigurationError, require
from common.quantities import Indices
from common.randomness import permutation_of

Inputs = npt.NDArray[np.uint8] | npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64] | npt.NDArray[np.float32]  # classes, or real targets


@dataclass(frozen=True, slots=True)
class Samples:
    """Inputs, a flat row each, and their labels. uint8 rows stand for value/255; float32 rows are finite."""

    inputs: Inputs  # n × product of the shape
    labels: Labels  # n: int64 classes, or finite float32 targets
    groups: npt.NDArray[np.int64] | None = None  # n: whose record it is (writer, device, site), where known

    def __len__(self) -> int:
        return len(self.labels)

    def values(self, rows: Indices | None = None) -> npt.NDArray[np.float32]:
        """Return the chosen rows as float32; uint8 becomes [0, 1]."""
        chosen = self.inputs if rows is None else self.inputs[rows]
        if chosen.dtype == np.uint8:
            values = chosen.astype(np.float32)
            values /= np.float32(255)  # in place: a shard of images may take hundreds of megabytes
            return values
        return chosen.astype(np.float32, copy=False)

    def chosen(self, rows: Indices) -> Samples:
        """Return the chosen rows alone."""
        groups = None if self.groups is None else self.groups[rows]
        return Samples(self.inputs[rows], self.labels[rows], groups)


@dataclass(frozen=True, slots=True)
class Dataset:
    """A named data set with its public train/test split."""

    name: str
    shape: tuple[int, ...]  # of one sample: (28, 28), (3, 32, 32), (10,)
    classes: int  # 0: real targets
    train: Samples
    test: Samples | None  # None: no metric is claimed
    checksum: str  # sha256 of the content, for the manifest and the account
    target_range: tuple[float, float] | None = None  # declared with real targets


class DatasetSource(Protocol):
    """A custom data set: `[data] set = "package.module:Class"`; the class is made without arguments."""

    def load(self, data_dir: Path) -> Dataset:
        """Return the data set; raise DataUnavailableError with what to do where it cannot be had."""


def content_checksum(*parts: Samples) -> str:
    """Return the sha256 over each part's inputs and labels: type, shape, then little-endian values."""
    digest = hashlib.sha256()
    for part in parts:
        for values in (part.inputs, part.labels):
            portable = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
            digest.update(f"{portable.dtype.str} {portable.shape}\n".encode())
            digest.update(portable.data)
    return digest.hexdigest()


MOST_VALUES = 1 << 31  # of one sample: more would not fit a message, and its product might overflow


def check_dataset(dataset: Dataset, where: str) -> Dataset:
    """Return the data set; raise ConfigurationError, begun with `where`, for how it breaks the contract."""
    shape, classes, bounds = dataset.shape, dataset.classes, dataset.target_range
    require(is_shape(shape), f"{where}: shape", shape, "a tuple of whole numbers from 1")
    counted = type(classes) is int and classes >= 0 and classes != 1
    require(counted, f"{where}: classes", repr(classes), "at least 2, or 0 for real targets")
    if (bounds is not None) != (classes == 0):
        raise ConfigurationError(
            f"{where}: target_range = {bounds!r} with classes = {classes}: needed with real targets"
            " (classes = 0), and only there"
        )
    ranged = bounds is None or is_range(bounds)
    require(ranged, f"{where}: target_range", bounds, "two finite numbers, the lower first")
    for part, samples in (("train", dataset.train), ("test", dataset.test)):
        if samples is not None and (fault := _fault(samples, dataset)):
            raise ConfigurationError(f"{where}: {part} {fault}")
    return dataset


def is_shape(shape: object) -> bool:
    """Tell whether it is a tuple of at least one side, each a whole number from 1, of a bounded product."""
    return (
        isinstance(shape, tuple)
        and 0 < len(shape) <= 8
        and all(type(side) is int and 1 <= side <= MOST_VALUES for side in shape)
        and math.prod(shape) <= MOST_VALUES
    )


def is_range(bounds: tuple[float, float]) -> bool:
    """Tell whether these are two finite numbers, the lower first."""
    return len(bounds) == 2 and all(map(math.isfinite, bounds)) and bounds[0] < bounds[1]


def _fault(samples: Samples, dataset: Dataset) -> str | None:
    """Say how the samples break the contract of `Samples`, if they do."""
    inputs, labels, width = samples.inputs, samples.labels, math.prod(dataset.shape)
    if inputs.ndim != 2 or inputs.shape[1] != width:
        return f"inputs have shape {inputs.shape}, not n × {width}"
    kind = np.int64 if dataset.classes else np.float32
    if labels.dtype != kind or labels.shape != inputs.shape[:1] or not len(labels):
        return (
            f"labels are {labels.dtype} of shape {labels.shape}, not {np.dtype(kind)}, at least one,"
            " one for each input"
        )
    low, high = (0, dataset.classes - 1) if dataset.target_range is None else dataset.target_range
    if not (labels.min() >= np.float32(low) and labels.max() <= np.float32(high)):
        return f"labels go from {labels.min()} to {labels.max()}, not {low} to {high}"
    if inputs.dtype not in (np.uint8, np.float32):
        return f"inputs are {inputs.dtype}, not uint8 or float32"
    if inputs.dtype == np.float32 and not np.isfinite(inputs).all():
        row, column = (int(place[0]) for place in np.nonzero(~np.isfinite(inputs)))
        return f"row {row}, value {column}: {inputs[row, column]} is not finite"
    groups = samples.groups
    if groups is not None and (groups.dtype != np.int64 or groups.shape != labels.shape or groups.min() < 0):
        return f"groups are {groups.dtype} of shape {groups.shape}, not int64 from 0, one for each input"
    return None


_KEY = 20_210  # one public choice for all runs: cloud and edges must keep the same records apart


def with_holdout(dataset: Dataset, count: int) -> Dataset:
    """Return the data set with `count` training records in the place of the test set; 0: as it is.

    The checksum stays: the records are the same, and an account for them is too.
    """
    if count == 0:
        return dataset
    records = len(dataset.train)
    few = f"less than the {records} training records of {dataset.name}"
    require(0 < count < records, "data.holdout", count, few)
    kept, held = split_rows(records, count)
    return replace(dataset, train=dataset.train.chosen(kept), test=dataset.train.chosen(held))


def split_rows(rows: int, count: int) -> tuple[Indices, Indices]:
    """Return which rows stay and which are held out, both ascending."""
    order = permutation_of(np.random.Philox(key=_KEY), rows)
    return np.sort(order[count:]), np.sort(order[:count])
