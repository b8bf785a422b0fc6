"""The edge in Node.js, written from docs/protocol.md alone, on a real Mosquitto with real clouds and a scripted one."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.messages import GradientArrived, Halt, Hello, Presence, Refuse, SendModel, Welcome
from common.quantities import EdgeId
from common.scenario.scenario import parse_scenario
from common.wire.codec import (
    decode_gradient,
    decode_hello,
    decode_leave,
    decode_presence,
    encode,
    encode_model,
)
from common.wire.topics import EdgeTopic, edge_topic, halt_topic, presence_topic, run_id
from mapa.brokers import Broker
from tests.broker.testbed_support import scenario
from tests.program_support import PATIENCE, ROOT, start_mapa

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]
EDGE = ROOT / "experiments" / "examples" / "edge.mjs"
RUN, NODE, N, LIFE = run_id("test"), EdgeId("node-1"), 785, 2**62 + 3  # beyond what a double holds
Connect = Callable[..., Any]
PLAIN = {"name": "asgd"}  # nobody clips or noises, and the cloud need not account at its end


class Processes:
    """Clouds and edges of one test, on one broker."""

    def __init__(self, broker: Broker, directory: Path) -> None:
        self.address, self.directory = broker.address, directory
        self.children: list[subprocess.Popen[Any]] = []

    def _start(self, start: Callable[..., subprocess.Popen[Any]], *words: str) -> subprocess.Popen[Any]:
        with (self.directory / f"{len(self.children)}.log").open("wb") as log:
            self.children.append(start(*words, stdout=log, stderr=log))
        return self.children[-1]

    def node(
        self, run: str = "test", edge: str = "node-1", state: str = "state.json"
    ) -> subprocess.Popen[Any]:
        words = [str(EDGE), str(self.address), run, edge, str(self.directory / state)]
        return self._start(lambda *command, **more: subprocess.Popen(["node", *command], **more), *words)

    def mapa(self, command: str, *words: str, run: str = "test") -> subprocess.Popen[Any]:
        return self._start(start_mapa, command, *words, "--broker", str(self.address), "--run", run)

    def cloud(
        self, values: dict[str, Any], *, run: str = "test", records: str = "runs"
    ) -> subprocess.Popen[Any]:
        file = self.directory / f"{records}.toml"
        file.write_text(_toml(values))
        return self.mapa("cloud", str(file), "--runs-dir", str(self.directory / records), run=run)

    def applied(self, records: str = "runs") -> list[dict[str, Any]]:
        (path,) = (self.directory / records).glob("*/events.jsonl")
        return [e for e in map(json.loads, path.read_text().splitlines()) if e["event"] == "gradient_applied"]

    def said(self, child: subprocess.Popen[Any]) -> str:
        return (self.directory / f"{self.children.index(child)}.log").read_text()

    def ends(self, child: subprocess.Popen[Any], code: int) -> str:
        assert child.wait(PATIENCE) == code, self.said(child)
        return self.said(child)


def _toml(values: dict[str, Any]) -> str:
    tables = {key: value for key, value in values.items() if isinstance(value, dict)}
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items() if key not in tables]
    for name, table in tables.items():
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items())]
    return "\n".join(lines)


@pytest.fixture
def processes(mosquitto: Broker, tmp_path: Path) -> Iterator[Processes]:
    if shutil.which("node") is None:
        pytest.skip("no node on PATH (Debian: apt install nodejs)")
    started = Processes(mosquitto, tmp_path)
    yield started
    for child in started.children:
        child.kill()
        child.wait()


def gradients(observer: Any) -> list[GradientArrived]:
    seen = [payload for topic, payload in list(observer.seen) if topic.endswith(f"/{NODE}/gradient")]
    return [decode_gradient(NODE, payload, N) for payload in seen]


def assert_no_sequence_stands_for_two_payloads(observer: Any) -> None:
    payloads = defaultdict(set)
    for topic, payload in observer.seen:
        if topic.endswith("/gradient"):
            payloads[topic, payload[4:13]].add(payload)
    assert payloads
    assert {len(of_one) for of_one in payloads.values()} == {1}


def _online(observer: Any, topic: str) -> bool:
    said = [payload for seen, payload in list(observer.seen) if seen == topic]
    return bool(said) and decode_presence(said[-1]).online


def test_it_is_under_150_lines_and_needs_no_package() -> None:
    text = EDGE.read_text()
    assert len(text.splitlines()) < 150
    assert all('from "node:' in line for line in text.splitlines() if line.startswith("import "))


# -- real clouds --------------------------------------------------------------------------------------


def test_it_trains_to_the_end_beside_a_python_edge(processes: Processes) -> None:
    cloud = processes.cloud(scenario(edges=2, iterations=200, testbed={"edges_at_least": 2}))
    python, node = (
        processes.mapa("edge", "--state-dir", str(processes.directory / "python")),
        processes.node(),
    )
    assert "finished after 200 updates" in processes.ends(node, 0)
    processes.ends(python, 0)
    processes.ends(cloud, 0)
    applied = processes.applied()
    assert [event["t"] for event in applied] == list(range(1, 201))
    mine = [event["sequence"] for event in applied if event["edge_id"] == NODE]
    assert mine == list(range(1, len(mine) + 1))
    assert 0 < len(mine) < 200


def test_it_goes_on_with_a_cloud_that_was_killed_and_started_anew(
    processes: Processes, connect: Connect
) -> None:
    observer = connect(processes.address, "observer", "mapa/v1/test/#")
    values = scenario(edges=1, iterations=250)
    first, node = processes.cloud(values), processes.node()
    observer.wait(lambda: len(gradients(observer)) > 20)
    first.kill()
    first.wait()
    second = processes.cloud(values, records="second")
    assert "finished after 250 updates" in processes.ends(node, 0)
    processes.ends(second, 0)
    applied = [event["sequence"] for event in processes.applied("second")]
    assert applied == list(range(applied[0], applied[0] + 250))
    assert applied[0] > 20
    assert len({g.incarnation for g in gradients(observer)}) == 2
    assert_no_sequence_stands_for_two_payloads(observer)


def test_it_goes_on_after_it_was_killed_itself(processes: Processes, connect: Connect) -> None:
    observer = connect(processes.address, "observer", "mapa/v1/test/#")
    cloud, node = processes.cloud(scenario(edges=1, iterations=150, algorithm=PLAIN)), processes.node()
    observer.wait(lambda: len(gradients(observer)) > 30)
    node.kill()
    node.wait()
    processes.ends(processes.node(), 0)
    processes.ends(cloud, 0)
    assert [event["sequence"] for event in processes.applied()] == list(range(1, 151))
    assert_no_sequence_stands_for_two_payloads(observer)


def test_a_second_run_of_the_name_and_one_of_another_go_on_with_the_old_state(
    processes: Processes, connect: Connect
) -> None:
    observer = connect(processes.address, "observer", "mapa/v1/#")
    for run, records, begin in (("test", "first", 1), ("test", "second", 41), ("other", "third", 1)):
        cloud = processes.cloud(scenario(edges=1, iterations=40, algorithm=PLAIN), run=run, records=records)
        # an edge that comes before its cloud finds the first run's halt and goodbye, and ends
        observer.wait(lambda topic=f"mapa/v1/{run}/cloud": _online(observer, topic))
        node = processes.node(run)
        assert "finished after 40 updates" in processes.ends(node, 0)
        processes.ends(cloud, 0)
        assert [event["sequence"] for event in processes.applied(records)] == list(range(begin, begin + 40))
    assert_no_sequence_stands_for_two_payloads(observer)


def test_it_ends_where_the_fleet_is_full_and_where_its_state_is_lost(
    processes: Processes, connect: Connect
) -> None:
    observer = connect(processes.address, "observer", "mapa/v1/test/#")
    processes.cloud(scenario(edges=1, iterations=100_000))
    node = processes.node()
    observer.wait(lambda: len(gradients(observer)) > 5)
    assert "refused, fleet-full" in processes.ends(processes.node(edge="late", state="late.json"), 2)
    node.send_signal(signal.SIGTERM)
    assert "left: shutdown" in processes.ends(node, 0)
    assert "refused, ledger-lost" in processes.ends(processes.node(state="new.json"), 2)


# -- a scripted cloud: what a real one says seldom ----------------------------------------------------


class Script:
    """The cloud's side of the conversation, word by word."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.values = parse_scenario(scenario(edges=1, testbed={"resend_after": 0.1})).for_edge(0)

    def presence(
        self, *, online: bool = True, life: int = LIFE, over: bool = False, nonce: str = "a" * 16
    ) -> None:
        payload = encode(Presence(online, nonce, life, over))
        self.client.channel.publish(presence_topic(RUN), payload, qos=1, retain=True)

    def hellos(self) -> list[Hello]:
        topic = edge_topic(RUN, NODE, EdgeTopic.HELLO)
        return [decode_hello(NODE, payload) for seen, payload in list(self.client.seen) if seen == topic]

    def hello(self, condition: Callable[[Hello], bool] = lambda _: True) -> Hello:
        """Await a hello, and return the newest."""
        self.client.wait(lambda: any(condition(hello) for hello in self.hellos()))
        return self.hellos()[-1]

    def answer(self, payload: bytes, *, retain: bool = False) -> None:
        self.client.channel.publish(edge_topic(RUN, NODE, EdgeTopic.WELCOME), payload, qos=1, retain=retain)

    def refuse(self, reason: str, hello: Hello | None, life: int = LIFE) -> None:
        nonce, number = (None, None) if hello is None else (hello.nonce, hello.number)
        known = 9 if reason == "ledger-lost" else None
        self.answer(encode(Refuse(NODE, reason, "a detail", nonce, number, life, known)))

    def welcome(self, hello: Hello, life: int = LIFE, last_sequence: int = 0) -> bytes:
        admission = Welcome(
            edge_id=NODE,
            index=0,
            last_sequence=last_sequence,
            edges=1,
            scenario=self.values,
            seed=None,
            nonce=hello.nonce,
            number=hello.number,
            incarnation=life,
        )
        payload = encode(admission)
        self.answer(payload)
        return payload

    def model(self, acknowledged: int, life: int = LIFE, version: int = 1) -> None:
        sent = SendModel(NODE, version, 0.75, acknowledged, np.zeros(N, np.float32), life)
        self.client.channel.publish(edge_topic(RUN, NODE, EdgeTopic.MODEL), encode_model(sent))

    def gradients(self, count: int) -> list[GradientArrived]:
        """Await so many gradients."""
        self.client.wait(lambda: len(gradients(self.client)) >= count)
        return gradients(self.client)


@pytest.fixture
def script(processes: Processes, connect: Connect) -> Script:
    return Script(connect(processes.address, "script", "mapa/v1/test/#"))


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("fleet-full", 2),
        ("ledger-lost", 2),
        ("epsilon-floor", 2),
        ("mechanism", 2),
        ("of-tomorrow", 2),
        ("halted", 0),
    ],
)
def test_a_refusal_of_its_newest_hello_ends_it(
    processes: Processes, script: Script, reason: str, code: int
) -> None:
    script.presence()
    node = processes.node()
    hello = script.hello()
    script.refuse(reason, replace(hello, number=hello.number + 7))  # no such hello was said
    script.refuse(reason, replace(hello, nonce="b" * 16))
    script.refuse(reason, hello)
    assert f"refused, {reason}: a detail" in processes.ends(node, code)


def test_it_says_hello_for_another_life_as_a_stranger_and_to_another_cloud_and_keeps_its_bytes_when_full(
    processes: Processes, script: Script
) -> None:
    script.presence()
    node = processes.node()
    script.refuse("incarnation", script.hello(), life=7)
    hello = script.hello(lambda hello: hello.incarnation == 7)
    script.model(0, life=7)  # before its welcome
    script.welcome(hello, life=7)
    first = script.gradients(1)[0]
    assert (first.sequence, first.version, first.incarnation, first.sensitivity) == (1, 1, 7, 0.75)
    assert 0 < float(np.abs(first.gradient).max()) < 20
    script.refuse("full", None)
    again = script.gradients(3)
    assert all(np.array_equal(g.gradient, first.gradient) for g in again)  # the very same
    script.refuse("stranger", None)
    hello = script.hello(lambda hello: hello.last_sequence == 1)
    script.presence(life=9, nonce="c" * 16)
    hello = script.hello(lambda hello: hello.incarnation == 9)
    script.welcome(hello, life=9)  # the bytes of the other life are never sent again
    script.model(0, life=7)
    script.model(0, life=9)
    script.client.wait(lambda: gradients(script.client)[-1].sequence == 2)
    assert gradients(script.client)[-1].incarnation == 9
    script.client.channel.publish(halt_topic(RUN), encode(Halt("finished", 1, 9)), qos=1, retain=True)
    script.hello(lambda other: other.number > hello.number)  # a halt alone ends nobody
    script.presence(online=False, over=True, life=9)
    assert "finished after 1 updates" in processes.ends(node, 0)
    assert_no_sequence_stands_for_two_payloads(script.client)


def test_what_is_malformed_or_retained_is_dropped_and_it_trains_on(
    processes: Processes, script: Script
) -> None:
    script.presence()
    node = processes.node()
    hello = script.hello()
    retained = script.welcome(hello)
    script.answer(retained, retain=True)
    for topic in (
        *(edge_topic(RUN, NODE, leaf) for leaf in (EdgeTopic.WELCOME, EdgeTopic.MODEL)),
        halt_topic(RUN),
    ):
        for junk in (
            b"\xc1",
            b"\x81",
            b"\x80",
            b"\x93\x01",
            bytes(40),
            b"\x81\xa1v\x01",
            b"\xdf\xff\xff\xff\xff",
        ):
            script.client.channel.publish(topic, junk, qos=1)
    script.model(5, version=9)  # acknowledges what was never debited
    script.model(0)
    first = script.gradients(1)[0]
    assert (first.sequence, first.version) == (1, 1)
    node.send_signal(signal.SIGTERM)
    processes.ends(node, 0)
    leaves = [
        decode_leave(NODE, p) for t, p in script.client.seen if t == edge_topic(RUN, NODE, EdgeTopic.LEAVE)
    ]
    assert [leave.reason for leave in leaves] == ["shutdown"]
    assert not any(topic.endswith("/will") for topic, _ in script.client.seen)


@pytest.mark.parametrize(
    ("table", "key", "value"),
    [
        ("work", "private", None),
        ("model", "name", "svm"),
        ("privacy", "noise", "gamma-norm"),
        ("privacy", "noise_multiplier", [0.0]),
        ("privacy", "clipping", "batch-mean"),
        ("privacy", "total_epsilon", 2.0),
    ],
)
def test_a_welcome_that_it_cannot_follow_ends_it_with_a_leave(
    processes: Processes, script: Script, table: str, key: str, value: object
) -> None:
    script.presence()
    node = processes.node()
    script.values[table] = {**script.values[table], key: value}
    script.welcome(script.hello())
    assert "cannot follow the welcome" in processes.ends(node, 2)
    script.client.wait(lambda: any(topic.endswith("/leave") for topic, _ in script.client.seen))
    assert not gradients(script.client)


def test_other_terms_than_those_of_its_first_welcome_end_it_with_a_leave(
    processes: Processes, script: Script
) -> None:
    script.presence()
    node = processes.node()
    script.welcome(script.hello())
    script.model(0)
    script.gradients(1)
    script.presence(life=9, nonce="c" * 16)
    script.values["batch_size"] += 1
    script.welcome(script.hello(lambda hello: hello.incarnation == 9), life=9)
    assert "cannot follow the welcome" in processes.ends(node, 2)
    script.client.wait(lambda: any(topic.endswith("/leave") for topic, _ in script.client.seen))
