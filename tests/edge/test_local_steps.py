"""E noised steps on the edge, one message: what it holds, what it costs, and what a hostile x can do to it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud.admission import Restarts
from common.accounting.releases import Budget, ReleaseKind
from common.mechanism.mechanism import Mechanism
from common.mechanism.sampler import Sampler
from common.mechanism.work.local_steps import LocalSteps
from common.noise.gamma_norm import GammaNorm
from common.noise.gaussian import Gaussian
from common.noise.law import NoiseLaw
from common.quantities import EdgeId, RunId
from edge.ledger import Account, BudgetExhausted, Ledger, ShardIdentity
from edge.policy import OperatorPolicy, PolicyError, Proposal, permit
from tests.cloud_support import hello
from tests.edge.test_worker import X, sent, worker
from tests.mechanism_support import POISSON, SHUFFLED, WITH_REPLACEMENT, work_of

RUN, EDGE = RunId("lab"), EdgeId("edge-a")
SHARD = ShardIdentity("sha256:1", "iid K=5 seed=0", 0)


def kind(
    steps: int, sampling: Sampler = POISSON, batches: int = 3, law: NoiseLaw | None = None
) -> ReleaseKind:
    mechanism = Mechanism(None, 10, sampling, work=work_of(steps))
    return ReleaseKind(replace(mechanism, law=law or Gaussian(1.0)), 10 * batches)


@pytest.mark.parametrize("sampling", [POISSON, SHUFFLED, WITH_REPLACEMENT])
@pytest.mark.parametrize("regularization", [0.0, 0.3])
def test_a_message_is_the_way_of_its_steps_each_with_draws_of_its_own(
    sampling: Sampler, regularization: float
) -> None:
    steps, rate, sensitivity = 3, 0.25, 0.4
    gamma = np.float32(rate / (5 * sensitivity / 2))
    shared = {"sampler": sampling, "regularization": regularization}
    for n in (1, 2, 7):
        x = X
        for e in range(1, steps + 1):
            x = x - gamma * worker(**shared).gradient(x, sensitivity, (n - 1) * steps + e)
        message = worker(**shared, work=LocalSteps(steps=steps, rate=rate)).gradient(X, sensitivity, n)
        assert message.dtype == np.float32
        np.testing.assert_allclose(message, (X - x) / (steps * gamma), rtol=1e-4, atol=1e-4)


def test_one_step_is_the_gradient_to_the_last_bit() -> None:
    edge = worker(work=LocalSteps(steps=1), law=GammaNorm(0.5), regularization=0.1)
    made = [edge.receive(sent(version, 0.4)).gradient.tobytes() for version in range(1, 6)]
    plain = worker(law=GammaNorm(0.5), regularization=0.1)
    assert made == [plain._release(X, 0.4, n).tobytes() for n in range(1, 6)]


@pytest.mark.parametrize("scale", [1.0, 1e20, 3e38])
def test_a_step_that_would_leave_float32_is_not_taken(scale: float) -> None:
    """An edge that gave up there would tell of releases that it was never charged for."""
    x = np.full(6, scale, np.float32)
    edge = worker(work=LocalSteps(steps=8, rate=1e6), regularization=0.5)
    for n in range(1, 4):  # C = 1e-9, so γ_local = 1e15, and x grows by 5e14 with every step
        assert np.isfinite(edge.gradient(x, 4e-10, n)).all()


def test_the_first_release_alone_says_whether_the_run_diverges() -> None:
    x = np.full(6, 3e38, np.float32)
    edge = worker(work=LocalSteps(steps=4, rate=1.0), regularization=10.0)
    assert not np.isfinite(edge.gradient(x, 0.4, 1)).all()  # λx, whatever the records are


@given(
    steps=st.integers(1, 7),
    batches=st.integers(1, 5),
    sessions=st.lists(st.integers(0, 6), min_size=1, max_size=5),
    sampling=st.sampled_from([SHUFFLED, POISSON]),
)
def test_ledger_cloud_and_a_count_of_every_draw_agree(
    steps: int, batches: int, sessions: list[int], sampling: Sampler
) -> None:
    this, lives, ledger = kind(steps, sampling, batches), Restarts(), Ledger()
    drawn: set[tuple[int, int]] = set()
    for session, messages in enumerate(sessions):
        ledger.open(Account(run=RUN, shard=SHARD, kind=this))
        lives.welcomed(hello(EDGE, nonce=f"nonce-{session}", last_sequence=ledger.last_sequence(RUN)))
        for _ in range(messages):
            sequence = ledger.last_sequence(RUN) + 1
            ledger.debit(RUN, sequence, b"g")
            lives.welcomed(hello(EDGE, nonce=f"nonce-{session}", last_sequence=sequence))
            for draw in range((sequence - 1) * steps, sequence * steps):
                epoch = draw // batches if sampling == SHUFFLED else draw
                drawn.add((session, epoch))
    standing = ledger.standing(RUN)
    assert standing.charges == len(drawn)
    assert lives.charges(EDGE, this, standing.releases) == standing.charges
    if len(sessions) == 1:
        assert this.charges(standing.releases) == standing.charges


def test_a_budget_lets_no_message_go_of_which_one_step_would_pass_it() -> None:
    # with replacement a release costs ε·b/2 = 0.5: a budget of 4.9 covers nine releases, two messages of four
    law = GammaNorm(0.1)
    mechanism = Mechanism(None, 10, WITH_REPLACEMENT, work=work_of(4))
    ledger = Ledger()
    standing = ledger.open(
        Account(
            run=RUN, shard=SHARD, kind=ReleaseKind(replace(mechanism, law=law), 30), budget=Budget(4.9, 0.0)
        )
    )
    assert standing.cap == 9
    ledger.debit(RUN, 1, b"a")
    ledger.debit(RUN, 2, b"b")
    assert ledger.standing(RUN).exhausted
    with pytest.raises(BudgetExhausted, match="8 charges of 9"):
        ledger.debit(RUN, 3, b"c")
    assert ledger.standing(RUN).charges == 8
    assert ledger.charge(RUN, 4).charges == 16  # what others released, in full


def test_a_kind_without_local_steps_is_written_as_ever_and_read_with_one() -> None:
    assert "steps" not in kind(1).fields()
    assert ReleaseKind.of_fields(kind(1).fields()) == kind(1)
    assert ReleaseKind.of_fields(kind(5).fields()) == kind(5)
    assert kind(5) != kind(1)


def test_an_operator_permits_no_more_local_steps_than_said() -> None:
    proposal = Proposal(kind=kind(8), owned=False)
    permit(OperatorPolicy(), proposal, budget_kept=False)
    permit(OperatorPolicy(most_steps=8), proposal, budget_kept=False)
    with pytest.raises(PolicyError, match=r"local\.steps = 8: .*at most 7.*--most-local-steps 8"):
        permit(replace(OperatorPolicy(), most_steps=7), proposal, budget_kept=False)
