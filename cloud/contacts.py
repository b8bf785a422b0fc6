"""What the wire knows of each edge, beside what the server knows of it."""

from __future__ import annotations

from dataclasses import dataclass

from common.quantities import EdgeId


@dataclass(slots=True)
class Contact:
    """The process that speaks for one edge id."""

    nonce: str  # of its process
    seen: float  # when it last said anything
    model_topic: str
    sent: float = 0.0  # when a model was last sent to it
    turnarounds: int = 0
    turnaround_sum: float = 0.0  # seconds from a model's sending to the gradient's arrival
    left: bool = False  # it has said that it goes: another process of this id is no duplicate


class Contacts(dict[EdgeId, Contact]):
    """One contact for each edge that was welcomed, so never more than the run has shards.

    A hello that was refused makes none and replaces none: whoever posed as an edge must not be able
    to make the cloud deaf to that edge's own leave.
    """

    def welcomed(self, edge_id: EdgeId, nonce: str, now: float, model_topic: str) -> Contact | None:
        """Note a welcomed hello; return the contact of another process, not gone, that it takes the place of."""
        known = self.get(edge_id)
        if known is not None and known.nonce == nonce:
            known.seen = now
            return None
        self[edge_id] = contact = Contact(nonce, now, model_topic)
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
