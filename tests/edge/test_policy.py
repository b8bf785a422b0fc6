"""The operator's policy, case by case: what a welcome may ask for, and what it may not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.accounting.releases import Budget, ReleaseKind
from common.errors import ConfigurationError
from common.mechanism.clipping import Clipping
from common.mechanism.guarantee import Adjacency, Scope
from common.mechanism.mechanism import Mechanism
from common.mechanism.sampler import Sampler
from common.noise.exponential_norm import ExponentialNorm
from common.noise.gamma_norm import GammaNorm
from common.noise.gaussian import Gaussian
from common.noise.law import NoiseLaw
from edge.ledger import ShardIdentity
from edge.policy import (
    Claim,
    OperatorPolicy,
    PolicyError,
    Proposal,
    check_claims,
    check_code,
    check_data,
    exposure,
    is_owned,
    law_for,
    own_records,
    permit,
)
from tests.mechanism_support import BATCH_MEAN, NORMALISED, PER_SAMPLE, POISSON, SHUFFLED, WITH_REPLACEMENT

REPLACED = WITH_REPLACEMENT
EACH, MEAN, UNIT = PER_SAMPLE, BATCH_MEAN, NORMALISED
ALL, FIRST = Scope.ALL, Scope.FIRST_CONV
SHARD = ShardIdentity("d", "iid K=5 seed=0", 0)


def proposed(
    policy: OperatorPolicy,
    of_run: NoiseLaw | None,
    clipping: Clipping = EACH,
    sampling: Sampler = POISSON,
    b: int = 10,
    scope: Scope = ALL,
    seed: int | None = None,
) -> Proposal:
    kind = ReleaseKind(Mechanism(law_for(policy, of_run), b, sampling, clipping, scope=scope), 1000)
    return Proposal(kind=kind, owned=False, seed=seed)


Z1, E1 = OperatorPolicy(parameters={"noise_multiplier": 1.0}), OperatorPolicy(parameters={"epsilon": 0.1})
RUN = Gaussian(1.0)
# (policy, the run's law, clipping, sampler, b, scope) -> what the refusal says; None: permitted
CASES = [
    # z is std over the zero-out sensitivity: C/b per sample, C with replacement, 2C for a clipped mean
    (Z1, RUN, EACH, POISSON, 10, ALL, None),
    (Z1, RUN, EACH, SHUFFLED, 10, ALL, None),
    (Z1, RUN, EACH, POISSON, 7, ALL, None),  # 1/7·7 rounds
    (Z1, RUN, EACH, REPLACED, 1, ALL, None),  # one place to fill
    (Z1, RUN, EACH, REPLACED, 10, ALL, "guarantees z = 0.1"),
    (Z1, RUN, MEAN, POISSON, 10, ALL, "guarantees z = 0.05"),
    (Z1, RUN, MEAN, SHUFFLED, 10, ALL, "guarantees z = 0.05"),
    (Z1, RUN, MEAN, REPLACED, 10, ALL, "guarantees z = 0.05"),
    (Z1, RUN, MEAN, POISSON, 1, ALL, "guarantees z = 0.5"),
    (Z1, RUN, UNIT, POISSON, 10, ALL, None),  # as clipped to C each
    (Z1, RUN, UNIT, SHUFFLED, 10, ALL, None),
    (Z1, RUN, UNIT, REPLACED, 10, ALL, "guarantees z = 0.1"),
    (Z1, RUN, UNIT, POISSON, 10, FIRST, "in the clear"),
    (Z1, RUN, EACH, POISSON, 10, FIRST, "in the clear"),
    (Z1, Gaussian(9.0), EACH, POISSON, 10, ALL, None),  # its own z counts, not the run's
    (Z1, GammaNorm(1.0), EACH, POISSON, 10, ALL, None),  # gaussian noise in a run of another law
    (Z1, ExponentialNorm(1.0), EACH, REPLACED, 10, ALL, "guarantees z = 0.1"),
    (Z1, None, EACH, POISSON, 10, ALL, "neither clips nor noises"),
    # ε per sample costs ε/2 under zero-out, with replacement bε/2, a clipped mean bε
    (E1, GammaNorm(3.0), EACH, POISSON, 10, ALL, None),
    (E1, RUN, EACH, POISSON, 10, ALL, None),
    (E1, RUN, EACH, SHUFFLED, 10, ALL, None),
    (E1, RUN, EACH, REPLACED, 2, ALL, None),
    (E1, RUN, EACH, REPLACED, 3, ALL, "guarantees ε = 0.15"),
    (E1, RUN, EACH, REPLACED, 8000, ALL, "guarantees ε = 400"),
    (E1, RUN, UNIT, POISSON, 10, ALL, None),
    (E1, RUN, UNIT, REPLACED, 3, ALL, "guarantees ε = 0.15"),
    (E1, RUN, MEAN, POISSON, 1, ALL, None),
    (E1, RUN, MEAN, POISSON, 10, ALL, "guarantees ε = 1 "),
    (E1, RUN, EACH, POISSON, 10, FIRST, "in the clear"),
    (E1, None, EACH, POISSON, 10, ALL, "neither clips nor noises"),
    # a law by its name alone takes the run's parameter: it must protect, and no floor is set
    (OperatorPolicy(noise="gaussian"), RUN, MEAN, REPLACED, 10, ALL, None),
    (OperatorPolicy(noise="gaussian"), RUN, EACH, POISSON, 10, FIRST, "in the clear"),
    (OperatorPolicy(noise="gamma-norm"), None, EACH, POISSON, 10, ALL, "neither clips nor noises"),
    # the paper's law has no guarantee: by its name it may be had all the same
    (OperatorPolicy(noise="exponential-norm"), ExponentialNorm(1.0), EACH, POISSON, 10, ALL, None),
    (
        OperatorPolicy(noise="exponential-norm", parameters={"epsilon": 0.1}),
        RUN,
        MEAN,
        REPLACED,
        10,
        FIRST,
        None,
    ),
    # no word on noise: as the run says
    (OperatorPolicy(), RUN, MEAN, REPLACED, 10, FIRST, None),
    (OperatorPolicy(), ExponentialNorm(1.0), EACH, POISSON, 10, ALL, None),
    (OperatorPolicy(), None, EACH, POISSON, 10, ALL, None),
]


@pytest.mark.parametrize(("policy", "of_run", "clipping", "sampling", "b", "scope", "says"), CASES)
def test_every_release_guarantees_what_the_operator_asked_for(
    policy: OperatorPolicy,
    of_run: NoiseLaw | None,
    clipping: Clipping,
    sampling: Sampler,
    b: int,
    scope: Scope,
    says: str | None,
) -> None:
    n = max(1000, b)
    kind = ReleaseKind(Mechanism(law_for(policy, of_run), b, sampling, clipping, scope=scope), n)
    proposal = Proposal(kind=kind, owned=False)
    if says is None:
        permit(policy, proposal, budget_kept=True)
        given = kind.guarantee(Adjacency.ZERO_OUT)
        if "noise_multiplier" in policy.parameters:
            assert given.noise_multiplier == pytest.approx(policy.parameters["noise_multiplier"])
        elif "epsilon" in policy.parameters and policy.noise is None:
            assert given.epsilon is not None
            assert given.epsilon <= policy.parameters["epsilon"] * (1 + 1e-9)
        return
    with pytest.raises(PolicyError) as refused:
        permit(policy, proposal, budget_kept=False)
    assert says in f"{refused.value} "
    if says.startswith("guarantees"):
        for part in ("zero-out", clipping.name, sampling.name, f"batch_size = {b}", "must be at"):
            assert part in str(refused.value)


ASKS_E = OperatorPolicy(parameters={"epsilon": 0.5})


@pytest.mark.parametrize(
    ("policy", "of_run", "law"),
    [
        (ASKS_E, RUN, GammaNorm(0.5)),
        (ASKS_E, ExponentialNorm(1.0), GammaNorm(0.5)),
        (OperatorPolicy(parameters={"noise_multiplier": 2.0}), GammaNorm(1.0), Gaussian(2.0)),
        (OperatorPolicy(noise="gaussian"), RUN, RUN),
        (OperatorPolicy(), GammaNorm(1.0), GammaNorm(1.0)),
        (ASKS_E, None, None),
    ],
)
def test_the_operator_s_law_goes_before_the_run_s(
    policy: OperatorPolicy, of_run: NoiseLaw | None, law: NoiseLaw | None
) -> None:
    assert law_for(policy, of_run) == law


@pytest.mark.parametrize(
    ("noise", "parameters"),
    [
        ("gaussian", {"epsilon": 1.0}),
        ("gamma-norm", {"noise_multiplier": 1.0}),
        ("gamma-norm", {}),  # the run is gaussian and has no ε to take
        (None, {"epsilon": 1.0, "noise_multiplier": 1.0}),
        ("cauchy", {"epsilon": 1.0}),
    ],
)
def test_a_law_without_its_one_parameter_is_refused(noise: str | None, parameters: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError):
        law_for(OperatorPolicy(noise=noise, parameters=parameters), RUN)


BUDGET = OperatorPolicy(budget=Budget(2.0, 1e-5))
SEEDS = [
    (OperatorPolicy(), 7, False, None),
    (OperatorPolicy(), 7, True, "has set a budget for these records before"),
    (OperatorPolicy(allow_seed=True), 7, True, None),
    (OperatorPolicy(), None, True, None),
    (BUDGET, 7, False, "set a budget or asked for noise"),
    (BUDGET, None, False, None),
    (Z1, 7, False, "set a budget or asked for noise"),
    (OperatorPolicy(noise="gaussian"), 7, False, "set a budget or asked for noise"),
]


@pytest.mark.parametrize(("policy", "seed", "kept", "says"), SEEDS)
def test_a_seed_is_refused_where_the_operator_asks_for_protection(
    policy: OperatorPolicy, seed: int | None, kept: bool, says: str | None
) -> None:
    proposal = proposed(policy, RUN, seed=seed)
    if says is None:
        permit(policy, proposal, budget_kept=kept)
        return
    with pytest.raises(PolicyError, match=r"seed = 7: .*--allow-seed") as refused:
        permit(policy, proposal, budget_kept=kept)
    assert says in str(refused.value)


# (the run's law, clipping, sampler, b, scope) -> why what leaves is not protected; None: it is
UNPROTECTED = [
    (None, EACH, POISSON, 10, ALL, "no noise"),
    (ExponentialNorm(0.001), EACH, POISSON, 10, ALL, "singular at 0"),
    (ExponentialNorm(0.1), MEAN, REPLACED, 10, ALL, "singular at 0"),  # the paper's replica
    (Gaussian(9.0), EACH, POISSON, 10, FIRST, "in the clear"),
    (Gaussian(1e-9), EACH, POISSON, 10, ALL, "z = 1e-09, less than 0.1"),  # as good as no noise
    (Gaussian(0.0999), EACH, POISSON, 10, ALL, "less than 0.1"),
    (Gaussian(1.0), MEAN, POISSON, 10, ALL, "z = 0.05, less than 0.1"),
    (GammaNorm(1e6), EACH, POISSON, 10, ALL, "more than 20"),
    (GammaNorm(3.0), MEAN, POISSON, 10, ALL, "ε = 30, more than 20"),
    (Gaussian(0.1), EACH, POISSON, 10, ALL, None),
    (Gaussian(4.0), MEAN, POISSON, 10, ALL, None),
    (GammaNorm(40.0), EACH, POISSON, 10, ALL, None),  # ε/2 under zero-out
]


@pytest.mark.parametrize(("law", "clipping", "sampling", "b", "scope", "says"), UNPROTECTED)
def test_the_owners_records_leave_unprotected_only_by_the_owners_switch(
    law: NoiseLaw | None, clipping: Clipping, sampling: Sampler, b: int, scope: Scope, says: str | None
) -> None:
    public = proposed(OperatorPolicy(), law, clipping, sampling, b, scope)
    owned = replace(public, owned=True)
    permit(OperatorPolicy(), public, budget_kept=False)
    permit(OperatorPolicy(allow_unprotected=True), owned, budget_kept=False)
    if says is None:
        assert exposure(owned) == exposure(public) == ""
        permit(OperatorPolicy(), owned, budget_kept=False)
        return
    assert says in exposure(owned)
    assert exposure(public) == exposure(owned), "whose records they are does not make a release protected"
    with pytest.raises(PolicyError, match="--allow-unprotected") as refused:
        permit(OperatorPolicy(), owned, budget_kept=False)
    assert says in str(refused.value)


def test_the_owners_records_are_in_no_seeded_run_but_by_the_owners_switch() -> None:
    owned = replace(proposed(OperatorPolicy(), RUN, seed=7), owned=True)
    assert "seed = 7" in exposure(owned)
    assert "seed = 7" in exposure(proposed(OperatorPolicy(), RUN, seed=7))
    with pytest.raises(PolicyError, match=r"seed = 7: .*this edge's own; allow it with --allow-seed"):
        permit(OperatorPolicy(allow_unprotected=True), owned, budget_kept=False)
    permit(OperatorPolicy(allow_seed=True), owned, budget_kept=False)
    nothing = replace(proposed(OperatorPolicy(), None, seed=7), owned=True)  # no noise to subtract
    permit(OperatorPolicy(allow_unprotected=True), nothing, budget_kept=False)


@pytest.mark.parametrize("data_set", ["local", "file", "my.module:Records", "mnist", "breast-cancer"])
def test_files_and_classes_are_the_owners_and_a_known_name_is_public(data_set: str) -> None:
    assert is_owned(data_set) is (data_set not in ("mnist", "breast-cancer"))


def shard(index: int, cut: str = "iid K=5 seed=0", dataset: str = "d") -> ShardIdentity:
    return ShardIdentity(dataset, cut, index, disjoint=not cut.startswith("shared"))


CLAIMS = [
    # (mine, other) -> may both hold at once where neither, mine, the other's or both are under a budget
    (shard(0), shard(1), True),
    (shard(0), shard(0), False),
    (shard(0), shard(1, "iid K=2 seed=0"), False),
    (shard(0, "shared K=5 seed=0"), shard(1, "shared K=5 seed=0"), False),
    (shard(0), shard(1, "shared K=5 seed=0"), False),
    (shard(0), shard(0, dataset="e"), True),
]


@pytest.mark.parametrize(("mine", "other", "apart"), CLAIMS)
@pytest.mark.parametrize("budgets", [(False, False), (True, False), (False, True), (True, True)])
def test_under_a_budget_no_two_edges_hold_the_same_records(
    mine: ShardIdentity, other: ShardIdentity, apart: bool, budgets: tuple[bool, bool]
) -> None:
    claims = Claim("0", mine, budgets[0]), [Claim("3", other, budgets[1])]
    if apart or not any(budgets):
        check_claims(*claims)
        return
    with pytest.raises(PolicyError, match=r"shard 0 .*slot '3'.*--total-epsilon"):
        check_claims(*claims)


def test_code_is_run_only_where_it_was_allowed() -> None:
    check_code(OperatorPolicy(allowed=frozenset({"a.b:C"})), "model.name", "a.b:C")
    with pytest.raises(PolicyError, match=r"model.name = 'a.b:C'.*--allow a.b:C"):
        check_code(OperatorPolicy(), "model.name", "a.b:C")


# (data of this edge's own, the run's data.set) -> what the refusal says; None: permitted
OWN_DATA = [
    (None, "mnist-5k", None),
    (None, "package.module:Class", None),
    (None, "file", None),
    (None, "local", "take part with --data FILE"),
    ("default", "local", None),
    ("2026", "local", None),
    ("default", "mnist", "without --data, or in a run with data.set = 'local'"),
    ("default", "file", "data.set = 'file'"),
    ("default", "package.module:Class", "without --data"),
]


@pytest.mark.parametrize(("name", "of_run", "refusal"), OWN_DATA)
def test_an_edge_trains_on_its_own_records_exactly_where_it_brings_some(
    name: str | None, of_run: str, refusal: str | None
) -> None:
    policy = OperatorPolicy(data_name=name)
    if refusal is None:
        check_data(policy, of_run)
        return
    with pytest.raises(PolicyError, match=refusal):
        check_data(policy, of_run)


def test_data_of_one_name_are_the_same_records_whatever_k_and_of_two_names_they_are_not() -> None:
    one, other = OperatorPolicy(data_name="one"), OperatorPolicy(data_name="other")
    first = own_records(one, 0)
    assert first.overlaps(own_records(one, 0))
    assert first.overlaps(own_records(one, 3))
    assert not first.is_beside(own_records(one, 3))
    assert not first.overlaps(own_records(other, 0))
    assert not first.overlaps(SHARD)
