"""Who may take part: what a hello gets, and which index; pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from cloud.terms import BelowFloorError, EdgeAccount
from common.errors import ConfigurationError
from common.messages import Hello, Refuse
from common.noise.law import NoiseLaw
from common.quantities import EdgeId

if TYPE_CHECKING:
    from cloud.server import CloudServer

_LIVES = 100  # of a run's name: an edge that comes with more releases than they can have is not believed
_REOPENINGS = 2  # of a stage by one edge: as a newcomer, and when it learns which shard its ledger is of


@dataclass(slots=True)
class Indices:
    """The indices 0 … K − 1, each held by one edge id at most."""

    edges: int  # K
    dealt: set[int] = field(default_factory=set)
    _unused: int = 0  # no index below is free

    def deal(self, asked: int | None, otherwise: int | None = None) -> int:
        """Return the index that is asked for where that is free, else what the edge has, or the first unused."""
        if asked is not None and 0 <= asked < self.edges and asked not in self.dealt:
            return asked
        if otherwise is not None:
            return otherwise
        while self._unused in self.dealt:
            self._unused += 1
        return self._unused

    def exchange(self, held: int, index: int) -> None:
        """Let an edge hold this index instead of the one that it holds, which may be the same."""
        self.dealt.discard(held)
        self._unused = min(self._unused, held)
        self.dealt.add(index)


@dataclass(frozen=True, slots=True)
class Admitted:
    """What a hello that is welcomed gets."""

    index: int  # k
    law: NoiseLaw | None
    moment: float  # v_k
    instead_of: EdgeId | None = None  # who held the index, and left without a release


def judged(server: CloudServer, hello: Hello) -> Admitted | Refuse | None:
    """Say what a hello gets, and change nothing that counts; None: no answer at all."""
    account, terms = server.edges.get(hello.edge_id), server.terms

    def refuse(reason: str, detail: str) -> Refuse:
        return Refuse(hello.edge_id, reason, detail, hello.nonce, hello.number, server.incarnation)

    if hello.incarnation != server.incarnation:
        return refuse("incarnation", "this hello is for another incarnation of the run")
    if server.halted is not None:
        return refuse("halted", f"{server.halted.reason} after {server.halted.updates} updates")
    if account is not None and account.has_heard(hello):
        return None
    vacant = None
    if account is None and len(server.edges) >= terms.edges:
        begun = server.schedule is not None
        vacant = next((one for one in server.edges.values() if one.is_vacant(begun=begun)), None)
        if vacant is None:
            return refuse("fleet-full", f"all {terms.edges} shards are assigned")
    most = _most_releases(account, terms.iterations)
    if hello.last_sequence > most:
        detail = (
            f"last_sequence = {hello.last_sequence}: must be at most {most} in a run of T = {terms.iterations};"
            " a run under another name begins at 0"
        )
        return refuse("mechanism", detail)
    # the process that speaks for the edge forgets nothing: what it has not debited another sent in its name
    other = account is not None and hello.nonce != account.nonce
    if account is not None and other and hello.last_sequence < account.last_sequence:
        detail = f"the ledger has {hello.last_sequence} releases, but {account.last_sequence} were applied"
        return replace(refuse("ledger-lost", detail), last_sequence=account.last_sequence)
    if vacant is not None:
        index = vacant.index
    elif account is None:
        index = server.indices.deal(hello.index)
    else:
        index = _redealt(server.indices, hello, account)
    try:
        law = terms.law(hello, index) if terms.private else None
        moment = 0.0 if law is None else terms.moment(law)
        _try_schedule(server, moment)
    except ConfigurationError as error:
        return refuse("epsilon-floor" if isinstance(error, BelowFloorError) else "mechanism", str(error))
    if account is not None and law != account.law and not _may_change(server, hello, account, moment):
        return refuse("mechanism", f"an edge must keep the noise law it started with: {account.law}")
    return Admitted(index, law, moment, None if vacant is None else vacant.edge_id)


def _most_releases(account: EdgeAccount | None, iterations: int) -> int:
    """Return how many releases an honest edge can have debited under the run's name, generously.

    Nobody can check what it says, and the run's statement of privacy counts it: one hello must not ruin that.
    """
    if account is None:
        return _LIVES * (iterations + 1)
    return account.earlier + 2 * (iterations + 1)  # in this life, with all that was refused or lost


def _redealt(indices: Indices, hello: Hello, account: EdgeAccount) -> int:
    """Return the index of an edge that is known: another free one if it asks for it before its first release here.

    Only a welcome names the data, so an edge may learn late that its ledger is of another shard of it.
    """
    stays = account.last_sequence or hello.index is None
    return account.index if stays else indices.deal(hello.index, account.index)


def _may_change(server: CloudServer, hello: Hello, account: EdgeAccount, moment: float) -> bool:
    """Tell whether a known edge may change its noise law: only before its first release, and only a few times.

    A larger v re-opens the stage; an edge that asked for it endlessly would keep every edge in that stage.
    """
    if account.last_sequence or hello.last_sequence:
        return False
    return server.schedule is None or moment <= server.moment or account.reopenings < _REOPENINGS


def _try_schedule(server: CloudServer, moment: float) -> None:
    """Raise ConfigurationError where v_k would leave no schedule: one edge's hello must not stop the cloud."""
    if server.schedule is None:
        server.begin(max(moment, server.moment))
    elif moment > server.moment:
        server.schedule.with_moment(moment, server.t)
