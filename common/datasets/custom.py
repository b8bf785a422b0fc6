"""A data set of the user's own, by dotted path, checked before anything relies on it."""

from __future__ import annotations

from pathlib import Path

from common.datasets.contract import check_dataset
from common.datasets.dataset import Dataset
from common.errors import ConfigurationError, MapaError
from common.own_code import import_dotted

KEY = "data.set"


def load_custom(path: str, data_dir: Path) -> Dataset:
    """Return what the DatasetSource at "package.module:Class" loads, or the Dataset that is there."""
    source_class = import_dotted(path, KEY)
    if isinstance(source_class, Dataset):
        return check_dataset(source_class, f"{KEY} = {path!r}")
    try:
        load = source_class().load
    except Exception as error:  # another's code may raise anything
        reason = f"{type(error).__name__}: {error}"
        raise ConfigurationError(
            f"{KEY} = {path!r}: must be a class that is made without arguments and has `load` ({reason})"
        ) from error
    try:
        dataset = load(data_dir)
    except MapaError:
        raise
    except Exception as error:
        raise ConfigurationError(
            f"{KEY} = {path!r}: load failed ({type(error).__name__}: {error})"
        ) from error
    if not isinstance(dataset, Dataset):
        raise ConfigurationError(f"{KEY} = {path!r}: load returned {type(dataset).__name__}, not a Dataset")
    return check_dataset(dataset, f"{KEY} = {path!r}")
