"""MNIST from its four idx files: 60,000 and 10,000 digits of 28 × 28."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from common.datasets.dataset import Samples
from common.datasets.published import DatasetDescription, PublishedFiles, damaged, read_content

SHAPE = (28, 28)
CLASSES = 10
CHECKSUM = "ebb7739848f126177781482884716f0af02bae867511aa1f06814d594b889045"
TRAIN_IMAGES, TRAIN_LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
TEST_IMAGES, TEST_LABELS = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"
SHA256 = {
    TRAIN_IMAGES: "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    TRAIN_LABELS: "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    TEST_IMAGES: "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    TEST_LABELS: "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
_UNSIGNED_BYTE = 0x08
_LARGEST = 64 * 2**20  # MNIST's largest has 47 MB


class IdxDataset(PublishedFiles):
    """Pictures of 28 × 28 in four idx files, as MNIST is laid out."""

    suffix = ".gz"
    largest = 48 * 2**20

    def read(self, paths: Mapping[str, Path]) -> tuple[Samples, Samples]:
        return (
            read_part(paths[TRAIN_IMAGES], paths[TRAIN_LABELS]),
            read_part(paths[TEST_IMAGES], paths[TEST_LABELS]),
        )


class Mnist(IdxDataset):
    title = "MNIST"
    about = DatasetDescription(
        name="mnist",
        shape=SHAPE,
        classes=CLASSES,
        train=60_000,
        test=10_000,
        source="Y. LeCun, C. Cortes, C. J. C. Burges, from NIST's special databases 1 and 3",
        licence="CC BY-SA 3.0 as commonly stated; none came with the files",
    )
    checksum = CHECKSUM
    files = SHA256
    folders = ("mnist", "MNIST/raw", ".")  # the second is torchvision's
    mirrors = (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
        "https://raw.githubusercontent.com/fgnt/mnist/master/",
        "https://sagemaker-sample-files.s3.amazonaws.com/datasets/image/MNIST/",
    )


DATA_SETS = (Mnist(),)


def read_part(images_path: Path, labels_path: Path) -> Samples:
    """Return the samples of a file of images and a file of labels."""
    images, labels = read_idx(images_path, 3), read_idx(labels_path, 1)
    if images.shape[1:] != SHAPE:
        raise damaged(images_path, f"contains images of {images.shape[1:]}, not {SHAPE}")
    if len(images) != len(labels) or not len(labels):
        raise damaged(labels_path, f"contains {len(labels)} labels for {len(images)} images")
    if labels.max() >= CLASSES:
        raise damaged(labels_path, f"contains the label {labels.max()}, not 0 to {CLASSES - 1}")
    return Samples(images.reshape(len(images), -1), labels.astype(np.int64))


def read_idx(path: Path, rank: int) -> npt.NDArray[np.uint8]:
    """Return the array of `rank` dimensions in an idx file (magic, big-endian sizes, bytes), gzipped or not."""
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
    promised = header + math.prod(sizes)
    if len(content) != promised:
        raise damaged(path, f"has {len(content):,} bytes, but its header says {promised:,}")
    return np.frombuffer(content, np.uint8, offset=header).reshape(sizes)
