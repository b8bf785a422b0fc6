"""What a peer can make a cloud do and keep, by counts; docs/protocol.md, "Bounds"."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cloud.assembly import fifo_capacity
from common.messages import Hello
from common.quantities import EdgeId
from common.wire.codec import encode_hello
from common.wire.topics import EdgeTopic, edge_topic
from tests.cloud.test_cloud_service import LIFE, RUN, THEIRS, Bed


@pytest.mark.parametrize(
    ("workers", "dimension", "capacity"),
    [(5, 785, 1024), (2000, 785, 4000), (5, 1_000_000, 67), (100, 1_000_000, 100), (5, 100_000_000, 5)],
)
def test_gradients_that_wait_are_bounded_by_memory_and_every_edge_has_a_place(
    workers: int, dimension: int, capacity: int
) -> None:
    assert fifo_capacity(workers, dimension) == capacity


def test_a_flood_of_hellos_leaves_as_much_as_the_fleet_has_edges() -> None:
    bed = Bed({"edges": 2})
    for number in range(3000):
        edge = EdgeId(f"edge-{number}")
        payload = encode_hello(Hello(edge_id=edge, nonce=THEIRS, incarnation=LIFE))
        bed.service.on_hello(edge_topic(RUN, edge, EdgeTopic.HELLO), payload)
        bed.broker.settle()
    service = bed.service
    assert (len(service.server.edges), len(service.contacts), len(service.server.fifo)) == (2, 2, 0)
    assert len(bed.said) <= 51
    assert len(service.records.facts) <= 4
    assert not service.notices.owing
    assert not service.models.waiting
    timers = bed.broker._timers._heap
    assert len(timers) <= 4


def test_a_flood_of_gradients_before_the_first_model_leaves_nothing_behind() -> None:
    bed = Bed({"edges": 2})
    bed.service.server.terms = replace(bed.service.server.terms, edges_at_least=2)
    bed.hello("a")
    for sequence in range(1, 1200):
        bed.gradient("a", sequence)
    assert len(bed.service.server.fifo) == 0  # nobody was sent a model, so nobody can have made one
    assert bed.service.server.updates == 0
