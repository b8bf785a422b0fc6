"""A model that the channel does not take is reported and sent again."""

from __future__ import annotations

from typing import Any

from common.quantities import EdgeId
from common.transport.channel import Bytes
from common.wire.topics import EdgeTopic, edge_topic
from tests.cloud.test_cloud_service import RUN, Bed

TOPIC = edge_topic(RUN, EdgeId("a"), EdgeTopic.MODEL)


class Choked:
    """The cloud's channel while the broker does not read: QoS 0 finds no room."""

    def __init__(self, bed: Bed) -> None:
        self._channel: Any = bed.cloud
        self.full = True
        self.refused = 0
        bed.service.channel = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    def publish(self, topic: str, *payload: Bytes, qos: int = 0, retain: bool = False) -> bool:
        if self.full and not qos:
            self.refused += 1
            return False
        return bool(self._channel.publish(topic, *payload, qos=qos, retain=retain))


def models(bed: Bed) -> int:
    return sum(topic == TOPIC for topic, _ in bed.broker.published)


def test_a_model_that_was_not_taken_is_reported_once_and_sent_when_there_is_room() -> None:
    bed = Bed()
    channel = Choked(bed)
    bed.hello("a")
    assert (models(bed), channel.refused) == (0, 1)
    assert [line for line in bed.said if "not sent" in line and line.startswith("a: model of")]
    bed.broker.advance(1.0)
    assert channel.refused > 1
    channel.full = False
    bed.broker.advance(0.2)
    assert models(bed) == 1
    assert sum("not sent" in line for line in bed.said) == 1
    bed.broker.advance(10.0)
    assert models(bed) == 1
    bed.gradient("a", 1)
    assert models(bed) == 2


def test_only_the_newest_model_of_an_edge_is_kept() -> None:
    bed = Bed()
    channel = Choked(bed)
    bed.hello("a")
    for sequence in (1, 2, 3):
        bed.gradient("a", sequence)
    assert channel.refused == 1
    assert len(bed.service.models.waiting) == 1
    channel.full = False
    bed.gradient("a", 4)  # its answer takes the place of what was owed
    assert models(bed) == 0
    bed.broker.advance(1.0)
    assert models(bed) == 1


def test_nothing_is_tried_without_a_connection_nor_after_the_halt() -> None:
    bed = Bed()
    channel = Choked(bed)
    bed.hello("a")
    bed.cloud.connected = False
    bed.broker.advance(5.0)
    assert channel.refused == 1
    bed.cloud.connected = True
    bed.service.halt("interrupted")
    channel.full = False
    bed.broker.advance(5.0)
    assert models(bed) == 0
    assert not bed.service.models.waiting


def test_models_that_wait_are_sent_in_turn_and_new_ones_behind_them() -> None:
    """Else the edges whose models were taken would take the room of the others, again and again."""
    bed = Bed()
    channel = Choked(bed)
    for edge in "abc":
        bed.hello(edge)
    bed.broker.advance(0.25)
    bed.gradient("a", 1)
    channel.full = False
    bed.gradient("b", 1)
    before = len(bed.broker.published)
    bed.broker.advance(1.0)
    sent = [topic.split("/")[4] for topic, _ in bed.broker.published[before:] if topic.endswith("/model")]
    assert sent == ["a", "b", "c"]
