"""What each edge has released, by its run's cloud, summary or events, or by the edges' own ledgers; and its cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from cloud.admission import EdgeAccount, Restarts
from common.accounting.releases import ReleaseKind
from common.datasets.catalogue import records_of
from common.datasets.source import LOCAL
from common.errors import ConfigurationError
from common.noise.law import NoiseLaw
from common.noise.registry import describe_law
from common.quantities import EdgeId
from common.records.reader import read_json, read_manifest, read_run
from common.records.tally import Tally
from common.scenario.parts import least_records
from common.scenario.scenario import Scenario, parse_scenario
from edge.ledger import Remainder, Standing
from edge.sqlite_ledger import FILE_NAME, ledger_snapshot
from mapa import output
from mapa.statement import EdgeReleases, Statement, state_privacy

OWN = (
    "Edges do not tell how many records they bring: this bound is for {least}, the fewest that take part, and with"
    " more of them ε is smaller. Each edge's own ledger states its own ε, and by that its budget is kept. A record"
    " that several edges bring adds up what each of them released."
)
_STARTS = (
    "With the shuffled sampler each start of an edge's process begins a new epoch: the starts that this"
    " cloud saw are counted."
)
EARLIER = (
    "Of releases before this cloud began it does not know the starts: each of them is counted as an epoch"
    " of its own."
)
_LOCAL_DATA = (
    "Local data {name!r}: all releases under this name count for each of its records, whatever was added, removed"
    " or changed in between. Totals are per name: a record that also lies in data of another name, or of another"
    " state directory, has both totals added up, and keeping them apart is up to their owner."
)
_MOST_BUDGETS = 4  # kinds of release whose remainder is computed
DELTA = 1e-5  # where neither the run nor a budget names one

Book = list[tuple[EdgeId, list[Standing]]]  # of each ledger, its id and its accounts on the same records
Edge = tuple[int, str, NoiseLaw | None, int, int]  # k, id, law, n_k, messages


# -- of a run, as its cloud counted ----------------------------------------------------------------------------


class Starts(Protocol):
    """Where edges were started again, as far as it counts."""

    def earlier(self, edge_id: EdgeId, /) -> int:
        """Return how many releases there were before this cloud first heard of the edge."""

    def charges(self, edge_id: EdgeId, kind: ReleaseKind, messages: int) -> int:
        """Return at least what the edge's ledger has charged for its messages."""


def releases_of(account: EdgeAccount, restarts: Restarts, tally: Tally, *, begun: bool) -> tuple[int, int]:
    """Return how many gradients the cloud knows an edge to have released, and how many it can have.

    One more than the cloud knows of may have left, if the edge was ever sent a model (`begun`: with the first stage
    every edge is): only an edge that found its budget spent had an answer to its last one. Its own ledger has the
    last word.
    """
    known = max(account.last_sequence, restarts.known(account.edge_id))
    gone = tally.edges[account.index].gone
    return known, known + (begun and (account.present or gone != "budget"))


def privacy_of(
    scenario: Scenario, edges: Sequence[Edge], restarts: Starts | None = None, least: int | None = None
) -> dict[str, Any]:
    """State what the releases guarantee, or why that cannot be computed.

    `restarts`: where edges were restarted; None: no edge was. `least`: edges bring their own records and every n_k is
    this bound; None: the n_k are known.
    """
    if not any(messages for *_, messages in edges):
        return {"words": ["Nothing was released."], "edges": []}
    try:
        released = [_of_run(scenario, edge, least) for edge in edges]
        if restarts is not None and scenario.sampler.by_epoch:
            released = [_with_starts(edge, restarts) for edge in released]
        return _state(scenario, released).as_dict()
    except ConfigurationError as error:
        return {"words": [f"The privacy of this run was not computed: {error}"], "edges": []}


def _of_run(scenario: Scenario, edge: Edge, least: int | None) -> EdgeReleases:
    k, edge_id, law, size, messages = edge
    return EdgeReleases(
        edge=k,
        edge_id=edge_id,
        kind=ReleaseKind(scenario.mechanism(law), size),
        releases=messages,
        reproducible=scenario.seed is not None,
        at_least=least is not None,
        notes=() if least is None else (OWN.format(least=least),),
    )


def _with_starts(edge: EdgeReleases, restarts: Starts) -> EdgeReleases:
    edge_id = EdgeId(edge.edge_id)
    notes = (_STARTS, EARLIER) if restarts.earlier(edge_id) else (_STARTS,)
    charges = restarts.charges(edge_id, edge.kind, edge.releases)
    return replace(edge, charges=charges, notes=(*edge.notes, *notes))


def _state(scenario: Scenario, released: Sequence[EdgeReleases], delta: float | None = None) -> Statement:
    chosen = scenario.privacy.total_delta if delta is None else delta
    return state_privacy(released, chosen, shared=scenario.data.partition == "shared")


# -- of a directory ---------------------------------------------------------------------------------------------


def statements_of(path: Path, delta: float | None, *, budgets: bool = False) -> dict[str, Statement]:
    """Return the statements of an edge's own ledgers where they are here, else that of what the cloud was told.

    One for each data set that has records of its own, by its checksum. `budgets`: with what is left of the ledgers'.
    """
    ledgers = {found for depth in ("", "*/", "state/*/") for found in path.glob(f"{depth}{FILE_NAME}")}
    manifest = read_manifest(path) if (path / "manifest.json").is_file() else None
    scenario = None if manifest is None else parse_scenario(manifest["scenario"])
    if ledgers:
        return _of_ledgers(path, sorted(ledgers), scenario, delta, budgets=budgets)
    if scenario is None:
        raise ConfigurationError(f"run = {str(path)!r}: contains neither records of a run nor a ledger")
    if (path / "summary.json").is_file():
        released = _of_summary(read_json(path / "summary.json"), scenario)
    else:
        note = "only recorded gradients are counted; edges may have released more (see their ledgers)"
        output.console(stderr=True, soft_wrap=True).print(note, highlight=False)
        released = releases_on_record(path)
    return {scenario.data.set: _state(scenario, released, delta)}


def releases_on_record(path: Path) -> list[EdgeReleases]:
    """Return what the events prove that each edge has released: at least that, for the last ones may be missing."""
    run = read_run(path)
    scenario, sizes = parse_scenario(run.manifest["scenario"]), run.manifest.get("shard_sizes")
    if sizes is None:
        raise ConfigurationError(
            f"{path}: its manifest has no shard_sizes, so ε cannot be computed from the events; see the edges' ledgers"
        )
    least = least_records(scenario)
    if least is not None:
        sizes = [least] * scenario.workers
    if strange := [k for k in (*run.joined, *run.tally.edges) if k >= scenario.workers]:
        raise ConfigurationError(f"{path}: events of edge {strange[0]}; it has {scenario.workers}")
    applied = [(k, edge.last_sequence) for k, edge in sorted(run.tally.edges.items()) if edge.applied]
    if not applied:
        raise ConfigurationError(f"{path}: unfinished, and no gradient is on record: no release is known")
    joined = run.joined
    return [
        _of_run(scenario, (k, joined[k]["edge_id"], _law(joined[k]), sizes[k], messages), least)
        for k, messages in applied
    ]


def _of_summary(summary: dict[str, Any], scenario: Scenario) -> list[EdgeReleases]:
    stated = summary.get("privacy", {}).get("edges", [])
    if not stated:
        raise ConfigurationError(f"run = {summary['run']!r}: nothing was released")
    released = []
    for row in stated:
        size = row["shard_size"]
        least = size if row.get("shard_size_at_least", False) else None
        given = {"epsilon": row["epsilon_per_release"], "noise_multiplier": row["noise_multiplier"]}
        law = _law({"noise": row["noise"], **given, **row.get("parameters", {})})
        edge = _of_run(scenario, (row["edge"], row["edge_id"], law, size, row["releases"]), least)
        released.append(replace(edge, charges=row["charges"], reproducible=row["reproducible_noise"]))
    return released


def _law(values: dict[str, Any]) -> NoiseLaw | None:
    """Return the law that a record of joining names, with its parameters among the other keys; None: no noise."""
    if values["noise"] == "none":
        return None
    law = describe_law(values["noise"])
    return law.make({key: values[key] for key in law.names if values.get(key) is not None})


# -- of ledgers -------------------------------------------------------------------------------------------------


def _of_ledgers(
    folder: Path, ledgers: list[Path], scenario: Scenario | None, delta: float | None, *, budgets: bool
) -> dict[str, Statement]:
    """Account what the ledgers hold, one statement for all runs on the same records, oldest records first."""
    books: dict[str, Book] = {}
    for path in ledgers:
        with ledger_snapshot(path.parent, folder) as ledger:
            for records, standings in by_records(ledger.standings()).items():
                books.setdefault(records, []).append((ledger.edge_id, standings))
    if not books:
        raise ConfigurationError("the ledgers contain no account yet")
    charged = {
        records: book for records, book in books.items() if any(one.charges for _, s in book for one in s)
    }
    fallback = DELTA if scenario is None else scenario.privacy.total_delta
    return {
        records: statement_of_book(book, delta, fallback, budgets=budgets)
        for records, book in (charged or dict([*books.items()][-1:])).items()
    }


def by_records(standings: Iterable[Standing]) -> dict[str, list[Standing]]:
    groups: dict[str, list[Standing]] = {}
    for standing in standings:
        groups.setdefault(records_of(standing.account.shard.dataset), []).append(standing)
    return groups


def statement_of_book(
    book: Book, delta: float | None = None, fallback: float = DELTA, *, budgets: bool = False
) -> Statement:
    """State what the ledgers' standings on the same records cost; without charges, the last one's terms."""
    told = [(name, [one for one in theirs if one.charges] or theirs[-1:]) for name, theirs in book]
    edges = [_of_ledger(*one) for one in told]
    if budgets:
        edges = [replace(edge, **left) for edge, left in zip(edges, _remainders(book, told), strict=True)]
    if delta is None:
        kept = (b for _, s in told for b in (s[-1].account.budget, s[-1].account.sum_budget))
        delta = next((budget.delta for budget in kept if budget is not None), fallback)
    return state_privacy(sorted(edges, key=lambda edge: edge.edge), delta, of_ledgers=True)


def _remainders(book: Book, told: Book) -> Iterator[dict[str, Any]]:
    """Yield the budget of each ledger and what is left of it; an accountant may take seconds, so not of too many."""
    asked: set[object] = set()
    for number, (_, standings) in enumerate(book):
        now = told[number][1][-1]
        own, sums = now.account.budget, now.account.sum_budget
        asked.add((now.account.kind, own, sums, *(one.spent for one in standings if one != now)))
        others = [one for _, theirs in (*book[:number], *book[number + 1 :]) for one in theirs]
        left = Remainder.of(now, standings, others) if len(asked) <= _MOST_BUDGETS else None
        if left is None:
            yield {"budget": own or sums}
        else:
            yield {"budget": left.budget, "left": left.releases}


def _of_ledger(edge_id: EdgeId, standings: list[Standing]) -> EdgeReleases:
    """Return what a ledger let go of the same records: it charges no two shards of a cut, so all of it overlaps."""
    [*earlier, now] = standings
    kind, _, name = now.account.shard.dataset.partition(":")
    return EdgeReleases(
        edge=now.account.shard.index,
        edge_id=edge_id,  # the present one: an edge whose identity was renewed is charged by it
        kind=now.account.kind,
        releases=now.releases,
        charges=now.charges,
        earlier=tuple(standing.spent for standing in earlier),
        reproducible=any(standing.account.reproducible for standing in standings),
        shards=tuple(standing.of_shard for standing in standings),
        notes=(_LOCAL_DATA.format(name=name),) if kind == LOCAL else (),
    )
