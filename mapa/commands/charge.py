"""mapa ledger charge: the operator's word on releases that a ledger does not have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from common.datasets.families import records_of
from common.errors import ConfigurationError
from common.quantities import EdgeId, RunId
from edge.account import Standing
from edge.accountant import max_charges_apart
from edge.claims import ClaimsBook
from edge.ledger import MOST_RELEASES
from edge.slots import is_held, take_slot
from edge.sqlite_ledger import FILE_NAME, SqliteLedger, ledger_snapshot
from mapa.commands.ledger import by_records, statement_of_book

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
    """Open the edge's ledger as the edge itself would: nobody else can, meanwhile."""
    directory = _find(state, edge)
    if is_held(directory):
        raise ConfigurationError(f"--edge {edge}: its process is alive and holds {directory}; end it first")
    with (
        closing(take_slot(state, [directory.name])),
        closing(ClaimsBook(state)) as claims,
        SqliteLedger(
            directory, edge, accountant=max_charges_apart, siblings=claims.of(directory.name)
        ) as ledger,
    ):
        yield ledger


def _find(state: Path, edge: EdgeId) -> Path:
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
