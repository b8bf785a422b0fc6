"""One run's cloud from scenario to records: what `mapa cloud` and `mapa run` share."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib.util
import shlex
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cloud.assembly import begun, explained, server_for
from cloud.metrics import EVERY, SECONDS, read_cloud
from cloud.presence import Inquiry
from cloud.recovery_log import History
from cloud.resume import begin_history, resume_service
from cloud.service import Allowance, CloudService
from cloud.snapshot import ValueCodec
from common.datasets.catalogue import load_dataset
from common.errors import (
    BrokerUnavailableError,
    ConfigurationError,
    LocalProtocolError,
    RecordsError,
)
from common.health import beat
from common.messages import Presence, Welcome
from common.own_code import allowing
from common.quantities import EdgeId, RunId
from common.randomness import new_incarnation, streams_for
from common.records.directory import RunDirectory
from common.records.layout import HALT_OWED, RESUME, keeps_gradients
from common.records.recorder import Recorder
from common.scenario.scenario import Scenario
from common.telemetry.family import Buckets, published
from common.transport.channel import BrokerChannel, Loop, Will
from common.transport.connection import BrokerAddress, Credentials, MqttOptions
from common.transport.loop import SelectorLoop
from common.transport.mqtt import MqttChannel
from common.wire.codec import encode, new_nonce
from common.wire.topics import cloud_client_id, presence_topic
from common.wire.v1 import (
    COLD_LIMIT,
    HEADER_BYTES,
    ITEMS_LIMIT,
    PROOF_LIMIT,
    bounded,
    packet_limit,
    payload_limit,
)
from mapa.brokers import SizeProbe, check_message_size
from mapa.budget import Say
from mapa.processes import on_signals
from mapa.run_parts import OwnFiles, RunParts, assemble
from mapa.run_view import View

EXIT_SUSPENDED = 143  # as of a process that SIGTERM ended
EXIT_UNDELIVERED = 5  # the run has ended, and its edges were not told
EXIT_CODES = {"finished": 0, "time-limit": 0, "no-budget": 3, "interrupted": 130}
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # of mallopt
_KEPT = 64 << 20  # bytes that it keeps at least
_KEPT_VECTORS = 8  # of N parameters that it keeps, where these are more
_ALLOCATIONS = 50_000  # between two looks for garbage
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
        if scenario.secure is not None:
            scenario = _with_sums(scenario)
        parts = assemble(scenario, partial(load_dataset, data_dir=data_dir), own, data_dir, say)
        algorithm = begun(parts.scenario, parts.model)  # where the algorithm cannot begin, nothing does
        ValueCodec(parts.scenario.described.made).plain(algorithm)  # nor where no checkpoint could hold it
        test = None if own is None else own.test
        return cls(parts.scenario, parts.dataset, parts.model, parts.rows, data_dir, test)

    @property
    def payload_bytes(self) -> int:
        """The largest message of the run, with a margin: what its broker must accept."""
        return max(payload_limit(self.model.dimension), self._sums_bytes)

    @property
    def _sums_bytes(self) -> int:
        """The largest message of secure sums; 0: there are none."""
        table, size = self.scenario.secure, self.model.dimension
        if table is None or table.modulus_bits is None:
            return 0
        from common.secure.masked import masked_size  # cryptography: a plain run does without
        from common.wire.secure_v1 import ASK_LIMIT, answer_limit

        masked = masked_size(size, table.modulus_bits, table.helpers, table.away)
        return max(masked, answer_limit(size, table.modulus_bits), ASK_LIMIT)

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
            return max(len(encode(welcome)) for welcome in welcomes)
        except LocalProtocolError as error:
            raise ConfigurationError(f"scenario: edges cannot be sent it: {error}") from error


def _with_sums(scenario: Scenario) -> Scenario:
    """Return a scenario that keeps no log; refuse what a service's secure sums do not do yet."""
    table = scenario.secure
    assert table is not None
    if importlib.util.find_spec("cryptography") is None:
        raise ConfigurationError(
            "secure: the package cryptography is not installed; pip install 'mapa-testbed[identity]'"
        )
    colluding, most = scenario.privacy.colluding, table.at_least - 1
    if colluding != most:
        raise ConfigurationError(
            f"privacy.colluding = {colluding}: must be {most} in a run on a network: no authority vouches for its"
            " roster yet, so the cloud could enrol all other edges of a set itself"
        )
    if scenario.records.keep_gradients:
        raise ConfigurationError(
            "records.keep_gradients = true: not with [secure] in a run on a network: masked releases are in no log yet"
        )
    records = scenario.records.model_copy(update={"keep_gradients": False})
    return scenario.model_copy(update={"records": records})


@dataclass(slots=True)
class CloudRun:
    """The cloud of one run, connected."""

    setting: Setting
    service: CloudService
    channel: BrokerChannel
    loop: Loop
    directory: RunDirectory
    reached: str = ""  # the options by which the operator reached the broker
    patience: float = _GOODBYE  # seconds to wait for the broker to take the halt
    suspends: bool = False  # SIGTERM leaves the run to the next cloud
    undelivered: bool = False  # no edge was told of the halt
    _hurried: bool = False

    def exit_code(self, reason: str) -> int:
        return EXIT_UNDELIVERED if self.undelivered else EXIT_CODES.get(reason, 1)

    @property
    def resume_command(self) -> str:
        """The command that resumes this run; the rest of what it needs is in the run's own directory."""
        path = shlex.quote(str(self.directory.path))
        return f"mapa cloud --resume {path} {self.reached}{allowing(self.setting.scenario.canonical())}"

    def remember(self) -> None:
        places = {"data_dir": self.setting.data_dir, "test_data": self.setting.test_data}
        values = {name: None if path is None else str(path.resolve()) for name, path in places.items()}
        self.directory.document(RESUME, {**values, HALT_OWED: self.undelivered})

    def serve(self) -> str:
        """Serve until the halt and its delivery; return its reason.

        SIGINT and SIGTERM end the run early, records intact; after a second one the broker is not waited for. Where the
        run is to be suspended, SIGTERM ends the process as a crash would, between two messages: SystemExit.
        """
        _keep_pages(self.setting.model.dimension)
        with (
            on_signals(lambda number, _: self.loop.post(partial(self._signalled, number))),
            _few_collections(),
        ):
            try:
                self.loop.run()
            except RecordsError as error:  # no edge was answered since: a resumed run continues from there
                raise RecordsError(
                    f"{error}; the run has stopped, and no update that was answered is lost: make room, then go on"
                    f" with {self.resume_command}"
                ) from error
            self._deliver()
        halted = self.service.halted
        return halted.reason if halted is not None else "interrupted"

    def _signalled(self, number: int) -> None:
        if self.suspends and number == signal.SIGTERM:
            raise SystemExit(EXIT_SUSPENDED)
        self._hurried = self.service.halted is not None
        self.service.halt("interrupted")

    def _owing(self) -> bool:
        return self.channel.owing or self.service.presence.owing

    def _deliver(self) -> None:
        """Wait until the broker has the halt, which is what the edges wait for."""
        say = self.service.say
        if self._owing() and not self.channel.connected:
            say(
                f"the broker is disconnected; waiting up to {self.patience:g} s to deliver the halt to the edges"
            )
        until = self.loop.now() + self.patience
        self.loop.serve(lambda: self._hurried or not self._owing(), until=until)
        self.undelivered = self._owing()
        if self.undelivered:
            self.patience = 0.0
            say(
                "halt not delivered: edges keep waiting until they are told; once the broker is back, tell them with"
                f" {self.resume_command}"
            )
        if self.service.history is not None:
            with contextlib.suppress(RecordsError):  # then the summary cannot be written either, and says so
                self.remember()

    def take_over(
        self, history: History | None, inquiry: Inquiry, broker: BrokerAddress, *, resumed: bool
    ) -> None:
        """Make sure that no other cloud serves the run, then begin its log or bring it back from there."""
        service, directory = self.service, self.directory
        inquiry.ask(self.loop, service.say)
        size = self.setting.probe_bytes + (PROOF_LIMIT if service.authentic else 0)
        probe = SizeProbe(inquiry.run, inquiry.nonce, self.channel, size)
        check_message_size(probe, broker, self.loop, service.say)
        if history is not None:
            begin = resume_service if resumed else begin_history
            begin(service, history, directory)
            self.undelivered = service.halted is not None  # it had ended, and its edges are still to be told
            self.remember()
        inquiry.check_alone()  # others may have asked meanwhile

    def records_written(self, view: View) -> None:
        """Flush the records, so that a crash leaves them complete; raise where they could not be written."""
        records = self.service.records
        try:
            self.directory.events.flush()
        except RecordsError as error:
            records.fail(error)
        if records.failure is not None and self.service.halted is None:
            raise records.failure  # unrecorded updates would be releases that no record shows
        view.refresh()


def _keep_pages(dimension: int) -> None:
    """Have glibc keep what is freed: each update makes and frees a gradient and a model of N = `dimension` numbers.

    None of them in pages of its own (M_MMAP_MAX), which it gives back at once: they cost more than all arithmetic.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, min(max(_KEPT, _KEPT_VECTORS * 4 * dimension), 2**31 - 1))  # it takes an int
        mallopt(_MMAP_MAX, 0)


@contextlib.contextmanager
def _few_collections() -> Iterator[None]:
    """Look for garbage rarely, and never among what start-up has made: an update leaves none in cycles."""
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(_ALLOCATIONS, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


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
    suspends: bool = False,
) -> Iterator[CloudRun]:
    """Connect the cloud and begin to serve hellos as soon as the loop runs.

    Without an incarnation the run begins, with a new one; with that of a run it continues where the directory's log
    ends. `remembers`: whether there is such a log. `reached`: the options that name the broker, for the command that
    resumes the run.
    """
    scenario, nonce = setting.scenario, new_nonce()
    sums = scenario.secure is not None
    if sums and incarnation is not None:
        raise ConfigurationError("--resume: a run with [secure] cannot be resumed yet; start another one")
    if sums and suspends:
        raise ConfigurationError("--suspend: a run with [secure] cannot be resumed yet")
    if sums and credentials.identity is not None:
        raise ConfigurationError(
            "--authentic: a run with [secure] has no signed messages of helpers yet; --no-authentic starts it without"
        )
    server = server_for(
        scenario,
        setting.model,
        streams_for(scenario.seed),
        edges_at_least=edges_at_least,
        incarnation=new_incarnation() if incarnation is None else incarnation,
        sealed=sums,
    )
    offline, guard = encode(Presence(False, nonce, server.incarnation)), None
    if credentials.identity is not None:
        from common.transport.identity import cloud_guard  # cryptography: megabytes, only for who signs

        spoken = Allowance(scenario.testbed.resend_after)
        guard = cloud_guard(
            credentials.identity,
            run,
            server.incarnation,
            nonce,
            lambda edge: spoken.grant(edge, time.monotonic()),
        )
    options = MqttOptions(
        address=broker,
        client_id=cloud_client_id(run, nonce),
        credentials=credentials,
        will=Will(presence_topic(run), offline, retain=True).proven_by(guard),
        guard=guard,
        max_packet=packet_limit(0, setting.payload_bytes) if sums else packet_limit(setting.model.dimension),
    )
    loop = SelectorLoop()
    channel = MqttChannel(options, loop)
    service = CloudService(
        run=run,
        scenario=scenario,
        server=server,
        evaluator=setting.new_evaluator(),
        channel=channel,
        loop=loop,
        records=Recorder(directory.journal if scenario.records.events else None, goes_on=True),
        say=view.say,
        gather=gather,
        nonce=nonce,
        sums=sums,
        authentic=guard is not None,
    )
    view.attach(service)
    history = _history(setting, server.incarnation, directory, view.say) if remembers and not sums else None
    if sums:
        view.say("a run with [secure] keeps no log yet: it can be neither resumed nor replayed")
    cloud = CloudRun(
        *(setting, service, channel, loop, directory, reached or f"--broker {broker}"), suspends=suspends
    )
    service.on_records = partial(cloud.records_written, view)
    inquiry = Inquiry(run, nonce, channel, server.incarnation)
    channel.on_lost = service.on_lost
    try:
        channel.connect(connect_timeout, view.say)
        cloud.take_over(history, inquiry, broker, resumed=incarnation is not None)
    except (BrokerUnavailableError, ConfigurationError, RecordsError):
        if channel.connected:
            inquiry.withdraw()
        channel.close()  # with a goodbye: our last will would say that the run's cloud is away
        loop.close()
        raise
    if text := explained(scenario, setting.model):
        view.say(text)
    service.start()
    channel.on_connected, channel.on_violation = service.presence.announce, service.on_violation
    beat(loop, lambda: channel.connected)
    try:
        if metrics is not None:
            service.traffic.replies = Buckets(SECONDS)
        with published(metrics, loop, lambda: read_cloud(service), view.say, every=EVERY):
            yield cloud
            channel.close(cloud.patience)
    except BaseException:
        channel.abort()  # as a crash would: the last will tells the edges that no cloud is here
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
