"""One or many edges in one process, each with an id, a ledger and a link of its own."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Mapping
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, NoReturn, TypeVar

from common.datasets.catalogue import load_dataset
from common.datasets.dataset import Dataset
from common.datasets.source import Source
from common.errors import ForgedMessageError, RemoteProtocolError
from common.health import beat
from common.messages import Leave
from common.models.features import user_cache
from common.quantities import EdgeId, RunId
from common.randomness import Purpose, streams_for
from common.telemetry.family import published
from common.transport.channel import Channel, Guard, Loop, RetainedMessageError, Will
from common.transport.connection import (
    BrokerAddress,
    Credentials,
    MqttOptions,
    still_trying,
    unreachable,
)
from common.transport.link import LinkProfile
from common.transport.loop import SelectorLoop
from common.transport.mqtt import MqttChannel
from common.wire.codec import encode
from common.wire.topics import EdgeTopic, edge_client_id, edge_topic
from common.wire.v1 import WELCOME_LIMIT, packet_limit
from edge.accountant import SpentCurves, end_accountants, epsilons_apart, max_charges_apart
from edge.client import FAREWELL, EdgeClient
from edge.joining import Membership, memory_limit
from edge.journal import Journals
from edge.metrics import EVERY, read_edges
from edge.own_data import OwnData
from edge.policy import OperatorPolicy
from edge.session import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_REFUSED
from edge.sqlite_ledger import SqliteLedger
from edge.state_directory import Slot, StateDirectory

if TYPE_CHECKING:
    from common.transport.relay import RelayLoop

_FIRST_LOOK = 0.2  # seconds between two looks at a first connection
_CLOSING = 10.0  # seconds for the last messages on a slow link
_FIRST_REPORT, _LONGEST_REPORT = 10.0, 600.0  # seconds between two lines of progress, doubled each time
_LAST_JOB = 2.0  # seconds at the end for what is done in the background
_T = TypeVar("_T")
_COMPLAINTS = 5  # hostile messages that get a line each; the rest are counted


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettings:
    """Where the broker, the data and the ledgers are, and what the operator permits."""

    run: RunId
    broker: BrokerAddress
    data_dir: Path
    state_dir: Path
    count: int = 1
    policy: OperatorPolicy = field(default_factory=OperatorPolicy)
    credentials: Credentials = field(default_factory=Credentials)
    connect_timeout: float = 60.0
    accounts: Mapping[str, Credentials] | None = None  # by edge id; None: all have `credentials`
    own: OwnData | None = None  # records that these edges bring themselves
    metrics: socket.socket | None = None  # None: no metrics are served
    report_every: float | None = None  # seconds between two lines of progress; None: doubled each time


class BackgroundThread:
    """Does one thing after another beside a loop, which goes on meanwhile."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._ending = False
        self._thread = threading.Thread(target=self._serve, name="mapa-background", daemon=True)

    def __call__(self, work: Callable[[], _T], then: Callable[[_T], None]) -> None:
        """Do the work there, in this context, and give its result to `then` in the loop's thread."""
        context = copy_context()

        def job() -> None:
            try:
                result = context.run(work)
            except BaseException as error:  # it ends the loop, as it would have there
                self._loop.post(partial(_raise, error))
            else:
                self._loop.post(partial(then, result))

        self._jobs.put(job)
        if not self._thread.is_alive():
            self._thread.start()

    def end(self, hasten: Callable[[], None]) -> None:
        """Begin no more jobs; wait for the one under way, but not for long: it ends with the process."""
        self._ending = True
        hasten()
        self._jobs.put(lambda: None)  # it wakes a thread that has nothing to do
        if self._thread.is_alive():
            self._thread.join(_LAST_JOB)

    def _serve(self) -> None:
        while not self._ending:
            self._jobs.get()()


def _raise(error: BaseException) -> NoReturn:
    raise error


class EdgeFleet:
    """`count` edges on one loop; with one of them it is simply an edge."""

    def __init__(
        self,
        settings: FleetSettings,
        say: Callable[[str], None],
        note: Callable[[str], None] = lambda _text: None,  # progress, which an operator may silence
    ) -> None:
        memory_limit()  # a wrong one is the operator's to fix, before anything starts
        user_cache()
        if settings.own is not None:
            settings.own.check()
        self.settings = settings
        for name in settings.accounts or ():  # a file that does not fit is the operator's to fix, likewise
            self._guard(EdgeId(name), "0" * 16)
        self.say, self.note = say, note
        self.loop = SelectorLoop()
        self.background = BackgroundThread(self.loop)
        self.journals = Journals(self.loop.post)
        self.relays: RelayLoop | None = None
        self.clients: list[EdgeClient] = []
        self.channels: list[MqttChannel] = []
        self.slots: list[Slot] = []
        self.state: StateDirectory | None = None
        self._datasets: dict[Source, Dataset] = {}
        self._running = settings.count
        self._complaints = 0
        self._told_waiting = False  # for a first connection

    def serve(self) -> int:
        """Take part until every edge is done; return the worst exit code."""
        readings = partial(read_edges, self.clients, SpentCurves(epsilons_apart))
        with published(self.settings.metrics, self.loop, readings, self.say, every=EVERY):
            return self._take_part()

    def _take_part(self) -> int:
        try:
            self.note(f"waiting for run {self.settings.run!r} at {self.settings.broker}")
            for _ in range(self.settings.count):
                self._enlist()
            self._report_after(self.settings.report_every or _FIRST_REPORT)
            beat(self.loop, self._healthy)
            former = {n: signal.signal(n, self._signalled) for n in (signal.SIGTERM, signal.SIGINT)}
            try:
                self.loop.run()
                self.loop.serve(
                    lambda: all(channel.closed for channel in self.channels),
                    until=self.loop.now() + FAREWELL + _CLOSING,
                )
            finally:
                for number, handler in former.items():
                    signal.signal(number, handler)
            return max((client.exit_code or 0 for client in self.clients), default=0)
        finally:
            self._release()

    # -- parts of a client ----------------------------------------------------------------------------

    def _enlist(self) -> None:
        accounts = self.settings.accounts
        if self.state is None:
            self.state = StateDirectory(self.settings.state_dir)
        slot = self.state.take(None if accounts is None else sorted(accounts))
        self.slots.append(slot)
        named = None if accounts is None else EdgeId(slot.name)
        ledger = SqliteLedger(
            slot.directory, named, accountant=max_charges_apart, slot=slot, journals=self.journals
        )
        membership = Membership(
            run=self.settings.run,
            policy=self.settings.policy,
            ledger=ledger,
            load=self._load,
            own=self.settings.own,
            data_dir=self.settings.data_dir,
            renewable=named is None,
            state_dir=self.settings.state_dir,
            identity=partial(slot.secret, "sums.key"),
        )
        client = EdgeClient(
            *(membership, self.loop, self._connect, self.say, self._stopped, self.note, self.background)
        )
        self.clients.append(client)
        client.start()

    def _connect(self, client: EdgeClient, link: LinkProfile | None) -> Channel:
        """Return a channel that connects by itself, through the link's relay where there is one."""
        run, edge_id = self.settings.run, client.edge_id
        credentials, guard = self._credentials(edge_id), self._guard(edge_id, client.nonce)
        farewell = encode(Leave(edge_id, "lost", client.nonce))
        options = MqttOptions(
            address=self.settings.broker if link is None else self._relay(client, link),
            client_id=edge_client_id(run, edge_id),
            credentials=credentials,
            server_name=self.settings.broker.host,  # a relay's address is in no certificate
            will=Will(edge_topic(run, edge_id, EdgeTopic.WILL), farewell).proven_by(guard),
            guard=guard,
            max_packet=packet_limit(0, WELCOME_LIMIT),  # the client raises it once a welcome names the model
        )
        channel = MqttChannel(
            options,
            self.loop,
            on_connected=client.on_connected,
            on_lost=client.on_lost,
            on_violation=partial(self._violated, client),
        )
        self.channels = [known for known in self.channels if not known.closed]
        self.channels.append(channel)
        channel.open()
        began, timeout = self.loop.now(), self.settings.connect_timeout

        def look() -> None:
            """Give up if the first connection fails for too long; after it, lost connections are always retried."""
            if channel.connected or channel.closed or client.exit_code is not None:
                return
            if channel.refusal is not None:
                client.give_up(EXIT_REFUSED, f"broker {self.settings.broker}: {channel.refusal}")
                return
            if self.loop.now() - began > timeout:
                reason = unreachable(self.settings.broker, timeout, channel.last_error)
                client.give_up(EXIT_FAILED, reason)
                return
            if channel.failed and not self._told_waiting:
                self._told_waiting = True
                self.say(still_trying(self.settings.broker, timeout, channel.last_error))
            self.loop.call_later(_FIRST_LOOK, look)

        self.loop.call_later(_FIRST_LOOK, look)
        return channel

    def _credentials(self, edge_id: EdgeId) -> Credentials:
        accounts = self.settings.accounts
        return self.settings.credentials if accounts is None else accounts[edge_id]

    def _guard(self, edge_id: EdgeId, nonce: str) -> Guard | None:
        """Return what proves this edge's messages; None: nothing does."""
        folder = self._credentials(edge_id).identity
        if folder is None:
            return None
        from common.transport.identity import edge_guard  # cryptography: megabytes, only for who signs

        return edge_guard(folder, self.settings.run, edge_id, nonce)

    def _relay(self, client: EdgeClient, link: LinkProfile) -> BrokerAddress:
        if self.relays is None:
            from common.transport.relay import RelayLoop  # asyncio: megabytes that only a link needs

            self.relays = RelayLoop()
        assert client.preparation is not None  # it names the link
        streams = streams_for(client.preparation.scenario.seed)
        generator = streams.at(client.preparation.worker.index, Purpose.LINK, 0)
        relay = self.relays.open(link, self.settings.broker, generator).address
        return replace(relay, path=self.settings.broker.path)

    def _load(self, name: Source) -> Dataset:
        """Load a data set once for all edges."""
        if name not in self._datasets:
            self._datasets[name] = load_dataset(name, self.settings.data_dir)
        dataset = self._datasets[name]
        if sum(client.preparation is not None for client in self.clients) + 1 >= self.settings.count:
            self._datasets.clear()  # every edge has its shard: the rest is dead weight
        return dataset

    def _healthy(self) -> bool:
        """Tell whether every edge has made progress since it was last asked, or waits on purpose."""
        verdicts = [client.healthy() for client in self.clients]  # all are asked: each keeps the answer
        return all(verdicts)

    # -- progress -------------------------------------------------------------------------------------

    def _report_after(self, wait: float, before: float = 0.0) -> None:
        """Report in `wait` seconds, and from then on, what the edges do; they have run for `before` seconds."""

        def report() -> None:
            if self._running > 0:
                self.note(f"after {before + wait:.0f} s: {self._progress()}")
                longer = self.settings.report_every or min(2 * wait, _LONGEST_REPORT)
                self._report_after(longer, before + wait)

        self.loop.call_later(wait, report)

    def _progress(self) -> str:
        working = [client for client in self.clients if client.exit_code is None]
        if len(self.clients) == 1:
            return f"{working[0].edge_id}: {working[0].progress}"
        released = sum(0 if client.standing is None else client.standing.releases for client in working)
        least = min(working, key=lambda client: client.session.last_sequence)
        return (
            f"{len(working)} of {len(self.clients)} edges take part, {released:,} releases made;"
            f" {least.edge_id}, with the fewest: {least.progress}"
        )

    # -- ends -----------------------------------------------------------------------------------------

    def _stopped(self, code: int) -> None:  # noqa: ARG002 - serve() reads it from the client
        self._running -= 1
        if self._running == 0:
            self.loop.stop()

    def _violated(self, client: EdgeClient, topic: str, error: RemoteProtocolError) -> None:
        if isinstance(error, RetainedMessageError):
            client.dropped["retained"] += 1
        elif isinstance(error, ForgedMessageError):
            client.dropped["forged"] += 1
        self._complaints += 1  # also of what was never read: any client can send any number
        if self._complaints <= _COMPLAINTS:
            self.say(f"{client.edge_id}: dropped a message on {topic}: {error}")

    def _signalled(self, number: int, frame: object) -> None:  # noqa: ARG002
        """Leave: Ctrl-C interrupts, while SIGTERM is how an engine stops a container, and no failure to restart."""
        code = EXIT_INTERRUPTED if number == signal.SIGINT else EXIT_DONE
        self.loop.post(lambda: self._leave(code))

    def _leave(self, code: int) -> None:
        """End all edges; those that have ended already wait no longer for their broker."""
        for client in self.clients:
            client.hurry()
            client.leave("shutdown", code)

    def _release(self) -> None:
        self.background.end(end_accountants)
        for client in self.clients:
            client.release()
        if self.state is not None:
            self.state.close()
        if self.relays is not None:
            self.relays.drain(_CLOSING)  # a leave and a goodbye may still be under way on a slow link
            self.relays.close()
        self.loop.close()
        for slot in self.slots:
            slot.close()
