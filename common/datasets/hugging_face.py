"""A data set of Hugging Face `datasets`, saved by `save_to_disk` -> samples. No code of the data set is run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from common.datasets.arrays import labels_of, samples_of
from common.datasets.dataset import Samples
from common.datasets.extras import need
from common.datasets.faults import check_extent, fault
from common.datasets.pictures import pixels_of
from common.datasets.schema import DataSchema
from common.datasets.tables import BLOCK, Cells, declared_columns, samples_from
from common.errors import MapaError

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
