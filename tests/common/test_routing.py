"""From a topic to its callback."""

from __future__ import annotations

from common.errors import RemoteProtocolError
from common.quantities import EdgeId, RunId
from common.transport.channel import Routes, ignore_violation
from common.wire.topics import EdgeTopic, edge_topic, every_edge, parse_edge_topic

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
