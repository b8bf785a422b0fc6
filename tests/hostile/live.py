"""Mutants at runs on a real Mosquitto, on topics of all kinds, while edges train to T.

Once with our configuration, by an edge with a certificate of its own: it may send what it likes in its own branch and
tries every other. Twice by strangers at a broker without any rules, toward cloud and edges alike: where nothing is
signed what happens to be a valid message is left out, since nothing could tell it from a true one; where messages are
signed it is not, and what was heard is repeated, too.
"""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cloud.service import CloudService
from cloud.snapshot import server_state
from common.errors import RemoteProtocolError
from common.messages import GradientArrived, Halt, Hello, Leave, Presence, Refuse, SendModel, Welcome
from common.quantities import EdgeId, NoisyGradient
from common.records.checkpoint import pack
from common.transport.connection import BrokerAddress, Credentials, TlsFiles
from common.transport.stream import publish_head
from common.wire import codec
from common.wire.topics import (
    EdgeTopic,
    clouds_topic,
    edge_topic,
    every_edge,
    halt_topic,
    presence_topic,
    probe_topic,
)
from mapa.authority import Authority, Role
from mapa.brokers import private_mosquitto
from tests.broker.conftest import Client
from tests.broker.site_support import Session, Site, context
from tests.broker.testbed_support import Testbed, open_testbed, scenario
from tests.guard_support import Members
from tests.hostile.load import growth, resident
from tests.hostile.mutation import Form, Mutator
from tests.program_support import PATIENCE

HOSTILE = "e-hostile"
_HEARD = 40  # messages that are repeated or moved, until the next are looked up
_ANEW = 200  # messages after which what is valid is looked up again
_BLOCKS = 10  # at which memory is looked at
_TOGETHER = 50  # messages in one write
_RATE = 2000.0  # messages a second, so that most of them reach a cloud on a busy machine
_QUICK = 160.0  # updates a second of edges behind a link, at most: so long a run lasts


@dataclass
class Outcome:
    """What became of a run under load."""

    sent: Counter[str] = field(default_factory=Counter)  # by topic
    reached: Counter[str] = field(default_factory=Counter)  # the cloud: by what became of them there
    faults: list[str] = field(default_factory=list)
    reconnections: int = 0  # of the hostile client, which the broker threw out
    begun: int = 0  # t when the load began and ended
    ended: int = 0
    summary: dict[str, Any] = field(default_factory=dict)
    memory: list[int] = field(default_factory=list)  # of the cloud and the attacker, in this process

    def show(self, say: Callable[[str], None] = print) -> None:
        say(
            f"sent {self.sent.total():,}: "
            + ", ".join(f"{kind} {n:,}" for kind, n in sorted(self.sent.items()))
        )
        say(f"thrown out by the broker {self.reconnections:,} times")
        say("at the cloud: " + ", ".join(f"{what} {n:,}" for what, n in sorted(self.reached.items())))
        end = f"{self.summary['reason']} after {self.summary['updates']} updates"
        say(f"from t = {self.begun} to t = {self.ended}; {end}")
        say(growth(self.memory, self.sent.total()))
        say(f"faults: {len(self.faults)}")
        for fault in self.faults[:10]:
            say(fault)


# -- what is sent -------------------------------------------------------------------------------------


@dataclass
class Aim:
    """A topic, what is valid there now, and how the one who listens reads it; None: nobody does."""

    topic: str
    form: Form
    messages: list[bytes]
    read: Callable[[bytes], object] | None = None


def aims_at(service: CloudService, edges: list[str]) -> list[Aim]:
    """Return every topic of a run, for each edge."""
    run, life, cloud = service.run, service.server.incarnation, service.presence.nonce
    size, found = service.server.model.size, list[Aim]()
    x = service.server.model
    for name in edges:
        edge = EdgeId(name)
        account = service.server.edges.get(edge)
        nonce, last = ("c" * 16, 0) if account is None else (account.nonce, account.last_sequence)
        release = GradientArrived(edge, last + 1, 1, 1.0, NoisyGradient(x), life)
        model = SendModel(edge, 5, 1.0, last, x, life)
        hello = Hello(edge_id=edge, nonce=nonce, number=1, incarnation=life, last_sequence=last)
        told = service.scenario.for_edge(0)
        welcome = Welcome(
            edge_id=edge,
            index=0,
            edges=4,
            last_sequence=last,
            scenario=told,
            incarnation=life,
            nonce=nonce,
            number=2,
        )
        refuse = Refuse(edge, "halted", "over", nonce, 1, life)
        leave = [codec.encode(Leave(edge, why, nonce)) for why in ("budget", "lost")]
        reads: dict[EdgeTopic, tuple[Form, list[bytes], Callable[[bytes], object]]] = {
            EdgeTopic.GRADIENT: (
                Form.HOT,
                [codec.encode_gradient(release)],
                lambda p: codec.decode_gradient(EdgeId("e"), p, size),
            ),
            EdgeTopic.MODEL: (
                Form.HOT,
                [codec.encode_model(model)],
                lambda p: codec.decode_model(EdgeId("e"), p, size),
            ),
            EdgeTopic.HELLO: (Form.MAP, [codec.encode(hello)], lambda p: codec.decode_hello(EdgeId("e"), p)),
            EdgeTopic.WELCOME: (
                Form.MAP,
                [codec.encode(welcome), codec.encode(refuse)],
                lambda p: codec.decode_answer(EdgeId("e"), p),
            ),
            EdgeTopic.LEAVE: (Form.MAP, leave, lambda p: codec.decode_leave(EdgeId("e"), p)),
            EdgeTopic.WILL: (Form.MAP, leave, lambda p: codec.decode_leave(EdgeId("e"), p)),
        }
        found += [Aim(edge_topic(run, edge, leaf), *aim) for leaf, aim in reads.items()]
    halt = codec.encode(Halt("finished", 9, life))
    away = [codec.encode(Presence(False, cloud, life, over)) for over in (False, True)]
    found += [
        Aim(halt_topic(run), Form.MAP, [halt], codec.decode_halt),
        Aim(presence_topic(run), Form.MAP, away, codec.decode_presence),
        *(
            Aim(topic, Form.OCTETS, [halt])
            for topic in (probe_topic(run), f"mapa/v1/{run}/edge/a/b/c", "other", "$SYS/x")
        ),
        Aim(clouds_topic(run), Form.OCTETS, [halt]),
        Aim(f"mapa/v1/{run}/edge//gradient", Form.OCTETS, [halt]),
    ]
    return found


class Attacker:
    """Publishes at a bounded rate, comes back where the broker throws it out, and reads nothing but what it must."""

    def __init__(self, connect: Callable[[], Session], outcome: Outcome, rate: float) -> None:
        self._connect, self._outcome, self._rate = connect, outcome, rate
        self._open()

    def _open(self) -> None:
        self.session = self._connect()
        self._reader = threading.Thread(target=_swallow, args=(self.session.socket,), daemon=True)
        self._reader.start()

    def send(self, packets: Iterator[bytes]) -> None:
        """Send all of them."""
        began, sent = time.monotonic(), 0
        waiting = list[bytes]()
        for packet in packets:
            waiting.append(packet)
            if len(waiting) == _TOGETHER:
                self._write(b"".join(waiting))
                sent += len(waiting)
                waiting.clear()
                time.sleep(max(0.0, began + sent / self._rate - time.monotonic()))
        self._write(b"".join(waiting))

    def _write(self, content: bytes) -> None:
        try:
            self.session.socket.sendall(content)
        except (OSError, ssl.SSLError):
            self._outcome.reconnections += 1
            self.close()
            self._open()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.session.socket.shutdown(socket.SHUT_RDWR)
        self.session.socket.close()
        self._reader.join(PATIENCE)


def _swallow(connection: socket.socket) -> None:
    with contextlib.suppress(OSError, ValueError):
        connection.settimeout(None)
        while connection.recv(1 << 16):
            pass


def packets_of(
    aims: Callable[[], list[Aim]],
    mutator: Mutator,
    count: int,
    outcome: Outcome,
    *,
    malformed: bool,
    repeated: float,
) -> Iterator[bytes]:
    """Yield so many PUBLISH packets; `malformed`: none that the one who listens there would read.

    `repeated` is the share of those that are sent as they are.
    """
    luck, made, current = mutator.luck, 0, aims()
    while made < count:
        if made % _ANEW == 0:
            current = aims()
        if made * _BLOCKS // count == len(outcome.memory):
            outcome.memory.append(resident())
        aim = luck.choice(current)
        payload = luck.choice(aim.messages)
        if luck.random() >= repeated:
            payload = mutator.mutant(payload, aim.form, aim.messages)
        if malformed and aim.read is not None and _reads(aim.read, payload):
            continue
        head = publish_head(aim.topic, len(payload), luck.random() < 0.1)
        made += 1
        outcome.sent[aim.topic.rpartition("/")[2] if aim.read else "other"] += 1
        yield head + payload


def _reads(read: Callable[[bytes], object], payload: bytes) -> bool:
    try:
        read(payload)
    except RemoteProtocolError:
        return False
    return True


# -- a run under load ---------------------------------------------------------------------------------


def watch(service: CloudService, outcome: Outcome) -> None:
    """Compare the state around every message at a cloud: its checkpoint, byte by byte."""

    def state() -> tuple[bytes, bytes]:
        return pack(server_state(service.server, type(service.server.schedule)))

    def watched(handle: Callable[[str, bytes], None]) -> Callable[[str, bytes], None]:
        def take(topic: str, payload: bytes) -> None:
            before = state()
            try:
                handle(topic, payload)
            except RemoteProtocolError:
                outcome.reached["refused"] += 1
                if state() != before:
                    outcome.faults.append(f"{topic}: the state has changed by {payload[:200]!r}")
                raise
            outcome.reached["read"] += 1

        return take

    for leaf, handle, qos in (
        (EdgeTopic.GRADIENT, service.on_gradient, 0),
        (EdgeTopic.HELLO, service.on_hello, 1),
        (EdgeTopic.LEAVE, service.on_leave, 1),
        (EdgeTopic.WILL, service.on_leave, 1),
    ):
        service.channel.subscribe(every_edge(service.run, leaf), watched(handle), qos=qos)


def under_load(
    bed: Testbed,
    honest: list[str],
    connect: Callable[[], Session],
    mutator: Mutator,
    count: int,
    *,
    malformed: bool,
    heard: deque[tuple[str, bytes]] | None = None,
) -> Outcome:
    """Send mutants at a run that has begun, and let it end; of what was `heard` there, too, and some of it again."""
    outcome, service = Outcome(), bed.cloud.service
    bed.wait(lambda: bed.updates > 0)
    bed.cloud.loop.post(lambda: watch(service, outcome))
    outcome.begun = bed.updates
    attacker = Attacker(connect, outcome, _RATE)

    def aims() -> list[Aim]:
        found = aims_at(service, [*honest, HOSTILE, "nobody"])
        if not heard:
            return found
        known = mutator.luck.choices(heard.copy(), k=_HEARD)
        elsewhere = [mutator.luck.choice(found).topic for _ in known]
        again = [Aim(topic, Form.OCTETS, [payload]) for topic, payload in known]
        moved = [
            Aim(topic, Form.OCTETS, [payload]) for topic, (_, payload) in zip(elsewhere, known, strict=True)
        ]
        return [*found, *again, *moved]

    share = 0.0 if heard is None else 0.3
    try:
        attacker.send(packets_of(aims, mutator, count, outcome, malformed=malformed, repeated=share))
    finally:
        attacker.close()
    outcome.ended = bed.updates
    outcome.summary = bed.finish()
    judge(bed, honest, outcome)
    return outcome


def judge(bed: Testbed, honest: list[str], outcome: Outcome) -> None:
    """Note what should not have become of the run."""
    faults, summary = outcome.faults, outcome.summary
    if (summary["reason"], summary["updates"]) != ("finished", bed.cloud.service.scenario.iterations):
        faults.append(f"the run has not reached T: {summary['reason']} after {summary['updates']}")
    codes = [child.returncode for child in bed.edges]
    if any(codes) or "Traceback" in bed.logs():
        faults.append(f"edges have ended with {codes}: {bed.logs()}")
    if outcome.ended >= summary["updates"]:
        faults.append("the run was over before the load was")
    dropped = bed.cloud.service.dropped
    outcome.reached.update({f"dropped {kind}": number for kind, number in dropped.items()})
    applied = [(event["edge_id"], event["sequence"]) for event in bed.events("gradient_applied")]
    if len(set(applied)) != len(applied):
        faults.append("a gradient was applied twice")
    if strangers := {edge for edge, _ in applied} - {*honest, HOSTILE}:
        faults.append(f"gradients of {strangers} were applied")


def values_for(count: int) -> dict[str, Any]:
    """Return a scenario whose run lasts longer than the load."""
    iterations = 200 + round(_QUICK * count / _RATE)
    return scenario(edges=4, iterations=iterations, links=[{"delay_ms": 10.0}])


def with_our_configuration(folder: Path, seed: int, count: int) -> Outcome:
    """Attack by an edge with a certificate of its own, on the broker that `mapa certs` configures."""
    site, run = Site(folder / "site", run="test"), folder / "run"
    with site.running():
        for name in ("e1", "e2"):
            site.identity(name).rename(_below(folder / "accounts", name))
        own = context(site.identity(HOSTILE), site)
        cloud = site.credentials("cloud", Role.CLOUD)
        with open_testbed(site.clouds, run, values_for(count), credentials=cloud, edges_at_least=2) as bed:
            for _ in range(2):  # not signed: the broker's rules are what is tried
                bed.edge("--no-authentic", "--accounts", str(folder / "accounts"), broker=site.edges)
            return under_load(
                bed,
                ["e1", "e2"],
                lambda: Session(site.edges, own),
                Mutator(f"{seed} certified"),
                count,
                malformed=False,
            )


def _below(folder: Path, name: str) -> Path:
    folder.mkdir(exist_ok=True)
    return folder / name


def without_rules(folder: Path, seed: int, count: int) -> Outcome:
    """Attack by a stranger at a broker that lets anybody do anything."""
    with (
        private_mosquitto(folder / "broker") as broker,
        open_testbed(broker.address, folder / "run", values_for(count), edges_at_least=2) as bed,
    ):
        for _ in range(2):
            bed.edge()
        bed.wait(lambda: len(bed.cloud.service.server.edges) == 2)
        honest = sorted(bed.cloud.service.server.edges)
        address: BrokerAddress = broker.address
        name = random.Random(seed).randbytes(4).hex()
        return under_load(
            bed,
            list(map(str, honest)),
            lambda: Session(address, None, name),
            Mutator(f"{seed} stranger"),
            count,
            malformed=True,
        )


def where_all_is_signed(folder: Path, seed: int, count: int) -> Outcome:
    """Attack by a stranger at a broker that lets anybody do anything, who repeats and moves what it hears there."""
    members = Members(Authority.create(folder / "authority", ["localhost"]))
    for name, role in (("broker", Role.BROKER), ("cloud", Role.CLOUD)):
        members.identity(name, role).write(folder / name)
    for name in ("e1", "e2"):
        members.identity(name).write(folder / "accounts" / name)
    files = [f"{kind}file {folder / 'broker' / kind}.pem" for kind in ("cert", "key")]
    trusted = TlsFiles(ca=members.authority.folder / "services.pem")
    cloud = Credentials(tls=trusted, identity=folder / "cloud")
    heard: deque[tuple[str, bytes]] = deque(maxlen=1000)
    with private_mosquitto(folder / "mosquitto", extra=files) as broker, contextlib.ExitStack() as stack:
        listener = Client(broker.address, "listener", "mapa/v1/#", credentials=Credentials(tls=trusted))
        stack.callback(listener.close)
        listener.seen = heard  # type: ignore[assignment]
        bed = stack.enter_context(
            open_testbed(
                broker.address, folder / "run", values_for(count), credentials=cloud, edges_at_least=2
            )
        )
        for _ in range(2):
            bed.edge("--accounts", str(folder / "accounts"), "--tls-ca", str(trusted.ca))
        return under_load(
            bed,
            ["e1", "e2"],
            lambda: Session(broker.address, trusted.context()),
            Mutator(f"{seed} curious"),
            count,
            malformed=False,
            heard=heard,
        )


ATTACKS = (with_our_configuration, without_rules, where_all_is_signed)
