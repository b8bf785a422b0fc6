"""Arrays -> samples: numpy's own, and those of .npz files. Headers are read before anything is allocated."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from common.datasets.dataset import Dataset, Inputs, Labels, Samples, content_checksum
from common.datasets.schema import DataSchema, check_extent, fault, shown
from common.errors import MapaError

Array = npt.NDArray[Any]
_NUMBERS = "buif"  # kinds of dtype: booleans, whole numbers, floats


def read_npz(path: Path, schema: DataSchema) -> Samples:
    """Return the samples of a .npz file: the arrays that the schema names; pickles are refused."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = set(archive.namelist())
            inputs = _member(archive, path, names, schema.inputs, schema.shape)
            labels = _member(archive, path, names, schema.label, ())
            groups = None if schema.group is None else _member(archive, path, names, schema.group, ())
    except MapaError:
        raise
    except Exception as error:  # a decoder of untrusted bytes may raise anything
        raise fault(path, f"is not a readable .npz file ({type(error).__name__}: {error})") from error
    return samples_of(inputs, labels, schema, path, groups=groups)


def samples_of(
    inputs: Array, labels: Array, schema: DataSchema, path: Path, *, groups: Array | None = None
) -> Samples:
    """Return arrays as samples; DataFaultError, with `path` as their name, where they are not as declared."""
    if inputs.shape[1:] != schema.shape or inputs.ndim == 0:
        raise fault(
            path, f"{schema.inputs} has shape {inputs.shape}, not (n, {', '.join(map(str, schema.shape))})"
        )
    for name, array in ((schema.label, labels), (schema.group, groups)):
        if array is not None and array.shape != inputs.shape[:1]:
            raise fault(path, f"{name} has shape {array.shape}, not ({len(inputs)},), one for each input")
    check_extent(path, len(inputs), schema.width)
    whose = None
    if groups is not None:
        whose = np.unique(groups, return_inverse=True)[1].astype(np.int64)
    return Samples(inputs_of(inputs, schema, path), labels_of(labels, schema, path), whose)


def inputs_of(inputs: Array, schema: DataSchema, path: Path) -> Inputs:
    """Return the inputs as flat rows: uint8 as they are, other numbers as float32 in the declared range."""
    if inputs.dtype.kind not in _NUMBERS:
        raise fault(path, f"{schema.inputs} is {inputs.dtype}: must be numbers")
    flat = inputs.reshape(len(inputs), -1)
    if flat.dtype == np.uint8 and schema.input_range is None:
        return np.ascontiguousarray(flat)
    with np.errstate(over="ignore"):  # a float64 too large for float32 becomes inf, and is refused below
        values = flat.astype(np.float32)
    finite = np.isfinite(values)
    if not finite.all():
        row, place = (int(found[0]) for found in np.nonzero(~finite))
        raise fault(
            path, f"{shown(flat[row, place].item())} is not a finite float32", row=row + 1, column=place
        )
    if schema.input_range is not None:
        low, high = schema.input_range
        values = ((np.clip(flat.astype(np.float64), low, high) - low) / (high - low)).astype(np.float32)
    return values


def labels_of(labels: Array, schema: DataSchema, path: Path) -> Labels:
    """Return classes as int64, real targets as float32 within the target range."""
    real = schema.target_range is not None
    if labels.dtype.kind not in ("uif" if real else "ui"):
        wanted = "numbers" if real else "whole numbers"
        raise fault(path, f"{schema.label} is {labels.dtype}: must be {wanted}")
    if schema.target_range is not None:
        finite = np.isfinite(labels)
        if not finite.all():
            raise fault(path, "is not finite", row=int(np.argmin(finite)) + 1, column=schema.label)
        low, high = schema.target_range
        return np.clip(labels.astype(np.float64), low, high).astype(np.float32)
    wrong = (labels < 0) | (labels >= schema.classes)
    if wrong.any():
        row = int(np.argmax(wrong))
        allowed = f"must be from 0 to {schema.classes - 1}"
        raise fault(path, f"{labels[row]}: {allowed}", row=row + 1, column=schema.label)
    return labels.astype(np.int64)


def _member(
    archive: zipfile.ZipFile, path: Path, names: set[str], name: str, shape: tuple[int, ...]
) -> Array:
    """Return one array of the archive, whose header says a shape of (n, *shape)."""
    if f"{name}.npy" not in names:
        found = ", ".join(sorted(one.removesuffix(".npy") for one in names)[:20])
        raise fault(path, f"has no array {name!r}; it has {found or 'none'}")
    with archive.open(f"{name}.npy") as stream:
        version = np.lib.format.read_magic(stream)
        if version == (1, 0):
            found_shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
        elif version == (2, 0):
            found_shape, _, dtype = np.lib.format.read_array_header_2_0(stream)
        else:
            raise fault(path, f"array {name!r} has format {version}: must be 1.0 or 2.0")
    if dtype.hasobject or dtype.itemsize > 512:
        raise fault(path, f"array {name!r} is {dtype}: must be numbers")
    if len(found_shape) != 1 + len(shape) or found_shape[1:] != shape:
        raise fault(path, f"{name} has shape {found_shape}, not (n, {', '.join(map(str, shape))})")
    check_extent(path, found_shape[0], max(math.prod(shape), dtype.itemsize * math.prod(shape) // 4))
    with archive.open(f"{name}.npy") as stream:
        return np.asarray(np.lib.format.read_array(stream, allow_pickle=False))


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
