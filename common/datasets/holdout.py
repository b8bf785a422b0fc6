"""Training records kept apart to choose hyper-parameters on, so that nobody looks at the test set for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from common.datasets.dataset import Dataset
from common.errors import ConfigurationError
from common.quantities import Indices
from common.randomness import permutation_of

_KEY = 20_210  # one public choice for all runs: cloud and edges must keep the same records apart


def with_holdout(dataset: Dataset, count: int) -> Dataset:
    """Return the data set with `count` training records in the place of the test set; 0: as it is.

    The checksum stays: the records are the same, and an account for them is too.
    """
    if count == 0:
        return dataset
    if not 0 < count < len(dataset.train):
        raise ConfigurationError(
            f"data.holdout = {count}: must be less than the {len(dataset.train)} training records of {dataset.name}"
        )
    kept, held = split_rows(len(dataset.train), count)
    return replace(dataset, train=dataset.train.chosen(kept), test=dataset.train.chosen(held))


def split_rows(rows: int, count: int) -> tuple[Indices, Indices]:
    """Return which rows stay and which are held out, both ascending."""
    order = permutation_of(np.random.Philox(key=_KEY), rows)
    return np.sort(order[count:]), np.sort(order[:count])
