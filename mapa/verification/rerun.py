"""The log taken once more by the same pure CloudServer: the same events in the same order give the same bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from cloud.peers import Restarts
from cloud.server import CloudServer
from common.errors import RemoteProtocolError
from common.messages import (
    EdgeGone,
    EdgeJoined,
    Effect,
    Fact,
    GradientApplied,
    GradientArrived,
    GradientRefused,
    SendModel,
    StageOpened,
)
from common.records.log_format import Entry, Kind
from common.records.tally import Tally
from common.wire.codec import decode_hello, decode_leave
from mapa.simulation.simulator import quiet_overflow
from mapa.verification.run_files import RunFiles, UnreadableError
from mapa.verification.start import Start

_REASON = 64  # bytes of a halt's reason, at most
USED_UP = (
    "cap",
    "future",
    "no-such-model",
    "sensitivity",
    "norm",
)  # refusals that use up a sequence: all in the log


@dataclass(slots=True)
class Rerun:
    """What the log amounts to, once it is taken."""

    server: CloudServer
    tally: Tally = field(default_factory=Tally)
    lives: Restarts = field(default_factory=Restarts)
    facts: list[Fact] = field(
        default_factory=list
    )  # in order; refusals of what changed nothing are not in a log
    received: dict[str, int] = field(default_factory=dict)  # edge id → gradients in the log, each once
    times: list[float] = field(default_factory=list)  # of the first and of the last update, in seconds
    on_applied: Callable[[GradientArrived, GradientApplied], None] | None = None
    on_sent: Callable[[SendModel], None] | None = None

    @classmethod
    def of(cls, files: RunFiles, start: Start) -> Rerun:
        """Take the whole log; UnreadableError names the segment of a record that no cloud can have taken."""
        run = cls(start.server())
        for _ in run.steps(files):
            pass
        return run

    def steps(self, files: RunFiles) -> Iterator[Entry]:
        """Take the log record by record."""
        with quiet_overflow():
            for segment, entry in files.entries():
                updates = self.tally.updates
                try:
                    self._take(entry)
                except (RemoteProtocolError, ValueError) as error:
                    raise UnreadableError(segment, f"record of t = {entry.t}: {error}") from error
                if self.tally.updates > updates:
                    self.times = [*self.times[:1], entry.time]
                yield entry

    def _take(self, entry: Entry) -> None:
        server = self.server
        if entry.t != server.t:
            raise ValueError(f"the cloud was at t = {server.t}: a record is missing, doubled or out of place")
        match entry.kind:
            case Kind.GRADIENT:
                arrived = entry.arrived
                if arrived.gradient.size != server.model.size:
                    raise ValueError(f"{arrived.gradient.size} numbers, N = {server.model.size}")
                self._gradient(arrived)
            case Kind.REPEAT:
                arrived = entry.arrived
                if arrived.gradient.size or server.judge_gradient(arrived).is_new:
                    raise ValueError(
                        f"gradient {arrived.sequence} of {arrived.edge_id} was never taken before"
                    )
                self._observe(server.receive(arrived))
            case Kind.HELLO:
                hello = decode_hello(entry.edge_id, entry.body)
                effects = server.receive(hello)
                self._observe(effects)
                account = server.edges.get(entry.edge_id)
                if account is None or account.nonce != hello.nonce or account.number != hello.number:
                    raise ValueError(f"a hello of {entry.edge_id} that no cloud would have welcomed")
                self.lives.welcomed(entry.edge_id, hello.nonce, hello.last_sequence)
            case Kind.LEAVE:
                effects = server.receive(decode_leave(entry.edge_id, entry.body))
                if not effects:
                    raise ValueError(f"a leave of {entry.edge_id}, who was not there")
                self._observe(effects)
            case Kind.BEGIN:
                if entry.body or server.schedule is not None:
                    raise ValueError("a beginning after the beginning")
                self._observe(server.begin_with_those_here())
            case Kind.HALT:
                if server.halted is not None or not 0 < len(entry.body) <= _REASON:
                    raise ValueError("a halt after the halt, or without a reason")
                self._observe(server.halt(entry.body.decode("ascii")))

    def _gradient(self, arrived: GradientArrived) -> None:
        effects = self.server.receive(arrived)
        refused = [one.reason for one in effects if isinstance(one, GradientRefused)]
        if refused and refused[0] not in (*USED_UP, "full"):
            raise ValueError(
                f"gradient {arrived.sequence} of {arrived.edge_id}: the cloud would have refused it ({refused[0]})"
            )
        if refused != ["full"]:
            self.received[arrived.edge_id] = self.received.get(arrived.edge_id, 0) + 1
        if self.on_applied is not None:
            for effect in effects:
                if isinstance(effect, GradientApplied):
                    self.on_applied(arrived, effect)
        self._observe(effects)

    def _observe(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, GradientApplied | StageOpened | EdgeJoined | EdgeGone | GradientRefused):
                self.tally.observe(effect)
                self.facts.append(effect)
            elif isinstance(effect, SendModel) and self.on_sent is not None:
                self.on_sent(effect)
