"""mapa ledger and mapa calibrate: the privacy cost of a run, and the noise that a budget needs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from decimal import ROUND_CEILING, Decimal
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from common.accounting.releases import Budget, ReleaseKind, check_delta
from common.datasets.catalogue import records_of
from common.datasets.source import LOCAL
from common.errors import ConfigurationError
from common.mechanism.clipping import CLIPPINGS
from common.mechanism.mechanism import Mechanism
from common.mechanism.sampler import SAMPLERS
from common.noise.gaussian import Gaussian
from common.noise.law import NoiseLaw
from common.noise.registry import describe_law
from common.quantities import EdgeId, RunId
from common.records.reader import read_json, read_run, records_in
from common.scenario.parts import least_records
from common.scenario.scenario import Scenario, parse_scenario
from edge.accountant import max_charges_apart
from edge.ledger import MOST_RELEASES, Remainder, Standing
from edge.sqlite_ledger import FILE_NAME, SqliteLedger, ledger_snapshot
from edge.state_directory import StateDirectory, is_held, take_slot
from mapa import output
from mapa.commands import options
from mapa.runs import chosen, unfinished
from mapa.statement import OWN, EdgeReleases, Statement, state_privacy

_PLACES = Decimal("1e-6")  # of a printed z
_MOST_BUDGETS = 4  # kinds of release whose remainder is computed


def ledger_command(
    run: Annotated[
        str,
        typer.Argument(
            help="a run's directory, its id or a unique beginning, latest, or an edge's state directory"
        ),
    ],
    runs: options.RunsDir = Path("runs"),
    delta: Annotated[float | None, typer.Option(help="δ, instead of the run's total_delta")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Print the privacy guarantee of a run: a statement in words, then a table of the edges."""
    if delta is not None:
        check_delta(delta)
    path = _find(run, runs)
    left = unfinished(path)
    if left is not None:
        output.console(stderr=True, soft_wrap=True).print(str(left), highlight=False)
    with records_in(path):
        statements = statements_of(path, delta, budgets=True)
    if as_json:
        document = _document(statements) | ({} if left is None else {"unfinished": str(left)})
        output.print_json(document)
        return
    console = output.console()
    console.width = max(console.width, 140)
    for records, statement in statements.items():
        if len(statements) > 1:
            console.print(f"Records of data set {records}:", soft_wrap=True, highlight=False)
        for line in statement.words():
            console.print(line, soft_wrap=True, highlight=False)
        console.print(statement.table())


def calibrate_command(
    total_epsilon: Annotated[float, typer.Option(help="ε of the whole run")],
    releases: Annotated[
        int, typer.Option(min=1, help="noised gradients of one edge; with local steps, messages × E")
    ],
    batch_size: Annotated[int, typer.Option(min=1, help="b, the batch size")],
    shard: Annotated[int, typer.Option(min=1, help="n_k, the number of records of the edge")],
    total_delta: Annotated[float, typer.Option(help="δ of the whole run")] = 1e-5,
    sampler: Annotated[
        str, typer.Option(help="poisson, truncated-poisson, shuffled or with-replacement")
    ] = "poisson",
    largest_batch: Annotated[int | None, typer.Option(min=1, help="of truncated-poisson")] = None,
    clipping: Annotated[
        str, typer.Option(help="per-sample, normalised, quantile or batch-mean")
    ] = "per-sample",
    as_json: options.AsJson = False,
) -> None:
    """Find the smallest noise multiplier z that keeps the given number of releases within (ε, δ).

    Uses PLD, or RDP where δ is too small for PLD. The printed z is rounded up.
    """
    from common.accounting.budget import calibrate, keeps
    from common.accounting.kept import kept_in

    budget = Budget(total_epsilon, total_delta)
    drawn = SAMPLERS.make(sampler, {} if largest_batch is None else {"largest_batch": largest_batch})
    mechanism = Mechanism(None, batch_size, drawn, CLIPPINGS.make(clipping, {}))
    from common.models.features import user_cache
    from mapa.recording import said_if_slow

    with kept_in(user_cache()), said_if_slow(output.note, f"finding z for {releases:,} releases …"):
        z = calibrate(budget, mechanism, releases=releases, shard_size=shard)
    if as_json:
        fields = {"noise_multiplier": z, "total_epsilon": total_epsilon, "total_delta": total_delta}
        print(
            json.dumps({**fields, "releases": releases, "batch_size": batch_size, "shard": shard}, indent=2)
        )
    else:
        printed = Decimal(z).quantize(_PLACES, ROUND_CEILING)
        # the printed figure, typed in again, must stay within the budget
        while not keeps(
            budget, ReleaseKind(replace(mechanism, law=Gaussian(float(printed))), shard), releases
        ):
            printed += _PLACES
        print(f"noise multiplier z = {printed}")


def _find(run: str, runs: Path) -> Path:
    for path in (Path(run), runs / run):
        if path.is_dir():
            return path
    return chosen(run, runs)


def statements_of(path: Path, delta: float | None, *, budgets: bool = False) -> dict[str, Statement]:
    """Return the statements of an edge's own ledgers where they are here, else that of what the cloud was told.

    One for each data set that has records of its own, by its checksum. `budgets`: with what is left of the ledgers'.
    """
    ledgers = sorted(
        {*path.glob(FILE_NAME), *path.glob(f"*/{FILE_NAME}"), *path.glob(f"state/*/{FILE_NAME}")}
    )
    manifest = path / "manifest.json"
    scenario = None
    if manifest.is_file():
        scenario = parse_scenario(read_json(manifest)["scenario"])
    if ledgers:
        return _of_ledgers(path, ledgers, scenario, delta, budgets=budgets)
    if scenario is None:
        raise ConfigurationError(f"run = {str(path)!r}: contains neither records of a run nor a ledger")
    if not (path / "summary.json").is_file():
        return {scenario.data.set: _of_events(path, scenario, delta)}
    return {scenario.data.set: _of_summary(read_json(path / "summary.json"), scenario, delta)}


def _document(statements: dict[str, Statement]) -> dict[str, object]:
    """Return a single statement as it is; several as a list, so that none is taken for the whole."""
    if len(statements) == 1:
        [statement] = statements.values()
        return statement.as_dict()
    return {"statements": [{"dataset": key, **one.as_dict()} for key, one in statements.items()]}


def _of_ledgers(
    folder: Path, ledgers: list[Path], scenario: Scenario | None, delta: float | None, *, budgets: bool
) -> dict[str, Statement]:
    """Account what the ledgers hold, one statement for all runs on the same records, oldest records first."""
    books: dict[str, list[tuple[str, list[Standing]]]] = {}
    for path in ledgers:
        with ledger_snapshot(path.parent, folder) as ledger:
            for records, standings in by_records(ledger.standings()).items():
                books.setdefault(records, []).append((ledger.edge_id, standings))
    if not books:
        raise ConfigurationError("the ledgers contain no account yet")
    charged = {records: book for records, book in books.items() if any(_charged(s) for _, s in book)}
    fallback = 1e-5 if scenario is None else scenario.privacy.total_delta
    return {
        records: statement_of_book(book, delta, fallback, budgets=budgets)
        for records, book in (charged or dict([*books.items()][-1:])).items()
    }


def by_records(standings: list[Standing]) -> dict[str, list[Standing]]:
    groups: dict[str, list[Standing]] = {}
    for standing in standings:
        groups.setdefault(records_of(standing.account.shard.dataset), []).append(standing)
    return groups


def _charged(standings: list[Standing]) -> list[Standing]:
    return [standing for standing in standings if standing.charges]


def statement_of_book(
    book: list[tuple[str, list[Standing]]], delta: float | None, fallback: float, *, budgets: bool = False
) -> Statement:
    """State what the ledgers' standings on the same records cost; without charges, the last one's terms."""
    told = [(edge_id, _charged(standings) or standings[-1:]) for edge_id, standings in book]
    edges = [_edge(*one) for one in told]
    if budgets:
        edges = [replace(edge, **left) for edge, left in zip(edges, _remainders(book), strict=True)]
    edges.sort(key=lambda edge: edge.edge)
    if delta is None:
        kept = (standings[-1].account.budget for _, standings in told)
        delta = next((budget.delta for budget in kept if budget is not None), fallback)
    return state_privacy(edges, delta, of_ledgers=True)


def _remainders(book: list[tuple[str, list[Standing]]]) -> Iterator[dict[str, Any]]:
    """Yield the budget of each ledger and what is left of it; an accountant may take seconds, so not of too many."""
    asked: set[object] = set()
    for number, (_, standings) in enumerate(book):
        now = (_charged(standings) or standings)[-1]
        asked.add((now.account.kind, now.account.budget, *(one.spent for one in standings if one != now)))
        others = [one for place, (_, theirs) in enumerate(book) if place != number for one in theirs]
        left = Remainder.of(now, standings, others) if len(asked) <= _MOST_BUDGETS else None
        if left is None:
            yield {"budget": now.account.budget}
        else:
            yield {"budget": left.budget, "left": left.releases}


def _edge(edge_id: str, standings: list[Standing]) -> EdgeReleases:
    """Return what a ledger let go of the same records: it charges no two shards of a cut, so all of it overlaps."""
    [*earlier, now] = standings
    return EdgeReleases(
        edge=now.account.shard.index,
        edge_id=edge_id,
        kind=now.account.kind,
        releases=now.releases,
        charges=now.charges,
        earlier=tuple(standing.spent for standing in earlier),
        reproducible=any(standing.account.reproducible for standing in standings),
        shards=tuple(standing.of_shard for standing in standings),
        notes=_meaning(now.account.shard.dataset),
    )


def _meaning(dataset: str) -> tuple[str, ...]:
    """Say what the account of records that edges bring themselves is: one for each name of --data-name."""
    kind, _, name = dataset.partition(":")
    if kind != LOCAL:
        return ()
    return (
        f"Local data {name!r}: all releases under this name count for each of its records, whatever was added, removed"
        " or changed in between. Totals are per name: a record that also lies in data of another name, or of another"
        " state directory, has both totals added up, and keeping them apart is up to their owner.",
    )


def _of_events(path: Path, scenario: Scenario, delta: float | None) -> Statement:
    """State what the events of a run without a summary prove, and that it is a lower bound."""
    output.console(stderr=True, soft_wrap=True).print(
        "only recorded gradients are counted; edges may have released more (see their ledgers)",
        highlight=False,
    )
    chosen = scenario.privacy.total_delta if delta is None else delta
    return state_privacy(releases_on_record(path), chosen, shared=scenario.data.partition == "shared")


def releases_on_record(path: Path) -> list[EdgeReleases]:
    """Return what the events prove that each edge has released: at least that, for the last ones may be missing."""
    run = read_run(path)
    scenario, sizes = parse_scenario(run.manifest["scenario"]), run.manifest.get("shard_sizes")
    least = least_records(scenario)
    if sizes is None:
        raise ConfigurationError(
            f"{path}: its manifest has no shard_sizes, so ε cannot be computed from the events; see the edges' ledgers"
        )
    if least is not None:
        sizes = [least] * scenario.workers
    if strange := [k for k in (*run.joined, *run.tally.edges) if k >= scenario.workers]:
        raise ConfigurationError(f"{path}: events of edge {strange[0]}; it has {scenario.workers}")
    applied = [(k, edge) for k, edge in sorted(run.tally.edges.items()) if edge.applied]
    if not applied:
        raise ConfigurationError(f"{path}: unfinished, and no gradient is on record: no release is known")
    return [
        EdgeReleases(
            edge=k,
            edge_id=run.joined[k]["edge_id"],
            kind=ReleaseKind(scenario.mechanism(_law(run.joined[k])), sizes[k]),
            releases=edge.last_sequence,
            reproducible=scenario.seed is not None,
            at_least=least is not None,
            notes=() if least is None else (OWN.format(least=least),),
        )
        for k, edge in applied
    ]


def _of_summary(summary: dict[str, Any], scenario: Scenario, delta: float | None) -> Statement:
    rows = summary.get("privacy", {}).get("edges", [])
    if not rows:
        raise ConfigurationError(f"run = {summary['run']!r}: nothing was released")
    edges = [
        EdgeReleases(
            edge=row["edge"],
            edge_id=row["edge_id"],
            kind=ReleaseKind(scenario.mechanism(_stated_law(row)), row["shard_size"]),
            releases=row["releases"],
            charges=row["charges"],
            reproducible=row["reproducible_noise"],
            at_least=row.get("shard_size_at_least", False),
            notes=(OWN.format(least=row["shard_size"]),) if row.get("shard_size_at_least") else (),
        )
        for row in rows
    ]
    shared = scenario.data.partition == "shared"
    chosen = scenario.privacy.total_delta if delta is None else delta
    return state_privacy(edges, chosen, shared=shared)


def _stated_law(row: dict[str, Any]) -> NoiseLaw | None:
    known = {"epsilon": row["epsilon_per_release"], "noise_multiplier": row["noise_multiplier"]}
    return _law({"noise": row["noise"], **known, **row.get("parameters", {})})


def _law(values: dict[str, Any]) -> NoiseLaw | None:
    """Return the law that a record of joining names, with its parameters among the other keys; None: no noise."""
    if values["noise"] == "none":
        return None
    law = describe_law(values["noise"])
    return law.make({key: values[key] for key in law.names if values.get(key) is not None})


_MANY = 10_000  # missing releases; more at once need --yes

Book = list[tuple[str, list[Standing]]]  # by edge id, what its ledger has on the same records


def charge_command(
    state: Annotated[Path, typer.Option(help="the state directory (--state-dir of mapa edge)")],
    run: Annotated[str, typer.Option(help="name of the run on the broker")],
    edge: Annotated[str, typer.Option(help="id of the edge")],
    through: Annotated[int, typer.Option(min=1, max=MOST_RELEASES, help="last sequence to charge")],
    yes: Annotated[
        bool,
        typer.Option("--yes", help=f"also past the budget, and more than {_MANY:,} releases at once"),
    ] = False,
) -> None:
    """Charge releases that were made with another copy of an edge's ledger, so that it can be used again.

    Prints the account before and after. A charge is never taken back.
    """
    with _opened(state, EdgeId(edge)) as ledger:
        account = ledger.account(RunId(run))
        if account is None:
            known = ", ".join(sorted({standing.account.run for standing in ledger.standings()})) or "none"
            raise ConfigurationError(f"--run {run}: {edge} has no account in it; it has one in {known}")
        before = ledger.open(account)  # refused while an edge beside it spends a budget on the same records
        missing = through - before.releases
        if missing <= 0:
            raise ConfigurationError(
                f"--through {through}: must be above {before.releases}, what {edge} has charged in run {run};"
                " a charge is never taken back"
            )
        after = replace(before, releases=through, charges=before.charges + missing)
        change = _change(_book(state, ledger, before), before, after)
        doubt = _doubt(after, missing)
        if doubt and not yes:
            raise ConfigurationError(
                f"{change}. Nothing was charged: {doubt}. A number that came from the cloud is not authenticated;"
                " if you are sure of it, add --yes"
            )
        ledger.charge(RunId(run), through)
    print(f"charged: {change}")


@contextmanager
def _opened(state: Path, edge: EdgeId) -> Iterator[SqliteLedger]:
    """Open the edge's ledger as the edge itself would, so that no other process can meanwhile."""
    directory = _ledger_of(state, edge)
    if is_held(directory):
        raise ConfigurationError(f"--edge {edge}: its process is alive and holds {directory}; end it first")
    with (
        closing(take_slot(state, [directory.name])),
        closing(StateDirectory(state)) as shared,
        SqliteLedger(
            directory, edge, accountant=max_charges_apart, siblings=shared.claims_of(directory.name)
        ) as ledger,
    ):
        yield ledger


def _ledger_of(state: Path, edge: EdgeId) -> Path:
    found: dict[str, list[Path]] = {}
    for path in sorted(state.glob(f"*/{FILE_NAME}")):
        with ledger_snapshot(path.parent) as ledger:
            found.setdefault(ledger.edge_id, []).append(path.parent)
    if not found:
        raise ConfigurationError(
            f"--state {state}: no ledger in any of its folders; give the --state-dir of mapa edge"
        )
    if edge not in found:
        raise ConfigurationError(
            f"--edge {edge}: no such ledger in {state}; there are {', '.join(sorted(found))}"
        )
    [directory, *others] = found[edge]
    if others:
        places = ", ".join(map(str, (directory, *others)))
        raise ConfigurationError(
            f"--edge {edge}: several ledgers of it ({places}); keep the newest one alone"
        )
    return directory


def _book(state: Path, ledger: SqliteLedger, standing: Standing) -> Book:
    """Return what the other ledgers of the state directory, and this one's other runs, have on the same records."""
    records = records_of(standing.account.shard.dataset)
    mine = [one for one in by_records(ledger.standings())[records] if one != standing]
    book: Book = [(ledger.edge_id, mine)]
    for path in sorted(state.glob(f"*/{FILE_NAME}")):
        if path != ledger.path:
            with ledger_snapshot(path.parent) as other:
                book.append((other.edge_id, by_records(other.standings()).get(records, [])))
    return book


def _change(book: Book, before: Standing, after: Standing) -> str:
    cap = "" if before.cap is None else f" of {before.cap} that the budget permits"
    return (
        f"{before.edge_id}, run {before.account.run}, shard {before.account.shard.index}: releases {before.releases}"
        f" -> {after.releases}, charges {before.charges} -> {after.charges}{cap}; any record of this state directory:"
        f" {_total(book, before)} -> {_total(book, after)}"
    )


def _total(book: Book, standing: Standing) -> str:
    """Return ε of the records as `mapa ledger` states it, with this standing beside the rest of the book."""
    [(edge_id, mine), *others] = book
    if not any(one.charges for one in (standing, *mine)):
        return "ε = 0"
    whole = statement_of_book(
        [(edge_id, [*mine, standing]), *((name, s) for name, s in others if s)], None, 1e-5
    ).whole
    return f"ε = {whole.epsilon:.4g} (δ = {whole.delta:g})" if whole.is_private else "no guarantee"


def _doubt(after: Standing, missing: int) -> str:
    """Say why a charge may be a mistake, or what a forged refusal aims at; '': nothing speaks against it."""
    if after.cap is not None and after.charges > after.cap:
        return f"{after.charges} charges pass the budget, which permits {after.cap}"
    if missing > _MANY:
        return f"{missing:,} releases are more than {_MANY:,} at once"
    return ""


_USUAL = "show"


class LedgerGroup(TyperGroup):
    """`mapa ledger RUN` is `mapa ledger show RUN`; a run that is named as a command is called by its path."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in {*self.commands, "--help"}:
            args = [_USUAL, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=LedgerGroup,
    no_args_is_help=True,
    help="Privacy spent: `mapa ledger RUN` is short for `mapa ledger show RUN`.",
)
app.command(_USUAL)(ledger_command)
app.command("charge")(charge_command)
