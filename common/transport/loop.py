"""One thread that serves sockets, timers and posted calls; any number of channels may share it.

paho's own loop sleeps in select(2), which fails beyond 1,024 open files; hundreds of edges with
their relays in one program pass that.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Self

from common.errors import LocalProtocolError
from common.transport.channel import Timer, TimerQueue

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
OnReady = Callable[[int], None]


class SelectorLoop:
    """The `Loop` of real time; `run` serves in the caller's thread."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers = TimerQueue()
        self._posted: deque[Callable[[], None]] = deque()
        self._waker, self._wakened = socket.socketpair()
        self._waker.setblocking(False)
        self._wakened.setblocking(False)
        self._selector.register(self._wakened, READ, self._woken)
        self._stopping = False
        self._asleep = False  # or about to be, with a look at what was posted still to come
        self._server: int | None = None  # the thread that serves now

    def now(self) -> float:
        return time.monotonic()

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        return self._timers.add(time.monotonic() + delay, callback)

    def post(self, callback: Callable[[], None]) -> None:
        self._posted.append(callback)
        if self._asleep:  # else it looks before it sleeps: in this order on both sides, none is missed
            with contextlib.suppress(
                BlockingIOError, OSError
            ):  # full: it is awake; closed: the loop has ended
                self._waker.send(b"\0")

    @property
    def here(self) -> bool:
        """Whether this is the thread that serves now."""
        return self._server == threading.get_ident()

    def run(self) -> None:
        self.serve(lambda: self._stopping)

    def stop(self) -> None:
        """Make `run` return, now or when it is called; from any thread and from signal handlers."""
        self._stopping = True
        self.post(lambda: None)

    def serve(self, done: Callable[[], bool], *, until: float | None = None) -> bool:
        if self._server is not None:
            raise LocalProtocolError("the loop is already running")
        self._server = threading.get_ident()
        try:
            while not (finished := done()) and (until is None or time.monotonic() < until):
                self._tick(until)
            return finished
        finally:
            self._server = None

    def _tick(self, until: float | None) -> None:
        due = self._timers.next_due()
        if until is not None:
            due = until if due is None else min(due, until)
        wait = None if due is None else max(0.0, due - time.monotonic())
        self._asleep = True  # first: a signal or a thread may post at any moment
        ready = self._selector.select(0.0 if self._posted else wait)
        self._asleep = False
        for key, mask in ready:
            key.data(mask)
        while self._posted:
            self._posted.popleft()()
        if due is not None:
            now = time.monotonic()
            while (due := self._timers.next_due()) is not None and due <= now:
                self._timers.fire_next()

    def watch(self, descriptor: int, mask: int, on_ready: OnReady) -> None:
        """Call on_ready(mask) when a descriptor is ready; in the loop's thread, or before it serves."""
        self._selector.register(descriptor, mask, on_ready)

    def rewatch(self, descriptor: int, mask: int, on_ready: OnReady) -> None:
        self._selector.modify(descriptor, mask, on_ready)

    def unwatch(self, descriptor: int) -> None:
        """Forget a descriptor; before it is closed."""
        with contextlib.suppress(KeyError):
            self._selector.unregister(descriptor)

    def close(self) -> None:
        """Free the loop's own sockets."""
        self._selector.close()
        self._waker.close()
        self._wakened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _woken(self, _mask: int) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wakened.recv(4096)
