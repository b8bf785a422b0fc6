"""Small data sets in the published formats, and a local server with the faults of real ones."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import hashlib
import http.server
import os
import struct
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import h5py
import numpy as np
import numpy.typing as npt
import pytest

from common.datasets.catalogue import named_dataset
from common.datasets.dataset import Dataset, Samples, content_checksum

_ENVIRON_DIR = os.environ.get("MAPA_DATA_DIR", "")


def real_directories(*needed: str) -> list[Path]:
    """Return MAPA_DATA_DIR where it holds what a test needs, to be one more parameter of it."""
    directory = Path(_ENVIRON_DIR)
    return [directory] if _ENVIRON_DIR and all((directory / file).is_file() for file in needed) else []


def idx_bytes(array: npt.NDArray[np.uint8]) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def small_digits(side: int, rows: int, seed: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (rows, side, side), np.uint8)
    return images, (np.arange(rows) % 10).astype(np.uint8)


TRAIN_IMAGES, TRAIN_LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
TEST_LABELS = "t10k-labels-idx1-ubyte"
LIBSVM, ZIPCODE = ("usps.bz2", "usps.t.bz2"), ("zip.train.gz", "zip.test.gz")


def mnist_contents() -> dict[str, bytes]:
    """Return four idx files of a small MNIST: 30 and 20 images."""
    arrays = (*small_digits(28, 30, seed=1), *small_digits(28, 20, seed=2))
    names = (TRAIN_IMAGES, TRAIN_LABELS, "t10k-images-idx3-ubyte", TEST_LABELS)
    return {name: idx_bytes(array) for name, array in zip(names, arrays, strict=True)}


def publish(monkeypatch: pytest.MonkeyPatch, name: str, contents: Mapping[str, bytes] | None = None) -> None:
    """Let small files be the published ones; without contents any are."""
    known: Any = named_dataset(name)
    monkeypatch.setattr(known, "checksum", None, raising=False)
    if contents is not None:
        sums = {
            file: hashlib.sha256(contents[file.removesuffix(".gz")]).hexdigest()
            for file in known.forms[0].files
        }
        monkeypatch.setattr(known, "forms", (replace(known.forms[0], files=sums),), raising=False)


def write_mnist(folder: Path, *, compressed: bool = True) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in mnist_contents().items():
        if compressed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content, mtime=0))
        else:
            (folder / name).write_bytes(content)


def usps_parts() -> dict[str, tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Return thousandths in −1000…1000 (some of them 0) and labels 0…9, for train and test."""
    parts = {}
    for seed, (part, rows) in enumerate({"train": 23, "test": 11}.items()):
        rng = np.random.default_rng(seed)
        values = rng.integers(-1000, 1001, (rows, 256))
        values[:, :5] = 0
        values[:, 5:20] = -1000
        parts[part] = (values, rng.integers(0, 10, rows))
    return parts


def write_usps_h5(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for part, (values, labels) in usps_parts().items():
            group = file.create_group(part)
            scaled = (values.astype(np.float32) / np.float32(1000) + np.float32(1)) / np.float32(2)
            group.create_dataset("data", data=scaled, compression="gzip")
            group.create_dataset("target", data=labels.astype(np.int32))


def libsvm_bytes(part: str, *, sparse: bool = False) -> bytes:
    values, labels = usps_parts()[part]
    lines = []
    for row, label in zip(values.tolist(), labels.tolist(), strict=True):
        kept = [(i, v) for i, v in enumerate(row, start=1) if v or not sparse]
        lines.append(f"{label + 1} " + " ".join(f"{i}:{v / 1000:g}" for i, v in kept) + " \n")
    return bz2.compress("".join(lines).encode())


def zipcode_bytes(part: str) -> bytes:
    values, labels = usps_parts()[part]
    rows = zip(values.tolist(), labels.tolist(), strict=True)
    lines = [f"{label:.4f} " + " ".join(f"{v / 1000:.4f}" for v in row) + " \n" for row, label in rows]
    return gzip.compress("".join(lines).encode(), mtime=0)


class Stripes:
    """A custom data set, as a user would write one: horizontal or vertical stripes."""

    def load(self, data_dir: Path) -> Dataset:  # noqa: ARG002
        images = np.zeros((20, 4, 4), np.float32)
        images[::2, ::2, :] = 1
        images[1::2, :, ::2] = 1
        samples = Samples(images.reshape(20, 16), np.arange(20, dtype=np.int64) % 2)
        train = Samples(samples.inputs[:12], samples.labels[:12])
        test = Samples(samples.inputs[12:], samples.labels[12:])
        return Dataset("stripes", (4, 4), 2, train, test, content_checksum(train, test))


class WrongLabels:
    def load(self, data_dir: Path) -> Dataset:
        good = Stripes().load(data_dir)
        return Dataset("wrong", (4, 4), 2, good.train, Samples(good.test.inputs, good.test.labels + 1), "")


class NoLoad:
    """Not a DatasetSource."""


class FailingLoad:
    def load(self, data_dir: Path) -> Dataset:
        raise ZeroDivisionError(f"in {data_dir}")


@dataclass
class FileServer:
    """An HTTP server on a free port; it serves `files` and keeps the Range of every request."""

    files: dict[str, bytes]
    cut_after: int | None = None  # bytes of a body after which the connection is dropped
    ignore_range: bool = False
    shifted_range: int = 0  # bytes by which an answered range begins too late
    longest_range: int = 2**30  # bytes of a range that one answer has at most
    requests: list[tuple[str, str | None]] = field(default_factory=list)

    def __enter__(self) -> Self:
        owner = self

        class Answer(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                owner.answer(self)

            def log_message(self, format: str, *args: object) -> None:
                """Keep the tests' output clean."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self._server.daemon_threads = False
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/"

    @property
    def ranges(self) -> list[str | None]:
        return [wanted for _, wanted in self.requests]

    def answer(self, request: http.server.BaseHTTPRequestHandler) -> None:
        wanted = request.headers.get("Range")
        self.requests.append((request.path, wanted))
        body = self.files.get(request.path.lstrip("/"))
        if body is None:
            request.send_error(404)
            return
        start, stop = 0, len(body)
        if wanted is not None and not self.ignore_range:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= len(body):
                request.send_response(416)
                request.send_header("Content-Range", f"bytes */{len(body)}")
                request.send_header("Content-Length", "0")
                request.end_headers()
                return
            start = min(start + self.shifted_range, len(body))
            stop = min(start + self.longest_range, stop)
            request.send_response(206)
            request.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(body)}")
        else:
            request.send_response(200)
        request.send_header("Content-Length", str(stop - start))
        request.end_headers()
        end = stop if self.cut_after is None else start + self.cut_after
        with contextlib.suppress(ConnectionError):  # a client that refuses the rest hangs up
            request.wfile.write(body[start:end])
        request.close_connection = True
