"""The in-memory broker behaves as a real one does, and its clock needs no waiting."""

from __future__ import annotations

import pytest

from common.errors import LocalProtocolError, RemoteProtocolError
from common.quantities import EdgeId, RunId
from common.transport.channel import Routes, Will, ignore_violation
from common.wire.topics import EdgeTopic, edge_topic, every_edge, parse_edge_topic
from tests.memory_broker import MemoryBroker, MemoryChannel

Seen = list[tuple[str, bytes]]


def channel(broker: MemoryBroker, **options: object) -> MemoryChannel:
    made = MemoryChannel(broker, **options)  # type: ignore[arg-type]
    made.connect()
    return made


def listener(broker: MemoryBroker, topic_filter: str) -> tuple[MemoryChannel, Seen]:
    seen: Seen = []
    made = channel(broker)
    made.subscribe(topic_filter, lambda topic, payload: seen.append((topic, payload)), retained=True)
    return made, seen


def test_messages_arrive_in_order_at_whoever_asked() -> None:
    broker = MemoryBroker()
    _, wanted = listener(broker, "a/+/c")
    _, everything = listener(broker, "a/#")
    sender = channel(broker)
    for number in range(3):
        assert sender.publish(f"a/{number}/c", bytes([number]))
    sender.publish("a/1/d", b"")
    broker.settle()
    assert wanted == [(f"a/{number}/c", bytes([number])) for number in range(3)]
    assert len(everything) == 4


def test_a_late_subscriber_gets_the_retained_message_and_an_empty_one_clears_it() -> None:
    broker = MemoryBroker()
    channel(broker).publish("halt", b"over", retain=True)
    broker.settle()
    _, seen = listener(broker, "halt")
    broker.settle()
    assert seen == [("halt", b"over")]
    channel(broker).publish("halt", b"", retain=True)
    broker.settle()
    _, later = listener(broker, "halt")
    broker.settle()
    assert later == []


def test_a_lost_client_leaves_its_will_and_a_closed_one_does_not() -> None:
    broker = MemoryBroker()
    _, seen = listener(broker, "will/#")
    lost = channel(broker, will=Will("will/1", b"gone"))
    closed = channel(broker, will=Will("will/2", b"gone"))
    closed.close()
    lost.lose()
    broker.settle()
    assert seen == [("will/1", b"gone")]


def test_a_broken_connection_loses_qos_0_keeps_qos_1_and_renews_subscriptions() -> None:
    broker = MemoryBroker()
    said: list[str] = []
    edge = MemoryChannel(broker, on_connected=lambda: said.append("up"), on_lost=said.append)
    edge.connect()
    seen: Seen = []
    edge.subscribe("down", lambda topic, payload: seen.append((topic, payload)))
    _, cloud = listener(broker, "up")
    edge.lose("broker restarted")
    assert edge.publish("up", b"0") is False
    assert edge.publish("up", b"1", qos=1) is True
    channel(broker).publish("down", b"missed")
    broker.settle()
    edge.restore()
    channel(broker).publish("down", b"seen")
    broker.settle()
    assert said == ["up", "broker restarted", "up"]
    assert cloud == [("up", b"1")]
    assert seen == [("down", b"seen")]


def test_a_violation_is_counted_and_reported_and_other_errors_pass() -> None:
    broker = MemoryBroker()
    reported: list[tuple[str, str]] = []
    taker = channel(broker, on_violation=lambda topic, error: reported.append((topic, str(error))))

    def refuse(_topic: str, payload: bytes) -> None:
        raise RemoteProtocolError("nonsense") if payload else ZeroDivisionError

    taker.subscribe("x", refuse)
    taker.publish("x", b"bad")
    broker.settle()
    assert reported == [("x", "nonsense")]
    assert taker.violations == 1
    taker.publish("x", b"")
    with pytest.raises(ZeroDivisionError):
        broker.settle()


def test_timers_fire_in_order_as_time_jumps_and_a_cancelled_one_never() -> None:
    broker = MemoryBroker()
    fired: list[tuple[str, float]] = []
    broker.call_later(5, lambda: fired.append(("late", broker.now())))
    broker.call_later(1, lambda: fired.append(("early", broker.now())))
    broker.call_later(1, lambda: fired.append(("early too", broker.now())))
    cancelled = broker.call_later(2, lambda: fired.append(("never", broker.now())))
    cancelled.cancel()
    broker.advance(3)
    assert fired == [("early", 1.0), ("early too", 1.0)]
    assert broker.now() == 3.0
    broker.call_later(0.5, broker.stop)
    broker.run()
    assert broker.now() == 3.5
    broker.advance(10)
    assert fired[-1] == ("late", 5.0)


def test_a_loop_that_could_only_wait_for_ever_says_so() -> None:
    with pytest.raises(LocalProtocolError, match="wait forever"):
        MemoryBroker().run()


def test_two_services_talk_without_recursion() -> None:
    broker = MemoryBroker()
    cloud, edge = channel(broker), channel(broker)
    count = 0

    def answer(_topic: str, _payload: bytes) -> None:
        nonlocal count
        count += 1
        if count == 5000:
            broker.stop()
        cloud.publish("model", b"x")

    cloud.subscribe("gradient", answer)
    edge.subscribe("model", lambda _topic, _payload: edge.publish("gradient", b"g") and None)
    edge.publish("gradient", b"g")
    broker.run()
    assert count == 5000


def test_a_packet_beyond_what_is_allowed_is_skipped_and_counted() -> None:
    broker = MemoryBroker()
    taker, seen = listener(broker, "t")
    taker.allow(10)
    sender = channel(broker)
    sender.publish("t", b"x" * 10)
    sender.publish("t", b"x" * 9)
    broker.settle()
    taker.allow(100)
    sender.publish("t", b"x" * 10)
    broker.settle()
    assert [len(payload) for _, payload in seen] == [9, 10]
    assert taker.violations == 1


RUN = RunId("run")


def test_only_topics_of_our_length_are_remembered() -> None:
    """Anybody may send topics of 64 kB, each another one."""
    taken: list[str] = []
    violations: list[RemoteProtocolError] = []

    def take(topic: str, payload: bytes) -> None:  # noqa: ARG001
        parse_edge_topic(topic)
        taken.append(topic)

    routes = Routes(lambda _, error: violations.append(error))
    routes.add(every_edge(RUN, EdgeTopic.HELLO), take, 1)
    for number in range(5):
        routes.deliver(b"mapa/v1/run/edge/%d%s/hello" % (number, b"x" * 60_000), b"")
    assert len(violations) == 5
    assert not routes._known
    longest = edge_topic(RunId("r" * 64), EdgeId("e" * 64), EdgeTopic.WELCOME)
    routes.add(every_edge(RunId("r" * 64), EdgeTopic.WELCOME), take, 1)
    for _ in range(2):
        routes.deliver(longest.encode(), b"")
    assert taken == [longest] * 2
    assert list(routes._known) == [longest.encode()]


def test_a_flood_of_topics_is_not_remembered_without_end() -> None:
    routes = Routes(ignore_violation)
    routes.add("a/+", lambda *_: None, 0)
    for number in range(20_000):
        routes.deliver(f"a/{number}".encode(), b"")
        assert len(routes._known) <= 4096
    for number in range(5000):
        routes.deliver(f"nobody/{number}".encode(), b"")
    assert routes.violations == 5000
    assert len(routes._known) <= 4096


def test_serving_ends_when_it_is_done_or_nothing_more_happens_in_time() -> None:
    broker, fired = MemoryBroker(), list[float]()
    for due in (1.0, 2.0, 9.0):
        broker.call_later(due, lambda: fired.append(broker.now()))
    assert broker.serve(lambda: len(fired) == 1)
    assert not broker.serve(lambda: len(fired) == 3, until=5.0)
    assert fired == [1.0, 2.0]


def test_an_aborted_channel_leaves_its_will_and_says_nothing_to_its_owner() -> None:
    broker, said = MemoryBroker(), list[str]()
    edge = MemoryChannel(broker, will=Will("will", b"lost", retain=True), on_lost=said.append)
    edge.connect()
    edge.publish("kept", b"1", qos=1)
    assert not edge.owing
    edge.abort()
    edge.abort()
    edge.publish("kept", b"2", qos=1)
    assert (broker.retained, said) == ({"will": b"lost"}, [])
    assert edge.closed
    assert edge.owing
