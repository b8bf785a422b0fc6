"""One run as its page shows it: read on as it grows, counted once, and encoded once for all viewers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
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
from mapa.dashboard.spending import SpentOnPage

_LISTED = 50  # events in one answer


@dataclass(slots=True)
class Watch:
    """A run that somebody looks at. Its methods are called by one thread at a time."""

    path: Path
    gathered: PageTally = field(default_factory=PageTally)
    version: int = 0  # goes up when a section has changed
    encoded: dict[str, tuple[int, str]] = field(default_factory=dict)  # by section: version and JSON
    _spent: SpentOnPage = field(default_factory=SpentOnPage)
    _failed: list[str] = field(default_factory=list)  # sections that the records broke, and how
    _tail: EventTail = field(init=False)
    _manifest: JsonFile = field(init=False)
    _summary: JsonFile = field(init=False)
    _audit: JsonFile = field(init=False)

    def __post_init__(self) -> None:
        self._tail = EventTail(self.path / "events.jsonl")
        self._manifest, self._summary, self._audit = (
            JsonFile(self.path / f"{name}.json") for name in ("manifest", "summary", "audit")
        )

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
        """Return a section as JSON; an empty one where records of somebody else break it: the others are shown."""
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

    def unaccounted(self) -> Iterator[tuple[ReleaseKind, int]]:
        """Yield kinds and numbers of releases whose ε is not computed yet, the most needed first."""
        return self._spent.unaccounted(self._page)

    def account(self, kind: ReleaseKind, releases: int) -> None:
        """Compute one ε; parts of a second."""
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
