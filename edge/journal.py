"""The debits of all edges of a process, made durable together: one write and one sync for a turn of the loop.

A journal is two files, linked into the directory of every ledger that debits through it, so that such a directory holds
all that its edge spent, for any later reader. Records are absolute: the newest of an account says what it has spent.
When a file is full the other one is begun again with the newest record of every account; the full one stays untouched
until then. `docs/decisions/0012-one-commit-for-many-edges.md` says why.
"""

from __future__ import annotations

import errno
import fcntl
import math
import os
import secrets
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from common.errors import LedgerUnavailableError
from common.quantities import EdgeId, RunId
from common.records.regular import mapped, open_regular, sync_path
from edge.ledger import Debit, Done

FILES = ("journal-0", "journal-1")
MOST_MEMBERS = 32  # ledgers of one journal: each reads all of it when it is opened
_MAGIC = b"MAPA journal 1\r\n"
_HEAD = len(_MAGIC) + 16  # bytes before the first record: what it is, and its id
_ROOM = 1 << 20  # bytes of a file before the other one is begun; more where messages are large
# Room as a multiple of what begins a file; at most this, or twice what begins it.
_ROUNDS, _MOST_ROOM = 8, 1 << 25
_ZEROS = bytes(1 << 16)
# checksum of the rest; generation of the file, member, sequence, charges, acknowledged; lengths of what follows
_RECORD = struct.Struct("<IQ16sqqqHHI")
_SUMMED = struct.Struct("<Q16sqqqHHI")  # the same without its checksum
_SUM = 4  # bytes of the checksum
_AT_ONCE = 1000  # pieces that one call writes
_NONE: Mapping[int, Debit] = {}

Soon = Callable[[Callable[[], None]], None]  # a loop's `post`: calls at the end of this turn


class DebitJournal:
    """Two files that only this process writes; in its loop's thread."""

    def __init__(self, directory: Path, soon: Soon | None) -> None:
        """Begin a journal in a ledger's directory; without `soon` every debit is synced alone."""
        self.id = secrets.token_bytes(16)
        self._soon = soon
        self._directories: dict[bytes, Path] = {}  # by member
        self._newest: dict[tuple[bytes, EdgeId, RunId], dict[int, Debit]] = {}  # durable, and not outdated
        self._queue: list[tuple[bytes, Debit, Done]] = []
        self._failure: LedgerUnavailableError | None = None
        self._active, self._generation, self._at, self._room = 0, 1, _HEAD, _ROOM
        self._filled = [_ROOM, _ROOM]  # bytes of each file that are allocated
        self._files: list[int] = []
        try:
            for name in FILES:
                (directory / name).unlink(missing_ok=True)
                file = os.open(directory / name, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
                self._files.append(file)
                _write_all(file, [_MAGIC + self.id], 0)
                _fill(file, _HEAD, _ROOM)
                os.fsync(file)
            sync_path(directory)
        except OSError:
            self._close()
            raise

    def takes(self, directory: Path) -> bool:
        """Link the files into another ledger's directory; False where there is no room or no such link."""
        if self._failure is not None or not 0 < len(self._directories) < MOST_MEMBERS:
            return False
        beside = next(iter(self._directories.values()))
        try:
            for name, file in zip(FILES, self._files, strict=True):
                (directory / name).unlink(missing_ok=True)
                os.link(beside / name, directory / name)
                if not os.path.samestat((directory / name).stat(), os.fstat(file)):
                    raise OSError(errno.ESTALE, "replaced", str(beside / name))
            sync_path(directory)
        except OSError:
            return False
        return True

    def enter(self, directory: Path) -> bytes:
        """Return the name of a new member, whose directory has the files."""
        member = secrets.token_bytes(16)
        self._directories[member] = directory
        return member

    def leave(self, member: bytes) -> None:
        """Forget a member whose debits are durable elsewhere."""
        directory = self._directories.pop(member)
        for key in [key for key in self._newest if key[0] == member]:
            del self._newest[key]
        with suppress(
            OSError
        ):  # a file that stays says nothing any more; after a move another's may lie there
            for name, file in zip(FILES, self._files, strict=True):
                if os.path.samestat((directory / name).stat(), os.fstat(file)):
                    (directory / name).unlink()
        if not self._directories:
            self._close()

    def append(self, member: bytes, debit: Debit, done: Done) -> None:
        """Make a debit durable with the others of this turn, then call `done`."""
        self._queue.append((member, debit, done))
        if self._soon is None:
            self.commit()
        elif len(self._queue) == 1:
            self._soon(self.commit)

    def commit(self) -> None:
        """Make durable what is queued, and say so; after an error nothing is any more."""
        queue, self._queue = self._queue, []
        if queue and self._failure is None:
            try:
                self._write([(member, debit) for member, debit, _ in queue])
            except OSError as error:
                # Whether it reached the disk is unknown: only a fresh look at the files may go on.
                where = next(iter(self._directories.values())) / FILES[self._active]
                self._failure = LedgerUnavailableError(
                    f"ledger {where}: {error.strerror or error}; nothing more is released"
                )
        for _, _, done in queue:
            done(self._failure)

    def _write(self, debits: list[tuple[bytes, Debit]]) -> None:
        pieces, size = self._encoded(debits)
        if self._at > _HEAD and self._at + size > self._room:
            newest = [(key[0], debit) for key, kept in self._newest.items() for debit in kept.values()]
            self._active, self._generation, self._at = 1 - self._active, self._generation + 1, _HEAD
            pieces, size = self._encoded([*newest, *debits])
            self._room = max(_ROOM, min(_ROUNDS * size, _MOST_ROOM), 2 * size)
            if self._filled[self._active] < self._room:
                _fill(self._files[self._active], self._filled[self._active], self._room)
                self._filled[self._active] = self._room
        file = self._files[self._active]
        _write_all(file, pieces, self._at)
        _sync(file)
        self._at += size
        for member, debit in debits:
            edge_id, run, sequence, _, acknowledged, _ = debit
            former = self._newest.get((member, edge_id, run), _NONE)
            kept = {number: one for number, one in former.items() if number > acknowledged}
            kept[sequence] = debit
            self._newest[member, edge_id, run] = kept

    def _encoded(self, debits: Iterable[tuple[bytes, Debit]]) -> tuple[list[bytes], int]:
        """Return what is written, in pieces, since payloads may be large; and its length."""
        pieces: list[bytes] = []
        for member, (edge_id, run, sequence, charges, acknowledged, payload) in debits:
            edge, of_run = edge_id.encode(), run.encode()
            numbers = (self._generation, member, sequence, charges, acknowledged)
            head = _SUMMED.pack(*numbers, len(edge), len(of_run), len(payload)) + edge + of_run
            checksum = zlib.crc32(payload, zlib.crc32(head))
            pieces += (checksum.to_bytes(_SUM, "little") + head, payload)
        return pieces, sum(map(len, pieces))

    def _close(self) -> None:
        while self._files:
            os.close(self._files.pop())


class Journals:
    """The journals of a process: one for all its ledgers, more where links cannot be made or there are many."""

    def __init__(self, soon: Soon | None = None) -> None:
        self._soon = soon
        self._newest: DebitJournal | None = None

    def join(self, directory: Path) -> tuple[DebitJournal, bytes]:
        """Return the journal of this directory's ledger, and its name there; OSError where none can be made."""
        if self._newest is None or not self._newest.takes(directory):
            self._newest = DebitJournal(directory, self._soon)
        return self._newest, self._newest.enter(directory)


def read_debits(directory: Path, journal: bytes, member: bytes) -> list[Debit]:
    """Return a member's debits, oldest first in each file; FileNotFoundError where this journal is not there."""
    debits: list[Debit] = []
    for name in FILES:
        content = mapped(open_regular(directory / name))
        if bytes(content[:_HEAD]) != _MAGIC + journal:
            raise FileNotFoundError(errno.ENOENT, "belongs to other debits", str(directory / name))
        debits += _debits_of(member, content)
    return debits


def _debits_of(member: bytes, content: memoryview) -> Iterator[Debit]:
    """Yield a member's records up to the file's end, the first torn one, or what an earlier lap left."""
    at, first = _HEAD, None
    while len(content) - at >= _RECORD.size:
        checksum, generation, owner, *numbers, edge, run, size = _RECORD.unpack_from(content, at)
        names, payload = at + _RECORD.size, at + _RECORD.size + edge + run
        end = payload + size
        if first not in (None, generation) or end > len(content):
            return
        if zlib.crc32(content[at + _SUM : end]) != checksum:
            return
        if owner == member:
            sequence, charges, acknowledged = numbers
            edge_id = EdgeId(str(content[names : names + edge], "utf-8"))
            run_id = RunId(str(content[names + edge : payload], "utf-8"))
            yield Debit(edge_id, run_id, sequence, charges, acknowledged, bytes(content[payload:end]))
        at, first = end, generation


def _write_all(file: int, pieces: list[bytes], at: int) -> None:
    for first in range(0, len(pieces), _AT_ONCE):
        some = pieces[first : first + _AT_ONCE]
        end = at + sum(map(len, some))
        at += os.pwritev(file, some, at)
        while at < end:  # a disk that is full says so at the next try
            at += os.pwrite(file, memoryview(b"".join(some))[at - end :], at)


def _fill(file: int, start: int, end: int) -> None:
    """Write zeros up to `end` or beyond: a sync of what is written over is many times faster than of a longer file."""
    _write_all(file, [_ZEROS] * math.ceil((end - start) / len(_ZEROS)), start)


def _sync(file: int) -> None:
    """Wait until a file's bytes are on the disk."""
    if hasattr(fcntl, "F_FULLFSYNC"):  # macOS: fsync alone does not reach the disk there
        fcntl.fcntl(file, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(file)
