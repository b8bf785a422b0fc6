"""A cloud that waits for its edges, but not for ever."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cloud.admission import Terms
from cloud.server import CloudServer
from common.messages import Halt, Hello, Leave, Refuse, SendModel, StageOpened
from common.problem import Problem
from common.quantities import EdgeId
from tests.algorithm_support import beginning

PROBLEM = Problem(
    batch_size=4, smoothness=1.0, sigma=1.0, tau_max=2, iterations=50, loss_gap=1.0, first_clip=2.0
)
TERMS = Terms(
    edges=5,
    iterations=50,
    private=True,
    noise="exponential-norm",
    parameters={"epsilon": (1.0,)},
    edges_at_least=5,
)


def waiting_cloud() -> CloudServer:
    return CloudServer(terms=TERMS, model=np.zeros(3, np.float32), begin=beginning("mapa", PROBLEM))


def test_nobody_here_is_nobody_to_begin_with() -> None:
    assert waiting_cloud().begin_with_those_here() == []


def test_those_here_get_the_model_once_and_the_rest_as_they_come() -> None:
    server = waiting_cloud()
    for name in ("a", "b"):
        assert not any(isinstance(e, SendModel) for e in server.receive(Hello(edge_id=EdgeId(name))))
    begun = server.begin_with_those_here()
    assert [effect.edge_id for effect in begun if isinstance(effect, SendModel)] == ["a", "b"]
    assert sum(isinstance(effect, StageOpened) for effect in begun) == 1
    assert server.begin_with_those_here() == []
    late = server.receive(Hello(edge_id=EdgeId("c")))
    assert [effect.edge_id for effect in late if isinstance(effect, SendModel)] == ["c"]


def test_an_edge_that_still_prepares_is_waited_for_and_one_that_never_can_is_not_counted() -> None:
    server = waiting_cloud()
    server.terms = replace(TERMS, edges_at_least=2)

    def models(edge: str, number: int, *, preparing: bool) -> list[str]:
        hello = Hello(edge_id=EdgeId(edge), nonce=edge, number=number, preparing=preparing)
        return [effect.edge_id for effect in server.receive(hello) if isinstance(effect, SendModel)]

    assert models("a", 1, preparing=True) == []
    assert models("b", 1, preparing=True) == []  # two are here, and neither can train
    assert models("a", 2, preparing=False) == []  # alone it would spend its budget by itself
    server.receive(Leave(EdgeId("b"), "refused", "b"))  # its records do not fit
    assert models("c", 1, preparing=True) == []
    assert models("c", 2, preparing=False) == ["a", "b", "c"]
    assert models("d", 1, preparing=True) == ["d"]  # the run goes on, and its model waits for it


def test_an_edge_that_has_left_before_the_start_is_not_counted() -> None:
    server = waiting_cloud()
    server.terms = replace(TERMS, edges_at_least=2)
    server.receive(Hello(edge_id=EdgeId("a"), nonce="a", number=1))
    server.receive(Leave(EdgeId("a"), "shutdown", "a"))
    alone = server.receive(Hello(edge_id=EdgeId("b"), nonce="b", number=1))
    assert not any(isinstance(effect, SendModel) for effect in alone)  # it would spend its budget by itself
    both = server.receive(Hello(edge_id=EdgeId("a"), nonce="again", number=1))
    assert [effect.edge_id for effect in both if isinstance(effect, SendModel)] == ["a", "b"]


@pytest.mark.parametrize("reason", ["refused", "shutdown", "budget"])
def test_the_place_of_an_edge_that_left_without_a_release_is_taken_by_another(reason: str) -> None:
    server = waiting_cloud()
    server.terms = replace(TERMS, edges=2, edges_at_least=2)
    server.receive(Hello(edge_id=EdgeId("wrong"), nonce="w", number=1, preparing=True))
    server.receive(Leave(EdgeId("wrong"), reason, "w"))
    for name in ("a", "b"):
        effects = server.receive(Hello(edge_id=EdgeId(name), nonce=name, number=1))
    assert [effect.edge_id for effect in effects if isinstance(effect, SendModel)] == ["a", "b"]
    assert sorted(edge.index for edge in server.edges.values()) == [0, 1]
    [refused] = server.receive(Hello(edge_id=EdgeId("c"), nonce="c", number=1))
    assert isinstance(refused, Refuse)
    assert refused.reason == "fleet-full"
    server.receive(Leave(EdgeId("b"), "shutdown", "b"))  # a gradient of it may be on its way
    [still] = server.receive(Hello(edge_id=EdgeId("c"), nonce="c", number=2))
    assert isinstance(still, Refuse)


def test_the_run_is_spent_when_those_who_began_it_are_but_a_newcomer_may_still_come() -> None:
    server = waiting_cloud()
    server.receive(Hello(edge_id=EdgeId("a")))
    server.begin_with_those_here()
    effects = server.receive(Leave(EdgeId("a"), "budget"))
    assert not any(isinstance(effect, Halt) for effect in effects)
    assert server.spent() == "gone"
    server.receive(Hello(edge_id=EdgeId("b")))
    assert server.spent() == ""


def test_a_halted_cloud_begins_nothing() -> None:
    server = waiting_cloud()
    server.terms = replace(server.terms, edges_at_least=2)
    server.receive(Hello(edge_id=EdgeId("a")))
    server.halt("interrupted")
    assert server.begin_with_those_here() == []
