"""The gradient buffer: first in, first out, bounded."""

from __future__ import annotations

from collections import deque

from common.messages import GradientArrived


class GradientFifo:
    """Gradients that arrived and wait for their update.

    It does not look for duplicates: the server refuses a sequence that was applied, and applies all that waits
    before it takes the next event.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity = {capacity}: must be at least 1")
        self.capacity = capacity
        self._waiting: deque[GradientArrived] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def offer(self, arrived: GradientArrived) -> str | None:
        """Take a gradient; return None, or why it was refused: `full`."""
        if len(self._waiting) >= self.capacity:
            return "full"
        self._waiting.append(arrived)
        return None

    def take(self) -> GradientArrived:
        """Remove and return the gradient that came first."""
        return self._waiting.popleft()
