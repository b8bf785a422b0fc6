"""Features of samples, and a cache on disk for models whose features take long to compute.

A cache file holds a checksum and float32 numbers, nothing that could be executed. A file that is torn, was swapped or
holds a value that is not finite counts as absent and is written again. Without a folder there is no cache. The
accountant keeps its figures here, too (common/accounting/kept.py), as short texts.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from common.datasets.dataset import Samples
from common.errors import require
from common.models.model import Features, Model

# Rows that are unpacked at a time; a multiple of the transform's chunk, so that parts round as the whole.
_UNPACKED_ROWS = 4096
FOLDER_VARIABLE = "MAPA_CACHE_DIR"
SIZE_VARIABLE = "MAPA_CACHE_MB"
SIZE_MB = 4096
SUFFIX, TEXT_SUFFIX = ".features", ".text"
_MAGIC = b"mapa-cache-v2\n\0\0"
_HEAD = len(_MAGIC) + hashlib.sha256().digest_size  # of a file, before its content
_MOST_TEXTS, _MOST_TEXT = 4096, 1 << 16  # files, and bytes of one
_QUIET = 2.0  # seconds between two lines of how far it is
_LEFT_OVER = 3600.0  # seconds after which an unfinished file is removed


@dataclass(frozen=True, slots=True)
class FeatureCache:
    """A folder of this user alone, holding at most `most_bytes`."""

    folder: Path
    most_bytes: int = SIZE_MB << 20

    def read(self, key: bytes, rows: int, columns: int) -> Features | None:
        """Return what was written under this key; None: nothing, or nothing that can be trusted."""
        size = 4 * rows * columns
        content = self._read(f"{key.hex()}{SUFFIX}", f"{rows} x {columns}", size)
        if content is None or len(content) != size:
            return None
        features = content.view("<f4").reshape(rows, columns).astype(np.float32, copy=False)
        return features if np.isfinite(features).all() else None

    def write(self, key: bytes, features: Features) -> None:
        """Write whole or not at all; a folder that cannot be written is no error."""
        rows, columns = features.shape
        self._write(f"{key.hex()}{SUFFIX}", f"{rows} x {columns}", np.ascontiguousarray(features, "<f4").data)

    def read_text(self, key: bytes) -> str | None:
        """Return the text written under this key; None: none, or none that is as it was written."""
        content = self._read(f"{key.hex()}{TEXT_SUFFIX}", "text", _MOST_TEXT)
        with contextlib.suppress(UnicodeDecodeError):
            return None if content is None else content.tobytes().decode()
        return None

    def write_text(self, key: bytes, text: str) -> None:
        """Write a short text as features are written."""
        if len(content := text.encode()) <= _MOST_TEXT:
            self._write(f"{key.hex()}{TEXT_SUFFIX}", "text", memoryview(content))

    def _read(self, name: str, about: str, most: int) -> npt.NDArray[np.uint8] | None:
        path = self.folder / name
        try:
            # never a link, nor a pipe that would be waited for
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(handle, "rb") as file:
                found = os.fstat(handle)
                sound = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
                if not sound or not _HEAD <= found.st_size <= _HEAD + most:
                    return None
                head, content = file.read(_HEAD), np.fromfile(file, np.uint8)
            if head != _head(name, about, content.data):
                return None
            os.utime(path)  # the least recently used goes first
        except OSError:
            return None
        return content

    def _write(self, name: str, about: str, content: memoryview[Any]) -> None:
        size = _HEAD + content.nbytes
        if size > self.most_bytes:
            return
        with contextlib.suppress(OSError):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = self.folder.stat()
            if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                return  # another user may write to it
            self._make_room(size)
            handle, part = tempfile.mkstemp(dir=self.folder, suffix=".tmp")  # mode 0600
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(_head(name, about, content))
                    file.write(content)
                Path(part).replace(self.folder / name)
            except BaseException:
                Path(part).unlink(missing_ok=True)
                raise

    def _make_room(self, size: int) -> None:
        kept = []
        for path in self.folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another process makes room too
                found = path.lstat()
                if path.suffix == ".tmp" and found.st_mtime < time.time() - _LEFT_OVER:
                    path.unlink()
                elif path.suffix in (SUFFIX, TEXT_SUFFIX):
                    kept.append((found.st_mtime, found.st_size, path))
        total, texts = sum(length for _, length, _ in kept), sum(one[2].suffix == TEXT_SUFFIX for one in kept)
        for _, length, path in sorted(kept):
            is_text = path.suffix == TEXT_SUFFIX
            if total + size > self.most_bytes or (is_text and texts >= _MOST_TEXTS):
                path.unlink(missing_ok=True)
                total, texts = total - length, texts - is_text


def _head(name: str, about: str, content: memoryview[Any]) -> bytes:
    """Return what a file begins with: its name holds the key, so that no other file's content stands for it."""
    digest = hashlib.sha256(f"{name}\0{about}\0".encode())
    digest.update(content)
    return _MAGIC + digest.digest()


def user_cache(environ: Mapping[str, str] = os.environ) -> FeatureCache | None:
    """Return the cache of this user: MAPA_CACHE_DIR, or mapa in the user's cache folder; None: there is none."""
    text = environ.get(SIZE_VARIABLE, "").strip() or str(SIZE_MB)
    whole = text.isascii() and text.isdigit() and len(text) <= 9
    require(whole, SIZE_VARIABLE, repr(text), "a whole number of MB, 0 for no cache")
    given, above, home = (environ.get(key, "").strip() for key in (FOLDER_VARIABLE, "XDG_CACHE_HOME", "HOME"))
    if not (given or above or home):
        return None
    folder = Path(given) if given else Path(above or f"{home}/.cache") / "mapa"
    return FeatureCache(folder, int(text) << 20) if int(text) and folder.is_absolute() else None


@runtime_checkable
class Keyed(Protocol):
    """A model whose features take long: a flat row for each image, by that image and this key alone."""

    name: str
    inputs: int

    @property
    def feature_key(self) -> str: ...


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def features_of(
    model: Model,
    samples: Samples,
    cache: FeatureCache | None = None,
    *,
    threads: int = 1,
    say: Callable[[str], None] | None = None,
) -> Features:
    """Return the features of all samples; a model without a key of its own computes them each time.

    Threads take parts that do not depend on their number, so neither do the bits. `say` is told how far it is.
    """
    if not isinstance(model, Keyed):
        return model.features(samples.values())
    key = content_key(model, samples) if cache else b""
    if cache and (found := cache.read(key, len(samples), model.inputs)) is not None:
        return found
    count = len(samples)
    features = np.empty((count, model.inputs), np.float32)

    def make(start: int) -> int:
        stop = min(start + _UNPACKED_ROWS, count)
        features[start:stop] = model.features(samples.values(np.arange(start, stop)))
        return stop

    starts, told = range(0, count, _UNPACKED_ROWS), time.monotonic()
    for start in starts[:1]:
        make(start)  # what is made once for all images is made by one thread
    with ThreadPoolExecutor(threads) as pool:
        for stop in pool.map(make, starts[1:]):
            if say is not None and time.monotonic() >= told + _QUIET:
                say(f"computing features of {model.name!r}: {stop:,} of {count:,} records")
                told = time.monotonic()
    if cache:
        cache.write(key, features)
    return features


def content_key(model: Keyed, samples: Samples) -> bytes:
    """Return the name of these features: the hash of the inputs and of all that is done to them."""
    inputs = np.ascontiguousarray(samples.inputs)
    about = f"mapa features\0{model.feature_key}\0{inputs.dtype.str}\0{inputs.shape}\0"
    found = hashlib.sha256(about.encode())
    found.update(inputs.data)
    return found.digest()
