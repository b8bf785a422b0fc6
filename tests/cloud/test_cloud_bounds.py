"""What a peer can make a cloud do and keep, by counts; docs/protocol.md, "Bounds"."""

from __future__ import annotations

from collections import Counter

import pytest

from cloud.service import Allowance
from common.messages import Hello, Refuse, Welcome
from common.quantities import EdgeId
from common.wire.codec import encode
from common.wire.topics import EdgeTopic, edge_topic
from mapa.releases import releases_of
from tests.cloud.test_cloud_service import LIFE, RUN, THEIRS, Bed, begun


def test_a_flood_of_hellos_leaves_as_much_as_the_fleet_has_edges() -> None:
    bed = Bed({"edges": 2})
    for number in range(3000):
        edge = EdgeId(f"edge-{number}")
        payload = encode(Hello(edge_id=edge, nonce=THEIRS, incarnation=LIFE))
        bed.service.on_hello(edge_topic(RUN, edge, EdgeTopic.HELLO), payload)
        bed.broker.settle()
    service = bed.service
    assert (len(service.server.edges), len(service.peers)) == (2, 2)
    assert len(bed.said) <= 51
    assert len(service.records.facts) <= 4
    assert not service.presence.owing
    assert not service.models.waiting
    timers = bed.broker._timers._heap
    assert len(timers) <= 4


def test_an_edge_that_repeats_itself_gets_a_few_models_and_later_one_again() -> None:
    """Each repeat is answered by a whole model; what is new is always taken, and other edges are not concerned."""
    bed = Bed({"edges": 2})
    models: Counter[str] = Counter()
    bed.edge.subscribe(
        edge_topic(RUN, EdgeId("+"), EdgeTopic.MODEL), lambda t, _: models.update([t.split("/")[4]])
    )
    for edge in ("a", "b"):
        bed.hello(edge)
    for edge in ("a", "b"):
        bed.gradient(edge, 1)
    logged = len(bed.service.records.facts)
    for _ in range(500):
        bed.gradient("a", 1)
        bed.hello("a")
    assert models["a"] <= 18  # one for its gradient, and sixteen answers at once
    assert bed.service.dropped["too-often"] >= 980
    assert len(bed.service.records.facts) <= logged + 16
    bed.gradient("b", 1)
    assert models["b"] == 3
    before = models["a"]
    bed.gradient("a", 2)
    assert (bed.service.server.updates, models["a"]) == (3, before + 1)
    bed.broker.advance(bed.service.scenario.testbed.resend_after)  # when an honest edge asks again
    bed.gradient("a", 2)
    bed.hello("a")
    assert models["a"] == before + 3


def test_repeats_by_any_number_of_ids_leave_a_bounded_memory() -> None:
    allowance = Allowance(5.0)
    for number in range(20_000):
        assert allowance.grant(EdgeId(f"edge-{number}"), number * 1e-6)
    assert len(allowance._until) <= 4096
    assert allowance.grant(EdgeId("edge-0"), 100.0)


@pytest.mark.parametrize("count", [6101, 10**9, 2**63 - 2])
def test_a_hello_with_more_releases_than_the_run_can_have_does_not_ruin_its_statement(count: int) -> None:
    bed = Bed()  # T = 60
    answer = bed.hello("a", last_sequence=count)
    assert isinstance(answer, Refuse)
    assert f"last_sequence = {count}: must be at most 6100 in a run of T = 60" in answer.detail
    assert bed.service.traffic.refused_hellos == {"mechanism": 1}
    assert isinstance(bed.hello("b", last_sequence=7), Welcome)  # of earlier runs of the name
    bed.gradient("b", 8)
    assert isinstance(bed.hello("b", last_sequence=130), Refuse)
    assert isinstance(bed.hello("b", last_sequence=129), Welcome)  # a cloud that lost its last records
    assert bed.service.server.restarts.known(EdgeId("a")) == 0
    assert bed.service.server.restarts.known(EdgeId("b")) == 129


@pytest.mark.parametrize(
    ("reason", "named", "released"), [("budget", 4, 4), ("budget", 3, 3), ("shutdown", 3, 4)]
)
def test_a_last_gradient_that_was_lost_is_counted_though_its_edge_has_left(
    reason: str, named: int, released: int
) -> None:
    bed = begun()
    for sequence in (1, 2, 3):
        bed.gradient("a", sequence)
    bed.hello("a", last_sequence=named)  # after a reconnect
    bed.leave("a", reason)
    bed.service.records.write()
    account = bed.service.server.edges[EdgeId("a")]
    assert releases_of(account, bed.service.server.restarts, bed.service.tally, begun=True)[1] == released
