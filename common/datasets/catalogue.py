"""The data sets by name: load one, get one, say what is here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from common.datasets.dataset import Dataset, check_dataset
from common.datasets.formats import NAMED
from common.datasets.published import DatasetDescription, Download, NamedDataset
from common.datasets.source import FileSource, Source, load_files
from common.errors import ConfigurationError, MapaError, require
from common.own_code import import_dotted, is_dotted

_KEY = "data.set"
_ANYWHERE = Download()
DATA_SETS = tuple(NAMED)


def named_dataset(name: str) -> NamedDataset:
    """Return the data set of that name; raise ConfigurationError for another one."""
    allowed = f'one of {", ".join(DATA_SETS)}, or a dotted path "package.module:Class"'
    require(name in NAMED, _KEY, repr(name), allowed)
    return NAMED[name]


def data_directory(environ: Mapping[str, str]) -> Path:
    """Return MAPA_DATA_DIR, else `data` under the current directory."""
    chosen = environ.get("MAPA_DATA_DIR", "").strip()
    return Path(chosen).expanduser() if chosen else Path.cwd() / "data"


def data_mirror(environ: Mapping[str, str]) -> str | None:
    """Return MAPA_DATA_MIRROR, a URL under which a server of your own has the files; it is tried first."""
    mirror = environ.get("MAPA_DATA_MIRROR", "").strip()
    if mirror and not mirror.startswith(("http://", "https://")):
        raise ConfigurationError(f"MAPA_DATA_MIRROR = {mirror!r}: must begin with http:// or https://")
    return mirror or None


def describe(data_dir: Path) -> list[DatasetDescription]:
    """Return what is known of each data set, with the files that are here."""
    return [replace(known.about, files=known.find(data_dir)) for known in NAMED.values()]


def records_of(checksum: str) -> str:
    """Return the checksum of the data set whose records these are, so that both share one privacy account."""
    whole = next((one.part_of for one in NAMED.values() if one.part_of and one.checksum == checksum), None)
    return checksum if whole is None else str(NAMED[whole].checksum)


def load_dataset(name: Source, data_dir: Path) -> Dataset:
    """Return the data set of that name, of the class at a dotted path, or in files; nothing is written."""
    if isinstance(name, FileSource):
        return load_files(name, data_dir)
    return load_custom(name, data_dir) if is_dotted(name) else named_dataset(name).load(data_dir)


def get_dataset(name: str, data_dir: Path, download: Download = _ANYWHERE) -> tuple[Path, ...]:
    """Return a data set's files, downloaded (mnist-5k: written) unless they are here and right."""
    return named_dataset(name).get(data_dir, download)


def load_custom(path: str, data_dir: Path) -> Dataset:
    """Return what the DatasetSource at "package.module:Class" loads, or the Dataset that is there, checked."""
    source_class = import_dotted(path, _KEY)
    if isinstance(source_class, Dataset):
        return check_dataset(source_class, f"{_KEY} = {path!r}")
    try:
        load = source_class().load
    except Exception as error:  # another's code may raise anything
        reason = f"{type(error).__name__}: {error}"
        raise ConfigurationError(
            f"{_KEY} = {path!r}: must be a class that is made without arguments and has `load` ({reason})"
        ) from error
    try:
        dataset = load(data_dir)
    except MapaError:
        raise
    except Exception as error:
        raise ConfigurationError(
            f"{_KEY} = {path!r}: load failed ({type(error).__name__}: {error})"
        ) from error
    if not isinstance(dataset, Dataset):
        raise ConfigurationError(f"{_KEY} = {path!r}: load returned {type(dataset).__name__}, not a Dataset")
    return check_dataset(dataset, f"{_KEY} = {path!r}")
