"""R_k and z_k are fixed before the first release: the ledger keeps them, whatever a cloud says later."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cloud.assembly import first_model
from common.accounting.budget import calibrate
from common.accounting.releases import Budget, ReleaseKind, Spent
from common.accounting.total import total
from common.errors import ConfigurationError
from common.mechanism.mechanism import Mechanism
from common.messages import ModelReceived
from common.noise.gaussian import Gaussian
from common.quantities import RunId
from common.scenario.scenario import Scenario
from edge.client import make_gradient
from edge.joining import Preparation
from edge.ledger import Account, BudgetExhausted, Ledger
from edge.policy import OperatorPolicy
from edge.session import Ending, GradientDebited
from edge.sqlite_ledger import SqliteLedger
from tests import edge_support
from tests.core_support import small_scenario, small_world
from tests.edge_support import EDGE, prepared, spend, welcome_of

RUN = RunId("r")
BUDGET = Budget(3.0, 1e-5)
B = N = 60  # all records in each batch: the accountant has a closed form
CAP = 7


def z_for(releases: int) -> float:
    return calibrate(BUDGET, Mechanism(None, B), releases=releases, shard_size=N)


def kind(z: float) -> ReleaseKind:
    return ReleaseKind(Mechanism(Gaussian(z), B), N)


def account(**changes: Any) -> Account:
    terms = {"kind": kind(2 * z_for(CAP)), "budget": BUDGET, "most_releases": CAP}
    return edge_support.account(**{**terms, **changes})


@pytest.fixture(params=["memory", "sqlite"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    made: Ledger = Ledger(EDGE) if request.param == "memory" else SqliteLedger(tmp_path, EDGE)
    yield made
    made.close()


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
    worker = world.workers()[0]
    model = ModelReceived(EDGE, 1, 1.0, 0, first_model(world.model, world.streams))
    told: list[GradientDebited | Ending] = []
    ledger.open(account())
    for sequence in range(1, CAP + 2):
        make_gradient(worker, ledger, RUN, sequence, model, told.append)
    *made, ended = told
    assert made == [GradientDebited(sequence) for sequence in range(1, CAP + 1)]
    assert ended == Ending(0, f"all R_k = {CAP} releases are made", "budget")
    tight = RunId("tight")
    ledger.open(account(run=tight, kind=kind(z_for(1))))  # the run before has spent of the same records
    make_gradient(worker, ledger, tight, 1, model, told.append)
    ended = told[-1]
    assert isinstance(ended, Ending)
    assert (ended.leave, "the privacy budget is spent" in ended.text) == ("budget", True)


@pytest.mark.parametrize("other", [CAP + 1, CAP - 1, 1000, None])
def test_a_run_keeps_its_number_of_releases(ledger: Ledger, other: int | None) -> None:
    ledger.open(account())
    spend(ledger, 3)
    with pytest.raises(ConfigurationError, match="a run keeps its terms"):
        ledger.open(account(most_releases=other))
    with pytest.raises(ConfigurationError, match="a run keeps its terms"):
        ledger.open(account(most_releases=other), replace_budget=True)


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


def follow(
    scenario: Scenario, ledger: Ledger, policy: OperatorPolicy | None = None, **changed: Any
) -> Preparation:
    told = scenario.for_edge(0)
    told["privacy"] |= changed
    return prepared(welcome_of(told), ledger, policy)


def law_of(made: Preparation) -> Gaussian:
    law = made.worker.mechanism.law
    assert isinstance(law, Gaussian)
    return law


@pytest.mark.parametrize("cap", [1, 5, 40])
def test_what_the_edge_may_release_costs_the_budget_and_no_more(cap: int) -> None:
    ledger = Ledger(EDGE)
    follow(filled(cap), ledger)
    spend(ledger, cap)
    standing = ledger.standing(RUN)
    assert standing.exhausted
    spent = total([Spent(standing.account.kind, standing.charges)], 1e-5, replace_one=False).epsilon
    assert 0.98 * 3.0 <= spent <= 3.0


def test_a_cloud_that_names_too_many_releases_gets_what_the_budget_permits() -> None:
    ledger = Ledger(EDGE)
    follow(filled(CAP), ledger, release_caps=[1000])
    spend(ledger, CAP)
    with pytest.raises(BudgetExhausted):
        spend(ledger, 1)


def test_a_cloud_that_names_too_little_noise_gets_fewer_releases() -> None:
    ledger = Ledger(EDGE)
    follow(filled(CAP), ledger, noise_multiplier=[0.7 * z_for(CAP)])
    cap = ledger.standing(RUN).cap
    assert cap is not None
    assert cap < CAP


@pytest.mark.parametrize(
    "changed", [{"release_caps": [CAP + 1]}, {"noise_multiplier": [9.0]}, {"total_epsilon": 4.0}]
)
def test_a_cloud_that_comes_back_with_other_terms_after_a_look_is_refused(changed: dict[str, Any]) -> None:
    ledger = Ledger(EDGE)
    follow(filled(), ledger)
    spend(ledger, 2)
    with pytest.raises(ConfigurationError, match="a run keeps its terms"):
        follow(filled(), ledger, **changed)
    follow(filled(), ledger)  # the former ones are still good


def test_a_welcome_with_several_numbers_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="must have the number of this edge's releases"):
        follow(filled(), Ledger(EDGE), release_caps=[3, 4])


# -- the operator's floor ---------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [0.5, 1.0, 1.7])
def test_z_is_the_larger_of_the_planned_and_the_operators(factor: float) -> None:
    planned = z_for(CAP)
    policy = OperatorPolicy(parameters={"noise_multiplier": factor * planned})
    ledger = Ledger(EDGE)
    assert law_of(follow(filled(), ledger, policy)).noise_multiplier == max(1.0, factor) * planned
    assert ledger.standing(RUN).account.most_releases == CAP


def test_another_law_of_the_operator_has_no_pace() -> None:
    with pytest.raises(ConfigurationError, match="every edge noises by 'gaussian'"):
        follow(filled(), Ledger(EDGE), OperatorPolicy(parameters={"epsilon": 0.1}))
