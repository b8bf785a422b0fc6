"""Make a gradient, debit it, and only then let it leave."""

from __future__ import annotations

from dataclasses import dataclass

from common.errors import LedgerUnavailableError
from common.messages import ModelReceived
from common.quantities import RunId, is_finite
from common.wire.codec import encode_gradient, incarnation_of
from edge.conversation import EXIT_FAILED, BudgetSpent, GivenUp, GradientDebited
from edge.ledger import BudgetExhausted, Ledger
from edge.session import EdgeSession
from edge.worker import EdgeWorker


@dataclass(slots=True)
class Outbox:
    """The last gradient's bytes, until the cloud acknowledges them; the ledger keeps them too."""

    run: RunId
    ledger: Ledger
    _kept: tuple[int, bytes] | None = None  # sequence and bytes of the last debit

    def session(self) -> EdgeSession:
        """Begin the conversation where the ledger left off."""
        last = self.ledger.last_sequence(self.run)
        pending = self.ledger.pending(self.run)
        if not pending:
            return EdgeSession(last)
        sequence, payload = pending[-1]
        return EdgeSession(last, sequence, incarnation_of(payload))

    def make(
        self, worker: EdgeWorker, sequence: int, received: ModelReceived
    ) -> GradientDebited | BudgetSpent | GivenUp:
        """Make the gradient of this sequence and debit it; the model acknowledges all before it."""
        if sequence > 1:
            self.ledger.acknowledge(self.run, sequence - 1)
        worker.sequence = sequence - 1
        try:
            made = worker.receive(received)
        except MemoryError as error:
            return GivenUp(EXIT_FAILED, f"not enough memory for a gradient: {error}")
        # The codec refuses such a vector, too, from whomever it comes, as a bug that ends the process. Here it is the
        # run that diverges, and this edge alone ends.
        if not is_finite(made.gradient):
            return GivenUp(EXIT_FAILED, "the gradient is not finite: the run diverges")
        payload = encode_gradient(made)
        try:
            self.ledger.debit(self.run, sequence, payload)
        except BudgetExhausted:  # asked here alone: what was made for nothing is thrown away, once in a run
            account = self.ledger.account(self.run)
            cap = None if account is None else account.most_releases
            return BudgetSpent(cap if cap is not None and sequence > cap else None)
        except LedgerUnavailableError as error:  # a full disk: what is not debited does not leave
            return GivenUp(EXIT_FAILED, str(error))
        self._kept = (sequence, payload)
        return GradientDebited(sequence)

    def payload(self, sequence: int) -> bytes | None:
        """Return the bytes of this sequence; None where they are no longer kept."""
        if self._kept is None or self._kept[0] != sequence:
            payload = dict(self.ledger.pending(self.run)).get(sequence)
            self._kept = None if payload is None else (sequence, payload)
        return None if self._kept is None else self._kept[1]

    def drop(self, sequence: int) -> None:
        """Never send the bytes up to this sequence again; the debit stays."""
        self._kept = None
        self.ledger.acknowledge(self.run, sequence)

    def forget(self) -> None:
        """Keep nothing of the id before; the ledger has let go of it."""
        self._kept = None
