"""Files that others made -> samples, as a schema declares them. A fault names file, row and column."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from common.datasets.arrays import read_npz
from common.datasets.dataset import Samples
from common.datasets.faults import fault
from common.datasets.hugging_face import is_saved, read_saved
from common.datasets.parquet import read_parquet
from common.datasets.pictures import read_images
from common.datasets.schema import DataSchema
from common.datasets.tables import read_csv

Reader = Callable[[Path, DataSchema], Samples]


def read_samples(path: Path, schema: DataSchema) -> Samples:
    """Return the samples of a .npz, .csv or .parquet file, of a folder of images by class, or of one of `datasets`.

    Raise DataFaultError, which names file, row and column: print it here, and send it to nobody.
    """
    return _reader(path, schema)(path, schema)


def _reader(path: Path, schema: DataSchema) -> Reader:
    if not path.exists():
        raise fault(path, "does not exist")
    if not (path.is_file() or path.is_dir()):  # a pipe would be waited for
        raise fault(path, "is neither a file nor a folder")
    if path.is_dir() and is_saved(path):
        return read_saved
    readers: dict[tuple[str, str], Reader] = {
        (".npz", "array"): read_npz,
        (".csv", "table"): read_csv,
        (".parquet", "table"): read_parquet,
        ("folder", "images"): read_images,
    }
    suffix = "folder" if path.is_dir() else path.suffix.lower()
    if (suffix, schema.kind) not in readers:
        allowed = ", ".join(f"{kind}: {end}" for end, kind in readers)
        raise fault(path, f'cannot be read with kind = "{schema.kind}"; allowed are {allowed}')
    return readers[suffix, schema.kind]
