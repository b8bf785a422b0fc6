"""MNIST, USPS and custom data sets: found, read, refused."""

from __future__ import annotations

import bz2
import gzip
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import h5py
import numpy as np
import pytest

from common.datasets.catalogue import DATA_SETS, data_directory, describe, load_dataset, named_dataset
from common.datasets.dataset import Dataset, Samples, check_dataset, content_checksum
from common.datasets.formats import read_h5, read_idx, read_libsvm, read_zipcode
from common.errors import ConfigurationError, DataUnavailableError
from tests.datasets_support import (
    LIBSVM,
    TEST_LABELS,
    TRAIN_IMAGES,
    TRAIN_LABELS,
    ZIPCODE,
    idx_bytes,
    libsvm_bytes,
    mnist_contents,
    publish,
    real_directories,
    usps_parts,
    write_mnist,
    write_usps_h5,
    zipcode_bytes,
)

SUPPORT = "tests.datasets_support"


def unchecked(name: str) -> Any:
    """Return a data set of which any content is taken."""
    return replace(cast(Any, named_dataset(name)), checksum=None)


load_mnist, load_usps, find_usps = unchecked("mnist").load, unchecked("usps").load, unchecked("usps").find


def small_mnist(tmp_path: Path) -> Dataset:
    write_mnist(tmp_path / "mnist")
    return load_mnist(tmp_path)


def small_usps(tmp_path: Path) -> Dataset:
    write_usps_h5(tmp_path / "usps" / "usps.h5")
    return load_usps(tmp_path)


def real(name: str, directory: Path) -> Callable[[Path], Dataset]:
    return lambda _: load_dataset(name, directory)


SOURCES: list[Callable[[Path], Dataset]] = [
    small_mnist,
    small_usps,
    real("mnist-5k", Path("nowhere")),
    *(
        real(name, directory)
        for name, file in (
            *((name, "train-images-idx3-ubyte.gz") for name in ("mnist", "fashion-mnist")),
            *(("usps", "usps.h5"), ("cifar-10", "data_batch_1.bin")),
        )
        for directory in real_directories(f"{name}/{file}")
    ),
]


@pytest.mark.parametrize("source", SOURCES)
def test_a_data_set_keeps_its_contract(source: Callable[[Path], Dataset], tmp_path: Path) -> None:
    dataset = source(tmp_path)
    sizes = {d.name: (d.train, d.test) for d in describe(tmp_path)}
    assert check_dataset(dataset, dataset.name).test is not None
    for part in (dataset.train, dataset.test):
        pixels = part.values()
        assert 0 <= pixels.min() < pixels.max() <= 1
    assert dataset.checksum == content_checksum(dataset.train, dataset.test)
    if len(dataset.train) > 100:
        assert (len(dataset.train), len(dataset.test)) == sizes[dataset.name]


@pytest.mark.parametrize("place", ["mnist", "MNIST/raw", "."])
@pytest.mark.parametrize("compressed", [True, False])
def test_mnist_is_found_in_the_usual_places(tmp_path: Path, place: str, compressed: bool) -> None:
    write_mnist(tmp_path / place, compressed=compressed)
    before = sorted(tmp_path.rglob("*"))
    dataset = load_mnist(tmp_path)
    assert (
        idx_bytes(dataset.train.inputs.reshape(-1, 28, 28).astype(np.uint8)) == mnist_contents()[TRAIN_IMAGES]
    )
    assert dataset.train.labels.tolist() == [i % 10 for i in range(30)]
    assert len(dataset.test) == 20
    assert sorted(tmp_path.rglob("*")) == before, "loading must not write"


def test_a_gz_that_a_browser_unpacked_is_read_all_the_same(tmp_path: Path) -> None:
    for name, content in mnist_contents().items():
        (tmp_path / f"{name}.gz").write_bytes(content)
    assert len(load_mnist(tmp_path).train) == 30


def test_a_missing_data_set_says_which_files_and_what_to_do(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist")
    (tmp_path / "mnist" / f"{TEST_LABELS}.gz").unlink()
    for name, files in (
        ("mnist", f"put {TEST_LABELS}.gz into"),
        ("usps", "usps.h5, or usps.bz2 and usps.t.bz2"),
    ):
        with pytest.raises(DataUnavailableError) as caught:
            load_dataset(name, tmp_path)
        for part in (files, str(tmp_path / name), f"mapa data get {name}", "MAPA_DATA_DIR", "mnist-5k"):
            assert part in str(caught.value)


def test_other_content_than_the_published_mnist_is_refused_and_each_wrong_file_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mnist(tmp_path / "mnist")
    contents = mnist_contents()
    publish(monkeypatch, "mnist", {**contents, TRAIN_IMAGES: b"", "t10k-images-idx3-ubyte": b""})
    monkeypatch.setattr(named_dataset("mnist"), "checksum", "other", raising=False)
    with pytest.raises(DataUnavailableError) as caught:
        load_dataset("mnist", tmp_path)
    assert f"{TRAIN_IMAGES}.gz" in str(caught.value)
    assert TRAIN_LABELS not in str(caught.value)
    assert "sha256" in str(caught.value)


IMAGES = idx_bytes(np.zeros((2, 28, 28), np.uint8))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "0 bytes"),
        (IMAGES[:9], "9 bytes"),
        (IMAGES[:-1], "its header says"),
        (IMAGES + b"\0", "its header says"),
        (b"\0\0\x0d\3" + IMAGES[4:], "00000d03"),
        (b"\0\0\x08\1" + IMAGES[4:], "00000801"),
        (b"<html>not found</html>", "begins with"),
        (gzip.compress(IMAGES, mtime=0)[:-9], "cannot be read completely"),
        (gzip.compress(IMAGES, mtime=0)[:12] + b"\xff" * 30, "cannot be read completely"),
        (b"\0\0\x08\3" + b"\xff" * 12 + b"\0" * 50, "its header says"),
    ],
)
def test_a_damaged_idx_file_is_named_with_the_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / TRAIN_IMAGES
    path.write_bytes(content)
    with pytest.raises(DataUnavailableError) as caught:
        read_idx(path, 3)
    assert str(path) in str(caught.value)
    assert reason in str(caught.value)
    assert "mapa data get" in str(caught.value)


def test_a_decompression_bomb_is_refused(tmp_path: Path) -> None:
    path = tmp_path / TRAIN_IMAGES
    with gzip.open(path, "wb", compresslevel=1) as stream:
        for _ in range(65):
            stream.write(bytes(2**20))
    with pytest.raises(DataUnavailableError, match="contains more than"):
        read_idx(path, 3)


@pytest.mark.parametrize(
    ("name", "array", "reason"),
    [
        (TRAIN_IMAGES, np.zeros((30, 27, 28), np.uint8), "images of"),
        (TRAIN_LABELS, np.zeros(29, np.uint8), "29 labels for 30 images"),
        (TRAIN_LABELS, np.full(30, 10, np.uint8), "label 10"),
    ],
)
def test_files_that_do_not_fit_together_are_refused(
    tmp_path: Path, name: str, array: np.ndarray, reason: str
) -> None:
    write_mnist(tmp_path)
    (tmp_path / name).write_bytes(idx_bytes(array))
    with pytest.raises(DataUnavailableError, match=reason):
        load_mnist(tmp_path)


def write_libsvm(folder: Path, *, sparse: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for part, name in zip(("train", "test"), LIBSVM, strict=True):
        (folder / name).write_bytes(libsvm_bytes(part, sparse=sparse))


def write_zipcode(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for part, name in zip(("train", "test"), ZIPCODE, strict=True):
        (folder / name).write_bytes(zipcode_bytes(part))


def test_every_form_of_usps_gives_the_same_bits_of_the_same_values(tmp_path: Path) -> None:
    writers: dict[str, Callable[[Path], None]] = {
        "h5": lambda folder: write_usps_h5(folder / "usps.h5"),
        "libsvm": write_libsvm,
        "sparse": lambda folder: write_libsvm(folder, sparse=True),
        "zipcode": write_zipcode,
    }
    checksums = set()
    for name, write in writers.items():
        write(tmp_path / name / "usps")
        dataset = load_usps(tmp_path / name)
        values, labels = usps_parts()["test"]
        np.testing.assert_array_equal(dataset.test.inputs, ((values + 1000) / 2000).astype(np.float32))
        np.testing.assert_array_equal(dataset.test.labels, labels)
        checksums.add(dataset.checksum)
    assert len(checksums) == 1


def test_libsvm_decimals_beyond_the_steps_are_kept_and_rounding_past_the_range_is_clipped(
    tmp_path: Path,
) -> None:
    path = tmp_path / "usps.bz2"
    path.write_bytes(bz2.compress(b"10 1:-0.99987 2:1.0000001 3:-1.0000001\n"))
    samples = read_libsvm(path)
    np.testing.assert_array_equal(samples.inputs[0, :4], np.float32([0.000065, 1, 0, 0.5]))
    assert samples.labels.tolist() == [9]


def test_usps_prefers_h5_then_libsvm_then_zipcode(tmp_path: Path) -> None:
    assert find_usps(tmp_path) == ()
    write_zipcode(tmp_path / "usps")
    assert [path.name for path in find_usps(tmp_path)] == ["zip.train.gz", "zip.test.gz"]
    write_libsvm(tmp_path)
    assert find_usps(tmp_path) == (tmp_path / "usps.bz2", tmp_path / "usps.t.bz2")
    write_usps_h5(tmp_path / "usps.h5")
    assert find_usps(tmp_path) == (tmp_path / "usps.h5",)


def test_without_h5py_usps_is_read_from_text_and_an_h5_alone_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    (tmp_path / "usps.h5").touch()
    with pytest.raises(DataUnavailableError, match=r"mapa-testbed\[usps\]"):
        load_usps(tmp_path)
    write_libsvm(tmp_path)
    assert len(load_usps(tmp_path).train) == 23


@pytest.mark.parametrize("write", [lambda d: write_usps_h5(d / "usps.h5"), write_libsvm, write_zipcode])
def test_other_content_than_the_published_usps_is_refused(
    tmp_path: Path, write: Callable[[Path], None]
) -> None:
    write(tmp_path)
    with pytest.raises(DataUnavailableError, match="not the published USPS") as caught:
        load_dataset("usps", tmp_path)
    assert str(find_usps(tmp_path)[0]) in str(caught.value)


LINE = b"3 " + b" ".join(b"%d:0.5" % i for i in range(1, 257))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "is not"),
        (b"hello\n", "not text of numbers"),
        (b"3 1:\n", "is not LIBSVM text"),
        (LINE + b" 257:0.1\n", "index outside"),
        (LINE + b" 0:0.1\n", "index outside"),
        (b"11 " + LINE[2:], "label"),
        (b"0 " + LINE[2:], "label"),
        (LINE.replace(b"7:0.5", b"7:1.5", 1), "range"),
        (LINE.replace(b"7:0.5", b"7:nan", 1), "range"),
        (b"\xff\xfe", "not text of numbers"),
    ],
)
def test_damaged_libsvm_text_is_refused(tmp_path: Path, text: bytes, reason: str) -> None:
    path = tmp_path / "usps.bz2"
    path.write_bytes(bz2.compress(text))
    with pytest.raises(DataUnavailableError, match=reason):
        read_libsvm(path)
    path.write_bytes(bz2.compress(LINE)[:-4])
    with pytest.raises(DataUnavailableError, match="cannot be read completely"):
        read_libsvm(path)


def test_a_damaged_h5_or_zipcode_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "zip.train.gz"
    path.write_bytes(gzip.compress(b"1.0 " * 300))
    with pytest.raises(DataUnavailableError, match="257 numbers"):
        read_zipcode(path)
    path = tmp_path / "usps.h5"
    path.write_bytes(b"no HDF5 at all")
    with pytest.raises(DataUnavailableError, match="not an HDF5 file"):
        read_h5(path)
    for shape, labels in (((3, 255), 3), ((3, 256), 2), ((0, 256), 0)):
        with h5py.File(path, "w") as file:
            for part in ("train", "test"):
                file[f"{part}/data"] = np.zeros(shape, np.float32)
                file[f"{part}/target"] = np.zeros(labels, np.int32)
        with pytest.raises(DataUnavailableError, match="of shape"):
            read_h5(path)


def test_the_data_directory_is_the_environments_or_data_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert data_directory({"MAPA_DATA_DIR": "/srv/sets"}) == Path("/srv/sets")
    assert data_directory({"MAPA_DATA_DIR": "~/sets"}) == Path.home() / "sets"
    assert data_directory({"MAPA_DATA_DIR": ""}) == data_directory({}) == tmp_path / "data"


def test_describe_says_what_is_here(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist")
    (tmp_path / "mnist" / f"{TEST_LABELS}.gz").unlink()
    described = {d.name: d for d in describe(tmp_path)}
    assert tuple(described) == DATA_SETS
    assert described["mnist-5k"].present
    assert not described["mnist"].present
    write_mnist(tmp_path / "mnist")
    (mnist,) = [d for d in describe(tmp_path) if d.name == "mnist"]
    assert mnist.present
    assert len(mnist.files) == 4


def test_a_custom_data_set_is_loaded_by_dotted_path(tmp_path: Path) -> None:
    dataset = load_dataset(f"{SUPPORT}:Stripes", tmp_path)
    assert (dataset.name, dataset.shape, len(dataset.train), len(dataset.test)) == ("stripes", (4, 4), 12, 8)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("cifar", "one of breast-cancer, cifar-10"),
        ("", "one of"),
        ("no.such.module:Class", "no.such.module"),
        (f"{SUPPORT}:Missing", "Missing"),
        (f"{SUPPORT}:", "package.module:Class"),
        (f"{SUPPORT}:NoLoad", "load"),
        (f"{SUPPORT}:FailingLoad", "ZeroDivisionError"),
        (f"{SUPPORT}:WrongLabels", "test labels go from 1 to 2, not 0 to 1"),
        (f"{SUPPORT}:FileServer", "made without arguments"),
    ],
)
def test_a_bad_name_is_a_configuration_error_that_names_the_key(
    tmp_path: Path, name: str, reason: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_dataset(name, tmp_path)
    assert f"data.set = {name!r}" in str(caught.value)
    assert reason in str(caught.value)


def test_the_checksum_tells_apart_what_differs() -> None:
    images, labels = np.arange(12, dtype=np.uint8).reshape(3, 4), np.arange(3)
    first = Samples(images, labels)
    others = [
        Samples(images[::-1], labels),
        Samples(images, labels[::-1]),
        Samples(images.astype(np.float32), labels),
        Samples(images.reshape(3, 2, 2), labels),
    ]
    checksums = [content_checksum(first, other) for other in (first, *others)]
    assert len(set(checksums)) == len(checksums)
    assert content_checksum(first, others[0]) != content_checksum(others[0], first)
    assert content_checksum(first) == content_checksum(Samples(np.asfortranarray(images), labels))
