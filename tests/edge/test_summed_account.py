"""What a ledger and an edge's operator make of releases that are seen in sums alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from common.accounting.budget import max_charges
from common.accounting.releases import Budget, ReleaseKind, Spent
from common.accounting.total import total
from common.errors import ConfigurationError, RemoteProtocolError
from common.mechanism.grid import Grid
from common.mechanism.mechanism import Mechanism
from common.mechanism.samplers.poisson import Poisson
from common.noise.gaussian import Gaussian
from common.quantities import RunId
from edge.ledger import Account, Ledger, ShardIdentity
from edge.policy import OperatorPolicy, PolicyError, Proposal, law_for, permit
from edge.sqlite_ledger import SqliteLedger, ledger_snapshot
from mapa.releases import statement_of_book

SHARD = ShardIdentity("sha256:1", "iid K=20 seed=0", 2)
GRID = Grid(17, members=20, helpers=4, away=1, clip=1.0)
DELTA = 1e-5


def kind(grid: Grid | None = GRID, z: float = 3.0) -> ReleaseKind:
    return ReleaseKind(Mechanism(Gaussian(z), 128, Poisson(), grid=grid), 3000)


def account(
    run: str = "r", grid: Grid | None = GRID, own: float | None = None, sums: float | None = None
) -> Account:
    return Account(
        run=RunId(run),
        shard=SHARD,
        kind=kind(grid),
        budget=None if own is None else Budget(own, DELTA),
        sum_budget=None if sums is None else Budget(sums, DELTA, in_sums=True),
    )


@pytest.fixture(params=["memory", "sqlite"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    made: Ledger = Ledger() if request.param == "memory" else SqliteLedger(tmp_path)
    yield made
    made.close()


def test_either_budget_caps_what_may_be_released(ledger: Ledger) -> None:
    of_sums = max_charges(Budget(1.0, DELTA), kind().in_sums)
    of_own = max_charges(Budget(4.0, DELTA), kind())
    assert ledger.open(account("a", sums=1.0)).cap == of_sums
    assert ledger.open(account("b", own=4.0)).cap == of_own
    assert ledger.open(account("c", own=4.0, sums=1.0)).cap == min(of_sums, of_own)
    assert of_own != of_sums


def test_a_release_on_its_own_is_charged_with_its_share_of_the_noise() -> None:
    plain = ReleaseKind(Mechanism(Gaussian(3.0 / 20**0.5), 128, Poisson()), 3000)
    own, of_plain = (total([Spent(one, 50)], DELTA).epsilon for one in (kind(), plain))
    assert own == pytest.approx(of_plain, rel=1e-3)
    assert own >= of_plain
    whole = ReleaseKind(Mechanism(Gaussian(3.0), 128, Poisson()), 3000)
    summed, of_whole = (total([Spent(one, 50)], DELTA).epsilon for one in (kind().in_sums, whole))
    assert summed == pytest.approx(of_whole, rel=1e-3)
    assert summed >= of_whole


def test_edges_that_collude_take_their_noise_away() -> None:
    fewer = ReleaseKind(Mechanism(Gaussian(3.0 * 0.75**0.5), 128, Poisson()), 3000)
    some = kind(replace(GRID, colluding=5)).in_sums
    assert total([Spent(some, 50)], DELTA).epsilon == pytest.approx(
        total([Spent(fewer, 50)], DELTA).epsilon, rel=1e-3
    )
    assert total([Spent(some, 50)], DELTA).epsilon > 1.05 * total([Spent(kind().in_sums, 50)], DELTA).epsilon


@pytest.mark.parametrize(
    "other",
    [
        replace(GRID, members=10),
        replace(GRID, colluding=1),
        replace(GRID, helpers=3),
        replace(GRID, away=0),
        replace(GRID, clip=2.0),
        replace(GRID, bits=16),
        None,
    ],
)
def test_terms_that_differ_from_those_recorded_are_refused(ledger: Ledger, other: Grid | None) -> None:
    ledger.open(account())
    with pytest.raises(ConfigurationError, match="a run keeps its terms"):
        ledger.open(account(grid=other))


def test_what_was_summed_and_what_was_not_is_composed_for_sums(ledger: Ledger) -> None:
    """A plain run's releases count in full against a later run's budget of sums."""
    ledger.open(account("plain", grid=None))
    for sequence in range(1, 41):
        ledger.debit(RunId("plain"), sequence, b"")
    after = ledger.open(account("sums", sums=2.0)).cap
    assert after is not None
    alone = max_charges(Budget(2.0, DELTA), kind().in_sums)
    assert 0 < after < alone


def test_a_ledger_file_keeps_terms_and_both_budgets(tmp_path: Path) -> None:
    with SqliteLedger(tmp_path) as ledger:
        ledger.open(account(own=9.0, sums=1.0))
        for sequence in range(1, 4):
            ledger.debit(RunId("r"), sequence, b"x")
    with ledger_snapshot(tmp_path) as copy:
        [standing] = copy.standings()
        assert standing.account == account(own=9.0, sums=1.0)
        words = statement_of_book([(copy.edge_id, [standing])]).words()
    assert (
        "sums of 20 or more edges, with at most 1 of 4 helpers and 0 of the other edges on its side"
        in words[0]
    )
    assert words[1].startswith(
        "On its own: if all other edges, or more helpers than that, side with the cloud"
    )


def test_a_statement_has_both_figures() -> None:
    ledger = Ledger()
    ledger.open(account())
    for sequence in range(1, 61):
        ledger.debit(RunId("r"), sequence, b"")
    stated = statement_of_book([(ledger.edge_id, ledger.standings())])
    assert stated.in_sums is not None
    values = stated.as_dict()
    assert values["in_sums"]["epsilon"] == total([Spent(kind().in_sums, 60)], DELTA).epsilon  # type: ignore[index]
    assert values["epsilon"] == total([Spent(kind(), 60)], DELTA).epsilon
    assert values["epsilon"] > 3 * values["in_sums"]["epsilon"]  # type: ignore[index, operator]


def test_an_operators_floor_is_for_a_release_on_its_own_and_another_for_the_sum() -> None:
    proposal = Proposal(kind(), owned=False)
    permit(
        OperatorPolicy(parameters={"noise_multiplier": 0.67}, least_in_sums=3.0), proposal, budget_kept=False
    )
    with pytest.raises(PolicyError, match=r"guarantees z = 0\.67"):
        permit(OperatorPolicy(parameters={"noise_multiplier": 0.68}), proposal, budget_kept=False)
    with pytest.raises(PolicyError, match=r"--least-in-sums 3\.1"):
        permit(OperatorPolicy(least_in_sums=3.1), proposal, budget_kept=False)
    colluding = Proposal(kind(replace(GRID, colluding=5)), owned=False)
    with pytest.raises(PolicyError, match="--least-in-sums 3"):
        permit(OperatorPolicy(least_in_sums=3.0), colluding, budget_kept=False)


def test_an_operators_noise_is_never_another_share() -> None:
    policy = OperatorPolicy(parameters={"noise_multiplier": 0.5})
    assert law_for(policy, Gaussian(3.0), summed=True) == Gaussian(3.0)
    assert law_for(policy, Gaussian(3.0)) == Gaussian(0.5)


def test_nothing_is_claimed_where_integers_may_differ_too_much() -> None:
    figure = total([Spent(kind().in_sums, 10**6)], 1e-45)
    assert not figure.is_private


def test_a_model_with_another_bound_than_the_terms_say_is_not_answered() -> None:
    """A cloud that gives one edge a larger C than the others would find its record under their little noise."""
    from tests.simulation.test_secure_sums import summed_world

    world = summed_world()
    [worker, *_] = world.workers()
    bound = worker.mechanism.grid.clip  # type: ignore[union-attr]
    x = world.model.initial(world.streams.at(0, 0, 0))  # type: ignore[arg-type]
    worker.gradient(x, 2 * bound / worker.mechanism.batch_size, 1)
    with pytest.raises(RemoteProtocolError, match="the terms of this run's sums say"):
        worker.gradient(x, 4 * bound / worker.mechanism.batch_size, 2)
