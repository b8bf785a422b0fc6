"""R_k and z_k are fixed before the first release: the ledger keeps them, whatever a cloud says later."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cloud.assembly import first_model
from common.accounting.budget import calibrate
from common.accounting.releases import Budget, ReleaseKind, Spent
from common.accounting.total import total
from common.errors import ConfigurationError
from common.mechanism.mechanism import Mechanism
from common.messages import ModelReceived, Welcome
from common.noise.gaussian import Gaussian
from common.quantities import EdgeId, RunId
from common.scenario.scenario import Scenario
from edge.client import Outbox
from edge.joining import Membership, Preparation, prepare
from edge.ledger import Account, BudgetExhausted, Ledger, MemoryLedger, ShardIdentity
from edge.policy import OperatorPolicy
from edge.session import BudgetSpent, GradientDebited, Prepared, WelcomeDeclined
from edge.sqlite_ledger import SqliteLedger
from tests.core_support import small_dataset, small_scenario, small_world

RUN, EDGE = RunId("r"), EdgeId("edge-a")
BUDGET = Budget(3.0, 1e-5)
B = N = 60  # all records in each batch: the accountant has a closed form
CAP = 7


def z_for(releases: int) -> float:
    return calibrate(BUDGET, Mechanism(None, B), releases=releases, shard_size=N)


def kind(z: float) -> ReleaseKind:
    return ReleaseKind(Mechanism(Gaussian(z), B), N)


def account(**changes: Any) -> Account:
    terms = Account(
        run=RUN,
        shard=ShardIdentity("d", "iid K=4 seed=7", 0),
        kind=kind(2 * z_for(CAP)),
        budget=BUDGET,
        most_releases=CAP,
    )
    return replace(terms, **changes)


@pytest.fixture(params=["memory", "sqlite"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    made: Ledger = MemoryLedger(EDGE) if request.param == "memory" else SqliteLedger(tmp_path, EDGE)
    yield made
    made.close()


def spend(ledger: Ledger, count: int) -> None:
    for _ in range(count):
        ledger.debit(RUN, ledger.last_sequence(RUN) + 1, b"g")


def test_an_edge_ends_after_its_own_number_of_releases_although_the_budget_has_more(ledger: Ledger) -> None:
    standing = ledger.open(account())
    assert standing.cap is not None
    assert standing.cap > CAP
    spend(ledger, CAP)
    assert ledger.standing(RUN).exhausted
    with pytest.raises(BudgetExhausted):
        spend(ledger, 1)
    assert ledger.last_sequence(RUN) == CAP


def test_an_edge_says_whether_its_number_or_its_budget_ended_it(ledger: Ledger) -> None:
    """With the operator's larger z an edge that made its R_k releases has budget left."""
    world = small_world(iterations=2 * CAP)
    worker, outbox = world.workers()[0], Outbox(RUN, ledger)
    model = ModelReceived(EDGE, 1, 1.0, 0, first_model(world.model, world.streams))
    ledger.open(account())
    for sequence in range(1, CAP + 1):
        assert outbox.make(worker, sequence, model) == GradientDebited(sequence)
    assert outbox.make(worker, CAP + 1, model) == BudgetSpent(cap=CAP)
    tight = RunId("tight")
    ledger.open(account(run=tight, kind=kind(z_for(1))))  # the run before has spent of the same records
    assert Outbox(tight, ledger).make(worker, 1, model) == BudgetSpent()


@pytest.mark.parametrize("other", [CAP + 1, CAP - 1, 1000, None])
def test_a_run_keeps_its_number_of_releases(ledger: Ledger, other: int | None) -> None:
    ledger.open(account())
    spend(ledger, 3)
    with pytest.raises(ConfigurationError, match="a run keeps its terms"):
        ledger.open(account(most_releases=other))
    with pytest.raises(ConfigurationError, match="a run keeps its terms"):
        ledger.open(account(most_releases=other), replace_budget=True)


def test_the_number_survives_the_process(tmp_path: Path) -> None:
    with SqliteLedger(tmp_path, EDGE) as first:
        first.open(account())
        spend(first, CAP - 1)
    with SqliteLedger(tmp_path) as second:
        assert second.standing(RUN).account == account()
        with pytest.raises(ConfigurationError, match="a run keeps its terms"):
            second.open(account(most_releases=CAP + 5))
        second.open(account())
        spend(second, 1)
        with pytest.raises(BudgetExhausted):
            spend(second, 1)


# -- the welcome ------------------------------------------------------------------------------------------


def filled(cap: int = CAP, z: float | None = None, **privacy: Any) -> Scenario:
    return small_scenario(
        batch_size=B,
        data={"sampler": "poisson"},
        algorithm={"name": "constant", "rate": 0.1},
        privacy={
            "pace": "own",
            "total_epsilon": 3.0,
            "noise_multiplier": [z_for(cap) if z is None else z],
            "release_caps": [cap],
            **privacy,
        },
    )


def admitted(told: dict[str, Any]) -> Welcome:
    return Welcome(edge_id=EDGE, index=0, last_sequence=0, edges=4, scenario=told, seed=None, nonce="0" * 16)


def follow(
    scenario: Scenario, ledger: Ledger, policy: OperatorPolicy | None = None, **changed: Any
) -> Preparation:
    told = scenario.for_edge(0)
    told["privacy"] |= changed
    return prepare(admitted(told), RUN, policy or OperatorPolicy(), ledger, lambda _: small_dataset())


def law_of(prepared: Preparation) -> Gaussian:
    law = prepared.worker.mechanism.law
    assert isinstance(law, Gaussian)
    return law


@pytest.mark.parametrize("cap", [1, 5, 40])
def test_what_the_edge_may_release_costs_the_budget_and_no_more(cap: int) -> None:
    ledger = MemoryLedger(EDGE)
    follow(filled(cap), ledger)
    spend(ledger, cap)
    standing = ledger.standing(RUN)
    assert standing.exhausted
    spent = total([Spent(standing.account.kind, standing.charges)], 1e-5, replace_one=False).epsilon
    assert 0.98 * 3.0 <= spent <= 3.0


def test_a_cloud_that_names_too_many_releases_gets_what_the_budget_permits() -> None:
    ledger = MemoryLedger(EDGE)
    follow(filled(CAP), ledger, release_caps=[1000])
    spend(ledger, CAP)
    with pytest.raises(BudgetExhausted):
        spend(ledger, 1)


def test_a_cloud_that_names_too_little_noise_gets_fewer_releases() -> None:
    ledger = MemoryLedger(EDGE)
    follow(filled(CAP), ledger, noise_multiplier=[0.7 * z_for(CAP)])
    cap = ledger.standing(RUN).cap
    assert cap is not None
    assert cap < CAP


@pytest.mark.parametrize(
    "changed", [{"release_caps": [CAP + 1]}, {"noise_multiplier": [9.0]}, {"total_epsilon": 4.0}]
)
def test_a_cloud_that_comes_back_with_other_terms_after_a_look_is_refused(changed: dict[str, Any]) -> None:
    ledger = MemoryLedger(EDGE)
    follow(filled(), ledger)
    spend(ledger, 2)
    with pytest.raises(ConfigurationError, match="a run keeps its terms"):
        follow(filled(), ledger, **changed)
    follow(filled(), ledger)  # the former ones are still good


def test_a_cloud_that_takes_the_pace_away_after_a_look_is_refused() -> None:
    ledger = MemoryLedger(EDGE)
    follow(filled(), ledger)
    spend(ledger, 2)
    plain = filled().for_edge(0)
    for key in ("pace", "release_caps"):
        del plain["privacy"][key]
    with pytest.raises(ConfigurationError, match="most_releases = 7, not None; a run keeps its terms"):
        prepare(admitted(plain), RUN, OperatorPolicy(), ledger, lambda _: small_dataset())


@pytest.mark.parametrize(
    "changed", [{"release_caps": [CAP + 1]}, {"noise_multiplier": [9.0]}, {"pace": "same"}, {}]
)
def test_a_second_welcome_must_deal_the_same_pace(changed: dict[str, Any]) -> None:
    """Before the first release, too: what the ledger holds was fixed with the first welcome."""
    joining = Membership(RUN, OperatorPolicy(), MemoryLedger(EDGE), lambda _: small_dataset())
    first = filled().for_edge(0)
    assert isinstance(joining.follow(admitted(first)), Prepared)
    later = {**first, "privacy": {**first["privacy"], **changed}}
    answer = joining.follow(admitted(later))
    assert isinstance(answer, WelcomeDeclined if changed else Prepared)
    assert joining.ledger.standing(RUN).account.most_releases == CAP


def test_a_welcome_with_several_numbers_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="must have the number of this edge's releases"):
        follow(filled(), MemoryLedger(EDGE), release_caps=[3, 4])


# -- the operator's floor ---------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [0.5, 1.0, 1.7])
def test_z_is_the_larger_of_the_planned_and_the_operators(factor: float) -> None:
    planned = z_for(CAP)
    policy = OperatorPolicy(parameters={"noise_multiplier": factor * planned})
    ledger = MemoryLedger(EDGE)
    assert law_of(follow(filled(), ledger, policy)).noise_multiplier == max(1.0, factor) * planned
    assert ledger.standing(RUN).account.most_releases == CAP


def test_another_law_of_the_operator_has_no_pace() -> None:
    with pytest.raises(ConfigurationError, match="every edge noises by 'gaussian'"):
        follow(filled(), MemoryLedger(EDGE), OperatorPolicy(parameters={"epsilon": 0.1}))
