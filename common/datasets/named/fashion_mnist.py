"""Fashion-MNIST from its four idx files: 60,000 and 10,000 pictures of clothes, 28 × 28, as MNIST is laid out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from common.datasets.dataset import Dataset, content_checksum
from common.datasets.named.mnist import (
    CLASSES,
    SHAPE,
    TEST_IMAGES,
    TEST_LABELS,
    TRAIN_IMAGES,
    TRAIN_LABELS,
    content_sha256,
    read_part,
)
from common.datasets.published import absent, first_present
from common.errors import DataUnavailableError

NAME = "fashion-mnist"
CHECKSUM = "1b7166f059e25c243bd3048e565d106d3c2a12cb350d03657b4dd78b64c20957"
SHA256 = {  # of each file uncompressed; mirrors compress differently
    TRAIN_IMAGES: "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    TRAIN_LABELS: "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    TEST_IMAGES: "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    TEST_LABELS: "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}


def find_fashion(data_dir: Path) -> Mapping[str, Path]:
    """Return where each of the four files is; MNIST's have the same names, so only folders of its own count."""
    folders = (data_dir / NAME, data_dir / "FashionMNIST" / "raw")  # the second is torchvision's
    found = {name: first_present(folders, (name, f"{name}.gz")) for name in SHA256}
    return {name: path for name, path in found.items() if path is not None}


def load_fashion(data_dir: Path, *, checksum: str | None = CHECKSUM) -> Dataset:
    """Return Fashion-MNIST; another content than the published one is refused, unless `checksum` is None."""
    paths = find_fashion(data_dir)
    missing = [f"{name}.gz" for name in SHA256 if name not in paths]
    if missing:
        raise absent(NAME, data_dir, ", ".join(missing))
    train = read_part(paths[TRAIN_IMAGES], paths[TRAIN_LABELS])
    test = read_part(paths[TEST_IMAGES], paths[TEST_LABELS])
    found = content_checksum(train, test)
    if checksum is not None and found != checksum:
        wrong = [str(path) for name, path in paths.items() if content_sha256(path) != SHA256[name]]
        raise DataUnavailableError(
            f"not the published Fashion-MNIST: the sha256 of {', '.join(wrong)} differs; remove these files and"
            f" run `mapa data get {NAME}`"
        )
    return Dataset(NAME, SHAPE, CLASSES, train, test, found)
