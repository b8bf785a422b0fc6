"""Features of samples, and a cache on disk for models whose features take long to compute.

A cache file holds a key, a shape, a checksum and float32 numbers, nothing that could be executed. A file that is torn,
was swapped or holds a value that is not finite counts as absent and is written again. Without a folder there is no
cache. The accountant keeps its figures here, too (common/accounting/kept.py), as short texts with a key and a checksum.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol, runtime_checkable

import numpy as np

from common.datasets.dataset import Samples
from common.errors import ConfigurationError
from common.models.model import Features, Model

# Rows that are unpacked at a time; a multiple of the transform's chunk, so that parts round as the whole.
_UNPACKED_ROWS = 4096
FOLDER_VARIABLE = "MAPA_CACHE_DIR"
SIZE_VARIABLE = "MAPA_CACHE_MB"
SIZE_MB = 4096
SUFFIX = ".features"
_MAGIC = b"mapa-feature-v1\n"
_HEADER = struct.Struct("<16s32sQQ32s")  # magic, key, rows, columns, sha256 of the numbers
_TEXT_MAGIC = b"mapa-text-v1\n"
TEXT_SUFFIX = ".text"
_MOST_TEXTS, _MOST_TEXT = 4096, 1 << 16  # files, and bytes of one
_ROWS = 2048  # read at a time
_LEFT_OVER = 3600.0  # seconds after which an unfinished file is removed


@dataclass(frozen=True, slots=True)
class FeatureCache:
    """A folder of this user alone, holding at most `most_bytes`."""

    folder: Path
    most_bytes: int = SIZE_MB << 20

    def read(self, key: bytes, rows: int, columns: int) -> Features | None:
        """Return what was written under this key; None: nothing, or nothing that can be trusted."""
        path = self._path(key)
        try:
            with _opened(path) as file:
                found = _read(file, key, rows, columns)
            if found is not None:
                os.utime(path)  # the least recently used goes first
        except OSError:
            return None
        return found

    def write(self, key: bytes, features: Features) -> None:
        """Write whole or not at all; a folder that cannot be written is no error."""
        size = _HEADER.size + features.nbytes
        self._put(self._path(key), size, lambda file: _write(file, key, features))

    def read_text(self, key: bytes) -> str | None:
        """Return the text written under this key; None: none, or none that is as it was written."""
        path = self._path(key, TEXT_SUFFIX)
        try:
            with _opened(path) as file:
                content = file.read(_MOST_TEXT + 1)
            checked, text = content[: len(_TEXT_MAGIC) + 64], content[len(_TEXT_MAGIC) + 64 :]
            if len(content) > _MOST_TEXT or checked != _text_head(key, text):
                return None
            os.utime(path)
            return text.decode()
        except (OSError, UnicodeDecodeError):
            return None

    def write_text(self, key: bytes, text: str) -> None:
        """Write a short text as features are written."""
        content = _text_head(key, text.encode()) + text.encode()
        if len(content) <= _MOST_TEXT:
            self._put(self._path(key, TEXT_SUFFIX), len(content), lambda file: file.write(content))

    def _put(self, path: Path, size: int, write: Callable[[BinaryIO], object]) -> None:
        if size > self.most_bytes:
            return
        try:
            if not self._ready():
                return
            self._make_room(size)
            handle, name = tempfile.mkstemp(dir=self.folder, suffix=".tmp")  # mode 0600
            try:
                with os.fdopen(handle, "wb") as file:
                    write(file)
                Path(name).replace(path)
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise
        except OSError:
            return

    def _path(self, key: bytes, suffix: str = SUFFIX) -> Path:
        return self.folder / f"{key.hex()}{suffix}"

    def _ready(self) -> bool:
        """Make the folder; say whether it is this user's, and nobody else may write to it."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = self.folder.stat()
        return found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)

    def _make_room(self, size: int) -> None:
        kept = []
        for path in self.folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another process makes room too
                found = path.lstat()
                if path.suffix == ".tmp" and found.st_mtime < time.time() - _LEFT_OVER:
                    path.unlink()
                elif path.suffix in (SUFFIX, TEXT_SUFFIX):
                    kept.append((found.st_mtime, found.st_size, path))
        texts = sorted(one for one in kept if one[2].suffix == TEXT_SUFFIX)
        for one in texts[: max(0, len(texts) + 1 - _MOST_TEXTS)]:
            one[2].unlink(missing_ok=True)
            kept.remove(one)
        total = sum(length for _, length, _ in kept)
        for _, length, path in sorted(kept):
            if total + size <= self.most_bytes:
                return
            path.unlink(missing_ok=True)
            total -= length


def user_cache(environ: Mapping[str, str] = os.environ) -> FeatureCache | None:
    """Return the cache of this user: MAPA_CACHE_DIR, or mapa in the user's cache folder; None: there is none."""
    text = environ.get(SIZE_VARIABLE, "").strip() or str(SIZE_MB)
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise ConfigurationError(f"{SIZE_VARIABLE} = {text!r}: must be a whole number of MB, 0 for no cache")
    given = environ.get(FOLDER_VARIABLE, "").strip()
    if given:
        folder = Path(given)
    elif above := environ.get("XDG_CACHE_HOME", "").strip():
        folder = Path(above) / "mapa"
    elif home := environ.get("HOME", "").strip():
        folder = Path(home) / ".cache" / "mapa"
    else:
        return None
    return FeatureCache(folder, int(text) << 20) if int(text) and folder.is_absolute() else None


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Open a plain file of this user, never a link, nor a pipe that would be waited for."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise OSError(f"{path}: not a file of this user")
        yield file


def _read(file: BinaryIO, key: bytes, rows: int, columns: int) -> Features | None:
    """Return rows × columns where all of the file is as it was written under this key."""
    size = _HEADER.size + 4 * rows * columns
    if os.fstat(file.fileno()).st_size != size:
        return None
    header = file.read(_HEADER.size)
    if len(header) != _HEADER.size:
        return None
    *known, checksum = _HEADER.unpack(header)
    if known != [_MAGIC, key, rows, columns]:
        return None
    features, found = np.empty((rows, columns), "<f4"), hashlib.sha256()
    for start in range(0, rows, _ROWS):
        part = features[start : start + _ROWS]
        if file.readinto(part.data) != part.nbytes:  # type: ignore[attr-defined]
            return None
        found.update(part.data)
        if not np.isfinite(part).all():
            return None
    return features.astype(np.float32, copy=False) if found.digest() == checksum else None


def _text_head(key: bytes, text: bytes) -> bytes:
    return _TEXT_MAGIC + key + hashlib.sha256(key + text).digest()


def _write(file: BinaryIO, key: bytes, features: Features) -> None:
    numbers = np.ascontiguousarray(features, "<f4")
    checksum = hashlib.sha256(numbers.data).digest()
    file.write(_HEADER.pack(_MAGIC, key, *numbers.shape, checksum))
    file.write(numbers.data)


@runtime_checkable
class Keyed(Protocol):
    """A model whose features take long: a flat row for each image, by that image and this key alone."""

    inputs: int

    @property
    def feature_key(self) -> str: ...


def features_of(model: Model, samples: Samples, cache: FeatureCache | None = None) -> Features:
    """Return the features of all samples; a model without a key of its own computes them each time."""
    if not isinstance(model, Keyed):
        return model.features(samples.values())
    key = None if cache is None else content_key(model, samples)
    if cache is not None and key is not None:
        found = cache.read(key, len(samples), model.inputs)
        if found is not None:
            return found
    features = np.empty((len(samples), model.inputs), np.float32)
    for start in range(0, len(samples), _UNPACKED_ROWS):
        rows = np.arange(start, min(start + _UNPACKED_ROWS, len(samples)))
        features[rows[0] : rows[-1] + 1] = model.features(samples.values(rows))
    if cache is not None and key is not None:
        cache.write(key, features)
    return features


def content_key(model: Keyed, samples: Samples) -> bytes:
    """Return the name of these features: the hash of the inputs and of all that is done to them."""
    inputs = np.ascontiguousarray(samples.inputs)
    about = f"mapa features\0{model.feature_key}\0{inputs.dtype.str}\0{inputs.shape}\0"
    found = hashlib.sha256(about.encode())
    found.update(inputs.data)
    return found.digest()
