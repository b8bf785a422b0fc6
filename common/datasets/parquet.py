"""Parquet files -> samples, a batch of rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common.datasets.dataset import Samples
from common.datasets.extras import need
from common.datasets.faults import check_extent, fault
from common.datasets.schema import DataSchema
from common.datasets.tables import BLOCK, Cells, declared_columns, samples_from
from common.errors import MapaError


def read_parquet(path: Path, schema: DataSchema) -> Samples:
    """Return the samples of a Parquet file; the columns are checked before any is read."""
    need("pyarrow", path, "parquet")
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            names = list(declared_columns(path, schema, file.schema_arrow.names))
            check_extent(path, file.metadata.num_rows, schema.width)
            return samples_from(path, schema, _blocks(file, names))
    except MapaError:
        raise
    except Exception as error:  # a decoder of untrusted bytes may raise anything
        raise fault(path, f"is not a readable Parquet file ({type(error).__name__}: {error})") from error


def _blocks(file: Any, names: list[str]) -> Iterator[dict[str, Cells]]:
    for batch in file.iter_batches(batch_size=BLOCK, columns=names):
        yield {name: batch.column(name).to_pylist() for name in names}
