"""Where each process of an edge began to release, as its hellos say: with the shuffled sampler it counts."""

from __future__ import annotations

from dataclasses import dataclass, field

from common.accounting.releases import ReleaseKind
from common.quantities import EdgeId

_MOST = 10_000  # starts of one edge that are told apart; beyond, every release is its own epoch


@dataclass(slots=True)
class Life:
    """The starts of one edge id."""

    nonce: str  # of the process that was heard last
    begins: set[int]  # sequences that its processes found debited when they first said hello
    known: int = 0  # the highest sequence that a hello has named


@dataclass(slots=True)
class Lives:
    """The starts of all edges that were welcomed."""

    edges: dict[EdgeId, Life] = field(default_factory=dict)

    def welcomed(self, edge_id: EdgeId, nonce: str, last_sequence: int) -> None:
        """Note a hello that was answered with a welcome; a new nonce is a new process, with a new shuffle."""
        life = self.edges.get(edge_id)
        if life is None:
            life = self.edges[edge_id] = Life(nonce, {last_sequence})
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
        if life is None or not kind.mechanism.sampler.by_epoch:
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
