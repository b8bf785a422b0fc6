"""MNIST from its four idx files: 60,000 and 10,000 digits of 28 × 28."""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from common.datasets.dataset import Dataset, Samples, content_checksum
from common.datasets.published import absent, damaged, first_present, read_content
from common.errors import DataUnavailableError

SHAPE = (28, 28)
CLASSES = 10
CHECKSUM = "ebb7739848f126177781482884716f0af02bae867511aa1f06814d594b889045"
LARGEST = 48 * 2**20

# sha256 of each file uncompressed; mirrors compress differently.
TRAIN_IMAGES, TRAIN_LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
TEST_IMAGES, TEST_LABELS = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"
SHA256 = {
    TRAIN_IMAGES: "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    TRAIN_LABELS: "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    TEST_IMAGES: "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    TEST_LABELS: "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}


def find_mnist(data_dir: Path) -> Mapping[str, Path]:
    """Return where each of the four files is; one that is nowhere is left out."""
    folders = (data_dir / "mnist", data_dir / "MNIST" / "raw", data_dir)  # the second is torchvision's
    found = {name: first_present(folders, (name, f"{name}.gz")) for name in SHA256}
    return {name: path for name, path in found.items() if path is not None}


def load_mnist(data_dir: Path, *, checksum: str | None = CHECKSUM) -> Dataset:
    """Return MNIST; another content than the published one is refused, unless `checksum` is None."""
    paths = find_mnist(data_dir)
    missing = [f"{name}.gz" for name in SHA256 if name not in paths]
    if missing:
        raise absent("mnist", data_dir, ", ".join(missing))
    train = read_part(paths[TRAIN_IMAGES], paths[TRAIN_LABELS])
    test = read_part(paths[TEST_IMAGES], paths[TEST_LABELS])
    found = content_checksum(train, test)
    if checksum is not None and found != checksum:
        raise _refusal(paths)
    return Dataset("mnist", SHAPE, CLASSES, train, test, found)


def content_sha256(path: Path) -> str:
    """Return the checksum of an idx file's content."""
    return hashlib.sha256(read_content(path, LARGEST)).hexdigest()


def read_part(images_path: Path, labels_path: Path) -> Samples:
    images, labels = read_idx(images_path, 3), read_idx(labels_path, 1)
    if images.shape[1:] != SHAPE:
        raise damaged(images_path, f"contains images of {images.shape[1:]}, not {SHAPE}")
    if len(images) != len(labels) or not len(labels):
        raise damaged(labels_path, f"contains {len(labels)} labels for {len(images)} images")
    if labels.max() >= CLASSES:
        raise damaged(labels_path, f"contains the label {labels.max()}, not 0 to {CLASSES - 1}")
    return Samples(images.reshape(len(images), -1), labels.astype(np.int64))


def _refusal(paths: Mapping[str, Path]) -> DataUnavailableError:
    """Name the files that differ; only now is it worth hashing each."""
    wrong = [str(path) for name, path in paths.items() if content_sha256(path) != SHA256[name]]
    return DataUnavailableError(
        f"not the published MNIST: the sha256 of {', '.join(wrong)} differs; remove these files and run "
        "`mapa data get mnist`, or name another data set by a dotted path in data.set"
    )


_UNSIGNED_BYTE = 0x08
_LARGEST = 64 * 2**20  # MNIST's largest has 47 MB


def read_idx(path: Path, rank: int) -> npt.NDArray[np.uint8]:
    """Return the array of `rank` dimensions in an idx file, gzipped or not."""
    content = read_content(path, _LARGEST)
    header = 4 + 4 * rank
    if len(content) < header:
        raise damaged(path, f"has {len(content)} bytes, fewer than an idx header with {rank} sizes")
    zeros, kind, found = struct.unpack_from(">HBB", content)
    if (zeros, kind, found) != (0, _UNSIGNED_BYTE, rank):
        expected = bytes([0, 0, _UNSIGNED_BYTE, rank]).hex()
        raise damaged(
            path, f"begins with {content[:4].hex()}, not {expected} as an idx file with {rank} sizes does"
        )
    sizes = struct.unpack_from(f">{rank}I", content, 4)
    if len(content) != header + math.prod(sizes):
        promised = header + math.prod(sizes)
        raise damaged(path, f"has {len(content):,} bytes, but its header says {promised:,}")
    return np.frombuffer(content, np.uint8, offset=header).reshape(sizes)
