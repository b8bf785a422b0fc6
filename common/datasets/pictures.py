"""A folder of images, one folder a class -> samples. The classes are declared, never learnt from the folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from common.datasets.dataset import Samples
from common.datasets.extras import need
from common.datasets.faults import check_extent, fault, shown
from common.datasets.schema import DataSchema
from common.errors import DataFaultError

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
