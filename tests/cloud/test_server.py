"""CloudServer: events in, effects out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud.server import CloudServer
from cloud.stages import first_stage, next_stage, reopen_stage
from common.messages import (
    EdgeGone,
    EdgeJoined,
    Effect,
    EvaluationDue,
    GradientApplied,
    GradientArrived,
    GradientRefused,
    Halt,
    Leave,
    Refuse,
    SendModel,
    StageOpened,
    Welcome,
)
from common.quantities import EdgeId, NoisyGradient
from tests.algorithm_support import beginning
from tests.cloud_support import (
    PROBLEM,
    TERMS,
    cloud,
    every,
    gradient,
    hello,
    joined,
    kinds,
    only,
    refusal_in,
    running,
)

MOMENT = 2.0  # of the exponential norm at ε = 1


# -- hello ------------------------------------------------------------------------------------------------


def test_a_hello_is_welcomed_with_an_index_and_the_first_model() -> None:
    server, said = cloud(), hello("a")
    effects = server.receive(said)
    assert kinds(effects) == ["Welcome", "EdgeJoined", "StageOpened", "SendModel"]
    assert effects[0] == Welcome(edge_id=EdgeId("a"), index=0, edges=3, last_sequence=0, number=said.number)
    assert effects[1] == EdgeJoined(0, EdgeId("a"), 1, "exponential-norm", 1.0, None, False)
    sent = only(SendModel, effects)
    stage = first_stage(MOMENT, PROBLEM, 2)
    assert (sent.version, sent.sensitivity, sent.acknowledged) == (1, stage.sensitivity, 0)
    opened = only(StageOpened, effects)
    assert (opened.stage, opened.t, opened.variance, opened.length) == (1, 1, stage.variance, stage.length)
    assert (opened.p, opened.learning_rate, opened.reopened) == (stage.p, stage.learning_rate, False)


def test_nobody_gets_a_model_before_enough_edges_have_said_hello() -> None:
    server = cloud(edges_at_least=3)
    assert kinds(server.receive(hello("a"))) == ["Welcome", "EdgeJoined"]
    assert kinds(server.receive(hello("a"))) == ["Welcome"]  # twice the same is one edge
    assert kinds(server.receive(hello("b"))) == ["Welcome", "EdgeJoined"]
    effects = server.receive(hello("c"))
    assert kinds(effects) == ["Welcome", "EdgeJoined", "StageOpened", *["SendModel"] * 3]
    assert [effect.edge_id for effect in every(SendModel, effects)] == ["a", "b", "c"]


def test_the_first_stage_uses_the_smallest_epsilon_of_those_who_waited() -> None:
    server = cloud(edges_at_least=3)
    for edge, epsilon in (("a", 1.0), ("b", 0.5), ("c", 2.0)):
        effects = server.receive(hello(edge, epsilon=epsilon))
    assert only(StageOpened, effects).variance == first_stage(2 / 0.5**2, PROBLEM, 2).variance


def test_epsilons_left_open_are_those_of_the_scenario_cycled_over_the_index() -> None:
    server = cloud(parameters={"epsilon": (4.0, 3.0)})
    effects = joined(server, "a", "b", "c")
    said = [effect.epsilon for effect in every(EdgeJoined, effects)]
    assert said == [4.0, 3.0, 4.0]


def test_a_full_fleet_refuses_a_stranger_and_takes_back_its_own() -> None:
    server = running("a", "b", "c")
    assert refusal_in(server.receive(hello("d"))).reason == "fleet-full"
    assert kinds(server.receive(hello("b"))) == ["Welcome", "SendModel"]
    assert len(server.edges) == 3


def test_joining_is_told_when_it_is_news() -> None:
    """An edge that waits says hello at every `resend_after`; that is one join."""
    server = cloud(edges_at_least=2)
    joins = [effect for _ in range(13) for effect in server.receive(hello("a"))]
    assert kinds(joins).count("EdgeJoined") == 1
    assert kinds(joins).count("Welcome") == 13
    changed = only(EdgeJoined, server.receive(hello("a", epsilon=0.5)))
    assert (changed.epsilon, changed.returned) == (0.5, True)
    assert kinds(server.receive(hello("a", epsilon=0.5))) == ["Welcome"]
    server.receive(Leave(EdgeId("a"), "lost"))
    assert only(EdgeJoined, server.receive(hello("a", epsilon=0.5))).returned


def test_an_edge_keeps_its_index_when_it_comes_back_and_goes_on_after_what_was_applied() -> None:
    server = running("a", "b")
    server.receive(gradient("b", 1))
    server.receive(Leave(EdgeId("b"), "lost"))
    effects = server.receive(hello("b", last_sequence=4))
    assert (only(Welcome, effects).index, only(Welcome, effects).last_sequence) == (1, 1)
    assert only(EdgeJoined, effects).returned
    assert only(SendModel, effects).version == 2
    assert only(SendModel, effects).acknowledged == 1
    assert kinds(server.receive(gradient("b", 5))) == ["GradientApplied", "SendModel"]


def test_a_newcomer_gets_the_index_that_its_ledger_remembers_where_that_is_free() -> None:
    server = cloud()
    assert only(Welcome, server.receive(hello("a", index=2))).index == 2
    assert only(Welcome, server.receive(hello("b", index=2))).index == 0
    assert only(Welcome, server.receive(hello("c", index=7))).index == 1
    assert sorted(account.index for account in server.edges.values()) == [0, 1, 2]


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.none() | st.integers(-2, 6)), max_size=20))
def test_indices_are_dealt_once_and_lie_below_the_number_of_edges(
    hellos: list[tuple[str, int | None]],
) -> None:
    server, dealt = cloud(edges=4), {}
    for edge, index in hellos:
        for effect in server.receive(hello(edge, index=index)):
            if isinstance(effect, Welcome):
                dealt[edge] = effect.index
        assert len(set(dealt.values())) == len(dealt) <= 4
        assert all(0 <= index < 4 for index in dealt.values())


def test_an_edge_moves_to_a_free_shard_that_it_asks_for_until_its_first_release() -> None:
    server = running("a", "b")
    assert only(Welcome, server.receive(hello("a", index=1))).index == 0  # b has it
    moved = server.receive(hello("a", index=2))
    assert only(Welcome, moved).index == only(EdgeJoined, moved).edge == 2
    assert only(Welcome, server.receive(hello("c"))).index == 0
    server.receive(gradient("b", 1))
    assert only(Welcome, server.receive(hello("b", last_sequence=1, index=0))).index == 1
    assert only(Welcome, server.receive(hello("a", last_sequence=1, index=1))).index == 2
    server.receive(Leave(EdgeId("c"), "done"))
    assert only(Welcome, server.receive(hello("b", last_sequence=1, index=0))).index == 1


def test_an_edge_that_lost_its_ledger_is_refused() -> None:
    server = running("a")
    server.receive(gradient("a", 1))
    server.receive(gradient("a", 2, 2))
    effects = server.receive(hello("a", last_sequence=1, nonce="another", number=1))
    assert kinds(effects) == ["Refuse"]
    refuse = only(Refuse, effects)
    assert (refuse.reason, refuse.nonce, refuse.number) == ("ledger-lost", "another", 1)
    assert "1 releases, but 2 were applied" in refuse.detail
    assert refuse.last_sequence == 2


@pytest.mark.parametrize(
    ("changes", "fields", "reason", "words"),
    [
        (
            {"epsilon_floor": 0.5},
            {"epsilon": 0.1},
            "epsilon-floor",
            "epsilon = 0.1: must be at least 0.5, this run's privacy.epsilon_floor",
        ),
        (
            {"noise_multiplier_ceiling": 2.0},
            {"noise": "gaussian", "noise_multiplier": 3.0},
            "epsilon-floor",
            "noise_multiplier = 3.0: must be at most 2.0, this run's privacy.noise_multiplier_ceiling",
        ),
        (  # another law than the run's: γ feels v alone
            {"epsilon_floor": 0.5},
            {"noise": "gaussian", "noise_multiplier": 1e6},
            "epsilon-floor",
            "E‖η‖²/ΔS² = 2.5e+11, which must be at most 8 by this run's privacy.epsilon_floor",
        ),
        (
            {
                "noise": "gaussian",
                "parameters": {"noise_multiplier": (1.0,)},
                "noise_multiplier_ceiling": 2.0,
                "noised_dimension": 3,
            },
            {"noise": "gamma-norm", "epsilon": 1e-6},
            "epsilon-floor",
            "1.2e+13, which must be at most 3 by this run's privacy.noise_multiplier_ceiling",
        ),
        ({}, {"noise": "cauchy", "epsilon": 1.0}, "mechanism", "cauchy"),
        ({}, {"noise": "tests.own:Law", "epsilon": 1.0}, "mechanism", "or the run's law"),
        ({}, {"epsilon": 1.0, "noise_multiplier": 1.0}, "mechanism", "takes epsilon, not noise_multiplier"),
        ({}, {"noise_multiplier": 1.0}, "mechanism", "takes epsilon"),
        ({}, {"noise": "gaussian"}, "mechanism", "takes noise_multiplier"),
        ({}, {"epsilon": -1.0}, "mechanism", "epsilon = -1.0"),
        ({}, {"epsilon": float("nan")}, "mechanism", "epsilon = nan"),
        ({}, {"epsilon": 1e-200}, "mechanism", "epsilon = 1e-200"),
        ({}, {"noise": "gaussian", "noise_multiplier": 1e200}, "mechanism", "noise_multiplier = 1e+200"),
    ],
)
@pytest.mark.parametrize("late", [False, True])
def test_a_hello_that_the_run_cannot_bear_is_refused_and_changes_nothing(
    changes: dict[str, Any], fields: dict[str, Any], reason: str, words: str, late: bool
) -> None:
    server = cloud(**changes)
    if late:
        joined(server, "a")
    before = (len(server.edges), server.moment, server.schedule)
    refuse = refusal_in(server.receive(hello("b", **fields)))
    assert refuse.reason == reason
    assert words in refuse.detail
    assert (len(server.edges), server.moment, server.schedule) == before
    assert only(Welcome, server.receive(hello("b"))).index == (1 if late else 0)


@pytest.mark.parametrize(
    ("run", "fields"),
    [
        ({"epsilon_floor": 0.5}, {"epsilon": 0.5}),
        ({"epsilon_floor": 0.5, "noised_dimension": 2}, {"noise": "gaussian", "noise_multiplier": 4.0}),
        (
            {
                "noise": "gaussian",
                "parameters": {"noise_multiplier": (1.0,)},
                "noise_multiplier_ceiling": 2.0,
                "noised_dimension": 9,
            },
            {"noise_multiplier": 2.0},
        ),
        (
            {"noise": "gaussian", "parameters": {"noise_multiplier": (1.0,)}, "epsilon_floor": 0.5},
            {"noise_multiplier": 9.0},
        ),
    ],
)
def test_the_floor_itself_is_bearable_and_binds_only_what_it_limits(
    run: dict[str, Any], fields: dict[str, Any]
) -> None:
    assert "Welcome" in kinds(cloud(**run).receive(hello("a", **fields)))


@pytest.mark.parametrize("algorithm", ["mapa", "audp"])
@pytest.mark.parametrize("late", [False, True])
def test_a_hello_whose_noise_leaves_float64_is_refused(algorithm: str, late: bool) -> None:
    """Δ_b = ∞ would be γ = 0 for everybody."""
    server = cloud(algorithm, problem=replace(PROBLEM, first_clip=1e146))
    if late:
        joined(server, "a")
    refuse = refusal_in(server.receive(hello("b", epsilon=1e-9)))
    assert refuse.reason == "mechanism"
    assert "leaves float64" in refuse.detail
    joined(server, "c")
    assert server.schedule is not None
    assert server.schedule.learning_rate(1) > 0


def test_whoever_never_noises_asks_no_epsilon() -> None:
    server = cloud("asgd", private=False, parameters={}, epsilon_floor=9.0)
    effects = server.receive(hello("a"))
    assert kinds(effects) == ["Welcome", "EdgeJoined", "SendModel"]
    assert only(EdgeJoined, effects).noise == "none"
    assert only(SendModel, effects).sensitivity == 0


# -- ε₀ and stages ----------------------------------------------------------------------------------------


def test_a_late_edge_with_a_smaller_epsilon_reopens_the_stage() -> None:
    server = running("a")
    for n in range(1, 8):
        server.receive(gradient("a", n, n))
    effects = server.receive(hello("b", epsilon=0.25))
    assert kinds(effects) == ["Welcome", "EdgeJoined", "StageOpened", "SendModel"]
    opened = only(StageOpened, effects)
    first = first_stage(MOMENT, PROBLEM, 2)
    wanted = reopen_stage(first, 2 / 0.25**2, PROBLEM, 2)
    assert (opened.stage, opened.sensitivity, opened.t, opened.reopened) == (1, first.sensitivity, 8, True)
    assert (opened.variance, opened.p, opened.length) == (wanted.variance, wanted.p, wanted.length)
    assert wanted.learning_rate < first.learning_rate
    before = server.model.copy()
    server.receive(gradient("a", 8, 8))
    np.testing.assert_allclose(before - server.model, np.full(3, wanted.learning_rate), rtol=1e-5)


@pytest.mark.parametrize("epsilon", [1.0, 3.0])
def test_a_late_edge_with_an_epsilon_that_is_not_smaller_changes_no_stage(epsilon: float) -> None:
    server = running("a")
    assert kinds(server.receive(hello("b", epsilon=epsilon))) == ["Welcome", "EdgeJoined", "SendModel"]


def test_the_smallest_epsilon_never_rises_not_even_when_its_edge_leaves_or_changes_its_mind() -> None:
    server = running("a", problem=replace(PROBLEM, loss_gap=1e-9))
    server.receive(hello("b", epsilon=0.5))
    server.receive(Leave(EdgeId("b"), "shutdown"))
    effects = server.receive(hello("b", epsilon=5.0, nonce="again"))
    assert kinds(effects) == ["Welcome", "EdgeJoined", "SendModel"]
    assert server.moment == 2 / 0.5**2
    opened = only(StageOpened, server.receive(gradient("a", 1)))
    assert opened.stage == 2
    assert opened.variance == pytest.approx(1 / 4 + opened.sensitivity**2 * 2 / 0.5**2)


def test_an_edge_keeps_the_noise_of_its_first_release() -> None:
    server = running("a", "b")
    server.receive(gradient("b", 1))
    before = (server.moment, server.schedule)
    for epsilon in (0.5, 5.0):
        effects = server.receive(hello("b", epsilon=epsilon, last_sequence=1))
        assert kinds(effects) == ["Refuse"]
        assert only(Refuse, effects).reason == "mechanism"
        assert "keep the noise law" in only(Refuse, effects).detail
    assert kinds(server.receive(hello("a", epsilon=0.5, last_sequence=1))) == ["Refuse"]  # it says so itself
    assert (server.moment, server.schedule) == before
    assert kinds(server.receive(hello("b", last_sequence=1))) == ["Welcome", "SendModel"]


def test_an_edge_that_asks_for_ever_more_noise_does_not_open_the_stage_without_end() -> None:
    server = running("a", "b")
    opened = 0
    for n in range(1, 21):
        server.receive(gradient("a", n, n))
        opened += kinds(server.receive(hello("b", epsilon=1 / (n + 1)))).count("StageOpened")
    assert opened == 2
    assert server.moment == 2 * 3**2
    assert kinds(server.receive(hello("b", epsilon=1 / 3))) == ["Welcome", "SendModel"]


def test_an_edge_that_moves_to_another_shard_takes_the_epsilon_of_that_one() -> None:
    server = running("a", "b", parameters={"epsilon": (2.0, 2.0, 0.5)})
    effects = server.receive(hello("b", index=2))
    assert only(Welcome, effects).index == 2
    assert only(StageOpened, effects).reopened


def test_a_stage_ends_after_exactly_its_length_and_the_next_model_carries_the_new_bound() -> None:
    server = running("a")
    first = first_stage(MOMENT, PROBLEM, 2)
    second = next_stage(first, MOMENT, PROBLEM, 2)
    assert first.length == 36
    for n in range(1, 36):
        effects = server.receive(gradient("a", n, n))
        assert kinds(effects) == ["GradientApplied", "SendModel"]
        assert only(SendModel, effects).sensitivity == first.sensitivity
    effects = server.receive(gradient("a", 36, 36))
    assert kinds(effects) == ["GradientApplied", "StageOpened", "SendModel"]
    sent = only(SendModel, effects)
    assert sent.sensitivity == second.sensitivity
    opened = only(StageOpened, effects)
    assert (opened.stage, opened.t) == (2, 37)


def test_a_gradient_of_an_older_stage_is_applied_at_todays_rate_and_tagged_with_its_own() -> None:
    server = running("a", "b", problem=replace(PROBLEM, loss_gap=1e-9), iterations=50)
    server.receive(gradient("a", 1))
    assert server.schedule is not None
    assert server.schedule.stage == 2
    before, rate = server.model.copy(), server.schedule.learning_rate(2)
    effects = server.receive(gradient("b", 1, 1, sensitivity=1.0))
    applied = only(GradientApplied, effects)
    assert (applied.stage, applied.sensitivity, applied.t, applied.staleness) == (1, 1.0, 2, 1)
    np.testing.assert_allclose(before - server.model, np.full(3, rate), rtol=1e-5)


def test_a_measured_staleness_counts_from_the_next_stage_on() -> None:
    server = running(
        "a", "b", measure_tau=True, problem=replace(PROBLEM, tau_max=1, loss_gap=0.5), iterations=500
    )
    assert server.schedule is not None
    length = server.schedule.opened().length  # type: ignore[union-attr]
    assert length > 5
    for n in range(1, length):
        effects = server.receive(gradient("a", n, max(1, n - 2)))
        assert "StageOpened" not in kinds(effects)
    opened = only(StageOpened, server.receive(gradient("b", 1, 1)))
    assert server.tau_seen == length - 1  # one straggler, whom the quantile leaves out
    assert (opened.stage, opened.tau_max) == (2, 2)


# -- gradients --------------------------------------------------------------------------------------------


def test_an_update_answers_its_edge_alone_with_the_next_version() -> None:
    server = running("a", "b")
    effects = server.receive(gradient("b", 1, 1))
    assert kinds(effects) == ["GradientApplied", "SendModel"]
    assert effects[0] == GradientApplied(1, EdgeId("b"), 1, 1, 1, 0, 1, 1.0)
    sent = only(SendModel, effects)
    assert (sent.edge_id, sent.version, sent.acknowledged) == ("b", 2, 1)


def test_a_resent_gradient_is_refused_and_answered_with_todays_model() -> None:
    server = running("a", "b")
    server.receive(gradient("a", 1))
    server.receive(gradient("b", 1))
    before = server.model.copy()
    effects = server.receive(gradient("a", 1))
    assert effects[0] == GradientRefused(EdgeId("a"), 1, 3, "duplicate")
    sent = only(SendModel, effects)
    assert (sent.version, sent.acknowledged) == (3, 1)
    np.testing.assert_array_equal(server.model, before)


def test_a_stranger_is_told_to_say_hello() -> None:
    server = running("a")
    effects = server.receive(gradient("x", 1))
    assert kinds(effects) == ["GradientRefused", "Refuse"]
    assert (only(GradientRefused, effects).reason, only(Refuse, effects).reason) == ("stranger", "stranger")
    assert server.updates == 0


def test_a_gradient_on_a_model_of_the_future_is_never_applied() -> None:
    """Its sequence is used up, so that the edge goes on with the next."""
    server = running("a")
    effects = server.receive(gradient("a", 1, version=2))
    assert only(GradientRefused, effects).reason == "future"
    assert only(SendModel, effects).acknowledged == 1
    assert only(GradientRefused, server.receive(gradient("a", 1, version=1))).reason == "duplicate"
    assert kinds(server.receive(gradient("a", 2, version=1))) == ["GradientApplied", "SendModel"]


def test_a_gradient_on_version_0_is_never_applied() -> None:
    """Versions count from 1; its staleness would be t, and τ_max as measured would follow it."""
    server = running("a", measure_tau=True)
    server.receive(gradient("a", 1))
    effects = server.receive(gradient("a", 2, version=0))
    assert only(GradientRefused, effects).reason == "no-such-model"
    assert only(SendModel, effects).acknowledged == 2  # the edge goes on
    assert (server.updates, server.tau_seen) == (1, 0)


def test_nobody_has_a_gradient_before_the_first_model_was_sent() -> None:
    server = cloud(edges_at_least=2)
    server.receive(hello("a"))
    effects = server.receive(gradient("a", 1))
    assert kinds(effects) == ["GradientRefused"]
    assert only(GradientRefused, effects).reason == "no-such-model"
    server.receive(hello("b"))
    assert server.updates == 0


def test_a_model_that_was_handed_in_or_out_never_changes() -> None:
    x = np.zeros(3, np.float32)
    server = CloudServer(terms=TERMS, model=x, begin=beginning("mapa", PROBLEM))
    sent = only(SendModel, joined(server, "a"))
    effects = server.receive(gradient("a", 1))
    later = only(SendModel, effects)
    np.testing.assert_array_equal(sent.model, np.zeros(3))
    np.testing.assert_array_equal(x, np.zeros(3))
    kept = later.model.copy()
    assert kept[0] != 0
    server.receive(gradient("a", 2, 2))
    np.testing.assert_array_equal(later.model, kept)
    assert not np.shares_memory(later.model, server.model)


def test_evaluations_are_due_on_their_beat_and_hold_a_copy() -> None:
    server = cloud(evaluate_every=3)
    effects = [
        *joined(server, "a"),
        *(one for n in range(1, 8) for one in server.receive(gradient("a", n, n))),
    ]
    due = every(EvaluationDue, effects)
    assert [(effect.updates, effect.stage) for effect in due] == [(0, 1), (3, 1), (6, 1)]
    assert len({effect.model.tobytes() for effect in due}) == 3


@given(st.integers(1, 5), st.integers(0, 2**32 - 1), st.integers(5, 60), st.booleans())
def test_every_gradient_is_applied_exactly_once_however_often_and_whenever_it_is_sent(
    k: int, seed: int, iterations: int, buffered: bool
) -> None:
    """A network of K edges that repeats and reorders; x is the sum over what was applied, bit for bit."""
    rng = np.random.default_rng(seed)
    server = cloud(edges=k, iterations=iterations, edges_at_least=k if buffered else 1)
    made: dict[tuple[str, int], GradientArrived] = {}
    network: list[GradientArrived] = []
    applied: list[GradientApplied] = []
    halts: list[Halt] = []
    next_sequence = {f"edge-{i}": 1 for i in range(k)}

    def perform(effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, GradientApplied):
                applied.append(effect)
            elif isinstance(effect, Halt):
                halts.append(effect)
            elif isinstance(effect, SendModel):
                sequence = next_sequence[effect.edge_id]
                if effect.acknowledged < sequence - 1:
                    continue  # the answer to a resend: the last gradient is still on its way
                next_sequence[effect.edge_id] = sequence + 1
                g = NoisyGradient(rng.standard_normal(3).astype(np.float32))
                fresh = GradientArrived(effect.edge_id, sequence, effect.version, effect.sensitivity, g)
                made[effect.edge_id, sequence] = fresh
                network.extend([fresh] * int(rng.integers(1, 4)))

    order = [f"edge-{i}" for i in range(k)]
    for edge in order:
        perform(server.receive(hello(edge)))
    while network and not halts:
        perform(server.receive(network.pop(int(rng.integers(len(network))))))
        if made and rng.random() < 0.2:  # a resend of anything that was ever sent
            keys = list(made)
            network.append(made[keys[int(rng.integers(len(keys)))]])

    keys = [(fact.edge_id, fact.sequence) for fact in applied]
    assert len(set(keys)) == len(keys) == iterations == server.updates
    assert [fact.t for fact in applied] == list(range(1, iterations + 1))
    assert all(fact.staleness == fact.t - fact.version >= 0 for fact in applied)
    for edge in order:
        assert [s for e, s in keys if e == edge] == list(range(1, server.edges[EdgeId(edge)].applied + 1))
    x = np.zeros(3, np.float32)
    schedule = beginning("mapa", PROBLEM)(MOMENT)
    for fact in applied:
        x -= np.float32(schedule.learning_rate(fact.t)) * made[fact.edge_id, fact.sequence].gradient
        schedule = schedule.after(fact.t, 0)
    np.testing.assert_array_equal(server.model, x)


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 4), st.integers(1, 6)), max_size=40),
    st.booleans(),
)
def test_hostile_sequences_are_never_applied_twice(sent: list[tuple[str, int, int]], buffered: bool) -> None:
    """Whatever order, version or repetition an edge invents."""
    server = cloud(edges_at_least=3 if buffered else 1)
    effects = joined(server, "a", "b") if buffered else joined(server, "a", "b", "c")
    for edge, sequence, version in sent:
        if edge in server.edges:
            effects += server.receive(gradient(edge, sequence, version))
    effects += joined(server, "c")
    for edge, sequence, version in sent:
        effects += server.receive(gradient(edge, sequence, version))
    keys = [(e.edge_id, e.sequence) for e in every(GradientApplied, effects)]
    assert len(keys) == len(set(keys)) == server.updates


# -- the end ----------------------------------------------------------------------------------------------


def test_training_halts_at_the_last_update_in_the_midst_of_a_stage() -> None:
    server = running("a", "b", iterations=3, evaluate_every=1)
    for n in (1, 2):
        server.receive(gradient("a", n, n))
    effects = server.receive(gradient("a", 3, 3))
    assert kinds(effects) == ["GradientApplied", "EvaluationDue", "Halt"]
    assert only(Halt, effects) == Halt("finished", 3)
    before = server.model.copy()
    for late in (gradient("b", 1), gradient("a", 4, 4), gradient("x", 1)):
        effects = server.receive(late)
        assert only(GradientRefused, effects).reason == "after-halt"
        assert only(Halt, effects) == Halt("finished", 3)
    refuse = only(Refuse, server.receive(hello("c")))
    assert (refuse.reason, refuse.detail) == ("halted", "finished after 3 updates")
    np.testing.assert_array_equal(server.model, before)


def test_no_stage_opens_after_the_last_update() -> None:
    server = running("a", iterations=2, problem=replace(PROBLEM, loss_gap=1e-9))
    assert kinds(server.receive(gradient("a", 1))) == ["GradientApplied", "StageOpened", "SendModel"]
    assert server.schedule is not None
    sensitivity = server.schedule.sensitivity
    assert kinds(server.receive(gradient("a", 2, 2, sensitivity=sensitivity))) == ["GradientApplied", "Halt"]


def test_leaving_is_told_once_and_a_stranger_leaves_nothing() -> None:
    server = running("a")
    assert server.receive(Leave(EdgeId("a"), "lost")) == [EdgeGone(0, EdgeId("a"), 1, "lost")]
    assert server.receive(Leave(EdgeId("a"), "silent")) == []
    assert server.receive(Leave(EdgeId("x"), "lost")) == []
    server.receive(gradient("a", 1))  # it is back
    assert kinds(server.receive(Leave(EdgeId("a"), "lost"))) == ["EdgeGone"]
    assert server.halted is None


def test_training_halts_when_everybodys_budget_is_spent() -> None:
    server = running("a", "b", edges=2)
    assert kinds(server.receive(Leave(EdgeId("a"), "budget"))) == ["EdgeGone"]
    effects = server.receive(Leave(EdgeId("b"), "budget"))
    assert kinds(effects) == ["EdgeGone", "Halt"]
    assert only(Halt, effects) == Halt("no-budget", 0)


def test_an_edge_that_is_only_away_may_come_back() -> None:
    server = running("a", "b", edges=2)
    server.receive(Leave(EdgeId("a"), "lost"))
    server.receive(Leave(EdgeId("b"), "budget"))
    assert (server.halted, server.spent()) == (None, "away")
    server.receive(hello("b", nonce="again"))  # with a larger budget
    assert server.spent() == ""
    server.receive(Leave(EdgeId("a"), "budget"))
    assert server.halted is None
    server.receive(Leave(EdgeId("b"), "budget", "again"))
    assert server.halted == Halt("no-budget", 0)


def test_a_silent_edge_may_still_say_that_its_budget_is_spent() -> None:
    server = running("a", edges=1)
    server.receive(Leave(EdgeId("a"), "silent"))
    assert kinds(server.receive(Leave(EdgeId("a"), "budget"))) == ["EdgeGone", "Halt"]
    assert server.receive(Leave(EdgeId("a"), "budget")) == []


def test_a_late_duplicate_and_silence_do_not_refill_a_spent_budget() -> None:
    server = running("a", "b", edges=2)
    server.receive(gradient("a", 1))
    server.receive(Leave(EdgeId("a"), "budget"))
    server.receive(gradient("a", 1))  # overtaken by the leave
    server.receive(Leave(EdgeId("a"), "silent"))
    assert kinds(server.receive(Leave(EdgeId("b"), "budget"))) == ["EdgeGone", "Halt"]
    assert server.halted == Halt("no-budget", 1)


def test_the_first_reason_to_halt_stays() -> None:
    server = running("a")
    assert server.halt("interrupted") == [Halt("interrupted", 0)]
    assert server.halt("finished") == [Halt("interrupted", 0)]
    assert server.receive(Leave(EdgeId("a"), "budget")) == [EdgeGone(0, EdgeId("a"), 1, "budget")]
