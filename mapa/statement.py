"""The privacy guarantee of a run's releases, edge by edge: in words, as a table and as JSON."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from common.accounting import gaussian
from common.accounting.gaussian import GaussianReleases
from common.accounting.releases import Budget, ReleaseKind, ShardSpent, Spent
from common.accounting.total import Total, delta_left, total, total_of_records
from common.mechanism.grid import Grid
from common.mechanism.guarantee import Adjacency
from common.mechanism.mechanism import Mechanism
from mapa.output import rounded_up

if TYPE_CHECKING:
    from rich.table import Table

# Edges that differ are accounted one by one up to so many PLDs; beyond, all but the largest and the
# smallest get RDP's upper bound, with the sampling rate rounded up to one of _RATES.
MOST_PLDS = 8
_RATES = 32
_ROWS = 20  # edges in the printed table
SHARED = "they draw from the same records"
LITTLE = 10.0  # from this ε on, say that it protects little


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeReleases:
    """What edge k has released."""

    edge: int  # k
    edge_id: str
    kind: ReleaseKind
    releases: int  # messages, each of E releases
    charges: int | None = None  # the ledger's count; None: no restart within an epoch
    earlier: tuple[Spent, ...] = ()  # by other runs, on the same records
    reproducible: bool = False  # seeded noise
    shards: tuple[ShardSpent, ...] = ()  # all that its ledger spent, by shard; (): no ledger was asked
    notes: tuple[str, ...] = ()  # how it was counted, in sentences
    at_least: bool = False  # the kind's n_k is a bound: the edge's own number is not known here
    budget: Budget | None = None  # that its ledger keeps; None: none, or no ledger was asked
    left: int | None = None  # messages that it still permits; None: not asked

    @property
    def spent(self) -> tuple[Spent, ...]:
        charges = self.kind.charges(self.releases) if self.charges is None else self.charges
        return (*self.earlier, Spent(self.kind, charges))

    @property
    def in_sums(self) -> EdgeReleases:
        """The same as the cloud sees it, where it sees sums alone."""
        earlier = tuple(replace(one, kind=one.kind.in_sums) for one in self.earlier)
        shards = tuple(
            replace(one, spent=replace(one.spent, kind=one.spent.kind.in_sums)) for one in self.shards
        )
        return replace(self, kind=self.kind.in_sums, earlier=earlier, shards=shards)


@dataclass(frozen=True, slots=True)
class EdgeStatement:
    """An edge's releases and what they cost a record of its shard."""

    of: EdgeReleases
    total: Total
    exact: bool = True  # False: RDP's upper bound, computed for many edges at once
    in_sums: Total | None = None  # against who sees what the cloud sees; None: no release was summed


@dataclass(frozen=True, slots=True)
class Statement:
    """The privacy of a run."""

    delta: float
    edges: tuple[EdgeStatement, ...]
    whole: Total  # of a record, whichever it is: the largest edge's, or several edges' together
    composed: str  # why edges' releases were composed; '': no record can lie in two edges' shards
    of_ledgers: bool = False  # every run that the edges' ledgers know is counted; False: one run alone
    in_sums: Total | None = None  # of a record, where the cloud sees sums alone; None: no release was summed

    @property
    def grids(self) -> list[Grid]:
        """Who may side with whom, of all releases that were summed."""
        kinds = (spent.kind for edge in self.edges for spent in edge.of.spent if spent.charges)
        grids = (kind.mechanism.grid for kind in kinds)
        return list(dict.fromkeys(one for one in grids if one is not None and one.members > 1))

    @property
    def reproducible(self) -> bool:
        return any(edge.of.reproducible for edge in self.edges)

    @property
    def largest(self) -> EdgeStatement:
        """The edge whose records are protected least."""
        return _largest(self.edges)

    def words(self) -> list[str]:
        """Return the statement in sentences, the worst first."""
        return [*_words(self), *_budget_words([edge.of for edge in self.edges])]

    def as_dict(self) -> dict[str, object]:
        """Return the statement for JSON; an infinite ε is null, with its reason."""
        return {
            "words": self.words(),
            "delta": self.delta,
            "adjacency": Adjacency.ZERO_OUT.value,
            "reproducible_noise": self.reproducible,
            "shared_records": bool(self.composed),
            "composed_because": self.composed or None,
            "largest_edge": self.largest.of.edge,
            **_figures(self.whole),
            **({} if self.in_sums is None else {"in_sums": _figures(self.in_sums)}),
            "edges": [_edge_dict(edge) for edge in self.edges],
        }

    def table(self) -> Table:
        """Return the edges as a table; of many edges, those with the largest ε."""
        from rich.table import Table

        shown = self.edges
        title = f"Privacy of each edge's records at δ = {self.delta:g}, zero-out adjacency"
        if len(shown) > _ROWS:
            ranked = sorted(shown, key=lambda edge: -edge.total.epsilon)[:_ROWS]
            shown = tuple(sorted(ranked, key=lambda edge: edge.of.edge))
            title += f"; the {_ROWS} largest of {len(self.edges)}"
        table = Table(title=title)
        for heading in ("edge", "id", "n_k", "releases", "noise", "clipping", "scope", "sampler"):
            table.add_column(heading, justify="right" if heading in ("edge", "n_k", "releases") else "left")
        methods = [m for m in Total.METHODS if any(m in e.total.by_method() for e in shown)]
        kept = ("budget", "left") if any(edge.of.budget for edge in shown) else ()
        summed = ("ε in sums",) if self.in_sums is not None else ()
        for heading in (*summed, *(f"ε {method}" for method in methods), "ε replace-one", *kept):
            table.add_column(heading, justify="right")
        for edge in shown:
            figures = edge.total.by_method()
            row = _mechanism(edge.of.kind)
            table.add_row(
                str(edge.of.edge),
                edge.of.edge_id,
                f"{'≥ ' if edge.of.at_least else ''}{edge.of.kind.shard_size}",
                _messages(edge.of),
                *(row[key] for key in ("release", "clipping", "scope", "sampler")),
                *((_sum_cell(edge.in_sums),) if summed else ()),
                *(_cell(figures.get(method), edge) for method in methods),
                _cell(edge.total.replace_one, edge),
                *(_budget_cells(edge.of) if kept else ()),
            )
        return table


def state_privacy(
    edges: Sequence[EdgeReleases], delta: float, *, shared: bool = False, of_ledgers: bool = False
) -> Statement:
    """Account every edge at δ; edges with the same parameters are accounted once.

    `shared`: shards overlap, so a record pays for all edges' releases; where the edges' ledgers say which shards they
    spent on, that is found out here. `of_ledgers`: the edges' ledgers were asked, so that no run of theirs is missing.
    """
    if not edges:
        raise ValueError("a statement needs at least one edge")
    stated, whole, why = _accounted(edges, delta, shared=shared)
    if not any(one.kind.is_summed for edge in edges for one in edge.spent):
        return Statement(delta, stated, whole, why, of_ledgers)
    summed, in_sums, _ = _accounted([edge.in_sums for edge in edges], delta, shared=shared)
    both = tuple(replace(one, in_sums=other.total) for one, other in zip(stated, summed, strict=True))
    return Statement(delta, both, whole, why, of_ledgers, in_sums)


def _accounted(
    edges: Sequence[EdgeReleases], delta: float, *, shared: bool
) -> tuple[tuple[EdgeStatement, ...], Total, str]:
    """Return what each edge's releases cost, what any record's do, and why those of several edges were composed."""
    keys = {edge.spent for edge in edges}
    sampled = {key: of for key in keys if (of := _sampled_gaussian(key)) is not None}
    ranked = _ranked(sampled, delta) if len(sampled) > MOST_PLDS else {}
    totals = {key: (total(key, delta), True) for key in keys - ranked.keys()} | ranked
    stated = tuple(EdgeStatement(edge, *totals[edge.spent]) for edge in edges)
    overlap = overlapping(edges)
    if shared:
        everything = [spent for edge in edges for spent in edge.spent]
        whole = total(everything, delta)
    elif overlap:
        whole = total_of_records([one for edge in edges for one in edge.shards], delta)
    else:
        whole = _largest(stated).total
    return stated, whole, SHARED if shared else overlap


def overlapping(edges: Sequence[EdgeReleases]) -> str:
    """Say why a record may lie in the shards of two edges' ledgers; '' where none can."""
    holders: dict[str, dict[int | None, set[int]]] = {}
    for number, edge in enumerate(edges):
        for one in edge.shards:
            if one.spent.charges:
                holders.setdefault(one.cut, {}).setdefault(one.shard, set()).add(number)
    for cut, shards in holders.items():
        for shard, numbers in shards.items():
            if len(numbers) > 1 and shard is None:
                return SHARED
            if len(numbers) > 1:
                ids = " and ".join(sorted(edges[number].edge_id for number in numbers)[:2])
                return f"{len(numbers)} ledgers ({ids}{' …' if len(numbers) > 2 else ''}) hold shard {shard} ({cut})"
    if (
        len(holders) > 1
        and len({number for shards in holders.values() for s in shards.values() for number in s}) > 1
    ):
        return f"a record may lie in shards of different cuts of the same data ({'; '.join(sorted(holders))})"
    return ""


Key = tuple[Spent, ...]


def _sampled_gaussian(key: Key) -> GaussianReleases | None:
    """Return a key that is one sampled Gaussian, which needs PLD; None: it is quick, or too rare to approximate."""
    [*earlier, spent] = key
    multiplier = spent.kind.guarantee(Adjacency.ZERO_OUT).noise_multiplier
    if earlier or multiplier is None or spent.kind.sampling_rate >= 1 or not spent.charges:
        return None
    return GaussianReleases(multiplier, spent.kind.sampling_rate, spent.charges)


def _ranked(keys: Mapping[Key, GaussianReleases], delta: float) -> dict[Key, tuple[Total, bool]]:
    """Account the largest and the smallest exactly and bound the rest.

    ε rises with the rate and the count and falls with z, so RDP at a rate rounded up bounds each, and
    the search for the largest may stop at the first whose bound is not above what was found.
    """
    cuts = _round_up({of.rate for of in keys.values()})
    bounds: dict[Key, float] = {}
    for key, of in keys.items():
        rate = cuts[bisect.bisect_left(cuts, of.rate)]
        left = delta_left(key, delta)
        bounds[key] = gaussian.rdp(GaussianReleases(of.noise_multiplier, rate, of.count), left)
    order = sorted(keys, key=bounds.__getitem__, reverse=True)
    exact: dict[Key, Total] = {order[-1]: total(order[-1], delta)}
    largest = 0.0
    for key in order:
        if bounds[key] <= largest:
            break
        if not any(_dominates(keys[done], keys[key]) for done in exact):
            exact[key] = total(key, delta)
            largest = max(largest, exact[key].epsilon)
    reason = (
        "an upper bound, computed for many edges at once: by RDP, or the largest edge's ε where that is less"
    )
    return {
        key: (exact[key], True)
        if key in exact
        else (Total(delta=delta, bound=min(bounds[key], largest), reason=reason), False)
        for key in keys
    }


def _round_up(rates: set[float]) -> list[float]:
    """Return at most _RATES of the rates, the largest among them."""
    ordered = sorted(rates)
    step = math.ceil(len(ordered) / _RATES)
    return sorted({*ordered[step - 1 :: step], ordered[-1]})


def _dominates(one: GaussianReleases, other: GaussianReleases) -> bool:
    return (
        one.noise_multiplier <= other.noise_multiplier and one.rate >= other.rate and one.count >= other.count
    )


def _words(statement: Statement) -> Iterator[str]:
    if statement.reproducible:
        yield (
            "Reproducible noise: not private. The noise follows from a seed, and anyone who knows the seed can"
            " subtract it; the figures are those of secure randomness."
        )
    if not any(spent.charges for edge in statement.edges for spent in edge.of.spent):
        yield "Nothing was released."
        return
    yield from _words_of_sums(statement)
    edges = [edge for edge in statement.edges if edge.total.is_private]
    bare = [edge for edge in statement.edges if not edge.total.is_private]
    if bare:
        some = (
            "Not" if not edges or statement.composed else f"{len(bare)} of {len(statement.edges)} edges not"
        )
        yield f"{some} differentially private (ε = ∞): {bare[0].total.reason}."
    if bare and (statement.composed or not edges):
        return
    worst = _largest(edges)
    whole = statement.whole if statement.composed else worst.total
    when = "" if statement.of_ledgers else " in this run"
    subject, seen = "Each record of an edge's shard", f"that its edge released{when}"
    if statement.composed:
        subject = "Each record"
        seen = f"that all edges released{when}, composed since {statement.composed}"
    elif bare:
        subject = "Each record of the other edges' shards"
    verb = "would, with secure randomness, be" if statement.reproducible else "is"
    bound = ""
    if worst.of.at_least:
        other = "each other" if bare else "an"
        subject = f"For {other} edge with at least {worst.of.kind.shard_size} records: each of them"
        bound = "at most "
    yield (
        f"{subject} {verb} protected with {bound}(ε = {rounded_up(whole.epsilon)}, δ = {whole.delta:g})-DP under"
        f" zero-out adjacency (its contribution set to zero; shard sizes are public), against anyone who sees all"
        f" gradients {seen}."
    )
    if whole.epsilon >= LITTLE:
        yield f"An ε of {LITTLE:g} or more gives little protection."
    if any(edge.of.earlier for edge in statement.edges):
        yield "Releases of earlier runs on the same records are included."
    if steps := sorted({edge.of.kind.mechanism.steps for edge in statement.edges} - {1}):
        yield (
            f"Local steps: a message is the mean of {' or '.join(map(str, steps))} noised gradients, and each of them"
            " is charged as a release."
        )
    yield from dict.fromkeys(note for edge in statement.edges for note in edge.of.notes)
    source = f"The largest over edges, edge {worst.of.edge}'s"
    if statement.composed:
        source = (
            "All releases together" if statement.composed == SHARED else "Each cut's worst shard together"
        )
    beside = ""
    if whole.replace_one is not None:
        beside = f"; under replace-one adjacency ε = {rounded_up(whole.replace_one)}"
    yield f"{source}, by {_NAMES[whole.method]}{beside}."


def _words_of_sums(statement: Statement) -> Iterator[str]:
    """Say what sums hide, and from whom, and when all that is left is an edge's own noise."""
    figure, grids = statement.in_sums, statement.grids
    if figure is None:
        return
    sums = "; or ".join(
        f"of {one.members} or more edges, with at most {one.away} of {one.helpers} helpers and {one.colluding} of the"
        " other edges on its side"
        for one in grids
    )
    whom = "Each record" if statement.composed else "Each record of an edge's shard"
    verb = "would, with secure randomness, be" if statement.reproducible else "is"
    if figure.is_private:
        least = statement.largest.of
        bound = f"at most (for {least.kind.shard_size} records or more) " if least.at_least else ""
        yield (
            f"In sums: {whom[0].lower()}{whom[1:]} {verb} protected with {bound}(ε = {rounded_up(figure.epsilon)}, δ ="
            f" {figure.delta:g})-DP under zero-out adjacency against anyone who sees what the cloud sees, which is sums"
            f" {sums}."
        )
    else:
        yield f"In sums: not differentially private (ε = ∞): {figure.reason}."
    if any(not spent.kind.is_summed for edge in statement.edges for spent in edge.of.spent if spent.charges):
        yield "Releases that were not summed count there by their own noise."
    yield (
        "On its own: if all other edges, or more helpers than that, side with the cloud, a release has its own edge's"
        " noise alone, and then:"
    )


def _budget_words(edges: Sequence[EdgeReleases]) -> Iterator[str]:
    """Say what is left of each budget that the ledgers keep."""
    for budget in dict.fromkeys(edge.budget for edge in edges if edge.budget is not None):
        left = {edge.left for edge in edges if edge.budget == budget and edge.left is not None}
        told = f"Budget{' of sums' if budget.in_sums else ''}: ε = {budget.epsilon:g} at δ = {budget.delta:g}"
        if not left:
            yield f"{told}."
        elif left == {0}:
            yield f"{told}. It is spent: it permits no further release on the terms of the last run."
        else:
            least, most = min(left), max(left)
            number = f"{most:,}" if least == most else f"{least:,} to {most:,} (by edge)"
            yield f"{told}. It permits {number} more releases on the terms of the last run."


def _budget_cells(of: EdgeReleases) -> tuple[str, str]:
    return "–" if of.budget is None else f"{of.budget.epsilon:g}", "–" if of.left is None else f"{of.left:,}"


_NAMES = {
    "rdp": "RDP",
    "pld": "PLD",
    "basic": "basic composition",
    "advanced": "advanced composition",
    "optimal": "optimal composition",
    "heterogeneous": "heterogeneous composition",
    "bound": "a bound for many edges at once",
    "odometer": "an RDP odometer, valid however the terms of later releases were chosen",
}


def _largest(edges: Sequence[EdgeStatement]) -> EdgeStatement:
    return max(edges, key=lambda edge: (edge.total.epsilon, edge.exact))


def _edge_dict(edge: EdgeStatement) -> dict[str, object]:
    of, kept = edge.of, {}
    if of.budget is not None:
        budget = {"epsilon": of.budget.epsilon, "delta": of.budget.delta}
        kept = {"budget": budget, "releases_left": of.left}
    parameters = {} if of.kind.law is None else of.kind.law.parameters
    return {
        "edge": of.edge,
        "edge_id": of.edge_id,
        "releases": of.releases,
        **({"local_steps": of.kind.mechanism.steps} if of.kind.mechanism.steps > 1 else {}),
        "charges": of.spent[-1].charges,
        "shard_size": of.kind.shard_size,
        **({"shard_size_at_least": True} if of.at_least else {}),
        **_mechanism(of.kind),
        "noise_multiplier": parameters.pop("noise_multiplier", None),
        "epsilon_per_release": parameters.pop("epsilon", None),
        **({"parameters": parameters} if parameters else {}),
        "reproducible_noise": of.reproducible,
        "exact": edge.exact,
        **({} if edge.in_sums is None else {"in_sums": _figures(edge.in_sums)}),
        **kept,
        **_figures(edge.total),
    }


def _messages(of: EdgeReleases) -> str:
    """Return how much was released: with local steps, messages × E."""
    steps = of.kind.mechanism.steps
    return str(of.releases) if steps == 1 else f"{of.releases} × {steps}"


def _figures(figure: Total) -> dict[str, object]:
    return {
        "epsilon": figure.epsilon if figure.is_private else None,
        "method": figure.method or None,
        "epsilon_by_method": figure.by_method(),
        "epsilon_replace_one": figure.replace_one,
        "reason": figure.reason or None,
    }


def _mechanism(kind: ReleaseKind) -> dict[str, str]:
    law, mechanism = kind.law, kind.mechanism
    most, sampler = mechanism.amplification.largest, mechanism.sampler.name
    rate = f"{sampler}, rate {kind.drawing_rate:.4g}" if mechanism.amplification.sampled else sampler
    if most is not None:
        rate = f"{rate}, at most {most}"
    if law is None:
        return {"noise": "none", "release": "none", "clipping": "none", "scope": "none", "sampler": rate}
    return {
        "noise": law.name,
        "release": ", ".join(part for part in (law.name, law.strength, _share(mechanism)) if part),
        "clipping": mechanism.clipping.name,
        "scope": mechanism.scope.value,
        "sampler": rate,
    }


def _sum_cell(figure: Total | None) -> str:
    if figure is None:
        return "–"
    return rounded_up(figure.epsilon) if figure.is_private else "∞"


def _share(mechanism: Mechanism) -> str:
    """Say in words that an edge has a share of the noise; '' where it has all of it."""
    grid = mechanism.grid
    return "" if grid is None or grid.members == 1 else f"a share of 1/{grid.members} of its variance"


def _cell(figure: float | None, edge: EdgeStatement) -> str:
    if not edge.total.is_private:
        return "∞"
    if figure is None:
        return "–"
    return f"≤ {rounded_up(figure)}" if edge.of.at_least or not edge.exact else rounded_up(figure)
