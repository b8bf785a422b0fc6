"""Connection-level state of each edge: last seen, round trips, restarts, and how often it is answered."""

from __future__ import annotations

from dataclasses import dataclass, field

from common.accounting.releases import ReleaseKind
from common.quantities import EdgeId

_AT_ONCE = 16  # answers to one edge in a row
_OFTEN = 4  # times the rate at which an honest edge asks again: the rate of answers in the long run
_REMEMBERED = 4096  # edge ids that have asked lately


@dataclass(slots=True)
class Allowance:
    """Limits answers to messages that bring the training no further: hellos, and repeated gradients.

    Each is answered by a whole model, so one edge that repeats itself could keep the cloud busy. What is dropped
    counts as lost on the way: an honest edge asks again after `resend_after`, and is answered then.
    """

    resend_after: float  # seconds after which an honest edge asks again, at the earliest
    _until: dict[EdgeId, float] = field(default_factory=dict)  # when an edge will have all its answers back

    def grant(self, edge_id: EdgeId, now: float) -> bool:
        """Return whether an edge may be answered now, and charge it."""
        step = self.resend_after / _OFTEN
        until = max(self._until.get(edge_id, now), now)
        if until + step > now + _AT_ONCE * step:
            return False
        if len(self._until) >= _REMEMBERED:
            self._until = {known: end for known, end in self._until.items() if end > now}
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
    """One peer for each edge that was welcomed, so never more than the run has shards.

    A refused hello makes none and replaces none: a client that poses as an edge must not make the cloud deaf to that
    edge's own leave.
    """

    def welcomed(self, edge_id: EdgeId, nonce: str, now: float, model_topic: str) -> Peer | None:
        """Note a welcomed hello; return the peer that it replaces, another process that has not said goodbye."""
        known = self.get(edge_id)
        if known is not None and known.nonce == nonce:
            known.seen = now
            return None
        self[edge_id] = peer = Peer(nonce, now, model_topic)
        if known is None or not known.left:
            return known
        peer.turnarounds, peer.turnaround_sum = known.turnarounds, known.turnaround_sum
        return None

    def leaves(self, edge_id: EdgeId, nonce: str) -> None:
        """Note that a process goes on purpose."""
        known = self.get(edge_id)
        if known is not None and known.nonce == nonce:
            known.left = True

    def silent_since(self, moment: float) -> list[EdgeId]:
        return [edge_id for edge_id, peer in self.items() if peer.seen <= moment]


_MOST = 10_000  # starts of one edge that are kept; beyond, every release counts as an epoch of its own


@dataclass(slots=True)
class EdgeRestarts:
    """The starts of one edge id."""

    nonce: str  # of the process that was heard last
    begins: set[int]  # sequences that its processes found debited when they first said hello
    known: int = 0  # the highest sequence that a hello has named


@dataclass(slots=True)
class Restarts:
    """The starts of all welcomed edges; under shuffled sampling each begins a new epoch, which costs privacy."""

    edges: dict[EdgeId, EdgeRestarts] = field(default_factory=dict)

    def welcomed(self, edge_id: EdgeId, nonce: str, last_sequence: int) -> None:
        """Note a hello that was welcomed; a new nonce is a new process, with a new shuffle."""
        edge = self.edges.get(edge_id)
        if edge is None:
            edge = self.edges[edge_id] = EdgeRestarts(nonce, {last_sequence})
        elif nonce != edge.nonce:
            edge.nonce = nonce
            if len(edge.begins) <= _MOST:
                edge.begins.add(last_sequence)
        edge.known = max(edge.known, last_sequence)

    def known(self, edge_id: EdgeId) -> int:
        """Return the highest sequence that the edge says it has debited."""
        return self.edges[edge_id].known if edge_id in self.edges else 0

    def earlier(self, edge_id: EdgeId) -> int:
        """Return how many releases there were before this cloud first heard of the edge."""
        return min(self.edges[edge_id].begins) if edge_id in self.edges else 0

    def charges(self, edge_id: EdgeId, kind: ReleaseKind, messages: int) -> int:
        """Return an upper bound of what the edge's ledger has charged for its messages.

        The starts before the first hello are unknown, so each release before it counts as an epoch of its own.
        """
        edge = self.edges.get(edge_id)
        if not kind.mechanism.sampler.by_epoch or edge is None:
            return kind.charges(messages)
        steps = kind.mechanism.steps
        begins = sorted(begin for begin in edge.begins if begin < messages)
        if not begins or len(edge.begins) > _MOST:
            return messages * steps
        charges = begins[0] * steps
        for begin, end in zip(begins, [*begins[1:], messages], strict=True):
            charges += kind.charges_between(begin, end)
        return charges
