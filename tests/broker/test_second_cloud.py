"""Two clouds under one run's name, on a real Mosquitto."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cloud import presence
from cloud.presence import Inquiry
from common.errors import ConfigurationError
from common.messages import EvaluationDue, Presence
from common.quantities import RunId
from common.transport.channel import Will
from common.wire.codec import decode_presence, encode
from common.wire.topics import halt_topic, presence_topic
from mapa.brokers import Broker
from tests.broker.testbed_support import PATIENCE, open_testbed, scenario

pytestmark = pytest.mark.broker
RUN, THEIRS = RunId("test"), "f" * 16
Connect = Callable[..., Any]


@pytest.fixture(autouse=True)
def _answers_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "_ANSWER", 3600.0)


def test_a_second_cloud_of_the_run_ends_and_the_first_goes_on(
    mosquitto: Broker, tmp_path: Path, connect: Connect
) -> None:
    with open_testbed(mosquitto.address, tmp_path / "first", scenario(iterations=20)) as first:
        observer = connect(mosquitto, "observer", presence_topic(RUN))
        observer.wait(lambda: len(observer.seen) == 1)
        with (
            pytest.raises(ConfigurationError, match="run = 'test': another cloud is serving it"),
            open_testbed(mosquitto.address, tmp_path / "second", scenario()),
        ):
            pass
        first.edge()
        assert first.finish()["updates"] == 20
        observer.wait(lambda: not decode_presence(observer.seen[-1][1]).online)
        # the second one has said nothing to the edges, not even as its last will
        assert {decode_presence(payload).nonce for _, payload in observer.seen} == {
            first.cloud.service.presence.nonce
        }
        assert [decode_presence(payload).online for _, payload in observer.seen] == [True, False]


def test_of_two_clouds_that_start_at_the_same_moment_one_goes_on_with_the_edges(
    mosquitto: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together, ended = threading.Barrier(2), threading.Barrier(2)
    begin = Inquiry.begin

    def begin_together(inquiry: Inquiry) -> None:
        together.wait(PATIENCE)
        begin(inquiry)

    monkeypatch.setattr(Inquiry, "begin", begin_together)

    def cloud(name: str) -> str:
        try:
            with open_testbed(mosquitto.address, tmp_path / name, scenario(iterations=20, edges=1)) as bed:
                ended.wait(PATIENCE)
                bed.edge()
                return f"{bed.finish()['updates']} updates"
        except ConfigurationError as error:
            ended.wait(PATIENCE)
            return str(error)

    with ThreadPoolExecutor(2) as pool:
        said = sorted(pool.map(cloud, ("first", "second")))
    assert said[0] == "20 updates"
    assert "another cloud is serving it on this broker, or began to at the same moment" in said[1]


def test_a_halt_stays_where_a_second_cloud_comes_before_the_first_has_gone(
    mosquitto: Broker, tmp_path: Path, connect: Connect
) -> None:
    with open_testbed(mosquitto.address, tmp_path / "first", scenario(iterations=20)) as first:
        # it is still about to evaluate when the second one comes
        first.cloud.service.evaluations.dues.append(EvaluationDue(0, 1, first.cloud.service.server.model))
        first.edge()
        first.wait(lambda: first.cloud.service.halted is not None)
        with (
            pytest.raises(ConfigurationError, match="another cloud"),
            open_testbed(mosquitto.address, tmp_path / "second", scenario()),
        ):
            pass
        late = connect(mosquitto, "late", halt_topic(RUN))
        late.wait(lambda: len(late.seen) == 1)
        assert late.seen[0][1]


def test_a_presence_that_nobody_stands_behind_is_replaced_after_a_while(
    mosquitto: Broker, tmp_path: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "_ANSWER", 0.2)
    dead = connect(mosquitto, "dead", presence_topic(RUN))
    dead.channel.publish(presence_topic(RUN), encode(Presence(True, THEIRS)), qos=1, retain=True)
    dead.wait(lambda: len(dead.seen) == 1)
    with open_testbed(mosquitto.address, tmp_path, scenario(iterations=20)) as bed:
        dead.wait(lambda: len(dead.seen) == 2)
        # the broker notices at last that the first one has gone
        dead.channel.publish(presence_topic(RUN), encode(Presence(False, THEIRS)), qos=1, retain=True)
        dead.wait(lambda: len(dead.seen) == 4)
        ours = Presence(True, bed.cloud.service.presence.nonce, bed.cloud.service.server.incarnation)
        assert [decode_presence(payload) for _, payload in dead.seen[1:]] == [
            ours,
            Presence(False, THEIRS),
            ours,
        ]


def test_a_cloud_that_crashed_is_followed_without_waiting_for_an_answer(
    mosquitto: Broker, tmp_path: Path, connect: Connect
) -> None:
    will = Will(presence_topic(RUN), encode(Presence(False, THEIRS)), retain=True)
    crashed = connect(mosquitto, "crashed", presence_topic(RUN), will=will)
    crashed.channel.publish(presence_topic(RUN), encode(Presence(True, THEIRS)), qos=1, retain=True)
    crashed.wait(lambda: len(crashed.seen) == 1)
    crashed.loop.post(crashed.channel.abort)
    with open_testbed(mosquitto.address, tmp_path, scenario(iterations=20)) as bed:
        bed.edge()
        assert bed.finish()["updates"] == 20
