"""Arrays, .npz, CSV and Parquet files, folders of images or of Hugging Face `datasets` -> samples, by a schema.

Sizes are read before anything is allocated, nothing is unpickled, no code of a data set is run, and nothing that a
schema declares is learnt from records. A fault names file, row and column.
"""

from __future__ import annotations

import contextlib
import csv
import itertools
import math
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from common.datasets.dataset import Dataset, Inputs, Labels, Samples, content_checksum
from common.datasets.schema import Column, DataSchema, check_extent, fault, need, shown
from common.errors import MapaError

Array = npt.NDArray[Any]
Arrays = tuple[npt.ArrayLike, npt.ArrayLike]  # inputs n × shape, labels n
Cells = Sequence[object]  # of one column
Matrix = npt.NDArray[np.float32]
BLOCK = 4096  # records at a time: text takes far more room than its values
_ABSENT = (None, "")
_NUMBERS = "buif"  # kinds of dtype: booleans, whole numbers, floats
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
_LONGEST_SIDE = 16_384  # pixels, of an image that is resized
_EIGHT_BITS = ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "LAB", "HSV")
_PREVIEWS = ("MPO",)  # a camera's: the first is the picture
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
MARK = "state.json"  # what `save_to_disk` leaves in the folder of one split


def read_npz(path: Path, schema: DataSchema) -> Samples:
    """Return the samples of a .npz file: the arrays that the schema names; pickles are refused."""
    with _decoding(path, "a readable .npz file"), zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
        inputs = _member(archive, path, names, schema.inputs, schema.shape)
        labels = _member(archive, path, names, schema.label, ())
        groups = None if schema.group is None else _member(archive, path, names, schema.group, ())
    return samples_of(inputs, labels, schema, path, groups=groups)


@contextlib.contextmanager
def _decoding(path: Path, what: str) -> Iterator[None]:
    """Turn what a decoder of untrusted bytes may raise, which is anything, into a fault of the file."""
    try:
        yield
    except MapaError:
        raise
    except Exception as error:
        raise fault(path, f"is not {what} ({type(error).__name__}: {error})") from error


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
        if version not in _HEADERS:
            raise fault(path, f"array {name!r} has format {version}: must be 1.0 or 2.0")
        found_shape, _, dtype = _HEADERS[version](stream)
    if dtype.hasobject or dtype.itemsize > 512:
        raise fault(path, f"array {name!r} is {dtype}: must be numbers")
    if len(found_shape) != 1 + len(shape) or found_shape[1:] != shape:
        raise fault(path, f"{name} has shape {found_shape}, not (n, {', '.join(map(str, shape))})")
    check_extent(path, found_shape[0], max(math.prod(shape), dtype.itemsize * math.prod(shape) // 4))
    with archive.open(f"{name}.npy") as stream:
        return np.asarray(np.lib.format.read_array(stream, allow_pickle=False))


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
    whose = None if groups is None else np.asarray(groups)
    parts = [samples_of(inputs, np.asarray(train[1]), schema, Path(f"{name}: train"), groups=whose)]
    if test is not None:
        parts.append(samples_of(np.asarray(test[0]), np.asarray(test[1]), schema, Path(f"{name}: test")))
    tested = None if test is None else parts[1]
    return Dataset(name, schema.shape, classes, parts[0], tested, content_checksum(*parts), target_range)


def read_csv(path: Path, schema: DataSchema) -> Samples:
    """Return the samples of a CSV file in UTF-8 with a header."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.reader(stream, strict=True)
            header = [name.strip() for name in next(reader, [])]
            places = declared_columns(path, schema, header)
            return samples_from(path, schema, _blocks(path, reader, places, len(header)))
    except UnicodeDecodeError as error:
        raise fault(path, f"is not text in UTF-8 ({error.reason} at byte {error.start})") from error
    except csv.Error as error:
        raise fault(path, f"line {reader.line_num}: is not CSV ({error})") from error
    except OSError as error:
        raise fault(path, f"cannot be read ({error.strerror})") from error


def declared_columns(path: Path, schema: DataSchema, header: Sequence[str]) -> dict[str, int]:
    """Return where each column that is read stands; an undeclared, missing or repeated one is an error."""
    wanted = [column.name for column in schema.columns] + [schema.label]
    if schema.group is not None and schema.group not in wanted:
        wanted.append(schema.group)
    allowed = {*wanted, *schema.ignore}
    for name in header:
        if name not in allowed:
            raise fault(path, f"column {shown(name)} is not declared; name it in columns or in ignore")
        if header.count(name) > 1:
            raise fault(path, f"column {shown(name)} stands twice")
    for name in wanted:
        if name not in header:
            raise fault(path, f"column {name!r} is missing")
    return {name: header.index(name) for name in wanted}


def samples_from(path: Path, schema: DataSchema, blocks: Iterable[dict[str, Cells]]) -> Samples:
    """Return the samples of a table that comes a block of columns at a time."""
    inputs: list[Matrix] = []
    labels: list[npt.NDArray[np.float64]] = []
    groups: list[str] = []
    records = 0
    for block in blocks:
        first = records + 1
        records += len(block[schema.label])
        check_extent(path, records, schema.width)
        inputs.append(
            np.concatenate([_values(path, c, block[c.name], first) for c in schema.columns], axis=1)
        )
        labels.append(_labels(path, schema, block[schema.label], first))
        if schema.group is not None:
            for row, cell in enumerate(block[schema.group], first):
                if cell in _ABSENT:
                    reason = "is empty: every record needs a group"
                    raise fault(path, reason, row=row, column=schema.group)
                groups.append(text_of(path, schema.group, cell, row))
    check_extent(path, records, schema.width)
    joined = np.concatenate(labels)
    found: Labels = joined.astype(np.float32) if schema.target_range else joined.astype(np.int64)
    whose = np.unique(groups, return_inverse=True)[1].astype(np.int64) if groups else None
    return Samples(np.concatenate(inputs), found, whose)


def _blocks(
    path: Path, reader: Iterable[list[str]], places: dict[str, int], width: int
) -> Iterator[dict[str, Cells]]:
    rows, before = iter(reader), 0
    while block := list(itertools.islice(rows, BLOCK)):
        for row, cells in enumerate(block, before + 1):
            if len(cells) != width:
                raise fault(path, f"has {len(cells)} cells, the header {width}", row=row)
        before += len(block)
        yield {name: [cells[place].strip() for cells in block] for name, place in places.items()}


def _values(path: Path, column: Column, cells: Cells, first: int) -> Matrix:
    """Return n × width values of a column."""
    filled = [column.fill if cell in _ABSENT else cell for cell in cells]
    for row, cell in enumerate(filled, first):
        if cell is None:
            raise fault(path, "is empty, and no fill is declared", row=row, column=column.name)
    if column.range is not None:
        low, high = column.range
        numbers = np.array([finite(path, column.name, cell, row) for row, cell in enumerate(filled, first)])
        scaled: Matrix = ((np.clip(numbers, low, high) - low) / (high - low)).astype(np.float32)
        return scaled[:, None]
    places = {name: place for place, name in enumerate(column.categories)}
    values = np.zeros((len(cells), column.width), np.float32)
    for row, cell in enumerate(filled, first):
        text = text_of(path, column.name, cell, row)
        if text not in places and not column.other:
            raise fault(path, f"{shown(text)} is not a declared category", row=row, column=column.name)
        values[row - first, places.get(text, len(places))] = 1
    return values


def finite(path: Path, column: str, cell: object, row: int) -> float:
    """Return the number in a cell."""
    number = math.nan
    if isinstance(cell, int | float) or (isinstance(cell, str) and "_" not in cell):
        with contextlib.suppress(ValueError, OverflowError):
            number = float(cell)
    if not math.isfinite(number):
        raise fault(path, f"{shown(cell)} is not a finite number", row=row, column=column)
    return number


def text_of(path: Path, column: str, cell: object, row: int) -> str:
    """Return the text in a cell; whole numbers count as their digits."""
    if isinstance(cell, str):
        return cell
    if isinstance(cell, int) and not isinstance(cell, bool):
        return str(cell)
    raise fault(path, f"{shown(cell)} is not a text or a whole number", row=row, column=column)


def _labels(path: Path, schema: DataSchema, cells: Cells, first: int) -> npt.NDArray[np.float64]:
    """Return classes or real targets; both are exact in float64."""
    name = schema.label
    if schema.target_range is not None:
        numbers = [finite(path, name, cell, row) for row, cell in enumerate(cells, first)]
        clipped: npt.NDArray[np.float64] = np.clip(np.array(numbers), *schema.target_range)
        return clipped
    names = schema.class_names or tuple(map(str, range(schema.classes)))
    places = {text: place for place, text in enumerate(names)}
    found = []
    for row, cell in enumerate(cells, first):
        text = text_of(path, name, cell, row)
        if text not in places:
            allowed = ", ".join(names[:10]) + (", …" if len(names) > 10 else "")
            raise fault(path, f"{shown(cell)} is not a class; allowed are {allowed}", row=row, column=name)
        found.append(places[text])
    return np.array(found, np.float64)


def read_parquet(path: Path, schema: DataSchema) -> Samples:
    """Return the samples of a Parquet file; the columns are checked before any is read."""
    need("pyarrow", path, "parquet")
    from pyarrow import parquet

    with _decoding(path, "a readable Parquet file"), parquet.ParquetFile(path) as file:
        names = list(declared_columns(path, schema, file.schema_arrow.names))
        check_extent(path, file.metadata.num_rows, schema.width)
        batches = file.iter_batches(batch_size=BLOCK, columns=names)
        blocks = ({name: batch.column(name).to_pylist() for name in names} for batch in batches)
        return samples_from(path, schema, blocks)


def read_images(path: Path, schema: DataSchema) -> Samples:
    """Return the images under `path`, in the order of their paths, whatever order the classes are declared in."""
    need("PIL", path, "images")
    from PIL import Image

    files = list(_files(path, schema))
    check_extent(path, len(files), schema.width)
    inputs = np.empty((len(files), schema.width), np.uint8)
    for row, (file, _) in enumerate(files):
        with _decoding(file, "a readable image"), Image.open(file, formats=FORMATS) as image:
            inputs[row] = pixels_of(image, schema, file)
    return Samples(inputs, np.array([label for _, label in files], np.int64))


def _files(path: Path, schema: DataSchema) -> Iterator[tuple[Path, int]]:
    """Yield each image with its label; hidden files are left out, a folder that is not declared is an error."""
    labels = {name: label for label, name in enumerate(schema.class_names)}
    for folder in sorted(one for one in path.iterdir() if not one.name.startswith(".")):
        if folder.name not in labels or not folder.is_dir():
            allowed = ", ".join(schema.class_names[:10])
            raise fault(path, f"{shown(folder.name)} is not a declared class; folders are {allowed}")
        for file in sorted(one for one in folder.iterdir() if not one.name.startswith(".")):
            if not file.is_file():  # a pipe would be waited for
                raise fault(file, "is not a file; the folder of a class holds images alone")
            yield file, labels[folder.name]


def pixels_of(image: Any, schema: DataSchema, file: Path, row: int | None = None) -> npt.NDArray[np.uint8]:
    """Return one image of PIL's as a flat row: grey, or colour with the channels first."""
    height, width = schema.shape[-2:]
    if not schema.resize and image.size != (width, height):
        raise fault(
            file, f"is {image.size[1]}×{image.size[0]}, not {height}×{width}; or declare resize", row=row
        )
    if max(image.size) > _LONGEST_SIDE:
        raise fault(file, f"has a side of {max(image.size)} pixels: at most {_LONGEST_SIDE}", row=row)
    if image.mode not in _EIGHT_BITS:  # PIL would cut all above 255
        raise fault(file, f"has more than 8 bits for a channel (mode {image.mode}); save it with 8", row=row)
    if getattr(image, "is_animated", False) and image.format not in _PREVIEWS:
        raise fault(file, f"has {image.n_frames} frames; a sample is one image", row=row)
    colour = len(schema.shape) == 3
    image = image.convert("RGB" if colour else "L")
    if schema.resize:
        image = image.resize((width, height))
    pixels = np.asarray(image, np.uint8)
    return (pixels.transpose(2, 0, 1) if colour else pixels).reshape(-1)


def is_saved(path: Path) -> bool:
    """Tell whether a folder is one split that `datasets` saved."""
    return (path / MARK).is_file() and (path / "dataset_info.json").is_file()


def read_saved(path: Path, schema: DataSchema) -> Samples:
    """Return the samples of one split: a table's columns, or `inputs` (arrays or images) and the label."""
    need("datasets", path, "huggingface")
    from datasets import load_from_disk

    with _decoding(path, "a readable data set"):
        found = load_from_disk(str(path))
        check_extent(path, len(found), schema.width)
        if schema.kind == "table":
            names = list(declared_columns(path, schema, found.column_names))
            parts = (found[start : start + BLOCK] for start in range(0, len(found), BLOCK))
            return samples_from(path, schema, ({name: part[name] for name in names} for part in parts))
        for name in (schema.inputs, schema.label):
            if name not in found.column_names:
                raise fault(path, f"column {name!r} is missing; it has {', '.join(found.column_names)}")
        labels = np.asarray(found[schema.label])
        if schema.kind == "images":
            images = (row[schema.inputs] for row in found)
            flat = [pixels_of(image, schema, path, row) for row, image in enumerate(images, 1)]
            return Samples(np.stack(flat), labels_of(labels, schema, path))
        groups = None if schema.group is None else np.asarray(found[schema.group])
        return samples_of(np.asarray(found[schema.inputs]), labels, schema, path, groups=groups)
