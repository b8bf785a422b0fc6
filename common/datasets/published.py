"""Published files on disk: found in a few places, read with a cap, refused with what to do."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import zlib
from collections.abc import Iterable
from pathlib import Path

from common.errors import DataUnavailableError

_GZIP, _BZIP2 = b"\x1f\x8b", b"BZh"


def first_present(folders: Iterable[Path], names: Iterable[str]) -> Path | None:
    """Return the first of the names that is a file in the first folder that has one."""
    names = tuple(names)
    return next((folder / name for folder in folders for name in names if (folder / name).is_file()), None)


def read_content(path: Path, limit: int) -> bytes:
    """Return a file's content, uncompressed; more than `limit` bytes of it are refused.

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
