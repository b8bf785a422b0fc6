"""Download published files from the first mirror that serves them: resumed, checked, unpacked, moved into place."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import http.client
import io
import lzma
import os
import re
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from common.datasets.published import Alternatives, Progress, RemoteFile, remedy
from common.errors import DataUnavailableError

_TIMEOUT = 20.0  # seconds without a byte
_TRIES = 20  # connections to one mirror, as long as each brings something
_CHUNK = 2**16
_OUR_FAULT = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # of our disk; no other mirror would help
_LARGEST_MEMBER = 64 * 2**20  # bytes of a file in an archive
_RANGE = re.compile(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)")


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
                    _fetch_from(url, file, part, progress, timeout)
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


def _fetch_from(url: str, file: RemoteFile, part: Path, progress: Progress | None, timeout: float) -> None:
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


def _transfer(url: str, file: RemoteFile, part: Path, progress: Progress | None, timeout: float) -> None:
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
                if progress is not None:
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


def fetch_dataset(
    name: str, folder: Path, offered: Alternatives, *, progress: Progress | None = None
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


def tar_members(stream: io.BufferedIOBase, folder: str, ends: str | tuple[str, ...]) -> dict[str, bytes]:
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


def unpacked(
    path: Path, unpack: Callable[[Path], dict[str, bytes]], sha256: Mapping[str, str]
) -> dict[str, bytes]:
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


def install(archive: Path, unpack: Callable[[Path], dict[str, bytes]], sha256: Mapping[str, str]) -> None:
    """Put the files of an archive beside it, then remove it."""
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


def _plain(content: bytes) -> bytes:
    if not content.startswith(b"\x1f\x8b"):
        return content
    plain = zlib.decompressobj(zlib.MAX_WBITS | 16)
    return plain.decompress(content, _LARGEST_MEMBER)
