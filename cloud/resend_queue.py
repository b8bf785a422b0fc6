"""What the channel did not take, published again until it does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from common.transport.channel import Loop, Timer

_T = TypeVar("_T")
_AGAIN = 0.1  # seconds until what the channel did not take is published again


def _always() -> bool:
    return True


@dataclass(slots=True)
class Owed(Generic[_T]):
    """On each topic the newest alone: whoever waits for it has no use for an older one."""

    loop: Loop
    publish: Callable[[str, _T], bool]  # whether the channel took it
    ready: Callable[[], bool] = _always  # whether there is any use in trying again now
    waiting: dict[str, _T] = field(default_factory=dict)  # by topic
    _timer: Timer | None = None

    def send(self, topic: str, what: _T) -> None:
        if self.publish(topic, what):
            if self.waiting:
                self.waiting.pop(topic, None)  # an older one
            return
        self.waiting[topic] = what
        self._try_later()

    def _try_later(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(_AGAIN, self._try_again)

    def _try_again(self) -> None:
        self._timer = None
        if self.waiting and not self.ready():
            self._try_later()
            return
        for topic, what in list(self.waiting.items()):
            self.send(topic, what)
