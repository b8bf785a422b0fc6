"""CloudServer against what is late, doubled, forged, or of another life of run and edge."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cloud.admission import _REMEMBERED, SentModels
from cloud.assembly import most_samples
from cloud.server import CloudServer
from common.mechanism.mechanism import Mechanism
from common.messages import (
    EdgeGone,
    Effect,
    GradientArrived,
    GradientRefused,
    Halt,
    Hello,
    Leave,
    Refuse,
    SendModel,
    Welcome,
)
from common.noise.gaussian import Gaussian
from common.quantities import EdgeId
from tests import cloud_support
from tests.algorithm_support import beginning
from tests.cloud_support import PROBLEM, kinds, only
from tests.mechanism_support import SHUFFLED

LIFE, A = 7, EdgeId("a")


def cloud(**changes: Any) -> CloudServer:
    law = {"noise": "gaussian", "parameters": {"noise_multiplier": (1.0,)}, "noised_dimension": 3}
    return cloud_support.cloud(incarnation=LIFE, **{"edges": 2, **law, **changes})


def hello(edge: str = "a", nonce: str = "p1", number: int = 1, **fields: Any) -> Hello:
    return cloud_support.hello(edge, nonce=nonce, number=number, **{"incarnation": LIFE, **fields})


def with_edge(**changes: Any) -> CloudServer:
    server = cloud(**changes)
    server.receive(hello())
    return server


def gradient(sequence: int, version: int = 1, value: float = 0.1, **fields: Any) -> GradientArrived:
    return cloud_support.gradient("a", sequence, version, value=value, **{"life": LIFE, **fields})


def refusal(effects: list[Effect]) -> str:
    return only(GradientRefused, effects).reason


# -- hellos -----------------------------------------------------------------------------------------------


def welcomed(effects: list[Effect]) -> tuple[EdgeId, int, int]:
    welcome = only(Welcome, effects)
    return welcome.edge_id, welcome.index, welcome.last_sequence


def test_a_hello_that_comes_again_after_gradients_were_applied_has_no_effect() -> None:
    server = with_edge()
    for sequence in (1, 2, 3):
        server.receive(gradient(sequence))
    assert server.receive(hello()) == []
    server.receive(hello(number=5, last_sequence=3))
    assert server.receive(hello(number=4, last_sequence=3)) == []
    assert server.edges[A].last_sequence == 3


def test_the_process_that_speaks_for_an_edge_is_never_told_that_its_ledger_is_lost() -> None:
    """Somebody else has sent a gradient in its name; it goes on with its own."""
    server = with_edge()
    server.receive(gradient(1))
    server.receive(gradient(2))  # forged
    effects = server.receive(hello(number=2, last_sequence=1))
    assert welcomed(effects) == (A, 0, 1)
    assert refusal(server.receive(gradient(2))) == "duplicate"
    assert kinds(server.receive(gradient(3))) == ["GradientApplied", "SendModel"]


def test_late_hellos_of_a_process_that_was_replaced_do_not_take_over() -> None:
    server = cloud()
    server.receive(hello(number=3))
    server.receive(hello(nonce="p2"))
    for number in (1, 2, 3):
        assert server.receive(hello(number=number)) == []
    assert server.edges[A].nonce == "p2"
    effects = server.receive(hello(number=4))  # one that was never heard: it lives
    assert kinds(effects) == ["Welcome", "SendModel"]
    assert server.receive(hello(nonce="p2")) == []
    assert kinds(server.receive(hello(nonce="p2", number=2))) == ["Welcome", "SendModel"]


def test_only_so_many_processes_of_an_edge_are_remembered() -> None:
    server = cloud()
    for number in range(100):
        server.receive(hello(nonce=f"p{number}"))
    assert len(server.edges[A].former) == _REMEMBERED


def test_a_hello_for_another_life_is_refused_and_told_of_this_one() -> None:
    server = cloud()
    (refuse,) = server.receive(hello(incarnation=8, number=6))
    assert isinstance(refuse, Refuse)
    assert (refuse.reason, refuse.incarnation, refuse.number) == ("incarnation", LIFE, 6)
    assert not server.edges


def test_an_edge_that_released_in_an_earlier_life_gets_the_shard_that_it_asks_for() -> None:
    """An older hello of it, which asked for none, may have come first."""
    server = cloud()
    assert welcomed(server.receive(hello())) == (A, 0, 0)
    assert welcomed(server.receive(hello(number=2, index=1, last_sequence=40))) == (A, 1, 0)
    assert kinds(server.receive(gradient(41)))[0] == "GradientApplied"


# -- leaves and wills -------------------------------------------------------------------------------------


def test_what_comes_of_a_process_after_its_leave_changes_nothing() -> None:
    server = with_edge()
    server.receive(hello("b"))
    assert server.receive(Leave(A, "shutdown", "p1")) == [EdgeGone(0, A, 1, "shutdown")]
    assert server.receive(Leave(A, "lost", "p1")) == []
    assert server.receive(hello(number=9)) == []
    assert kinds(server.receive(gradient(1))) == ["GradientApplied", "SendModel"]  # it was under way
    assert not server.edges[A].present
    assert server.receive(Leave(A, "lost", "p1")) == []
    server.receive(hello(nonce="p2", last_sequence=1))
    assert server.edges[A].present
    assert server.receive(hello(number=10)) == []


def test_the_leave_of_a_process_that_was_replaced_is_not_heard() -> None:
    server = with_edge(edges=1)
    server.receive(hello(nonce="p2"))
    for reason in ("budget", "lost", "shutdown"):
        assert server.receive(Leave(A, reason, "p1")) == []
    assert server.edges[A].present


# -- gradients --------------------------------------------------------------------------------------------


def test_a_gradient_of_another_life_is_not_applied_and_its_edge_is_asked_for_a_hello() -> None:
    server = cloud()
    server.receive(hello(last_sequence=4))
    before = server.model.copy()
    effects = server.receive(gradient(4, life=6))
    assert refusal(effects) == "incarnation"
    assert only(Refuse, effects).reason == "stranger"
    np.testing.assert_array_equal(server.model, before)
    assert server.edges[A].last_sequence == 0  # nothing is used up


@pytest.mark.parametrize("sequence", [7, 2**62])
def test_a_sequence_that_is_not_the_next_is_neither_applied_nor_used_up(sequence: int) -> None:
    server = cloud()
    server.receive(hello(last_sequence=5))
    effects = server.receive(gradient(sequence))
    assert refusal(effects) == "sequence"
    assert only(Refuse, effects).reason == "stranger"
    assert server.edges[A].last_sequence == 0
    assert kinds(server.receive(gradient(6)))[0] == "GradientApplied"
    assert kinds(server.receive(gradient(7)))[0] == "GradientApplied"


@pytest.mark.parametrize("sensitivity", [0.0, 0.5, np.nextafter(1.0, 2.0)])
def test_a_gradient_under_a_bound_that_its_version_never_had_is_not_applied(sensitivity: float) -> None:
    server = with_edge()
    effects = server.receive(gradient(1, sensitivity=sensitivity))
    assert refusal(effects) == "sensitivity"
    assert only(SendModel, effects).acknowledged == 1
    assert server.updates == 0


def test_a_gradient_longer_than_an_honest_one_is_used_up_and_not_applied() -> None:
    server = with_edge(most_samples=4)
    honest = 4 / 2 + Gaussian(1.0).relative_tail(3)
    for sequence, length in ((1, 3e38), (2, 1.01 * honest)):
        effects = server.receive(gradient(sequence, value=length / np.sqrt(3)))
        assert refusal(effects) == "norm"
        assert only(SendModel, effects).acknowledged == sequence
    assert (server.updates, server.model.tolist()) == (0, [0.0] * 3)
    assert kinds(server.receive(gradient(3, value=0.99 * honest / np.sqrt(3))))[0] == "GradientApplied"


def test_the_regulariser_s_part_lengthens_what_an_honest_edge_may_send() -> None:
    server = cloud(most_samples=4, regularization=2.0)
    server.model = np.full(3, 100.0, np.float32)
    server.receive(hello())
    assert kinds(server.receive(gradient(1, value=200.0)))[0] == "GradientApplied"
    assert refusal(server.receive(gradient(2, value=230.0))) == "norm"


def test_a_model_that_is_not_finite_is_sent_to_nobody_and_ends_the_run() -> None:
    server = cloud(private=False)
    server.begin = beginning("asgd", PROBLEM)
    server.receive(hello())
    server.model = np.array(
        [3e38, 0.0, 0.0], np.float32
    )  # its square leaves float32, and it is finite all the same
    effects = server.receive(gradient(1, value=0.0, sensitivity=0.0))
    assert kinds(effects) == ["GradientApplied", "SendModel"]
    server.model = np.array([np.nan, 0.0, 0.0], np.float32)
    effects = server.receive(gradient(2, version=2, value=0.0, sensitivity=0.0))
    assert kinds(effects) == ["GradientApplied", "Halt"]
    assert server.halted == effects[1] == Halt("diverged", 2, LIFE)


def test_without_clipping_no_length_is_refused() -> None:
    server = cloud(private=False, most_samples=4)
    server.begin = beginning("asgd", PROBLEM)
    server.receive(hello())
    assert kinds(server.receive(gradient(1, value=3e38, sensitivity=0.0)))[0] == "GradientApplied"


@pytest.mark.parametrize("rows", [20, 5000])
def test_a_poisson_batch_is_never_larger_than_what_is_counted_on(rows: int) -> None:
    batch = 12
    drawn = np.random.default_rng(4).binomial(rows, batch / rows, 200_000)
    most = most_samples(Mechanism(None, batch))
    assert drawn.max() <= most < 6 * batch
    assert most_samples(Mechanism(None, batch, SHUFFLED)) == batch


# -- the end ----------------------------------------------------------------------------------------------


def test_a_run_whose_first_edge_spends_its_budget_waits_for_those_who_may_come() -> None:
    server = with_edge(edges=2)
    assert kinds(server.receive(Leave(A, "budget", "p1"))) == ["EdgeGone"]
    assert server.spent() == "gone"
    server.receive(hello("b"))
    assert server.spent() == ""


@pytest.mark.parametrize("reason", ["refused", "failed"])
def test_an_edge_that_could_not_follow_does_not_keep_a_spent_run_alive(reason: str) -> None:
    server = with_edge(edges=2)
    server.receive(hello("b"))
    server.receive(Leave(A, reason, "p1"))
    assert (server.halted, server.spent()) == (None, "")
    server.receive(Leave(EdgeId("b"), "budget", "p1"))
    assert server.halted == Halt("no-budget", 0, LIFE)


def test_edges_that_all_failed_have_spent_nothing() -> None:
    server = with_edge(edges=1)
    server.receive(Leave(A, "failed", "p1"))
    assert (server.halted, server.spent()) == (None, "")


def test_a_version_has_the_stage_and_bound_that_it_was_sent_with() -> None:
    openings = SentModels()
    assert openings.stage_of(1, 0.0) is None
    for version, stage, sensitivity in ((1, 1, 1.0), (1, 1, 1.0), (4, 1, 1.0), (7, 2, 0.5), (9, 3, 0.25)):
        openings.sent(version, stage, sensitivity)
    assert [openings.stage_of(version, 1.0) for version in (1, 6, 7, 100)] == [1, 1, None, None]
    assert [openings.stage_of(version, 0.5) for version in (6, 7, 8, 9)] == [None, 2, 2, None]
    assert openings.stage_of(9, 0.25) == 3
    assert openings.stage_of(0, 1.0) is None


def test_a_version_that_was_sent_with_two_bounds_has_both() -> None:
    openings = SentModels()
    openings.sent(1, 1, 1.0)
    openings.sent(5, 1, 1.0)
    openings.sent(5, 2, 0.5)  # the stage was opened again by a newcomer
    assert (openings.stage_of(5, 1.0), openings.stage_of(5, 0.5)) == (1, 2)
    assert (openings.stage_of(4, 0.5), openings.stage_of(6, 1.0)) == (None, None)
