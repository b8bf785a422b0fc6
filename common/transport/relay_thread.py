"""The thread that relays live in, with one asyncio loop for all of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, Generic, Protocol, Self, TypeVar

_PATIENCE = 30.0  # seconds for what is asked of the loop


class Relay(Protocol):
    async def shut(self) -> None:
        """Close the port and every connection."""


_T = TypeVar("_T")
_R = TypeVar("_R", bound=Relay)


class RelayThread(Generic[_R]):
    """One thread for all relays of a kind; its methods are called from another one."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._relays: list[_R] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def shut(self, relay: _R) -> None:
        """Close one relay."""
        self._relays.remove(relay)
        self._await(relay.shut())

    def close(self) -> None:
        """Close every relay and end the thread; a second close does nothing."""
        if self._loop.is_closed():
            return
        while self._relays:
            self.shut(self._relays[-1])
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _keep(self, opening: Coroutine[Any, Any, _R]) -> _R:
        """Wait for a relay to open; close it with the others."""
        relay = self._await(opening)
        self._relays.append(relay)
        return relay

    def _await(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=_PATIENCE)
