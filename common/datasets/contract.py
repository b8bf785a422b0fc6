"""The contract of `Samples` and `Dataset`, checked: of whatever did not come out of our own readers."""

from __future__ import annotations

import math

import numpy as np

from common.datasets.dataset import Dataset, Samples
from common.errors import ConfigurationError

MOST_VALUES = 1 << 31  # of one sample: more would not fit a message, and its product might overflow


def check_dataset(dataset: Dataset, where: str) -> Dataset:
    """Return the data set; raise ConfigurationError, begun with `where`, for how it breaks the contract."""
    shape, classes, bounds = dataset.shape, dataset.classes, dataset.target_range
    if not is_shape(shape):
        raise ConfigurationError(f"{where}: shape = {shape!r}: must be a tuple of whole numbers from 1")
    if type(classes) is not int or classes < 0 or classes == 1:
        raise ConfigurationError(f"{where}: classes = {classes!r}: must be at least 2, or 0 for real targets")
    if (bounds is not None) != (classes == 0):
        raise ConfigurationError(
            f"{where}: target_range = {bounds!r} with classes = {classes}: needed with real targets"
            " (classes = 0), and only there"
        )
    if bounds is not None and not is_range(bounds):
        raise ConfigurationError(
            f"{where}: target_range = {bounds!r}: must be two finite numbers, the lower first"
        )
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
