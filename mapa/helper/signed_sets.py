"""A helper's memory on disk: its keys for one incarnation of a run, its terms, and every set that it signed.

<state>/<run>-<incarnation>.sets: "MAPAHELP", then records `length u32 | crc32 u32 | kind u8 | content`, little-endian.
A record is on the disk before anything is said that follows from it, so a helper that is killed at any instant signs no
second set for a release. The file must never be put back from a copy: an older one has forgotten what was signed.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import assert_never

from common.errors import ConfigurationError, RecordsError
from common.quantities import EdgeId, RunId
from common.records.regular import open_regular, sync_path
from common.secure.boxes import Entropy
from common.secure.terms import DIGEST_BYTES, KEY_BYTES
from mapa.helper.helper import HelperRecord, HelperSecrets, KeysDestroyed, SetSigned, TermsTaken

_MAGIC = b"MAPAHELP"
_FRONT = struct.Struct("<II")
_KEYS, _TERMS, _SIGNED, _DESTROYED = range(1, 5)


class SignedSets:
    """The file of one helper in one incarnation of a run; one process at a time has it."""

    def __init__(self, folder: Path, run: RunId, incarnation: int, place: int, entropy: Entropy) -> None:
        """Read what is there, or make new keys; RecordsError where the file is damaged, in use or of another place."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path = folder / f"{run}-{incarnation}.sets"
        self.records: list[HelperRecord] = []
        self._failed = False
        try:
            self._file = open_regular(self.path, os.O_CREAT | os.O_RDWR, 0o600)
        except OSError as error:
            raise RecordsError(f"{self.path}: {error.strerror}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            secrets = self._read()
            if secrets is None:
                secrets = HelperSecrets(run, incarnation, place, entropy(KEY_BYTES), entropy(KEY_BYTES))
                self._begin(secrets)
            if secrets[:3] != (run, incarnation, place):
                raise ConfigurationError(f"{self.path}: of helper {secrets.place}, not of helper {place}")
        except OSError as error:
            os.close(self._file)
            in_use = error.errno in (errno.EAGAIN, errno.EACCES)
            why = "another process of this helper uses it" if in_use else error.strerror
            raise RecordsError(f"{self.path}: {why}") from error
        except (ConfigurationError, RecordsError):
            os.close(self._file)
            raise
        self.secrets = secrets
        if KeysDestroyed() in self.records and any(secrets.box):  # killed between the two
            self._destroy_keys()

    def append(self, *records: HelperRecord) -> None:
        """Put records on the disk; RecordsError where that fails: then nothing may be said any more."""
        if self._failed:
            raise RecordsError(f"{self.path}: an earlier record could not be written")
        if not records:
            return
        try:
            self._write(b"".join(map(_packed, records)))
            if any(isinstance(record, KeysDestroyed) for record in records):
                self._destroy_keys()
        except OSError as error:
            self._failed = (
                True  # whether it reached the disk is unknown: only a new look at the file may go on
            )
            raise RecordsError(f"{self.path}: {error.strerror}") from error

    def close(self) -> None:
        os.close(self._file)

    def _begin(self, secrets: HelperSecrets) -> None:
        names = json.dumps([secrets.run, secrets.incarnation, secrets.place]).encode()
        os.ftruncate(self._file, 0)
        self._at = 0
        self._write(_MAGIC + _record(_KEYS, secrets.box + secrets.signing + names))
        sync_path(self.path.parent)

    def _write(self, content: bytes) -> None:
        while content:
            written = os.pwrite(self._file, content, self._at)
            self._at, content = self._at + written, content[written:]
        os.fsync(self._file)

    def _destroy_keys(self) -> None:
        """Put zeros over the keys, with a checksum that holds: who signed what stays to be read."""
        names = json.dumps(list(self.secrets[:3])).encode()
        blank = _MAGIC + _record(_KEYS, bytes(2 * KEY_BYTES) + names)
        os.pwrite(self._file, blank, 0)
        os.fsync(self._file)

    def _read(self) -> HelperSecrets | None:
        """Take what the file holds and cut a torn end; None: it was never begun."""
        content = b""
        while piece := os.pread(self._file, 1 << 24, len(content)):
            content += piece
        secrets, self._at = None, len(_MAGIC)
        if content[: len(_MAGIC)] != _MAGIC[: len(content)]:
            raise RecordsError(f"{self.path}: not a helper's file")
        for kind, body, end in _whole(content):
            if (kind == _KEYS) is not (secrets is None):
                raise RecordsError(f"{self.path}: keys are missing, or are there twice")
            if secrets is None:
                secrets = _secrets(body)
            else:
                self.records.append(self._parsed(kind, body))
            self._at = end
        if _holds_a_record(content, self._at):
            raise RecordsError(f"{self.path}: damaged at byte {self._at}; what stands behind is unknown")
        if secrets is not None and self._at < len(content):
            os.ftruncate(self._file, self._at)
            os.fsync(self._file)
        return secrets

    def _parsed(self, kind: int, body: bytes) -> HelperRecord:
        try:
            return _parsed(kind, body)
        except (ValueError, IndexError) as error:
            raise RecordsError(f"{self.path}: a record of kind {kind} that is none") from error


def _record(kind: int, content: bytes) -> bytes:
    body = bytes([kind]) + content
    return _FRONT.pack(len(body), zlib.crc32(body)) + body


def _packed(record: HelperRecord) -> bytes:
    match record:
        case TermsTaken(content=content):
            return _record(_TERMS, content)
        case SetSigned(set=set_, releases=releases):
            names = (
                bytes([len(name)]) + name.encode() + number.to_bytes(8, "little") for name, number in releases
            )
            return _record(_SIGNED, set_ + b"".join(names))
        case KeysDestroyed():
            return _record(_DESTROYED, b"")
        case _:
            assert_never(record)


def _parsed(kind: int, body: bytes) -> HelperRecord:
    if kind == _TERMS:
        return TermsTaken(body)
    if kind == _DESTROYED:
        return KeysDestroyed()
    if kind != _SIGNED or len(body) < DIGEST_BYTES:
        raise ValueError("no such kind")
    releases, at = [], DIGEST_BYTES
    while at < len(body):
        begin = at + 1
        at = begin + body[begin - 1] + 8
        if at > len(body):
            raise ValueError("releases that are cut off")
        name = EdgeId(body[begin : at - 8].decode("ascii"))
        releases.append((name, int.from_bytes(body[at - 8 : at], "little")))
    return SetSigned(body[:DIGEST_BYTES], tuple(releases))


def _secrets(body: bytes) -> HelperSecrets:
    run, incarnation, place = json.loads(body[2 * KEY_BYTES :])
    return HelperSecrets(RunId(run), incarnation, place, body[:KEY_BYTES], body[KEY_BYTES : 2 * KEY_BYTES])


def _whole(content: bytes) -> Iterator[tuple[int, bytes, int]]:
    """Yield kind, content and end of the whole records, up to the first that is not."""
    at = len(_MAGIC)
    while (found := _record_at(content, at)) is not None:
        yield found
        at = found[2]


def _record_at(content: bytes, at: int) -> tuple[int, bytes, int] | None:
    if at + _FRONT.size > len(content):
        return None
    size, checksum = _FRONT.unpack_from(content, at)
    body = content[at + _FRONT.size : at + _FRONT.size + size]
    if not size or len(body) < size or zlib.crc32(body) != checksum:
        return None
    return body[0], body[1:], at + _FRONT.size + size


def _holds_a_record(content: bytes, at: int) -> bool:
    """Return whether a whole record stands behind a broken one: then more than the end is lost."""
    return any(_record_at(content, start) is not None for start in range(at + 1, len(content) - _FRONT.size))
