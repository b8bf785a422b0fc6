"""The port of named data sets, and reading published files.

A named data set is one file in common/datasets/named/: where it comes from, its checksums, its shape, how it is read.
The file ends with `DATA_SETS`, its data sets; nothing else names them.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from common.datasets.dataset import Dataset, Samples, content_checksum
from common.errors import ConfigurationError, DataUnavailableError

Progress = Callable[[str, int, int | None], None]  # file name, bytes done, bytes in all where known
Refusal = Callable[[Path], str | None]  # why the file's content is wrong, or None

_GZIP, _BZIP2 = b"\x1f\x8b", b"BZh"
_LARGEST_DOWNLOAD = 32 * 2**20  # bytes; Fashion-MNIST's train images have 26.4 MB


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


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file, where it is served, and how to tell that it is the right one."""

    name: str
    urls: tuple[str, ...]
    largest: int  # bytes on the wire
    refusal: Refusal


Alternatives = tuple[tuple[RemoteFile, ...], ...]  # any one of them makes the data set


@dataclass(frozen=True, slots=True)
class Archive:
    """An archive with all files of a data set."""

    registry: str  # the package registry that carries it; "": it is the published one
    file: str
    urls: tuple[str, ...]
    largest: int
    unpack: Callable[[Path], dict[str, bytes]]  # an archive -> its files by name


class NamedDataset(ABC):
    """A data set with a name of its own."""

    about: DatasetDescription
    checksum: str | None  # of its content; None: not checked
    part_of: str | None = None  # checksum of the data set whose records these are, where that is another one

    @abstractmethod
    def find(self, data_dir: Path) -> tuple[Path, ...]:
        """Return all of its files, or none."""

    @abstractmethod
    def load(self, data_dir: Path) -> Dataset:
        """Return the data set; raise DataUnavailableError where it is absent or not the published one."""

    def get(self, data_dir: Path, download: Download) -> tuple[Path, ...]:  # noqa: ARG002
        """Return its files, downloaded or written where needed; the default is in an installed package."""
        self.load(data_dir)  # the error says which package carries it
        return self.find(data_dir)

    def check(self, data_dir: Path) -> None:
        """Raise DataUnavailableError where the files that are here are not the published ones."""
        self.load(data_dir)


class DownloadedDataset(NamedDataset):
    """A data set that mirrors serve."""

    archives: tuple[Archive, ...] = ()
    files: Mapping[str, str]  # file -> sha256 of its content, uncompressed: mirrors compress differently

    @abstractmethod
    def published(self, mirror: str | None) -> Alternatives:
        """Return the sets of files, any one of which makes the data set, in the order to try them."""

    def offers(self, mirror: str | None = None, registry: str | None = None) -> Alternatives:
        """Return what to download; with a registry only its package, from one's own mirror or the registry."""
        if registry is None:
            return self.published(mirror)
        known = {archive.registry: archive for archive in self.archives if archive.registry}
        if registry not in known:
            allowed, name = ", ".join(known) or "none", self.about.name
            raise ConfigurationError(f"--from {registry}: {name} is not there; allowed are {allowed}")
        return ((self.archive_file(known[registry], mirror),),)

    def get(self, data_dir: Path, download: Download) -> tuple[Path, ...]:
        try:
            self.load(data_dir)
        except DataUnavailableError:
            from common.datasets.download import fetch_dataset, install  # HTTP: only a download needs it

            offered, folder = self.offers(download.mirror, download.registry), data_dir / self.about.name
            fetched = fetch_dataset(self.about.name, folder, offered, progress=download.progress)
            for archive in self.archives:
                if fetched[0].name == archive.file:
                    install(fetched[0], archive.unpack, self.files)
            self.load(data_dir)  # names a damaged file that is found before the new ones
        return self.find(data_dir)

    def remote(
        self,
        file: str,
        places: Iterable[str],
        mirror: str | None,
        refusal: Refusal,
        largest: int | None = None,
    ) -> RemoteFile:
        """Return a file at these places; a mirror of one's own may have files side by side or in folders."""
        own = () if mirror is None else (f"{mirror.rstrip('/')}/", f"{mirror.rstrip('/')}/{self.about.name}/")
        urls = tuple(f"{place}{file}" for place in (*own, *places))
        return RemoteFile(file, urls, largest or _LARGEST_DOWNLOAD, refusal)

    def archive_file(self, archive: Archive, mirror: str | None) -> RemoteFile:
        """Return an archive as a file to download, refused where a file inside has another checksum."""

        def refusal(path: Path) -> str | None:
            from common.datasets.download import unpacked

            try:
                unpacked(path, archive.unpack, self.files)
            except DataUnavailableError as error:
                return f"sent unexpected content: {error}"
            return None

        return self.remote(archive.file, archive.urls, mirror, refusal, archive.largest)


class PublishedFiles(DownloadedDataset):
    """A data set in files whose names and checksums are published."""

    title: str
    folders: tuple[str, ...]  # under the data directory, in the order to look in
    largest: int  # bytes of a file, uncompressed
    mirrors: tuple[str, ...] = ()
    suffix: str = ""  # of a file as it is published

    @abstractmethod
    def read(self, paths: Mapping[str, Path]) -> tuple[Samples, Samples]:
        """Return train and test."""

    def find(self, data_dir: Path) -> tuple[Path, ...]:
        found = self._found(data_dir)
        return tuple(found.values()) if len(found) == len(self.files) else ()

    def load(self, data_dir: Path) -> Dataset:
        paths, about = self._found(data_dir), self.about
        missing = [f"{name}{self.suffix}" for name in self.files if name not in paths]
        if missing:
            raise absent(about.name, data_dir, ", ".join(missing))
        train, test = self.read(paths)
        found = content_checksum(train, test)
        if self.checksum not in (None, found):
            raise not_published(self.title, about.name, self._wrong(paths))
        return Dataset(about.name, about.shape, about.classes, train, test, found)

    def check(self, data_dir: Path) -> None:
        if wrong := self._wrong(self._found(data_dir)):
            raise not_published(self.title, self.about.name, wrong)

    def published(self, mirror: str | None) -> Alternatives:
        for archive in self.archives:
            if not archive.registry:
                return ((self.archive_file(archive, mirror),),)
        files = (
            self.remote(f"{name}{self.suffix}", self.mirrors, mirror, unless(sha256, self._sha256))
            for name, sha256 in self.files.items()
        )
        return (tuple(files),)

    def _found(self, data_dir: Path) -> dict[str, Path]:
        folders = [data_dir / folder for folder in self.folders]
        found = {name: first_present(folders, {name, f"{name}{self.suffix}"}) for name in self.files}
        return {name: path for name, path in found.items() if path is not None}

    def _wrong(self, paths: Mapping[str, Path]) -> list[Path]:
        return [path for name, path in paths.items() if self._sha256(path) != self.files[name]]

    def _sha256(self, path: Path) -> str:
        return hashlib.sha256(read_content(path, self.largest)).hexdigest()


def unless(sha256: str, checksum: Callable[[Path], str]) -> Refusal:
    """Return the refusal of a file that has another checksum."""

    def refusal(path: Path) -> str | None:
        try:
            found = checksum(path)
        except DataUnavailableError as error:
            return f"sent unexpected content: {error}"
        return None if found == sha256 else f"sent unexpected content: sha256 {found}, expected {sha256}"

    return refusal


def first_present(folders: Iterable[Path], names: Iterable[str]) -> Path | None:
    """Return the first of the names that is a file in the first folder that has one."""
    names = sorted(names)  # a file beside its .gz comes first
    return next((folder / name for folder in folders for name in names if (folder / name).is_file()), None)


def read_content(path: Path, limit: int) -> bytes:
    """Return a file's content, uncompressed; raise DataUnavailableError where it is more than `limit` bytes.

    Compression is told from the first bytes: browsers unpack a .gz and keep its name.
    """
    try:
        with path.open("rb") as stream:
            head = stream.read(3)
            stream.seek(0)
            if head.startswith(_GZIP):
                content = gzip.GzipFile(fileobj=stream).read(limit + 1)
            elif head.startswith(_BZIP2):
                content = bz2.BZ2File(stream).read(limit + 1)
            else:
                content = stream.read(limit + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise damaged(path, f"cannot be read completely ({error})") from error
    if len(content) > limit:
        raise damaged(path, f"contains more than the expected {limit:,} bytes")
    return content


def sha256_of(path: Path) -> str:
    """Return the checksum of the file as it is, compressed or not."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def damaged(path: Path, reason: str) -> DataUnavailableError:
    """Return the error for a file that is here but cannot be used."""
    return DataUnavailableError(f"{path}: {reason}; remove it and download it again with `mapa data get`")


def not_published(title: str, name: str, files: Iterable[Path]) -> DataUnavailableError:
    """Return the error for files with other content than the published ones."""
    return DataUnavailableError(
        f"not the published {title}: the sha256 of {', '.join(map(str, files))} differs; remove these files and run"
        f" `mapa data get {name}`, or name another data set by a dotted path in data.set"
    )


def absent(name: str, data_dir: Path, files: str) -> DataUnavailableError:
    """Return the error for a data set that is not here."""
    return DataUnavailableError(
        f"{name} is not in {data_dir}: run `mapa data get {name}`, {remedy(data_dir / name, files)}"
    )


def remedy(folder: Path, files: str) -> str:
    """Say what an operator can do without a download."""
    return (
        f"put {files} into {folder}, set MAPA_DATA_DIR to a directory that contains them, "
        'or use data.set = "mnist-5k", which needs no download'
    )
