"""Old, forged and retained messages on a real Mosquitto, from a client that may write everywhere."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.messages import GradientArrived, Halt, Hello
from common.quantities import EdgeId, NoisyGradient
from common.wire.codec import (
    decode_gradient,
    decode_hello,
    encode,
    encode_gradient,
    incarnation_of,
)
from common.wire.topics import EdgeTopic, edge_topic, halt_topic, run_id
from mapa.brokers import Broker
from tests.broker.testbed_support import (
    PATIENCE,
    Testbed,
    assert_applied_exactly_once,
    open_testbed,
    scenario,
)

pytestmark = pytest.mark.broker
RUN = run_id("test")
Connect = Callable[..., Any]


def edge_of(bed: Testbed) -> EdgeId:
    (edge_id,) = bed.cloud.service.server.edges
    return edge_id


def test_a_hello_captured_at_the_start_and_said_again_after_50_updates_leaves_the_edge_training(
    mosquitto: Broker, tmp_path: Path, connect: Connect
) -> None:
    replayer = connect(mosquitto, "replayer", "mapa/v1/test/edge/+/hello")
    with open_testbed(mosquitto.address, tmp_path, scenario(edges=1, iterations=2000)) as bed:
        edge = bed.edge()
        replayer.wait(lambda: bool(replayer.seen))
        topic, hello = replayer.seen[0]
        bed.wait(lambda: bed.updates > 50)
        replayer.channel.publish(topic, hello, qos=1)
        bed.wait(lambda: bed.cloud.service.dropped["late-hello"] == 1)
        before = bed.updates
        bed.wait(lambda: bed.updates > before + 50)
        summary = bed.finish()
        assert edge.returncode == 0
        assert_applied_exactly_once(bed, 2000)
    assert summary["reason"] == "finished"


@pytest.mark.parametrize("named", [True, False])
def test_a_forged_retained_halt_ends_nobody_and_is_taken_back(
    mosquitto: Broker, tmp_path: Path, connect: Connect, named: bool
) -> None:
    forger = connect(mosquitto, "forger", halt_topic(RUN))
    with open_testbed(mosquitto.address, tmp_path, scenario(edges=2, iterations=1500)) as bed:
        first = bed.edge()
        with bed.paused(lambda: bed.updates > 50, first):  # so that T cannot come before the second edge
            life = bed.cloud.service.server.incarnation if named else 5
            forged = encode(Halt("finished", 300, life))
            forger.channel.publish(halt_topic(RUN), forged, qos=1, retain=True)
            bed.wait(lambda: bed.cloud.service.dropped["halt"] == 1)
            bed.edge(state="late")  # it would have found it retained
            bed.wait(lambda: len(bed.cloud.service.server.edges) == 2)
        summary = bed.finish()
        assert [child.returncode for child in bed.edges] == [0, 0]
        assert len(bed.cloud.service.server.edges) == 2
        assert_applied_exactly_once(bed, 1500)
    assert summary["reason"] == "finished"


def test_a_retained_hello_takes_no_shard_of_the_next_run(
    mosquitto: Broker, tmp_path: Path, connect: Connect
) -> None:
    forger = connect(mosquitto, "forger", "mapa/v1/test/#")
    hello = encode(Hello(edge_id=EdgeId("ghost"), nonce="a" * 16))
    topic = edge_topic(RUN, EdgeId("ghost"), EdgeTopic.HELLO)
    forger.channel.publish(topic, hello, qos=1, retain=True)
    forger.wait(lambda: len(forger.seen) == 1)
    with open_testbed(mosquitto.address, tmp_path, scenario(edges=1, iterations=50)) as bed:
        bed.edge()
        summary = bed.finish()
        assert [child.returncode for child in bed.edges] == [0]
    assert summary["dropped"] == {"retained": 1}
    assert EdgeId("ghost") not in bed.cloud.service.server.edges


def test_a_sequence_far_ahead_locks_nobody_out_and_counts_for_nothing(
    mosquitto: Broker, tmp_path: Path, connect: Connect
) -> None:
    forger = connect(mosquitto, "forger", "mapa/v1/test/edge/+/gradient")
    with open_testbed(mosquitto.address, tmp_path, scenario(edges=1, iterations=1500)) as bed:
        bed.edge()
        bed.wait(lambda: bed.updates > 50)
        edge_id = edge_of(bed)
        payload = bytearray(forger.seen[-1][1])
        struct.pack_into(">Q", payload, 5, 2**62)
        forger.channel.publish(edge_topic(RUN, edge_id, EdgeTopic.GRADIENT), bytes(payload))
        bed.wait(lambda: bed.cloud.service.tally.refused["sequence"] == 1)
        summary = bed.finish()
        assert [child.returncode for child in bed.edges] == [0]
        assert_applied_exactly_once(bed, 1500)
    assert summary["edges"][0]["last_sequence"] == 1500


def test_a_gradient_longer_than_any_honest_one_is_not_applied(
    mosquitto: Broker, tmp_path: Path, connect: Connect
) -> None:
    forger = connect(mosquitto, "forger", "mapa/v1/test/edge/+/gradient")
    with open_testbed(mosquitto.address, tmp_path, scenario(edges=1, iterations=1500)) as bed:
        bed.edge()
        bed.wait(lambda: bed.updates > 50)
        server = bed.cloud.service.server
        edge_id, dimension = edge_of(bed), server.model.size
        seen: GradientArrived = decode_gradient(edge_id, forger.seen[-1][1], dimension)
        huge = NoisyGradient(np.full(dimension, 3e38, np.float32))

        def forge() -> None:
            """In the cloud's own loop, so that nothing comes between the look and the next gradient."""
            following = seen._replace(sequence=server.edges[edge_id].last_sequence + 1, gradient=huge)
            bed.cloud.service.on_gradient(
                edge_topic(RUN, edge_id, EdgeTopic.GRADIENT), encode_gradient(following)
            )

        bed.cloud.loop.post(forge)
        bed.wait(lambda: bed.cloud.service.tally.refused["norm"] == 1)
        summary = bed.finish()
        assert [child.returncode for child in bed.edges] == [0]
    assert (summary["reason"], summary["updates"]) == ("finished", 1500)
    assert summary["final_accuracy"] > 0.6


def test_an_edge_with_the_outbox_of_an_earlier_run_of_the_name_sends_none_of_it(
    mosquitto: Broker, tmp_path: Path, connect: Connect
) -> None:
    wire = connect(mosquitto, "wire", "mapa/v1/test/edge/+/+")
    with open_testbed(mosquitto.address, tmp_path / "first", scenario(edges=2, iterations=10**6)) as first:
        first.edge(state="other")  # takes shard 0, as the newcomer of the second run does
        first.wait(lambda: first.updates > 0)
        other = edge_of(first)
        victim = first.edge(state="../state")
        first.wait(
            lambda: sum(account.applied > 5 for account in first.cloud.service.server.edges.values()) == 2
        )
        victim.kill()  # its last gradient stays in the outbox, acknowledged or not
        victim.wait(PATIENCE)
        first.cloud.loop.post(lambda: first.cloud.service.halt("interrupted"))
        first.finish()
        old = first.cloud.service.server.incarnation
        (held,) = set(first.cloud.service.server.edges) - {other}
    seen = len(wire.seen)
    with open_testbed(mosquitto.address, tmp_path / "second", scenario(edges=2, iterations=1500)) as second:
        newcomer = second.edge()  # so that t is far beyond the version that the outbox names
        with second.paused(lambda: second.updates > 200, newcomer):  # T cannot come before the other joins
            second.edge(state="../state")
            second.wait(lambda: held in second.cloud.service.server.edges)
        second.finish()
        assert [child.returncode for child in second.edges] == [0, 0]
        applied = [event for event in second.events("gradient_applied") if event["edge_id"] == held]
        assert second.cloud.service.tally.refused["incarnation"] == 0
    later = [payload for topic, payload in wire.seen[seen:] if topic.endswith("/gradient")]
    assert later
    assert {incarnation_of(payload) for payload in later} == {second.cloud.service.server.incarnation}
    assert old not in {incarnation_of(payload) for payload in later}
    hellos = [(t, p) for t, p in wire.seen[seen:] if t == edge_topic(RUN, held, EdgeTopic.HELLO)]
    debited = decode_hello(held, hellos[0][1]).last_sequence
    assert debited > 0
    assert applied
    assert min(event["sequence"] for event in applied) == debited + 1


def test_an_edge_behind_a_link_that_ends_leaves_no_will(
    mosquitto: Broker, tmp_path: Path, connect: Connect
) -> None:
    wills = connect(mosquitto, "wills", "mapa/v1/test/edge/+/will")
    with open_testbed(mosquitto.address, tmp_path, scenario(edges=1, iterations=20)) as bed:
        bed.edge("--link", "4g")
        bed.finish()
        assert [child.returncode for child in bed.edges] == [0]
    end = connect(mosquitto, "end", "end")
    end.channel.publish("mapa/v1/test/edge/x/will", b"end", qos=1)
    wills.wait(lambda: bool(wills.seen) and wills.seen[-1][1] == b"end")
    assert len(wills.seen) == 1
