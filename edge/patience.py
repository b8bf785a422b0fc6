"""How long an edge waits for an answer before it asks again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from common.transport.channel import Loop, Timer

_LONGEST_WAIT = 60.0  # seconds between two tries, at most
_MOST_DOUBLINGS = 1000  # 2¹⁰²⁴ is no float


@dataclass(slots=True)
class Patience:
    """A timer that waits twice as long each time that no answer comes.

    Every answer moves the time, not the timer: thousands of answers a second leave one timer, not thousands.
    """

    loop: Loop
    unanswered: Callable[[], None]
    first: float = 5.0  # seconds until the first try again
    tries: int = 0  # since the last answer
    _due: float = 0.0  # when an answer is overdue
    _timer: Timer | None = None

    def expect(self) -> None:
        """Wait for an answer from now on."""
        wait = min(self.first * 2 ** min(self.tries, _MOST_DOUBLINGS), _LONGEST_WAIT)
        self._due = self.loop.now() + wait
        if self._timer is not None and self._timer.due > self._due:
            self.end()
        if self._timer is None:
            self._timer = self.loop.call_later(wait, self._expire)

    @property
    def waiting(self) -> bool:
        """Whether an answer is waited for."""
        return self._timer is not None

    def end(self) -> None:
        """Wait for nothing any more."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None

    def _expire(self) -> None:
        left = self._due - self.loop.now()
        if left > 0:
            self._timer = self.loop.call_later(left, self._expire)
            return
        self._timer = None
        self.tries += 1
        self.unanswered()
