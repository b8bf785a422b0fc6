"""What an edge asks for in its hello, and whether it can follow the welcome."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from common.datasets.dataset import Dataset
from common.datasets.source import Source
from common.errors import LedgerUnavailableError, MapaError
from common.messages import Hello, Welcome
from common.quantities import EdgeId, RunId
from edge.conversation import (
    EXIT_FAILED,
    GivenUp,
    IdentityKept,
    IdentityRenewed,
    OtherShardHeld,
    Prepared,
    SayHello,
    WelcomeDeclined,
)
from edge.ledger import MOST_RELEASES, Ledger, OtherShardError
from edge.own_data import OwnData
from edge.policy import OperatorPolicy
from edge.preparation import Preparation, difference, prepare


@dataclass(slots=True)
class Joining:
    """An edge's terms in one run: those of the first welcome that it follows."""

    run: RunId
    policy: OperatorPolicy
    ledger: Ledger
    load: Callable[[Source], Dataset]
    own: OwnData | None = None  # records that this edge brings itself
    data_dir: Path | None = None  # where a model may find weights
    preparation: Preparation | None = None
    renewable: bool = True  # False: the id is the name of a user at the broker, and no other may be taken
    state_dir: Path = Path("state")  # where the operator finds this ledger
    _admission: Welcome | None = None  # the welcome that the preparation follows
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
            preparing=self.own is not None and self.preparation is None,
        )

    def follow(self, admission: Welcome) -> Prepared | OtherShardHeld | WelcomeDeclined | GivenUp:
        """Take what the first welcome deals; the later ones must deal the same."""
        if self._admission is not None:
            return self._compare(self._admission, admission)
        try:
            self.preparation = prepare(
                admission, self.run, self.policy, self.ledger, self.load, self.own, data_dir=self.data_dir
            )
        except OtherShardError as error:
            if self._wanted is not None:
                return WelcomeDeclined(str(error))
            self._wanted = error.held  # only a welcome tells which data it is about: now it can be asked for
            return OtherShardHeld()
        except LedgerUnavailableError as error:
            return GivenUp(EXIT_FAILED, str(error))
        except (MapaError, MemoryError) as error:  # one edge of a fleet turns it down, the others go on
            return WelcomeDeclined(str(error) or "not enough memory for what the welcome asks for")
        self._admission = admission
        return Prepared(
            rerouted=self.preparation.link is not None, slow=self._slow, announced=self.own is None
        )

    def renew(self, known: int) -> IdentityRenewed | IdentityKept:
        """Join as a newcomer: the old id has released `known` gradients, more than this ledger has.

        Not with a copy that has some of them, whose shard the newcomer would leave without charging the rest; nor
        under the operator's budget, which the missing ones count against wherever a record is in both shards.
        """
        account = self.ledger.account(self.run)
        if account is not None or not self.renewable or self._budgeted:
            return IdentityKept(self._behind(known, can_charge=account is not None))
        self.ledger.renew_identity()
        self.preparation = self._admission = self._wanted = None
        return IdentityRenewed()

    @property
    def _budgeted(self) -> bool:
        standings = self.ledger.standings()
        kept = any(standing.account.operator_budget is not None for standing in standings)
        return self.policy.budget is not None or kept

    def _behind(self, known: int, *, can_charge: bool) -> str:
        """Tell the operator what the cloud says, what it is worth, and what to do. Nothing is charged by itself."""
        held = self.ledger.last_sequence(self.run)
        said = (
            f"its ledger is lost or an older copy: it has {held} releases in run {self.run}, and the cloud says that"
            f" it has got {known}. Restore the newest copy"
        )
        if not self.renewable:
            said = (
                f"another host takes part as {self.edge_id}, or {said}. Two hosts cannot share one --accounts folder:"
                " give each of them the password files of its own edges alone"
            )
        if not can_charge:
            return f"{said}. This one has no account in that run, so what is missing cannot be charged to it"
        if known >= MOST_RELEASES:
            return f"{said}. No run has {known} releases: that word is forged or wrong, and cannot be charged"
        through = known + 1  # an edge has one gradient under way at a time: that one may have left, too
        words = ["mapa", "ledger", "charge", "--state", str(self.state_dir), "--run", self.run]
        command = shlex.join([*words, "--edge", self.edge_id, "--through", str(through)])
        return (
            f"{said}, or charge what is missing and start again:\n{command}\nThat is one more than the cloud has got,"
            " since one more may have left. Nothing was charged: the cloud's word is not authenticated, and whoever"
            " can write to the broker can send it. End whatever uses another copy of this ledger first"
        )

    def _compare(self, first: Welcome, later: Welcome) -> Prepared | WelcomeDeclined:
        """Go on under the first welcome's terms, or not at all: a cloud started anew may have dealt our shard again."""
        other = difference(first, later)
        if other:
            return WelcomeDeclined(
                f"the cloud now welcomes with {other}; an edge keeps the terms it began with"
            )
        return Prepared(slow=self._slow)

    @property
    def _slow(self) -> bool:
        device = None if self.preparation is None else self.preparation.device
        return device is not None and device.profile.is_slow

    def _index(self) -> int | None:
        """Return the shard to ask for: the one whose records this edge's account is of."""
        if self._wanted is not None:
            return self._wanted
        account = self.ledger.account(self.run)
        if account is None:
            spent = [standing.account for standing in self.ledger.standings() if standing.charges]
            account = spent[-1] if spent else None
        return None if account is None else account.shard.index
