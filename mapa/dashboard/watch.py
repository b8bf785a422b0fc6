"""Runs as their pages show them: read on as they grow, counted and encoded once, told to all viewers of the stream."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.accounting.releases import ReleaseKind
from common.records.reader import EventTail, JsonFile
from mapa import output
from mapa.dashboard import sections
from mapa.dashboard.folder import page_state
from mapa.dashboard.page_tally import PageTally
from mapa.dashboard.sections import Page
from mapa.dashboard.spending import Question, SpentOnPage

_LISTED = 50  # events in one answer
PERIOD = 0.4  # seconds between two looks, and at least between two messages to a viewer
KEEP_ALIVE = 15.0  # seconds of silence after which a comment tells that the stream still is one
KEPT = 8  # runs without a viewer that are kept, for one who comes back
MOST_VIEWERS = 64


class Watch:
    """A run that is looked at. Its methods are called by one thread at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.gathered = PageTally()
        self.version = 0  # goes up when a section has changed
        self.encoded: dict[str, tuple[int, str]] = {}  # by section: version and JSON
        self._spent = SpentOnPage()
        self._failed: list[str] = []  # sections that the records broke, and how
        self._tail = EventTail(path / "events.jsonl")
        self._manifest = JsonFile(path / "manifest.json")
        self._summary = JsonFile(path / "summary.json")
        self._audit = JsonFile(path / "audit.json")

    @property
    def behind(self) -> bool:
        """Whether more is on disk than was read."""
        return self._tail.behind

    @property
    def _page(self) -> Page:
        summary = self._summary.value
        state = page_state(self.path, summary, self.gathered.tally.halted)
        return Page(self.path.name, state, self.gathered, self._manifest.value, summary)

    def read(self) -> None:
        """Take what was written since the last time, at most one chunk.

        The summary first: it is written after the events, so that who sees it sees all of them.
        """
        self._summary.look()
        replaced, records = self._tail.look()
        if replaced:  # what was counted is no longer on record
            self.gathered = PageTally()
        self.gathered.take(records)

    def refresh(self) -> None:
        """Encode every section again; the version of one that has not changed stays."""
        self._manifest.look()
        summary = self._summary.value
        if summary and not self.gathered.number and not self.gathered.metrics:
            sections.from_summary(self.gathered, summary)
        page, audit = self._page, sections.audited(self._audit.look())
        makers: dict[str, Callable[[Page], dict[str, Any]]] = {
            "fleet": lambda page: self._spent.added_to(sections.fleet(page), page),
            "training": sections.training,
            "staleness": sections.staleness,
            "privacy": lambda page: {**self._spent.section(page), "audit": audit},
            "traffic": sections.traffic,
            "events": lambda page: {
                "number": page.counted.number,
                "seen": dict(sorted(page.counted.seen.items())),
            },
            "head": self._head,  # the last: it tells which failed
        }
        self._failed.clear()
        for name, make in makers.items():
            text = self._made(name, make, page)
            if name not in self.encoded or self.encoded[name][1] != text:
                self.version += 1
                self.encoded[name] = (self.version, text)

    def _made(self, name: str, make: Callable[[Page], dict[str, Any]], page: Page) -> str:
        """Return a section as JSON; an empty one where untrusted records break it: the others are shown."""
        try:
            return _encoded(make(page))
        except Exception as error:
            self._failed.append(f"{name}: {output.unexpected(error)}")
            return _encoded(make(Page(page.run)))

    def _head(self, page: Page) -> dict[str, Any]:
        head = sections.head(page)
        unreadable = head["unreadable"] + self._tail.unreadable
        return {**head, "unreadable": unreadable, "behind": self.behind, "failed": list(self._failed)}

    def changed_since(self, version: int) -> str:
        """Return the sections that have changed since a version, as JSON; '' where none has."""
        new = [f'"{name}":{text}' for name, (at, text) in self.encoded.items() if at > version]
        return f'{{"version":{self.version},{",".join(new)}}}' if new else ""

    def unaccounted(self) -> Iterator[Question]:
        """Yield what of ε is not computed yet, the most needed first."""
        return self._spent.unaccounted(self._page)

    def account(self, kind: ReleaseKind, releases: int | None) -> None:
        """Answer one of these; parts of a second."""
        self._spent.account(self._page, kind, releases)

    def listed(self, *, event: str = "", edge: str = "", text: str = "", before: int = 0) -> dict[str, Any]:
        """Return the newest events that fit, newest first; only the last updates and other events are kept."""
        gathered = self.gathered
        kept = sorted([*gathered.events, *gathered.last_updates], key=lambda one: one[0], reverse=True)
        found = [
            {"number": number, **sections.plain(record)}
            for number, record in kept
            if (not before or number < before)
            and (not event or record.get("event") == event)
            and (not edge or edge in (str(record.get("edge")), record.get("edge_id")))
            and (not text or text.lower() in json.dumps(record, ensure_ascii=False).lower())
        ]
        return {"events": found[:_LISTED], "more": len(found) > _LISTED, "total": gathered.number}


def _encoded(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


# -- for all viewers ----------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Followed:
    """A run, and the tasks that read it while a viewer is there."""

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

    async def close(self) -> None:
        ended, self.tasks = self.tasks, []
        for task in ended:
            task.cancel()
        await asyncio.gather(*ended, return_exceptions=True)

    async def messages(self) -> AsyncIterator[str]:
        """Yield the sections, then those that change, as server-sent events."""
        seen = -1
        while not self.ended:
            for task in self.tasks:
                if task.done():
                    task.result()  # its error ends the stream, and the page asks again
            async with self.lock:
                text, version = self.watch.changed_since(seen), self.watch.version
            if text:
                seen = version
                yield f"data: {text}\n\n"
                await asyncio.sleep(PERIOD)
                continue
            try:
                async with asyncio.timeout(KEEP_ALIVE), self.changed:
                    if self.watch.version == version and not self.ended:  # since the lock was released
                        await self.changed.wait()
            except TimeoutError:
                yield ": still here\n\n"


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
                await run.close()
                idle = [path for path, one in self.runs.items() if not one.viewers]
                for path in idle[: max(0, len(idle) - KEPT)]:
                    del self.runs[path]

    async def end(self) -> None:
        """Let every stream come to its end: none does by itself, and a server that stops waits for them."""
        for run in list(self.runs.values()):
            run.ended = True
            async with run.changed:
                run.changed.notify_all()

    async def close(self) -> None:
        for run in self.runs.values():
            await run.close()
