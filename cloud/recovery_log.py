"""Recovery log of the cloud: log every event that changes its state, write checkpoints, replay the log.

The order is log → apply → reply. A record is in the kernel's hands before its event is applied, so a SIGKILL at any
instant loses nothing that was answered; with durability = "power" replies wait for the disk as well.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, assert_never

from cloud.server import CloudServer, Judged, JudgedGradient, JudgedHello, JudgedLeave
from common.errors import ConfigurationError, LocalProtocolError, RecordsError, RemoteProtocolError
from common.messages import Effect, Event, Leave
from common.quantities import EdgeId
from common.records.checkpoint import Checkpoints
from common.records.gradient_log import Entry, Kind, LogDamagedError, LogReader, LogWriter
from common.wire.codec import decode_hello, decode_leave, encode
from common.wire.codings.registry import EVERY, GRADIENT_MARKS, Marked
from common.wire.v1 import GRADIENT_MARK, HEADER_BYTES

EVERY_BYTES = 1 << 27  # of log between two checkpoints, at least
_EVERY_VECTORS = 16  # gradients between two checkpoints, where these are more: a checkpoint holds x
EVERY_SECONDS = 30.0  # between two checkpoints, where something happened
_SHARE = 50  # checkpoints take at most 1/50 of the time, unless twice as many bytes wait
USED_UP = ("cap", "future", "no-such-model", "sensitivity", "norm")  # refusals that use up a sequence
_NO_EDGE = EdgeId("")
_REASON = 64  # bytes of a halt's reason, at most


class History:
    """Writes the log and the checkpoints of one run."""

    def __init__(
        self,
        run: Path,
        *,
        incarnation: int,
        dimension: int,
        keep: bool,
        power: bool = False,
        say: Callable[[str], None] = print,
    ) -> None:
        self.run, self.keep, self.power = run, keep, power
        self.checkpoints = Checkpoints(run, power)
        self.checkpointed: float | None = None  # Unix time of the last checkpoint
        self._state: Callable[[], dict[str, Any]] = dict  # what a checkpoint is to hold, at this moment
        self._log: LogWriter | None = None
        self._head = (incarnation, dimension)
        self._every_bytes = max(EVERY_BYTES, _EVERY_VECTORS * 4 * dimension)
        self._say = say
        self._last = self._not_before = 0.0  # time of the last checkpoint; when the next may be
        self._stuck = False  # the algorithm's state fits into no checkpoint
        self._finished = False  # the records are written: later arrivals are not logged

    @property
    def log_bytes(self) -> int:
        """Bytes of the log since the last checkpoint."""
        return 0 if self._log is None else self._log.size

    @property
    def log_written(self) -> float | None:
        """Unix time of the last write to the log; None: there is no log."""
        try:
            return None if self._log is None else self._log.path.stat().st_mtime
        except OSError:
            return None

    @property
    def log(self) -> LogWriter:
        if self._log is None:
            raise LocalProtocolError("the gradient log is not open")
        return self._log

    # -- life -----------------------------------------------------------------------------------------

    def begin(self, state: Callable[[], dict[str, Any]]) -> None:
        """Begin a new run: its first checkpoint, then its first segment. `state` gives what a checkpoint holds."""
        self._state = state
        self._begin_segment(1)

    def resume(self, reader: LogReader, checkpoint: int, state: Callable[[], dict[str, Any]]) -> None:
        """Continue behind what was read: cut the torn tail, write a checkpoint, begin a segment of this process."""
        self._state = state
        if reader.torn is not None:
            reader.torn.cut()
        last = max((int(path.stem) for path in reader.segments), default=checkpoint - 1)
        if last < checkpoint:  # the crash came between the checkpoint and its segment: nothing was taken
            LogWriter(self.run, *self._head, checkpoint, power=self.power).close()
            last = checkpoint
        self._begin_segment(last + 1)

    def checkpoint_if_due(self) -> None:
        """Write a checkpoint where enough was logged since the last, and begin the next segment behind it."""
        now, log = time.monotonic(), self.log
        due = log.size >= self._every_bytes or now >= self._last + EVERY_SECONDS
        soon = now < self._not_before and log.size < 2 * self._every_bytes
        if not due or soon or not log.records or self._stuck or self._finished:
            return
        try:
            self._begin_segment(log.segment + 1)
        except ConfigurationError as error:
            self._stuck = True
            self._say(f"{error}; no further checkpoints: a resume reads the log from here on")

    def _begin_segment(self, number: int) -> None:
        began = time.thread_time()
        self.checkpoints.write(number, self._state())
        if self._log is None:
            self._log = LogWriter(self.run, *self._head, number, power=self.power)
        else:
            self._log.next_segment()
        self.checkpoints.prune(keep_first=self.keep)
        if not self.keep:
            self._log.remove_before(self.checkpoints.oldest_needed())
        self._last = now = time.monotonic()
        self.checkpointed = time.time()
        self._not_before = now + _SHARE * (time.thread_time() - began)

    def finish(self) -> None:
        """End with the run: a last checkpoint stays, and the log where it is kept."""
        log, self._finished = self.log, True
        try:
            self.checkpoints.write(log.segment + 1, self._state())
            log.close()
            self.checkpoints.prune(keep_first=self.keep)
        except (RecordsError, ConfigurationError) as error:  # the run is over, and its records are there
            self._say(f"the last checkpoint is missing: {error}")
        if not self.keep:
            shutil.rmtree(log.folder, ignore_errors=True)

    def sync(self) -> None:
        """Wait until all that was taken survives a power failure."""
        if not self._finished:
            self.log.sync()

    def close(self) -> None:
        """Leave everything as it is: the run can be resumed."""
        if self._log is not None:
            with contextlib.suppress(RecordsError):
                self._log.close()

    # -- what is taken --------------------------------------------------------------------------------

    def event(self, server: CloudServer, judged: Judged, payload: bytes, seconds: float) -> None:
        """Log an event unless it changes nothing; between the server's `judge` and `commit`."""
        if not judged.changes:
            return
        kind, event = _kind_of(judged), judged[0]
        if isinstance(event, Leave):
            payload = encode(event)
        elif kind is Kind.REPEAT:
            payload = payload[:HEADER_BYTES]
        self.append(kind, server, seconds, payload, event.edge_id)

    def begins(self, server: CloudServer, seconds: float) -> None:
        """Log that the training begins with the edges that are here."""
        self.append(Kind.BEGIN, server, seconds, b"")

    def halt(self, server: CloudServer, reason: str, seconds: float) -> None:
        """Log an end that no message brings about."""
        if server.halted is None:
            self.append(Kind.HALT, server, seconds, reason.encode())

    def append(
        self, kind: Kind, server: CloudServer, seconds: float, body: bytes, edge_id: EdgeId = _NO_EDGE
    ) -> None:
        if not self._finished:
            (self._log or self.log).append(kind, server.t, seconds, edge_id, body)


def _kind_of(judged: Judged) -> Kind:
    """Return what record an event has that changes something."""
    match judged:
        case JudgedGradient():
            return Kind.GRADIENT if judged.is_new else Kind.REPEAT
        case JudgedHello():
            return Kind.HELLO
        case JudgedLeave():
            return Kind.LEAVE
        case _:
            assert_never(judged)


def take_again(
    entry: Entry, server: CloudServer, codings: Marked = EVERY
) -> tuple[Event | None, list[Effect]]:
    """Take an entry of a log through a server again, to resume or to verify; nothing is sent.

    `codings`: those that the run's gradients may have.

    Return its event, if it is of one, and its effects; raise LogDamagedError if no cloud can have logged it here.
    """
    try:
        if entry.t != server.t:
            raise ValueError(f"the cloud was at t = {server.t}: a record is missing, doubled or misplaced")
        if entry.kind is Kind.BEGIN:
            if entry.body or server.schedule is not None:
                raise ValueError("a beginning after the beginning")
            return None, server.begin_with_those_here()
        if entry.kind is Kind.HALT:
            if server.halted is not None or not 0 < len(entry.body) <= _REASON:
                raise ValueError("a halt after the halt, or without a reason")
            return None, server.halt(entry.body.decode("ascii"))
        event = _event_of(entry, server.model.size, codings)
        judged = server.judge(event)
        if not judged.changes or _kind_of(judged) is not entry.kind:
            raise ValueError(f"a {entry.kind.name} of {entry.edge_id} that no cloud would have logged")
        return event, server.commit(judged)
    except (RemoteProtocolError, ValueError) as error:
        raise LogDamagedError(f"log record of t = {entry.t}: {error}") from error


def _event_of(entry: Entry, dimension: int, codings: Marked) -> Event:
    if entry.kind is Kind.HELLO:
        return decode_hello(entry.edge_id, entry.body)
    if entry.kind is Kind.LEAVE:
        return decode_leave(entry.edge_id, entry.body)
    if (mark := entry.body[: len(GRADIENT_MARK)]) in GRADIENT_MARKS - {GRADIENT_MARK, *codings}:
        raise ValueError(f"a gradient in {EVERY[mark][0].name}, a coding that this run does not have")
    arrived, expected = entry.arrived, dimension if entry.kind is Kind.GRADIENT else 0
    if arrived.gradient.size != expected:
        raise ValueError(f"{arrived.gradient.size} numbers, N = {expected}")
    return arrived
