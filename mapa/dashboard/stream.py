"""Runs followed for all viewers: each is read and encoded once, and sent as server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from mapa.dashboard.watch import Watch

PERIOD = 0.4  # seconds between two looks, and at least between two messages to a viewer
KEEP_ALIVE = 15.0  # seconds of silence after which a comment tells that the stream still is one
KEPT = 8  # runs without a viewer that are kept, for one who comes back
MOST_VIEWERS = 64


@dataclass(slots=True, eq=False)
class Followed:
    """A run, and the tasks that read it while somebody watches."""

    watch: Watch
    viewers: int = 0
    ended: bool = False  # the server stops: no message follows
    ready: asyncio.Event = field(default_factory=asyncio.Event)  # its sections are there
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # one task at a time has the watch
    held: threading.Lock = field(default_factory=threading.Lock)  # and one thread

    async def look(self) -> None:
        """Read what is new, to the end of what was there."""
        before = self.watch.version
        async with self.lock:
            await asyncio.to_thread(self._look)
        self.ready.set()
        if self.watch.version != before:
            async with self.changed:
                self.changed.notify_all()

    def _look(self) -> None:
        with self.held:  # a thread of a viewer that has left may still be at it
            self.watch.read()
            self.watch.refresh()

    async def follow(self) -> None:
        try:
            while True:
                await self.look()
                await asyncio.sleep(0 if self.watch.behind else PERIOD)
        finally:
            self.ready.set()  # a viewer that waits learns from this task what failed

    async def account(self) -> None:
        """Compute what ε is missing, one at a time, beside the reading."""
        await self.ready.wait()
        while True:
            async with self.lock:
                missing = None if self.watch.behind else next(self.watch.unaccounted(), None)
            if missing is None:  # or what is on record is still being read: that comes first
                await asyncio.sleep(5 * PERIOD)
            else:
                await asyncio.to_thread(self.watch.account, *missing)


@dataclass(slots=True)
class Following:
    """All runs that are watched, or were a moment ago."""

    runs: OrderedDict[Path, Followed] = field(default_factory=OrderedDict)

    @property
    def viewers(self) -> int:
        return sum(run.viewers for run in self.runs.values())

    @contextlib.asynccontextmanager
    async def watching(self, path: Path) -> AsyncIterator[Followed]:
        """Follow a run as long as the context is open; its sections are there when it opens."""
        run = self.runs.setdefault(path, Followed(Watch(path)))
        self.runs.move_to_end(path)
        run.viewers += 1
        if run.viewers == 1:
            run.tasks = [asyncio.create_task(run.follow()), asyncio.create_task(run.account())]
        try:
            await run.ready.wait()
            yield run
        finally:
            run.viewers -= 1
            if not run.viewers:
                await _end(run.tasks)
                self._forget()

    async def end(self) -> None:
        """Let every stream come to its end: none does by itself, and a server that stops waits for them."""
        for run in list(self.runs.values()):
            run.ended = True
            async with run.changed:
                run.changed.notify_all()

    async def close(self) -> None:
        for run in self.runs.values():
            await _end(run.tasks)

    def _forget(self) -> None:
        idle = [path for path, run in self.runs.items() if not run.viewers]
        for path in idle[: max(0, len(idle) - KEPT)]:
            del self.runs[path]


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    ended, tasks[:] = list(tasks), []
    for task in ended:
        task.cancel()
    await asyncio.gather(*ended, return_exceptions=True)


async def messages(run: Followed) -> AsyncIterator[str]:
    """Yield the sections of a run, then those that change, as server-sent events."""
    seen = -1
    while not run.ended:
        for task in run.tasks:
            if task.done():
                task.result()  # its error ends the stream, and the page asks again
        async with run.lock:
            text, version = run.watch.changed_since(seen), run.watch.version
        if text:
            seen = version
            yield f"data: {text}\n\n"
            await asyncio.sleep(PERIOD)
            continue
        try:
            async with asyncio.timeout(KEEP_ALIVE), run.changed:
                if (
                    run.watch.version == version and not run.ended
                ):  # else it changed since the lock was let go
                    await run.changed.wait()
        except TimeoutError:
            yield ": still here\n\n"
