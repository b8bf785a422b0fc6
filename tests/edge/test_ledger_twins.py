"""Whatever is asked of them, the ledger in memory and the one on disk answer alike."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from common.accounting.releases import Budget, ReleaseKind
from common.errors import MapaError
from common.mechanism.mechanism import Mechanism
from common.noise.gamma_norm import GammaNorm
from common.quantities import RunId
from edge.ledger import Account, Ledger, ShardIdentity
from edge.sqlite_ledger import SqliteLedger
from tests.mechanism_support import POISSON, SHUFFLED

RUNS = [RunId("a"), RunId("b"), RunId("c")]
KINDS = [ReleaseKind(Mechanism(GammaNorm(1.0), 5, sampling), 10) for sampling in (POISSON, SHUFFLED)]


class Twins(RuleBasedStateMachine):
    """Every answer, an error's type among them, is compared."""

    @initialize()
    def begin(self) -> None:
        self.directory = Path(tempfile.mkdtemp())
        self.disk = SqliteLedger(self.directory)
        self.memory = Ledger(self.disk.edge_id)

    def teardown(self) -> None:
        if hasattr(self, "disk"):
            self.disk.close()
            shutil.rmtree(self.directory)

    def both(self, question: Callable[[Ledger], object]) -> None:
        answers: list[object] = []
        for ledger in (self.memory, self.disk):
            try:
                answers.append(question(ledger))
            except MapaError as error:
                answers.append((type(error), str(error)))
        assert answers[0] == answers[1]

    @rule(
        run=st.sampled_from(RUNS),
        index=st.integers(0, 1),
        this=st.sampled_from(KINDS),
        budget=st.sampled_from([None, Budget(2.0, 0.0), Budget(5.0, 0.0)]),
        own=st.booleans(),
        reproducible=st.booleans(),
        anew=st.booleans(),
    )
    def open(
        self,
        run: RunId,
        index: int,
        this: ReleaseKind,
        budget: Budget | None,
        own: bool,
        reproducible: bool,
        anew: bool,
    ) -> None:
        shard = ShardIdentity("d", "p", index)
        account = Account(
            run=run, shard=shard, kind=this, budget=budget, own_budget=own, reproducible=reproducible
        )
        self.both(lambda ledger: ledger.open(account, replace_budget=anew))

    @rule(run=st.sampled_from(RUNS), payload=st.binary(max_size=9), jump=st.sampled_from([1, 1, 1, 1, 0, 2]))
    def debit(self, run: RunId, payload: bytes, jump: int) -> None:
        self.both(lambda ledger: ledger.debit(run, ledger.last_sequence(run) + jump, payload))

    @rule(run=st.sampled_from(RUNS), sequence=st.integers(0, 8))
    def acknowledge(self, run: RunId, sequence: int) -> None:
        self.both(lambda ledger: ledger.acknowledge(run, sequence))

    @rule(run=st.sampled_from(RUNS))
    def restart(self, run: RunId) -> None:
        """The disk's session ends, and so must the memory's."""
        self.disk.close()
        self.memory.close()
        self.disk = SqliteLedger(self.directory)
        if (account := self.memory.account(run)) is not None:
            self.both(lambda ledger: ledger.open(account))

    @invariant()
    def same_books(self) -> None:
        for run in RUNS:
            self.both(lambda ledger, run=run: (ledger.last_sequence(run), ledger.pending(run)))
            self.both(lambda ledger, run=run: ledger.account(run))
        spent = [[(s.releases, s.charges) for s in ledger.standings()] for ledger in (self.memory, self.disk)]
        assert spent[0] == spent[1]


TestTwins = Twins.TestCase
TestTwins.settings = settings(
    max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
