"""One run's cloud from scenario to records: what `mapa cloud` and `mapa run` share."""

from __future__ import annotations

import contextlib
import shlex
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cloud.assembly import algorithm_for, begun, explained, server_for
from cloud.history import History
from cloud.metrics import EVERY, SECONDS, read_cloud
from cloud.presence import Inquiry
from cloud.probe import SizeProbe
from cloud.revival import begin_history, revive
from cloud.service import CloudService
from cloud.snapshot import ValueCodec
from common.datasets.catalogue import load_dataset
from common.errors import (
    BrokerUnavailableError,
    ConfigurationError,
    LocalProtocolError,
    RecordsError,
    RemoteProtocolError,
)
from common.health import beat
from common.messages import Presence, Welcome
from common.own_code import allowing
from common.quantities import EdgeId, RunId
from common.randomness import new_incarnation, streams_for
from common.records.keeping import keeps_gradients
from common.records.naming import HALT_OWED
from common.records.recorder import Recorder
from common.records.rundir import RunDirectory
from common.scenario.scenario import Scenario
from common.telemetry.family import Buckets, published
from common.transport.channel import UNREAD, RetainedMessageError, Will
from common.transport.connection import SIZE_HINT, BrokerAddress, Credentials, MqttOptions
from common.transport.loop import SelectorLoop
from common.transport.mqtt import MqttChannel
from common.wire.codec import encode_presence, encode_welcome, new_nonce
from common.wire.topics import cloud_client_id, presence_topic
from common.wire.v1 import COLD_LIMIT, HEADER_BYTES, ITEMS_LIMIT, bounded, packet_limit, payload_limit
from mapa.budget import Say
from mapa.live import View
from mapa.run_parts import OwnFiles, RunParts, assemble

EXIT_UNDELIVERED = 5  # the run has ended, and its edges were not told
EXIT_CODES = {"finished": 0, "time-limit": 0, "no-budget": 3, "interrupted": 130}
_ANSWER = 5.0  # seconds for the answer of another cloud whose presence is still retained
_ECHO = 20.0  # seconds for a message as large as a model to come back
_GOODBYE = 60.0  # seconds that the broker may be away at the end: its restart takes less


@dataclass(frozen=True, slots=True)
class Setting(RunParts):
    """The parts of a run on a network, before anything connects."""

    data_dir: Path | None = None
    test_data: Path | None = None  # of the cloud, where the edges bring their own records

    @classmethod
    def of(
        cls, scenario: Scenario, data_dir: Path, own: OwnFiles | None = None, *, say: Say | None = None
    ) -> Setting:
        if not bounded(scenario.for_edge(0)):
            raise ConfigurationError(
                f"scenario: edges receive it, so keys and strings must be printable, at most {ITEMS_LIMIT} characters"
            )
        parts = assemble(scenario, partial(load_dataset, data_dir=data_dir), own, data_dir, say)
        algorithm = begun(parts.scenario, parts.model)  # where the algorithm cannot begin, nothing does
        made = type(algorithm_for(parts.scenario))
        ValueCodec(made).plain(algorithm)  # nor where no checkpoint could hold it
        test = None if own is None else own.test
        return cls(parts.scenario, parts.dataset, parts.model, parts.rows, data_dir, test)

    @property
    def payload_bytes(self) -> int:
        """The largest message of the run, with a margin: what its broker must accept, and no more."""
        return payload_limit(self.model.dimension)

    @property
    def probe_bytes(self) -> int:
        """The size of an encoded model, of the largest welcome, or of the largest other message."""
        return max(HEADER_BYTES + 4 * self.model.dimension, COLD_LIMIT, self._welcome_bytes)

    @property
    def _welcome_bytes(self) -> int:
        """The largest welcome: that of the edge with the longest link, or with the longest device."""
        scenario, most = self.scenario, 2**63 - 1
        cycled = (scenario.links, scenario.devices)
        edges = {max(range(len(values)), key=lambda k: len(repr(values[k]))) for values in cycled if values}
        welcomes = [
            Welcome(
                edge_id=EdgeId("edge"),
                index=k,
                last_sequence=most,
                edges=scenario.workers,
                scenario=scenario.for_edge(k),
                seed=scenario.seed,
                nonce="0" * 16,
                number=most,
                incarnation=most,
            )
            for k in {0, *(k for k in edges if k < scenario.workers)}
        ]
        try:
            return max(len(encode_welcome(welcome)) for welcome in welcomes)
        except LocalProtocolError as error:
            raise ConfigurationError(f"scenario: edges cannot be sent it: {error}") from error

    @property
    def packet_bytes(self) -> int:
        """The largest packet that a cloud accepts, with its topic: a gradient, or the largest hello."""
        return packet_limit(self.model.dimension)


@dataclass(slots=True)
class CloudRun:
    """The cloud of one run, connected."""

    setting: Setting
    service: CloudService
    channel: MqttChannel
    loop: SelectorLoop
    directory: RunDirectory
    reached: str = ""  # the options by which the operator reached the broker
    patience: float = _GOODBYE  # seconds for what the broker has not taken
    undelivered: bool = False  # the halt: no edge was told
    _hurried: bool = False

    def exit_code(self, reason: str) -> int:
        return EXIT_UNDELIVERED if self.undelivered else EXIT_CODES.get(reason, 1)

    @property
    def resume_command(self) -> str:
        """The command that goes on with this run; what it needs besides stands in the run's own directory."""
        reached = self.reached or f"--broker {self.channel.options.address}"
        path = shlex.quote(str(self.directory.path))
        return f"mapa cloud --resume {path} {reached}{allowing(self.setting.scenario.canonical())}"

    def remember(self) -> None:
        """Write what a resumed cloud needs."""
        places = {"data_dir": self.setting.data_dir, "test_data": self.setting.test_data}
        values = {name: None if path is None else str(path.resolve()) for name, path in places.items()}
        self.directory.remember({**values, HALT_OWED: self.undelivered})

    def serve(self) -> str:
        """Serve until the halt and its delivery; return its reason.

        SIGINT and SIGTERM end the run early, records intact; a second one waits for no broker.
        """
        with _signals(self.loop, self._signalled):
            try:
                self.loop.run()
            except RecordsError as error:  # nobody was answered since: the next process goes on from there
                raise RecordsError(
                    f"{error}; the run has stopped, and no update that was answered is lost: make room, then go on"
                    f" with {self.resume_command}"
                ) from error
            self._deliver()
        halted = self.service.halted
        return halted.reason if halted is not None else "interrupted"

    def _signalled(self) -> None:
        self._hurried = self.service.halted is not None
        self.service.halt("interrupted")

    def _deliver(self) -> None:
        """Wait until the broker has the halt, which is what the edges wait for."""
        channel, service, say = self.channel, self.service, self.service.say

        def owing() -> bool:
            return channel.owing or service.presence.owing

        if owing() and not channel.connected:
            say(
                f"the broker is disconnected; waiting up to {self.patience:g} s to deliver the halt to the edges"
            )
        until = self.loop.now() + self.patience
        self.undelivered = not self.loop.serve(lambda: self._hurried or not owing(), until=until) or owing()
        if self.undelivered:
            self.patience = 0.0
            say(
                "halt not delivered: edges keep waiting until they are told; once the broker is back, tell them with"
                f" {self.resume_command}"
            )
        if service.history is not None:
            with contextlib.suppress(
                RecordsError
            ):  # the other records cannot be written either, which is said
                self.remember()


@contextlib.contextmanager
def open_cloud(
    setting: Setting,
    *,
    run: RunId,
    broker: BrokerAddress,
    credentials: Credentials,
    directory: RunDirectory,
    view: View,
    edges_at_least: int,
    connect_timeout: float = 30.0,
    gather: float | None = None,
    incarnation: int | None = None,
    remembers: bool = True,
    reached: str = "",
    metrics: socket.socket | None = None,
) -> Iterator[CloudRun]:
    """Connect the cloud and begin to serve hellos as soon as the loop runs.

    Without an incarnation the run begins, with a new one; with that of a run it goes on where the directory's log
    ends. `remembers`: whether there is such a log. `reached`: the options that name the broker, for the command that
    resumes the run.
    """
    scenario, nonce = setting.scenario, new_nonce()
    server = server_for(
        scenario,
        setting.model,
        streams_for(scenario.seed),
        edges_at_least=edges_at_least,
        incarnation=new_incarnation() if incarnation is None else incarnation,
    )
    loop = SelectorLoop()
    options = MqttOptions(
        address=broker,
        client_id=cloud_client_id(run, nonce),
        username=credentials.username,
        password=credentials.password,
        tls=credentials.tls,
        will=Will(
            presence_topic(run), encode_presence(Presence(False, nonce, server.incarnation)), retain=True
        ),
        max_packet=setting.packet_bytes,
    )
    started: list[CloudService] = []

    def announce_again() -> None:
        for service in started:
            service.presence.announce()

    def lost(reason: str) -> None:
        for service in started:
            service.traffic.lost_connections += 1
        view.say(f"{reason}; reconnecting")

    def count_packets(topic: str, error: RemoteProtocolError) -> None:
        for service in started:  # what reached the service it counts itself
            if isinstance(error, RetainedMessageError):
                service.dropped["retained"] += 1
            elif topic == UNREAD:
                service.dropped["packet"] += 1
                service.presence.restore()  # on which topic it was nobody knows

    records = Recorder(directory.journal if scenario.records.events else None, goes_on=True)

    def records_written() -> None:
        try:
            directory.flush()  # whoever watches the run reads them; whatever dies now, they are there
        except RecordsError as error:
            records.fail(error)
        running = any(service.halted is None for service in started)
        if records.failure is not None and running:
            raise records.failure  # unrecorded updates would be releases that no record shows
        view.refresh()

    channel = MqttChannel(
        options,
        loop,
        on_connected=announce_again,
        on_lost=lost,
        on_violation=count_packets,
    )
    service = CloudService(
        run=run,
        scenario=scenario,
        server=server,
        evaluator=setting.new_evaluator(),
        channel=channel,
        loop=loop,
        records=records,
        on_records=records_written,
        say=view.say,
        gather=gather,
        nonce=nonce,
    )
    view.attach(service)
    history = _history(setting, server.incarnation, directory, view.say) if remembers else None
    cloud = CloudRun(setting, service, channel, loop, directory, reached)
    inquiry = Inquiry(run, nonce, channel, server.incarnation)
    try:
        channel.connect(connect_timeout, view.say)
        _ask_for_others(inquiry, loop, view.say)
        _probe_size(SizeProbe(run, nonce, channel, setting.probe_bytes), channel, loop, view.say)
        if history is not None:
            go_on = begin_history if incarnation is None else revive
            go_on(service, history, type(algorithm_for(scenario)), directory)
            cloud.undelivered = service.halted is not None  # it ended before, and goes on to tell the edges
            cloud.remember()
        _check_alone(inquiry)  # others may have asked meanwhile
    except (BrokerUnavailableError, ConfigurationError, RecordsError):
        if channel.connected:
            inquiry.withdraw()
        channel.close()  # with a goodbye: our last will would say that the run's cloud is away
        loop.close()
        raise
    if words := explained(scenario, setting.model):
        view.say(words)
    service.start()
    started.append(service)
    beat(loop, lambda: channel.connected)
    try:
        if metrics is not None:
            service.traffic.replies = Buckets(SECONDS)
        with published(metrics, loop, lambda: read_cloud(service), view.say, every=EVERY):
            yield cloud
            channel.close(cloud.patience)
    except BaseException:
        channel.abort()  # as a crash would: the last will tells the edges that nobody is here
        raise
    finally:
        if history is not None:
            history.close()
        loop.close()


def _history(
    setting: Setting, incarnation: int, directory: RunDirectory, say: Callable[[str], None]
) -> History:
    """Return the log and the checkpoints of a run, and say what becomes of them."""
    scenario, dimension = setting.scenario, setting.model.dimension
    asked = scenario.records.keep_gradients
    keep = keeps_gradients(asked, scenario.iterations, dimension)
    size = scenario.iterations * 4 * dimension / 1e6
    if keep and (asked is None or not scenario.private):
        plain = "" if scenario.private else "; they are not private: this algorithm's edges do not noise"
        say(f"gradients are kept in {directory.path}/log, up to {size:,.3g} MB{plain}")
    elif asked is None:
        say(f"gradients are not kept: {size:,.4g} MB; records.keep_gradients = true keeps them for a replay")
    return History(
        directory.path,
        incarnation=incarnation,
        dimension=dimension,
        keep=keep,
        power=scenario.records.durability == "power",
        say=say,
    )


def _ask_for_others(inquiry: Inquiry, loop: SelectorLoop, say: Callable[[str], None]) -> None:
    """Raise ConfigurationError where another cloud serves the run; one that left only its presence is replaced."""
    inquiry.begin()
    loop.serve(lambda: inquiry.settled, until=loop.now() + _ANSWER)
    _check_alone(inquiry)
    if inquiry.online or inquiry.earlier:
        say(f"run {inquiry.run!r}: previous cloud unresponsive; taking over")


def _check_alone(inquiry: Inquiry) -> None:
    if inquiry.answered:
        raise ConfigurationError(
            f"run = {inquiry.run!r}: another cloud is serving it on this broker, or began to at the same moment; stop"
            " that one, or choose another --run"
        )


def _probe_size(
    probe: SizeProbe, channel: MqttChannel, loop: SelectorLoop, say: Callable[[str], None]
) -> None:
    """Raise ConfigurationError where the broker does not deliver messages of the run's size."""
    probe.begin()
    for _attempt in range(2):  # one connection may be lost for another reason
        loop.post(probe.send)
        until = loop.now() + _ECHO
        loop.serve(lambda: probe.settled or not channel.connected, until=until)
        if probe.passed:
            return
        if probe.settled:
            raise ConfigurationError(
                f"broker {channel.options.address}: drops messages of {probe.size} bytes, which this run"
                f" needs; {SIZE_HINT}"
            )
        if channel.connected:
            say(
                f"no echo of a message of {probe.size} bytes within {_ECHO:g} s: the broker or the connection is slow"
            )
            return
        loop.serve(lambda: channel.connected, until=until)
    raise ConfigurationError(
        f"broker {channel.options.address}: closes the connection after a message of {probe.size} bytes, which this"
        f" run needs; {SIZE_HINT}"
    )


@contextlib.contextmanager
def _signals(loop: SelectorLoop, interrupt: Callable[[], None]) -> Iterator[None]:
    """Let SIGINT and SIGTERM call `interrupt` in the loop's thread; in another than the main thread none comes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {
        number: signal.signal(number, lambda *_: loop.post(interrupt))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)
