"""Starts of an edge's process, and the epochs that they begin."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cloud import admission
from cloud.admission import Restarts
from common.accounting.releases import ReleaseKind
from common.mechanism.mechanism import Mechanism
from common.mechanism.sampler import Sampler
from common.noise.gaussian import Gaussian
from common.quantities import EdgeId, RunId
from edge.ledger import Account, Ledger, ShardIdentity
from tests.cloud_support import hello
from tests.mechanism_support import POISSON, SHUFFLED

EDGE, RUN = EdgeId("edge-a"), RunId("r")


def kind(batches: int, sampling: Sampler = SHUFFLED) -> ReleaseKind:
    return ReleaseKind(Mechanism(Gaussian(1.0), 1, sampling), batches)


@given(batches=st.integers(1, 5), sessions=st.lists(st.integers(0, 7), min_size=1, max_size=6))
def test_the_cloud_counts_what_the_ledger_charges(batches: int, sessions: list[int]) -> None:
    lives, ledger, this = Restarts(), Ledger(), kind(batches)
    for number, releases in enumerate(sessions):
        ledger.open(Account(run=RUN, shard=ShardIdentity("d", "p", 0), kind=this))
        lives.welcomed(hello(EDGE, nonce=f"nonce-{number}", last_sequence=ledger.last_sequence(RUN)))
        for _ in range(releases):
            ledger.debit(RUN, ledger.last_sequence(RUN) + 1, b"g")
            lives.welcomed(
                hello(EDGE, nonce=f"nonce-{number}", last_sequence=ledger.last_sequence(RUN))
            )  # a hello again, no new start
    standing = ledger.standing(RUN)
    assert lives.charges(EDGE, this, standing.releases) == standing.charges


def test_releases_before_the_first_hello_are_an_epoch_each() -> None:
    lives = Restarts()
    lives.welcomed(hello(EDGE, nonce="a", last_sequence=7))
    assert lives.earlier(EDGE) == 7
    assert lives.charges(EDGE, kind(10), 8) == 8
    assert lives.charges(EDGE, kind(10), 7) == 7


def test_other_samplers_have_no_epochs_and_unknown_edges_no_starts() -> None:
    lives = Restarts()
    lives.welcomed(hello(EDGE, nonce="a", last_sequence=0))
    lives.welcomed(hello(EDGE, nonce="b", last_sequence=5))
    assert lives.charges(EDGE, kind(10, POISSON), 12) == 12
    assert Restarts().charges(EDGE, kind(10), 12) == 2


def test_starts_without_end_take_no_memory_without_end_and_are_never_counted_too_low() -> None:
    lives, most = Restarts(), admission._MOST_STARTS
    for start in range(most + 500):
        lives.welcomed(hello(EDGE, nonce=f"nonce-{start}", last_sequence=start))
    assert len(lives.edges[EDGE].begins) == most + 1
    assert lives.charges(EDGE, kind(10), most + 900) == most + 900
