"""What a data set is to the testbed. A custom one is a class with `load`, named by a dotted path."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from common.quantities import Indices

Pixels = npt.NDArray[np.uint8] | npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Samples:
    """Images, a row each, and their labels. uint8 rows stand for value/255; float32 rows are in [0, 1]."""

    images: Pixels  # n × pixels
    labels: npt.NDArray[np.int64]  # n

    def __len__(self) -> int:
        return len(self.labels)

    def pixels(self, rows: Indices | None = None) -> npt.NDArray[np.float32]:
        """Return the chosen rows as float32 in [0, 1]."""
        chosen = self.images if rows is None else self.images[rows]
        if chosen.dtype == np.uint8:
            return chosen.astype(np.float32) / np.float32(255)
        return chosen.astype(np.float32, copy=False)


@dataclass(frozen=True, slots=True)
class Dataset:
    """A named data set with its public train/test split."""

    name: str
    shape: tuple[int, int]  # height, width
    classes: int
    train: Samples
    test: Samples
    checksum: str  # sha256 of the content, for the manifest


class DatasetSource(Protocol):
    """A custom data set: `[data] set = "package.module:Class"`; the class is made without arguments."""

    def load(self, data_dir: Path) -> Dataset:
        """Return the data set; raise DataUnavailableError with what to do where it cannot be had."""
