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

from common.accounting.releases import Budget, ReleaseKind, check_delta
from common.datasets.catalogue import records_of
from common.errors import ConfigurationError
from common.noise.gaussian import Gaussian
from common.quantities import EdgeId, RunId
from common.records.reader import records_in
from edge.accountant import max_charges_apart
from edge.ledger import MOST_RELEASES, Standing
from edge.sqlite_ledger import FILE_NAME, SqliteLedger, ledger_snapshot
from edge.state_directory import StateDirectory, is_held
from mapa import output
from mapa.commands import options
from mapa.commands.help import SectionedGroup
from mapa.releases import Book, by_records, statement_of_book, statements_of
from mapa.runs import chosen, unfinished
from mapa.statement import Statement

_PLACES = Decimal("1e-6")  # of a printed z


def ledger_command(
    run: Annotated[
        str,
        typer.Argument(
            help="a run's directory, its id or a unique beginning, latest, or an edge's state directory"
        ),
    ],
    runs: options.RunsDir = Path("runs"),
    delta: Annotated[float | None, typer.Option(help="δ, instead of the run's total_delta")] = None,
    code: options.Code = None,
    as_json: options.AsJson = False,
) -> None:
    """Print the privacy guarantee of a run: a statement in words, then a table of the edges."""
    if delta is not None:
        check_delta(delta)
    options.use_code(code)
    path = next((path for path in (Path(run), runs / run) if path.is_dir()), None) or chosen(run, runs)
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
    """Find the smallest noise multiplier z within a total (ε, δ).

    Uses PLD, or RDP where δ is too small for PLD. The printed z is rounded up.
    """
    from common.accounting.budget import calibrate, keeps
    from common.accounting.kept import kept_in
    from common.models.features import user_cache
    from mapa.budget import mechanism_asked_for

    budget = Budget(total_epsilon, total_delta)
    mechanism = mechanism_asked_for(batch_size, sampler, clipping, largest_batch)
    with kept_in(user_cache()), output.said_if_slow(output.note, f"finding z for {releases:,} releases …"):
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


def _document(statements: dict[str, Statement]) -> dict[str, object]:
    """Return a single statement as it is; several as a list, so that none is taken for the whole."""
    if len(statements) == 1:
        [statement] = statements.values()
        return statement.as_dict()
    return {"statements": [{"dataset": key, **one.as_dict()} for key, one in statements.items()]}


_MANY = 10_000  # missing releases; more at once need --yes


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
        charges = before.charges + missing * account.kind.mechanism.steps
        after = replace(before, releases=through, charges=charges)
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
        closing(StateDirectory(state)) as shared,
        closing(shared.take([directory.name])) as slot,
        SqliteLedger(directory, edge, accountant=max_charges_apart, slot=slot) as ledger,
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
    """Return what this ledger's other runs, and the other ledgers of the directory, have on the same records."""
    records = records_of(standing.account.shard.dataset)
    mine = [one for one in by_records(ledger.standings())[records] if one != standing]
    book = [(ledger.edge_id, mine)]
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
    own = [*mine, standing]
    if not any(one.charges for one in own):
        return "ε = 0"
    whole = statement_of_book([(edge_id, own), *(one for one in others if one[1])]).whole
    return f"ε = {whole.epsilon:.4g} (δ = {whole.delta:g})" if whole.is_private else "no guarantee"


def _doubt(after: Standing, missing: int) -> str:
    """Say why a charge may be a mistake, or what a forged refusal aims at; '': nothing speaks against it."""
    if after.cap is not None and after.charges > after.cap:
        return f"{after.charges} charges pass the budget, which permits {after.cap}"
    if missing > _MANY:
        return f"{missing:,} releases are more than {_MANY:,} at once"
    return ""


class LedgerGroup(SectionedGroup):
    """`mapa ledger RUN` is `mapa ledger show RUN`; a run that is named as a command is called by its path."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        usual = bool(args) and args[0] not in {*self.commands, "--help", "-h"}
        return super().parse_args(ctx, ["show", *args] if usual else args)


app = typer.Typer(
    cls=LedgerGroup,
    no_args_is_help=True,
    help="Privacy spent; `mapa ledger RUN` is `mapa ledger show RUN`.",
)
app.command("show")(ledger_command)
app.command("charge")(charge_command)
