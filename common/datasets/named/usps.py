"""USPS, 7,291 and 2,007 digits of 16 × 16, from any of the three forms in which it is published."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from common.datasets.dataset import Dataset, Samples, content_checksum
from common.datasets.published import (
    Alternatives,
    DatasetDescription,
    DownloadedDataset,
    absent,
    damaged,
    first_present,
    not_published,
    read_content,
    sha256_of,
    unless,
)
from common.errors import DataUnavailableError

SHAPE = (16, 16)
CLASSES = 10
PIXELS = 256
# Of the two parts alone, for a form that comes as two files.
PART_CHECKSUM = {
    "train": "ecb4815daf79520c00bf6b4bd132a1e7b412d83113b54dd659768e9f6e49a4d2",
    "test": "81493c46abb6c8992de61fe97ef7e37163c2f9e926fbd0862aa346caa32acea0",
}
H5 = "usps.h5"
LIBSVM = {"train": "usps.bz2", "test": "usps.t.bz2"}
LIBSVM_SHA256 = {  # of the files as published
    "usps.bz2": "3771e9dd6ba685185f89867b6e249233dd74652389f263963b3b741e994b034f",
    "usps.t.bz2": "a9c0164e797d60142a50604917f0baa604f326e9a689698763793fa5d12ffc4e",
}
ZIPCODE = {"train": "zip.train.gz", "test": "zip.test.gz"}

_LIBSVM_MIRRORS = ("https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass/",)
_ZIPCODE_MIRRORS = (
    "https://hastie.su.domains/ElemStatLearn/datasets/",
    "https://web.stanford.edu/~hastie/ElemStatLearn/datasets/",
)
_MOST_ROWS = 20_000
_LARGEST_TEXT = 64 * 2**20
_ROUNDING = 1e-3  # how far a text may have rounded a value past the range
_STEPS = 2000  # the scans have values −1, −0.999, …, 1: 2,000 steps


class Usps(DownloadedDataset):
    """The text of LIBSVM is checked by its files' checksums, the other forms by their content."""

    about = DatasetDescription(
        name="usps",
        shape=SHAPE,
        classes=CLASSES,
        train=7_291,
        test=2_007,
        source="US Postal Service zip codes (J. J. Hull 1994), as given out by LIBSVM and ElemStatLearn",
        licence="none is stated; used for research",
    )
    checksum = "8bcbc0e5c7004155be81d5d24edd54a076682c62b8e75f48914e67375ced2bff"
    files = LIBSVM_SHA256

    def find(self, data_dir: Path) -> tuple[Path, ...]:
        """Return the h5 file, else both LIBSVM files, else both zip-code files, else nothing."""
        folders = (data_dir / "usps", data_dir)
        texts = (tuple(LIBSVM.values()), tuple(ZIPCODE.values()))
        # Without h5py the h5 file comes last: found all the same, so that the error can say what is missing.
        for names in ((H5,), *texts) if importlib.util.find_spec("h5py") else (*texts, (H5,)):
            found = [first_present(folders, (name,)) for name in names]
            present = tuple(path for path in found if path is not None)
            if len(present) == len(names):
                return present
        return ()

    def load(self, data_dir: Path) -> Dataset:
        paths = self.find(data_dir)
        if not paths:
            raise absent("usps", data_dir, f"{H5}, or {' and '.join(LIBSVM.values())}")
        is_libsvm = paths[0].name in LIBSVM_SHA256
        if paths[0].name == H5:
            train, test = read_h5(paths[0])
        else:
            train, test = (read_libsvm(path) if is_libsvm else read_zipcode(path) for path in paths)
        found = content_checksum(train, test)
        wrong = () if self.checksum in (None, found) else paths
        if is_libsvm:
            wrong = tuple(p for p in paths if self.checksum and sha256_of(p) != LIBSVM_SHA256[p.name])
        if wrong:
            raise not_published("USPS", "usps", wrong)
        return Dataset("usps", SHAPE, CLASSES, train, test, found)

    def published(self, mirror: str | None) -> Alternatives:
        libsvm = tuple(
            self.remote(file, _LIBSVM_MIRRORS, mirror, unless(LIBSVM_SHA256[file], sha256_of))
            for file in LIBSVM.values()
        )
        zipcode = tuple(
            self.remote(file, _ZIPCODE_MIRRORS, mirror, unless(PART_CHECKSUM[part], _zipcode_checksum))
            for part, file in ZIPCODE.items()
        )
        if mirror is None or importlib.util.find_spec("h5py") is None:
            return (libsvm, zipcode)
        refusal = unless(self.checksum or "", lambda path: content_checksum(*read_h5(path)))
        return ((self.remote(H5, (), mirror, refusal),), libsvm, zipcode)


DATA_SETS = (Usps(),)


def _zipcode_checksum(path: Path) -> str:
    return content_checksum(read_zipcode(path))


def read_h5(path: Path) -> tuple[Samples, Samples]:
    """Return train and test of an HDF5 file with groups train, test of data, target."""
    try:
        import h5py  # an extra: only this file needs it
    except ImportError as error:
        raise DataUnavailableError(
            f"{path} needs the package h5py: pip install 'mapa-testbed[usps]', or put "
            f"{' and '.join(LIBSVM.values())} beside it and remove it"
        ) from error
    try:
        with h5py.File(path, "r") as file:
            return _read_group(file["train"], path), _read_group(file["test"], path)
    except (OSError, KeyError, AttributeError, TypeError, ValueError) as error:
        raise damaged(
            path, f"is not an HDF5 file with data and target in train and test ({error})"
        ) from error


def read_libsvm(path: Path) -> Samples:
    """Return one part from LIBSVM text: label 1…10, then index:value with values −1…1."""
    text = read_content(path, _LARGEST_TEXT)
    lines = text.splitlines()
    counts = np.array([line.count(b":") for line in lines], np.int64)
    numbers = _numbers(text.replace(b":", b" "), path)
    starts = np.cumsum(2 * counts + 1) - (2 * counts + 1)  # where each line's label stands
    if not lines or len(numbers) != (2 * counts + 1).sum():
        raise damaged(path, "is not LIBSVM text with a label and index:value pairs per line")
    pairs = np.delete(numbers, starts).reshape(-1, 2)
    columns = pairs[:, 0].astype(np.int64) - 1
    if len(columns) and (columns.min() < 0 or columns.max() >= PIXELS):
        raise damaged(path, f"has an index outside 1 to {PIXELS}")
    values = np.zeros((len(lines), PIXELS))  # LIBSVM may leave zeros out
    values[np.repeat(np.arange(len(lines)), counts), columns] = pairs[:, 1]
    return _samples((values + 1) / 2, numbers[starts] - 1, path)


def read_zipcode(path: Path) -> Samples:
    """Return one part from the text of The Elements of Statistical Learning: label, then 256 values."""
    numbers = _numbers(read_content(path, _LARGEST_TEXT), path)
    if not len(numbers) or len(numbers) % (PIXELS + 1):
        raise damaged(path, f"is not text with {PIXELS + 1} numbers per line")
    rows = numbers.reshape(-1, PIXELS + 1)
    return _samples((rows[:, 1:] + 1) / 2, rows[:, 0], path)


def _read_group(group: Any, path: Path) -> Samples:
    images, labels = group["data"], group["target"]
    if images.ndim != 2 or images.shape[1] != PIXELS or not 0 < images.shape[0] <= _MOST_ROWS:
        raise damaged(
            path, f"contains images of shape {images.shape}, not n × {PIXELS} with n ≤ {_MOST_ROWS}"
        )
    if labels.shape != images.shape[:1]:
        raise damaged(path, f"contains labels of shape {labels.shape} for images of {images.shape}")
    return _samples(images[()].astype(np.float64), labels[()].astype(np.float64), path)


def _numbers(text: bytes, path: Path) -> npt.NDArray[np.float64]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # numpy only warns of text that is no number
        try:
            return np.fromstring(text.decode("ascii"), np.float64, sep=" ")
        except (DeprecationWarning, ValueError) as error:
            raise damaged(path, f"is not text of numbers ({error})") from error


def _samples(values: npt.NDArray[np.float64], labels: npt.NDArray[np.float64], path: Path) -> Samples:
    if not (values.min() > -_ROUNDING and values.max() < 1 + _ROUNDING):  # also where one is not a number
        raise damaged(path, "contains values outside the range of a pixel")
    if not np.isin(labels, np.arange(CLASSES)).all():
        raise damaged(path, f"contains a label that is not one of {CLASSES} digits")
    steps = np.rint(values * _STEPS) / _STEPS
    # The same bits from every form that kept the steps; other decimals stay as they are.
    exact = np.where(np.abs(values - steps) < 1e-6, steps, values).clip(0, 1)
    return Samples(exact.astype(np.float32), labels.astype(np.int64))
