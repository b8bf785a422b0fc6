"""The gradient buffer: first in, first out, bounded, and no gradient twice."""

from __future__ import annotations

from collections import deque

from common.messages import GradientArrived
from common.quantities import EdgeId


class GradientFifo:
    """Gradients that arrived and wait for their update."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity = {capacity}: must be at least 1")
        self.capacity = capacity
        self._waiting: deque[GradientArrived] = deque()
        self._keys: set[tuple[EdgeId, int]] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def offer(self, arrived: GradientArrived) -> str | None:
        """Take a gradient; return None, or why it was refused: `duplicate` or `full`."""
        key = (arrived.edge_id, arrived.sequence)
        if key in self._keys:
            return "duplicate"
        if len(self._waiting) >= self.capacity:
            return "full"
        self._keys.add(key)
        self._waiting.append(arrived)
        return None

    def take(self) -> GradientArrived:
        """Remove and return the gradient that came first."""
        first = self._waiting.popleft()
        self._keys.remove((first.edge_id, first.sequence))
        return first
