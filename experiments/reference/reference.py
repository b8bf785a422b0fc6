"""The reference table from cells to files: choices on held-out records, runs, rows, audits; resumable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from experiments.harness import Harness, OnProgress, Order, ResultCache
from experiments.reference.audited import Audited, audits_of, read_audited, run_audit, section
from experiments.reference.cells import (
    Cell,
    Choice,
    Chosen,
    Group,
    Search,
    all_cells,
    asked_of,
    choice_for,
    methods,
    read_choices,
    write_choices,
)
from experiments.reference.table import CellRun, Row, markdown, read_rows, run_cell, write_values

CHOICES = Path(__file__).parent / "choices.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceOrder(Order):
    """What is to be run."""

    tune: bool = False  # choose on held-out records first; otherwise as choices.toml says
    others: Sequence[Path] = ()  # rows of others for the same table
    audit: bool = False  # each release mechanism; otherwise what audited.csv has is shown


@dataclass(frozen=True, slots=True)
class ReferenceTable:
    rows: list[Row]
    files: list[Path]
    failures: dict[str, str]
    runs: int  # made now
    cached: int
    looks: int  # at held-out records, for the choices in force
    audited: list[Audited]  # now or before


def make_table(order: ReferenceOrder, on_progress: OnProgress | None = None) -> ReferenceTable:
    """Run what is missing; write rows.csv, table.md, choices.toml where choices were made, audited.csv where asked."""
    order.out.mkdir(parents=True, exist_ok=True)
    others = [row for path in order.others for row in read_rows(path)]
    cells = all_cells(order.size, seeds=order.seeds, only=order.only)
    cache = ResultCache[Row](order.out / "cache", asdict, lambda _, values: Row(**values))
    harness = Harness(order, cache, on_progress)
    own_choices = order.out / "choices.toml"
    if order.tune:
        chosen = {**read_choices(own_choices), **_choose(cells, harness)}
        write_choices(own_choices, chosen)
    else:
        chosen = {**read_choices(CHOICES), **read_choices(own_choices)}
    done = _run([(cell, choice_for(cell, chosen)) for cell in cells], harness)
    rows = [*(row for row in done if row is not None), *others]
    kept = order.out / "audited.csv"
    if order.audit:
        write_values(kept, Audited, _audit({**read_choices(CHOICES), **chosen}, harness, on_progress))
    audited = read_audited(kept) if kept.exists() else []
    paths = [order.out / "rows.csv", order.out / "table.md", *([kept] if audited else [])]
    write_values(paths[0], Row, rows)
    paths[1].write_text(markdown(rows) + section(audited), encoding="utf-8")
    needed = {trial.group for trial, _ in asked_of(cells)}
    looks = sum(one.looks for group, one in chosen.items() if group in needed)
    return ReferenceTable(rows, paths, harness.failures, harness.runs, harness.cached, looks, audited)


def _run(cells: Sequence[tuple[Cell, Choice]], harness: Harness[Row]) -> list[Row | None]:
    """Return a row for each cell, None where it failed."""
    runs = {run.key: run for run in (CellRun(cell, choice, harness.order.data_dir) for cell, choice in cells)}
    if harness.order.resume:
        harness.recall(runs)
    harness.run(run_cell, [run for key, run in runs.items() if key not in harness.results])
    return [harness.results.get(key) for key in runs]


def _choose(cells: Sequence[Cell], harness: Harness[Row]) -> dict[Group, Chosen]:
    """Try every grid on held-out records, and go on beyond its end where the best value lies there."""
    trials = asked_of(cells)
    trial_of = {cell.group: cell for cell, _ in trials}
    grids = {group: methods()[cell.method].grid for group, cell in trial_of.items()}
    searches = {
        group: Search({key: list(values) for key, values in grid.items()}) for group, grid in grids.items()
    }
    while trials:
        for (cell, choice), row in zip(trials, _run(trials, harness), strict=True):
            if row is not None:
                searches[cell.group].learn(choice, row.accuracy)
        trials = [(trial_of[g], choice) for g, search in searches.items() for choice in search.further()]
    return {group: search.chosen for group, search in searches.items() if search.looks}


def _audit(
    chosen: Mapping[Group, Chosen], harness: Harness[Row], on_progress: OnProgress | None
) -> list[Audited]:
    """Return what the audit of each release mechanism of the size showed, in its order; never from a cache."""
    order = harness.order
    audits = audits_of(order.size, chosen, order.data_dir)
    audited: Harness[Audited] = Harness(order, on_progress=on_progress)
    audited.run(run_audit, audits)
    harness.failures |= audited.failures
    return [audited.results[audit.name] for audit in audits if audit.name in audited.results]
