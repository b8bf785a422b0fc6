"""A cloud that waits for its edges, but not for ever."""

from __future__ import annotations

import pytest

from cloud.server import CloudServer
from common.messages import Effect, Halt, Leave, Refuse, SendModel, StageOpened
from common.quantities import EdgeId
from tests.cloud_support import cloud, every, hello, kinds, only


def waiting_cloud(at_least: int = 5, edges: int = 5) -> CloudServer:
    return cloud(edges=edges, edges_at_least=at_least)


def models(effects: list[Effect]) -> list[str]:
    return [effect.edge_id for effect in every(SendModel, effects)]


def test_those_here_get_the_model_once_and_the_rest_as_they_come() -> None:
    server = waiting_cloud()
    for name in ("a", "b"):
        assert not models(server.receive(hello(name)))
    begun = server.begin_with_those_here()
    assert models(begun) == ["a", "b"]
    only(StageOpened, begun)
    assert server.begin_with_those_here() == []
    late = server.receive(hello("c"))
    assert models(late) == ["c"]


def test_an_edge_that_still_prepares_is_waited_for_and_one_that_never_can_is_not_counted() -> None:
    server = waiting_cloud(2)

    def sent(edge: str, *, preparing: bool) -> list[str]:
        return models(server.receive(hello(edge, nonce=edge, preparing=preparing)))

    assert sent("a", preparing=True) == []
    assert sent("b", preparing=True) == []  # two are here, and neither can train
    assert sent("a", preparing=False) == []  # alone it would spend its budget by itself
    server.receive(Leave(EdgeId("b"), "refused", "b"))  # its records do not fit
    assert sent("c", preparing=True) == []
    assert sent("c", preparing=False) == ["a", "b", "c"]
    assert sent("d", preparing=True) == ["d"]  # the run goes on, and its model waits for it


def test_an_edge_that_has_left_before_the_start_is_not_counted() -> None:
    server = waiting_cloud(2)
    server.receive(hello("a", nonce="a"))
    server.receive(Leave(EdgeId("a"), "shutdown", "a"))
    alone = server.receive(hello("b", nonce="b"))
    assert not models(alone)  # it would spend its budget by itself
    both = server.receive(hello("a", nonce="again"))
    assert models(both) == ["a", "b"]


@pytest.mark.parametrize("reason", ["refused", "shutdown", "budget"])
def test_the_place_of_an_edge_that_left_without_a_release_is_taken_by_another(reason: str) -> None:
    server = waiting_cloud(2, edges=2)
    server.receive(hello("wrong", nonce="w", preparing=True))
    server.receive(Leave(EdgeId("wrong"), reason, "w"))
    for name in ("a", "b"):
        effects = server.receive(hello(name, nonce=name))
    assert models(effects) == ["a", "b"]
    assert sorted(edge.index for edge in server.edges.values()) == [0, 1]
    assert only(Refuse, server.receive(hello("c", nonce="c"))).reason == "fleet-full"
    server.receive(Leave(EdgeId("b"), "shutdown", "b"))  # a gradient of it may be on its way
    assert kinds(server.receive(hello("c", nonce="c"))) == ["Refuse"]


def test_the_run_is_spent_when_those_who_began_it_are_but_a_newcomer_may_still_come() -> None:
    server = waiting_cloud()
    server.receive(hello("a"))
    server.begin_with_those_here()
    effects = server.receive(Leave(EdgeId("a"), "budget"))
    assert not any(isinstance(effect, Halt) for effect in effects)
    assert server.spent() == "gone"
    server.receive(hello("b"))
    assert server.spent() == ""


def test_a_cloud_without_edges_or_halted_begins_nothing() -> None:
    server = waiting_cloud(2)
    assert server.begin_with_those_here() == []
    server.receive(hello("a"))
    server.halt("interrupted")
    assert server.begin_with_those_here() == []
