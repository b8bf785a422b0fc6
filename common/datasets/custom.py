"""A data set of the user's own, by dotted path, checked before anything relies on it."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from common.datasets.dataset import Dataset, Samples
from common.dotted import import_dotted
from common.errors import ConfigurationError, MapaError

KEY = "data.set"


def load_custom(path: str, data_dir: Path) -> Dataset:
    """Return what the DatasetSource at "package.module:Class" loads."""
    source_class = import_dotted(path, KEY)
    try:
        load = source_class().load
    except Exception as error:  # another's code may raise anything
        reason = f"{type(error).__name__}: {error}"
        raise ConfigurationError(
            f"{KEY} = {path!r}: must be a class that is made without arguments and has `load` ({reason})"
        ) from error
    try:
        dataset = load(data_dir)
    except MapaError:
        raise
    except Exception as error:
        raise ConfigurationError(
            f"{KEY} = {path!r}: load failed ({type(error).__name__}: {error})"
        ) from error
    if not isinstance(dataset, Dataset):
        raise ConfigurationError(f"{KEY} = {path!r}: load returned {type(dataset).__name__}, not a Dataset")
    for part, samples in (("train", dataset.train), ("test", dataset.test)):
        if fault := _fault(samples, dataset):
            raise ConfigurationError(f"{KEY} = {path!r}: {part} {fault}")
    return dataset


def _fault(samples: Samples, dataset: Dataset) -> str | None:
    """Say how the samples break the contract of `Samples`, if they do."""
    images, labels = samples.images, samples.labels
    pixels = math.prod(dataset.shape)
    if images.ndim != 2 or images.shape[1] != pixels:
        return f"images have shape {images.shape}, not n × {pixels}"
    if labels.dtype != np.int64 or labels.shape != images.shape[:1] or not len(labels):
        return f"labels are {labels.dtype} of shape {labels.shape}, not int64, at least one, one an image"
    if labels.min() < 0 or labels.max() >= dataset.classes:
        return f"labels go from {labels.min()} to {labels.max()}, not 0 to {dataset.classes - 1}"
    if images.dtype not in (np.uint8, np.float32):
        return f"images are {images.dtype}, not uint8 or float32"
    if images.dtype == np.float32 and not (images.min() >= 0 and images.max() <= 1):
        return f"pixels go from {images.min()} to {images.max()}, not 0 to 1"
    return None
