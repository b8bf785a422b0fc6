"""ε of the releases that a run's events prove, and how a page shows it; no code that records name is loaded."""

from __future__ import annotations

import bisect
import contextlib
import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple

from common.accounting.budget import max_messages
from common.accounting.releases import Budget, ReleaseKind, Spent
from common.accounting.total import total
from common.errors import MapaError
from common.mechanism.clipping import CLIPPINGS
from common.mechanism.guarantee import Scope
from common.mechanism.local_work import LOCAL_WORK, named_work
from common.mechanism.mechanism import Mechanism
from common.mechanism.sampler import SAMPLERS
from common.noise.registry import describe_law
from common.own_code import is_dotted, only_code
from common.records.regular import number, rows, table, text
from mapa.dashboard.page_tally import GRID
from mapa.dashboard.sections import LANES, Page, by_edge
from mapa.runs import statement_of

_CURVES = 50  # edges whose ε is drawn over time
_LINES, _WORDS = 300, 5000  # of a statement; characters of a line
_AT_END = "The statement in words is written when the run has ended. Until then: ε of the releases on record."
_STATED = (
    *("edge", "edge_id", "releases", "shard_size", "release", "sampler"),
    *("epsilon", "epsilon_replace_one", "method", "reason"),
)
Question = tuple[ReleaseKind, int | None]  # of so many releases; None: how many the budget pays for
MOST_KINDS = 8  # whose curves are computed; of further ones the statement at the end has the figures


def release_kind(scenario: Mapping[str, Any], size: object, joined: Mapping[str, Any]) -> ReleaseKind | None:
    """Return how an edge releases, by its record of joining and its shard's size; None: unknown, or code of a user."""
    noise = joined.get("noise")
    if not isinstance(noise, str) or noise == "none" or is_dotted(noise) or type(size) is not int:
        return None
    try:
        law = describe_law(noise)
        given = {key: joined[key] for key in law.names if joined.get(key) is not None}
        privacy, data, local = scenario["privacy"], scenario["data"], scenario.get("local", {})
        with only_code(()):
            sampler = SAMPLERS.make_from(data["sampler"], data)
            clipping = CLIPPINGS.make_from(privacy["clipping"], privacy)
            work = LOCAL_WORK.make_from(local.get("work") or named_work(local), local)
        parts = (scenario["batch_size"], sampler, clipping, work, Scope(privacy["scope"]))
        kind = ReleaseKind(Mechanism(law.make(given), *parts), size)
        hash(kind)  # of plain values alone
        return kind
    except (MapaError, KeyError, TypeError, ValueError, ArithmeticError):
        return None


def shard_size(manifest: Mapping[str, Any], edge: int) -> object:
    """Return n_k of the manifest; where edges bring records of their own, the least that takes part."""
    data = table(table(manifest, "scenario"), "data")
    if data.get("set") == "local":
        return table(data, "schema").get("records_at_least")
    sizes = manifest.get("shard_sizes")
    return sizes[edge] if isinstance(sizes, list) and 0 <= edge < len(sizes) else None


@functools.lru_cache(maxsize=4096)
def epsilon(kind: ReleaseKind, releases: int, delta: float) -> float | None:
    """Return ε at δ of a number of messages, zero-out adjacency, as the statement computes it; None: no finite one.

    Takes parts of a second: not for a thread that answers requests.
    """
    try:
        found = total([Spent(kind, kind.charges(releases))], delta, replace_one=False).epsilon
    except (MapaError, ArithmeticError, ValueError):
        return None
    return found if math.isfinite(found) else None


class _Figure(NamedTuple):
    epsilon: float | None = None
    exact: bool = True  # False: at most that
    of: int | None = None  # releases whose ε it is
    pending: bool = False  # it is being computed


@dataclass(slots=True)
class SpentOnPage:
    """ε of one run's edges, computed one by one while the page is shown; `page` is what is known by now."""

    _computed: dict[tuple[ReleaseKind, int], float | None] = field(default_factory=dict)  # ε
    _paid: dict[ReleaseKind, int] = field(default_factory=dict)  # messages that the budget pays for

    def unaccounted(self, page: Page) -> Iterator[Question]:
        """Yield kinds and numbers of releases whose ε is not computed yet; None: how many the budget pays for.

        First the bounds that are shown now, then how far a budget goes, then the bounds that will be next, then the
        points of the curves. A run that has ended needs no bounds: the statement has its figures.
        """
        ended = bool(table(page.summary, "privacy"))
        wanted: list[tuple[int, Question]] = []  # the most urgent have 0
        for k, kind in self._kinds(page).items():
            if not ended and (bound := self._bound(page, k, kind)) is not None:
                wanted.append((0, (kind, bound)))
                value = self._computed.get((kind, bound))
                if value is not None and page.budget is not None and value > page.budget and not page.local:
                    wanted.append((1, (kind, None)))
                if (following := self._bound(page, k, kind, bound)) is not None:
                    wanted.append((2, (kind, following)))
            wanted += [(3, (kind, releases)) for releases, _, _ in reversed(page.counted.lanes[k].marks)]
        for kind, releases in dict.fromkeys(asked for _, asked in sorted(wanted, key=itemgetter(0))):
            if kind not in self._paid if releases is None else (kind, releases) not in self._computed:
                yield kind, releases

    def account(self, page: Page, kind: ReleaseKind, releases: int | None) -> None:
        """Answer one question; parts of a second."""
        if releases is not None:
            self._computed[kind, releases] = epsilon(kind, releases, _delta(page))
            return
        self._paid[kind] = 0
        with contextlib.suppress(MapaError, ArithmeticError, ValueError):
            self._paid[kind] = max_messages(Budget(page.budget or 0.0, _delta(page)), kind)

    def _kinds(self, page: Page) -> dict[int, ReleaseKind]:
        """Return how each edge releases whose ε is computed: of those shown, and of a bounded number of kinds."""
        found: dict[int, ReleaseKind] = {}
        kinds: set[ReleaseKind] = set()
        for k, lane in list(page.counted.lanes.items())[:LANES]:
            kind = release_kind(page.scenario, shard_size(page.manifest, k), lane.joined)
            if kind is None or lane.mixed:  # its count alone does not say what its releases cost
                continue
            if page.counted.tally.edges[k].joins > 1 and kind.mechanism.sampler.by_epoch:
                continue  # an epoch began again
            if kind in kinds or len(kinds) < MOST_KINDS:
                kinds.add(kind)
                found[k] = kind
        return found

    def _bound(self, page: Page, edge: int, kind: ReleaseKind, after: int | None = None) -> int | None:
        """Return a number of releases, beyond those on record or `after`, whose ε is computed; None: it is beyond all.

        The next point of the grid, or where that comes first what the edge's ledger permits: R_k, or what the budget
        pays for. One more than is on record may have been made, unless it is not permitted: it is on its way.
        """
        caps = page.privacy.get("release_caps")
        cap = caps[edge % len(caps)] if isinstance(caps, list) and caps else None
        cap = cap if type(cap) is int else self._paid.get(kind)
        on_record = page.counted.tally.edges[edge].last_sequence
        releases = (on_record if after is None else after) + 1
        if after is None and on_record == cap:
            releases = on_record
        place = bisect.bisect_left(GRID, releases)
        if place == len(GRID):
            return None
        return cap if cap is not None and releases <= cap < GRID[place] else GRID[place]

    def _now(self, page: Page, edge: int, kind: ReleaseKind | None, stated: Mapping[str, Any]) -> _Figure:
        """Return what an edge has spent by now, the same for every view: the statement's figure, else a bound.

        A bound is the ε of more releases than are on record. Its ledger lets an edge pass no budget, so the budget
        bounds it, too, once what is on record is found to be within; what is found beyond is shown as it is. Of an edge
        with local data the ledger alone has the figure.
        """
        value, budget = number(stated.get("epsilon")), page.budget
        if value is not None:
            if budget is None or stated.get("shard_size_at_least") is not True:
                return _Figure(value)
            return _Figure(min(value, budget), exact=False)
        tally = page.counted.tally.edges.get(edge)
        if stated or kind is None or tally is None or not tally.applied:
            return _Figure()
        bound, on_record = self._bound(page, edge, kind), tally.last_sequence
        if bound is None:
            return _Figure()
        if (kind, bound) not in self._computed:
            return _Figure(pending=True)
        value = self._computed[kind, bound]
        if value is None or budget is None or value <= budget:
            return _Figure(value, exact=False, of=bound)
        paid = self._paid.get(kind)
        if page.local or (paid is not None and on_record <= paid):
            return _Figure(budget, exact=False)
        return _Figure(pending=True) if paid is None else _Figure(value, exact=False, of=bound)

    def _figures(self, page: Page, kinds: Mapping[int, ReleaseKind]) -> dict[int, _Figure]:
        """Return what every edge has spent by now that has a lane or a row of the statement."""
        stated = by_edge(table(page.summary, "privacy"), "edges")
        return {
            k: self._now(page, k, kinds.get(k), stated.get(k, {})) for k in {*page.counted.lanes, *stated}
        }

    def added_to(self, fleet: dict[str, Any], page: Page) -> dict[str, Any]:
        """Add what each edge has spent, how it is known, and whether it is being computed."""
        figures = self._figures(page, self._kinds(page))
        for row in fleet["edges"]:
            now = figures.get(row["edge"], _Figure())
            row |= {
                "epsilon": now.epsilon,
                "epsilon_exact": now.exact and now.epsilon is not None,
                "epsilon_of": now.of,
                "epsilon_pending": now.pending,
            }
        return fleet

    def section(self, page: Page) -> dict[str, Any]:
        """Return the statement, and each edge's ε over its releases."""
        stated, edges = table(page.summary, "privacy"), page.counted.tally.edges
        listed, of_edge = rows(stated, "edges"), by_edge(stated, "edges")
        kinds = self._kinds(page)
        figures = self._figures(page, kinds)
        curves: list[dict[str, Any]] = []
        hidden = 0
        for k in sorted(page.counted.lanes):
            if len(curves) >= _CURVES:
                hidden += 1
            elif spent := self._curve(page, k, kinds.get(k), of_edge.get(k, {}), figures[k].epsilon):
                columns = map(list, zip(*spent, strict=True))
                named = dict(zip(("releases", "t", "seconds", "epsilon"), columns, strict=True))
                curves.append({"edge": k, "edge_id": edges[k].edge_id, **named})
        return {
            "words": [line[:_WORDS] for line in statement_of(page.summary)[:_LINES]] or [_AT_END],
            "stated": bool(stated),
            "delta": number(stated.get("delta", _delta(page))),
            "epsilon": number(stated.get("epsilon")),
            "adjacency": "zero-out",
            "budget": page.budget,
            "edges": [{key: _cell(row.get(key)) for key in _STATED} for row in listed[:LANES]],
            "hidden_edges": max(0, len(listed) - LANES),
            "curves": curves,
            "hidden_curves": hidden,
            "pending": any(figures[k].pending for k in kinds),
        }

    def _curve(
        self, page: Page, edge: int, kind: ReleaseKind | None, stated: Mapping[str, Any], now: float | None
    ) -> list[tuple[int, int, float | None, float]]:
        """Return (releases, t, seconds, ε) of an edge, as far as it is computed; the last point is that of now."""
        lane = page.counted.lanes[edge]
        found = ((n, t, s, self._computed.get((kind, n)) if kind else None) for n, t, s in lane.marks)
        spent = [(n, t, seconds, value) for n, t, seconds, value in found if value is not None]
        releases = stated.get("releases", page.counted.tally.edges[edge].last_sequence)
        if now is None or lane.last is None or type(releases) is not int:
            return spent
        return [*(one for one in spent if one[0] < releases and one[3] <= now), (releases, *lane.last, now)]


def _delta(page: Page) -> float:
    delta = page.privacy.get("total_delta")
    return delta if isinstance(delta, float) and 0 < delta < 1 else 1e-5


def _cell(value: object) -> str | float | None:
    return text(value) if isinstance(value, str) else number(value)
