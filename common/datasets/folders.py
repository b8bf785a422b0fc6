"""A folder of images, one folder a class -> samples. The classes are declared, never learnt from the folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from common.datasets.arrays import labels_of, samples_of
from common.datasets.dataset import Samples
from common.datasets.schema import DataSchema, check_extent, fault, need, shown
from common.datasets.tables import BLOCK, Cells, declared_columns, samples_from
from common.errors import DataFaultError, MapaError

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
_LONGEST_SIDE = 16_384  # pixels, of an image that is resized
_EIGHT_BITS = ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "LAB", "HSV")
_PREVIEWS = ("MPO",)  # a camera's: the first is the picture


def read_images(path: Path, schema: DataSchema) -> Samples:
    """Return the images under `path`, in the order of their paths, whatever order the classes are declared in."""
    need("PIL", path, "images")
    files = list(_files(path, schema))
    check_extent(path, len(files), schema.width)
    inputs = np.empty((len(files), schema.width), np.uint8)
    for row, (file, _) in enumerate(files):
        inputs[row] = _read(file, schema)
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


def _read(file: Path, schema: DataSchema) -> npt.NDArray[np.uint8]:
    from PIL import Image

    try:
        with Image.open(file, formats=FORMATS) as image:
            return pixels_of(image, schema, file)
    except DataFaultError:
        raise
    except Exception as error:  # a decoder of untrusted bytes may raise anything
        raise fault(file, f"is not a readable image ({type(error).__name__}: {error})") from error


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


MARK = "state.json"  # what `save_to_disk` leaves in the folder of one split


def is_saved(path: Path) -> bool:
    """Tell whether a folder is one split that `datasets` saved."""
    return (path / MARK).is_file() and (path / "dataset_info.json").is_file()


def read_saved(path: Path, schema: DataSchema) -> Samples:
    """Return the samples of one split: a table's columns, or `inputs` (arrays or images) and the label."""
    need("datasets", path, "huggingface")
    from datasets import load_from_disk

    try:
        found = load_from_disk(str(path))
        check_extent(path, len(found), schema.width)
        if schema.kind == "table":
            names = list(declared_columns(path, schema, found.column_names))
            return samples_from(path, schema, _blocks(found, names))
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
    except MapaError:
        raise
    except Exception as error:  # another's reader of untrusted bytes may raise anything
        raise fault(path, f"is not a readable data set ({type(error).__name__}: {error})") from error


def _blocks(found: Any, names: list[str]) -> Iterator[dict[str, Cells]]:
    for start in range(0, len(found), BLOCK):
        block = found[start : start + BLOCK]
        yield {name: block[name] for name in names}
