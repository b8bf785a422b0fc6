"""digits, breast-cancer and diabetes: the tables inside scikit-learn, split once and for all; it is never imported.

The ranges are public constants of the published tables, rounded outwards: nothing is estimated where they are used.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from common.datasets.dataset import Dataset, Labels, Samples, content_checksum
from common.datasets.published import damaged, read_content
from common.errors import DataUnavailableError
from common.randomness import permutation_of

Numbers = npt.NDArray[np.float64]
_LARGEST = 4 * 2**20
_KEY = 31_415  # one public choice for all runs: the split

_BREAST_CANCER = (  # the largest values of ten measures of a cell nucleus
    *(30, 40, 200, 2600, 0.2, 0.4, 0.5, 0.25, 0.35, 0.1),  # mean
    *(3, 5, 25, 550, 0.04, 0.15, 0.4, 0.06, 0.1, 0.03),  # standard error
    *(40, 50, 260, 4300, 0.25, 1.1, 1.3, 0.3, 0.7, 0.25),  # worst
)
_DIABETES = (  # age, sex, bmi, blood pressure, six measures of blood serum
    (19, 79),
    (1, 2),
    (18, 43),
    (60, 135),
    (95, 305),
    (40, 245),
    (20, 100),
    (2, 10),
    (3, 6.2),
    (55, 125),
)


@dataclass(frozen=True, slots=True)
class _Table:
    files: tuple[str, ...]
    shape: tuple[int, ...]
    classes: int
    ranges: tuple[tuple[float, float], ...]  # of each value of a sample
    target_range: tuple[float, float] | None
    train: int
    checksum: str
    read: Callable[[list[Path]], tuple[Numbers, Numbers]]


def _digits(paths: list[Path]) -> tuple[Numbers, Numbers]:
    rows = _numbers(paths[0], ",", 65)
    return rows[:, :-1], rows[:, -1]


def _breast_cancer(paths: list[Path]) -> tuple[Numbers, Numbers]:
    rows = _numbers(paths[0], ",", 31, skip=1)
    return rows[:, :-1], rows[:, -1]


def _diabetes(paths: list[Path]) -> tuple[Numbers, Numbers]:
    return _numbers(paths[0], " ", 10), _numbers(paths[1], " ", 1)[:, 0]


_TABLES = {
    "digits": _Table(
        ("digits.csv.gz",),
        (8, 8),
        10,
        ((0, 16),) * 64,
        None,
        1437,
        "63e09cb0e751367ba4037d1497d07042ecab8b112966389fa16af142024e913f",
        _digits,
    ),
    "breast-cancer": _Table(
        ("breast_cancer.csv",),
        (30,),
        2,
        tuple((0, high) for high in _BREAST_CANCER),
        None,
        455,
        "3f0b96194976b89253dac2c67cac6615a27a7d0a72a7d1b1120dd42e52feb6d0",
        _breast_cancer,
    ),
    "diabetes": _Table(
        ("diabetes_data_raw.csv.gz", "diabetes_target.csv.gz"),
        (10,),
        0,
        _DIABETES,
        (25, 346),
        353,
        "0072d0efad5964623241eca3a170014f226f6633d2e3cab64b06f286fffd9f69",
        _diabetes,
    ),
}
TABLES = tuple(_TABLES)


def find_table(name: str) -> tuple[Path, ...]:
    """Return scikit-learn's files of a table; nothing where it is not installed."""
    spec = importlib.util.find_spec("sklearn")
    folders = spec.submodule_search_locations if spec else None
    for folder in folders or ():
        paths = tuple(Path(folder) / "datasets" / "data" / file for file in _TABLES[name].files)
        if all(path.is_file() for path in paths):
            return paths
    return ()


def load_table(name: str) -> Dataset:
    """Return a table, its values in [0, 1], its real targets in their own units."""
    table, paths = _TABLES[name], find_table(name)
    if not paths:
        raise DataUnavailableError(
            f"{name}: needs the package scikit-learn, which carries it: pip install 'mapa-testbed[tables]'"
        )
    values, labels = table.read(list(paths))
    low, high = np.array(table.ranges, np.float64).T
    inputs = ((values - low) / (high - low)).clip(0, 1).astype(np.float32)
    known: Labels = labels.astype(np.int64) if table.classes else labels.astype(np.float32)
    order = permutation_of(np.random.Philox(key=_KEY), len(inputs))
    whole = Samples(inputs, known)
    train, test = whole.chosen(order[: table.train]), whole.chosen(order[table.train :])
    found = content_checksum(train, test)
    if found != table.checksum:
        raise DataUnavailableError(
            f"{paths[0]}: not the expected {name}, its sha256 differs; install scikit-learn 1.5 or later"
        )
    return Dataset(name, table.shape, table.classes, train, test, found, table.target_range)


def _numbers(path: Path, separator: str, width: int, skip: int = 0) -> Numbers:
    text = read_content(path, _LARGEST).decode("ascii", "replace").split("\n", skip)[-1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # numpy only warns of text that is no number
        try:
            joined = text.replace("\r", "").strip().replace("\n", separator)
            return np.fromstring(joined, np.float64, sep=separator).reshape(-1, width)
        except (DeprecationWarning, ValueError) as error:
            raise damaged(path, f"is not a table of {width} numbers per line ({error})") from error
