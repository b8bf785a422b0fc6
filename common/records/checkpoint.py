"""Checkpoints on disk: runs/<id>/checkpoints/000002/ holds state.json and arrays.safetensors, whole or not at all.

A checkpoint is written into a folder of another name and renamed; the newest that is not damaged counts.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from common.errors import ConfigurationError, RecordsError
from common.records.directory import ordered
from common.records.regular import MOST_JSON, bytes_below, plain_json, sync_path

FORMAT = 1
FOLDER = "checkpoints"  # of a run's directory
_STATE, _ARRAYS = "state.json", "arrays.safetensors"
_MOST_ARRAYS = 1 << 32  # bytes: x and its copies, 4 bytes a parameter
_AS_IT_IS = frozenset((str, int, bool, type(None)))  # a thousand edges make fifty thousand of them
_KEPT = 2  # generations, beside the first one where the log is kept


def pack(state: Mapping[str, Any]) -> tuple[bytes, bytes]:
    """Return state.json and arrays.safetensors of a state: the same bytes for the same state."""
    arrays: dict[str, Any] = {}
    plain = _without_arrays(state, "", arrays)
    packed = ordered(save({key: np.asarray(one, order="C") for key, one in arrays.items()}))
    text = json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    digests = {"arrays_sha256": hashlib.sha256(packed).hexdigest(), "state_sha256": _digest(FORMAT, text)}
    front = json.dumps({"format": FORMAT, **digests}, separators=(",", ":"))
    return f'{front[:-1]},"state":{text}}}\n'.encode(), packed


def _digest(form: object, text: str) -> str:
    return hashlib.sha256(f"{form}\n{text}".encode()).hexdigest()


def unpack(content: bytes, packed: bytes) -> dict[str, Any]:
    """Return the state; ValueError where a byte is not as it was written, ConfigurationError for another format."""
    whole = plain_json(content)
    if not isinstance(whole, dict) or "state" not in whole:
        raise ValueError("no state")
    text = json.dumps(whole["state"], ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    if _digest(whole.get("format"), text) != whole.get("state_sha256"):
        raise ValueError("state: wrong checksum")
    if hashlib.sha256(packed).hexdigest() != whole.get("arrays_sha256"):
        raise ValueError("arrays: wrong checksum")
    if whole.get("format") != FORMAT:
        raise ConfigurationError(
            f"checkpoint of format {whole.get('format')!r}: this version reads format {FORMAT} alone"
        )
    try:
        arrays = load(packed)
    except SafetensorError as error:
        raise ValueError(f"arrays: {error}") from error
    return cast(dict[str, Any], _with_arrays(whole["state"], arrays))


@dataclass(slots=True)
class Checkpoints:
    run: Path
    power: bool = False  # whether they must survive a power failure

    @property
    def folder(self) -> Path:
        return self.run / FOLDER

    @property
    def numbers(self) -> list[int]:
        """The generations that are there, oldest first."""
        if not self.folder.is_dir():
            return []
        return sorted(int(path.name) for path in self.folder.iterdir() if path.name.isdecimal())

    def write(self, number: int, state: Mapping[str, Any]) -> None:
        """Write a generation; RecordsError where the disk does not take it, and then nothing of it stays."""
        target, draft = self.folder / f"{number:06d}", self.folder / f".{number:06d}.tmp"
        content, packed = pack(state)
        try:
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir(parents=True)
            self._file(draft / _ARRAYS, packed)
            self._file(draft / _STATE, content)
            if self.power:
                sync_path(draft)
            if target.exists():  # damaged, or its segment never came to be
                shutil.rmtree(target)
            draft.rename(target)
            if self.power:
                sync_path(self.folder)
        except OSError as error:
            with contextlib.suppress(OSError):
                shutil.rmtree(draft, ignore_errors=True)
            raise RecordsError(f"{target}: cannot be written: {error.strerror or error}") from error

    def read(self, number: int) -> dict[str, Any]:
        """Return a generation's state; ValueError where it is damaged."""
        folder = f"{FOLDER}/{number:06d}"
        try:
            state = bytes_below(self.run, f"{folder}/{_STATE}", MOST_JSON)
            return unpack(state, bytes_below(self.run, f"{folder}/{_ARRAYS}", _MOST_ARRAYS))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(str(error)) from error

    def newest(self, damaged: Callable[[str], None]) -> tuple[int, dict[str, Any]]:
        """Return the newest generation that can be read, and say which cannot."""
        for number in reversed(self.numbers):
            try:
                return number, self.read(number)
            except ValueError as error:
                damaged(f"{self.folder / f'{number:06d}'}: damaged ({error}); using the one before")
        raise RecordsError(f"{self.folder}: no checkpoint that can be read; the run cannot be resumed")

    def oldest_needed(self) -> int:
        """Return the oldest generation that a resume may need."""
        return self.numbers[-_KEPT:][0]

    def prune(self, *, keep_first: bool) -> None:
        """Remove drafts, and generations that no resume needs; `keep_first`: but the first, where a replay begins."""
        if not self.folder.is_dir():
            return
        for draft in self.folder.glob(".*.tmp"):
            shutil.rmtree(draft, ignore_errors=True)
        for number in self.numbers[:-_KEPT]:
            if not (keep_first and number == 1):
                shutil.rmtree(self.folder / f"{number:06d}", ignore_errors=True)

    def _file(self, path: Path, content: bytes) -> None:
        with path.open("xb") as stream:
            stream.write(content)
            stream.flush()
            if self.power:
                os.fsync(stream.fileno())


def _without_arrays(value: Any, path: str, arrays: dict[str, Any]) -> Any:
    if isinstance(value, list | tuple):
        return [
            one if type(one) in _AS_IT_IS else _without_arrays(one, f"{path}.{number}", arrays)
            for number, one in enumerate(value)
        ]
    if isinstance(value, Mapping):
        return {
            key: one if type(one) in _AS_IT_IS else _without_arrays(one, f"{path}.{key}".lstrip("."), arrays)
            for key, one in value.items()
        }
    if isinstance(value, np.ndarray):
        arrays[path] = value
        return {"$": "array", "name": path}
    if isinstance(value, float) and not math.isfinite(value):
        return {"$": "float", "value": repr(value)}
    return value


def _with_arrays(value: Any, arrays: Mapping[str, Any]) -> Any:
    if isinstance(value, dict):
        if value.get("$") == "array":
            return arrays[value["name"]]
        if value.get("$") == "float":
            return float(value["value"])
        return {key: _with_arrays(one, arrays) for key, one in value.items()}
    if isinstance(value, list):
        return [_with_arrays(one, arrays) for one in value]
    return value
