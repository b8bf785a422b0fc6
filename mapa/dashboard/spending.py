"""ε of the releases that a run's events prove, and how a page shows it; no code that records name is loaded."""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from common.accounting.releases import ReleaseKind, Spent
from common.accounting.total import total
from common.errors import MapaError
from common.mechanism.clipping import CLIPPINGS
from common.mechanism.guarantee import Scope
from common.mechanism.local_work import LOCAL_WORK, named_work
from common.mechanism.mechanism import Mechanism
from common.mechanism.sampler import SAMPLERS
from common.noise.law import NoiseLaw
from common.noise.registry import describe_law
from common.own_code import is_dotted, only_code
from common.records.regular import number, rows, table, text
from mapa.dashboard.page_tally import GRID, Lane
from mapa.dashboard.sections import LANES, Page, by_edge
from mapa.runs import statement_of

_CURVES = 50  # edges whose ε is drawn over time
_LINES, _WORDS = 300, 5000  # of a statement; characters of a line
_AT_END = "The statement in words is written when the run has ended. Until then: ε of the releases on record."
_STATED = (
    *("edge", "edge_id", "releases", "shard_size", "release", "sampler"),
    *("epsilon", "epsilon_replace_one", "method", "reason"),
)
MOST_KINDS = 8  # whose curves are computed; of further ones the statement at the end has the figures


def release_kind(scenario: Mapping[str, Any], size: object, joined: Mapping[str, Any]) -> ReleaseKind | None:
    """Return how an edge releases, by its record of joining and its shard's size; None: not known here."""
    noise = joined.get("noise")
    if not isinstance(noise, str) or noise == "none" or is_dotted(noise) or type(size) is not int:
        return None
    try:
        law = describe_law(noise)
        given = {key: joined[key] for key in law.names if joined.get(key) is not None}
        kind = ReleaseKind(_mechanism(scenario, law.make(given)), size)
        hash(kind)  # of plain values alone
        return kind
    except (MapaError, KeyError, TypeError, ValueError, ArithmeticError):
        return None


def _mechanism(scenario: Mapping[str, Any], law: NoiseLaw) -> Mechanism:
    """Return the mechanism of a recorded scenario; MapaError for code of one's own, which is not imported here."""
    privacy, data, local = scenario["privacy"], scenario["data"], scenario.get("local", {})
    named = (
        (SAMPLERS, data["sampler"], data),
        (CLIPPINGS, privacy["clipping"], privacy),
        (LOCAL_WORK, local.get("work") or named_work(local), local),
    )
    with only_code(()):
        sampler, clipping, work = (port.make_from(name, table) for port, name, table in named)
    return Mechanism(law, scenario["batch_size"], sampler, clipping, work, Scope(privacy["scope"]))


def shard_size(manifest: Mapping[str, Any], edge: int) -> object:
    """Return n_k of the manifest; where edges bring records of their own, the least that takes part."""
    scenario = manifest.get("scenario")
    table = scenario.get("data") if isinstance(scenario, Mapping) else None
    schema = table.get("schema") if isinstance(table, Mapping) else None
    if isinstance(table, Mapping) and table.get("set") == "local":
        return schema.get("records_at_least") if isinstance(schema, Mapping) else None
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


@dataclass(frozen=True, slots=True)
class _Figure:
    """What an edge has spent by now."""

    epsilon: float | None
    exact: bool = True  # False: at most that
    of: int | None = None  # releases whose ε it is
    pending: bool = False  # it is being computed


@dataclass(slots=True)
class SpentOnPage:
    """ε of one run's edges, computed one by one while the page is shown; `page` is what is known by now."""

    _computed: dict[tuple[ReleaseKind, int], float | None] = field(default_factory=dict)  # ε
    # releases: the most that are found within the budget, and the fewest beyond it
    _between: dict[ReleaseKind, tuple[int, int]] = field(default_factory=dict)

    def unaccounted(self, page: Page) -> Iterator[tuple[ReleaseKind, int]]:
        """Yield kinds and numbers of releases whose ε is not computed yet.

        First the bounds that are shown now, then how far a budget goes, then the bounds that will be next, then the
        points of the curves. A run that has ended needs no bounds: the statement has its figures.
        """
        ended = bool(table(page.summary, "privacy"))
        now: dict[tuple[ReleaseKind, int], None] = {}
        caps: dict[tuple[ReleaseKind, int], None] = {}
        soon: dict[tuple[ReleaseKind, int], None] = {}
        past: dict[tuple[ReleaseKind, int], None] = {}
        for k, kind in self._kinds(page).items():
            if not ended and (bound := self._bound(page, k, kind)) is not None:
                now[kind, bound] = None
                low, high = self._between.get(kind, (0, 0))
                if high <= bound and high - low > 1:  # how many the budget permits is between them
                    caps[kind, (low + high) // 2] = None
                if (following := self._bounded(page, k, kind, bound + 1)) is not None:
                    soon[kind, following] = None
            past |= {(kind, mark[0]): None for mark in reversed(page.counted.lanes[k].marks)}
        yield from (one for one in (now | caps | soon | past) if one not in self._computed)

    def account(self, page: Page, kind: ReleaseKind, releases: int) -> None:
        """Compute one ε; parts of a second."""
        found = self._computed[kind, releases] = epsilon(kind, releases, _delta(page))
        budget = number(page.privacy.get("total_epsilon"))
        if budget is not None:
            low, high = self._between.get(kind, (0, GRID[-1] + 1))
            within = found is not None and found <= budget
            self._between[kind] = (max(low, releases), high) if within else (low, min(high, releases))

    def _kinds(self, page: Page) -> dict[int, ReleaseKind]:
        """Return how each edge releases whose ε is computed: of those shown, and of a bounded number of kinds."""
        found: dict[int, ReleaseKind] = {}
        kinds: set[ReleaseKind] = set()
        for k, lane in list(page.counted.lanes.items())[:LANES]:
            kind = self._kind(page, k, lane)
            if kind is not None and (kind in kinds or len(kinds) < MOST_KINDS):
                kinds.add(kind)
                found[k] = kind
        return found

    def _kind(self, page: Page, edge: int, lane: Lane) -> ReleaseKind | None:
        """Return how an edge releases; None where its count alone does not say what its releases cost."""
        kind = release_kind(page.scenario, shard_size(page.manifest, edge), lane.joined)
        if kind is None or lane.mixed:
            return None
        restarted = page.counted.tally.edges[edge].joins > 1  # an epoch began again
        return None if restarted and kind.mechanism.sampler.by_epoch else kind

    def _bound(self, page: Page, edge: int, kind: ReleaseKind) -> int | None:
        """Return a number of releases that an edge has not passed, whose ε is computed; None: it is beyond all.

        One more than is on record may have been made: it is on its way.
        """
        on_record, cap = page.counted.tally.edges[edge].last_sequence, self._cap(page, edge, kind)
        return self._bounded(page, edge, kind, on_record if on_record == cap else on_record + 1)

    def _bounded(self, page: Page, edge: int, kind: ReleaseKind, releases: int) -> int | None:
        """Return the next point of the grid, or the cap of this edge's releases where that comes first."""
        place, cap = bisect.bisect_left(GRID, releases), self._cap(page, edge, kind)
        if place == len(GRID):
            return None
        return cap if cap is not None and releases <= cap < GRID[place] else GRID[place]

    def _cap(self, page: Page, edge: int, kind: ReleaseKind) -> int | None:
        """Return how many releases the edge's ledger permits: R_k, or what the budget is found to pay for.

        None: neither is given, or the number for the budget is not computed yet.
        """
        caps = page.privacy.get("release_caps")
        cap = caps[edge % len(caps)] if isinstance(caps, list) and caps else None
        if type(cap) is int:
            return cap
        low, high = self._between.get(kind, (0, 0))
        return low if high - low == 1 else None

    def _now(self, page: Page, edge: int, kind: ReleaseKind | None, stated: Mapping[str, Any]) -> _Figure:
        """Return what an edge has spent by now, the same for every view: the statement's figure, else a bound.

        A bound is the ε of more releases than are on record. Its ledger lets an edge pass no budget, so the budget
        bounds it, too, once what is on record is found to be within; what is found beyond is shown as it is. Of an edge
        with local data the ledger alone has the figure.
        """
        value, budget = number(stated.get("epsilon")), number(page.privacy.get("total_epsilon"))
        at_least = stated.get("shard_size_at_least") is True
        if value is not None:
            return (
                _Figure(value) if not at_least or budget is None else _Figure(min(value, budget), exact=False)
            )
        tally = page.counted.tally.edges.get(edge)
        if stated or kind is None or tally is None or not tally.applied:
            return _Figure(None)
        bound, on_record = self._bound(page, edge, kind), tally.last_sequence
        if bound is None:
            return _Figure(None)
        if (kind, bound) not in self._computed:
            return _Figure(None, pending=True)
        value = self._computed[kind, bound]
        if value is None or budget is None or value <= budget:
            return _Figure(value, exact=False, of=bound)
        low, high = self._between.get(kind, (0, bound))
        own = table(page.scenario, "data").get("set") == "local"
        if own or on_record <= low:
            return _Figure(budget, exact=False)
        return _Figure(None, pending=True) if on_record < high else _Figure(value, exact=False, of=bound)

    def _curve(
        self, page: Page, edge: int, kind: ReleaseKind | None, stated: Mapping[str, Any]
    ) -> list[tuple[int, int, float | None, float]]:
        """Return (releases, t, seconds, ε) of an edge, as far as it is computed; the last point is that of now."""
        lane, now = page.counted.lanes[edge], self._now(page, edge, kind, stated).epsilon
        found = ((n, t, s, self._computed.get((kind, n)) if kind else None) for n, t, s in lane.marks)
        spent = [(n, t, seconds, value) for n, t, seconds, value in found if value is not None]
        if now is None or lane.last is None:
            return spent
        releases = stated.get("releases", page.counted.tally.edges[edge].last_sequence)
        if type(releases) is not int:
            return spent
        return [*(one for one in spent if one[0] < releases and one[3] <= now), (releases, *lane.last, now)]

    def added_to(self, fleet: dict[str, Any], page: Page) -> dict[str, Any]:
        """Add what each edge has spent, how it is known, and whether it is being computed."""
        stated, kinds = by_edge(table(page.summary, "privacy"), "edges"), self._kinds(page)
        for row in fleet["edges"]:
            k = row["edge"]
            now = self._now(page, k, kinds.get(k), stated.get(k, {}))
            row |= {
                "epsilon": now.epsilon,
                "epsilon_exact": now.exact and now.epsilon is not None,
                "epsilon_of": now.of,
                "epsilon_pending": now.pending,
            }
        return fleet

    def section(self, page: Page) -> dict[str, Any]:
        """Return the statement, and each edge's ε over its releases."""
        stated, counted = table(page.summary, "privacy"), page.counted
        of_edge = by_edge(stated, "edges")
        curves: list[dict[str, Any]] = []
        hidden, kinds = 0, self._kinds(page)
        for k in sorted(counted.lanes):
            if len(curves) >= _CURVES:
                hidden += 1
            elif spent := self._curve(page, k, kinds.get(k), of_edge.get(k, {})):
                columns = zip(*spent, strict=True)
                named = dict(zip(("releases", "t", "seconds", "epsilon"), map(list, columns), strict=True))
                curves.append({"edge": k, "edge_id": counted.tally.edges[k].edge_id, **named})
        return {
            "words": [line[:_WORDS] for line in statement_of(page.summary)[:_LINES]] or [_AT_END],
            "stated": bool(stated),
            "delta": number(stated.get("delta", _delta(page))),
            "epsilon": number(stated.get("epsilon")),
            "adjacency": "zero-out",
            "budget": number(page.privacy.get("total_epsilon")),
            "edges": [{key: _cell(row.get(key)) for key in _STATED} for row in rows(stated, "edges")[:LANES]],
            "hidden_edges": max(0, len(rows(stated, "edges")) - LANES),
            "curves": curves,
            "hidden_curves": hidden,
            "pending": any(self._now(page, k, kind, of_edge.get(k, {})).pending for k, kind in kinds.items()),
        }


def _delta(page: Page) -> float:
    delta = page.privacy.get("total_delta")
    return delta if isinstance(delta, float) and 0 < delta < 1 else 1e-5


def _cell(value: object) -> str | float | None:
    return text(value) if isinstance(value, str) else number(value)
