"""The port of named data sets, and reading published files.

A named data set is one file in common/datasets/named/: a TOML file that says where it comes from, its checksums, its
shape and a format of common/datasets/formats.py, or a module whose `DATA_SETS` read themselves. Nothing else names it.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import importlib.util
import warnings
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from common.datasets.dataset import Dataset, Samples, content_checksum
from common.errors import ConfigurationError, DataUnavailableError

Progress = Callable[[str, int, int | None], None]  # file name, bytes done, bytes in all where known

_GZIP, _BZIP2 = b"\x1f\x8b", b"BZh"
_LARGEST_FILE = 32 * 2**20  # bytes on the wire; Fashion-MNIST's train images have 26.4 MB
_LARGEST_ARCHIVE = 192 * 2**20
_LARGEST_CONTENT = 64 * 2**20  # of a file, uncompressed


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetDescription:
    """What is known of a data set, and where it is."""

    name: str
    shape: tuple[int, ...]
    classes: int  # 0: real targets
    train: int  # records
    test: int
    source: str
    licence: str
    target_range: tuple[float, float] | None = None  # of real targets
    files: tuple[Path, ...] = ()  # empty: not here

    @property
    def present(self) -> bool:
        return bool(self.files)


@dataclass(frozen=True, slots=True)
class Download:
    """How to download: from a mirror of one's own first, from one package registry alone, and who is told."""

    mirror: str | None = None
    registry: str | None = None
    progress: Progress | None = None


class NamedDataset(ABC):
    """A data set with a name of its own."""

    about: DatasetDescription
    checksum: str | None  # of its content; None: not checked
    part_of: str | None = None  # the data set whose records these are, where that is another one
    in_data_dir = True  # a file or folder of its name there is its own
    absent = ""  # what the error says where the data set is not here

    @abstractmethod
    def find(self, data_dir: Path) -> tuple[Path, ...]:
        """Return all of its files, or none."""

    @abstractmethod
    def read(self, paths: Sequence[Path]) -> tuple[Samples, Samples]:
        """Return train and test."""

    def load(self, data_dir: Path) -> Dataset:
        """Return the data set; raise DataUnavailableError where it is absent or not the published one."""
        about, paths = self.about, self.find(data_dir)
        if not paths:
            raise DataUnavailableError(f"{about.name}: {self.absent.format(data_dir=data_dir)}")
        train, test = self.read(paths)
        found = content_checksum(train, test)
        if self.checksum not in (None, found):
            self.refuse(paths)
        return Dataset(about.name, about.shape, about.classes, train, test, found, about.target_range)

    @abstractmethod
    def refuse(self, paths: Sequence[Path]) -> None:
        """Raise DataUnavailableError for files with another content."""

    def get(self, data_dir: Path, download: Download) -> tuple[Path, ...]:  # noqa: ARG002
        """Return its files, downloaded or written where needed; the default is in an installed package."""
        self.load(data_dir)  # the error says which package carries it
        return self.find(data_dir)


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file, where it is served, and how to tell that it is the right one."""

    name: str
    urls: tuple[str, ...]
    largest: int  # bytes on the wire
    checksum: Callable[[Path], str]
    expected: str

    def refusal(self, path: Path) -> str | None:
        """Return why the file's content is wrong, or None."""
        try:
            found = self.checksum(path)
        except DataUnavailableError as error:
            return f"sent unexpected content: {error}"
        return (
            None if found == self.expected else f"sent unexpected content: {found}, expected {self.expected}"
        )


Alternatives = tuple[tuple[RemoteFile, ...], ...]  # any one of them makes the data set


@dataclass(frozen=True, slots=True)
class Format:
    """How published files are read."""

    read: Callable[[Sequence[Path]], tuple[Samples, Samples]]
    checksum: Callable[[Path], str] | None = None  # of a file, where it is not the sha256 of its content
    package: str | None = None  # that reading needs

    @property
    def readable(self) -> bool:
        return self.package is None or importlib.util.find_spec(self.package) is not None

    def checksum_of(self, path: Path) -> str:
        if self.checksum is not None:
            return self.checksum(path)
        return hashlib.sha256(read_content(path, _LARGEST_CONTENT)).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """Files that make a data set, as they are published."""

    format: Format
    files: Mapping[str, str]  # by name their checksums: of the content, as mirrors compress differently
    mirrors: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """An archive with all files of a data set's first form."""

    url: str
    unpack: Callable[[Path], Mapping[str, bytes]]  # an archive -> its files by name, uncompressed
    registry: str | None = None  # the package registry that carries it; None: it is the published one

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]

    def contents(self, path: Path, names: Iterable[str]) -> dict[str, bytes]:
        """Return the files of these names inside."""
        try:
            files = self.unpack(path)
            return {name: files[name] for name in names}
        except Exception as error:  # a decoder of untrusted bytes may raise anything
            raise DataUnavailableError(
                f"{path}: cannot be unpacked ({type(error).__name__}: {error})"
            ) from error


@dataclass
class PublishedDataset(NamedDataset):
    """A data set that mirrors serve, in one form or in several."""

    about: DatasetDescription
    checksum: str | None
    title: str
    folders: tuple[str, ...]  # under the data directory, in the order to look in
    forms: tuple[Form, ...]  # in the order of preference
    archives: tuple[Archive, ...] = ()

    def find(self, data_dir: Path) -> tuple[Path, ...]:
        # A form that needs an absent package comes last: found all the same, so that the error can say what is missing.
        for form in sorted(self.forms, key=lambda form: not form.format.readable):
            paths = [path for path in self._paths(form, data_dir) if path is not None]
            if len(paths) == len(form.files):
                return tuple(paths)
        return ()

    def load(self, data_dir: Path) -> Dataset:
        if not self.find(data_dir):
            missing = []
            for form in self.forms:
                here = zip(form.files, self._paths(form, data_dir), strict=True)
                missing.append(" and ".join(name for name, path in here if path is None))
            name = self.about.name
            raise DataUnavailableError(
                f"{name} is not in {data_dir}: run `mapa data get {name}`,"
                f" {remedy(data_dir / name, ', or '.join(missing))}"
            )
        return super().load(data_dir)

    def read(self, paths: Sequence[Path]) -> tuple[Samples, Samples]:
        return self._form_of(paths).format.read(paths)

    def refuse(self, paths: Sequence[Path]) -> None:
        form = self._form_of(paths)
        pairs = zip(paths, form.files.values(), strict=True)
        if wrong := [str(path) for path, expected in pairs if form.format.checksum_of(path) != expected]:
            raise DataUnavailableError(
                f"not the published {self.title}: the sha256 of {', '.join(wrong)} differs; remove these files and run"
                f" `mapa data get {self.about.name}`, or name another data set by a dotted path in data.set"
            )

    def offers(self, mirror: str | None = None, registry: str | None = None) -> Alternatives:
        """Return the sets of files to download, any one of which makes the data set, in the order to try them.

        With a registry only its package, from one's own mirror or the registry.
        """
        for archive in self.archives:
            if archive.registry == registry:
                return ((self._packed(archive, mirror),),)
        if registry is not None:
            allowed = ", ".join(one.registry for one in self.archives if one.registry) or "none"
            raise ConfigurationError(
                f"--from {registry}: {self.about.name} is not there; allowed are {allowed}"
            )
        return tuple(
            tuple(self._remote(name, form, mirror) for name in form.files)
            for form in self.forms
            if form.mirrors or (mirror and form.format.readable)
        )

    def get(self, data_dir: Path, download: Download) -> tuple[Path, ...]:
        try:
            self.load(data_dir)
        except DataUnavailableError:
            from common.datasets.download import fetch_dataset, install  # HTTP: only a download needs it

            offered, folder = self.offers(download.mirror, download.registry), data_dir / self.about.name
            fetched = fetch_dataset(self.about.name, folder, offered, progress=download.progress)
            for archive in self.archives:
                if fetched[0].name == archive.name:
                    install(fetched[0], archive.contents(fetched[0], self._plain()))
            self.load(data_dir)  # names a damaged file that is found before the new ones
        return self.find(data_dir)

    def _paths(self, form: Form, data_dir: Path) -> list[Path | None]:
        """Return where each file is, with or without .gz, in the first folder that has it."""
        found = []
        for file in form.files:
            names = (file.removesuffix(".gz"), file)
            places = (data_dir / folder / name for folder in self.folders for name in names)
            found.append(next((path for path in places if path.is_file()), None))
        return found

    def _form_of(self, paths: Sequence[Path]) -> Form:
        return next(form for form in self.forms if {paths[0].name, f"{paths[0].name}.gz"} & set(form.files))

    def _remote(self, name: str, form: Form, mirror: str | None) -> RemoteFile:
        urls = (*self._own(mirror, name), *(f"{place}{name}" for place in form.mirrors))
        return RemoteFile(name, urls, _LARGEST_FILE, form.format.checksum_of, form.files[name])

    def _packed(self, archive: Archive, mirror: str | None) -> RemoteFile:
        """Return an archive as a file to download, refused where a file inside has another checksum."""
        expected = self._plain()

        def checksums(path: Path) -> str:
            files = archive.contents(path, expected)
            return _listed({name: hashlib.sha256(content).hexdigest() for name, content in files.items()})

        urls = (*self._own(mirror, archive.name), archive.url)
        return RemoteFile(archive.name, urls, _LARGEST_ARCHIVE, checksums, _listed(expected))

    def _plain(self) -> dict[str, str]:
        """Return the checksums of the first form's files by their names without .gz."""
        return {name.removesuffix(".gz"): sha256 for name, sha256 in self.forms[0].files.items()}

    def _own(self, mirror: str | None, file: str) -> tuple[str, ...]:
        """Return where the user's mirror may have a file: files side by side, or in folders."""
        if mirror is None:
            return ()
        return f"{mirror.rstrip('/')}/{file}", f"{mirror.rstrip('/')}/{self.about.name}/{file}"


def _listed(checksums: Mapping[str, str]) -> str:
    return ", ".join(f"sha256 of {name} {sha256}" for name, sha256 in checksums.items())


def in_package(package: str, *files: str) -> tuple[Path, ...]:
    """Return files inside an installed package, which is not imported; none where one is missing."""
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations if spec else None) or ():
        paths = tuple(Path(folder) / file for file in files)
        if all(path.is_file() for path in paths):
            return paths
    return ()


def read_content(path: Path, limit: int) -> bytes:
    """Return a file's content, uncompressed; raise DataUnavailableError where it is more than `limit` bytes."""
    try:
        with path.open("rb") as stream:
            content = decompressed(stream, limit)
    except (OSError, EOFError, zlib.error) as error:
        raise damaged(path, f"cannot be read completely ({error})") from error
    if len(content) > limit:
        raise damaged(path, f"contains more than the expected {limit:,} bytes")
    return content


def decompressed(stream: BinaryIO, limit: int) -> bytes:
    """Return the content of a file, at most one byte more than the limit.

    Compression is told from the first bytes: browsers unpack a .gz and keep its name.
    """
    head = stream.read(3)
    stream.seek(0)
    if head.startswith(_GZIP):
        return gzip.GzipFile(fileobj=stream).read(limit + 1)
    if head.startswith(_BZIP2):
        return bz2.BZ2File(stream).read(limit + 1)
    return stream.read(limit + 1)


def numbers_of(text: bytes, path: Path) -> npt.NDArray[np.float64]:
    """Return the numbers of a text, with white space between them."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # numpy only warns of text that is no number
        try:
            return np.fromstring(text.decode("ascii"), np.float64, sep=" ")
        except (DeprecationWarning, ValueError) as error:
            raise damaged(path, f"is not text of numbers ({error})") from error


def sha256_of(path: Path) -> str:
    """Return the checksum of the file as it is, compressed or not."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def damaged(path: Path, reason: str) -> DataUnavailableError:
    """Return the error for a file that is here but cannot be used."""
    return DataUnavailableError(f"{path}: {reason}; remove it and download it again with `mapa data get`")


def remedy(folder: Path, files: str) -> str:
    """Say what an operator can do without a download."""
    return (
        f"put {files} into {folder}, set MAPA_DATA_DIR to a directory that contains them, "
        'or use data.set = "mnist-5k", which needs no download'
    )
