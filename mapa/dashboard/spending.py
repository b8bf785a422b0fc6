"""ε of the releases that a run's events prove, and how a page shows it; no code that records name is loaded."""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from common.accounting.releases import ReleaseKind, Spent
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
from mapa.dashboard.sections import LANES, Page, by_edge
from mapa.runs import statement_of

# releases whose ε bounds that of fewer: of at most 9 % more
_BOUNDS = sorted({round(2 ** (step / 8)) for step in range(240)})
_AHEAD = 5  # of them: the nearest and the last are computed, so that a fast edge has one at any time
_CURVES = 50  # edges whose ε is drawn over time
_LINES, _WORDS = 300, 5000  # of a statement; characters of a line
_IN_SUMS = (
    "Each ε here is of sums, against who sees what the cloud sees, with those on its side that the run names."
)
_AT_END = "The statement in words is written when the run has ended. Until then: ε of the releases on record."
_STATED = (
    *("edge", "edge_id", "releases", "shard_size", "release", "sampler"),
    *("epsilon", "epsilon_replace_one", "method", "reason"),
)
Question = tuple[ReleaseKind, int, float, bool]  # messages, δ, whether quickly
MOST_KINDS = 64  # whose curves are computed; of further ones the statement at the end has the figures


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
def epsilon(kind: ReleaseKind, releases: int, delta: float, quick: bool = False) -> float | None:
    """Return ε at δ of a number of messages, zero-out adjacency, as the statement computes it; None: no finite one.

    `quick`: by Rényi DP, about a tenth above that in a hundredth of the time, where it applies.
    """
    rdp, spent = quick and kind.truncation is None, [Spent(kind, kind.charges(releases))]
    try:
        value = total(spent, delta, quick=rdp, replace_one=False).epsilon
    except (MapaError, ArithmeticError, ValueError):
        return None
    return value if math.isfinite(value) else None


class _Figure(NamedTuple):
    epsilon: float | None = None
    exact: bool = True  # False: at most that
    of: int | None = None  # releases whose ε it is
    asked: Question | None = None  # what is to be computed before it is known


class EdgeKinds:
    """How each edge of a run releases, looked at again only where its records have changed."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[object, object, ReleaseKind | None]] = {}

    def of(self, page: Page) -> dict[int, ReleaseKind]:
        """Return the kind of each edge whose ε is computed: of those shown, and of a bounded number of kinds."""
        of_edges: dict[int, ReleaseKind] = {}
        kinds: set[ReleaseKind] = set()
        for k, lane in list(page.counted.lanes.items())[:LANES]:
            *of, kind = self._seen.get(k, (None, None, None))
            if of[0] is not page.manifest or of[1] is not lane.joined:
                kind = release_kind(page.scenario, shard_size(page.manifest, k), lane.joined)
                kind = (
                    None if kind is None else kind.in_sums
                )  # the budget is of sums, where releases are summed
                self._seen[k] = (page.manifest, lane.joined, kind)
            if kind is None or lane.mixed:  # its count alone does not say what its releases cost
                continue
            if page.counted.tally.edges[k].joins > 1 and kind.mechanism.sampler.by_epoch:
                continue  # an epoch began again
            if kind in kinds or len(kinds) < MOST_KINDS:
                kinds.add(kind)
                of_edges[k] = kind
        return of_edges


class Spending:
    """ε of one run's edges at one moment, by what is known of it."""

    def __init__(
        self, page: Page, kinds: Mapping[int, ReleaseKind], known: Mapping[Question, float | None]
    ) -> None:
        self._page, self._kinds, self._known = page, kinds, known
        delta = page.privacy.get("total_delta")
        self._delta = delta if isinstance(delta, float) and 0 < delta < 1 else 1e-5
        self._privacy = table(page.summary, "privacy")
        stated = by_edge(self._privacy, "edges")
        self._figures = {k: self._now(k, kinds.get(k), stated.get(k, {})) for k in {*kinds, *stated}}

    def unanswered(self) -> Iterator[Question]:
        """Yield what is to be computed: what is shown now, then what will be next, then the points of the curves."""
        asked = [question for k in self._kinds if (question := self._figures[k].asked) is not None]
        for k, kind in self._kinds.items() if not self._privacy else ():
            asked += [self._of(kind, bound) for bound in self._bounds(k)]
        for k, kind in self._kinds.items():
            marks = reversed(self._page.counted.lanes[k].marks)
            asked += [self._of(kind, releases) for releases, _, _ in marks]
        yield from (question for question in dict.fromkeys(asked) if question not in self._known)

    def _of(self, kind: ReleaseKind, releases: int, *, quick: bool = True) -> Question:
        return kind, releases, self._delta, quick

    def _bounds(self, edge: int) -> list[int]:
        """Return numbers of releases, at least those on record, whose ε is computed: the nearest, and one for later.

        One more than is on record may have been made, unless the edge's R_k does not permit it: it is on its way.
        """
        caps = self._page.privacy.get("release_caps")
        cap = caps[edge % len(caps)] if isinstance(caps, list) and caps else None
        on_record = self._page.counted.tally.edges[edge].last_sequence
        releases = on_record + (on_record != cap)
        bounds = _BOUNDS[bisect.bisect_left(_BOUNDS, releases) :][: _AHEAD : _AHEAD - 1]
        if type(cap) is int and releases <= cap:
            return sorted({min(bound, cap) for bound in bounds})
        return bounds

    def _now(self, edge: int, kind: ReleaseKind | None, stated: Mapping[str, Any]) -> _Figure:
        """Return what an edge has spent by now, the same for every view: the statement's figure, else a bound.

        A bound is the ε of more releases than are on record. Its ledger lets an edge pass no budget, so the budget
        bounds it, too, unless those on record are found beyond: they are shown as they are. Of an edge with local data
        the ledger alone has the figure.
        """
        value, budget = (
            number(table(stated, "in_sums").get("epsilon", stated.get("epsilon"))),
            self._page.budget,
        )
        if value is not None:
            if budget is None or stated.get("shard_size_at_least") is not True:
                return _Figure(value)
            return _Figure(min(value, budget), exact=False)
        tally = self._page.counted.tally.edges.get(edge)
        if stated or kind is None or tally is None or not tally.applied:
            return _Figure()
        bounds = self._bounds(edge)
        if not bounds:
            return _Figure()
        bound = next((bound for bound in bounds if self._of(kind, bound) in self._known), None)
        if bound is None:
            return _Figure(asked=self._of(kind, bounds[0]))
        value = self._known[self._of(kind, bound)]
        if value is None or budget is None or value <= budget:
            return _Figure(value, exact=False, of=bound)
        if self._page.local:
            return _Figure(budget, exact=False)
        place = bisect.bisect_right(_BOUNDS, max(1, tally.last_sequence))
        least = _BOUNDS[place - 1]
        before = (self._of(kind, n, quick=False) for n in _BOUNDS[max(0, place - 8) : place])
        if all((known := self._known.get(one, 0.0)) is not None and known <= budget for one in before):
            for question in (self._of(kind, least), self._of(kind, least, quick=False)):
                if question not in self._known:
                    return _Figure(asked=question)
                if (spent := self._known[question]) is not None and spent <= budget:
                    return _Figure(budget, exact=False)
        return _Figure(value, exact=False, of=bound)

    def added_to(self, fleet: dict[str, Any]) -> dict[str, Any]:
        """Add what each edge has spent, how it is known, and whether it is being computed."""
        for row in fleet["edges"]:
            now = self._figures.get(row["edge"], _Figure())
            row |= {
                "epsilon": now.epsilon,
                "epsilon_exact": now.exact and now.epsilon is not None,
                "epsilon_of": now.of,
                "epsilon_pending": now.asked is not None,
            }
        return fleet

    def section(self) -> dict[str, Any]:
        """Return the statement, and each edge's ε over its releases."""
        page, stated, edges = self._page, self._privacy, self._page.counted.tally.edges
        listed, of_edge = (
            [{**row, **table(row, "in_sums")} for row in rows(stated, "edges")],
            by_edge(stated, "edges"),
        )
        summed = [_IN_SUMS] if table(page.scenario, "secure") else []
        curves: list[dict[str, Any]] = []
        hidden = 0
        for k in sorted(page.counted.lanes.keys() & self._figures.keys()):
            if len(curves) >= _CURVES:
                hidden += 1
            elif spent := self._curve(k, of_edge.get(k, {})):
                columns = map(list, zip(*spent, strict=True))
                named = dict(zip(("releases", "t", "seconds", "epsilon"), columns, strict=True))
                curves.append({"edge": k, "edge_id": edges[k].edge_id, **named})
        return {
            "words": [
                *summed,
                *([line[:_WORDS] for line in statement_of(page.summary)[:_LINES]] or [_AT_END]),
            ],
            "stated": bool(stated),
            "delta": number(stated.get("delta", self._delta)),
            "epsilon": number(table(stated, "in_sums").get("epsilon", stated.get("epsilon"))),
            "adjacency": "zero-out",
            "budget": page.budget,
            "edges": [{key: _cell(row.get(key)) for key in _STATED} for row in listed[:LANES]],
            "hidden_edges": max(0, len(listed) - LANES),
            "curves": curves,
            "hidden_curves": hidden,
            "pending": any(self._figures[k].asked for k in self._kinds),
        }

    def _curve(self, edge: int, stated: Mapping[str, Any]) -> list[tuple[int, int, float | None, float]]:
        """Return (releases, t, seconds, ε) of an edge, as far as it is computed; the last point is that of now."""
        lane, kind, now = self._page.counted.lanes[edge], self._kinds.get(edge), self._figures[edge].epsilon
        marks = [] if kind is None else [(self._known.get(self._of(kind, one[0])), one) for one in lane.marks]
        spent = [(n, t, seconds, value) for value, (n, t, seconds) in marks if value is not None]
        releases = stated.get("releases", self._page.counted.tally.edges[edge].last_sequence)
        if now is None or lane.last is None or type(releases) is not int:
            return spent
        return [*(one for one in spent if one[0] < releases and one[3] <= now), (releases, *lane.last, now)]


def _cell(value: object) -> str | float | None:
    return text(value) if isinstance(value, str) else number(value)
