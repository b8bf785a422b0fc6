"""A data set out of numpy arrays, checked, with the checksum made for whoever brings them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from common.datasets.arrays import samples_of
from common.datasets.checksum import content_checksum
from common.datasets.dataset import Dataset, Samples
from common.datasets.schema import DataSchema

Arrays = tuple[npt.ArrayLike, npt.ArrayLike]  # inputs n × shape, labels n


def dataset(
    name: str,
    train: Arrays,
    test: Arrays | None = None,
    *,
    classes: int = 0,
    target_range: tuple[float, float] | None = None,
    input_range: tuple[float, float] | None = None,
    groups: npt.ArrayLike | None = None,
) -> Dataset:
    """Return a data set of arrays: inputs of any shape, a row each, and classes or real targets.

    uint8 inputs stand for value/255; others become float32, in [0, 1] where `input_range` is given. Declare
    ranges that are known without looking at the records: what is computed from them is not private.
    """
    inputs = np.asarray(train[0])
    schema = DataSchema(
        kind="array",
        shape=tuple(int(side) for side in inputs.shape[1:]) or (0,),
        classes=classes,
        target_range=target_range,
        input_range=input_range,
        group=None if groups is None else "groups",
    )
    trained = _samples(f"{name}: train", train, schema, None if groups is None else np.asarray(groups))
    tested = None if test is None else _samples(f"{name}: test", test, schema, None)
    parts = (trained,) if tested is None else (trained, tested)
    return Dataset(name, schema.shape, classes, trained, tested, content_checksum(*parts), target_range)


def _samples(where: str, arrays: Arrays, schema: DataSchema, groups: npt.NDArray[Any] | None) -> Samples:
    inputs, labels = (np.asarray(array) for array in arrays)
    return samples_of(inputs, labels, schema, Path(where), groups=groups)
