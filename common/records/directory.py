"""runs/<id>/ on disk: manifest.json, events.jsonl, summary.json, model.safetensors."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import secrets
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from safetensors.numpy import save

from common.errors import ConfigurationError, RecordsError
from common.models.model import Block
from common.quantities import Vector
from common.records.events import EventFile, Journal
from common.records.layout import LONGEST, RESUME, folder_name
from common.records.reader import read_manifest
from common.scenario.scenario import Scenario

FORMAT = 1  # of manifest.json
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
    named = isinstance(run, str) and 0 < len(run) <= _LONGEST and run.isprintable() and "/" not in run
    if not isinstance(run, str) or not named:
        raise ConfigurationError(
            f"manifest.json: run = {run!r:.80}: must be the name of a run, 1 to {_LONGEST} printable characters"
        )
    return run


def versions() -> dict[str, str]:
    """Return what produced a run; torch only where it was used."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for package in _PACKAGES:
        if package == "torch" and "torch" not in sys.modules:
            continue
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def machine_type() -> str:
    """Return what decides the last bits of a matrix product: processor, BLAS and numpy."""
    blas: Any = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    return f"{_processor()}, {blas.get('name')} {blas.get('version')}, numpy {np.__version__}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


class RunDirectory:
    """The records of one run, open for writing by one program. Leaving the context closes them, whatever happened."""

    def __init__(self, path: Path, *, resumed: bool = False) -> None:
        if not resumed:
            path.mkdir(parents=True, exist_ok=False)
        self.path = path
        began = read_manifest(path) if resumed else {}
        self.run = run_of(began) if began else path.name  # its id: a directory may be moved
        self._lock = _locked(path)
        self._stream = EventFile(path / "events.jsonl", resumed=resumed)
        self.journal = Journal(self._stream)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # on a full disk the last lines fail, too: who leaves with an error is to hear of that one
        with contextlib.nullcontext() if error is None else contextlib.suppress(RecordsError):
            self.close()

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        try:
            self._stream.close()
        finally:
            if self._lock >= 0:
                os.close(self._lock)
                self._lock = -1

    @property
    def events_bytes(self) -> int:
        """Bytes of events.jsonl on disk."""
        return self._stream.size

    def events_behind(self, size: int) -> list[bytes]:
        """Return the lines of events.jsonl behind its first `size` bytes."""
        return self._stream.lines_behind(size)

    def sync(self) -> None:
        """Write the events so that they survive a power failure."""
        self._stream.sync()

    def manifest(
        self, scenario: Scenario, *, engine: str, name: str, data: Mapping[str, str], **more: object
    ) -> None:
        """Write what is needed to run the same thing again."""
        self._json(
            "manifest.json",
            {
                "format": FORMAT,
                "run": self.run,
                "name": name,
                "engine": engine,
                "scenario": scenario.canonical(),
                "scenario_sha256": scenario.digest,
                "seed": scenario.seed,
                "data": dict(data),
                "versions": versions(),
                "started": datetime.now(UTC).isoformat(timespec="seconds"),
                **more,
            },
        )

    def remember(self, values: Mapping[str, Any]) -> None:
        """Write what a resumed cloud needs."""
        self._json(RESUME, values)

    def summary(self, summary: Mapping[str, Any]) -> None:
        """Write how the run ended; its path is relative to the file, which may be moved or bundled."""
        self._json("summary.json", {**summary, **({"path": "."} if "path" in summary else {})})

    def model(self, x: Vector, layout: Sequence[Block], metadata: Mapping[str, str]) -> None:
        """Write x_{T+1}: every block under its name, the flat vector as `x`."""
        tensors = {block.name: np.ascontiguousarray(x[block.slice].reshape(block.shape)) for block in layout}
        tensors["x"] = x
        self._file("model.safetensors", ordered(save(tensors, metadata=dict(metadata))))

    def _json(self, name: str, value: Mapping[str, Any]) -> None:
        self._file(name, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())

    def _file(self, name: str, content: bytes) -> None:
        """Write a file as a whole or not at all."""
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
    """Sort the keys of a safetensors header: the library leaves them in an order that changes from run to run."""
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.dumps(json.loads(content[8:end]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + content[end:]
