"""What an edge has heard of the cloud: who is there, and which halt is to be believed. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from common.messages import Halt, Presence


@dataclass(slots=True)
class CloudWatch:
    """The cloud's comings and goings, which anybody at the broker may have forged or replayed."""

    presence: Presence | None = None  # what was last heard
    incarnation: int | None = None  # that the cloud last named: a hello is meant for it
    online: int | None = None  # incarnation of the last cloud that said it was online
    halt: Halt | None = None  # heard, and neither believed nor disproved
    halt_after: int = 0  # number of the newest hello when it was heard

    def see(self, presence: Presence) -> bool:
        """Note a presence; tell whether a cloud is there that was not before."""
        before, self.presence = self.presence, presence
        self.incarnation = presence.incarnation
        if not presence.online:
            return False
        self.online = presence.incarnation
        return before is None or not before.online or before.nonce != presence.nonce

    def answered(self, number: int) -> None:
        """Note a welcome to this hello: where it was said after the halt was heard, the cloud still serves."""
        if number > self.halt_after:
            self.halt = None

    def forget_halt(self) -> None:
        self.halt, self.halt_after = None, 0

    @property
    def ended(self) -> bool:
        """Whether the last cloud heard of has said goodbye, and is the one that the halt is of."""
        cloud, halt = self.presence, self.halt
        if cloud is None or halt is None:
            return False
        return cloud.over and not cloud.online and cloud.incarnation == halt.incarnation

    def ended_for(self, incarnation: int | None) -> bool:
        """Tell whether the life of the run that an edge has a part in has ended; None: it has none yet.

        One that has heard of no cloud online may be earlier than its cloud: it waits before it believes.
        """
        if self.halt is None or not self.ended:
            return False
        ours = incarnation if incarnation is not None else self.online
        return ours is not None and ours == self.halt.incarnation
