"""What a data set is to the testbed. A custom one is a class with `load`, named by a dotted path."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from common.quantities import Indices

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
