"""CIFAR-10 from the six files of its binary version: 50,000 and 10,000 colour pictures of 32 × 32."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from common.datasets.dataset import Dataset, Samples, content_checksum
from common.datasets.published import absent, damaged, first_present, read_content
from common.errors import DataUnavailableError

NAME = "cifar-10"
SHAPE = (3, 32, 32)  # red, green, blue planes
CLASSES = 10
CHECKSUM = "e03536b12623e8ab4df057ec70cb46334376d8342efdb3b4bf9c65e7f1a1f2c1"
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
RECORD = 1 + 3 * 32 * 32  # label, then the planes
LARGEST = 10_000 * RECORD


def find_cifar(data_dir: Path) -> Mapping[str, Path]:
    """Return where each of the six files is; one that is nowhere is left out."""
    unpacked = "cifar-10-batches-bin"  # the folder inside the published archive
    folders = (data_dir / NAME, data_dir / NAME / unpacked, data_dir / unpacked)
    found = {name: first_present(folders, (name,)) for name in SHA256}
    return {name: path for name, path in found.items() if path is not None}


def load_cifar(data_dir: Path, *, checksum: str | None = CHECKSUM) -> Dataset:
    """Return CIFAR-10; another content than the published one is refused, unless `checksum` is None."""
    paths = find_cifar(data_dir)
    missing = [name for name in SHA256 if name not in paths]
    if missing:
        raise absent(NAME, data_dir, ", ".join(missing))
    parts = [_read(paths[name]) for name in TRAIN]
    inputs, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    train, test = Samples(inputs, labels), Samples(*_read(paths[TEST]))
    found = content_checksum(train, test)
    if checksum is not None and found != checksum:
        wrong = [str(path) for name, path in paths.items() if _sha256(path) != SHA256[name]]
        raise DataUnavailableError(
            f"not the published CIFAR-10: the sha256 of {', '.join(wrong)} differs; remove these files and run"
            f" `mapa data get {NAME}`"
        )
    return Dataset(NAME, SHAPE, CLASSES, train, test, found)


def _read(
    path: Path,
) -> tuple[np.ndarray[tuple[int, int], np.dtype[np.uint8]], np.ndarray[tuple[int], np.dtype[np.int64]]]:
    content = np.frombuffer(read_content(path, LARGEST), np.uint8)
    if not len(content) or len(content) % RECORD:
        raise damaged(path, f"has {len(content):,} bytes, not a number of records of {RECORD}")
    records = content.reshape(-1, RECORD)
    labels = records[:, 0].astype(np.int64)
    if labels.max() >= CLASSES:
        raise damaged(path, f"contains the label {labels.max()}, not 0 to {CLASSES - 1}")
    return records[:, 1:].copy(), labels


def _sha256(path: Path) -> str:
    return hashlib.sha256(read_content(path, LARGEST)).hexdigest()
