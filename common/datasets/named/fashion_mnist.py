"""Fashion-MNIST from its four idx files: 60,000 and 10,000 pictures of clothes, 28 × 28, as MNIST is laid out."""

from __future__ import annotations

import io
from pathlib import Path

from common.datasets.named.mnist import (
    CLASSES,
    SHAPE,
    TEST_IMAGES,
    TEST_LABELS,
    TRAIN_IMAGES,
    TRAIN_LABELS,
    IdxDataset,
)
from common.datasets.published import Archive, DatasetDescription

SHA256 = {
    TRAIN_IMAGES: "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    TRAIN_LABELS: "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    TEST_IMAGES: "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    TEST_LABELS: "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}


def unpack_deb(path: Path) -> dict[str, bytes]:
    """Return the idx files of Debian's package dataset-fashion-mnist: an `ar` archive around a tar archive."""
    from common.datasets.download import tar_members

    with path.open("rb") as stream:
        if stream.read(8) != b"!<arch>\n":
            raise ValueError("not a Debian package")
        while header := stream.read(60):
            name, size = header[:16].decode("ascii").strip(), int(header[48:58])
            if name.startswith("data.tar"):
                inside = io.BytesIO(stream.read(size))
                return tar_members(inside, "./usr/share/datasets/fashion-mnist/", ".gz")
            stream.seek(size + size % 2, 1)
    raise ValueError("has no data.tar")


class FashionMnist(IdxDataset):
    title = "Fashion-MNIST"
    about = DatasetDescription(
        name="fashion-mnist",
        shape=SHAPE,
        classes=CLASSES,
        train=60_000,
        test=10_000,
        source="H. Xiao, K. Rasul, R. Vollgraf 2017 (Zalando Research)",
        licence="MIT",
    )
    checksum = "1b7166f059e25c243bd3048e565d106d3c2a12cb350d03657b4dd78b64c20957"
    files = SHA256
    folders = ("fashion-mnist", "FashionMNIST/raw")  # of its own: MNIST's files have the same names
    mirrors = (
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    )
    archives = (
        Archive(
            "debian",
            "dataset-fashion-mnist_0.0~git20200523.55506a9-1_all.deb",
            ("http://deb.debian.org/debian/pool/main/d/dataset-fashion-mnist/",),
            64 * 2**20,
            unpack_deb,
        ),
    )


DATA_SETS = (FashionMnist(),)
