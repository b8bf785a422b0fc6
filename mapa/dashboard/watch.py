"""One run as its page shows it: read on, gathered once, and encoded once for all who watch."""

from __future__ import annotations

import bisect
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.accounting.releases import ReleaseKind
from mapa import output
from mapa.dashboard import sections
from mapa.dashboard.audited import audited
from mapa.dashboard.folder import state_of
from mapa.dashboard.gathered import GRID, Gathered, Lane, number
from mapa.dashboard.reading import JsonFile, Tail
from mapa.dashboard.spending import MOST_KINDS, epsilon, release_kind, shard_size

_CURVES = 50  # edges whose ε is drawn over time
_LISTED = 50  # events in one answer
_LINES = 300  # of a statement
_WORDS = 5000  # characters of a line
_AT_END = "The statement in words is written when the run has ended. Until then: ε of the releases on record."

_Maker = Callable[[Gathered, Mapping[str, Any], Mapping[str, Any]], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class _Figure:
    """What an edge has spent by now."""

    epsilon: float | None
    exact: bool = True  # False: at most that
    of: int | None = None  # releases whose ε it is
    pending: bool = False  # it is being computed


@dataclass(slots=True)
class Watch:
    """A run that somebody looks at. Its methods are called by one thread at a time."""

    path: Path
    gathered: Gathered = field(default_factory=Gathered)
    version: int = 0  # goes up when a section has changed
    encoded: dict[str, tuple[int, str]] = field(default_factory=dict)  # by section: version and JSON
    _computed: dict[tuple[ReleaseKind, int], float | None] = field(default_factory=dict)  # ε
    # releases: the most that are found within the budget, and the fewest beyond it
    _between: dict[ReleaseKind, tuple[int, int]] = field(default_factory=dict)
    _failed: list[str] = field(default_factory=list)  # sections that the records broke, and how
    _tail: Tail = field(init=False)
    _manifest: JsonFile = field(init=False)
    _summary: JsonFile = field(init=False)
    _audit: JsonFile = field(init=False)

    def __post_init__(self) -> None:
        self._tail = Tail(self.path / "events.jsonl")
        self._manifest = JsonFile(self.path / "manifest.json")
        self._summary = JsonFile(self.path / "summary.json")
        self._audit = JsonFile(self.path / "audit.json")

    @property
    def behind(self) -> bool:
        """Whether more is on disk than was read."""
        return self._tail.behind

    def read(self) -> None:
        """Take what was written since the last time, at most one chunk.

        The summary first: it is written after the events, so that who sees it sees all of them.
        """
        self._summary.look()
        anew, records = self._tail.look()
        if anew:  # rotated or cut: what was counted is no longer on record
            self.gathered = Gathered()
        self.gathered.take(records)

    def refresh(self) -> None:
        """Encode every section anew; the version of one that has not changed stays."""
        manifest, summary = self._manifest.look(), self._summary.value
        gathered = self.gathered
        state = state_of(self.path, summary, gathered.halted)
        if summary and not gathered.number and not gathered.metrics:
            sections.from_summary(gathered, summary)
        makers: dict[str, _Maker] = {
            "fleet": lambda g, m, s: self._with_epsilon(sections.fleet(state == "live", g, m, s), s),
            "training": sections.training,
            "staleness": lambda g, _, s: sections.staleness(g, s),
            "privacy": self._privacy,
            "traffic": lambda g, _, s: sections.traffic(g, s),
            "events": lambda g, *_: {"number": g.number, "seen": dict(sorted(g.seen.items()))},
            "head": lambda g, m, s: self._head(state, g, m, s),  # the last: it tells which failed
        }
        self._failed.clear()
        for name, make in makers.items():
            self._put(name, self._made(name, make, manifest, summary))

    def _made(self, name: str, make: _Maker, manifest: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
        """Return a section as JSON; an empty one where records of somebody else break it: the others are shown."""
        try:
            return _encoded(make(self.gathered, manifest, summary))
        except Exception as error:
            self._failed.append(f"{name}: {output.unexpected(error)}")
            return _encoded(make(Gathered(), {}, {}))

    def _head(
        self, state: str, gathered: Gathered, manifest: Mapping[str, Any], summary: Mapping[str, Any]
    ) -> dict[str, Any]:
        head = sections.head(self.path.name, state, gathered, manifest, summary)
        unreadable = head["unreadable"] + self._tail.unreadable
        return {**head, "unreadable": unreadable, "behind": self.behind, "failed": list(self._failed)}

    def changed_since(self, version: int) -> str:
        """Return the sections that have changed since a version, as JSON; '' where none has."""
        new = [f'"{name}":{text}' for name, (at, text) in self.encoded.items() if at > version]
        return f'{{"version":{self.version},{",".join(new)}}}' if new else ""

    def unaccounted(self) -> Iterator[tuple[ReleaseKind, int]]:
        """Yield kinds and numbers of releases whose ε is not computed yet.

        First the bounds that are shown now, then how far a budget goes, then the bounds that will be next, then the
        points of the curves. A run that has ended needs no bounds: the statement has its figures.
        """
        ended = bool(sections.table(self._summary.value, "privacy"))
        now: dict[tuple[ReleaseKind, int], None] = {}
        caps: dict[tuple[ReleaseKind, int], None] = {}
        soon: dict[tuple[ReleaseKind, int], None] = {}
        past: dict[tuple[ReleaseKind, int], None] = {}
        for k, kind in self._kinds().items():
            lane = self.gathered.lanes[k]
            if not ended and (bound := self._bound(k, kind, lane)) is not None:
                now[kind, bound] = None
                low, high = self._between.get(kind, (0, 0))
                if high <= bound and high - low > 1:  # how many the budget permits is between them
                    caps[kind, (low + high) // 2] = None
                if (following := self._bounded(k, kind, bound + 1)) is not None:
                    soon[kind, following] = None
            past |= {(kind, mark[0]): None for mark in reversed(lane.marks)}
        yield from (one for one in (now | caps | soon | past) if one not in self._computed)

    def account(self, kind: ReleaseKind, releases: int) -> None:
        """Compute one ε; parts of a second."""
        found = self._computed[kind, releases] = epsilon(kind, releases, self._delta)
        budget = number(self._privacy_table.get("total_epsilon"))
        if budget is not None:
            low, high = self._between.get(kind, (0, GRID[-1] + 1))
            within = found is not None and found <= budget
            self._between[kind] = (max(low, releases), high) if within else (low, min(high, releases))

    def listed(self, *, event: str = "", edge: str = "", text: str = "", before: int = 0) -> dict[str, Any]:
        """Return the newest events that fit, newest first; of updates and of the rest only so many are kept."""
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

    @property
    def _delta(self) -> float:
        found = self._privacy_table.get("total_delta")
        return found if isinstance(found, float) and 0 < found < 1 else 1e-5

    @property
    def _privacy_table(self) -> Mapping[str, Any]:
        return sections.table(sections.table(self._manifest.value, "scenario"), "privacy")

    def _kinds(self) -> dict[int, ReleaseKind]:
        """Return how each edge releases whose ε is computed: of those shown, and of a bounded number of kinds."""
        found: dict[int, ReleaseKind] = {}
        kinds: set[ReleaseKind] = set()
        for k, lane in list(self.gathered.lanes.items())[: sections.LANES]:
            kind = self._kind(k, lane)
            if kind is not None and (kind in kinds or len(kinds) < MOST_KINDS):
                kinds.add(kind)
                found[k] = kind
        return found

    def _kind(self, edge: int, lane: Lane) -> ReleaseKind | None:
        """Return how an edge releases; None where its count alone does not say what its releases cost."""
        manifest = self._manifest.value
        kind = release_kind(sections.table(manifest, "scenario"), shard_size(manifest, edge), lane.joined)
        if kind is None or lane.mixed:
            return None
        anew = kind.mechanism.sampler.by_epoch and lane.tally.joins > 1  # epochs began anew
        return None if anew else kind

    def _bound(self, edge: int, kind: ReleaseKind, lane: Lane) -> int | None:
        """Return a number of releases that an edge has not passed, whose ε is computed; None: it is beyond all.

        One more than is on record may have been made: it is on its way.
        """
        on_record, cap = lane.tally.last_sequence, self._cap(edge, kind)
        return self._bounded(edge, kind, on_record if on_record == cap else on_record + 1)

    def _bounded(self, edge: int, kind: ReleaseKind, releases: int) -> int | None:
        """Return the next point of the grid, or the cap of this edge's releases where that comes first."""
        place, cap = bisect.bisect_left(GRID, releases), self._cap(edge, kind)
        if place == len(GRID):
            return None
        return cap if cap is not None and releases <= cap < GRID[place] else GRID[place]

    def _cap(self, edge: int, kind: ReleaseKind) -> int | None:
        """Return how many releases the edge's ledger permits: R_k, or what the budget is found to pay for.

        None: neither is given, or the number for the budget is not computed yet.
        """
        caps = self._privacy_table.get("release_caps")
        cap = caps[edge % len(caps)] if isinstance(caps, list) and caps else None
        if type(cap) is int:
            return cap
        low, high = self._between.get(kind, (0, 0))
        return low if high - low == 1 else None

    def _now(self, edge: int, kind: ReleaseKind | None, stated: Mapping[str, Any]) -> _Figure:
        """Return what an edge has spent by now, the same for every view: the statement's figure, else a bound.

        A bound is the ε of more releases than are on record. Its ledger lets an edge pass no budget, so the budget
        bounds it, too, once what is on record is found to be within; what is found beyond is shown as it is. Of an edge
        whose n_k nobody knows here the ledger alone has the figure.
        """
        value, budget = number(stated.get("epsilon")), number(self._privacy_table.get("total_epsilon"))
        at_least = stated.get("shard_size_at_least") is True
        if value is not None:
            return (
                _Figure(value) if not at_least or budget is None else _Figure(min(value, budget), exact=False)
            )
        lane = self.gathered.lanes.get(edge)
        if stated or kind is None or lane is None or not lane.tally.applied:
            return _Figure(None)
        bound, on_record = self._bound(edge, kind, lane), lane.tally.last_sequence
        if bound is None:
            return _Figure(None)
        if (kind, bound) not in self._computed:
            return _Figure(None, pending=True)
        value = self._computed[kind, bound]
        if value is None or budget is None or value <= budget:
            return _Figure(value, exact=False, of=bound)
        low, high = self._between.get(kind, (0, bound))
        own = sections.table(sections.table(self._manifest.value, "scenario"), "data").get("set") == "local"
        if own or on_record <= low:
            return _Figure(budget, exact=False)
        return _Figure(None, pending=True) if on_record < high else _Figure(value, exact=False, of=bound)

    def _curve(
        self, edge: int, kind: ReleaseKind | None, stated: Mapping[str, Any]
    ) -> list[tuple[int, int, float | None, float]]:
        """Return (releases, t, seconds, ε) of an edge, as far as it is computed; the last point is that of now."""
        lane, now = self.gathered.lanes[edge], self._now(edge, kind, stated).epsilon
        found = ((n, t, s, self._computed.get((kind, n)) if kind else None) for n, t, s in lane.marks)
        spent = [(n, t, seconds, value) for n, t, seconds, value in found if value is not None]
        if now is None or lane.last is None:
            return spent
        releases = stated.get("releases", lane.tally.last_sequence)
        if type(releases) is not int:
            return spent
        return [*(one for one in spent if one[0] < releases and one[3] <= now), (releases, *lane.last, now)]

    def _with_epsilon(self, fleet: dict[str, Any], summary: Mapping[str, Any]) -> dict[str, Any]:
        """Add what each edge has spent, how it is known, and whether it is being computed."""
        stated, kinds = sections.by_edge(sections.table(summary, "privacy"), "edges"), self._kinds()
        for row in fleet["edges"]:
            k = row["edge"]
            now = self._now(k, kinds.get(k), stated.get(k, {}))
            row |= {
                "epsilon": now.epsilon,
                "epsilon_exact": now.exact and now.epsilon is not None,
                "epsilon_of": now.of,
                "epsilon_pending": now.pending,
            }
        return fleet

    def _privacy(
        self, gathered: Gathered, manifest: Mapping[str, Any], summary: Mapping[str, Any]
    ) -> dict[str, Any]:
        stated = sections.table(summary, "privacy")
        words = stated.get("words")
        privacy = sections.table(sections.table(manifest, "scenario"), "privacy")
        by_edge = sections.by_edge(stated, "edges")
        curves: list[dict[str, Any]] = []
        hidden, kinds = 0, self._kinds()
        for k in sorted(gathered.lanes):
            if len(curves) >= _CURVES:
                hidden += 1
            elif spent := self._curve(k, kinds.get(k), by_edge.get(k, {})):
                columns = zip(*spent, strict=True)
                named = dict(zip(("releases", "t", "seconds", "epsilon"), map(list, columns), strict=True))
                curves.append({"edge": k, "edge_id": gathered.lanes[k].tally.edge_id, **named})
        keys = (
            "edge",
            "edge_id",
            "releases",
            "shard_size",
            "release",
            "sampler",
            "epsilon",
            "epsilon_replace_one",
            "method",
            "reason",
        )
        return {
            "words": [str(line)[:_WORDS] for line in words[:_LINES]]
            if isinstance(words, list)
            else [_AT_END],
            "stated": bool(stated),
            "delta": number(stated.get("delta", self._delta)),
            "epsilon": number(stated.get("epsilon")),
            "adjacency": "zero-out",
            "budget": number(privacy.get("total_epsilon")),
            "edges": [
                {key: _cell(row.get(key)) for key in keys}
                for row in sections.rows(stated, "edges")[: sections.LANES]
            ],
            "hidden_edges": max(0, len(sections.rows(stated, "edges")) - sections.LANES),
            "curves": curves,
            "hidden_curves": hidden,
            "pending": any(self._now(k, kind, by_edge.get(k, {})).pending for k, kind in kinds.items()),
            "audit": audited(self._audit.look()),
        }

    def _put(self, name: str, text: str) -> None:
        if name not in self.encoded or self.encoded[name][1] != text:
            self.version += 1
            self.encoded[name] = (self.version, text)


def _cell(value: object) -> str | float | None:
    return sections.words(value) if isinstance(value, str) else number(value)


def _encoded(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
