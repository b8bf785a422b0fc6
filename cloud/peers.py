"""What the wire knows of each edge, beside what the server knows of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from common.accounting.releases import ReleaseKind
from common.noise.mechanism import Sampling
from common.quantities import EdgeId

_AT_ONCE = 16  # answers that an edge gets one after the other
_OFTEN = 4  # times as often as an honest edge asks again an answer is given on and on
_REMEMBERED = 4096  # edge ids that have asked of late


@dataclass(slots=True)
class Allowance:
    """Answers to what brings the training no further: hellos, and gradients that came before.

    Each is answered by a whole model, so one edge that repeats itself could keep the cloud busy for all. What is
    dropped counts as lost on the way: an honest edge asks again after `resend_after`, and is answered then.
    """

    resend_after: float  # seconds after which an honest edge asks again, at the earliest
    _until: dict[EdgeId, float] = field(default_factory=dict)  # when an edge will have all its answers back

    def grant(self, edge_id: EdgeId, now: float) -> bool:
        """Tell whether an edge may be answered now, and charge it."""
        step = self.resend_after / _OFTEN
        until = max(self._until.get(edge_id, now), now)
        if until + step > now + _AT_ONCE * step:
            return False
        if len(self._until) >= _REMEMBERED:
            self._until = {one: end for one, end in self._until.items() if end > now}
        if len(self._until) < _REMEMBERED or edge_id in self._until:
            self._until[edge_id] = until + step
        return True


@dataclass(slots=True)
class Peer:
    """The process that speaks for one edge id."""

    nonce: str  # of its process
    seen: float  # when it last said anything
    model_topic: str
    sent: float = 0.0  # when a model was last sent to it
    turnarounds: int = 0
    turnaround_sum: float = 0.0  # seconds from a model's sending to the gradient's arrival
    left: bool = False  # it has said that it goes: another process of this id is no duplicate


class Peers(dict[EdgeId, Peer]):
    """One contact for each edge that was welcomed, so never more than the run has shards.

    A hello that was refused makes none and replaces none: whoever posed as an edge must not be able
    to make the cloud deaf to that edge's own leave.
    """

    def welcomed(self, edge_id: EdgeId, nonce: str, now: float, model_topic: str) -> Peer | None:
        """Note a welcomed hello; return the contact of another process, not gone, that it takes the place of."""
        known = self.get(edge_id)
        if known is not None and known.nonce == nonce:
            known.seen = now
            return None
        self[edge_id] = contact = Peer(nonce, now, model_topic)
        if known is None or not known.left:
            return known
        contact.turnarounds, contact.turnaround_sum = known.turnarounds, known.turnaround_sum
        return None

    def leaves(self, edge_id: EdgeId, nonce: str) -> None:
        """Note that a process goes on purpose."""
        known = self.get(edge_id)
        if known is not None and known.nonce == nonce:
            known.left = True

    def silent_since(self, moment: float) -> list[EdgeId]:
        """Return the edges that have been silent since this time."""
        return [edge_id for edge_id, contact in self.items() if contact.seen <= moment]


_MOST = 10_000  # starts of one edge that are told apart; beyond, every release is its own epoch


@dataclass(slots=True)
class EdgeRestarts:
    """The starts of one edge id."""

    nonce: str  # of the process that was heard last
    begins: set[int]  # sequences that its processes found debited when they first said hello
    known: int = 0  # the highest sequence that a hello has named


@dataclass(slots=True)
class Restarts:
    """The starts of all edges that were welcomed."""

    edges: dict[EdgeId, EdgeRestarts] = field(default_factory=dict)

    def welcomed(self, edge_id: EdgeId, nonce: str, last_sequence: int) -> None:
        """Note a hello that was answered with a welcome; a new nonce is a new process, with a new shuffle."""
        life = self.edges.get(edge_id)
        if life is None:
            life = self.edges[edge_id] = EdgeRestarts(nonce, {last_sequence})
        elif nonce != life.nonce:
            life.nonce = nonce
            if len(life.begins) <= _MOST:
                life.begins.add(last_sequence)
        life.known = max(life.known, last_sequence)

    def known(self, edge_id: EdgeId) -> int:
        """Return the highest sequence that the edge says it has debited."""
        life = self.edges.get(edge_id)
        return 0 if life is None else life.known

    def earlier(self, edge_id: EdgeId) -> int:
        """Return how many releases there were before this cloud first heard of the edge."""
        life = self.edges.get(edge_id)
        return 0 if life is None else min(life.begins)

    def charges(self, edge_id: EdgeId, kind: ReleaseKind, messages: int) -> int:
        """Return at least what the edge's ledger has charged for so many messages.

        Every start begins a new epoch. Of messages before the first hello nobody here knows the starts, so
        each of their releases counts as an epoch of its own.
        """
        life = self.edges.get(edge_id)
        if kind.mechanism.sampling is not Sampling.SHUFFLED or life is None:
            return kind.charges(messages)
        steps = kind.mechanism.steps
        if len(life.begins) > _MOST:
            return messages * steps
        begins = sorted(begin for begin in life.begins if begin < messages)
        if not begins:
            return messages * steps
        charges = begins[0] * steps
        for begin, end in zip(begins, [*begins[1:], messages], strict=True):
            charges += kind.charges_between(begin, end)
        return charges
