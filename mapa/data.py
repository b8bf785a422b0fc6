"""For data of your own: arrays, classes with `load`, and what is declared of files."""
# ruff: noqa: F401
# mypy: implicit-reexport

from __future__ import annotations

from common.datasets.dataset import Dataset, DatasetSource, Samples
from common.datasets.readers import dataset
from common.datasets.schema import Column, DataSchema
