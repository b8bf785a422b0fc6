"""Download published files from the first mirror that serves them: resumed, checked, unpacked, moved into place."""

from __future__ import annotations

import contextlib
import errno
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

from common.datasets.published import Alternatives, Progress, RemoteFile, remedy
from common.errors import DataUnavailableError

_TIMEOUT = 20.0  # seconds without a byte
_TRIES = 20  # connections to one mirror, as long as each brings something
_CHUNK = 2**16
_OUR_FAULT = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # of our disk; no other mirror would help


class DownloadError(DataUnavailableError):
    """No mirror served the file; `failures` has each URL with its reason."""

    def __init__(self, name: str, failures: list[tuple[str, str]], advice: str = "") -> None:
        listed = "\n".join(f"  {url}: {reason}" for url, reason in failures)
        super().__init__(f"{name}: no mirror could provide it\n{listed}{advice}")
        self.failures = failures


class _Refused(Exception):
    """The mirror serves something else under this name."""


def fetch(
    file: RemoteFile, folder: Path, *, progress: Progress | None = None, timeout: float = _TIMEOUT
) -> Path:
    """Return the file in `folder`, downloaded unless it is there and right."""
    target, part = folder / file.name, folder / f"{file.name}.part"
    failures: list[tuple[str, str]] = []
    with _writing(target):
        folder.mkdir(parents=True, exist_ok=True)
        with _exclusive(folder):
            if target.is_file() and file.refusal(target) is None:
                return target
            for url in file.urls:
                try:
                    _complete(url, file, part, progress, timeout)
                except (OSError, http.client.HTTPException, _Refused) as error:
                    if isinstance(error, OSError) and (error.filename or error.errno in _OUR_FAULT):
                        raise
                    cause = error.reason if isinstance(error, urllib.error.URLError) else error
                    failures.append((url, str(cause) or type(cause).__name__))
                    if not _size(part):
                        part.unlink(missing_ok=True)
                else:
                    part.replace(target)
                    return target
    raise DownloadError(file.name, failures)


def _complete(url: str, file: RemoteFile, part: Path, progress: Progress | None, timeout: float) -> None:
    """Complete the part file from one mirror, over as many connections as bring something."""
    for remaining in reversed(range(_TRIES)):
        before = _size(part)
        try:
            _transfer(url, file, part, progress, timeout)
        except (OSError, http.client.HTTPException):
            if _size(part) <= before or not remaining:
                raise
            continue
        refusal = file.refusal(part)
        if refusal is None:
            return
        part.unlink()
        if (
            not before or not remaining
        ):  # else its beginning was perhaps another mirror's, compressed differently
            raise _Refused(refusal)


def _transfer(url: str, file: RemoteFile, part: Path, progress: Progress | None, timeout: float) -> None:
    """Append what one connection brings; raise where it ends before the file does."""
    done = _size(part)
    headers = {"User-Agent": "mapa-testbed", "Accept-Encoding": "identity"}
    if done:
        headers["Range"] = f"bytes={done}-"
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=timeout)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and done:
                return  # there is no more: whole, or wrong and begun again
            raise _Refused(f"HTTP {error.code} {error.reason}") from error
    with response:
        sent = response.headers.get("Content-Range", "")
        if response.status != http.HTTPStatus.PARTIAL_CONTENT:
            done = 0  # Range was ignored: from the beginning
        elif not sent.startswith(f"bytes {done}-"):
            if done:
                return  # of no use: what is there is whole, or wrong and begun again
            raise _Refused("sent another range than was asked for")
        total = None if response.length is None else done + response.length
        if done and (size := sent.rpartition("/")[2]).isdecimal():
            total = int(size)  # a server may send less than the range that was asked for
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


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


@contextlib.contextmanager
def _writing(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataUnavailableError(
            f"cannot write {target}: {error}; set MAPA_DATA_DIR to a writable directory"
        ) from error


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
    wanted = " or ".join(", ".join(file.name for file in files) for files in offered)
    raise DownloadError(
        name,
        failures,
        "\nTry again later (partial downloads are kept), set MAPA_DATA_MIRROR to a server of your own,"
        f" {remedy(folder, wanted)}.",
    )


def install(archive: Path, files: Mapping[str, bytes]) -> None:
    """Put the files of an archive beside it, then remove it."""
    for name, content in files.items():
        target = archive.with_name(name)
        with _writing(target):
            part = archive.with_name(f"{name}.part")
            with part.open("wb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
            part.replace(target)
    with _writing(archive):
        archive.unlink()
