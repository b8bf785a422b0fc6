"""What an edge asks for in its hello, and whether it can follow the welcome."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from common.datasets.dataset import Dataset
from common.errors import MapaError
from common.messages import Hello
from common.quantities import EdgeId, RunId
from common.wire.codec import Admission
from edge.conversation import (
    IdentityKept,
    IdentityRenewed,
    OtherShardHeld,
    Prepared,
    SayHello,
    WelcomeDeclined,
)
from edge.ledger import Ledger, OtherShardError
from edge.policy import OperatorPolicy
from edge.preparation import Preparation, difference, prepare


@dataclass(slots=True)
class Joining:
    """An edge's terms in one run: those of the first welcome that it follows."""

    run: RunId
    policy: OperatorPolicy
    ledger: Ledger
    load: Callable[[str], Dataset]
    data_dir: Path | None = None
    preparation: Preparation | None = None
    renewable: bool = True  # False: the id is the name of a user at the broker, and no other may be taken
    _admission: Admission | None = None  # the welcome that the preparation follows
    _wanted: int | None = None  # the shard that the ledger holds of the run's cut

    @property
    def edge_id(self) -> EdgeId:
        return self.ledger.edge_id

    def hello(self, effect: SayHello, nonce: str) -> Hello:
        return Hello(
            edge_id=self.edge_id,
            noise=self.policy.law,
            parameters=self.policy.parameters,
            last_sequence=effect.last_sequence,
            index=self._index(),
            nonce=nonce,
            number=effect.number,
            incarnation=effect.incarnation,
        )

    def follow(self, admission: Admission) -> Prepared | OtherShardHeld | WelcomeDeclined:
        """Take what the first welcome deals; the later ones must deal the same."""
        if self._admission is not None:
            return self._compare(self._admission, admission)
        try:
            self.preparation = prepare(
                admission, self.run, self.policy, self.ledger, self.load, self.data_dir
            )
        except OtherShardError as error:
            if self._wanted is not None:
                return WelcomeDeclined(str(error))
            self._wanted = error.held  # only a welcome tells which data it is about: now it can be asked for
            return OtherShardHeld()
        except (MapaError, MemoryError) as error:  # one edge of a fleet turns it down, the others go on
            return WelcomeDeclined(str(error) or "not enough memory for what the welcome asks for")
        self._admission = admission
        return Prepared(rerouted=self.preparation.link is not None)

    def renew(self, detail: str) -> IdentityRenewed | IdentityKept:
        """Join as a newcomer: the old id has debts that this ledger does not know.

        Not with a copy that knows some of them, whose shard the newcomer would leave without charging the rest.
        """
        if not self.renewable or self.ledger.account(self.run) is not None:
            return IdentityKept(f"its ledger is lost or an older copy ({detail}); restore the newest one")
        self.ledger.renew_identity()
        self.preparation = self._admission = self._wanted = None
        return IdentityRenewed()

    def _compare(self, first: Admission, later: Admission) -> Prepared | WelcomeDeclined:
        """Go on under the first welcome's terms, or not at all: a cloud started anew may have dealt our shard again."""
        other = difference(first, later)
        if other:
            return WelcomeDeclined(
                f"the cloud now welcomes with {other}; an edge keeps the terms it began with"
            )
        return Prepared()

    def _index(self) -> int | None:
        """Return the shard to ask for: the one whose records this edge's account is of."""
        if self._wanted is not None:
            return self._wanted
        account = self.ledger.account(self.run)
        if account is None:
            spent = [standing.account for standing in self.ledger.standings() if standing.charges]
            account = spent[-1] if spent else None
        return None if account is None else account.shard.index
