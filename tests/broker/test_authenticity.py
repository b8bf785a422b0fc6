"""A curious broker: a real Mosquitto without any ACL, where a stranger reads all and writes where it likes.

It records, forges, changes, moves and repeats messages of a run whose cloud and edges have identities. Nothing of that
changes the run; the same action by its rightful owner does.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from common.datasets.catalogue import data_directory
from common.messages import GradientArrived, Halt, Leave, Presence, Refuse
from common.quantities import EdgeId, RunId
from common.transport.connection import BrokerAddress, Credentials, TlsFiles
from common.wire.codec import decode_hello, decode_model, encode, encode_gradient
from common.wire.topics import EdgeTopic, halt_topic, presence_topic
from mapa.authority import Authority, Role
from mapa.brokers import Broker, private_mosquitto
from tests.broker.test_run_endings import only_run
from tests.broker.testbed_support import Testbed, open_testbed, scenario
from tests.guard_support import Members, Speaker, sealed
from tests.program_support import PATIENCE, assert_each_once, eventually, journal_has
from tests.program_support import run_mapa as mapa

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]
RUN = "test"


@dataclass
class Curious:
    """The broker, and the identities of those who do not trust it."""

    broker: Broker
    members: Members
    folder: Path

    @property
    def address(self) -> BrokerAddress:
        return self.broker.address

    @property
    def tls(self) -> TlsFiles:
        return TlsFiles(ca=self.members.authority.folder / "services.pem")

    def identity(self, name: str, role: Role = Role.EDGE) -> Path:
        place = self.folder / name
        self.members.identity(name, role).write(place)
        return place

    @property
    def cloud(self) -> Credentials:
        return Credentials(tls=self.tls, identity=self.identity("cloud", Role.CLOUD))


@pytest.fixture
def curious(mosquitto_installed: None, tmp_path: Path) -> Iterator[Curious]:  # noqa: ARG001
    members = Members(Authority.create(tmp_path / "authority", ["127.0.0.1"]))
    members.identity("broker", Role.BROKER).write(tmp_path / "server")
    files = [f"certfile {tmp_path / 'server' / 'cert.pem'}", f"keyfile {tmp_path / 'server' / 'key.pem'}"]
    with private_mosquitto(tmp_path / "broker", extra=files) as broker:
        yield Curious(broker, members, tmp_path / "identities")


@dataclass
class Scripted:
    """An edge in this process: what it says goes through a client, what it hears is taken from there."""

    speaker: Speaker
    client: Any
    heard: int = 0
    models: list[bytes] = field(default_factory=list)

    def say(self, leaf: EdgeTopic, payload: bytes) -> None:
        self.client.channel.publish(self.speaker.topic(leaf), payload, qos=1)

    def listen(self, leaf: EdgeTopic) -> bytes:
        """Return the next message of a topic that is proven."""
        topic = self.speaker.topic(leaf)
        self.client.wait(lambda: any(at == topic for at, _ in self.client.seen[self.heard :]))
        while True:
            at, payload = self.client.seen[self.heard]
            self.heard += 1
            if at == topic:
                return self.speaker.guard.open(topic, payload)

    def join(self, life: int) -> None:
        self.say(EdgeTopic.HELLO, self.speaker.hello(life))
        self.listen(EdgeTopic.WELCOME)
        self.models.append(self.listen(EdgeTopic.MODEL))

    def gradient(self, sequence: int) -> bytes:
        """Return an honest gradient of the last model."""
        read = decode_model(EdgeId(""), self.models[-1], (len(self.models[-1]) - 40) // 4)
        return encode_gradient(
            GradientArrived(
                EdgeId(""),
                sequence,
                read.version,
                read.sensitivity,
                0 * read.model,
                read.incarnation,  # type: ignore[arg-type]
            )
        )

    def sealed(self, sequence: int) -> bytes:
        return sealed(self.speaker.guard, self.speaker.topic(EdgeTopic.GRADIENT), self.gradient(sequence))


def state(bed: Testbed) -> Any:
    """Return what a forged message might change."""
    server = bed.cloud.service.server
    edges = {name: (one.last_sequence, one.present) for name, one in server.edges.items()}
    peers = {name: (peer.nonce, peer.left) for name, peer in bed.cloud.service.peers.items()}
    return bed.updates, edges, peers, server.halted


def test_nothing_that_a_broker_forges_moves_or_repeats_changes_the_cloud(
    curious: Curious, tmp_path: Path, connect: Callable[..., Any]
) -> None:
    members, run = curious.members, RunId(RUN)
    values = scenario(edges=2, iterations=50)
    with open_testbed(curious.address, tmp_path / "bed", values, run=RUN, credentials=curious.cloud) as bed:
        service, life = bed.cloud.service, bed.cloud.service.server.incarnation
        tls = Credentials(tls=curious.tls)

        def scripted(name: str) -> Scripted:
            speaker = members.edge(name, RUN)
            client = connect(
                curious.address, f"{name}-{speaker.nonce}", f"mapa/v1/{RUN}/edge/{name}/#", credentials=tls
            )
            return Scripted(speaker, client)

        gone = scripted("e1")  # an earlier process of e1, whose words the broker has kept
        gone.join(life)
        old_hello = next(payload for topic, payload in gone.client.seen if topic.endswith("/hello"))
        old_gradient = gone.sealed(1)
        will = encode(Leave(EdgeId("e1"), "lost", gone.speaker.nonce))
        old_will = sealed(gone.speaker.guard, gone.speaker.topic(EdgeTopic.WILL), will)
        one, two = scripted("e1"), scripted("e2")
        one.join(life), two.join(life)
        one.say(EdgeTopic.GRADIENT, first := one.sealed(1))
        one.models.append(one.listen(EdgeTopic.MODEL))
        bed.wait(lambda: bed.updates == 1)
        elsewhere = members.edge("e1", "other", nonce=one.speaker.nonce)
        elsewhere.join(members.cloud("other", life))
        elsewhere.gradient(1)  # so that the next one's counter has not come before
        strangers = Members(Authority.create(tmp_path / "strangers", ["127.0.0.1"])).edge("e1", RUN)
        broken = bytearray(one.sealed(2))
        broken[60] ^= 1
        left = encode(Leave(EdgeId("e1"), "budget", one.speaker.nonce))
        leave = one.speaker.topic(EdgeTopic.LEAVE)
        to, he = one.speaker.topic, two.speaker
        goodbye = encode(Presence(False, service.presence.nonce, life, over=True))
        forged = [
            (
                to(EdgeTopic.HELLO),
                encode(
                    decode_hello(EdgeId("e1"), members.cloud(RUN, life).open(to(EdgeTopic.HELLO), old_hello))
                ),
            ),
            (to(EdgeTopic.HELLO), he.hello(life)),
            (to(EdgeTopic.HELLO), strangers.hello(life)),
            (to(EdgeTopic.HELLO), elsewhere.hello(life)),
            (to(EdgeTopic.GRADIENT), one.gradient(2)),
            (to(EdgeTopic.GRADIENT), first),
            (to(EdgeTopic.GRADIENT), two.sealed(1)),
            (
                to(EdgeTopic.GRADIENT),
                sealed(elsewhere.guard, elsewhere.topic(EdgeTopic.GRADIENT), one.gradient(2)),
            ),
            (to(EdgeTopic.GRADIENT), bytes(broken)),
            (leave, left),
            (leave, members.signer("e2").sign(leave, left)),
            (leave, members.signer("cloud", Role.CLOUD).sign(leave, left)),
            (to(EdgeTopic.WILL), left),
            (leave, old_will),
            (halt_topic(run), encode(Halt("finished", 50, life))),
            (presence_topic(run), goodbye),
        ]
        hostile = connect(curious.address, "hostile", presence_topic(run), credentials=tls)
        before = state(bed)
        for topic, payload in forged:
            hostile.channel.publish(topic, payload, qos=1)
        bed.wait(lambda: service.dropped["forged"] >= len(forged))
        assert service.dropped["forged"] == len(forged)
        hostile.channel.publish(
            to(EdgeTopic.WILL), old_will, qos=1
        )  # it is signed, for a process that is gone
        hostile.channel.publish(to(EdgeTopic.HELLO), old_hello, qos=1)  # likewise
        hostile.channel.publish(
            to(EdgeTopic.GRADIENT), old_gradient, qos=1
        )  # it is late, and its sequence is used up
        bed.wait(lambda: service.dropped["late-hello"] >= 1 and bed.events("gradient_refused") != [])
        assert state(bed) == before
        hostile.wait(lambda: hostile.seen[-1][1] not in (goodbye, b""))  # the cloud's own is retained again

        one.say(EdgeTopic.GRADIENT, one.sealed(2))
        bed.wait(lambda: bed.updates == 2)
        one.listen(EdgeTopic.MODEL)
        one.say(EdgeTopic.WILL, sealed(one.speaker.guard, to(EdgeTopic.WILL), left))
        bed.wait(lambda: not service.server.edges[EdgeId("e1")].present)
        one.join(life)
        assert service.server.edges[EdgeId("e1")].present
        one.say(EdgeTopic.LEAVE, sealed(one.speaker.guard, leave, left))
        bed.wait(lambda: service.peers[EdgeId("e1")].left)
        assert service.dropped["forged"] == len(forged)


class Hostile:
    """Repeats, changes and moves what it sees for the first time, and forges what ends edges; a bounded number."""

    AT_ONCE = 8

    def __init__(self, client: Any, run: str, most: int = 5000) -> None:
        self.client, self.run, self.most = client, run, most
        self.sent = 0
        self._known: set[bytes] = set()
        self._looked = 0

    def act(self) -> None:
        """Act on the newest of what has come since the last time."""
        seen = self.client.seen[:]
        new, self._looked = seen[max(self._looked, len(seen) - self.AT_ONCE) :], len(seen)
        for topic, payload in new:
            if not payload or payload in self._known or self.sent >= self.most:
                continue
            changed = bytearray(payload)
            changed[len(payload) // 2] ^= 1
            other = (
                topic.replace("/edge/e1/", "/edge/e0/") if "/e1/" in topic else topic.replace("/e2/", "/e1/")
            )
            own = [(topic, payload), (topic, bytes(changed)), (topic, payload[:-32]), (other, payload)]
            if topic.endswith("/hello"):
                edge_id = EdgeId(topic.split("/")[4])
                end = next(at for at in range(len(payload), 0, -1) if self._is_hello(edge_id, payload[:at]))
                hello = decode_hello(edge_id, payload[:end])
                full = Refuse(edge_id, "fleet-full", "", hello.nonce, hello.number, hello.incarnation)
                own.append((topic.replace("/hello", "/welcome"), encode(full)))
                root = f"mapa/v1/{self.run}"
                own.append((f"{root}/halt", encode(Halt("finished", 9, hello.incarnation))))
                own.append((f"{root}/cloud", encode(Presence(False, "0" * 16, hello.incarnation, over=True))))
            for place, content in own:
                self._known.add(content)
                self.client.channel.publish(place, content)
                self.sent += 1

    @staticmethod
    def _is_hello(edge_id: EdgeId, payload: bytes) -> bool:
        try:
            decode_hello(edge_id, payload)
        except Exception:
            return False
        return True


@pytest.mark.slow
def test_a_run_on_a_hostile_broker_reaches_its_end_over_kills_of_cloud_and_edge(
    curious: Curious, tmp_path: Path, connect: Callable[..., Any], start: Callable[..., subprocess.Popen[Any]]
) -> None:
    """With the command that a killed cloud would be resumed by, new processes and new session keys."""
    updates = 1500
    reached = ("--broker", str(curious.address), "--run", "lab")
    data = ("--data-dir", str(data_directory(os.environ)))
    cloud_identity = ("--identity", str(curious.identity("cloud", Role.CLOUD)))
    hostile = Hostile(
        connect(curious.address, "hostile", "mapa/v1/lab/#", credentials=Credentials(tls=curious.tls)), "lab"
    )
    logs = {name: (tmp_path / f"{name}.log") for name in ("e1", "e2", "cloud")}

    def edge(name: str) -> subprocess.Popen[Any]:
        words = (*reached, *data, "--identity", str(curious.identity(name)))
        with logs[name].open("ab") as log:
            return start("edge", *words, "--state-dir", str(tmp_path / name), stdout=log, stderr=log)

    settings = ("--edges", "2", "--set", f"iterations={updates}", "--set", "testbed.resend_after=0.5")
    with logs["cloud"].open("ab") as log:
        cloud = start(
            *(
                "cloud",
                "quickstart",
                *reached,
                *data,
                *settings,
                *cloud_identity,
                "--runs-dir",
                str(tmp_path / "runs"),
            ),
            stdout=log,
            stderr=log,
        )
    edges = [edge("e1"), edge("e2")]

    def has(count: int) -> bool:
        hostile.act()
        return journal_has(tmp_path / "runs", f'"t": {count},') or journal_has(
            tmp_path / "runs", f'"t": {count}}}'
        )

    eventually(lambda: has(200), "updates")
    edges[0].kill()
    edges[0].wait()
    edges[0] = edge("e1")
    eventually(lambda: has(500), "updates")
    cloud.kill()
    cloud.wait()
    run = only_run(tmp_path / "runs")
    again = start("cloud", "--resume", str(run), *reached, *cloud_identity, stderr=subprocess.PIPE, text=True)
    while again.poll() is None:
        hostile.act()
        try:
            again.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
    said = again.stderr.read()  # type: ignore[union-attr]
    assert again.returncode == 0, said
    for one, name in zip(edges, ("e1", "e2"), strict=True):
        assert one.wait(PATIENCE) == 0, logs[name].read_text()
        assert "dropped a message" in logs[name].read_text()
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    assert_each_once([event for event in events if event["event"] == "gradient_applied"], updates)
    assert hostile.sent > 100
    summary = json.loads((run / "summary.json").read_text())
    assert summary["dropped"]["forged"] > 0


@pytest.mark.slow
def test_a_side_that_signs_takes_no_part_with_one_that_does_not(
    curious: Curious, tmp_path: Path, start: Callable[..., subprocess.Popen[Any]]
) -> None:
    """No downgrade, neither by a broker that strips signatures nor by a peer without; --no-authentic is a choice."""
    reached = ("--broker", str(curious.address), "--run", RUN, "--data-dir", str(data_directory(os.environ)))
    words = ("edge", *reached, "--identity", str(curious.identity("e1")))
    plain = Credentials(tls=curious.tls)
    values = scenario(edges=1, iterations=40)
    with open_testbed(curious.address, tmp_path / "bed", values, run=RUN, credentials=plain) as bed:
        log = tmp_path / "edge.log"
        with log.open("wb") as stream:
            edge = start(*words, "--state-dir", str(tmp_path / "state"), stdout=stream, stderr=stream)
        eventually(
            lambda: "not signed, and this side takes signed messages only" in log.read_text(), "it is said"
        )
        assert not bed.cloud.service.server.edges
        edge.send_signal(signal.SIGTERM)
        assert edge.wait(PATIENCE) == 0
        assert bed.edge("--no-authentic", "--identity", str(curious.identity("e1"))).wait(PATIENCE) == 0
        assert bed.finish()["updates"] == 40
    with open_testbed(
        curious.address, tmp_path / "bed2", values, run="two", credentials=curious.cloud
    ) as bed:
        edge = bed.edge("--no-authentic", "--identity", str(curious.identity("e1")))
        log = tmp_path / "bed2" / "edge-0.log"
        eventually(
            lambda: "a signed message is for a side that has an identity" in log.read_text(), "it is said"
        )
        assert not bed.cloud.service.server.edges
        edge.kill()
        assert bed.edge("--identity", str(curious.identity("e1"))).wait(PATIENCE) == 0
        assert bed.finish()["updates"] == 40


def test_the_operator_is_told_what_is_not_proven_and_what_does_not_fit(tmp_path: Path) -> None:
    members = Members(Authority.create(tmp_path / "authority", ["127.0.0.1"]))
    (password := tmp_path / "password").write_text("x")
    ca = tmp_path / "authority" / "services.pem"
    edge, cloud = tmp_path / "e1", tmp_path / "cloud"
    members.identity("e1").write(edge)
    members.identity("cloud", Role.CLOUD).write(cloud)
    there = (
        "--run",
        "r",
        "--broker",
        "192.0.2.1",
        "--connect-timeout",
        "0",
        "--state-dir",
        str(tmp_path / "s"),
    )
    told = mapa("edge", *there, "--username", "u", "--password-file", str(password), "--tls-ca", str(ca))
    assert "messages are not signed: who runs the broker can forge" in told.stderr
    told = mapa("edge", *there, "--identity", str(edge))
    assert "not signed" not in told.stderr
    refused = mapa("edge", *there, "--authentic")
    assert refused.returncode == 2
    assert "--authentic: requires an identity" in refused.stderr
    accounts = tmp_path / "accounts"
    members.identity("e1").write(accounts / "e2")
    refused = mapa("edge", *there, "--accounts", str(accounts))
    assert refused.returncode == 2
    assert re.search("is the identity of 'e1', not of 'e2'", refused.stderr)
    (cloud / "edges.pem").unlink()
    words = (
        "cloud",
        "quickstart",
        "--run",
        "r",
        "--broker",
        "127.0.0.1:1",
        "--runs-dir",
        str(tmp_path / "runs"),
    )
    refused = mapa(*words, "--identity", str(cloud))
    assert refused.returncode == 2
    assert "edges.pem: cannot be read" in refused.stderr
