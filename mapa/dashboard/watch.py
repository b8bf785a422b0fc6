"""Runs as their pages show them: read on as they grow, counted and encoded once, told to all viewers of the stream.

All of it runs in the server's event loop, in turns that are bounded; ε alone is computed in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import math
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.records.reader import EventTail, JsonFile
from mapa import output
from mapa.dashboard import sections
from mapa.dashboard.folder import page_state
from mapa.dashboard.page_tally import PageTally
from mapa.dashboard.sections import Page
from mapa.dashboard.spending import EdgeKinds, Question, Spending, epsilon

_LISTED = 50  # events in one answer
PERIOD = 0.4  # seconds between two looks, and at least between two messages to a viewer
KEEP_ALIVE = 15.0  # seconds of silence after which a comment tells that the stream still is one
KEPT = 8  # runs without a viewer that are kept, for one who comes back
MOST_VIEWERS = 64
_AT_ONCE = 4  # figures of ε that are computed in one turn: parts of a second
_MOST_KNOWN = 10_000  # that are kept


class Watch:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.known: dict[Question, float | None] = {}  # ε, as far as it is computed
        self.gathered = PageTally()
        self.version = 0  # goes up when a section has changed
        self.encoded: dict[str, tuple[int, bytes]] = {}  # by section: version and JSON
        self._kinds = EdgeKinds()
        self._shown: object = None  # what the sections were made of
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

    def _spending(self, page: Page) -> Spending:
        return Spending(page, self._kinds.of(page), self.known)

    def read(self) -> None:
        """Take what was written since the last time, at most one chunk.

        The summary first: it is written after the events, so that who sees it sees all of them.
        """
        self._summary.look()
        replaced, records = self._tail.look()
        if replaced:  # what was counted is no longer on record
            self.gathered = PageTally()
        self.gathered.take(records)

    def refresh(self) -> bool:
        """Encode every section again where something is new; tell whether one has changed."""
        before, summary, tail = self.version, self._summary.value, self._tail
        manifest, report = self._manifest.look(), self._audit.look()
        if summary and not self.gathered.number and not self.gathered.metrics:
            sections.from_summary(self.gathered, summary)
        page, audit = self._page, sections.audited(report)
        counts = (self.gathered.number, len(self.known), tail.offset, tail.behind, tail.unreadable)
        made_of = (page.state, *counts, self.gathered, manifest, summary, report)
        if made_of == self._shown:
            return False
        self._shown = made_of
        self._failed.clear()
        makers: dict[str, Callable[[Page], dict[str, Any]]] = {
            "fleet": lambda page: self._spending(page).added_to(sections.fleet(page)),
            "training": sections.training,
            "staleness": sections.staleness,
            "privacy": lambda page: {**self._spending(page).section(), "audit": audit},
            "traffic": sections.traffic,
            "events": lambda page: {
                "number": page.counted.number,
                "seen": dict(sorted(page.counted.seen.items())),
            },
            "head": self._head,  # the last: it tells which failed
        }
        for name, make in makers.items():
            text = self._made(name, make, page)
            if name not in self.encoded or self.encoded[name][1] != text:
                self.version += 1
                self.encoded[name] = (self.version, text)
        return self.version != before

    def _made(self, name: str, make: Callable[[Page], dict[str, Any]], page: Page) -> bytes:
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

    def missing(self) -> list[Question]:
        """Return what of ε is to be computed first; nothing where untrusted records break it, as the sections say."""
        with contextlib.suppress(Exception):
            return list(itertools.islice(self._spending(self._page).unanswered(), _AT_ONCE))
        return []

    def answer(self, questions: Iterable[Question]) -> None:
        """Compute ε; in a thread of its own, for it may take parts of a second."""
        if len(self.known) > _MOST_KNOWN:
            self.known = {}
        self.known |= {question: epsilon(*question) for question in questions}

    def changed_since(self, version: int) -> bytes:
        """Return the sections that have changed since a version, as JSON; nothing where none has."""
        new = [
            b'"%s":%s' % (name.encode(), text) for name, (at, text) in self.encoded.items() if at > version
        ]
        return b'{"version":%d,%s}' % (self.version, b",".join(new)) if new else b""

    def listed(self, *, event: str = "", edge: str = "", text: str = "", before: int = 0) -> dict[str, Any]:
        """Return the newest events that fit, newest first; only the last updates and other events are kept."""
        gathered = self.gathered
        kept = sorted([*gathered.events, *gathered.last_updates], key=lambda one: one[0], reverse=True)
        fitting = [
            {"number": number, **sections.plain(record)}
            for number, record in kept
            if (not before or number < before)
            and (not event or record.get("event") == event)
            and (not edge or edge in (str(record.get("edge")), record.get("edge_id")))
            and (not text or text.lower() in json.dumps(record, ensure_ascii=False).lower())
        ]
        return {"events": fitting[:_LISTED], "more": len(fitting) > _LISTED, "total": gathered.number}


def _encoded(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


# -- for all viewers ----------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Followed:
    """A run, and the tasks that read it while a viewer is there."""

    watch: Watch
    viewers: int = 0
    ended: bool = False  # the server stops: no message follows
    changed: asyncio.Event = field(default_factory=asyncio.Event)  # another one after each change
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def look(self, most: float = math.inf) -> None:
        """Read what is on disk in turns, to its end or until `most` seconds are over; then encode what has changed."""
        until = time.monotonic() + most
        self.watch.read()
        while self.watch.behind and time.monotonic() < until:
            await asyncio.sleep(0)
            self.watch.read()
        if self.watch.refresh():
            self.tell()

    def tell(self) -> None:
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    async def follow(self) -> None:
        while True:
            await self.look(PERIOD)
            await asyncio.sleep(0 if self.watch.behind else PERIOD)

    async def account(self) -> None:
        """Compute what ε is missing beside the reading, which comes first."""
        while True:
            missing = [] if self.watch.behind else self.watch.missing()
            if missing:
                await asyncio.to_thread(self.watch.answer, missing)
            await asyncio.sleep(0 if missing else PERIOD)

    async def close(self) -> None:
        ended, self.tasks = self.tasks, []
        for task in ended:
            task.cancel()
        await asyncio.gather(*ended, return_exceptions=True)

    async def messages(self) -> AsyncIterator[bytes]:
        """Yield the sections, then those that change, as server-sent events."""
        seen = -1
        while not self.ended:
            for task in self.tasks:
                if task.done():
                    task.result()  # its error ends the stream, and the page asks again
            changed, version = self.changed, self.watch.version
            if new := self.watch.changed_since(seen):
                seen = version
                yield b"data: %s\n\n" % new
                await asyncio.sleep(PERIOD)
                continue
            try:
                async with asyncio.timeout(KEEP_ALIVE):
                    await changed.wait()
            except TimeoutError:
                yield b": still here\n\n"


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
            run.tasks = [asyncio.create_task(task) for task in (run.follow(), run.account())]
        try:
            if not run.watch.encoded:
                await run.look(PERIOD)
            yield run
        finally:
            run.viewers -= 1
            if not run.viewers:
                await run.close()
                idle = [path for path, one in self.runs.items() if not one.viewers]
                for path in idle[: max(0, len(idle) - KEPT)]:
                    del self.runs[path]

    def end(self) -> None:
        """Let every stream come to its end: none does by itself, and a server that stops waits for them."""
        for run in self.runs.values():
            run.ended = True
            run.tell()

    async def close(self) -> None:
        for run in self.runs.values():
            await run.close()
