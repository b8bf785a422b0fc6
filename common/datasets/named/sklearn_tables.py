"""digits, breast-cancer and diabetes: the tables inside scikit-learn, split once and for all; it is never imported.

The ranges are public constants of the published tables, rounded outwards: nothing is estimated where they are used.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from common.datasets.dataset import Dataset, Labels, Samples, content_checksum
from common.datasets.published import DatasetDescription, NamedDataset, damaged, read_content
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


class SklearnTable(NamedDataset):
    """A table, its values in [0, 1], its real targets in their own units."""

    def __init__(
        self,
        about: DatasetDescription,
        files: tuple[str, ...],
        read: Callable[[list[Path]], tuple[Numbers, Numbers]],
        *,
        ranges: tuple[tuple[float, float], ...],  # of each value of a sample
        target_range: tuple[float, float] | None = None,
        checksum: str,
    ) -> None:
        self.about, self.checksum = about, checksum
        self._files, self._read, self._ranges, self._target_range = files, read, ranges, target_range

    def find(self, data_dir: Path) -> tuple[Path, ...]:  # noqa: ARG002
        spec = importlib.util.find_spec("sklearn")
        for folder in (spec.submodule_search_locations if spec else None) or ():
            paths = tuple(Path(folder) / "datasets" / "data" / file for file in self._files)
            if all(path.is_file() for path in paths):
                return paths
        return ()

    def load(self, data_dir: Path) -> Dataset:
        about, paths = self.about, self.find(data_dir)
        if not paths:
            raise DataUnavailableError(
                f"{about.name}: needs the package scikit-learn, which carries it: pip install 'mapa-testbed[tables]'"
            )
        values, labels = self._read(list(paths))
        low, high = np.array(self._ranges, np.float64).T
        inputs = ((values - low) / (high - low)).clip(0, 1).astype(np.float32)
        known: Labels = labels.astype(np.int64) if about.classes else labels.astype(np.float32)
        order = permutation_of(np.random.Philox(key=_KEY), len(inputs))
        whole = Samples(inputs, known)
        train, test = whole.chosen(order[: about.train]), whole.chosen(order[about.train :])
        found = content_checksum(train, test)
        if found != self.checksum:
            raise DataUnavailableError(
                f"{paths[0]}: not the expected {about.name}, its sha256 differs; install scikit-learn 1.5 or later"
            )
        return Dataset(about.name, about.shape, about.classes, train, test, found, self._target_range)


def _digits(paths: list[Path]) -> tuple[Numbers, Numbers]:
    rows = _numbers(paths[0], ",", 65)
    return rows[:, :-1], rows[:, -1]


def _breast_cancer(paths: list[Path]) -> tuple[Numbers, Numbers]:
    rows = _numbers(paths[0], ",", 31, skip=1)
    return rows[:, :-1], rows[:, -1]


def _diabetes(paths: list[Path]) -> tuple[Numbers, Numbers]:
    return _numbers(paths[0], " ", 10), _numbers(paths[1], " ", 1)[:, 0]


DATA_SETS = (
    SklearnTable(
        DatasetDescription(
            name="digits",
            shape=(8, 8),
            classes=10,
            train=1_437,
            test=360,
            source="E. Alpaydin, C. Kaynak 1998, test part, inside the package scikit-learn",
            licence="package BSD-3-Clause; table CC BY 4.0 as UCI states",
        ),
        ("digits.csv.gz",),
        _digits,
        ranges=((0, 16),) * 64,
        checksum="63e09cb0e751367ba4037d1497d07042ecab8b112966389fa16af142024e913f",
    ),
    SklearnTable(
        DatasetDescription(
            name="breast-cancer",
            shape=(30,),
            classes=2,
            train=455,
            test=114,
            source="W. Wolberg, O. Mangasarian, N. Street, W. Street 1995, inside the package scikit-learn",
            licence="package BSD-3-Clause; table CC BY 4.0 as UCI states",
        ),
        ("breast_cancer.csv",),
        _breast_cancer,
        ranges=tuple((0, high) for high in _BREAST_CANCER),
        checksum="3f0b96194976b89253dac2c67cac6615a27a7d0a72a7d1b1120dd42e52feb6d0",
    ),
    SklearnTable(
        DatasetDescription(
            name="diabetes",
            shape=(10,),
            classes=0,
            train=353,
            test=89,
            source="B. Efron, T. Hastie, I. Johnstone, R. Tibshirani 2004, inside the package scikit-learn",
            licence="package BSD-3-Clause; none is stated for the table",
        ),
        ("diabetes_data_raw.csv.gz", "diabetes_target.csv.gz"),
        _diabetes,
        ranges=_DIABETES,
        target_range=(25, 346),
        checksum="0072d0efad5964623241eca3a170014f226f6633d2e3cab64b06f286fffd9f69",
    ),
)


def _numbers(path: Path, separator: str, width: int, skip: int = 0) -> Numbers:
    text = read_content(path, _LARGEST).decode("ascii", "replace").split("\n", skip)[-1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # numpy only warns of text that is no number
        try:
            joined = text.replace("\r", "").strip().replace("\n", separator)
            return np.fromstring(joined, np.float64, sep=separator).reshape(-1, width)
        except (DeprecationWarning, ValueError) as error:
            raise damaged(path, f"is not a table of {width} numbers per line ({error})") from error
