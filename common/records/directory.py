"""runs/<id>/ on disk, open for writing: manifest.json, events.jsonl, summary.json, model.safetensors."""

from __future__ import annotations

import contextlib
import fcntl
import io
import itertools
import json
import os
import platform
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Self

import numpy as np
from safetensors.numpy import save

from common.errors import ConfigurationError, RecordsError
from common.models.model import Block
from common.quantities import Vector
from common.records.layout import LONGEST, folder_name
from common.records.reader import read_manifest
from common.records.recorder import Journal
from common.records.regular import open_regular, plain_json

FORMAT = 1  # of manifest.json
_BUFFER = 1 << 20  # characters of events that wait
_LONGEST_WAIT = 1.0  # seconds: a page shows a run while it goes on
_LONGEST = 255  # characters of a run's id: a file name
_PACKAGES = (
    *("mapa-testbed", "numpy", "scipy", "dp-accounting", "pydantic", "paho-mqtt", "msgpack"),
    *("safetensors", "mlxtend", "torch"),
)


def new_run_id(name: str, now: datetime | None = None, *, most: int = LONGEST) -> str:
    """Return a name that sorts by time and never collides, with at most `most` characters of `name`."""
    moment = (now or datetime.now(UTC)).strftime("%Y%m%d-%H%M%S")
    return f"{folder_name(name, most)}-{moment}-{secrets.token_hex(4)}"


def run_of(manifest: Mapping[str, Any]) -> str:
    """Return the id of a run by its manifest, whatever its directory is called now."""
    run = manifest.get("run")
    if isinstance(run, str) and 0 < len(run) <= _LONGEST and run.isprintable() and "/" not in run:
        return run
    raise ConfigurationError(
        f"manifest.json: run = {run!r:.80}: must be the name of a run, 1 to {_LONGEST} printable characters"
    )


def versions() -> dict[str, str]:
    """Return what produced a run; torch only where it was used."""
    packages = {"python": platform.python_version(), "platform": platform.platform()}
    for package in _PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            if package != "torch" or "torch" in sys.modules:
                packages[package] = version(package)
    return packages


def machine_type() -> str:
    """Return what decides the last bits of a matrix product: processor, BLAS and numpy."""
    blas: Any = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    processor = platform.machine()
    with contextlib.suppress(OSError), Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
        names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
        processor = next(names, processor)
    return f"{processor}, {blas.get('name')} {blas.get('version')}, numpy {np.__version__}"


class EventFile:
    """Keeps lines and writes them in batches. Where a write fails, the torn line is cut off, and nothing follows."""

    def __init__(
        self, path: Path, *, resumed: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.path = path
        self._clock = clock
        self._written = clock()  # when lines were last written
        self._file = io.FileIO(path, "ab" if resumed else "xb", opener=open_regular)
        self._waiting: list[str] = []
        self._characters = 0
        self.size = os.fstat(self._file.fileno()).st_size  # bytes of whole lines in the file

    def lines_behind(self, size: int) -> list[bytes]:
        """Return the whole lines behind `size` bytes; the file is cut off at the first that is no event."""
        if self.size < size:
            raise RecordsError(f"{self.path}: {self.size} bytes, but {size} were written: it was changed")
        with open(self.path, "rb", opener=open_regular) as stream:
            stream.seek(size)
            content = stream.read()
        lines = list(itertools.takewhile(_is_event, content.splitlines(keepends=True)))
        self.size = size + sum(map(len, lines))
        if self.size < size + len(content):
            self._file.truncate(self.size)
        return lines

    def write(self, text: str) -> None:
        """Take one line, with its end."""
        self._waiting.append(text)
        self._characters += len(text)
        if self._characters >= _BUFFER or self._clock() - self._written >= _LONGEST_WAIT:
            self.flush()

    def flush(self) -> None:
        """Write what waits; raise RecordsError if that fails. After a failure nothing is written any more."""
        content = "".join(self._waiting).encode()
        self._written = self._clock()
        self._waiting.clear()
        self._characters = written = 0
        if self._file.closed:
            return
        try:
            while written < len(content):
                written += self._file.write(content[written:])
        except OSError as error:
            # a disk that takes no cut leaves half a line, which readers skip
            with contextlib.suppress(OSError), contextlib.closing(self._file):
                self._file.truncate(self.size + content.rfind(b"\n", 0, written) + 1)
            raise self._failure(error) from error
        self.size += written

    def sync(self) -> None:
        """Write what waits, and wait until it survives a power failure."""
        self.flush()
        if not self._file.closed:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        try:
            self.sync()
        except OSError as error:
            raise self._failure(error) from error
        finally:
            self._file.close()

    def _failure(self, error: OSError) -> RecordsError:
        return RecordsError(f"{self.path}: cannot be written: {error.strerror or error}")


def _is_event(line: bytes) -> bool:
    try:
        record = plain_json(line)
    except ValueError:
        return False
    return line.endswith(b"\n") and isinstance(record, dict) and "event" in record


class RunDirectory:
    """The records of one run, open for writing by one program. Leaving the context closes them, whatever happened."""

    def __init__(self, path: Path, *, resumed: bool = False) -> None:
        if not resumed:
            path.mkdir(parents=True, exist_ok=False)
        self.path = path
        began = read_manifest(path) if resumed else {}
        self.run = run_of(began) if began else path.name  # its id: a directory may be moved
        self._lock = _locked(path)
        self.events = EventFile(path / "events.jsonl", resumed=resumed)
        self.journal = Journal(self.events)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        # on a full disk the last lines fail, too: who leaves with an error is to hear of that one
        with contextlib.nullcontext() if error is None else contextlib.suppress(RecordsError):
            self.close()

    def close(self) -> None:
        try:
            self.events.close()
        finally:
            if self._lock >= 0:
                os.close(self._lock)
                self._lock = -1

    def document(self, name: str, values: Mapping[str, Any]) -> None:
        self._file(name, (json.dumps(values, indent=2, ensure_ascii=False) + "\n").encode())

    def summary(self, summary: Mapping[str, Any]) -> None:
        """Write how the run ended; its path is relative to the file, which may be moved or bundled."""
        self.document("summary.json", {**summary, **({"path": "."} if "path" in summary else {})})

    def model(self, x: Vector, layout: Sequence[Block], metadata: Mapping[str, str]) -> None:
        """Write x_{T+1}: every block under its name, the flat vector as `x`."""
        tensors = {block.name: np.ascontiguousarray(x[block.slice].reshape(block.shape)) for block in layout}
        tensors["x"] = x
        self._file("model.safetensors", ordered(save(tensors, metadata=dict(metadata))))

    def _file(self, name: str, content: bytes) -> None:
        temporary = self.path / f".{name}.tmp"
        try:
            temporary.write_bytes(content)
            temporary.replace(self.path / name)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise RecordsError(f"{self.path / name}: not written: {error.strerror or error}") from error


def _locked(path: Path) -> int:
    """Return a descriptor that keeps every other program from writing here; the end of this process frees it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise ConfigurationError(f"{path}: another program is writing this run's records") from error
    except OSError:  # a file system without locks: a second cloud is told on the broker
        pass
    return descriptor


def ordered(content: bytes) -> bytes:
    """Sort the keys of a safetensors header: the library's order changes from run to run."""
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.dumps(json.loads(content[8:end]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return b"".join((len(header).to_bytes(8, "little"), header, memoryview(content)[end:]))
