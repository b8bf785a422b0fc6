"""Resend queue: publish again what the channel did not take, the newest message of each topic alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from common.transport.channel import Loop, Timer

_T = TypeVar("_T")
_RETRY = 0.1  # seconds between two tries


@dataclass(slots=True)
class ResendQueue(Generic[_T]):
    """Messages that wait, by topic; an older one of the same topic is of no use to its reader."""

    loop: Loop
    publish: Callable[[str, _T], bool]  # whether the channel took it
    ready: Callable[[], bool] = lambda: True  # whether a try can succeed now
    waiting: dict[str, _T] = field(default_factory=dict)
    _timer: Timer | None = None

    def send(self, topic: str, message: _T) -> None:
        """Publish now, or as soon as the channel takes it."""
        if self.publish(topic, message):
            self.forget(topic)
        else:
            self.add(topic, message)

    def add(self, topic: str, message: _T) -> None:
        """Publish later, in place of what waits for the topic."""
        self.waiting[topic] = message
        if self._timer is None:
            self._timer = self.loop.call_later(_RETRY, self._retry)

    def forget(self, topic: str) -> None:
        self.waiting.pop(topic, None)

    def _retry(self) -> None:
        self._timer = None
        if self.waiting and not self.ready():
            self._timer = self.loop.call_later(_RETRY, self._retry)
            return
        for topic, message in list(self.waiting.items()):
            self.send(topic, message)
